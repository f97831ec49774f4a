"""What training does: the map at its stages, the losses, and similarities before and after."""

from itertools import combinations
from typing import Any

import numpy as np
from anndata import AnnData
from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter
from scipy.sparse import issparse
from scipy.sparse.linalg import norm as sparse_norm

from scvcc._anndata.representation import Source, matrix_at
from scvcc._model.checks import validated
from scvcc._training.graph import Matrix
from scvcc.pl._canvas import Plot, add_legends, draw_map, finish, panels, with_greys
from scvcc.pl._columns import PALETTE, read_column
from scvcc.pl._inputs import read, read_map


@validated(size=0, ncols=1)
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
    """Plot the map at several points of training, from start to end.

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
        The two dimensions to show, counted from 0.
    size
        Area of a point in square points.
    ncols
        Number of panels per row.
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
    >>> scvcc.tl.vcc(adata, n_clusters=8, hidden=(64,), keep_stages=True, progress=False)
    >>> fig = scvcc.pl.stages(adata, return_fig=True)
    """
    kept = [str(name) for name in _record(adata, key).get("stages", [])]
    if not kept:
        raise ValueError(f"The run {key!r} kept no stages: run scvcc.tl.vcc with keep_stages=True.")
    maps = {name: read_map(adata, key, dimensions, stage=name) for name in kept}
    maps["final"] = read_map(adata, key, dimensions)
    column = read_column(adata, key if color is None else color)
    axes = panels(len(maps), (2.7, 2.9), ncols=ncols)
    for axis, (name, H) in zip(axes, maps.items(), strict=True):
        draw_map(axis, H, column, name, size=size)
    add_legends(axes[:ncols][-1:], [with_greys(column.colors or {}, maps["final"], column)])
    return finish(axes, show, return_fig)


@validated()
def history(adata: AnnData, *, key: str = "vcc", show: bool | None = None, return_fig: bool = False) -> Plot:
    """Plot the losses, the weight β of the clustering loss, and the share of labels that change during training.

    Each stage of training takes the same width; its number of steps is written below. The total loss contains the
    clustering loss times β, so it rises while β rises: this does not mean that training gets worse.

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
    >>> import scvcc
    >>> adata = sc.datasets.pbmc68k_reduced()
    >>> scvcc.tl.vcc(adata, n_clusters=8, hidden=(64,), progress=False)
    >>> fig = scvcc.pl.history(adata, return_fig=True)
    """
    record = _record(adata, key)["history"]
    stage = np.array([str(name) for name in record["stage"]])
    order = list(dict.fromkeys(stage))
    steps = {name: np.asarray(record["step"])[stage == name] for name in order}
    x = np.array([order.index(s) + step / steps[s].max() for s, step in zip(stage, record["step"], strict=True)])

    axes = panels(3, (8, 2.2), sharex=True, height_ratios=(3, 1, 1))
    losses = [name for name in ("boundary", "contraction", "expansion", "clustering", "anchor") if name in record]
    tints = {name: PALETTE[i] for i, name in enumerate(losses) if np.isfinite(record[name]).any()} | {"total": "black"}
    for name, tint in tints.items():
        _draw_line(axes[0], x, record[name], stage, color=tint)
    _draw_line(axes[1], x, record["beta"], stage, color="black")
    _draw_line(axes[2], x, record["label_change"], stage, color="black")
    for axis, label in zip(axes, ("loss", "β, weight of\nclustering", "labels\nchanged"), strict=True):
        axis.set_ylabel(label)
        for border in range(1, len(order)):
            axis.axvline(border, color="0.8", linewidth=0.8, zorder=0)
    note = "The total contains the clustering loss times β, so it rises while β rises."
    axes[0].set_title(note, fontsize="small", color="0.4", loc="left")
    axes[0].set_yscale("log")
    axes[2].yaxis.set_major_formatter(PercentFormatter(1, decimals=1))
    axes[2].set_xlim(-0.02, len(order) + 0.02)
    axes[2].set_xticks(np.arange(len(order)) + 0.5, [f"{name}\n{steps[name].max()} steps" for name in order])
    axes[2].tick_params(axis="x", length=0)
    add_legends(axes[:1], [tints])
    return finish(axes, show, return_fig)


def _draw_line(axis: Axes, x: np.ndarray, y: np.ndarray, stage: np.ndarray, **style: Any) -> None:
    """Draw one line per stage, with a dot where a stage has a single value."""
    for name in dict.fromkeys(stage):
        here = (stage == name) & np.isfinite(y)
        if here.any():
            axis.plot(x[here], np.asarray(y)[here], marker="." if here.sum() < 30 else "", **style)


