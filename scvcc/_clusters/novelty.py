"""How unlike the training rows a row is: its distance to a sample of them in the encoder's last hidden layer.

The map itself does not show it: the encoder sends every input to some point of it, often close to a center.
"""

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from sklearn.neighbors import NearestNeighbors


@dataclass(frozen=True)
class Sample:
    """Training rows in the projected hidden layer, and the distance of each to its nearest others, sorted."""

    rows: np.ndarray  # (m, dim) float32
    distances: np.ndarray  # (m,) float32
    projection: np.ndarray  # (width of the hidden layer, dim) float32


def projection(width: int, rng: Generator, most: int = 64) -> np.ndarray:
    """Random projection of a hidden layer to at most 64 dimensions, (width, dim); wide layers keep their distances in it."""
    matrix = np.eye(width) if width <= most else rng.normal(size=(width, most)) / most**0.5
    return matrix.astype(np.float32)


def take_sample(Z: np.ndarray, projection: np.ndarray) -> Sample:
    """The rows of `Z`, projected, with the distances that are usual among them."""
    distances, _ = _search(Z).kneighbors()  # without an argument, a row is not its own neighbor
    return Sample(Z, np.sort(distances.mean(axis=1)).astype(np.float32), projection)


def novelty(sample: Sample, Z: np.ndarray) -> np.ndarray:
    """Share of the sample that is nearer to its neighbors than each row of `Z` is to them, (n,) from 0 to 1."""
    search = _search(sample.rows)
    distances, _ = search.kneighbors(Z, search.n_neighbors + 1)
    is_known = distances[:, 0] <= 1e-4 * np.median(sample.distances)  # a sampled row is not its own neighbor
    mean = np.where(is_known, distances[:, 1:].mean(axis=1), distances[:, :-1].mean(axis=1))
    return (np.searchsorted(sample.distances, mean.astype(np.float32)) / len(sample.distances)).astype(np.float32)


def _search(Z: np.ndarray) -> NearestNeighbors:
    return NearestNeighbors(n_neighbors=min(5, len(Z) - 1), algorithm="brute").fit(Z)
