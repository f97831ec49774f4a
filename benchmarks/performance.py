"""The tables and the figure of docs/performance, from the CSV files of `speed`, `profile` and `sketch`."""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd

from .report import markdown, save
from .speed import GOALS, GROWTH, exponent, latest, ratios, verdicts

TITLES = {
    "mnist": "MNIST, 70,000 × 784, graph included",
    "ifnb": "ifnb, 14,000 cells × 50 PCs, graph given",
    "naive": "MNIST-test, 10,000 × 784",
    "pbmc3k": "pbmc3k, 2,638 cells × 50 PCs, graph given",
    "types_200": "20,000 simulated cells of 200 types × 50, graph given",
    **{f"cells_{n}": f"{n:,} cells × 50 PCs" for n in GROWTH},
    "million": "1,000,000 cells × 50 PCs",
    "start": "700 cells, first call in a process",
    "warm": "`tl.vcc`",
    "cold": "`tl.vcc`, compiling",
    "import": "`import scvcc` after anndata",
    "vcc": "VCC",
    "vcc_whole": "VCC, all cells trained on",
    "tl_vcc": "`tl.vcc`",
    "umap_kmeans": "UMAP (no seed, parallel) + k-means",
    "umap_pixels": "the same, on the pixels instead of 50 components",
    "umap_leiden": "`sc.tl.umap` + `sc.tl.leiden`",
    "leiden": "Leiden (igraph), graph included",
    "scvcc": "scvcc",
}
TITLES["naive method"] = "the paper's objective, both ends of each edge encoded"
ORDER = ("graph", "spectral", "structure", "clusters", "map", "encoder", "joint", "output")


def circumstances(rows: pd.DataFrame) -> str:
    known = {name: rows[name].dropna().astype(str).unique() for name in ("machine", "threads", "commit")}
    parts = (f"{name}: {' · '.join(values)}" for name, values in known.items() if len(values))
    return "; ".join(parts) + "."


def speed_page(rows: pd.DataFrame) -> str:
    table = ratios(rows)
    lines = []
    for row in table.itertuples():
        method = TITLES["naive method" if row.method == "naive" else row.method]
        mb = "" if pd.isna(row.peak_mb) else f"{max(row.peak_mb - row.base_mb, 0):.0f}"
        ratio = "" if pd.isna(row.ratio) else f"{row.ratio:.2f}"
        goal = f"≤ {GOALS[row.case]}" if row.case in GOALS and ratio else ""
        nmi, ari = ("" if pd.isna(score) else f"{score:.3f}" for score in (row.nmi, row.ari))
        lines.append([TITLES[row.case], method, f"{row.seconds:.2f}", mb, nmi, ari, ratio, goal])
    repeats = latest(rows).groupby(["case", "method"])["repeat"].nunique()
    text = (
        f"Medians of {repeats.min()} to {repeats.max()} measurements; the methods took turns. *Ratio* is the time of "
        "VCC over the other's. *MB* is the peak beyond libraries and data. Sets of 25,000 and more cells are simulated: points "
        f"drawn between neighbors of the ifnb set. {circumstances(rows)}\n\n"
    )
    header = ("work", "method", "seconds", "MB", "NMI", "ARI", "ratio", "goal")
    goals = [
        [name, f"{value:.3g}", f"≤ {goal}"] for name, (value, goal) in verdicts(table).items() if not pd.isna(value)
    ]
    text += markdown(header, lines) + "\n" + markdown(("goal", "measured", "aim"), goals)
    return f"## Time and memory\n\n{text}\n{growth_figure(table)}"


def growth_figure(table: pd.DataFrame) -> str:
    growing = table[table.case.str.startswith("cells_") | (table.case == "million")]
    if growing.empty:
        return ""
    figure, panels = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    for method, mine in growing.assign(mb=growing.peak_mb - growing.base_mb).groupby("method", sort=False):
        mine = mine.sort_values("n")
        for panel, column in zip(panels, ("seconds", "mb"), strict=True):
            power = f"$n^{{{exponent(table, method, column):.2f}}}$"
            title = TITLES[method].replace("`", "")
            panel.loglog(mine.n, mine[column], marker="o", label=f"{title}: {power}")
    for panel, label in zip(panels, ("seconds", "MB beyond libraries and data"), strict=True):
        panel.set(xlabel="cells", ylabel=label)
        panel.set_xticks(growing.n.unique(), [f"{n / 1000:.0f}k" for n in growing.n.unique()])
        panel.xaxis.set_minor_locator(plt.NullLocator())
        panel.legend(frameon=False, fontsize="x-small")
    return f"{save(figure, 'growth')}\n\nThe exponents are fitted from 25,000 to 400,000 cells.\n"


