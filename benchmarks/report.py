"""Write the tables, figures and verdict of docs/benchmarks from the CSV files: `python -m benchmarks.report`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd

from .data import SETS
from .methods import METHODS
from .newcells import UNSEEN
from .process import RESULTS
from .run import (
    ABLATED,
    IMAGE_SETS,
    LATENT_DIMS,
    NEIGHBORS,
    ON_FEATURES,
    SCALED,
    SCATTERING,
    TABLE1,
    TABLE2,
    TABLE3,
    WITHOUT,
)

DOCS = Path(__file__).parents[1] / "docs" / "benchmarks" / "generated"
PUBLISHED = pd.read_csv(Path(__file__).parent / "published.csv", dtype=str, na_filter=False)
SIMCLR = {"cifar10": "CIFAR10", "cifar100_20": "CIFAR100-20", "stl10": "STL10"}
RIVALS = ("leiden", "umap_kmeans", "kmeans")
CARRIERS = {"predict": "new, `predict`", "neighbors": "new, 15 neighbors", "ingest": "new, `sc.tl.ingest`"}
AGAIN = {"K": "K given", "K + 5": "K + 5 given", "K unknown": "K unknown"}
FAR = 3  # standard deviations between a far type and the nearest known one
TITLES = {name: source.title for name, source in SETS.items()}
NOTES = {
    "table1": "Means over seeds and the standard deviation of NMI. *Published* rows are quoted from the paper (Ma & Kim "
    "2022) and were not run; there the column RCV1-10k is REUTERS-10K, other documents of the same corpus. Noise counts "
    "as a cluster.",
    "table2": "The letter after a set says what its labels are: A independent of the counts, B the authors' annotation, C "
    "the output of a clustering, with which agreement is partly circular.",
    "features": "Beside the bottom panel of the paper's table: methods with convolution, or on image features. Where it says *scattering*, "
    "the input is not pixels but wavelet scattering (Bruna & Mallat 2013; `benchmarks/scattering.py`): two orders of moduli "
    "of fixed filters, two scales, eight directions, 81 small maps an image. Nothing is trained, and no labels and no other "
    "images are used. The paper's features come from a trained network (VGG): its rows are for comparison, not for the same "
    "input. K is given. Means over seeds and the standard deviation of NMI.",
    "scalings": "Each map is divided by one standard deviation, on all sets. The reason: unscaled, the second order, which is "
    "about fifty times smaller than the averaged image, hardly counts; with a standard deviation for each coefficient, "
    "places where images hardly ever differ count as much as any other. The reason came first, but the scores of "
    "the three were seen (and those of logarithms, with one seed: a higher NMI on Fashion-MNIST, lower scores on digits):",
    "table3": "TF-IDF of 2,000 stems, rows of unit length, 70 neighbors.",
    "new_cells": "VCC is fitted on a part of the rows, with K given. Its clusters are then passed on to the other rows in "
    "three ways: by its own `predict`, by the majority of their 15 nearest fitted rows in PCA space, and by "
    "`scanpy.tl.ingest` on the same components. The labels passed on are the same; only the way differs. *ACC* and *NMI* "
    "are against the true classes of the new rows. For *named*, each cluster is named after the most frequent class of "
    "its fitted rows; it is the share of rows whose cluster has the right name. Genes, scaling and components are learnt "
    "from the fitted rows alone.",
    "time": "Processor seconds to label 100,000 new cells (50 components, one thread, medians of three runs), with the "
    "cells of IFN-β PBMC as the reference. What depends on the reference alone was prepared before.",
    "again": "Two models are fitted on a third of the rows each, and label the last third. Does the second model put a row "
    "into the same cluster, clusters being matched one to one? Black: all sets together; grey: each set. The table has the "
    "expected calibration error in ten bins, means over runs: against the second model, and against the true classes, "
    "where each cluster is named after the most frequent class of its fitted rows, so that impure clusters count as errors of "
    "the confidence too.",
    "unseen": "One type at a time is left out of the fitted half. The table shows the AUROC for separating its cells from "
    "new cells of the other types: mean over types, and range; 0.5 is chance. The last row has the standard deviation over seeds. *Distance in PCA space* is the mean distance "
    "to the 15 nearest of all fitted cells (of documents: in TF-IDF). *Pooled* is what `scvcc.tl.map_query` writes. Types with fewer than 20 cells are "
    "not left out. Some types are subtypes of others, and no measure can recognize these as unknown.",
    "limit": "Share of cells left unassigned at the default limit: of types that were left out, far (their center is at least "
    "three standard deviations from that of the nearest fitted type) and near; of all other new cells; and of those whose type "
    "has fewer than 30 fitted cells. Means over the types left out.",
    "shift": "Share of new cells left unassigned, and the lower quartile of the novelty of single cells, for queries like the "
    "reference (0.25 is expected), of other donors, and of another condition. *Of known types*: of the cells whose type has at least "
    "30 fitted cells. *As batches*: the reference was fitted with its donors as batches; the query is of donors that it has not seen.",
    "unknown_k": "VCC with `n_clusters=None`, Leiden at resolution 1, on the same graph. *Off by* is the mean over seeds of "
    "|found − true|.",
}


def markdown(header: Sequence[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def select(runs: pd.DataFrame, **values: object) -> pd.DataFrame:
    for column, value in values.items():
        runs = runs[runs[column] == value]
    return runs


def cell(runs: pd.DataFrame, metrics: Sequence[str]) -> str:
    """Means over seeds and the standard deviation of NMI; or why there is none."""
    ok = runs[runs.status == "ok"]
    if ok.empty:
        return f"> {runs.seconds.max():.0f} s" if "timeout" in set(runs.status) else "–"
    text = " / ".join(f"{ok[name].mean():.{1 if name == 'k_found' else 3}f}" for name in metrics)
    return text if len(ok) == 1 else f"{text} ±{ok.nmi.std():.3f}"


# ---------------------------------------------------------------------------------------------------- tables


def method_rows(
    runs: pd.DataFrame,
    sets: Sequence[str],
    metrics: Sequence[str],
    known: bool,
    *,
    methods: Sequence[str] = tuple(METHODS),
    variant: str = "",
    note: str = "",
) -> list[list[str]]:
    """A row for each method that was run: how many seeds at least, and a cell for each set."""
    rows = []
    for key in methods:
        mine = select(runs, method=key, variant=variant, k_known=known)
        mine = mine[mine.set.isin(sets)]
        if len(mine):
            title = METHODS[key].title + note
            seeds = mine[mine.status == "ok"].groupby("set").seed.nunique().min()
            cells = [cell(select(mine, set=name), metrics) for name in sets]
            rows.append([f"**{title}**" if key == "vcc" else title, "–" if pd.isna(seeds) else f"{seeds:.0f}", *cells])
    return rows


def published_rows(table: str, sets: Sequence[str], **values: str) -> list[list[str]]:
    rows = []
    for method, group in select(PUBLISHED, table=table, **values).groupby("method", sort=False):
        found = dict(zip(group.set.replace("reuters_10k", "rcv1_10k"), group.acc + " / " + group.nmi, strict=True))
        rows.append([f"*{method}, published*", "", *(found.get(name, "–") for name in sets)])
    return rows


def difference_row(runs: pd.DataFrame, sets: Sequence[str], metric: str) -> list[str]:
    """VCC's mean less the best mean among Leiden at K, UMAP + k-means and k-means."""
    runs = select(runs, variant="", k_known=True, status="ok")
    means = runs.groupby(["set", "method"])[metric].mean().unstack().reindex(index=sets, columns=["vcc", *RIVALS])
    gain = means["vcc"] - means[list(RIVALS)].max(axis=1)
    title = f"*VCC less the best of {', '.join(METHODS[key].title for key in RIVALS)}: {metric.upper()}*"
    return [title, "", *("–" if pd.isna(value) else f"{value:+.3f}" for value in gain)]


