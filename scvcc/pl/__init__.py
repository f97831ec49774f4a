"""Plots of a result: the map, the training behind it, and how it compares with known groups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import scanpy as sc
import scipy.sparse as sp
from matplotlib.colors import to_hex, to_rgb, to_rgba_array
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator, PercentFormatter
from natsort import natsorted

from scvcc import metrics
from scvcc._anndata.representation import matrix_at
from scvcc._anndata.results import result_source

if TYPE_CHECKING:
    from collections.abc import Sequence

    from anndata import AnnData
    from matplotlib.axes import Axes
    from matplotlib.figure import SubFigure

    from scvcc._training.graph import Matrix

__all__ = ["confusion", "history", "n_clusters", "similarity", "stability", "stages", "vcc"]

# Okabe-Ito's colors (black replaced), then colors chosen to stay apart for people with any color vision deficiency
PALETTE = (
    "#0072b2 #e69f00 #009e73 #cc79a7 #56b4e9 #d55e00 #f0e442 #332288 #642c16 #bcd385 #004e4e #8585ff "
    "#e9b1b1 #7a6f37 #4e376f #4ee9ff #ff597a #c89b4e #a6e964 #903700 #436443 #85597a #3759bc #c8b1d3"
).split()
MISSING_COLOR = "#d9d9d9"
RASTERIZE_ABOVE = 10_000  # points; vector files stay small
LABEL_SIZE = 9.0  # of names on a map, in points
MOST_HIDDEN = 0.5  # share of a cluster that its name may cover
FEW_CELLS = 20  # smaller clusters make no distribution
DISSOLVED, STABLE = 0.5, 0.75  # Jaccard index, by Hennig's rule of thumb
PAIRS = 5_000  # pairs of cells in each distribution of `similarity`
LOSSES = ("boundary", "contraction", "expansion", "clustering", "anchor")


def __dir__() -> list[str]:
    return __all__


LegendLoc = Literal["on data", "beside", "right margin", "none"]
Plot = Any  # Figure | Axes | list[Axes] | None, by `return_fig` and `show`


def vcc(
    adata: AnnData,
    color: str | Sequence[str] | None = None,
    *,
    key: str = "vcc",
    dimensions: tuple[int, int] = (0, 1),
    layer: str | None = None,
    use_raw: bool | None = None,
    legend_loc: LegendLoc = "on data",
    confidence: Literal["alpha", "color"] | None = None,
    boundary: bool | float = False,
    palette: Sequence[str] | Mapping[str, str] | None = None,
    cmap: str = "viridis",
    size: float | None = None,
    frameon: bool = True,
    title: str | Sequence[str] | None = None,
    ncols: int = 3,
    ax: Axes | None = None,
    show: bool | None = None,
    return_fig: bool = False,
) -> Plot:
    """Plot the map of :func:`scvcc.tl.vcc`.

    Parameters
    ----------
    adata
        Annotated data with a result.
    color
        Columns of `adata.obs` or names of variables; several make a grid. None takes the labels.
    key
        Name of the result: `key_added` of :func:`scvcc.tl.vcc`.
    dimensions
        The two dimensions of the map to show.
    layer
        Layer to take variables from.
    use_raw
        Take variables from `adata.raw`. None does so where it exists, has the variable, and `layer` is not set.
    legend_loc
        Names of categories "on data" (next to it where a name would hide a small cluster), "beside" the clusters, in
        the "right margin", or "none".
    confidence
        "alpha" makes cells with low confidence transparent, "color" colors by confidence.
    boundary
        Mark the cells with the highest boundary score: this share of them; True marks 5 %.
    palette
        Colors of the categories, in order or by name. None takes those stored in `adata.uns`, else colors that people
        with a color vision deficiency can tell apart.
    cmap
        Colormap for numbers.
    size
        Area of a point in square points. None chooses by the number of cells.
    frameon
        Draw the frame and name the axes.
    title
        One title, or one for each color.
    ncols
        Panels in a row.
    ax
        Axes to draw on, for one color.
    show
        Show the figure. None does so unless `ax` or `return_fig` is given.
    return_fig
        Return the figure.

    Returns
    -------
    The figure with `return_fig=True`; the axes (a list for several colors) with `show=False` or `ax`; else None. Stores
    the colors of a categorical column in `adata.uns[color + "_colors"]` where there are none that fit.

    Examples
    --------
    >>> import scanpy as sc
    import scipy.sparse as sp
    >>> import scvcc
    >>> adata = sc.datasets.pbmc68k_reduced()
    >>> scvcc.tl.vcc(adata, n_clusters=8, hidden=(64,), progress=False)
    >>> fig = scvcc.pl.vcc(adata, ["vcc", "CD79A"], return_fig=True)
    """
    if legend_loc not in ("on data", "beside", "right margin", "none"):
        raise ValueError(f"legend_loc must be 'on data', 'beside', 'right margin' or 'none', found {legend_loc!r}.")
    if confidence not in ("alpha", "color", None):
        raise ValueError(f"confidence must be 'alpha', 'color' or None, found {confidence!r}.")
    H = _map(adata, f"X_{key}", key)[:, list(_checked_dimensions(adata, key, dimensions))]
    default = f"{key}_confidence" if confidence == "color" else key
    names = [color or default] if color is None or isinstance(color, str) else list(color)
    columns = [_column(adata, name, layer=layer, use_raw=use_raw, palette=palette) for name in names]
    titles = [title] * len(names) if title is None or isinstance(title, str) else list(title)
    if len(titles) != len(names):
        raise ValueError(f"title has {len(titles)} entries for {len(names)} colors: give one for each, or a string.")
    alpha = _obs(adata, f"{key}_confidence") if confidence == "alpha" else None
    marked = _boundary_cells(adata, key, boundary)

    fig, axes = _axes(len(names), ncols, ax, panel=(4.6 + _margin(columns, legend_loc), 4.2))
    for column, heading, axis in zip(columns, titles, axes, strict=True):
        _scatter(axis, H, column, alpha=alpha, marked=marked, size=size, cmap=cmap)
        _dress(axis, H, f"{key.upper()}", dimensions, frameon=frameon)
        axis.set_title(column.name if heading is None else heading)
        _legend(axis, column, legend_loc, boundary=marked is not None)
    if legend_loc in ("on data", "beside"):
        _settle(fig)
        for column, axis in zip(columns, axes, strict=True):
            _write_labels(axis, H, column, beside=legend_loc == "beside")
    for name, column in zip(names, columns, strict=True):
        fitting = len(adata.uns.get(f"{name}_colors", ())) >= len(column.colors or ())
        if column.colors is not None and name in adata.obs and not fitting:
            adata.uns[f"{name}_colors"] = np.array(list(column.colors.values()))
    one = color is None or isinstance(color, str)
    return _finish(fig, axes[0] if one else axes, ax, show, return_fig)


def stages(
    adata: AnnData,
    *,
    key: str = "vcc",
    color: str | None = None,
    dimensions: tuple[int, int] = (0, 1),
    size: float | None = None,
    ncols: int = 5,
    show: bool | None = None,
    return_fig: bool = False,
) -> Plot:
    """Plot the map at several points of training, from the start to the final one.

    Needs `scvcc.tl.vcc(adata, …, keep_stages=True)`.

    Parameters
    ----------
    adata
        Annotated data with a result.
    key
        Name of the result.
    color
        Column of `adata.obs` or name of a variable. None takes the final labels.
    dimensions
        The two dimensions to show.
    size
        Area of a point in square points.
    ncols
        Panels in a row.
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
    import scipy.sparse as sp
    >>> import scvcc
    >>> adata = sc.datasets.pbmc68k_reduced()
    >>> scvcc.tl.vcc(adata, n_clusters=8, hidden=(64,), keep_stages=True, progress=False)
    >>> fig = scvcc.pl.stages(adata, return_fig=True)
    """
    kept = [str(name) for name in _result(adata, key).get("stages", [])]
    if not kept:
        raise ValueError(f"The run {key!r} kept no stages: run scvcc.tl.vcc with keep_stages=True.")
    _checked_dimensions(adata, key, dimensions)
    column = _column(adata, color or key)
    names = [*kept, "final"]
    fig, axes = _axes(len(names), ncols, None, panel=(2.7, 2.9))
    for name, axis in zip(names, axes, strict=True):
        H = _map(adata, f"X_{key}" if name == "final" else f"X_{key}_{name}", key)[:, list(dimensions)]
        _scatter(axis, H, column, size=size)
        _dress(axis, H, "", dimensions, frameon=True)
        axis.set_title(name)
    if column.colors is not None:
        fig.legend(handles=_handles(column), loc="outside right center", frameon=False)
    return _finish(fig, axes, None, show, return_fig)


def history(
    adata: AnnData,
    *,
    key: str = "vcc",
    show: bool | None = None,
    return_fig: bool = False,
) -> Plot:
    """Plot the losses, the weight β of the clustering loss and the share of labels that change during training.

    Each stage of training takes the same width; its number of steps is written below.

    Parameters
    ----------
    adata
        Annotated data with a result.
    key
        Name of the result.
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
    import scipy.sparse as sp
    >>> import scvcc
    >>> adata = sc.datasets.pbmc68k_reduced()
    >>> scvcc.tl.vcc(adata, n_clusters=8, hidden=(64,), progress=False)
    >>> fig = scvcc.pl.history(adata, return_fig=True)
    """
    record = _trained(adata, key, "history")["history"]
    stage = np.array([str(name) for name in record["stage"]])
    order = list(dict.fromkeys(stage))
    steps = {name: np.asarray(record["step"])[stage == name] for name in order}
    x = np.array([order.index(s) + step / steps[s].max() for s, step in zip(stage, record["step"], strict=True)])

    fig, axes = plt.subplots(3, 1, figsize=(8, 6.4), sharex=True, height_ratios=(3, 1, 1), layout="constrained")
    shown = [name for name in LOSSES if name in record and np.isfinite(record[name]).any()]
    for name, tint in zip((*shown, "total"), (*PALETTE, *PALETTE), strict=False):
        _line(axes[0], x, record[name], stage, label=name, color="black" if name == "total" else tint)
    _line(axes[1], x, record["beta"], stage, color="black")
    _line(axes[2], x, record["label_change"], stage, color="black")
    axes[0].set_yscale("log")
    axes[0].legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    axes[2].yaxis.set_major_formatter(PercentFormatter(1, decimals=1))
    for axis, label in zip(axes, ("loss", "β", "labels\nchanged"), strict=True):
        axis.set_ylabel(label)
        axis.spines[["top", "right"]].set_visible(False)
        for border in range(1, len(order)):
            axis.axvline(border, color="0.8", linewidth=0.8, zorder=0)
    axes[2].set_xlim(-0.02, len(order) + 0.02)
    axes[2].set_xticks(np.arange(len(order)) + 0.5, [f"{name}\n{steps[name].max()} steps" for name in order])
    axes[2].tick_params(axis="x", length=0)
    return _finish(fig, list(axes), None, show, return_fig)


def n_clusters(
    adata: AnnData,
    *,
    key: str = "vcc",
    runners_up: int = 3,
    show: bool | None = None,
    return_fig: bool = False,
) -> Plot:
    """Plot why a number of clusters is suggested: the score of each, what it cuts, and its smallest cluster.

    Needs :func:`scvcc.tl.suggest_n_clusters`. A flat top means that several numbers are about as good.

    Parameters
    ----------
    adata
        Annotated data with the scores.
    key
        Name of the result: `key_added` of :func:`scvcc.tl.suggest_n_clusters`.
    runners_up
        How many of the next best numbers to mark.
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
    import scipy.sparse as sp
    >>> import scvcc
    >>> adata = sc.datasets.pbmc68k_reduced()
    >>> table = scvcc.tl.suggest_n_clusters(adata, k_range=(2, 12), progress=False)
    >>> fig = scvcc.pl.n_clusters(adata, return_fig=True)
    """
    name = f"{key}_n_clusters"
    if name not in adata.uns:
        raise ValueError(f"adata.uns has no {name!r}: run scvcc.tl.suggest_n_clusters(adata, key_added={key!r}) first.")
    table, least = adata.uns[name]["table"], int(adata.uns[name]["params"]["min_cluster_size"])
    ranked = table[table["eligible"].to_numpy(bool)].sort_values("score", ascending=False, kind="stable")
    suggested = int(adata.uns[name]["suggested"])
    panels = {
        "score": "score\n(modularity)",
        "cut": "weight between\nclusters",
        "smallest": "cells in the\nsmallest cluster",
    }
    if "reproducibility" in table:
        panels = {**panels, "reproducibility": "reproducibility\n(ARI of parts)"}
    fig, axes = plt.subplots(
        len(panels),
        1,
        figsize=(7, 2.6 + 1.3 * len(panels)),
        sharex=True,
        height_ratios=(2.2, *[1] * (len(panels) - 1)),
        layout="constrained",
    )
    for axis, (column, label) in zip(axes, panels.items(), strict=True):
        _draw_counts(axis, table, column)
        axis.axvline(suggested, color=PALETTE[5], linewidth=1.2, zorder=0)
        axis.set_ylabel(label)
        axis.spines[["top", "right"]].set_visible(False)
    _mark_counts(axes[0], ranked[ranked["n_clusters"] != suggested][:runners_up], ranked, suggested)
    axes[1].yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axes[2].set_yscale("log")
    axes[2].axhline(least, color="0.6", linewidth=0.8, linestyle=":")
    axes[-1].set_xlabel("number of clusters")
    axes[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
    return _finish(fig, list(axes), None, show, return_fig)


def stability(
    adata: AnnData,
    *,
    key: str = "vcc",
    dimensions: tuple[int, int] = (0, 1),
    size: float | None = None,
    show: bool | None = None,
    return_fig: bool = False,
) -> Plot:
    """Plot how well clusters come back on parts of the cells: on the map, and cluster by cluster.

    Needs :func:`scvcc.tl.stability`. On the left, cells that change company are dark. On the right there is a dot for
    each run, at the Jaccard index of the cluster with its best match, and a line at their mean; clusters that recur are
    in the white part.

    Parameters
    ----------
    adata
        Annotated data with a result and its stability.
    key
        Name of the result.
    dimensions
        The two dimensions of the map to show.
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
    import scipy.sparse as sp
    >>> import scvcc
    >>> adata = sc.datasets.pbmc68k_reduced()
    >>> scvcc.tl.vcc(adata, n_clusters=6, hidden=(64,), progress=False)
    >>> scvcc.tl.stability(adata, n_runs=3, progress=False)
    >>> fig = scvcc.pl.stability(adata, return_fig=True)
    """
    name = f"{key}_stability"
    if name not in adata.uns or name not in adata.obs:
        raise ValueError(f"adata holds no stability of {key!r}: run scvcc.tl.stability(adata, key={key!r}) first.")
    H = _map(adata, f"X_{key}", key)[:, list(_checked_dimensions(adata, key, dimensions))]
    record, column = adata.uns[name], _column(adata, key)
    clusters = record["clusters"]
    height = max(4.2, 0.9 + 0.3 * len(clusters))
    fig, (left, right) = plt.subplots(1, 2, figsize=(10, height), width_ratios=(1.1, 1), layout="constrained")
    shown = Column(name, adata.obs[name].to_numpy(dtype=float), None)
    _scatter(left, H, shown, size=size, limits=(0, 1))
    _dress(left, H, key.upper(), dimensions, frameon=True)
    left.set_title("stability of cells")
    _settle(fig)
    _write_labels(left, H, column, beside=True)
    _draw_recurrence(right, clusters, np.asarray(record["runs"]), column.colors or {})
    right.set_title("stability of clusters")
    return _finish(fig, [left, right], None, show, return_fig)


def similarity(
    adata: AnnData,
    *,
    key: str = "vcc",
    clusters: tuple[str, str] | None = None,
    random_state: int = 0,
    show: bool | None = None,
    return_fig: bool = False,
) -> Plot:
    """Plot similarities within and between two clusters, before and after training.

    The similarity of two cells is exp(−d / s), with their distance d in the representation the encoder was trained on
    (before) or on the map (after). To make the two comparable, s is the mean distance of two random cells there.

    Parameters
    ----------
    adata
        Annotated data with a result.
    key
        Name of the result.
    clusters
        The two clusters. None takes those whose centers are nearest on the map, among clusters of 20 cells or more.
    random_state
        Seed for the pairs of cells that are compared.
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
    import scipy.sparse as sp
    >>> import scvcc
    >>> adata = sc.datasets.pbmc68k_reduced()
    >>> scvcc.tl.vcc(adata, n_clusters=8, hidden=(64,), progress=False)
    >>> fig = scvcc.pl.similarity(adata, return_fig=True)
    """
    _trained(adata, key, "similarity")
    H = _map(adata, f"X_{key}", key)
    column = _column(adata, key)
    labels = np.where(np.isfinite(H).all(axis=1), column.values, -1)
    names = list(column.colors or {})
    pair = _nearest_clusters(H, labels) if clusters is None else _named_clusters(names, clusters, labels)
    source = result_source(adata, key)
    X = matrix_at(adata, source)
    fig, axes = plt.subplots(1, 2, figsize=(8.4, 3.2), sharex=True, layout="constrained")
    tints = (*(list((column.colors or {}).values())[code] for code in pair), "0.35")
    spaces = {f"before: {source.short}": X, "after: map": H}
    groups = {
        title: _pair_similarities(space, labels, pair, np.random.default_rng(random_state))
        for title, space in spaces.items()
    }
    kinds = (f"within {names[pair[0]]}", f"within {names[pair[1]]}", "between")
    lowest = min(values.min() for panel in groups.values() for values in panel)
    bins = np.linspace(np.floor(10 * lowest) / 10, 1, 61)
    for axis, (title, panel) in zip(axes, groups.items(), strict=True):
        for values, name, tint in zip(panel, kinds, tints, strict=True):
            axis.hist(values, bins, density=True, histtype="stepfilled", alpha=0.4, color=tint, label=name)
            axis.hist(values, bins, density=True, histtype="step", color=tint, linewidth=1.2)
        axis.set(title=title, xlabel="similarity", yticks=[], xlim=(bins[0], 1))
        axis.spines[["top", "right", "left"]].set_visible(False)
    axes[0].set_ylabel("density")
    axes[1].legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    return _finish(fig, list(axes), None, show, return_fig)


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
    """Plot clusters against known groups as a heat map, with matching ones along the diagonal.

    Parameters
    ----------
    adata
        Annotated data with a result.
    groupby
        Column of `adata.obs` with the known groups; cells without a group are left out.
    key
        Name of the result.
    normalize
        Show the share of each group in the clusters ("groups"), the share of each cluster in the groups ("clusters"),
        or numbers of cells (None).
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
    import scipy.sparse as sp
    >>> import scvcc
    >>> adata = sc.datasets.pbmc68k_reduced()
    >>> scvcc.tl.vcc(adata, n_clusters=8, hidden=(64,), progress=False)
    >>> fig = scvcc.pl.confusion(adata, "bulk_labels", return_fig=True)
    """
    if normalize not in ("groups", "clusters", None):
        raise ValueError(f"normalize must be 'groups', 'clusters' or None, found {normalize!r}.")
    known, found = (_obs(adata, name).reset_index(drop=True) for name in (groupby, key))  # names may repeat
    both = (known.notna() & found.notna()).to_numpy()
    if not both.any():
        raise ValueError(f"No cell has a value in both adata.obs[{groupby!r}] and adata.obs[{key!r}]: nothing to show.")
    table = _table(known[both], found[both])
    axis_sum = {"groups": table.sum(axis=1).to_numpy()[:, None], "clusters": table.sum(axis=0).to_numpy()}
    shown = table.to_numpy() / axis_sum[normalize] if normalize else table.to_numpy()

    panel = (1.8 + 0.42 * table.shape[1], 1.4 + 0.34 * table.shape[0])
    fig, axes = _axes(1, 1, ax, panel=panel)
    axis = axes[0]
    image = axis.imshow(shown, cmap=cmap, vmin=0, vmax=1 if normalize else None, aspect="auto")
    axis.set_xticks(range(table.shape[1]), table.columns, rotation=90 if table.columns.str.len().max() > 3 else 0)
    axis.set_yticks(range(table.shape[0]), table.index)
    axis.set(xlabel=key, ylabel=groupby)
    scores = f"NMI {metrics.nmi(known[both], found[both]):.2f} · ARI {metrics.ari(known[both], found[both]):.2f}"
    axis.set_title(scores, fontsize="medium")
    axis.spines[:].set_visible(False)
    axis.tick_params(length=0)
    _write_cells(axis, shown, percent=normalize is not None)
    label = {"groups": f"share of {groupby}", "clusters": f"share of {key}"}.get(normalize or "", "cells")
    bar = fig.colorbar(image, ax=axis, label=label, shrink=0.8)
    bar.outline.set_visible(False)
    return _finish(fig, axis, ax, show, return_fig)


# ------------------------------------------------------------------------------------------------ what is drawn


@dataclass(frozen=True)
class Column:
    """Values to color cells by: numbers, or positions in `colors`, the categories and their colors (-1: missing)."""

    name: str
    values: np.ndarray
    colors: dict[str, str] | None  # None for numbers


def _column(
    adata: AnnData,
    name: str,
    *,
    layer: str | None = None,
    use_raw: bool | None = None,
    palette: Sequence[str] | Mapping[str, str] | None = None,
) -> Column:
    if name not in adata.obs:
        return Column(name, _variable(adata, name, layer, use_raw), None)
    series = adata.obs[name]
    if pd.api.types.is_numeric_dtype(series) and not pd.api.types.is_bool_dtype(series):
        return Column(name, series.to_numpy(dtype=float, na_value=np.nan), None)
    if not isinstance(series.dtype, pd.CategoricalDtype):
        series = series.astype("category")
        series = series.cat.reorder_categories(natsorted(series.cat.categories, key=str))
    categories = [str(c) for c in series.cat.categories]
    return Column(name, series.cat.codes.to_numpy(), _colors(adata.uns.get(f"{name}_colors"), categories, palette))


def _variable(adata: AnnData, name: str, layer: str | None, use_raw: bool | None) -> np.ndarray:
    raw = adata.raw
    if use_raw and raw is None:
        raise ValueError("use_raw=True, but adata.raw is None: leave use_raw out, or set adata.raw first.")
    if use_raw is None:
        use_raw = layer is None and raw is not None and name in raw.var_names
    names = raw.var_names if use_raw and raw is not None else adata.var_names
    if name not in names:
        raise ValueError(f"color={name!r} is neither a column of adata.obs nor the name of a variable.")
    return sc.get.obs_df(adata, [name], layer=layer, use_raw=use_raw)[name].to_numpy(dtype=float)


def _colors(
    stored: Sequence[str] | None, categories: list[str], palette: Sequence[str] | Mapping[str, str] | None
) -> dict[str, str]:
    """Return a color for each category: the caller's, else the stored ones, else our own."""
    if isinstance(palette, Mapping):
        missing = [c for c in categories if c not in palette]
        if missing:
            raise ValueError(f"palette has no color for {', '.join(map(repr, missing))}.")
        return {c: to_hex(palette[c]) for c in categories}
    if palette is not None:
        listed = list(palette)
        if not listed:
            raise ValueError("palette is empty: give at least one color, or None for the default ones.")
        return {c: to_hex(listed[i % len(listed)]) for i, c in enumerate(categories)}
    if stored is not None and len(stored) >= len(categories):
        return {c: to_hex(str(tint)) for c, tint in zip(categories, stored, strict=False)}
    return dict(zip(categories, _default_palette(len(categories)), strict=True))


