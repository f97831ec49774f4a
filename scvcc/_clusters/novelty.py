"""How unlike the training rows a row is: its distance to a sample of them in the encoder's last hidden layer.

The map itself cannot tell. The encoder sends every input to some place on it, often close to a center.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from sklearn.neighbors import NearestNeighbors
from torch import nn

from scvcc._training.encoder import BLOCK

if TYPE_CHECKING:
    from numpy.random import Generator

    from scvcc._training.encoder import Encoder, Rows

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


def take_sample(encoder: Encoder, rows: Rows, rng: Generator) -> Sample:
    """Draw training rows and measure how far apart they are."""
    chosen = np.sort(rng.choice(len(rows), min(SAMPLE, len(rows)), replace=False))
    width = encoder.head.in_features
    projection = np.eye(width) if width <= DIMENSIONS else rng.normal(size=(width, DIMENSIONS)) / DIMENSIONS**0.5
    projection = projection.astype(np.float32)
    Z = embed(encoder, rows, projection, chosen)[1]
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


@torch.no_grad()
def embed(
    encoder: Encoder, rows: Rows, projection: np.ndarray, index: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Embedding, and projected hidden layer, of the chosen rows, in blocks of one size as in `encode`."""
    device = encoder.center.device
    chosen, onto = np.arange(len(rows)) if index is None else index, torch.from_numpy(projection).to(device)
    places, hidden = [], []
    for start in range(0, len(chosen), BLOCK):
        x = rows[torch.from_numpy(chosen[start : start + BLOCK]).to(device)]
        padded = nn.functional.pad(x, (0, 0, 0, BLOCK - len(x)))
        features = encoder.hidden((padded - encoder.center) / encoder.scale)
        places.append(encoder.head(features)[: len(x)].cpu().numpy())
        hidden.append((features @ onto)[: len(x)].cpu().numpy())
    return np.concatenate(places), np.concatenate(hidden)