def table_page(runs: pd.DataFrame, title: str, key: str, sets: Sequence[str], metrics: Sequence[str]) -> str:
    names = [TITLES[name] + (f" ({SETS[name].truth})" if key == "table2" else "") for name in sets]
    known = method_rows(runs, sets, metrics, True)
    known += (
        published_rows(key, sets, convolution="no")
        if key == "table1"
        else [difference_row(runs, sets, name) for name in metrics[1:]]
    )
    unknown = method_rows(runs, sets, ("k_found", *metrics[1:]), False)
    true_k = select(runs, k_known=True, status="ok").groupby("set").k_given.first().reindex(sets)
    unknown.append(["*true K*", "", *("–" if pd.isna(k) else f"{k:.0f}" for k in true_k)])
    header = " / ".join(metrics).upper()
    return "\n".join(
        [
            f"## {title}\n\n{NOTES[key]}\n\nK is given (for Leiden, the resolution that gives K clusters is searched):\n",
            markdown([header, "seeds ≥", *names], known),
            "K is not given (Leiden: resolution 1):\n",
            markdown(["K FOUND" + header[header.index(" /") :], "seeds ≥", *names], unknown),
        ]
    )


def features_page(runs: pd.DataFrame) -> str:
    """Scattering beside pixels, and beside the paper's methods with convolution or on image features."""

    def rows(variant: str, sets: Sequence[str], methods: Sequence[str], note: str) -> list[list[str]]:
        return method_rows(runs, sets, ("acc", "nmi"), True, methods=methods, variant=variant, note=note)

    found = rows("", IMAGE_SETS, ON_FEATURES, ", pixels")
    found += rows(json.dumps(SCATTERING), IMAGE_SETS, ON_FEATURES, ", scattering")
    scalings = {"one for each map": "maps", "one for each coefficient": "coefficients", "none": "none"}
    scaled = [
        rows(json.dumps({"scattering": name}), SCALED, ("vcc",), f", {title}") for title, name in scalings.items()
    ]
    return "\n".join(
        [
            f"## Image features\n\n{NOTES['features']}\n",
            markdown(
                ["ACC / NMI", "seeds ≥", *(TITLES[name] for name in IMAGE_SETS)],
                found + published_rows("table1", IMAGE_SETS, convolution="yes"),
            ),
            f"{NOTES['scalings']}\n",
            markdown(
                ["standard deviations: ACC / NMI", "seeds ≥", *(TITLES[name] for name in SCALED)], sum(scaled, start=[])
            ),
        ]
    )


