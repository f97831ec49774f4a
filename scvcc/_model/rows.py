"""Rows of a matrix in blocks, checked as they are read; the matrix may be on disk."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.utils import gen_batches
from sklearn.utils.validation import check_array, validate_data

from scvcc._model.lazy import computed, is_lazy, over_chunks
from scvcc._training.graph import Matrix, check_sparse
from scvcc._training.settings import BLOCK


def on_host(X: Any) -> Any:
    """`X`, copied to the host if it is an array or a sparse matrix of cupy, as rapids-singlecell makes them."""
    return X.get() if type(X).__module__.partition(".")[0] in ("cupy", "cupyx") else X


def in_memory(X: Any) -> bool:
    """Whether `X` is an array, a memory-mapped one included, or a sparse matrix."""
    return isinstance(X, np.ndarray) or sp.issparse(X)


def has_row_blocks(X: Any) -> bool:
    """Whether a block of the rows of `X` can be read without reading or converting all of it.

    Apart from numeric arrays and CSR matrices, these are matrices on disk that can be sliced: data sets of h5py and zarr,
    the sparse ones of a backed AnnData; and dask arrays.
    """
    if sp.issparse(X):
        return X.format == "csr"
    if not all(hasattr(X, name) for name in ("shape", "dtype", "__getitem__")) or hasattr(X, "iloc"):
        return False
    return len(X.shape) == 2 and getattr(X.dtype, "kind", None) in ("b", "i", "u", "f")


def over_blocks(function: Callable[[Matrix], np.ndarray], X: Matrix) -> np.ndarray:
    """What `function` gives for blocks of rows, put together; only one block is in memory at a time."""
    if is_lazy(X):
        return lazily(function, X).compute()
    whole: np.ndarray | None = None
    for rows in gen_batches(X.shape[0], _rows_at_a_time(X)):
        part = function(X[rows])
        if whole is None:
            whole = np.empty((X.shape[0], *part.shape[1:]), part.dtype)
        whole[rows] = part
    return np.empty(0) if whole is None else whole


def lazily(function: Callable[[Matrix], np.ndarray], X: Any) -> Any:
    """The same for the chunks of a dask array, as a dask array: computed when asked for, and equal to the last bit."""
    return over_chunks(partial(over_blocks, function), X, _rows_at_a_time(X))


def _rows_at_a_time(X: Matrix, numbers: int = 2**22) -> int:
    """About 4 million entries; a multiple of the encoder's block, so that blocks do not show in the result."""
    return BLOCK * int(np.clip(numbers // (BLOCK * X.shape[1]), 1, 64))


def take_rows(X: Matrix, rows: np.ndarray) -> Matrix:
    """The rows of ascending numbers `rows`; a matrix on disk is read from its first row to its last, in blocks."""
    if in_memory(X) or is_lazy(X):
        return computed(X[rows])
    size = _rows_at_a_time(X)
    starts = np.arange(0, X.shape[0], size)
    chosen = np.split(rows, np.searchsorted(rows, starts[1:]))
    parts = [X[start : start + size][part - start] for start, part in zip(starts, chosen, strict=True) if len(part)]
    return sp.vstack(parts, format="csr") if sp.issparse(parts[0]) else np.concatenate(parts)


def readable(estimator: Any, X: Matrix, *, reset: bool) -> Matrix:
    """`X` with its features checked; where its rows can be read in blocks, values are checked as they are read."""
    X, least = on_host(X), 2 if reset else 1
    _check_numbers(X)
    if not has_row_blocks(X) or X.shape[0] < least or X.shape[1] == 0:
        # Python floats are float64
        dtype = np.float64 if isinstance(X, list | tuple) else [np.float32, np.float64]
        sparse: dict[str, Any] = {"accept_sparse": "csr", "accept_large_sparse": True}
        with _about_X():
            return validate_data(estimator, X, reset=reset, ensure_min_samples=least, dtype=dtype, **sparse)
    if (kind := getattr(X, "format", "csr")) != "csr":
        raise ValueError(
            f"X is stored on disk as {kind.upper()}, by columns, so its rows cannot be read in blocks: "
            "load it into memory, or store it as CSR."
        )
    return validate_data(estimator, X, reset=reset, skip_check_array=True)


def _check_numbers(X: Any) -> None:
    """Refuse text and dates, which numpy would turn into numbers, and damaged sparse matrices."""
    if sp.issparse(X):
        check_sparse(X, "X")
    dtypes = np.atleast_1d(getattr(X, "dtypes", getattr(X, "dtype", ())))  # a table has several
    if wrong := [dtype for dtype in dtypes if getattr(dtype, "kind", None) in ("U", "S", "M", "m")]:
        raise TypeError(f"X has dtype {wrong[0]}: give a matrix of numbers.")


@contextmanager
def _about_X() -> Iterator[None]:
    """Name the argument in the errors of scikit-learn."""
    try:
        yield
    except (TypeError, ValueError) as error:
        if "X " in str(error):
            raise
        raise (TypeError if isinstance(error, TypeError) else ValueError)(f"X cannot be used: {error}") from error


def checked(X: Matrix) -> Matrix:
    """`X` as float32 or float64, finite, dense or CSR; float64 is narrowed by the encoder, batch by batch."""
    dtypes = [np.float32, np.float64]
    X = check_array(X, estimator="VCC", input_name="X", accept_sparse="csr", accept_large_sparse=True, dtype=dtypes)
    if X.dtype == np.float64 and (largest := _largest(X)) > float(np.finfo(np.float32).max):
        raise ValueError(f"X has values up to {largest:.0e}, beyond single precision: scale X, or check its units.")
    return X


def _largest(X: Matrix) -> float:
    stored = X.data if sp.issparse(X) else X
    return float(max(np.max(stored, initial=0), -np.min(stored, initial=0)))


def values(X: Matrix, rows: np.ndarray | None) -> Matrix:
    """The rows to train on (None: all) in memory, checked."""
    X = checked(X if rows is None and in_memory(X) else computed(X[:]) if rows is None else take_rows(X, rows))
    largest = _largest(X)
    if largest and not 1e-15 < largest < 1e15:  # squares of distances have to be single precision
        raise ValueError(
            f"X has values of up to {largest:.0e}, too {'large' if largest > 1 else 'small'} to train on in "
            "single precision: scale X, for instance by its standard deviation."
        )
    return X