@validated(random_state=0)
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

    The similarity of two cells is exp(−d / s), where d is their distance in the representation that the encoder was
    trained on (before) or on the map (after). To make the two comparable, s is the mean distance between two random
    cells there.

    Parameters
    ----------
    adata
        Annotated data with a result.
    key
        Name of the result.
    clusters
        The two clusters. None takes the two with the closest centers on the map, among clusters of 20 cells or more.
    random_state
        Seed for drawing the pairs of cells that are compared.
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
    >>> scvcc.tl.vcc(adata, n_clusters=8, hidden=(64,), progress=False)
    >>> fig = scvcc.pl.similarity(adata, return_fig=True)
    """
    stored = _record(adata, key)["representation"]
    H, column = read_map(adata, key), read_column(adata, key)
    placed = np.isfinite(H).all(axis=1)
    colors = column.colors or {}
    cells = {name: np.flatnonzero(placed & (column.values == code)) for code, name in enumerate(colors)}
    cells = {name: rows for name, rows in cells.items() if len(rows) > 1}
    pair = _nearest_clusters(H, cells) if clusters is None else clusters
    if len(set(pair)) != 2 or not set(pair) <= set(cells):
        raise ValueError(
            f"clusters={clusters!r} must be two of {', '.join(map(repr, cells))}, those with 2 or more cells on the map."
        )
    first, second = pair
    rows = cells[first], cells[second], np.flatnonzero(placed)
    source = Source(stored["use_rep"], stored.get("n_pcs"), stored.get("layer"))
    spaces = {f"before: {source.short}": matrix_at(adata, source), "after: map": H}
    found = {title: pair_similarities(X, *rows, random_state) for title, X in spaces.items()}
    tints = {f"within {first}": colors[first], f"within {second}": colors[second], "between": "0.35"}
    bins = np.linspace(np.floor(10 * min(map(np.min, sum(found.values(), [])))) / 10, 1, 61).tolist()
    axes = panels(2, (4.2, 3.2), ncols=2, sharex=True)
    for axis, (title, similarities) in zip(axes, found.items(), strict=True):
        for values, tint in zip(similarities, tints.values(), strict=True):
            axis.hist(values, bins, density=True, histtype="stepfilled", alpha=0.4, color=tint)
            axis.hist(values, bins, density=True, histtype="step", color=tint, linewidth=1.2)
        axis.set(title=title, xlabel="similarity", yticks=[], xlim=(bins[0], 1))
        axis.spines["left"].set_visible(False)
    axes[0].set_ylabel("density")
    add_legends(axes[1:], [tints])
    return finish(axes, show, return_fig)


def _record(adata: AnnData, key: str) -> Any:
    """Return the record of a run; `map_query` leaves one without a history."""
    record = read(adata, "uns", key, f"run scvcc.tl.vcc(adata, key_added={key!r}) first")
    if "history" not in record:
        raise ValueError(
            f"key={key!r} is a result of scvcc.tl.map_query, which trains nothing: draw the reference, whose encoder "
            "was used."
        )
    return record


def _nearest_clusters(H: np.ndarray, cells: dict[str, np.ndarray]) -> tuple[str, str]:
    large = [name for name, rows in cells.items() if len(rows) >= 20]  # fewer cells make no distribution
    names = large if len(large) > 1 else list(cells)
    if len(names) < 2:
        raise ValueError("The result has a single cluster: similarity compares two.")
    centers = {name: H[cells[name]].mean(axis=0) for name in names}
    return min(combinations(names, 2), key=lambda pair: np.linalg.norm(centers[pair[0]] - centers[pair[1]]))


def pair_similarities(X: Matrix, a: np.ndarray, b: np.ndarray, everyone: np.ndarray, seed: int) -> list[np.ndarray]:
    """Return similarities within the cells `a`, within `b`, and between them, with all cells for the scale."""
    rng = np.random.default_rng(seed)
    scale = _distances(X, everyone, everyone, rng).mean() or 1.0
    return [np.exp(-_distances(X, *rows, rng) / scale) for rows in ((a, a), (b, b), (a, b))]


def _distances(X: Matrix, a: np.ndarray, b: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return Euclidean distances of random pairs of different rows, the first of `a` and the second of `b`."""
    i, j = rng.choice(a, 5_000), rng.choice(b, 5_000)
    difference = X[i[i != j]] - X[j[i != j]]
    return sparse_norm(difference, axis=1) if issparse(difference) else np.linalg.norm(difference, axis=1)