def variant_table(runs: pd.DataFrame, title: str, options: dict[str, dict], published: str) -> str:
    keys = [json.dumps(variant) for variant in options.values() if variant]
    sets = [name for name in ABLATED if runs[runs.variant.isin(keys)].set.eq(name).any()]
    rows = []
    for name, variant in options.items():
        mine = select(runs, method="vcc", variant=json.dumps(variant) if variant else "", k_known=True)
        rows.append([name, *(cell(select(mine, set=key), ("acc", "nmi")) for key in sets)])
    for row in select(PUBLISHED, table=published).itertuples():
        rest = ["–"] * (len(sets) - 1)
        rows.append([f"*{row.variant or 'all four losses'}, published*", f"{row.acc} / {row.nmi}", *rest])
    return markdown([title, *(TITLES[key] for key in sets)], rows)


def ablation_page(runs: pd.DataFrame) -> str:
    options: dict[str, dict] = {"all four losses": {}}
    options |= {"without " + " and ".join(names): {"loss_weights": dict.fromkeys(names, 0)} for names in WITHOUT}
    options |= {'`objective="paper"`, the literal reading': {"objective": "paper"}}
    return "## Ablation: the losses\n\n" + variant_table(runs, "ACC / NMI", options, "ablations")


def sweep_page(runs: pd.DataFrame, name: str, values: Sequence[int]) -> str:
    options = {str(value): {name: value} for value in values}
    table = variant_table(runs, f"`{name}`: ACC / NMI", options, name)
    figure, panels = plt.subplots(1, 2, figsize=(8, 3), layout="constrained")
    for panel, metric in zip(panels, ("acc", "nmi"), strict=True):
        for key in ABLATED:
            means = select(runs, method="vcc", set=key, status="ok").groupby("variant")[metric].mean()
            means = means.reindex([json.dumps(variant) for variant in options.values()])
            if means.notna().any():
                panel.plot(values, means, marker="o", label=TITLES[key])
        panel.set(xlabel=name, ylabel=metric.upper(), xscale="log" if max(values) > 50 else "linear")
        panel.set_xticks(values, [str(value) for value in values])
        panel.minorticks_off()
    panels[0].legend(frameon=False, fontsize="small")
    return f"## Ablation: `{name}`\n\n{save(figure, name)}\n\n{table}"


