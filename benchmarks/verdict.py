"""The verdict of the benchmarks, three lines and one picture, from the CSV files.

`python -m benchmarks.report` writes the lines between two marks of the README and of docs/benchmarks, and draws the
picture.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd

from .data import SETS
from .methods import METHODS

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "README.md", ROOT / "docs" / "benchmarks" / "index.md")
PICTURE = ROOT / "docs" / "_static" / "verdict.png"
BEGIN, END = "<!-- figures: runs.csv, newcells.csv -->", "<!-- end of figures -->"
SHOWN = ("vcc", "leiden", "umap_kmeans", "kmeans")  # in the lines; the picture has all methods
INK, GRAY = "#14507a", "#b9c2c9"


def mean_nmi(runs: pd.DataFrame, *, known: bool) -> pd.DataFrame:
    """Mean over seeds, then over the sets of a kind: a row for each method, a column for each kind and for all sets."""
    runs = runs[(runs.variant == "") & (runs.part == "all") & (runs.status == "ok") & (runs.k_known == known)]
    by_set = runs.groupby(["method", "set"]).nmi.mean().reset_index()
    by_set["kind"] = by_set.set.map(lambda name: SETS[name].kind)
    table = by_set.pivot_table(index="method", columns="kind", values="nmi")
    n_sets = by_set.groupby("method").set.nunique()
    table["all"] = by_set.groupby("method").nmi.mean().where(n_sets == n_sets.max())
    return table


def missed_by(runs: pd.DataFrame, method: str) -> float:
    """By how many clusters a method misses the true number, mean over seeds, then over sets."""
    runs = runs[(runs.variant == "") & (runs.status == "ok")]
    true = runs[runs.k_known].groupby("set").k_given.first()
    found = runs[~runs.k_known & (runs.method == method)]
    return float((found.k_found - found.set.map(true)).abs().groupby(found.set).mean().mean())


def sentences(runs: pd.DataFrame, new_cells: pd.DataFrame) -> list[str]:
    """What to know first, in figures."""
    known, unknown = mean_nmi(runs, known=True), mean_nmi(runs, known=False)
    n_sets = runs.set.nunique()
    lines = [
        f"**Number of clusters unknown** ({n_sets} sets): VCC {unknown.loc['vcc', 'all']:.2f}, "
        f"Leiden {unknown.loc['leiden', 'all']:.2f} at resolution 1. The number is off by "
        f"{missed_by(runs, 'vcc'):.1f} on average; Leiden's is off by {missed_by(runs, 'leiden'):.1f}."
    ]
    kinds = ("cells", "documents", "images")
    scores = [f"{METHODS[key].title} {' / '.join(f'{known.loc[key, kind]:.2f}' for kind in kinds)}" for key in SHOWN]
    lines.append(f"**Number given** ({' / '.join(kinds)}): {', '.join(scores)}.".replace("VCC (scvcc)", "VCC"))
    rows = new_cells[(new_cells.experiment == "transfer") & (new_cells.split == "half") & (new_cells.status == "ok")]
    means = rows.groupby(["item", "method", "set"]).nmi.mean().groupby(["item", "method"]).mean()
    lines.append(
        f"**New cells** (half of {rows.set.nunique()} sets kept out): labeled by the trained model "
        f"{means['new', 'predict']:.2f}, by their 15 nearest fitted cells {means['new', 'neighbors']:.2f}, by "
        f"`sc.tl.ingest` {means['new', 'ingest']:.2f}. The fitted half itself has {means['fit', 'predict']:.2f}."
    )
    return lines


def insert(page: Path, lines: list[str]) -> None:
    """Put the lines between the two marks of a page."""
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, mark, after = rest.partition(END)
    if not mark:
        raise ValueError(f"{page.name} lacks the marks {BEGIN} and {END}.")
    items = "\n".join(f"- {line}" for line in lines)
    page.write_text(f"{before}{BEGIN}\n{items}\n{END}{after}", encoding="utf-8")


def draw(runs: pd.DataFrame) -> plt.Figure:
    """Mean NMI of each method on each kind of data, with the number of clusters given and unknown."""
    tables = {title: mean_nmi(runs, known=known) for title, known in (("given", True), ("unknown", False))}
    tables = {title: table.loc[table.mean(axis=1).sort_values().index] for title, table in tables.items()}
    kinds = [kind for kind in ("cells", "documents", "images") if kind in tables["given"]]
    figure, grid = plt.subplots(
        2,
        len(kinds),
        figsize=(9, 5.6),
        sharex=True,
        sharey="row",
        layout="constrained",
        height_ratios=[len(table) + 1 for table in tables.values()],
    )
    for row, (title, table) in zip(grid, tables.items(), strict=True):
        for panel, kind in zip(row, kinds, strict=True):
            _draw_bars(panel, table[kind])
        row[0].set_ylabel(f"number of clusters\n{title}")
    for panel, kind in zip(grid[0], kinds, strict=True):
        panel.set_title(f"{kind} ({len({name for name in runs.set if SETS[name].kind == kind})} sets)")
    figure.supxlabel("mean NMI with the known classes", fontsize="medium")
    return figure


def _draw_bars(panel: plt.Axes, scores: pd.Series) -> None:
    names = [METHODS[key].title.partition(" (scvcc)")[0] for key in scores.index]
    panel.barh(names, scores.fillna(0), color=[INK if key == "vcc" else GRAY for key in scores.index])
    for place, (key, score) in enumerate(scores.items()):
        text = "not run" if pd.isna(score) else f"{score:.2f}"
        weight = "bold" if key == "vcc" else "normal"
        panel.text(0 if pd.isna(score) else score, place, f" {text}", va="center", fontsize="small", weight=weight)
    panel.set(xlim=(0, 1), xticks=[0, 0.5, 1])
    panel.tick_params(length=0)
    panel.spines[["top", "right", "left"]].set_visible(False)


def write(runs: pd.DataFrame, new_cells: pd.DataFrame) -> None:
    """Refresh the lines in both pages, and the picture."""
    lines = sentences(runs, new_cells)
    for page in PAGES:
        insert(page, lines)
    figure = draw(runs)
    figure.savefig(PICTURE, dpi=120, metadata={"Software": None})
    plt.close(figure)
