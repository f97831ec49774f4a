"""A sketch: the part of many rows that is trained on, with sparse regions of the data drawn more often than dense ones."""

from collections.abc import Callable

import numpy as np
import scipy.sparse as sp
from numpy.random import Generator
from sklearn.cluster import kmeans_plusplus
from sklearn.decomposition import PCA, TruncatedSVD
from sklearn.preprocessing import normalize

from scvcc._model.rows import checked, over_blocks, take_rows
from scvcc._training.graph import Matrix, dense


def sketch(
    X: Matrix, size: int, *, metric: str = "euclidean", seed: int, batch: np.ndarray | None = None
) -> np.ndarray:
    """Ascending numbers of `size` different rows of `X`, which may be on disk; all of it is read once.

    Rows are grouped around landmarks that spread over the data, and drawn with a weight that falls with the square root
    of the size of their group: a compromise between a random sample and an even cover of the space, as in geometric
    sketching :cite:p:`geosketch`. Of every batch up to 100 rows are in the sketch, as far as half of it holds them.
    """
    rng = np.random.default_rng(seed)
    sample = checked(take_rows(X, _draw(np.ones(X.shape[0]), 20_000, rng)))
    group = _grouping(sample, metric, rng)
    groups = over_blocks(lambda rows: group(checked(rows)), X)
    weights = np.bincount(groups)[groups] ** -0.5
    if batch is not None:
        least = min(100, size // (2 * (int(batch.max()) + 1)))
        for code in range(int(batch.max()) + 1):
            rows = np.flatnonzero(batch == code)
            weights[rows[_draw(weights[rows], least, rng)]] = np.inf  # drawn for certain
    return _draw(weights, size, rng)


def _grouping(
    sample: Matrix, metric: str, rng: Generator, *, dimensions: int = 20, landmarks: int = 500, rows_each: int = 40
) -> Callable[[Matrix], np.ndarray]:
    """A function from rows to the nearest of at most 500 landmarks, each for 40 rows or more, in 20 dimensions."""
    seed = int(rng.integers(2**31))
    n_components = min(dimensions, *(size - 1 for size in sample.shape))
    space = TruncatedSVD if sp.issparse(sample) else PCA
    axes = space(n_components, random_state=seed).fit(_scaled(sample, metric)) if n_components > 1 else None

    def place(rows: Matrix) -> np.ndarray:
        rows = _scaled(rows, metric)
        return dense(rows) if axes is None else axes.transform(rows)

    Z = place(sample)
    count = max(min(landmarks, len(Z) // rows_each), 1)
    places, _ = kmeans_plusplus(Z, count, random_state=seed, n_local_trials=1)
    offset = np.square(places).sum(axis=1)
    return lambda rows: np.argmin(offset - 2 * place(rows) @ places.T, axis=1)


def _scaled(rows: Matrix, metric: str) -> Matrix:
    return normalize(rows) if metric == "cosine" else rows


def _draw(weights: np.ndarray, size: int, rng: Generator) -> np.ndarray:
    """`size` different rows, drawn one by one in proportion to their weights (Efraimidis & Spirakis 2006), ascending."""
    if size >= len(weights):
        return np.arange(len(weights))
    return np.sort(np.argpartition(rng.exponential(size=len(weights)) / weights, size)[:size])
