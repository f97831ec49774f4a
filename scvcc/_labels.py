"""Centres and labels: candidate partitions, how the latent graph judges them, and soft assignment to centres."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import logsumexp
from sklearn.cluster import KMeans

if TYPE_CHECKING:
    from collections.abc import Iterator

    import scipy.sparse as sp
    from numpy.random import Generator

logger = logging.getLogger(__name__)

RESOLUTION = 0.75  # of the modularity that judges candidates; 1 asks for clusters too even in size
KMEANS_ROWS = 20_000  # k-means starts look at this many rows at most
N_STARTS = 20


class ClusterGraph:
    """A latent graph with its weights summed between the clusters of a fine partition."""

    def __init__(self, graph: sp.csr_matrix, labels: np.ndarray) -> None:
        k = int(labels.max()) + 1
        heads = np.repeat(labels, np.diff(graph.indptr))
        pairs = heads * k + labels[graph.indices]
        between = np.bincount(pairs, weights=graph.data, minlength=k * k).reshape(k, k)
        self.share = between / between.sum()  # (k, k), diagonal: inside
        self.volume = self.share.sum(axis=1)  # (k,)

    def modularity(self, resolution: float = 1.0) -> float:
        """Share of weight inside clusters less what chance would give (Reichardt & Bornholdt 2006)."""
        return float(np.trace(self.share) - resolution * np.square(self.volume).sum())

    def merge_order(self, resolution: float = 1.0) -> Iterator[tuple[int, int, float]]:
        """Greedy merges (kept, absorbed, gain of modularity), best first, down to a single cluster."""
        share, volume = self.share.copy(), self.volume.copy()
        gain = 2 * (share - resolution * np.outer(volume, volume))
        np.fill_diagonal(gain, -np.inf)
        for _ in range(len(volume) - 1):
            kept, absorbed = sorted(np.unravel_index(np.argmax(gain), gain.shape))
            yield int(kept), int(absorbed), float(gain[kept, absorbed])
            share[kept] += share[absorbed]
            share[:, kept] += share[:, absorbed]
            volume[kept] += volume[absorbed]
            gain[kept] = gain[:, kept] = 2 * (share[kept] - resolution * volume[kept] * volume)
            gain[kept, kept] = -np.inf
            volume[absorbed] = 0
            share[absorbed] = share[:, absorbed] = 0
            gain[absorbed] = gain[:, absorbed] = -np.inf


def merge_clusters(
    graph: sp.csr_matrix, labels: np.ndarray, n_clusters: int | None, *, resolution: float = 1.0
) -> np.ndarray:
    """Merge a fine partition down to `n_clusters`, or, if None, for as long as modularity gains."""
    parent = np.arange(labels.max() + 1)
    remaining = len(parent)
    for kept, absorbed, gain in ClusterGraph(graph, labels).merge_order(resolution):
        if remaining == (n_clusters or 2) or (n_clusters is None and gain <= 0):
            break
        parent[parent == absorbed] = kept
        remaining -= 1
    return compact(parent[labels])


def compact(labels: np.ndarray) -> np.ndarray:
    """Renumber labels 0 … K−1 without gaps."""
    return np.unique(labels, return_inverse=True)[1].reshape(-1)


def by_size(labels: np.ndarray, n_clusters: int) -> np.ndarray:
    """Order of clusters by decreasing size; ties keep their order."""
    return np.argsort(-np.bincount(labels, minlength=n_clusters), kind="stable")


def kmeans_labels(H: np.ndarray, n_clusters: int, rng: Generator, *, init: np.ndarray | None = None) -> np.ndarray:
    """One k-means run, on a random part of the rows where there are many."""
    start = {"init": "k-means++"} if init is None else {"init": init}
    model = KMeans(n_clusters, n_init=1, random_state=int(rng.integers(2**31)), **start)
    if len(H) <= KMEANS_ROWS:
        return model.fit(H).labels_.astype(np.int64)
    return model.fit(H[rng.choice(len(H), KMEANS_ROWS, replace=False)]).predict(H).astype(np.int64)


def cluster_means(H: np.ndarray, labels: np.ndarray, n_clusters: int) -> np.ndarray:
    """Mean of each cluster, (K, dim)."""
    sums = np.stack([np.bincount(labels, weights=column, minlength=n_clusters) for column in H.T], axis=1)
    return sums / np.maximum(np.bincount(labels, minlength=n_clusters), 1)[:, None]


def cluster_medians(H: np.ndarray, labels: np.ndarray, n_clusters: int) -> np.ndarray:
    """Coordinate-wise median of each cluster, (K, dim); of all points for an empty one."""
    return np.stack([np.median(H[labels == k] if (labels == k).any() else H, axis=0) for k in range(n_clusters)])


def candidate_partitions(H: np.ndarray, graph: sp.csr_matrix, n_clusters: int, rng: Generator) -> Iterator[np.ndarray]:
    """Partitions of `H` into `n_clusters`: k-means starts, and finer k-means runs merged along the graph."""
    for _ in range(N_STARTS):
        yield compact(kmeans_labels(H, n_clusters, rng))
    for factor in (1.5, 2, 3) * 2:
        fine = compact(kmeans_labels(H, min(int(np.ceil(factor * n_clusters)), len(H)), rng))
        for resolution in (1.0, 0.5):
            merged = merge_clusters(graph, fine, n_clusters, resolution=resolution)
            means = cluster_means(H, merged, merged.max() + 1)
            yield compact(kmeans_labels(H, len(means), rng, init=means))


def choose_partition(H: np.ndarray, graph: sp.csr_matrix, n_clusters: int, rng: Generator) -> np.ndarray:
    """The candidate with the highest modularity on the latent graph; k-means' own inertia is a poor judge."""
    candidates = list(candidate_partitions(H, graph, n_clusters, rng))
    full = [labels for labels in candidates if labels.max() + 1 == n_clusters]
    return max(full or candidates, key=lambda labels: ClusterGraph(graph, labels).modularity(RESOLUTION))


