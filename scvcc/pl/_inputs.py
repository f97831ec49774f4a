"""What a plot is asked for, checked, and what `adata` holds for it."""

from typing import Any

import matplotlib as mpl
import numpy as np
from anndata import AnnData


def read(adata: AnnData, slot: str, name: str, advice: str = "") -> Any:
    """Fetch an entry of a slot of `adata`, such as "uns"; the advice says what to do where there is none."""
    if not isinstance(adata, AnnData):
        raise TypeError(f"adata must be an AnnData, found {type(adata).__name__}.")
    if name not in getattr(adata, slot):
        raise ValueError(f"adata.{slot} has no {name!r}: {advice}.")
    return getattr(adata, slot)[name]


def check_cmap(cmap: str) -> None:
    """Refuse a colormap that matplotlib does not have."""
    if cmap not in mpl.colormaps:
        raise ValueError(f"cmap={cmap!r} is not a matplotlib colormap: give a name such as 'viridis'.")


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
    pair = list(dimensions)
    if not all(d in range(H.shape[1]) for d in pair):
        raise ValueError(
            f"dimensions={dimensions!r}, but the map {key!r} has {H.shape[1]}: give two integers, counted from 0."
        )
    return H[:, pair]
