"""The map of a result."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
from anndata import AnnData
from matplotlib.axes import Axes

from scvcc._model.checks import validated
from scvcc.pl._canvas import Plot, add_legends, draw_map, finish, name_axes, panels, settle, with_greys
from scvcc.pl._columns import Column, Palette, read_column, store_colors
from scvcc.pl._inputs import check_cmap, read, read_map
from scvcc.pl._names import write_names

LegendLoc = Literal["on data", "beside", "right margin", "none"]


@validated(size=0, ncols=1)
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
    mark_unsupported: bool = False,
    palette: Palette = None,
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

    Cells that are "unassigned", and cells without a value, are grey and lie behind the others.

    Parameters
    ----------
    adata
        Annotated data with a result.
    color
        Columns of `adata.obs` or names of variables; several make a grid. None takes the labels.
    key
        Name of the result: `key_added` of :func:`scvcc.tl.vcc`.
    dimensions
        The two dimensions of the map to show, counted from 0.
    layer
        Layer to read variables from.
    use_raw
        Read variables from `adata.raw`. None does so if it has the variable and `layer` is not set.
    legend_loc
        Where to write the names of categories: "on data" (next to the cells if a name would hide a small cluster),
        "beside" the clusters, in the "right margin", or nowhere ("none"). Names that would overlap others on the map
        are listed in the right margin, as are "unassigned" and, for cells without a value, "NA".
    confidence
        "alpha" makes cells with low confidence transparent, "color" colors by confidence.
    mark_unsupported
        Put a "?" after the names of clusters that no valley of density separates from some neighbor, according to
        `adata.uns[key]["support"]`.
    palette
        Colors of the categories: a list, a dict from name to color, or the name of a scanpy palette or a matplotlib
        colormap, such as "tab10". None takes the colors stored in `adata.uns`, or else colors that people with a color
        vision deficiency can tell apart.
    cmap
        Colormap for numbers.
    size
        Area of a point in square points. None depends on the number of cells.
    frameon
        Draw the frame and name the axes.
    title
        One title, or one for each color.
    ncols
        Number of panels per row.
    ax
        Axes to draw on, for a single color.
    show
        Show the figure. None does so unless `ax` or `return_fig` is given.
    return_fig
        Return the figure.

    Returns
    -------
    The figure with `return_fig=True`; the axes (a list for several colors) with `show=False` or `ax`; else None. The
    colors of a categorical column are stored in `adata.uns[color + "_colors"]`, unless there are enough there already.

    Examples
    --------
    >>> import scanpy as sc
    >>> import scvcc
    >>> adata = sc.datasets.pbmc68k_reduced()
    >>> scvcc.tl.vcc(adata, n_clusters=8, hidden=(64,), progress=False)
    >>> fig = scvcc.pl.vcc(adata, ["vcc", "CD79A"], return_fig=True)
    """
    H = read_map(adata, key, dimensions)
    default = f"{key}_confidence" if confidence == "color" else key
    check_cmap(cmap)
    names = [default if color is None else color] if color is None or isinstance(color, str) else list(color)
    titles = names if title is None else [title] * len(names) if isinstance(title, str) else list(title)
    if not 0 < len(names) == len(titles):
        raise ValueError(
            f"{len(names)} colors and {len(titles)} titles: give at least one color, and a title for each."
        )
    columns = [read_column(adata, name, layer=layer, use_raw=use_raw, palette=palette) for name in names]
    if mark_unsupported:
        columns = [_marked(adata, column) if column.name == key else column for column in columns]
    alpha = None
    if confidence == "alpha":
        alpha = read(adata, "obs", f"{key}_confidence", "confidence='alpha' needs this column").to_numpy(dtype=float)

    axes = panels(len(names), (4.6, 4.2), ncols=ncols, ax=ax)
    for axis, column, heading in zip(axes, columns, titles, strict=True):
        draw_map(axis, H, column, heading, size=size, alpha=alpha, cmap=cmap)
        name_axes(axis, key, dimensions)
        axis.axison = frameon
    add_legends(axes, _write_categories(axes, H, columns, legend_loc), ncols=ncols, ax=ax)
    for column in columns:
        store_colors(adata, column)
    single = color is None or isinstance(color, str)
    return finish(axes[0] if single else axes, show, return_fig, ax)


def _marked(adata: AnnData, column: Column) -> Column:
    """The labels of a result, those without support with a question mark."""
    record = read(adata, "uns", column.name, "mark_unsupported needs the record of scvcc.tl.vcc")
    if "support" not in record:
        raise ValueError(f"adata.uns[{column.name!r}] has no 'support', as for more than 50 clusters.")
    clusters = record["support"]["clusters"]
    weak = set(map(str, clusters.index[~clusters["supported"].to_numpy(bool)]))
    names = {name: f"{name}?" if name in weak else name for name in column.colors or {}}
    return replace(column, colors={names[name]: tint for name, tint in (column.colors or {}).items()})


def _write_categories(axes: list[Axes], H: np.ndarray, columns: list[Column], legend_loc: str) -> list[dict[str, str]]:
    """Write the names of categories on the maps; returns what is left for the legend of each."""
    if legend_loc == "none":
        return [{} for _ in columns]
    if legend_loc == "right margin":
        return [with_greys(column.colors or {}, H, column) for column in columns]
    settle(axes)
    beside = legend_loc == "beside"
    pairs = list(zip(axes, columns, strict=True))
    return [with_greys(write_names(axis, H, column, beside=beside), H, column) for axis, column in pairs]
