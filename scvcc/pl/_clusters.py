"""Clusters: how many, how stable, what they are made of, and how they match known groups."""

from typing import Any, Literal

import numpy as np
import pandas as pd
from anndata import AnnData
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, PercentFormatter

from scvcc import metrics
from scvcc._model.checks import validated
from scvcc.pl._canvas import Plot, add_legends, draw_map, finish, name_axes, panels, settle
from scvcc.pl._columns import PALETTE, UNASSIGNED, Palette, as_categories, read_column, store_colors
from scvcc.pl._inputs import check_cmap, read, read_map
from scvcc.pl._names import write_names


@validated(runners_up=0)
def n_clusters(
    adata: AnnData, *, key: str = "vcc", runners_up: int = 3, show: bool | None = None, return_fig: bool = False
) -> Plot:
    """Plot the evidence for each number of clusters: its score, what it cuts, and its smallest cluster.

    Needs :func:`scvcc.tl.suggest_n_clusters`. A flat top means that several numbers are about equally good. Numbers that
    need a cluster smaller than `min_cluster_size` (the dotted line) are pale: they are never suggested.

    Parameters
    ----------
    adata
        Annotated data with the scores.
    key
        Name of the result: `key_added` of :func:`scvcc.tl.suggest_n_clusters`.
    runners_up
        Number of next best numbers to mark.
    show
        Show the figure. None does so unless `return_fig` is given.
    return_fig
        Return the figure.

    Returns
    -------
    The figure with `return_fig=True`, the list of axes with `show=False`, else None.

    Examples
    --------
    >>> import scanpy as sc
    >>> import scvcc
    >>> adata = sc.datasets.pbmc68k_reduced()
    >>> table = scvcc.tl.suggest_n_clusters(adata, k_range=(2, 12), progress=False)
    >>> fig = scvcc.pl.n_clusters(adata, return_fig=True)
    """
    advice = f"run scvcc.tl.suggest_n_clusters(adata, key_added={key!r}) first"
    record = read(adata, "uns", f"{key}_n_clusters", advice)
    table, suggested = record["table"], int(record["suggested"])
    shown = {
        "score": "score\n(modularity)",
        "cut": "weight between\nclusters",
        "smallest": "cells in the\nsmallest cluster",
    }
    if "reproducibility" in table:
        shown["reproducibility"] = "reproducibility\n(ARI of parts)"
    axes = panels(len(shown), (7, 1.3 + 2.6 / len(shown)), sharex=True, height_ratios=(2.2, *[1] * (len(shown) - 1)))
    is_eligible = table["eligible"].to_numpy(bool)
    tints = np.where(is_eligible, "0.25", "0.8").tolist()
    for axis, (name, label) in zip(axes, shown.items(), strict=True):
        axis.plot(table["n_clusters"], table[name], color="0.8", linewidth=1, zorder=1)
        axis.scatter(table["n_clusters"], table[name], s=10, c=tints, zorder=2)
        axis.axvline(suggested, color=PALETTE[5], linewidth=1.2, zorder=0)
        axis.set_ylabel(label)
    _mark_counts(axes[0], table[is_eligible], suggested, runners_up)
    axes[1].yaxis.set_major_formatter(PercentFormatter(1))
    axes[2].set_yscale("log")
    axes[2].axhline(int(record["params"]["min_cluster_size"]), color="0.6", linewidth=0.8, linestyle=":")
    axes[-1].set_xlabel("number of clusters")
    axes[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
    return finish(axes, show, return_fig)


def _mark_counts(axis: Axes, eligible: pd.DataFrame, suggested: int, runners_up: int) -> None:
    scores = eligible.set_index("n_clusters")["score"].sort_values(ascending=False, kind="stable")
    others = scores.drop(suggested)[:runners_up]
    axis.scatter(suggested, scores[suggested], s=70, color=PALETTE[5], zorder=3, label=f"suggested: {suggested}")
    if len(others):
        style: Any = {"facecolors": "none", "edgecolors": PALETTE[0], "linewidths": 1.5, "s": 70, "zorder": 3}
        axis.scatter(others.index, others, label=f"next best: {', '.join(map(str, others.index))}", **style)
    axis.legend(loc="best", frameon=False)


@validated(size=0)
def stability(
    adata: AnnData,
    *,
    key: str = "vcc",
    dimensions: tuple[int, int] = (0, 1),
    size: float | None = None,
    show: bool | None = None,
    return_fig: bool = False,
) -> Plot:
    """Plot how well clusters are recovered in subsets of the data: on the map, and cluster by cluster.

    Needs :func:`scvcc.tl.stability`. On the left, cells are colored by their stability. On the right, each dot is a run, at
    the Jaccard index of the cluster and its best match, and each line is the mean of the runs. Clusters with their line in
    the white area are stable.

    Parameters
    ----------
    adata
        Annotated data with a result and its stability.
    key
        Name of the result.
    dimensions
        The two dimensions of the map to show, counted from 0.
    size
        Area of a point of the map in square points.
    show
        Show the figure. None does so unless `return_fig` is given.
    return_fig
        Return the figure.

    Returns
    -------
    The figure with `return_fig=True`, the list of axes with `show=False`, else None.

    Examples
    --------
    >>> import scanpy as sc
    >>> import scvcc
    >>> adata = sc.datasets.pbmc68k_reduced()
    >>> scvcc.tl.vcc(adata, n_clusters=6, hidden=(64,), progress=False)
    >>> scvcc.tl.stability(adata, n_runs=3, progress=False)
    >>> fig = scvcc.pl.stability(adata, return_fig=True)
    """
    name, advice = f"{key}_stability", f"run scvcc.tl.stability(adata, key={key!r}) first"
    record, _ = read(adata, "uns", name, advice), read(adata, "obs", name, advice)
    H, column = read_map(adata, key, dimensions), read_column(adata, key)
    height = max(4.2, 0.9 + 0.3 * len(record["clusters"]))
    left, right = axes = panels(2, (5, height), ncols=2, width_ratios=(1.1, 1))
    draw_map(left, H, read_column(adata, name), "stability of cells", size=size, vmin=0, vmax=1)
    name_axes(left, key, dimensions)
    settle(axes)
    write_names(left, H, column, beside=True)
    _draw_recurrence(right, record["clusters"], np.asarray(record["runs"]), column.colors or {})
    right.set_title("stability of clusters")
    return finish(axes, show, return_fig)


def _draw_recurrence(axis: Axes, clusters: pd.DataFrame, runs: np.ndarray, colors: dict[str, str]) -> None:
    """Draw a row of dots for each cluster, the steadiest on top, over bands for steady, doubtful and dissolved."""
    order = np.argsort(clusters["stability"].to_numpy(), kind="stable")
    rng = np.random.default_rng(0)
    for row, i in enumerate(order):
        jitter = rng.uniform(-0.22, 0.22, size=len(runs))
        tint = colors.get(str(clusters.index[i]), "0.3")
        axis.scatter(runs[:, i], row + jitter, s=16, color=tint, linewidths=0, alpha=0.75, zorder=2)
        axis.plot([clusters["stability"].iloc[i]] * 2, [row - 0.36, row + 0.36], color="black", linewidth=2, zorder=3)
    axis.set_yticks(range(len(order)), _with_sizes(clusters["n_cells"].iloc[order]))
    axis.set(xlim=(0, 1.01), ylim=(-0.7, len(order) - 0.3), xlabel="Jaccard index with the best match")
    axis.tick_params(axis="y", length=0)
    bands = {"dissolves": (0, 0.5, "0.85"), "doubtful": (0.5, 0.75, "0.94"), "stable": (0.75, 1, "white")}  # Hennig's
    style: dict[str, Any] = {"ha": "center", "va": "top", "fontsize": "small", "color": "0.4"}
    for name, (low, high, tint) in bands.items():
        axis.axvspan(low, high, color=tint, zorder=0, linewidth=0)
        axis.annotate(name, ((low + high) / 2, 0.995), xycoords=("data", "axes fraction"), **style)


def _with_sizes(sizes: pd.Series) -> list[str]:
    """Return the names of rows, each with its number of cells."""
    return [f"{name}  ({n:,})" for name, n in sizes.items()]


@validated()
def confusion(
    adata: AnnData,
    groupby: str,
    *,
    key: str = "vcc",
    normalize: Literal["groups", "clusters"] | None = "groups",
    cmap: str = "Blues",
    ax: Axes | None = None,
    show: bool | None = None,
    return_fig: bool = False,
) -> Plot:
    """Plot clusters against known groups as a heat map, with the best matches along the diagonal.

    Parameters
    ----------
    adata
        Annotated data with a result.
    groupby
        Column of `adata.obs` with the known groups. Cells without a group or a cluster are left out; the title says how
        many.
    key
        Name of the result.
    normalize
        Show shares of each group ("groups"), shares of each cluster ("clusters"), or numbers of cells (None).
    cmap
        Colormap.
    ax
        Axes to draw on.
    show
        Show the figure. None does so unless `ax` or `return_fig` is given.
    return_fig
        Return the figure.

    Returns
    -------
    The figure with `return_fig=True`, the axes with `show=False` or `ax`, else None.

    Examples
    --------
    >>> import scanpy as sc
    >>> import scvcc
    >>> adata = sc.datasets.pbmc68k_reduced()
    >>> scvcc.tl.vcc(adata, n_clusters=8, hidden=(64,), progress=False)
    >>> fig = scvcc.pl.confusion(adata, "bulk_labels", return_fig=True)
    """
    check_cmap(cmap)
    known, found, note = _pairs(adata, "groupby", groupby, key)
    table = pd.crosstab(known, found)
    counts = table.to_numpy()
    # clusters are in the order of the group that most of their cells are in
    table = table.iloc[:, np.lexsort((-counts.max(axis=0), counts.argmax(axis=0), table.columns == UNASSIGNED))]
    totals = {"groups": table.sum(axis=1).to_numpy()[:, None], "clusters": table.sum(axis=0).to_numpy(), None: 1}
    shown = table.to_numpy() / totals[normalize]

    (axis,) = panels(1, (1.8 + 0.42 * table.shape[1], 1.4 + 0.34 * table.shape[0]), ax=ax)
    image = axis.imshow(shown, cmap=cmap, vmin=0, vmax=1 if normalize else None, aspect="auto")
    axis.set_xticks(range(table.shape[1]), table.columns, rotation=90 if max(map(len, table.columns)) > 3 else 0)
    axis.set_yticks(range(table.shape[0]), table.index)
    scores = f"NMI {metrics.nmi(known, found):.2f} · ARI {metrics.ari(known, found):.2f}"
    axis.set_title("\n".join(filter(None, (scores, note))), fontsize="medium")
    axis.set(xlabel=key, ylabel=groupby)
    axis.spines[:].set_visible(False)
    axis.tick_params(length=0)
    _write_cells(axis, shown, percent=normalize is not None)
    label = {"groups": f"share of {groupby}", "clusters": f"share of {key}", None: "cells"}[normalize]
    axis.figure.colorbar(image, ax=axis, label=label, shrink=0.8).outline.set_visible(False)
    return finish(axis, show, return_fig, ax)


def _pairs(adata: AnnData, argument: str, groups: str, key: str) -> tuple[pd.Series, pd.Series, str]:
    """Return group and cluster of the cells that have both, and a note on how many have not."""
    known = read(adata, "obs", groups, f"{argument} must name one of its columns")
    found = read(adata, "obs", key, f"run scvcc.tl.vcc(adata, key_added={key!r}) first")
    both = (known.notna() & found.notna()).to_numpy()
    if not both.any():
        raise ValueError(f"No cell has a value in both adata.obs[{groups!r}] and adata.obs[{key!r}]: nothing to show.")
    # names of cells may repeat, so that they cannot match the two
    known, found = (as_categories(values[both].reset_index(drop=True)) for values in (known, found))
    left_out = int((~both).sum())
    note = f"{left_out:,} cells without a value left out" if left_out else ""
    return known, found, note


def _write_cells(axis: Axes, shown: np.ndarray, *, percent: bool) -> None:
    for (i, j), text in np.ndenumerate(np.char.mod("%.0f", 100 * shown if percent else shown)):
        if text != "0" and max(shown.shape) <= 25:
            tint = "w" if shown[i, j] > shown.max() / 2 else "0.2"
            axis.text(j, i, text, ha="center", va="center", fontsize="small", color=tint)


@validated()
def composition(
    adata: AnnData,
    by: str,
    *,
    key: str = "vcc",
    normalize: bool = True,
    palette: Palette = None,
    show: bool | None = None,
    return_fig: bool = False,
) -> Plot:
    """Plot the make-up of each cluster by sample, or by another grouping, and of each sample by cluster.

    On the left there is a bar for each cluster, divided by the categories of `adata.obs[by]`; on the right there is a
    bar for each category, divided by cluster. The bar on top shows all cells: a cluster with the same proportions is
    equally common in all samples.

    Parameters
    ----------
    adata
        Annotated data with a result.
    by
        Categorical column of `adata.obs`, such as the sample, the donor or the phase of the cell cycle. Cells without a
        value or a cluster are left out; the title says how many.
    key
        Name of the result.
    normalize
        Show shares; if False, numbers of cells.
    palette
        Colors of the categories of `by`, as in :func:`scvcc.pl.vcc`.
    show
        Show the figure. None does so unless `return_fig` is given.
    return_fig
        Return the figure.

    Returns
    -------
    The figure with `return_fig=True`, the list of axes with `show=False`, else None. Colors are stored as in
    :func:`scvcc.pl.vcc`.

    Examples
    --------
    >>> import scanpy as sc
    >>> import scvcc
    >>> adata = sc.datasets.pbmc68k_reduced()
    >>> scvcc.tl.vcc(adata, n_clusters=8, hidden=(64,), progress=False)
    >>> fig = scvcc.pl.composition(adata, "phase", return_fig=True)
    """
    known, found, note = _pairs(adata, "by", by, key)
    columns = [read_column(adata, by, palette=palette), read_column(adata, key)]
    if numbers := [column.name for column in columns if column.colors is None]:
        raise ValueError(
            f"adata.obs[{numbers[0]!r}] holds numbers: use .astype('category') if these are names of groups."
        )
    tables = pd.crosstab(found, known), pd.crosstab(known, found)
    n_bars = max(tables[0].shape) + 1.5 * normalize
    axes = panels(2, (4.2, 1 + 0.26 * n_bars), ncols=2)
    entries = []
    for axis, table, column in zip(axes, tables, columns, strict=True):
        entries.append({name: (column.colors or {})[name] for name in table})
        _draw_bars(axis, table, entries[-1], normalize=normalize)
        axis.set(title=f"{table.index.name} by {column.name}", ylim=(n_bars - 0.4, -0.6))
        store_colors(adata, column)
    axes[0].figure.suptitle(note, fontsize="medium")
    add_legends(axes, entries, ncols=2)
    return finish(axes, show, return_fig)


def _draw_bars(axis: Axes, table: pd.DataFrame, colors: dict[str, str], *, normalize: bool) -> None:
    """Draw a bar for each row of counts; shares are headed by a bar of all cells, to compare with."""
    places = np.arange(len(table), dtype=float)
    if normalize:
        table = pd.concat([table.sum().to_frame("all cells").T, table])
        places = np.append(0, places + 1.5)
    lengths = table.div(table.sum(axis=1), axis=0) if normalize else table
    starts = lengths.cumsum(axis=1) - lengths
    for name, tint in colors.items():
        axis.barh(places, lengths[name], left=starts[name], color=tint)
    axis.set_yticks(places, _with_sizes(table.sum(axis=1)))
    axis.tick_params(axis="y", length=0)
    axis.spines["left"].set_visible(False)
    axis.spines["bottom"].set_position(("data", places[-1] + 0.6))  # below the last bar
    axis.set_xlabel("share of cells" if normalize else "cells")
    if normalize:
        axis.set_xlim(0, 1)
        axis.xaxis.set_major_formatter(PercentFormatter(1))
