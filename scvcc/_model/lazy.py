"""Matrices that dask computes chunk by chunk, on the scheduler that is active: the one module that knows dask.

dask is an extra, `scvcc[dask]`. It is not imported here: who hands in one of its arrays has done so.
"""

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from scvcc._training.graph import Matrix


def is_lazy(X: Any) -> bool:
    """Whether `X` is a dask array."""
    dask = sys.modules.get("dask.array")
    return dask is not None and isinstance(X, dask.Array)


def computed(X: Any) -> Matrix:
    """The values of `X`, in memory."""
    return X.compute() if is_lazy(X) else X


def over_chunks(function: Callable[[Matrix], np.ndarray], X: Any, size: int) -> Any:
    """What `function` makes of the chunks of `X`, as a dask array of rows that is computed when asked for.

    Chunks that do not begin at multiples of `size` are cut again, so that a `function` that takes `size` rows at a time
    gets the same blocks as in memory: matrix products of another shape round differently.
    """
    if np.isnan(X.shape).any():
        raise ValueError("X is a dask array of unknown length: call X.compute_chunk_sizes() first.")
    ends = np.cumsum(X.chunks[0])
    ends[:-1] = np.minimum(-(-ends[:-1] // size) * size, ends[-1])
    X = X.rechunk({0: tuple(np.diff(np.unique(ends), prepend=0).tolist()), 1: -1})
    example = function(np.zeros((1, X.shape[1]), X.dtype))
    columns = {"drop_axis": 1} if example.ndim == 1 else {"chunks": (X.chunks[0], example.shape[1:])}
    return X.map_blocks(function, meta=example[:0], **columns)