def new_cells_page(path: Path) -> str:
    rows = pd.read_csv(path)
    rows = rows[rows.status == "ok"].drop_duplicates(
        ["experiment", "set", "split", "seed", "method", "item"], keep="last"
    )
    parts = [f"## New points\n\n{NOTES['new_cells']}\n\n{transfer_table(select(rows, experiment='transfer'))}"]
    timed = select(rows, experiment="time")
    if len(timed):
        seconds = timed.groupby("method", sort=False).cpu_seconds.median()
        times = [[name, f"{value:.1f}"] for name, value in seconds.items()]
        parts.append(f"{NOTES['time']}\n\n" + markdown(("100,000 new cells", "seconds"), times))
    for name, section in (("again", again_section), ("unseen", unseen_section), ("shift", shift_section)):
        found = select(rows, experiment=name)
        if len(found):
            parts.append(section(found))
    return "\n".join(parts)


def transfer_table(rows: pd.DataFrame) -> str:
    lines = []
    for (name, split), group in rows.groupby(["set", "split"], sort=False):
        scored = [select(group, item="fit"), *(select(group, item="new", method=method) for method in CARRIERS)]
        cells = [" / ".join(f"{mine[score].mean():.3f}" for score in ("acc", "nmi", "named")) for mine in scored]
        sizes = [f"{mine.n.mean():.0f}" for mine in scored[:2]]
        lines.append([TITLES[name], split, str(group.seed.nunique()), *sizes, *cells])
    header = ("set", "fitted rows", "runs", "fitted", "new", "fitted: ACC / NMI / named", *CARRIERS.values())
    return markdown(header, lines)


def calibration_error(bins: pd.DataFrame) -> float:
    """Expected calibration error: the mean difference between confidence and share of right names, by rows."""
    return float(((bins.confidence - bins.named).abs() * bins.n).sum() / bins.n.sum())


def again_section(rows: pd.DataFrame) -> str:
    """Curves of all sets by how the number of clusters was chosen, and errors against the second fit and the classes."""
    methods, sets = list(AGAIN), list(dict.fromkeys(rows.set))
    figure, panels = plt.subplots(1, len(methods), figsize=(3 * len(methods), 3), layout="constrained", squeeze=False)
    for method, panel in zip(methods, panels[0], strict=True):
        mine = select(rows, method=method)
        panel.plot([0, 1], [0, 1], color="0.8", zorder=0)
        for part, style in [(select(mine, set=name), "0.75") for name in sets] + [(mine, "black")]:
            sums = part.assign(right=part.named * part.n, sum=part.confidence * part.n).groupby("item")[
                ["right", "sum", "n"]
            ]
            sums = sums.sum()
            sums = sums[sums.n >= 20]  # fewer rows say little
            panel.plot(sums["sum"] / sums.n, sums.right / sums.n, color=style, linewidth=1)
        panel.set(title=AGAIN[method], xlabel="confidence", xlim=(0, 1.02), ylim=(0, 1.02), aspect="equal")
    panels[0][0].set_ylabel("same cluster in the second fit")
    columns = [*methods, *(f"{method}, classes" for method in methods)]
    errors = {key: calibration_error(group) for key, group in rows.groupby(["set", "method", "seed"], sort=False)}
    means = pd.Series(errors).groupby(level=[0, 1], sort=False).mean().unstack().reindex(index=sets, columns=columns)
    counts = rows.groupby("set").seed.nunique()
    lines = [[TITLES[name], str(counts[name]), *(f"{means.loc[name, c]:.3f}" for c in columns)] for name in sets]
    lines.append(["*mean of the sets*", "", *(f"{means[c].mean():.3f}" for c in columns)])
    header = ("set", "runs", *(AGAIN[m] for m in methods), *(f"{AGAIN[m]}, classes" for m in methods))
    return f"### Reliability of the confidence\n\n{NOTES['again']}\n\n{save(figure, 'reliability')}\n\n{markdown(header, lines)}"


