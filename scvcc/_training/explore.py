"""What the coordinates alone can tell, without an encoder: numbers of clusters, and what recurs on parts of the points."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from sklearn.metrics import adjusted_rand_score

from scvcc._clusters import labels as _labels
from scvcc._training.monitor import Monitor
from scvcc._training.recipe import STRUCTURE_STEPS, Gauge, find_clusters, optimize_structure

if TYPE_CHECKING:
    from collections.abc import Iterator

    import scipy.sparse as sp
    from numpy.random import Generator

    from scvcc._training.settings import Settings


def suggest_counts(
    graph: sp.csr_matrix,
    settings: Settings,
    seed: int,
    *,
    limits: tuple[int, int],
    n_runs: int,
    share: float,
    progress: bool,
) -> tuple[dict[str, np.ndarray], int]:
    """Columns of a table with one row for each number of clusters, and the number that training would choose."""
    with Monitor((1 + n_runs) * STRUCTURE_STEPS, show=progress) as monitor:
        H, rng = structure(graph, settings, seed, monitor)
        fine, counts = _labels.score_counts(H, graph, rng, limits=limits, min_size=settings.min_cluster_size)
        if not counts:
            raise ValueError(f"k_range={limits} is out of reach: {graph.shape[0]} points have too few small clusters.")
        agreement = np.full((n_runs, len(counts)), np.nan)
        for run, (points, part) in enumerate(parts(graph, n_runs, share, seed)):
            H, rng = structure(part, settings, seed + 1 + run, monitor)
            least = max(round(share * settings.min_cluster_size), 1)
            part_fine, found = _labels.score_counts(H, part, rng, limits=limits, min_size=least)
            for column, k in enumerate(counts):
                if k in found:
                    whole = counts[k].parent[fine[points]]
                    agreement[run, column] = adjusted_rand_score(whole, found[k].parent[part_fine])
    table = {"n_clusters": np.array(list(counts))}
    for name in ("score", "cut", "smallest", "largest", "eligible"):
        table[name] = np.array([getattr(count, name) for count in counts.values()])
    if n_runs:
        known = np.isfinite(agreement)
        mean = np.where(known, agreement, 0).sum(axis=0) / np.maximum(known.sum(axis=0), 1)
        table["reproducibility"] = np.where(known.any(axis=0), mean, np.nan)
    return table, _labels.best_count(counts)


def recurrence(
    graph: sp.csr_matrix,
    labels: np.ndarray,
    settings: Settings,
    seed: int,
    *,
    n_runs: int,
    share: float,
    progress: bool,
) -> tuple[np.ndarray, np.ndarray]:
    """How well clusters come back when random parts of the points are clustered anew.

    Returns the Jaccard index of each cluster with the best match of each run, (n_runs, K), and for each point the mean
    index of its cluster with the one it falls into, (n,). NaN where a run holds nothing of a cluster, or no run a point.
    """
    K = int(labels.max()) + 1
    settings = replace(settings, n_clusters=K)
    best, total, draws = np.full((n_runs, K), np.nan), np.zeros(len(labels)), np.zeros(len(labels))
    with Monitor(n_runs * STRUCTURE_STEPS, show=progress) as monitor:
        for run, (points, part) in enumerate(parts(graph, n_runs, share, seed)):
            H, rng = structure(part, settings, seed + 1 + run, monitor)
            found = find_clusters(H, part, settings, rng)
            index = jaccard(labels[points], found, K)
            present = np.bincount(labels[points], minlength=K) > 0
            best[run, present] = index.max(axis=1)[present]
            total[points] += index[labels[points], found]
            draws[points] += 1
    return best, np.divide(total, draws, out=np.full(len(labels), np.nan), where=draws > 0)


def structure(graph: sp.csr_matrix, settings: Settings, seed: int, monitor: Monitor) -> tuple[np.ndarray, Generator]:
    """Coordinates in many dimensions as `train` makes them from this seed, and the generator as it is then."""
    rng = np.random.default_rng(seed)
    rng.integers(2**31)  # what `train` draws for the weights of the encoder
    gauge = Gauge(graph, settings, rng)
    return optimize_structure(graph, settings, gauge, rng, monitor)[1], rng


def parts(graph: sp.csr_matrix, n_runs: int, share: float, seed: int) -> Iterator[tuple[np.ndarray, sp.csr_matrix]]:
    """Random shares of the points, in order, and the graph between them; points are left out in turn."""
    n, rng = graph.shape[0], np.random.default_rng(seed)
    left_out = n - max(round(share * n), 2)
    order = rng.permutation(n)
    for _ in range(n_runs):
        if len(order) < left_out:
            order = rng.permutation(n)
        points = np.setdiff1d(np.arange(n), order[:left_out])
        order = order[left_out:]
        part = graph[points][:, points]
        if part.nnz == 0:
            raise ValueError(f"share={share} leaves {len(points)} points without an edge between them: raise it.")
        part.sort_indices()
        yield points, part


def jaccard(a: np.ndarray, b: np.ndarray, n_clusters: int) -> np.ndarray:
    """Points in both clusters over points in any of the two, for each pair of clusters of two partitions, (K, K′)."""
    size = int(b.max()) + 1
    both = np.bincount(a * size + b, minlength=n_clusters * size).reshape(n_clusters, size)
    either = both.sum(axis=1, keepdims=True) + both.sum(axis=0, keepdims=True) - both
    return both / np.maximum(either, 1)
