"""What all plots share: panels, cells on a map, legends, and what is handed back."""

from collections.abc import Mapping
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba_array
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from scvcc.pl._columns import GREYS, UNASSIGNED, Column

Plot = Any  # Figure | Axes | list[Axes] | None, by `return_fig` and `show`


def panels(n: int, size: tuple[float, float], *, ncols: int = 1, ax: Axes | None = None, **layout: Any) -> list[Axes]:
    """Open a figure with `n` panels of a size in inches, or take the caller's axes."""
    if ax is not None and (n != 1 or not isinstance(ax, Axes)):
        raise ValueError(f"ax must be one Axes for one panel: there are {n} panels to draw, and ax is {ax!r:.60}.")
    if ax is not None:
        return [ax]
    columns, rows = min(n, ncols), -(-n // ncols)
    layout |= {"figsize": (size[0] * columns, size[1] * rows), "layout": "constrained", "squeeze": False}
    axes = plt.subplots(rows, columns, **layout)[1].ravel().tolist()
    for axis in axes[n:]:
        axis.remove()
    for axis in axes[:n]:
        axis.spines[["top", "right"]].set_visible(False)
    return axes[:n]


def finish(drawn: Axes | list[Axes], show: bool | None, return_fig: bool, ax: Axes | None = None) -> Plot:
    """Hand back the figure or the axes, or show the figure: the end of every plot."""
    if return_fig:
        return (drawn[0] if isinstance(drawn, list) else drawn).figure
    if show or (show is None and ax is None):
        plt.show()
        return None
    return drawn


def draw_map(
    axis: Axes, H: np.ndarray, column: Column, title: str, *, size: float | None, alpha: Any = None, **bar: Any
) -> None:
    """Draw the cells that have a place, those in grey behind the others; `bar` is how numbers become colors."""
    front = np.isfinite(H).all(axis=1)
    n_placed = int(front.sum())
    area = float(np.clip(30_000 / max(n_placed, 1), 0.4, 14)) if size is None else size
    style: Any = {"s": area, "linewidths": 0, "rasterized": n_placed > 10_000}  # vector files stay small
    for name, cells in _placed_greys(H, column).items():
        axis.scatter(H[cells, 0], H[cells, 1], color=GREYS[name], **style)
        front &= ~cells
    order = np.flatnonzero(front)
    if column.colors is None:
        order = order[np.argsort(column.values[order], kind="stable")]  # high values on top
        points = axis.scatter(H[order, 0], H[order, 1], c=column.values[order], **bar, **style)
        axis.figure.colorbar(points, ax=axis, shrink=0.6, pad=0.02).outline.set_visible(False)
    else:
        order = np.random.default_rng(0).permutation(order)  # no category hides the others
        rgba = to_rgba_array(list(column.colors.values()))[column.values[order]]
        points = axis.scatter(H[order, 0], H[order, 1], c=rgba, **style)
    if alpha is not None:
        points.set_alpha(np.clip(np.nan_to_num(alpha[order]), 0.05, 1) ** 2)
    axis.set(title=title, xticks=[], yticks=[])
    axis.spines[:].set_visible(True)
    axis.set_aspect("equal", adjustable="datalim")  # distances on the map mean the same in both directions
    axis.margins(0.06)


def name_axes(axis: Axes, key: str, dimensions: tuple[int, int]) -> None:
    """Write "VCC1" and so on for the usual key; other keys, which may end in a number, stay as they are: "v30 1"."""
    x, y = (f"VCC{d + 1}" if key == "vcc" else f"{key} {d + 1}" for d in dimensions)
    axis.set(xlabel=x, ylabel=y)


def _placed_greys(H: np.ndarray, column: Column) -> dict[str, np.ndarray]:
    placed = np.isfinite(H).all(axis=1)
    return {name: cells & placed for name, cells in column.greys.items() if (cells & placed).any()}


def with_greys(names: Mapping[str, str], H: np.ndarray, column: Column) -> dict[str, str]:
    """Return names and colors for the legend of a map: the clusters given, then cells in grey if there are any."""
    clusters = {name: tint for name, tint in names.items() if name != UNASSIGNED}
    return clusters | {name: GREYS[name] for name in reversed(_placed_greys(H, column))}


def settle(axes: list[Axes]) -> None:
    """Fix the places of the panels on the page, which names are placed by."""
    fig = axes[0].figure
    if isinstance(fig, Figure) and (engine := fig.get_layout_engine()) is not None:
        engine.execute(fig)
    for axis in axes:
        axis.autoscale_view()  # an equal aspect only widens limits: start from those of the data
        axis.apply_aspect()


def add_legends(axes: list[Axes], entries: list[dict[str, str]], *, ncols: int = 1, ax: Axes | None = None) -> None:
    """Put names and colors on the right of panels; a figure of ours grows by their width, so that panels keep theirs."""
    widths = [_legend(axis, colors) if colors else 0.0 for axis, colors in zip(axes, entries, strict=True)]
    fig = axes[0].figure
    if ax is None and any(widths) and isinstance(fig, Figure):
        columns = range(min(ncols, len(axes)))
        fig.set_figwidth(fig.get_figwidth() + sum(max(widths[column::ncols]) for column in columns))


def _legend(axis: Axes, colors: Mapping[str, str]) -> float:
    """Draw one legend; returns its width in inches."""
    handles = [Line2D([], [], marker="o", linestyle="", color=tint, label=name) for name, tint in colors.items()]
    ncols = 1 if len(handles) <= 14 else 2 if len(handles) <= 30 else 3
    legend = axis.legend(handles=handles, ncols=ncols, frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    return legend.get_window_extent().width / axis.figure.dpi