def unseen_section(rows: pd.DataFrame) -> str:
    methods = list(dict.fromkeys(rows.method))
    lines, mine = [], select(rows, split="half")
    for name, group in mine.groupby("set", sort=False):
        by_method = [select(group, method=method).groupby("item").auroc.mean() for method in methods]
        cells = [f"{auroc.mean():.3f} ({auroc.min():.2f}–{auroc.max():.2f})" for auroc in by_method]
        lines.append([TITLES[name], str(group.item.nunique()), str(group.seed.nunique()), *cells])
    cells = mine[mine.set.isin(UNSEEN)]
    lines.append(
        ["*mean of the sets of cells*", "", "", *(over_seeds(select(cells, method=m), mean_auroc) for m in methods)]
    )
    table = markdown(("set", "types", "seeds", *methods), lines)
    return f"### Types that the model has not seen\n\n{NOTES['unseen']}\n\n{table}\n{limit_table(rows)}"


def mean_auroc(rows: pd.DataFrame) -> float:
    return float(rows.groupby("set").auroc.mean().mean())


def over_seeds(rows: pd.DataFrame, value: Callable[[pd.DataFrame], float], digits: int = 3) -> str:
    """Mean of a value over seeds, and its standard deviation."""
    found = pd.Series([value(group) for _, group in rows.groupby("seed")]).dropna()
    return (
        "–" if found.empty else f"{found.mean():.{digits}f}" + (f" ±{found.std():.{digits}f}" if len(found) > 1 else "")
    )


def limit_table(rows: pd.DataFrame) -> str:
    """Shares of cells left unassigned by the default limit, for far and near types apart, and with another K."""
    cells, wrong = rows[(rows.split == "half") & rows.set.isin(UNSEEN)], rows[rows.split != "half"]
    parts = [("", cells)]
    if len(wrong):
        both = cells[cells.set.isin(wrong.set) & cells.seed.isin(wrong.seed)]
        found = {", K": both, **{split.removeprefix("half"): part for split, part in wrong.groupby("split")}}
        parts += [(f"{what} ({part.set.nunique()} sets)", part) for what, part in found.items()]
    parts += [(", documents", rows[~rows.set.isin(UNSEEN)])]
    lines = []
    for what, part in parts:
        for method in ("novelty, single", "novelty, pooled"):
            mine = select(part, method=method)
            if mine.empty:
                continue
            far, near = mine[mine.apart >= FAR], mine[mine.apart < FAR]
            caught = [
                f"{over_seeds(some, lambda t: t.unassigned.mean(), 2)} ({some.groupby(['set', 'item']).ngroups} types)"
                for some in (far, near)
            ]
            known = [over_seeds(mine, lambda t: t.lost.mean()), over_seeds(mine, lambda t: t.rare.mean(), 2)]
            lines.append([method + what, str(mine.seed.nunique()), over_seeds(mine, mean_auroc), *caught, *known])
    header = (
        "more than 0.99",
        "seeds",
        "AUROC",
        "cells of far types",
        "cells of near types",
        "cells of known types",
        "of rare known types",
    )
    wrong = (rows.split != "half").any()
    note = (
        " With K - 5 and K + 5, the reference has five clusters fewer or more than types, at least two."
        if wrong
        else ""
    )
    return f"{NOTES['limit']}{note}\n\n" + markdown(header, lines)


def shift_section(rows: pd.DataFrame) -> str:
    lines = []
    for (name, split, method), group in rows.groupby(["set", "split", "method"], sort=False):
        how = split + (", as batches" if method.endswith("batches") else "")
        values = [
            over_seeds(group, lambda t, c=column: t[c].mean(), 2) for column in ("unassigned", "lost", "quartile")
        ]
        lines.append([TITLES[name], how, str(group.seed.nunique()), *values])
    header = ("set", "fitted rows", "seeds", "unassigned", "of known types", "lower quartile of novelty")
    return f"### Queries as a whole\n\n{NOTES['shift']}\n\n" + markdown(header, lines)