def estimate_partition(H: np.ndarray, graph: sp.csr_matrix, rng: Generator) -> np.ndarray:
    """A partition of unknown size: many micro-clusters, merged for as long as modularity gains."""
    n_micro = int(np.clip(len(H) // 20, 2, 100))
    return merge_clusters(graph, compact(kmeans_labels(H, n_micro, rng)), None, resolution=0.5)


def nearest_center(H: np.ndarray, centers: np.ndarray) -> np.ndarray:
    """Index of the nearest centre of each row: the hard form of the soft assignment."""
    return squared_distances(H, centers).argmin(axis=1)


def squared_distances(H: np.ndarray, centers: np.ndarray) -> np.ndarray:
    """Squared distances (n, K), exact also where a point sits on a centre."""
    H, centers = np.asarray(H, np.float64), np.asarray(centers, np.float64)
    total = np.zeros((len(H), len(centers)))
    for column, center in zip(H.T, centers.T, strict=True):  # n × K at a time, never n × K × dim
        total += np.square(column[:, None] - center[None, :])
    return total


def assignment_probabilities(H: np.ndarray, centers: np.ndarray, sharpness: float = 1.0) -> np.ndarray:
    """Soft assignment Q (n, K) to the power of `sharpness`, rows sum to one."""
    logits = -sharpness * np.log1p(squared_distances(H, centers))
    logits -= logits.max(axis=1, keepdims=True)
    probabilities = np.exp(logits)
    return probabilities / probabilities.sum(axis=1, keepdims=True)


def calibrate_sharpness(
    H: np.ndarray, centers: np.ndarray, labels: np.ndarray, graph: sp.csr_matrix, rng: Generator
) -> float:
    """Power of Q that best predicts the label of a random graph neighbour: one number, found without ground truth.

    Student-t assignments among K centres are far from certain even at a centre, since every other centre keeps a share.
    With this power, a probability of .9 means that about nine in ten neighbours of such points carry that label.
    """
    entries = rng.choice(graph.nnz, min(graph.nnz, 50_000), replace=False)
    heads = np.searchsorted(graph.indptr, entries, side="right") - 1
    neighbour_labels, weights = labels[graph.indices[entries]], graph.data[entries]
    logits = -np.log1p(squared_distances(H[heads], centers))

    def neighbour_surprise(log_sharpness: float) -> float:
        scaled = np.exp(log_sharpness) * logits
        chosen = scaled[np.arange(len(scaled)), neighbour_labels]
        return float(np.average(logsumexp(scaled, axis=1) - chosen, weights=weights))

    return float(np.exp(minimize_scalar(neighbour_surprise, bounds=(-2.0, 4.0), method="bounded").x))


def fill_empty_clusters(H: np.ndarray, centers: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Move the centre of a cluster that lost all its points back to the points it was made for; else drop it."""
    K = len(centers)
    counts = np.bincount(nearest_center(H, centers), minlength=K)
    if (counts == 0).any():
        homes = cluster_medians(H, labels, K)
        centers = np.where((counts == 0)[:, None], homes, centers)
        counts = np.bincount(nearest_center(H, centers), minlength=K)
    if (counts == 0).any():
        logger.warning("%d of %d clusters are empty and were dropped.", (counts == 0).sum(), K)
    return centers[counts > 0]