def profile_page(rows: pd.DataFrame) -> str:
    rows = rows[rows.status == "ok"].drop_duplicates(["set", "repeat", "stage", "commit"], keep="last")
    repeats, conditions = rows.groupby(["set", "commit"])["repeat"].nunique(), circumstances(rows)
    values = ["seconds", "share", "gflop", "of_mm"]
    rows = rows.groupby(["set", "stage", "commit"], sort=False)[values].median().reset_index()
    rows = rows.assign(set=rows.set + ", " + rows.commit)  # before and after a change
    sets = sorted(dict.fromkeys(rows.set), key=lambda name: name.split(",")[0])
    stages = rows[~rows.stage.str.startswith("torch.mm")]
    names = sorted(dict.fromkeys(stages.stage), key=_place)
    seconds, share = (stages.pivot(index="stage", columns="set", values=column) for column in ("seconds", "share"))
    lines = [
        [name, *(_cell(seconds, share, name, key) for key in sets)]
        for name in names
        if name == "all" or share.loc[name].max() > 0.005
    ]
    text = f"Seconds and share of the whole, medians of {repeats.min()} to {repeats.max()} fits.\n\n" + markdown(
        ("stage", *sets), lines
    )
    arithmetic = rows[rows.gflop.notna()]
    lines = [
        [row.set, row.stage, f"{row.gflop:.0f}", "" if pd.isna(row.of_mm) else f"{row.of_mm:.0%}"]
        for row in arithmetic.itertuples()
    ]
    text += "\n" + markdown(("set", "work", "GFLOP per second", "of torch.mm"), lines)
    return f"## Where the time goes\n\n{text}\n{conditions}\n"


def _place(stage: str) -> int:
    starts = [i for i, start in enumerate(ORDER) if stage.startswith(start)]
    return starts[0] if starts else len(ORDER) + (stage == "all")


def _cell(seconds: pd.DataFrame, share: pd.DataFrame, stage: str, key: str) -> str:
    if pd.isna(seconds.loc[stage, key]):
        return ""
    return f"{seconds.loc[stage, key]:.2f} ({share.loc[stage, key]:.0%})"


def sketch_page(rows: pd.DataFrame) -> str:
    rows = rows[rows.status == "ok"].drop_duplicates(["set", "kind", "size", "seed"], keep="last")
    rows = rows.assign(size=rows["size"].fillna(0))
    lines = []
    for (title, size, kind), group in rows.groupby(["set", "size", "kind"], sort=False):
        trained = "all" if size == 0 else f"{size:,.0f}, {kind}"
        scores = [f"{group[score].mean():.3f}" for score in ("acc", "nmi")]
        if len(group) > 1:
            scores = [f"{mean} ± {group[name].std():.3f}" for mean, name in zip(scores, ("acc", "nmi"), strict=True)]
        rare = ["", "", ""]
        if group.rare_f1.notna().any():
            by_seed = [" / ".join(f"{value:.2f}" for value in group[name]) for name in ("rare_f1", "rare_near")]
            rare = [f"{group.rare_rows.mean():.0f}", *by_seed]
        lines.append([title, trained, str(group.seed.nunique()), *scores, *rare])
    header = ("set", "trained on", "seeds", "ACC", "NMI", "rare rows trained on", "rare: F1", "rare: together")
    text = (
        "Scored on all rows, K given. *random* draws all rows with equal chance; *spread* is what `max_train_cells` does. In "
        "the set *rare*, one digit of MNIST (0, 1 or 4, by seed) is cut down to 0.3 % of the rows. The last two columns are "
        "by seed: F1 of the cluster that matches this digit best, and how well the digit is kept *together* (the share of "
        "the 10 nearest rows on the map that are of this digit too).\n\n"
    )
    return f"## Training on a sketch\n\n{text}{markdown(header, lines)}\n{circumstances(rows)}\n"


def pages(folder: Path) -> dict[str, str]:
    """The parts of docs/performance for which there are results."""
    makers = {"speed": speed_page, "profile": profile_page, "sketch": sketch_page}
    paths = {name: folder / f"{name}.csv" for name in makers}
    return {
        f"performance_{i}_{name}": make(pd.read_csv(paths[name]))
        for i, (name, make) in enumerate(makers.items(), start=1)
        if paths[name].exists()
    }
