"""Cluster counts and stability, without an encoder."""

from collections.abc import Iterator
from dataclasses import replace
from typing import TypeAlias

import numpy as np
import scipy.sparse as sp
from sklearn.metrics import adjusted_rand_score

from scvcc._clusters.counts import Count, best_count, score_counts
from scvcc._clusters.evidence import Points
from scvcc._training.forks import check_kernels
from scvcc._training.layout import STRUCTURE_STEPS, optimize_structure
from scvcc._training.monitor import Monitor
from scvcc._training.recipe import find_clusters, keep_supported
from scvcc._training.run import Run, stream
from scvcc._training.settings import Settings
from scvcc._training.threads import threads

Limits: TypeAlias = tuple[int, int]  # lowest and highest number of clusters


def suggest_counts(
    points: Points, settings: Settings, seed: int, *, limits: Limits, n_runs: int, share: float, progress: bool
) -> tuple[dict[str, np.ndarray], int, bool]:
    """Columns of a table with one row for each number of clusters, the number that training would choose, and its support.

    Without any, training would choose a single cluster.
    """
    check_kernels()
    graph = points.graph
    on_parts = replace(settings, min_cluster_size=max(round(share * settings.min_cluster_size), 1))
    with threads(None, graph.shape[0]), Monitor((1 + n_runs) * STRUCTURE_STEPS, show=progress) as monitor:
        fine, counts = _counts(graph, settings, seed, limits, monitor)
        if not counts:
            raise ValueError(f"k_range={limits} is out of reach: {graph.shape[0]} points have too few small clusters.")
        agreement = np.full((n_runs, len(counts)), np.nan)
        for i, (rows, part) in enumerate(parts(graph, n_runs, share, seed)):
            part_fine, part_counts = _counts(part, on_parts, seed + 1 + i, limits, monitor)
            for column, k in enumerate(counts):
                if k in part_counts:
                    whole, again = counts[k].parent[fine[rows]], part_counts[k].parent[part_fine]
                    agreement[i, column] = adjusted_rand_score(whole, again)
    table = {"n_clusters": np.array(list(counts))}
    for name in ("score", "cut", "smallest", "largest", "eligible"):
        table[name] = np.array([getattr(count, name) for count in counts.values()])
    if n_runs:
        table["reproducibility"] = np.ma.masked_invalid(agreement).mean(axis=0).filled(np.nan)
    best = best_count(counts)
    labels = counts[best].parent[fine]
    return table, best, bool(keep_supported(labels, Run(graph, settings, seed, monitor, points)).any())


def _counts(
    graph: sp.csr_matrix, settings: Settings, seed: int, limits: Limits, monitor: Monitor
) -> tuple[np.ndarray, dict[int, Count]]:
    H, run = structure(graph, settings, seed, monitor)
    return score_counts(H, graph, run.rng("clusters"), limits=limits, min_size=settings.min_cluster_size)


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
    """How well clusters are recovered when random subsets of the points are clustered again.

    Returns the Jaccard index of each cluster with the best match of each run, (n_runs, K), and for each point the mean
    index of its cluster with the one it falls into, (n,). NaN where a run holds nothing of a cluster, or no run a point.
    """
    check_kernels()
    K, n = int(labels.max()) + 1, len(labels)
    settings = replace(settings, n_clusters=K)
    best, total, draws = np.full((n_runs, K), np.nan), np.zeros(n), np.zeros(n)
    with threads(None, n), Monitor(n_runs * STRUCTURE_STEPS, show=progress) as monitor:
        for i, (points, part) in enumerate(parts(graph, n_runs, share, seed)):
            again = find_clusters(*structure(part, settings, seed + 1 + i, monitor))
            index = jaccard(labels[points], again, K)
            present = np.bincount(labels[points], minlength=K) > 0
            best[i, present] = index.max(axis=1)[present]
            total[points] += index[labels[points], again]
            draws[points] += 1
    return best, np.divide(total, draws, out=np.full(n, np.nan), where=draws > 0)


def structure(graph: sp.csr_matrix, settings: Settings, seed: int, monitor: Monitor) -> tuple[np.ndarray, Run]:
    """Coordinates in many dimensions as `train` makes them from this seed, and their run."""
    run = Run(graph, settings, seed, monitor)
    return optimize_structure(run)[1], run


def parts(graph: sp.csr_matrix, n_runs: int, share: float, seed: int) -> Iterator[tuple[np.ndarray, sp.csr_matrix]]:
    """Random shares of the points, in order, and the graph between them; points are left out in turn."""
    n, rng = graph.shape[0], stream(seed, "parts")
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
