"""How well batches are mixed: the formulas of graph iLISI, kBET and graph connectivity as scib-metrics computes them."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components
from scipy.stats import chi2
from sklearn.neighbors import NearestNeighbors

LEAST = 10  # cells of a type in each of two batches, at least, where its mixing is judged


def scores(Z: np.ndarray, y: np.ndarray, batch: np.ndarray, n_neighbors: int = 90) -> dict[str, float]:
    """iLISI over all cells, kBET within types (mean), and connectivity of types in a graph of 15 neighbors."""
    n_neighbors = min(n_neighbors, len(Z) - 1)
    distances, near = NearestNeighbors(n_neighbors=n_neighbors).fit(Z).kneighbors()
    graph = sp.csr_matrix(
        (np.ones(15 * len(Z)), near[:, :15].ravel(), np.arange(0, 15 * len(Z) + 1, 15)), shape=(len(Z), len(Z))
    )
    values = {"ilisi": ilisi(distances, batch[near], batch), "connectivity": graph_connectivity(graph, y)}
    accepted = []
    for kind in np.unique(y):
        rows = y == kind
        own = batch[rows]
        rows[rows] = np.bincount(own)[own] >= LEAST
        if len(np.unique(batch[rows])) > 1:
            k = int(np.clip(rows.sum() // 4, 10, 50))
            found = NearestNeighbors(n_neighbors=min(k, rows.sum() - 1)).fit(Z[rows]).kneighbors(return_distance=False)
            accepted.append(kbet(batch[rows][found], batch[rows]))
    return {name: round(float(value), 4) for name, value in values.items()} | (
        {"kbet": round(float(np.mean(accepted)), 4)} if accepted else {}
    )


def neighbor_scores(Z: np.ndarray, y: np.ndarray, batch: np.ndarray, n_neighbors: int = 15) -> dict[str, float]:
    """Share of neighbors of the own type; and among these, the share from other batches, relative to that by chance.

    The second over cells of types that have `LEAST` cells in each of two batches, and of these cells only.
    """
    near = NearestNeighbors(n_neighbors=n_neighbors).fit(Z).kneighbors(return_distance=False)
    own = y[near] == y[:, None]
    count = np.zeros((y.max() + 1, batch.max() + 1))
    np.add.at(count, (y, batch), 1)
    count[count < LEAST] = 0
    chance = 1 - count[y, batch] / np.maximum(count.sum(axis=1)[y], 1)
    judged = own.any(axis=1) & (count[y, batch] > 0) & (chance > 0)
    foreign = (own & (batch[near] != batch[:, None])).sum(axis=1)[judged] / own[judged].sum(axis=1)
    scores = {"purity": round(float(own.mean()), 4)}
    return scores | ({"aligned": round(float(np.mean(foreign / chance[judged])), 4)} if judged.any() else {})


def ilisi(distances: np.ndarray, near: np.ndarray, batch: np.ndarray) -> float:
    """Median over cells of the inverse Simpson index of the neighbors' batches, from 0 (one batch) to 1 (all alike).

    `near` (n, k) holds the batches of the neighbors. Neighbors count by exp(−b · distance), with b such that the
    perplexity is a third of their number (Korsunsky et al. 2019).
    """
    weight = neighbor_weights(distances, max(2, distances.shape[1] // 3))
    simpson = sum(((near == b) * weight).sum(axis=1) ** 2 for b in np.unique(batch))
    return float((np.median(1 / simpson) - 1) / (len(np.unique(batch)) - 1))


def neighbor_weights(distances: np.ndarray, perplexity: float) -> np.ndarray:
    """Rows (n, k) of exp(−b · distance) that sum to 1 and have this perplexity, b found by bisection for each row."""
    low, high = np.zeros(len(distances)), np.full(len(distances), np.inf)
    rate, shifted = np.ones(len(distances)), distances - distances.min(axis=1, keepdims=True)
    for _ in range(50):
        weight = np.exp(-shifted * rate[:, None])
        weight /= weight.sum(axis=1, keepdims=True)
        entropy = -(weight * np.log(np.maximum(weight, 1e-300))).sum(axis=1)
        flat = entropy > np.log(perplexity)
        low, high = np.where(flat, rate, low), np.where(flat, high, rate)
        rate = np.where(np.isinf(high), 2 * rate, (low + np.where(np.isinf(high), 0, high)) / 2)
    return weight


def kbet(near: np.ndarray, batch: np.ndarray, alpha: float = 0.05) -> float:
    """Share of cells whose neighbors' batches (n, k) a χ² test does not tell from those of all cells (Büttner et al. 2019)."""
    names, count = np.unique(batch, return_counts=True)
    expected = count / len(batch) * near.shape[1]
    observed = np.stack([(near == b).sum(axis=1) for b in names], axis=1)
    statistic = ((observed - expected) ** 2 / expected).sum(axis=1)
    return float((chi2.sf(statistic, len(names) - 1) >= alpha).mean())


def graph_connectivity(graph: sp.csr_matrix, labels: np.ndarray) -> float:
    """Mean over types of the share of cells in the type's largest strongly connected component (Luecken et al. 2022)."""
    shares = []
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        part = connected_components(graph[rows][:, rows], connection="strong")[1]
        shares.append(np.bincount(part).max() / len(rows))
    return float(np.mean(shares))
