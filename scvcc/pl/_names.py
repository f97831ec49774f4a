"""Where the names of categories go on a map."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patheffects import withStroke

from scvcc.pl._columns import UNASSIGNED, Column


def write_names(axis: Axes, H: np.ndarray, column: Column, *, beside: bool) -> dict[str, str]:
    """Write the names of categories on their cells, or next to them; returns those without room, with their colors.

    Places are compared on the page, in points, where names have a size, whatever the units of the map. Large categories
    choose first.
    """
    scale = 72 / axis.figure.dpi
    placed = np.isfinite(H).all(axis=1)
    page, codes = axis.transData.transform(H[placed]) * scale, column.values[placed]
    everyone, frame = _thin(page), axis.get_window_extent().get_points() * scale
    groups = [(page[codes == code], name, tint) for code, (name, tint) in enumerate((column.colors or {}).items())]
    boxes: list[tuple[np.ndarray, np.ndarray]] = []  # middles and half sizes of the names that have a place
    without_room = {}
    for points, name, tint in sorted(groups, key=lambda group: -len(group[0])):
        if len(points) == 0 or name == UNASSIGNED:
            continue
        points = _densest(_thin(points), square=float(np.ptp(frame, axis=0).min()) / 12)
        center = np.median(points, axis=0)
        text = axis.annotate(name, tuple(axis.transData.inverted().transform(center / scale)), **_style())
        text.set_in_layout(False)
        half = np.array(text.get_window_extent().size) * scale / 2 + 1
        aside = beside or _covered(points, center, half) > 0.5  # on its cluster it would hide most of it
        tries = center + _offsets(points - center, half, beside=aside)
        tries = tries[_free(tries, half, frame, boxes)]
        if len(tries) == 0:
            text.remove()
            without_room[name] = tint
            continue
        cost = [_covered(everyone, place, half) for place in tries] + 5e-4 * np.arange(len(tries))
        place = tries[cost.argmin() if aside else 0]
        text.xyann = place - center
        boxes.append((place, half))
    return without_room


def _style() -> dict[str, Any]:
    outline = [withStroke(linewidth=2.5, foreground="white")]
    font: dict[str, Any] = {"fontweight": "bold", "fontsize": 9, "ha": "center", "va": "center", "zorder": 5}
    return {**font, "xytext": (0, 0), "textcoords": "offset points", "path_effects": outline}


def _thin(points: np.ndarray) -> np.ndarray:
    """Take some of the points: a few thousand show where the others are."""
    return points[:: 1 + len(points) // 3_000]


def _densest(points: np.ndarray, square: float) -> np.ndarray:
    """Keep the points in and around the fullest square of a grid: a category may be in several places."""
    squares = np.floor(points / square).astype(int)
    found, count = np.unique(squares, axis=0, return_counts=True)
    return points[(np.abs(squares - found[count.argmax()]) <= 1).all(axis=1)]


def _covered(points: np.ndarray, place: np.ndarray, half: np.ndarray) -> float:
    """Return the share of points that a name would cover."""
    return float((np.abs(points - place) < half).all(axis=1).mean())


def _offsets(points: np.ndarray, half: np.ndarray, *, beside: bool) -> np.ndarray:
    """List places for a name around the center of its points, the best first: 16 directions, at growing distance."""
    angles = np.linspace(0, 2 * np.pi, 16, endpoint=False)
    circle = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    box = half * np.clip(1.5 * circle, -1, 1)  # so that the near edge of the name, not its middle, is at the place
    if not beside:
        return np.concatenate([np.zeros((1, 2)), *(box + step * circle for step in (2, 8, 14))])
    reach = np.quantile(points @ circle.T, 0.8, axis=0)  # extent of the cluster in each direction
    return np.concatenate([box + (reach + gap)[:, None] * circle for gap in (3, 8, 16)])


def _free(tries: np.ndarray, half: np.ndarray, frame: np.ndarray, boxes: list) -> np.ndarray:
    """Tell at which places a name stays in the frame and off the other names."""
    edge = half + 4  # a legend that is added later may move the frame a little
    free = (tries - edge > frame[0]).all(axis=1) & (tries + edge < frame[1]).all(axis=1)
    for place, size in boxes:
        free &= (np.abs(tries - place) >= half + size).any(axis=1)
    return free
