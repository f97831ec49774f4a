"""Edge sets: how often each edge is drawn, and random pairs that the graph does not connect."""

from typing import NamedTuple, TypeAlias

import numpy as np
import scipy.sparse as sp
from numpy.random import Generator

Pairs: TypeAlias = tuple[np.ndarray, np.ndarray]  # heads and tails


class Edges(NamedTuple):
    """The undirected edges of a latent graph, each once, with their shares in the two augmented edge sets."""

    head: np.ndarray  # (e,) int64, head < tail
    tail: np.ndarray  # (e,) int64
    boundary: np.ndarray  # (e,) float64, share of the edge in E⁻, sums to 1
    contraction: np.ndarray  # (e,) float64, share of the edge in E⁺, sums to 1


def boundary_rates(weights: np.ndarray, *, cap: float = 50.0) -> np.ndarray:
    """R⁻ = ⌊F̃max / F̃⌋ (equation 4): weak edges, found at cluster borders, are drawn more often.

    The paper has no cap; without one, rates reach 1e12 on gene expression.
    """
    weights = np.asarray(weights, dtype=np.float64)
    return np.minimum(np.floor(weights.max() / weights + 1e-9), cap)  # 1e-9: equal weights give 1, however rounded


def contraction_rates(weights: np.ndarray) -> np.ndarray:
    """R⁺ = ⌊F̃ / F̃mean⌋ (equation 6): strong edges are drawn more often, those below the mean never."""
    weights = np.asarray(weights, dtype=np.float64)
    return np.floor(weights / weights.mean() + 1e-9)


def augmented_edges(graph: sp.csr_matrix) -> Edges:
    """The edges of a symmetric graph with the shares that duplicating them R⁻ and R⁺ times would give."""
    upper = sp.triu(graph, k=1, format="coo")
    minus, plus = boundary_rates(upper.data), contraction_rates(upper.data)
    return Edges(upper.row.astype(np.int64), upper.col.astype(np.int64), minus / minus.sum(), plus / plus.sum())


def draw_pairs(edges: Edges, graph: sp.csr_matrix, size: int, rng: Generator) -> tuple[Pairs, Pairs, Pairs]:
    """`size` edges drawn from E⁻, as many from E⁺, and as many disconnected pairs."""
    minus, plus = (rng.choice(len(share), size, p=share) for share in (edges.boundary, edges.contraction))
    apart = sample_disconnected_pairs(graph, size, rng)
    return (edges.head[minus], edges.tail[minus]), (edges.head[plus], edges.tail[plus]), apart


def sample_disconnected_pairs(graph: sp.csr_matrix, size: int, rng: Generator) -> Pairs:
    """`size` uniform random pairs of different rows that share no edge (B*neg in the paper); none if all do."""
    n = graph.shape[0]
    if 2 * graph.nnz > n * (n - 1):  # most pairs are connected: list the others
        free = np.flatnonzero(~_are_related(graph, *np.divmod(np.arange(n * n), n)))
        pairs = rng.choice(free, size) if len(free) else free
    else:
        pairs = np.empty(0, np.int64)
        while len(pairs) < size:
            drawn = rng.integers(n * n, size=2 * size)
            pairs = np.concatenate([pairs, drawn[~_are_related(graph, *np.divmod(drawn, n))]])
    return np.divmod(pairs[:size], n)


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
    entries = np.searchsorted(cumulative, drawn, side="right") - 1
    entries = np.minimum(entries, np.maximum(last - 1, 0)[:, None])  # u can round up to the row's end
    return np.where((high > low)[:, None], graph.indices[entries], points[:, None]).astype(np.int64)


def sample_strangers(
    graph: sp.csr_matrix, points: np.ndarray, n_draws: int, rng: Generator
) -> tuple[np.ndarray, np.ndarray]:
    """For each of the rows `points`, random rows (m, n_draws), and which of them are neither itself nor connected."""
    tails = rng.integers(graph.shape[0], size=(len(points), n_draws))
    related = _are_related(graph, np.repeat(points, n_draws), tails.ravel())
    return tails, ~related.reshape(tails.shape)


def _are_related(graph: sp.csr_matrix, heads: np.ndarray, tails: np.ndarray) -> np.ndarray:
    """Which pairs are of a row with itself or with a neighbor."""
    return (heads == tails) | (np.asarray(graph[heads, tails]).ravel() != 0)
