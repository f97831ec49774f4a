"""Evidence: which neighboring clusters are two."""

from typing import Any

import numpy as np
import pandas as pd
from anndata import AnnData
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from scvcc._model.checks import validated
from scvcc.pl._canvas import Plot, finish, panels
from scvcc.pl._columns import PALETTE
from scvcc.pl._inputs import read

SUPPORTED, UNSUPPORTED = PALETTE[0], PALETTE[1]


@validated()
def support(
    adata: AnnData, *, key: str = "vcc", ax: Axes | None = None, show: bool | None = None, return_fig: bool = False
) -> Plot:
    """Plot which pairs of neighboring clusters are supported, and which merges are suggested.

    Needs :func:`scvcc.tl.test_clusters`. There is a square for each pair of clusters that the graph links; a larger square
    means more weight between them. Blue: a valley of density separates the two. Orange: none was found. Clusters that
    would be merged are side by side, in a frame.

    Parameters
    ----------
    adata
        Annotated data with tested clusters.
    key
        Column of `adata.obs` that was tested.
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
    >>> scvcc.tl.test_clusters(adata, key="louvain")
    >>> fig = scvcc.pl.support(adata, key="louvain", return_fig=True)
    """
    record = read(adata, "uns", f"{key}_support", f"run scvcc.tl.test_clusters(adata, key={key!r}) first")
    clusters, pairs = record["clusters"], record["pairs"]
    groups = clusters.groupby("merged", sort=False).indices  # positions, by group
    order = np.concatenate(sorted(groups.values(), key=lambda members: members[0]))
    place = pd.Series(np.argsort(order), index=clusters.index.astype(str))
    size = float(np.clip(1.6 + 0.22 * len(clusters), 3.6, 14))
    (axis,) = panels(1, (size + 2, size), ax=ax)
    _draw_pairs(axis, pairs, place, pitch=72 * size * 0.8 / len(clusters))
    for members in groups.values():
        if len(members) > 1:
            corner, n = place.iloc[members].min() - 0.5, len(members)
            axis.add_patch(Rectangle((corner, corner), n, n, fill=False, edgecolor=UNSUPPORTED, linewidth=1.2))
    names = clusters.index[order].astype(str)
    font: dict[str, Any] = {"fontsize": "small" if len(names) <= 30 else "x-small"}
    axis.set_xticks(range(len(names)), names, rotation=90 if names.str.len().max() > 3 else 0, **font)
    axis.set_yticks(range(len(names)), names, **font)
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)
    axis.set(xlim=(-0.7, len(names) - 0.3), ylim=(len(names) - 0.3, -0.7), aspect="equal")
    axis.set_title(f"{key}: {len(names)} clusters, {len(groups)} once merged")
    return finish(axis, show, return_fig, ax)


def _draw_pairs(axis: Axes, pairs: pd.DataFrame, place: pd.Series, *, pitch: float) -> None:
    """Draw a square for each pair, on both sides of the diagonal; `pitch` is the width of a row in points."""
    is_supported = pairs["supported"].to_numpy(bool)
    x, y = (place[pairs[side].astype(str)].to_numpy() for side in ("a", "b"))
    side = pitch * np.clip(2 * pairs["link"].to_numpy(float) ** 0.5, 0.25, 0.9)
    shown = (("two groups (p < 0.05)", is_supported, SUPPORTED), ("no evidence for two", ~is_supported, UNSUPPORTED))
    for name, chosen, tint in shown:
        points, areas = np.column_stack([x, y])[chosen], side[chosen] ** 2
        both = np.concatenate([points, points[:, ::-1]])
        axis.scatter(both[:, 0], both[:, 1], s=np.tile(areas, 2), color=tint, marker="s", linewidths=0)
        axis.scatter([], [], s=40, color=tint, marker="s", label=name)
    axis.plot([-0.5, len(place) - 0.5], [-0.5, len(place) - 0.5], color="0.9", linewidth=0.8, zorder=0)
    axis.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1), fontsize="small")