def _default_palette(n: int) -> list[str]:
    """Return `n` colors; beyond the palette they repeat, lighter and darker in turn."""
    tints = []
    for i in range(n):
        turn, base = i // len(PALETTE), np.array(to_rgb(PALETTE[i % len(PALETTE)]))
        target, share = float(turn % 2), 1 - 0.6 ** ((turn + 1) // 2)
        tints.append(to_hex(tuple(base + share * (target - base))))
    return tints


def _result(adata: AnnData, key: str) -> Mapping[str, Any]:
    if key not in adata.uns or f"X_{key}" not in adata.obsm:
        raise ValueError(f"adata holds no result named {key!r}: run scvcc.tl.vcc(adata, key_added={key!r}) first.")
    return adata.uns[key]


def _trained(adata: AnnData, key: str, plot: str) -> Mapping[str, Any]:
    """The record of a run, which `map_query` does not leave."""
    record = _result(adata, key)
    if "history" not in record:
        raise ValueError(
            f"key={key!r} is a result of scvcc.tl.map_query, which trains nothing: draw {plot} of the reference, whose "
            "encoder was used."
        )
    return record


def _map(adata: AnnData, name: str, key: str) -> np.ndarray:
    if name not in adata.obsm:
        raise ValueError(f"adata.obsm has no {name!r}: run scvcc.tl.vcc(adata, key_added={key!r}) first.")
    return np.asarray(adata.obsm[name], dtype=float)


def _obs(adata: AnnData, name: str) -> pd.Series:
    if name not in adata.obs:
        raise ValueError(f"{name!r} is not a column of adata.obs.")
    return adata.obs[name]


def _checked_dimensions(adata: AnnData, key: str, dimensions: tuple[int, int]) -> tuple[int, int]:
    n_dimensions = _map(adata, f"X_{key}", key).shape[1]
    if n_dimensions < 2:
        raise ValueError(
            f"The map {key!r} has a single dimension, and two are drawn: run scvcc.tl.vcc with latent_dim=2 or more."
        )
    if len(dimensions) != 2 or not all(0 <= d < n_dimensions for d in dimensions):
        raise ValueError(f"dimensions={dimensions!r}, but the map {key!r} has {n_dimensions}, counted from 0.")
    return dimensions


def _boundary_cells(adata: AnnData, key: str, boundary: bool | float) -> np.ndarray | None:
    if boundary is False:
        return None
    share = 0.05 if boundary is True else float(boundary)
    if not 0 < share < 1:
        raise ValueError(f"boundary must be True, False or a share between 0 and 1, found {boundary!r}.")
    score = _obs(adata, f"{key}_boundary").to_numpy(dtype=float)
    return score >= np.nanquantile(score, 1 - share)


# ------------------------------------------------------------------------------------------------- how it is drawn


def _axes(n: int, ncols: int, ax: Axes | None, *, panel: tuple[float, float]) -> tuple[Figure | SubFigure, list[Axes]]:
    if ax is not None:
        if n != 1:
            raise ValueError(f"ax is one set of axes, but there are {n} panels to draw: leave ax out.")
        return ax.figure, [ax]
    if n < 1 or ncols < 1:
        raise ValueError(f"There must be at least one color and one column, found {n} and ncols={ncols}.")
    columns = min(n, ncols)
    rows = -(-n // columns)
    fig, grid = plt.subplots(
        rows, columns, figsize=(panel[0] * columns, panel[1] * rows), squeeze=False, layout="constrained"
    )
    for unused in grid.flat[n:]:
        unused.remove()
    return fig, list(grid.flat[:n])


def _scatter(
    axis: Axes,
    H: np.ndarray,
    column: Column,
    *,
    alpha: pd.Series | None = None,
    marked: np.ndarray | None = None,
    size: float | None = None,
    cmap: str = "viridis",
    limits: tuple[float | None, float | None] = (None, None),
) -> None:
    placed = np.flatnonzero(np.isfinite(H).all(axis=1))
    area = float(np.clip(30_000 / max(len(placed), 1), 0.4, 14)) if size is None else size
    style: dict[str, Any] = {"s": area, "linewidths": 0, "rasterized": len(placed) > RASTERIZE_ABOVE}
    if column.colors is None:
        known = np.isfinite(column.values[placed])
        missing, drawn = placed[~known], placed[known]
        drawn = drawn[np.argsort(column.values[drawn], kind="stable")]  # high values on top
        axis.scatter(H[missing, 0], H[missing, 1], color=MISSING_COLOR, **style)
        style = {**style, "vmin": limits[0], "vmax": limits[1], "cmap": cmap}
        points = axis.scatter(H[drawn, 0], H[drawn, 1], c=column.values[drawn], **style)
        axis.figure.colorbar(points, ax=axis, shrink=0.6, pad=0.02).outline.set_visible(False)
    else:
        drawn = np.random.default_rng(0).permutation(placed)  # no category hides the others
        rgba = to_rgba_array([*column.colors.values(), MISSING_COLOR])[column.values[drawn]]
        points = axis.scatter(H[drawn, 0], H[drawn, 1], c=rgba, **style)
    if alpha is not None:
        points.set_alpha(np.clip(np.nan_to_num(alpha.to_numpy(dtype=float)[drawn]), 0.05, 1) ** 2)
    if marked is not None:
        ring = {**style, "facecolors": "none", "edgecolors": "black", "linewidths": 0.5, "s": 1.3 * area}
        axis.scatter(*H[placed[marked[placed]]].T, label="boundary", **ring)


def _dress(axis: Axes, H: np.ndarray, name: str, dimensions: tuple[int, int], *, frameon: bool) -> None:
    axis.set(xticks=[], yticks=[])
    axis.set_aspect("equal", adjustable="datalim")  # distances on the map mean the same in both directions
    axis.margins(0.06)
    if not frameon:
        axis.set_axis_off()
    elif name:
        axis.set(xlabel=f"{name}{dimensions[0] + 1}", ylabel=f"{name}{dimensions[1] + 1}")


def _handles(column: Column) -> list[Line2D]:
    tints = column.colors or {}
    return [Line2D([], [], marker="o", linestyle="", color=tint, label=name) for name, tint in tints.items()]


def _legend(axis: Axes, column: Column, loc: LegendLoc, *, boundary: bool) -> None:
    handles = _handles(column) if loc == "right margin" else []
    if boundary and loc != "none":
        ring: dict[str, Any] = {"marker": "o", "linestyle": "", "markerfacecolor": "none", "color": "black"}
        handles.append(Line2D([], [], label="boundary", **ring))
    if handles:
        ncols = 1 if len(handles) <= 14 else 2 if len(handles) <= 30 else 3
        right = column.colors is not None and loc == "right margin"
        place = {"loc": "center left", "bbox_to_anchor": (1, 0.5)} if right else {"loc": "upper left"}
        axis.legend(handles=handles, ncols=ncols, frameon=False, **place)


def _margin(columns: Sequence[Column], loc: LegendLoc) -> float:
    """Width in inches that the longest legend beside a panel takes, so that the panel itself keeps its shape."""
    names = [name for column in columns for name in column.colors or ()] if loc == "right margin" else []
    return 0.5 + 0.085 * max(map(len, names)) if names else 0.0


def _settle(fig: Figure | SubFigure) -> None:
    """Fix the places of the axes on the page, which labels are placed by."""
    if isinstance(fig, Figure) and (engine := fig.get_layout_engine()) is not None:
        engine.execute(fig)


def _write_labels(axis: Axes, H: np.ndarray, column: Column, *, beside: bool) -> None:
    stroke = [withStroke(linewidth=2.5, foreground="white")]
    for label in _place_labels(axis, H, column, beside=beside):
        text = axis.annotate(
            label.name,
            tuple(label.center),
            xytext=tuple(label.offset),
            textcoords="offset points",
            ha="center",
            va="center",
            fontweight="bold",
            fontsize=LABEL_SIZE,
            path_effects=stroke,
            zorder=5,
        )
        text.set_in_layout(False)


@dataclass(frozen=True)
class Label:
    """A name on or beside its cluster: the cluster's center on the map, and on the page the name's place and box."""

    name: str
    center: np.ndarray
    offset: np.ndarray  # from the center, in points
    place: np.ndarray
    half: np.ndarray


def _place_labels(axis: Axes, H: np.ndarray, column: Column, *, beside: bool) -> list[Label]:
    """Choose where names go: the middle of their points, or next to them, moved where they would cover each other.

    Places are compared on the page, where names have a size, whatever the units of the map.
    """
    placed = H[np.isfinite(H).all(axis=1)]
    low, span = placed.min(axis=0), np.maximum(np.ptp(placed, axis=0), 1e-12)
    page = np.array(axis.get_window_extent().size) * 72 / axis.figure.dpi
    scale = 0.88 * float(np.min(page / span))  # points per unit of the map
    P = (H - low - span / 2) * scale  # on the page, from its middle
    rng = np.random.default_rng(0)
    sample = _some(P, rng)
    labels: list[Label] = []
    for code, name in enumerate(column.colors or {}):
        points = _some(P[column.values == code], rng)
        if len(points) == 0:
            continue
        points = _densest(points, square=float(page.min()) / 12)
        center = np.median(points, axis=0)
        half = LABEL_SIZE * np.array([0.34 * len(name), 0.5]) + 1
        hidden = float((np.abs(points - center) < half).all(axis=1).mean())
        outside = beside or hidden > MOST_HIDDEN
        tries = center + _offsets(points - center, half, beside=outside)
        cost = 1e-4 * np.arange(len(tries)) + 10 * (np.abs(tries) + half + 4 > page / 2).any(axis=1)
        for other in labels:
            cost += 100 * (np.abs(tries - other.place) < half + other.half).all(axis=1)
        if outside:
            cost += [np.mean((np.abs(sample - place) < half).all(axis=1)) for place in tries]
        place = tries[cost.argmin()]
        labels.append(Label(name, center / scale + low + span / 2, place - center, place, half))
    return labels


def _some(points: np.ndarray, rng: np.random.Generator, at_most: int = 3_000) -> np.ndarray:
    """Draw some of the points that have a place."""
    chosen = points if len(points) <= at_most else points[rng.integers(len(points), size=at_most)]
    return chosen[np.isfinite(chosen).all(axis=1)]


def _densest(points: np.ndarray, square: float) -> np.ndarray:
    """Keep the points in and around the fullest square of a grid: a category may be in several places."""
    squares = np.floor(points / square).astype(int)
    found, count = np.unique(squares, axis=0, return_counts=True)
    return points[(np.abs(squares - found[count.argmax()]) <= 1).all(axis=1)]


def _offsets(points: np.ndarray, half: np.ndarray, *, beside: bool) -> np.ndarray:
    """List places for a name around the center of its points, the best first: 16 directions, at growing distance."""
    angles = np.linspace(0, 2 * np.pi, 16, endpoint=False)
    circle = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    box = half * np.clip(1.5 * circle, -1, 1)  # so that the near edge of the name, not its middle, is at the place
    if not beside:
        return np.concatenate([np.zeros((1, 2)), *(box + step * circle for step in (2, 8, 16, 24))])
    reach = np.quantile(points @ circle.T, 0.8, axis=0)  # extent of the cluster in each direction
    return np.concatenate([box + (reach + gap)[:, None] * circle for gap in (3, 8, 16, 28)])


def _line(axis: Axes, x: np.ndarray, y: np.ndarray, stage: np.ndarray, **style: Any) -> None:
    """Draw one line per stage, with a dot where a stage has a single value."""
    for name in dict.fromkeys(stage):
        here = (stage == name) & np.isfinite(y)
        if here.any():
            axis.plot(x[here], np.asarray(y)[here], marker="." if here.sum() < 30 else "", **style)
            style.pop("label", None)


def _draw_counts(axis: Axes, table: pd.DataFrame, column: str) -> None:
    """Draw a column of the table over the number of clusters; numbers that are not eligible are pale."""
    eligible = table["eligible"].to_numpy(bool)
    axis.plot(table["n_clusters"], table[column], color="0.8", linewidth=1, zorder=1)
    for chosen, tint in ((eligible, "0.25"), (~eligible, "0.8")):
        axis.scatter(table["n_clusters"][chosen], table[column][chosen], s=10, color=tint, zorder=2)


def _mark_counts(axis: Axes, others: pd.DataFrame, ranked: pd.DataFrame, suggested: int) -> None:
    best = ranked[ranked["n_clusters"] == suggested]
    axis.scatter(best["n_clusters"], best["score"], s=70, color=PALETTE[5], zorder=3, label=f"suggested: {suggested}")
    if len(others):
        names = ", ".join(map(str, others["n_clusters"]))
        style: dict[str, Any] = {"facecolors": "none", "edgecolors": PALETTE[0], "linewidths": 1.5}
        axis.scatter(others["n_clusters"], others["score"], s=70, zorder=3, label=f"next best: {names}", **style)
    axis.legend(loc="best", frameon=False)


def _draw_recurrence(axis: Axes, clusters: pd.DataFrame, runs: np.ndarray, colors: Mapping[str, str]) -> None:
    """Draw a row of dots for each cluster, the steadiest on top, over bands for steady, doubtful and dissolved."""
    order = np.argsort(clusters["stability"].to_numpy(), kind="stable")
    rng = np.random.default_rng(0)
    axis.axvspan(0, DISSOLVED, color="0.85", zorder=0)
    axis.axvspan(DISSOLVED, STABLE, color="0.94", zorder=0)
    names = [str(clusters.index[i]) for i in order]
    for row, (i, name) in enumerate(zip(order, names, strict=True)):
        values, tint = runs[:, i], colors.get(name, "0.3")
        jitter = rng.uniform(-0.22, 0.22, size=len(values))
        axis.scatter(values, row + jitter, s=16, color=tint, linewidths=0, alpha=0.75, zorder=2)
        axis.plot([clusters["stability"].iloc[i]] * 2, [row - 0.36, row + 0.36], color="black", linewidth=2, zorder=3)
    cells = clusters["n_cells"].to_numpy()[order]
    axis.set_yticks(range(len(order)), [f"{name}  ({n:,})" for name, n in zip(names, cells, strict=True)])
    axis.set(xlim=(0, 1.01), ylim=(-0.7, len(order) - 0.3), xlabel="Jaccard index with the best match")
    for place, text in (
        (DISSOLVED / 2, "dissolves"),
        ((DISSOLVED + STABLE) / 2, "doubtful"),
        ((STABLE + 1) / 2, "stable"),
    ):
        axis.annotate(
            text,
            (place, 0.995),
            xycoords=("data", "axes fraction"),
            ha="center",
            va="top",
            fontsize="small",
            color="0.4",
        )
    axis.spines[["top", "right"]].set_visible(False)
    axis.tick_params(axis="y", length=0)


def _nearest_clusters(H: np.ndarray, labels: np.ndarray) -> tuple[int, int]:
    sizes = np.bincount(labels[labels >= 0])
    codes = np.flatnonzero(sizes >= FEW_CELLS)
    if len(codes) < 2:
        codes = np.flatnonzero(sizes > 1)
    if len(codes) < 2:
        raise ValueError("The result has a single cluster: similarity compares two.")
    centers = np.stack([H[labels == code].mean(axis=0) for code in codes])
    distance = np.linalg.norm(centers[:, None] - centers[None], axis=-1)
    distance[np.diag_indices(len(codes))] = np.inf
    i, j = sorted(np.unravel_index(distance.argmin(), distance.shape))
    return int(codes[i]), int(codes[j])


def _named_clusters(names: list[str], clusters: tuple[str, str], labels: np.ndarray) -> tuple[int, int]:
    if len(clusters) != 2 or any(str(c) not in names for c in clusters):
        raise ValueError(f"clusters={clusters!r} must be two of {', '.join(map(repr, names))}.")
    first, second = names.index(str(clusters[0])), names.index(str(clusters[1]))
    for code in (first, second):
        if (size := int((labels == code).sum())) < 2:
            raise ValueError(
                f"clusters={clusters!r}: {names[code]!r} has {size} cells on the map, at least 2 are needed. "
                "Name another cluster."
            )
    return first, second


def _pair_similarities(
    space: Matrix, labels: np.ndarray, pair: tuple[int, int], rng: np.random.Generator
) -> list[np.ndarray]:
    """Return similarities within the first cluster, within the second, and between them."""
    a, b, everyone = np.flatnonzero(labels == pair[0]), np.flatnonzero(labels == pair[1]), np.flatnonzero(labels >= 0)
    scale = _pair_distances(space, *_pairs(everyone, everyone, rng)).mean() or 1.0
    return [np.exp(-_pair_distances(space, *_pairs(*cells, rng)) / scale) for cells in ((a, a), (b, b), (a, b))]


def _pair_distances(X: Matrix, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Return Euclidean distances between rows of `X`, pair by pair."""
    difference = X[rows] - X[columns]
    if sp.issparse(difference):
        return np.sqrt(np.asarray(difference.multiply(difference).sum(axis=1)).ravel())
    return np.linalg.norm(difference, axis=1)


def _pairs(a: np.ndarray, b: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Draw pairs of different cells."""
    i, j = rng.choice(a, PAIRS), rng.choice(b, PAIRS)
    different = i != j
    return i[different], j[different]


def _table(known: pd.Series, found: pd.Series) -> pd.DataFrame:
    """Count cells by group and cluster; clusters are in the order of the group that most of their cells are in."""
    table = pd.crosstab(known.astype(str), found.astype(str))
    groups = [str(c) for c in known.cat.categories] if hasattr(known, "cat") else natsorted(table.index)
    table = table.loc[[g for g in groups if g in table.index], natsorted(table.columns)]
    main = table.to_numpy().argmax(axis=0)
    return table.iloc[:, np.lexsort((-table.to_numpy().max(axis=0), main))]


def _write_cells(axis: Axes, shown: np.ndarray, *, percent: bool) -> None:
    if max(shown.shape) > 25:
        return
    high = shown.max() or 1
    for (i, j), value in np.ndenumerate(shown):
        text = f"{100 * value:.0f}" if percent else f"{value:.0f}"
        if value >= (0.005 if percent else 1):
            axis.text(j, i, text, ha="center", va="center", fontsize="small", color="w" if value > high / 2 else "0.2")


def _finish(
    fig: Figure | SubFigure, axes: Axes | list[Axes], ax: Axes | None, show: bool | None, return_fig: bool
) -> Plot:
    if return_fig:
        return fig
    if show or (show is None and ax is None):
        plt.show()
        return None
    return axes
