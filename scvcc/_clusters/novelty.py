"""How unlike the training rows a row is: its distance to a sample of them in the encoder's last hidden layer.

The map itself cannot tell. The encoder sends every input to some place on it, often close to a center.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from sklearn.neighbors import NearestNeighbors

if TYPE_CHECKING:
    from numpy.random import Generator

SAMPLE = 2_000  # training rows kept
DIMENSIONS = 64  # of the random projection they are kept in; wide layers keep their distances in it
NEIGHBORS = 5
SAME_ROW = 1e-4  # of a usual distance; a row that is in the sample is not its own neighbor


@dataclass(frozen=True)
class Sample:
    """Training rows in the projected hidden layer, and the distance of each to its nearest others, sorted."""

    rows: np.ndarray  # (m, dim) float32
    distances: np.ndarray  # (m,) float32
    projection: np.ndarray  # (width of the hidden layer, dim) float32


def projection(width: int, rng: Generator) -> np.ndarray:
    """A random projection of the hidden layer; wide layers keep their distances in it."""
    wide = rng.normal(size=(width, DIMENSIONS)) / DIMENSIONS**0.5 if width > DIMENSIONS else np.eye(width)
    return wide.astype(np.float32)


def take_sample(Z: np.ndarray, projection: np.ndarray) -> Sample:
    """Measure how far apart training rows are in the projected hidden layer."""
    distances, _ = _search(Z).kneighbors()  # without an argument, a row is not its own neighbor
    return Sample(Z, np.sort(distances.mean(axis=1)).astype(np.float32), projection)


def novelty(sample: Sample, Z: np.ndarray) -> np.ndarray:
    """Share of the sample that is nearer to its neighbors than each row of `Z` is to them, (n,) from 0 to 1."""
    k = min(NEIGHBORS, len(sample.rows) - 1)
    distances, _ = _search(sample.rows).kneighbors(Z, k + 1)
    known = distances[:, 0] <= SAME_ROW * np.median(sample.distances)
    mean = np.where(known, distances[:, 1:].mean(axis=1), distances[:, :-1].mean(axis=1))
    return (np.searchsorted(sample.distances, mean.astype(np.float32)) / len(sample.distances)).astype(np.float32)


def _search(Z: np.ndarray) -> NearestNeighbors:
    return NearestNeighbors(n_neighbors=min(NEIGHBORS, len(Z) - 1), algorithm="brute").fit(Z)
