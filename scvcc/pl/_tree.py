"""The tree of clusters."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from anndata import AnnData
from matplotlib.axes import Axes
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from scvcc._anndata.tree import StoredTree, stored_tree
from scvcc._clusters.evidence import LEVEL
from scvcc._clusters.tree import Tree
from scvcc._model.checks import check_integer, validated
from scvcc.pl._canvas import Plot, finish, panels
from scvcc.pl._columns import Palette, default_palette, read_column
from scvcc.pl._evidence import SUPPORTED, UNSUPPORTED
from scvcc.pl._inputs import read


@validated()
def tree(
    adata: AnnData,
    n_clusters: int | None = None,
    *,
    key: str = "vcc",
    n_leaves: int | None = None,
    color: str | None = None,
    palette: Palette = None,
    ax: Axes | None = None,
    show: bool | None = None,
    return_fig: bool = False,
) -> Plot:
    """Plot the tree of clusters, from one on the left to many on the right.

    A vertical line at 10 crosses the ten clusters of :func:`scvcc.tl.cut` with `n_clusters=10`. Larger
    clusters have thicker branches; the numbers of cells are on the right. Splits that `scvcc.tl.cut(..., support=True)` has
    tested have a dot: blue if a valley of density separates the two sides, orange if none was found.

    Parameters
    ----------
    adata
        Annotated data with a result of :func:`scvcc.tl.vcc`.
    n_clusters
        The cut to mark: each of its clusters has a color. None marks the clusters of the run.
    key
        Name of the result.
    n_leaves
        Number of clusters on the right. None shows twice as many as are marked, at most 60.
    color
        Categorical column of `adata.obs`: each branch then shows what its cells are.
    palette
        Colors: as in :func:`scvcc.pl.vcc`.
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
    >>> scvcc.tl.vcc(adata, n_clusters=6, hidden=(64,), progress=False)
    >>> scvcc.tl.cut(adata, n_clusters=9, support=True)
    >>> fig = scvcc.pl.tree(adata, n_clusters=9, color="bulk_labels", return_fig=True)
    """
    read(adata, "uns", key, f"run scvcc.tl.vcc(adata, key_added={key!r}) first")
    stored = stored_tree(adata, key)
    fitted, most = len(stored.clusters), len(stored.tree.size)
    chosen = fitted if n_clusters is None else n_clusters
    check_integer("n_clusters", chosen, (1, most), "the leaves of the tree")
    shown = max(chosen, min(2 * chosen, most, 60)) if n_leaves is None else n_leaves  # 60 can still be read
    check_integer("n_leaves", shown, (chosen, most), "from n_clusters to the leaves of the tree")

    tints, legend, groups = _tints(adata, key, stored, chosen, color, palette)
    (axis,) = panels(1, (7, 1.6 + 0.2 * max(shown, 8)), ax=ax)
    branches, splits = _layout(stored.tree, shown)
    table = np.zeros((most, len(tints)))
    known = (stored.leaf >= 0) & (groups >= 0)
    np.add.at(table, (stored.leaf[known], groups[known]), 1)
    sizes = np.bincount(stored.leaf[stored.leaf >= 0], minlength=most)
    for branch in branches:
        _draw_branch(axis, branch, sizes, table, tints, grey_until=0 if color else chosen)
    _draw_splits(axis, splits, stored.p)
    ends = sorted((branch for branch in branches if branch.end > shown), key=lambda branch: branch.y)
    names = dict(
        zip(
            np.unique(stored.tree.cut(shown), return_index=True)[1],
            stored.tree.names(shown, stored.clusters),
            strict=True,
        )
    )
    axis.set_yticks(
        range(shown), [f"{names[b.leaves.min()]}  ({sizes[b.leaves].sum()})" for b in ends], fontsize="small"
    )
    _finish_axis(axis, shown, {fitted: (":", f"{fitted} fitted"), chosen: ("-", f"{chosen} clusters")})
    handles, _ = axis.get_legend_handles_labels()
    handles += [Patch(color=tint, label=name) for name, tint in legend.items()]
    if handles:
        place: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (0, 0), "borderaxespad": 3.5}
        axis.legend(handles=handles, ncols=3, frameon=False, fontsize="small", **place)
    return finish(axis, show, return_fig, ax)


@dataclass(frozen=True)
class Branch:
    """A node of the tree: its leaves, the numbers of clusters between which it is one of them, and where it is drawn."""

    leaves: np.ndarray
    start: float
    end: float
    y: float


def _layout(tree: Tree, shown: int) -> tuple[list[Branch], list[tuple[int, float, list[float]]]]:
    """Branches, and of each split the number of its merge, its place, and the places of its two sides."""
    n_leaves, sides = len(tree.size), list(tree.sides())
    order = np.concatenate(sides[-1]) if sides else np.zeros(1, int)
    node = tree.cut(shown)
    members = {int(np.flatnonzero(node == k)[0]): np.flatnonzero(node == k) for k in dict.fromkeys(node[order])}
    open_branches = {first: (shown + 0.5, float(y)) for y, first in enumerate(members)}  # right end, and height
    branches, splits = [], []
    for i in range(n_leaves - shown, n_leaves - 1):
        x, heights = n_leaves - i - 0.5, []
        for first in tree.merges[i].tolist():
            end, y = open_branches.pop(first)
            branches.append(Branch(members[first], x, end, y))
            heights.append(y)
        kept, absorbed = tree.merges[i].tolist()
        members[kept] = np.concatenate([members[kept], members.pop(absorbed)])
        open_branches[kept] = x, sum(heights) / 2
        splits.append((i, x, heights))
    ((end, y),) = open_branches.values()
    return [*branches, Branch(order, 0.5, end, y)], splits


def _tints(
    adata: AnnData, key: str, stored: StoredTree, chosen: int, color: str | None, palette: Palette
) -> tuple[list[str], dict[str, str], np.ndarray]:
    """Colors, those to be explained, and the color of each cell: of its cluster in the marked cut, or of a column."""
    if color is not None:
        column = read_column(adata, color, palette=palette)
        if column.colors is None:
            raise ValueError(f"color={color!r} holds numbers: name a column of categories.")
        return list(column.colors.values()), column.colors, column.values
    name = key if chosen == len(stored.clusters) and chosen == adata.obs[key].nunique() else None
    own = read_column(adata, key, palette=palette).colors if name else None
    return (
        list((own or {}).values()) or default_palette(chosen),
        {},
        np.append(stored.tree.cut(chosen), -1)[stored.leaf],
    )


def _draw_branch(
    axis: Axes, branch: Branch, sizes: np.ndarray, table: np.ndarray, tints: list[str], *, grey_until: float
) -> None:
    """Draw a strip as thick as the branch has cells, in the colors of its cells; grey before the marked cut."""
    thickness = float(
        np.clip(0.9 * (sizes[branch.leaves].sum() / sizes.sum()) ** 0.5, 0.1 if grey_until else 0.3, 0.85)
    )
    middle = float(np.clip(grey_until, branch.start, branch.end))
    if middle > branch.start:
        axis.fill_between([branch.start, middle], branch.y - thickness / 2, branch.y + thickness / 2, color="0.8", lw=0)
    counts = table[branch.leaves].sum(axis=0)
    edges = branch.y + thickness * (np.append(0, np.cumsum(counts)) / max(counts.sum(), 1) - 0.5)
    for k in np.flatnonzero(counts if middle < branch.end else []):
        axis.fill_between([middle, branch.end], edges[k], edges[k + 1], color=tints[k], lw=0)


def _draw_splits(axis: Axes, splits: list[tuple[int, float, list[float]]], p: np.ndarray) -> None:
    for _, x, heights in splits:
        axis.plot([x, x], heights, color="0.6", linewidth=0.9, zorder=0)
    at = np.array([(x, sum(heights) / 2, p[i]) for i, x, heights in splits]).reshape(-1, 3)
    for name, chosen, tint in (
        ("two groups (p < 0.05)", at[:, 2] < LEVEL, SUPPORTED),
        ("no evidence for two", at[:, 2] >= LEVEL, UNSUPPORTED),
    ):
        if chosen.any():
            x, y = at[chosen, :2].T
            axis.scatter(x, y, s=28, color=tint, edgecolors="white", linewidths=0.8, zorder=5, label=name)


def _finish_axis(axis: Axes, shown: int, lines: dict[int, tuple[str, str]]) -> None:
    """Names on the right, and a line for each cut that is marked."""
    axis.yaxis.tick_right()
    axis.tick_params(axis="y", length=0)
    axis.spines[["left", "right"]].set_visible(False)
    for n, (style, what) in lines.items():
        if n <= shown:
            axis.axvline(n, color="black", linewidth=0.9, linestyle=style, zorder=4)
            text: dict[str, Any] = {
                "xycoords": ("data", "axes fraction"),
                "textcoords": "offset points",
                "fontsize": "small",
            }
            axis.annotate(what, (n, 1), (2, 2), ha="right" if n > 0.7 * shown else "left", **text)
    axis.set(xlim=(0.4, shown + 0.6), ylim=(shown - 0.4, -0.6), xlabel="number of clusters")
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
