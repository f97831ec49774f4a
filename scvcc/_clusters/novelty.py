"""How unlike the training rows a row is: its distance to a sample of them in the encoder's second hidden layer.

The map itself does not show it: the encoder sends every input to some point of it, often close to a center. Clusters differ
in how dense they are, so distances are relative to those in the cluster that a row is given. New rows are judged by training
rows that have been moved to where new ones would be.
"""

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from scipy.special import ndtri
from sklearn.neighbors import NearestNeighbors

COMPANIONS = 30  # rows of a query that a row is pooled with


@dataclass(frozen=True)
class Sample:
    """Training rows in the projected hidden layer, and the distances that are usual for rows of known kinds."""

    rows: np.ndarray  # (m, dim)
    projection: np.ndarray  # (width of the hidden layer, dim)
    middle: np.ndarray  # (K,) median of the log distances in each cluster
    spread: np.ndarray  # (K,) their interquartile range
    scores: np.ndarray  # (m,) relative distances that new rows would have, sorted
    pooled: np.ndarray  # (m,) the same, pooled with companions; zeros where rows are not to be pooled


@dataclass(frozen=True)
class Companions:
    """Some rows of a query in the projected hidden layer, and their novelty."""

    rows: np.ndarray  # (c, dim)
    novelty: np.ndarray  # (c,)


def projection(width: int, rng: Generator, most: int = 64) -> np.ndarray:
    """Random projection of a hidden layer to at most 64 dimensions, (width, dim); wide layers keep their distances in it."""
    matrix = np.eye(width) if width <= most else rng.normal(size=(width, most)) / most**0.5
    return matrix.astype(np.float32)


def expected_shrinkage(variance: np.ndarray, total: float, n_rows: int, n_variables: int) -> np.ndarray:
    """How much nearer to the mean new rows come on each component of a PCA than the rows it was computed from.

    A component fits the noise of its own rows too. How much follows from the variances of the components and the total
    variance of the variables by the theory of spiked covariances :cite:p:`spiked`.
    """
    aspect = n_variables / n_rows
    noise = max(total - variance.sum(), 1e-12 * total) / n_variables
    for _ in range(20):  # the noise is what is left without the variances behind the components
        b = variance + noise - aspect * noise
        is_signal = variance > (1 + aspect**0.5) ** 2 * noise
        true = np.where(is_signal, (b + np.sqrt(np.maximum(b**2 - 4 * variance * noise, 0))) / 2, noise)
        noise = max(total - (true - noise).sum(), 1e-12 * total) / n_variables
    strength = np.maximum(true / noise - 1, 1e-12)
    alignment = np.where(is_signal, np.clip(1 - aspect / strength**2, 0, None) / (1 + aspect / strength), 0)
    return np.sqrt((noise + (true - noise) * alignment) / variance).clip(0, 1)


def take_sample(
    Z: np.ndarray, labels: np.ndarray, moved: np.ndarray, moved_labels: np.ndarray, projection: np.ndarray, K: int
) -> Sample:
    """The rows `Z` of the projected hidden layer, with the distances that are usual among them.

    `moved` are the same rows where new ones like them would be.
    """
    own = np.arange(len(Z))
    middle, spread = _usual(_log_distance(Z, Z, own), labels, K)
    relative = (_log_distance(Z, moved, own) - middle[moved_labels]) / spread[moved_labels]
    scores = np.sort(relative.astype(np.float32))
    companions = Companions(moved, _share_below(scores, relative))
    pooled = _pooled_scores(companions, moved, companions.novelty, len(scores))
    return Sample(Z, projection, middle, spread, scores, np.sort(pooled))


def novelty(sample: Sample, Z: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Share of rows of known kinds that lie nearer to the training rows than each row of `Z`, as its cluster goes, (n,)."""
    relative = (_log_distance(sample.rows, Z) - sample.middle[labels]) / sample.spread[labels]
    return _share_below(sample.scores, relative)


def pool(sample: Sample, companions: Companions, Z: np.ndarray, novelty: np.ndarray) -> np.ndarray:
    """Novelty of the rows `Z` of a query, pooled with that of their nearest companions, if that is wanted and there are enough."""
    if len(companions.rows) <= COMPANIONS or not sample.pooled.any():
        return novelty
    return _share_below(sample.pooled, _pooled_scores(companions, Z, novelty, len(sample.pooled)))


def _usual(distance: np.ndarray, labels: np.ndarray, K: int, steady: int = 30) -> tuple[np.ndarray, np.ndarray]:
    """Median and interquartile range in each cluster, drawn to those of all rows if it has few: fewer than `steady`."""
    low, middle, high = np.quantile(distance, [0.25, 0.5, 0.75])
    found = np.tile(np.array([middle, max(high - low, 1e-3)]), (K, 1))
    for k in np.unique(labels):
        own = distance[labels == k]
        low, middle, high = np.quantile(own, [0.25, 0.5, 0.75])
        found[k] += len(own) / (len(own) + steady) * (np.array([middle, high - low]) - found[k])
    found[:, 1] = np.maximum(found[:, 1], 0.2 * found[:, 1].mean())
    return found[:, 0].astype(np.float32), found[:, 1].astype(np.float32)


def _pooled_scores(
    companions: Companions, Z: np.ndarray, novelty: np.ndarray, m: int, weight: float = 0.8
) -> np.ndarray:
    """Mean of the normal score of each row and those of its companions, which have this `weight`."""
    near = _nearest(companions.rows, Z, COMPANIONS)[1]
    own, others = (ndtri(np.clip(share, 0.5 / m, 1 - 0.5 / m)) for share in (novelty, companions.novelty))
    return ((1 - weight) * own + weight * others[near].mean(axis=1)).astype(np.float32)


def _log_distance(rows: np.ndarray, Z: np.ndarray, own: np.ndarray | None = None, k: int = 15) -> np.ndarray:
    """Log of the mean distance of each row of `Z` to the `k` nearest of `rows`."""
    return np.log(np.maximum(_nearest(rows, Z, k, own)[0].mean(axis=1), 1e-9))


def _nearest(rows: np.ndarray, Z: np.ndarray, k: int, own: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Distances and numbers of the `k` nearest `rows`, (n, k) each; a row is not its own neighbor.

    `own` says which of `rows` each row is. Without it, one in the same place is taken for the same.
    """
    k = min(k, len(rows) - 1)
    distances, numbers = NearestNeighbors(n_neighbors=k + 1, algorithm="brute").fit(rows).kneighbors(Z)
    if own is None:
        is_own = distances <= 1e-3 * distances[:, -1:]
        is_own[:, 1:] = False
    else:
        is_own = numbers == own[:, None]
    is_own[~is_own.any(axis=1), -1] = True
    return distances[~is_own].reshape(-1, k), numbers[~is_own].reshape(-1, k)


def _share_below(known: np.ndarray, values: np.ndarray) -> np.ndarray:
    return (np.searchsorted(known, values.astype(np.float32)) / len(known)).astype(np.float32)
