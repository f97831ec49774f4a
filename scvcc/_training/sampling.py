"""Edge sets: how often each edge is drawn, and random pairs that the graph does not connect."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import scipy.sparse as sp

if TYPE_CHECKING:
    from numpy.random import Generator

RATE_CAP = 50.0  # R⁻ has no upper bound in the paper and reaches 1e12 on gene expression
_ROUNDING = 1e-9  # equal weights have to give a rate of 1, however their mean is rounded


class Edges(NamedTuple):
    """The undirected edges of a latent graph, each once, with their shares in the two augmented edge sets."""

    head: np.ndarray  # (e,) int64, head < tail
    tail: np.ndarray  # (e,) int64
    boundary: np.ndarray  # (e,) float64, share of the edge in E⁻, sums to 1
    contraction: np.ndarray  # (e,) float64, share of the edge in E⁺, sums to 1


def boundary_rates(weights: np.ndarray, *, cap: float = RATE_CAP) -> np.ndarray:
    """R⁻ = ⌊F̃max / F̃⌋ (equation 4): weak edges, found at cluster borders, are drawn more often."""
    weights = np.asarray(weights, dtype=np.float64)
    return np.minimum(np.floor(weights.max() / weights + _ROUNDING), cap)


def contraction_rates(weights: np.ndarray) -> np.ndarray:
    """R⁺ = ⌊F̃ / F̃mean⌋ (equation 6): strong edges are drawn more often, those below the mean never."""
    weights = np.asarray(weights, dtype=np.float64)
    return np.floor(weights / weights.mean() + _ROUNDING)


def augmented_edges(graph: sp.csr_matrix) -> Edges:
    """The edges of a symmetric graph with the shares that duplicating them R⁻ and R⁺ times would give."""
    upper = sp.triu(graph, k=1, format="coo")
    minus, plus = boundary_rates(upper.data), contraction_rates(upper.data)
    return Edges(upper.row.astype(np.int64), upper.col.astype(np.int64), minus / minus.sum(), plus / plus.sum())


def sample_edges(share: np.ndarray, size: int, rng: Generator) -> np.ndarray:
    """Positions of `size` edges drawn with replacement in proportion to `share`."""
    cumulative = np.cumsum(share)
    return np.searchsorted(cumulative, rng.random(size) * cumulative[-1], side="right").clip(max=len(share) - 1)


def sample_disconnected_pairs(graph: sp.csr_matrix, size: int, rng: Generator) -> tuple[np.ndarray, np.ndarray]:
    """`size` uniform random pairs of different rows that share no edge (B*neg in the paper).

    Both arrays are empty if every pair is connected.
    """
    n = graph.shape[0]
    keys = _edge_keys(graph)
    if 2 * graph.nnz > n * (n - 1):  # most pairs are connected: list the others
        everything = np.arange(n * n)
        free = everything[~_related(keys, everything, n)]
        pairs = rng.choice(free, size) if len(free) else free
    else:
        pairs = np.empty(0, np.int64)
        while len(pairs) < size:
            drawn = rng.integers(n * n, size=2 * size)
            pairs = np.concatenate([pairs, drawn[~_related(keys, drawn, n)]])
    return pairs[:size] // n, pairs[:size] % n


def sample_neighbors(
    graph: sp.csr_matrix, points: np.ndarray, rates: np.ndarray, n_draws: int, rng: Generator
) -> np.ndarray:
    """For each of the rows `points`, `n_draws` neighbors drawn in proportion to the rates of its entries, (m, n_draws).

    A row whose rates are all zero gets itself.
    """
    cumulative = np.concatenate([[0.0], np.cumsum(rates)])
    first, last = graph.indptr[points], graph.indptr[points + 1]
    low, high = cumulative[first], cumulative[last]
    drawn = low[:, None] + rng.random((len(points), n_draws)) * (high - low)[:, None]
    place = np.searchsorted(cumulative, drawn, side="right") - 1
    place = np.minimum(place, np.maximum(last - 1, 0)[:, None])  # u can round up to the row's end
    return np.where((high > low)[:, None], graph.indices[place], points[:, None]).astype(np.int64)


def sample_strangers(
    graph: sp.csr_matrix, points: np.ndarray, n_draws: int, rng: Generator
) -> tuple[np.ndarray, np.ndarray]:
    """For each of the rows `points`, random rows (m, n_draws), and which of them are neither itself nor connected."""
    n = graph.shape[0]
    tails = rng.integers(n, size=(len(points), n_draws))
    related = _related(_edge_keys(graph), (points[:, None] * n + tails).ravel(), n)
    return tails, ~related.reshape(tails.shape)


def _edge_keys(graph: sp.csr_matrix) -> np.ndarray:
    """Head · n + tail of every entry: ascending, because the indices of a latent graph are sorted."""
    n = graph.shape[0]
    return np.repeat(np.arange(n, dtype=np.int64), np.diff(graph.indptr)) * n + graph.indices


def _related(keys: np.ndarray, drawn: np.ndarray, n: int) -> np.ndarray:
    """Which of the drawn keys join a row with itself or with a neighbor."""
    place = np.searchsorted(keys, drawn).clip(max=len(keys) - 1)
    return (drawn // n == drawn % n) | (keys[place] == drawn)