def unknown_k_page(runs: pd.DataFrame) -> str:
    """The estimated number of clusters beside Leiden's at its default resolution."""
    true_k = select(runs, k_known=True, variant="", status="ok").groupby("set").k_given.first()
    found = select(runs, k_known=False, variant="", status="ok")
    lines, errors = [], {"vcc": [], "leiden": []}
    for name in SETS:
        if name not in true_k or not all(len(select(found, set=name, method=method)) for method in errors):
            continue
        cells = []
        for method, collected in errors.items():
            mine = select(found, set=name, method=method)
            off = (mine.k_found - true_k[name]).abs().mean()
            collected.append((off, mine.nmi.mean()))
            cells += [f"{mine.k_found.mean():.1f}", f"{off:.1f}", f"{mine.nmi.mean():.3f}"]
        lines.append([TITLES[name], f"{true_k[name]:.0f}", *cells])
    if not lines:
        return ""
    means = [
        f"{value:.{digits}f}"
        for pairs in errors.values()
        for value, digits in zip(map(_mean, zip(*pairs, strict=True)), (1, 3), strict=True)
    ]
    lines.append(["*mean*", "", "", means[0], means[1], "", means[2], means[3]])
    header = ("set", "true K", "VCC: K", "off by", "NMI", "Leiden: K", "off by", "NMI")
    return f"## Number of clusters not given\n\n{NOTES['unknown_k']}\n\n" + markdown(header, lines)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def data_page(runs: pd.DataFrame) -> str:
    sizes = select(runs, status="ok", part="all").groupby("set").n.first().reindex(list(SETS))
    rows = [
        [source.title, source.kind, "–" if pd.isna(n) else f"{n:.0f}", source.truth, source.file, source.origin]
        for source, n in zip(SETS.values(), sizes, strict=True)
    ]
    return "## The data sets\n\n" + markdown(("set", "kind", "rows", "labels", "file", "origin"), rows)


def conditions_page(runs: pd.DataFrame, folder: Path) -> str:
    others = (pd.read_csv(path) for path in (folder / "newcells.csv", folder / "limits.csv") if path.exists())
    rows = pd.concat([runs, *others])
    hours = runs.cpu_seconds.groupby(runs.method == "vcc").sum() / 3600
    lines = [
        f"## Conditions\n\nProcessor time of all measurements: {hours.get(True, 0):.1f} h for VCC, {hours.get(False, 0):.1f} h "
        "for the others. The machine did other work too, so only the page on performance says anything about speed.\n"
    ]
    for column in ("machine", "threads", "versions", "commit"):
        lines.append(f"- {column}: " + " · ".join(rows[column].dropna().astype(str).unique()))
    return "\n".join(lines)


# ---------------------------------------------------------------------------------------------------- figures


def save(figure: plt.Figure, name: str) -> str:
    figure.savefig(DOCS / f"{name}.png", dpi=110, metadata={"Software": None})
    plt.close(figure)
    return f"![{name}]({name}.png)"


def overview(runs: pd.DataFrame) -> str:
    means = select(runs, variant="", k_known=True, status="ok").groupby(["set", "method"]).nmi.mean().unstack()
    means = means.reindex([name for name in SETS if name in means.index])
    figure, panel = plt.subplots(figsize=(9, 4), layout="constrained")
    for i, key in enumerate(name for name in METHODS if name in means):
        style = {"color": "black", "s": 60, "zorder": 3} if key == "vcc" else {"color": plt.cm.tab20(i), "s": 25}
        panel.scatter([TITLES[name] for name in means.index], means[key], label=METHODS[key].title, **style)
    panel.set(ylabel="NMI, K given")
    panel.tick_params(axis="x", rotation=60)
    panel.legend(frameon=False, fontsize="x-small", loc="center left", bbox_to_anchor=(1, 0.5))
    return "## All sets at a glance\n\n" + save(figure, "overview")


