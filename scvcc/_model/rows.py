"""Many rows, in parts: matrices in memory or on disk, read block by block."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp
from sklearn.utils import gen_batches

from scvcc._training.encoder import BLOCK

if TYPE_CHECKING:
    from collections.abc import Callable

    from scvcc._training.graph import Matrix

BLOCK_NUMBERS = 2**22  # entries of the rows that are read at a time, unless one block has more


def in_memory(X: Any) -> bool:
    """Whether `X` is an array, a memory-mapped one included, or a sparse matrix."""
    return isinstance(X, np.ndarray) or sp.issparse(X)


def has_row_blocks(X: Any) -> bool:
    """Whether a block of the rows of `X` can be had without reading or converting all of it.

    Apart from numeric arrays and CSR matrices, these are matrices on disk that can be sliced: data sets of h5py and zarr,
    the sparse ones of a backed AnnData.
    """
    if sp.issparse(X):
        return X.format == "csr"
    if not all(hasattr(X, name) for name in ("shape", "dtype", "__getitem__")) or hasattr(X, "iloc"):
        return False
    return len(X.shape) == 2 and getattr(X.dtype, "kind", None) in ("b", "i", "u", "f")


def over_blocks(function: Callable[[Matrix], np.ndarray], X: Matrix) -> np.ndarray:
    """What `function` gives for blocks of rows, put together; only one block is in memory at a time."""
    whole: np.ndarray | None = None
    for rows in gen_batches(X.shape[0], _block_rows(X)):
        part = function(X[rows])
        if whole is None:
            whole = np.empty((X.shape[0], *part.shape[1:]), part.dtype)
        whole[rows] = part
    return np.empty(0) if whole is None else whole


def take_rows(X: Matrix, rows: np.ndarray) -> Matrix:
    """The rows of ascending numbers `rows`; a matrix on disk is read from its first row to its last, in blocks."""
    if in_memory(X):
        return X[rows]
    size = _block_rows(X)
    starts = np.arange(0, X.shape[0], size)
    chosen = np.split(rows, np.searchsorted(rows, starts[1:]))
    parts = [X[start : start + size][part - start] for start, part in zip(starts, chosen, strict=True) if len(part)]
    return sp.vstack(parts, format="csr") if sp.issparse(parts[0]) else np.concatenate(parts)


def _block_rows(X: Matrix) -> int:
    """Rows to read at a time: a multiple of the encoder's block, so that blocks do not show in the result."""
    return BLOCK * int(np.clip(BLOCK_NUMBERS // (BLOCK * X.shape[1]), 1, 64))
