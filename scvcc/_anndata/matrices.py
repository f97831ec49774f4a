"""Matrices of an AnnData, read without changing it: X, layers and their values."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp
from anndata import AnnData

from scvcc._anndata.messages import listed
from scvcc._model.checks import warn
from scvcc._model.lazy import computed
from scvcc._model.rows import has_row_blocks, in_memory, on_host, take_rows
from scvcc._training.graph import Matrix, check_sparse


def check_adata(adata: AnnData, *, copy: bool = False) -> None:
    """Refuse what cannot be written to, before anything is computed; read obs, var and uns where `read_lazy` left them on disk."""
    if not isinstance(adata, AnnData):
        raise TypeError(f"adata must be an AnnData, found {type(adata).__name__}: for a matrix use scvcc.VCC.")
    if adata.isbacked and copy:
        raise ValueError("copy=True does not work with a backed adata: load it with adata.to_memory() first.")
    if adata.isbacked and adata.is_view:
        raise ValueError(
            "adata is a part of a backed AnnData, which cannot be written to: load it with adata.to_memory() first."
        )
    if not all(isinstance(table, pd.DataFrame) for table in (adata.obs, adata.var)):
        for name in ("obs", "var", "uns"):  # no file can be written from what is there
            setattr(adata, name, _loaded(getattr(adata, name)))


def _loaded(value: Any) -> Any:
    """A table of `read_lazy`, or a dictionary of such and of arrays of dask, in memory."""
    if hasattr(value, "to_memory"):
        return value.to_memory()
    return {name: _loaded(part) for name, part in value.items()} if isinstance(value, Mapping) else computed(value)


def check_layer(adata: AnnData, layer: str | None) -> None:
    """Refuse a layer that is missing."""
    if layer is not None and layer not in adata.layers:
        raise ValueError(f"layer={layer!r} is not in adata.layers, which has {listed(adata.layers)}.")


def name_of(layer: str | None) -> str:
    """How messages name X or a layer."""
    return "adata.X" if layer is None else f"adata.layers[{layer!r}]"


def variables(adata: AnnData, layer: str | None = None, *, instead: str = "", blocks: bool = False) -> Matrix:
    """X or a layer as a numeric matrix in memory; sparse stays sparse.

    With `blocks` one on disk, or of dask, stays where it is. `instead` says what else the user can do where X is not in
    memory.
    """
    if layer is None and adata.isbacked and not blocks:
        raise ValueError(
            "adata is backed, and adata.X would have to be read from its file: load it with adata.to_memory() "
            f"first{instead}."
        )
    check_layer(adata, layer)
    X = adata.X if layer is None else adata.layers[layer]
    if X is None:
        raise ValueError(f"adata.X is empty (None): set it first{instead}.")
    X = as_matrix(X, name_of(layer), blocks=blocks)
    if 0 in X.shape:
        raise ValueError(f"{name_of(layer)} has shape {X.shape}: there is nothing to cluster.")
    return X


def as_matrix(values: Any, name: str, *, blocks: bool = False) -> Matrix:
    """Real-valued matrix in memory of at least single precision; no copy where the values already are.

    With `blocks` one on disk, or of dask, stays as it is.
    """
    if hasattr(values, "columns"):
        values = (values if isinstance(values, pd.DataFrame) else values.to_memory()).to_numpy()
    values = on_host(values)
    if not in_memory(values) and has_row_blocks(values):
        if blocks:
            return values
        values = computed(values[:])
    if not sp.issparse(values):
        if not isinstance(values, np.ndarray):
            raise TypeError(
                f"{name} is a {type(values).__module__}.{type(values).__name__}: "
                "convert it to a numpy array or a scipy sparse matrix first."
            )
        values = np.asarray(values)
    if values.ndim != 2:
        raise ValueError(f"{name} has {values.ndim} dimension(s): a matrix with one row per cell is needed.")
    if values.dtype.kind not in "biuf":
        raise TypeError(
            f"{name} has dtype {values.dtype}: convert it to numbers, for instance with .astype('float32')."
        )
    if sp.issparse(values):
        check_sparse(values, name)
    return values if values.dtype.kind == "f" and values.dtype.itemsize >= 4 else values.astype(np.float32)


def at_hand(X: Matrix, most: int = 1_000) -> Matrix:
    """`X` where it is in memory, and its first rows where it is not: enough to see what kind of values it has."""
    return X if in_memory(X) else take_rows(X, np.arange(min(most, X.shape[0])))


def stored_values(X: Matrix) -> np.ndarray:
    """The entries of a dense, or the stored entries of a sparse matrix."""
    return np.asarray(X.data) if sp.issparse(X) else np.asarray(X)


def has_negative(X: Matrix) -> bool:
    """Whether any entry is below zero."""
    return bool(stored_values(X).min(initial=0) < 0)


def finite(X: Matrix, name: str) -> Matrix:
    """`X`, or an error that counts NaN and infinite values; those of a matrix on disk are counted as it is read."""
    if not in_memory(X):
        return X
    values = stored_values(X)
    # a finite sum needs no second look; an infinite one may be an overflow
    if not np.isfinite(values.sum(dtype=np.float64)) and not np.isfinite(values).all():
        count = int(np.size(values) - np.isfinite(values).sum())
        raise ValueError(f"{name} has {count} NaN or infinite values: remove or impute them first.")
    return X


def warn_if_counts(X: Matrix, name: str, *, looked_at: int = 100_000, categories: int = 10) -> None:
    """Warn where the matrix holds whole numbers only, as raw counts do; up to 10 they may as well be categories."""
    values = stored_values(X)
    values = values[:: max(1, values.size // looked_at)].ravel()
    if values.size == 0 or values.min() < 0 or values.max() <= categories or np.any(values != np.rint(values)):
        return
    warn(
        f"{name} looks like raw counts (whole numbers up to {values.max():.0f}). Usual preparation for cells: "
        "sc.pp.normalize_total, sc.pp.log1p, sc.pp.highly_variable_genes, sc.pp.pca; for documents: scvcc.pp.lsa."
    )
