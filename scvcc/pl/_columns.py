"""What a plot reads from `adata`: maps, and columns to color by with the colors of their categories."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
import scanpy as sc
from anndata import AnnData
from matplotlib.colors import is_color_like, to_hex, to_rgb
from natsort import natsorted

# Okabe-Ito's colors (black replaced), then colors chosen to stay apart for people with any color vision deficiency
PALETTE = (
    "#0072b2 #e69f00 #009e73 #cc79a7 #56b4e9 #d55e00 #f0e442 #332288 #642c16 #bcd385 #004e4e #8585ff "
    "#e9b1b1 #7a6f37 #4e376f #4ee9ff #ff597a #c89b4e #a6e964 #903700 #436443 #85597a #3759bc #c8b1d3"
).split()
UNASSIGNED = "unassigned"  # the category that `tl.map_query` gives to doubtful cells
GREYS = {"NA": "#e0e0e0", UNASSIGNED: "#b4b4b4"}  # of cells without a value, and of these

Palette = str | Sequence[str] | Mapping[str, str] | None


def check_choice(argument: str, value: Any, *choices: str | None) -> None:
    """Refuse a value that is not among the choices."""
    if value not in choices:
        raise ValueError(f"{argument} must be one of {', '.join(map(repr, choices))}, found {value!r}.")


def check_number(argument: str, value: Any, least: int, kind: type = Real) -> None:
    """Refuse what is no number, no integer where one is needed, or too small."""
    if not isinstance(value, kind) or not value >= least:  # NaN is not
        word = "an integer" if kind is Integral else "a number"
        raise ValueError(f"{argument} must be {word} of at least {least}, found {value!r}.")


def read(adata: AnnData, slot: str, name: str, advice: str = "") -> Any:
    """Fetch an entry of a slot of `adata`, such as "uns"; the advice says what to do where there is none."""
    if not isinstance(adata, AnnData):
        raise TypeError(f"adata must be an AnnData, found {type(adata).__name__}.")
    if name not in getattr(adata, slot):
        raise ValueError(f"adata.{slot} has no {name!r}: {advice}.")
    return getattr(adata, slot)[name]


def read_map(adata: AnnData, key: str, dimensions: Any = None, *, stage: str = "") -> np.ndarray:
    """Return the map of a result, or of a stage of its training: two of its dimensions, or all."""
    advice = f"run scvcc.tl.vcc(adata, key_added={key!r}) first"
    H = np.asarray(read(adata, "obsm", f"X_{key}_{stage}" if stage else f"X_{key}", advice), dtype=float)
    if dimensions is None:
        return H
    if H.shape[1] < 2:
        raise ValueError(
            f"The map {key!r} has a single dimension, but a plot needs two: run scvcc.tl.vcc with latent_dim=2."
        )
    pair = list(dimensions) if isinstance(dimensions, Iterable) else []
    if len(pair) != 2 or not all(isinstance(d, Integral) and 0 <= d < H.shape[1] for d in pair):
        raise ValueError(
            f"dimensions={dimensions!r}, but the map {key!r} has {H.shape[1]}: give two integers, counted from 0."
        )
    return H[:, pair]


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
        read(adata, "layers", layer, f"layer must be one of {sorted(map(str, adata.layers))}")
    series = adata.obs[name] if name in adata.obs else _variable(adata, name, layer, use_raw)
    if pd.api.types.is_numeric_dtype(series) and not pd.api.types.is_bool_dtype(series):
        values = series.to_numpy(dtype=float, na_value=np.nan)
        return Column(name, values, None, {"NA": ~np.isfinite(values)})
    series = as_categories(series)
    unassigned = (series == UNASSIGNED).to_numpy()
    series = series.cat.remove_categories([c for c in series.cat.categories if c == UNASSIGNED])
    codes = series.cat.codes.to_numpy()
    colors = _colors(list(series.cat.categories), stored_colors(adata, name), palette)
    return Column(name, codes, colors, {"NA": (codes < 0) & ~unassigned, UNASSIGNED: unassigned})


def as_categories(series: pd.Series) -> pd.Series:
    """Return a column as categories with strings as names; new ones are in natural order."""
    if not isinstance(series.dtype, pd.CategoricalDtype):
        series = series.astype("category")
        series = series.cat.reorder_categories(natsorted(series.cat.categories, key=str))
    return series.cat.rename_categories(str)


def store_colors(adata: AnnData, column: Column) -> None:
    """Keep the colors of a categorical column where `adata.uns` has none that fit."""
    if column.colors is not None and not stored_colors(adata, column.name):
        categories = as_categories(adata.obs[column.name]).cat.categories
        adata.uns[f"{column.name}_colors"] = np.array([{**column.colors, **GREYS}[name] for name in categories])


def stored_colors(adata: AnnData, name: str) -> dict[str, str]:
    """Return the colors that scanpy or scvcc left for the categories of a column, if there are enough."""
    stored, categories = adata.uns.get(f"{name}_colors", ()), as_categories(adata.obs[name]).cat.categories
    fitting = len(stored) >= len(categories) and all(map(is_color_like, map(str, stored)))
    return dict(zip(categories, map(str, stored), strict=False)) if fitting else {}


def default_palette(n: int) -> list[str]:
    """Return `n` colors; beyond the palette they repeat, lighter and darker in turn."""
    tints = []
    for i in range(n):
        turn, base = i // len(PALETTE), np.array(to_rgb(PALETTE[i % len(PALETTE)]))
        target, share = float(turn % 2), 1 - 0.6 ** ((turn + 1) // 2)
        tints.append(to_hex(tuple(base + share * (target - base))))
    return tints


def _variable(adata: AnnData, name: str, layer: str | None, use_raw: bool | None) -> pd.Series:
    if use_raw is None:
        use_raw = layer is None and adata.raw is not None and name in adata.raw.var_names
    if use_raw and adata.raw is None:
        raise ValueError("use_raw=True, but adata.raw is None: leave use_raw out, or set adata.raw first.")
    if name not in (adata.raw if use_raw else adata).var_names:
        raise ValueError(f"color={name!r} is neither a column of adata.obs nor the name of a variable.")
    return sc.get.obs_df(adata, [name], layer=layer, use_raw=use_raw)[name]


def _colors(categories: list[str], stored: Mapping[str, str], palette: Palette) -> dict[str, str]:
    """Return a color for each category: the caller's, else the stored ones, else our own."""
    tints: Any = palette if palette is not None else stored or default_palette(len(categories))
    if not isinstance(tints, Mapping):
        listed = _listed(tints, len(categories))
        tints = {name: listed[i % len(listed)] for i, name in enumerate(categories)}
    if lacking := [name for name in categories if not is_color_like(tints.get(name))]:
        raise ValueError(f"palette has no color for {', '.join(map(repr, lacking))} that matplotlib knows.")
    return {name: to_hex(tints[name]) for name in categories}


def _listed(palette: Any, n: int) -> list:
    """Return the colors of a list, of a palette of scanpy, or of a colormap: its own if it has few, else `n` of them."""
    if isinstance(palette, str):
        named = getattr(sc.pl.palettes, palette, None)
        if palette in mpl.colormaps:
            colormap = mpl.colormaps[palette]
            named = list(colormap(np.arange(colormap.N) if colormap.N < 256 else np.linspace(0, 1, n)))
        if not isinstance(named, list):
            raise ValueError(
                f"palette={palette!r} is neither a colormap of matplotlib, such as 'tab10', nor a palette of scanpy, "
                "such as 'default_20'."
            )
        return named
    if not isinstance(palette, Iterable) or not list(palette):
        raise ValueError(f"palette is empty, or no list of colors: give at least one color, found {palette!r}.")
    return list(palette)
