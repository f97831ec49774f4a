"""A sketch: the part of many rows that is trained on, with sparse regions of the data drawn more often than dense ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse as sp
from sklearn.cluster import kmeans_plusplus
from sklearn.decomposition import PCA, TruncatedSVD
from sklearn.preprocessing import normalize

from scvcc._model.rows import over_blocks, take_rows

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.random import Generator

    from scvcc._training.graph import Matrix

SAMPLE = 20_000  # rows that the projection and the landmarks are learned from
DIMENSIONS = 20  # of the space in which rows are grouped around landmarks
LANDMARKS, ROWS_PER_LANDMARK = 500, 40  # at most; at least, on average
POWER = 0.5  # a row counts as (size of its group) ** −POWER: 0 draws all alike, 1 all groups alike


def sketch(
    X: Matrix, size: int, *, metric: str = "euclidean", seed: int, checked: Callable[[Matrix], Matrix] = lambda X: X
) -> np.ndarray:
    """Ascending numbers of `size` different rows of `X`, which may be on disk; all of it is read once.

    Rows are grouped around landmarks that spread over the data, and drawn with a weight that falls with the square root
    of the size of their group: a compromise between a random sample and an even cover of the space, as in geometric
    sketching :cite:p:`geosketch`. `checked` is applied to every block of rows that is read.
    """
    rng = np.random.default_rng(seed)
    n = X.shape[0]
    group = _grouping(checked(take_rows(X, _draw(np.ones(n), SAMPLE, rng))), metric, rng)
    groups = over_blocks(lambda rows: group(checked(rows)), X)
    return _draw(np.bincount(groups)[groups] ** -POWER, size, rng)


def _grouping(sample: Matrix, metric: str, rng: Generator) -> Callable[[Matrix], np.ndarray]:
    """A function from rows to the landmarks that are nearest to them, in a space of few dimensions."""
    seed = int(rng.integers(2**31))
    n_components = min(DIMENSIONS, *(size - 1 for size in sample.shape))
    space = TruncatedSVD if sp.issparse(sample) else PCA
    axes = space(n_components, random_state=seed).fit(_scaled(sample, metric)) if n_components > 1 else None

    def place(rows: Matrix) -> np.ndarray:
        rows = _scaled(rows, metric)
        if axes is not None:
            return axes.transform(rows)
        return rows.toarray() if isinstance(rows, sp.spmatrix | sp.sparray) else rows

    Z = place(sample)
    count = max(min(LANDMARKS, len(Z) // ROWS_PER_LANDMARK), 1)
    landmarks, _ = kmeans_plusplus(Z, count, random_state=seed, n_local_trials=1)
    offset = np.square(landmarks).sum(axis=1)
    return lambda rows: np.argmin(offset - 2 * place(rows) @ landmarks.T, axis=1)


def _scaled(rows: Matrix, metric: str) -> Matrix:
    return normalize(rows) if metric == "cosine" else rows


def _draw(weights: np.ndarray, size: int, rng: Generator) -> np.ndarray:
    """`size` different rows, drawn one by one in proportion to their weights (Efraimidis & Spirakis 2006), ascending."""
    if size >= len(weights):
        return np.arange(len(weights))
    return np.sort(np.argpartition(rng.exponential(size=len(weights)) / weights, size)[:size])
