"""A column to color cells by, and the colors of its categories."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
import scanpy as sc
from anndata import AnnData
from matplotlib.colors import is_color_like, to_hex, to_rgb
from natsort import natsorted

from scvcc.pl._inputs import read

# Okabe-Ito's colors (black replaced), then colors chosen to stay apart for people with any color vision deficiency
PALETTE = (
    "#0072b2 #e69f00 #009e73 #cc79a7 #56b4e9 #d55e00 #f0e442 #332288 #642c16 #bcd385 #004e4e #8585ff "
    "#e9b1b1 #7a6f37 #4e376f #4ee9ff #ff597a #c89b4e #a6e964 #903700 #436443 #85597a #3759bc #c8b1d3"
).split()
UNASSIGNED = "unassigned"  # the category that `tl.map_query` gives to doubtful cells
GREYS = {"NA": "#e0e0e0", UNASSIGNED: "#b4b4b4"}  # of cells without a value, and of these

Palette = str | Sequence[str] | Mapping[str, str] | None


@dataclass(frozen=True)
class Column:
    """Values to color cells by: numbers, or positions in `colors`, the categories and their colors."""

    name: str
    values: np.ndarray
    colors: dict[str, str] | None  # None for numbers
    greys: dict[str, np.ndarray]  # cells that have no value ("NA"), and that are unassigned


def read_column(
    adata: AnnData, name: str, *, layer: str | None = None, use_raw: bool | None = None, palette: Palette = None
) -> Column:
    """Return a column of `adata.obs`, or the values of a variable."""
    if layer is not None:
        read(adata, "layers", layer, f"layer must be one of {[*adata.layers]} or None")
    series = adata.obs[name] if name in adata.obs else _variable(adata, name, layer, use_raw)
    if pd.api.types.is_numeric_dtype(series) and not pd.api.types.is_bool_dtype(series):
        values = series.to_numpy(dtype=float, na_value=np.nan)
        return Column(name, values, None, {"NA": ~np.isfinite(values)})
    series = as_categories(series)
    categories, codes = list(series.cat.categories), series.cat.codes.to_numpy()
    colors = _colors(categories, adata.uns.get(f"{name}_colors", ()), palette)
    return Column(name, codes, colors, {"NA": codes < 0, UNASSIGNED: (series == UNASSIGNED).to_numpy()})


def as_categories(series: pd.Series) -> pd.Series:
    """Return a column as categories with strings as names; new ones are in natural order."""
    if not isinstance(series.dtype, pd.CategoricalDtype):
        series = series.astype("category")
        series = series.cat.reorder_categories(natsorted(series.cat.categories, key=str))
    return series.cat.rename_categories(str)


def store_colors(adata: AnnData, column: Column) -> None:
    """Keep the colors of a categorical column where `adata.uns` has not enough of them."""
    name = f"{column.name}_colors"
    if column.colors is not None and len(adata.uns.get(name, ())) < len(column.colors):
        adata.uns[name] = np.array(list(column.colors.values()))


def default_palette(n: int) -> list[str]:
    """Return `n` colors; beyond the palette they repeat, lighter and darker in turn."""
    turns, places = np.divmod(np.arange(n)[:, None], len(PALETTE))
    base, target = np.array([to_rgb(tint) for tint in PALETTE])[places[:, 0]], turns % 2
    return list(map(to_hex, base + (1 - 0.6 ** ((turns + 1) // 2)) * (target - base)))


def _variable(adata: AnnData, name: str, layer: str | None, use_raw: bool | None) -> pd.Series:
    if use_raw is None:
        use_raw = layer is None and adata.raw is not None and name in adata.raw.var_names
    if use_raw and adata.raw is None:
        raise ValueError("use_raw=True, but adata.raw is None: leave use_raw out, or set adata.raw first.")
    if name not in (adata.raw if use_raw else adata).var_names:
        raise ValueError(f"color={name!r} is neither a column of adata.obs nor the name of a variable.")
    return sc.get.obs_df(adata, [name], layer=layer, use_raw=use_raw)[name]


def _colors(categories: list[str], stored: Sequence[str], palette: Palette) -> dict[str, str]:
    """Return a color for each category: the caller's, else the stored ones, else our own; unassigned cells are grey."""
    if isinstance(palette, Mapping):
        tints = dict(palette)
    elif palette is None and len(stored) >= len(categories):
        tints = dict(zip(categories, map(str, stored), strict=False))
    else:
        clusters = [name for name in categories if name != UNASSIGNED]
        listed = default_palette(len(clusters)) if palette is None else _listed(palette, len(clusters))
        tints = {name: listed[i % len(listed)] for i, name in enumerate(clusters)}
    tints[UNASSIGNED] = GREYS[UNASSIGNED]
    if lacking := [name for name in categories if not is_color_like(tints.get(name))]:
        raise ValueError(f"palette has no color for {', '.join(map(repr, lacking))} that matplotlib knows.")
    return {name: to_hex(tints[name]) for name in categories}


def _listed(palette: Any, n: int) -> list:
    """Return the colors of a list, of a palette of scanpy, or of a colormap: its own if it has few, else `n` of them."""
    listed = palette
    if isinstance(palette, str) and palette in mpl.colormaps:
        colormap = mpl.colormaps[palette]
        listed = colormap(np.arange(colormap.N) if colormap.N < 256 else np.linspace(0, 1, n))
    elif isinstance(palette, str):
        listed = getattr(sc.pl.palettes, palette, None)
    colors = list(listed) if isinstance(listed, Iterable) else []
    if not colors:
        raise ValueError(
            f"palette={palette!r} has no colors: give a list, a color for each category, a colormap of matplotlib such "
            "as 'tab10', or a palette of scanpy such as 'default_20'."
        )
    return colors