def curve_page(path: Path) -> str:
    history = pd.read_csv(path)
    figure, (top, bottom) = plt.subplots(2, 1, figsize=(8, 5), sharex=True, layout="constrained")
    for metric in ("acc", "nmi"):
        found = history[metric].dropna()
        top.plot(found.index, found, marker=".", label=metric.upper())
    for loss in ("boundary", "contraction", "expansion", "clustering"):
        bottom.plot(history.index, history[loss], label=loss)
    bottom.set(yscale="log", ylabel="loss", xlabel="record of the history")
    for stage, group in history.groupby("stage", sort=False):
        top.annotate(stage, (group.index[0], 1.02), xycoords=("data", "axes fraction"), fontsize="small")
        for panel in (top, bottom):
            panel.axvline(group.index[0], color="0.8", zorder=0)
    for panel in (top, bottom):
        panel.legend(frameon=False, fontsize="small")
    return f"## Training on {TITLES[path.stem.removeprefix('curve_')]}\n\n{save(figure, path.stem)}"


# ---------------------------------------------------------------------------------------------------- all pages


def read_runs(path: Path) -> pd.DataFrame:
    """The measurements, the last one where a run was repeated."""
    runs = pd.read_csv(path).fillna({"variant": "", "part": "all"})
    return runs.drop_duplicates(["method", "set", "seed", "k_known", "variant", "part"], keep="last")


def pages(folder: Path) -> dict[str, str]:
    """The pages for which there are results."""
    runs = read_runs(folder / "runs.csv")
    texts = {
        "01_overview": overview(runs),
        "02_table1": table_page(runs, "Table 1: the paper's sets", "table1", TABLE1, ("acc", "nmi"))
        + "\nThe paper's sets whose input are features of SimCLR; fitted on the training images, scored on the others:\n\n"
        + markdown(("ACC / NMI", "", *SIMCLR.values()), published_rows("simclr", tuple(SIMCLR))),
        "03_table2": table_page(runs, "Table 2: cells", "table2", TABLE2, ("acc", "nmi", "ari")),
        "04_table3": table_page(runs, "Table 3: documents", "table3", TABLE3, ("acc", "nmi", "ari")),
    }
    if runs.variant.str.contains("scattering").any():
        texts["02_table1_features"] = features_page(runs)
    if runs.variant.str.contains("loss_weights|objective").any():
        texts["05_ablations"] = ablation_page(runs)
    for page, (name, values) in {"06": ("n_neighbors", NEIGHBORS), "07": ("latent_dim", LATENT_DIMS)}.items():
        if runs.variant.str.contains(name).any():
            texts[f"{page}_{name}"] = sweep_page(runs, name, values)
    texts |= {f"08_{path.stem}": curve_page(path) for path in sorted(folder.glob("curve_*.csv"))}
    if (folder / "newcells.csv").exists():
        texts["09_new_cells"] = new_cells_page(folder / "newcells.csv")
    if unknown := unknown_k_page(runs):
        texts["11_unknown_k"] = unknown
    return texts | {"90_data": data_page(runs), "99_conditions": conditions_page(runs, folder)}


def main() -> None:
    from . import batches, cuts, evidence, limits, performance, verdict

    parser = argparse.ArgumentParser(prog="python -m benchmarks.report", description=__doc__)
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the CSV files")
    args = parser.parse_args()
    DOCS.mkdir(parents=True, exist_ok=True)
    texts = pages(args.results) | performance.pages(args.results)
    if (args.results / "cuts.csv").exists():
        texts["14_cuts"] = cuts.page(args.results / "cuts.csv")
    if (args.results / "limits.csv").exists():
        texts["12_limits"] = limits.page(args.results / "limits.csv")
    if (args.results / "batches.csv").exists():
        texts["10_batches"] = batches.page(args.results / "batches.csv")
    if (args.results / "evidence.csv").exists():
        texts["13_evidence"] = evidence.page(args.results / "evidence.csv")
    for name, text in texts.items():
        (DOCS / f"{name}.md").write_text(text.rstrip() + "\n", encoding="utf-8")
    for page in DOCS.glob("*.md"):
        if page.stem not in texts:
            page.unlink()
    for figure in DOCS.glob("*.png"):
        if not any(f"({figure.name})" in text for text in texts.values()):
            figure.unlink()
    if (args.results / "newcells.csv").exists():
        verdict.write(read_runs(args.results / "runs.csv"), pd.read_csv(args.results / "newcells.csv"))


if __name__ == "__main__":
    main()
