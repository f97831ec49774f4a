"""Polishing in compiled code: single points move to the cluster where modularity gains most."""

from collections.abc import Sequence

import numba as nb
import numpy as np
import scipy.sparse as sp

from scvcc._clusters.compiled import compiled


def polish(graph: sp.csr_matrix, partitions: Sequence[np.ndarray], order: np.ndarray, resolution: float) -> np.ndarray:
    """Each partition with points moved, in `order`, for as long as modularity gains, (m, n); no cluster is emptied."""
    degree = np.asarray(graph.sum(axis=1), dtype=np.float64).ravel()
    polished = np.array(partitions)
    _polish(graph.indptr, graph.indices, graph.data, degree, polished, order, resolution)
    return polished


@compiled(parallel=True)
def _polish(pointers, neighbors, weights, degree, partitions, order, resolution):
    for p in nb.prange(len(partitions)):
        _move_points(pointers, neighbors, weights, degree, partitions[p], order, resolution)


@compiled()
def _move_points(pointers, neighbors, weights, degree, labels, order, resolution, passes=10):
    n, K = len(labels), 0
    for k in labels:
        K = max(K, k + 1)
    volume, size, total = np.zeros(K), np.zeros(K, np.int64), degree.sum()
    for i in range(n):
        volume[labels[i]] += degree[i]
        size[labels[i]] += 1
    towards, met, due = np.zeros(K), np.zeros(K, np.int64), np.ones(n, np.bool_)
    for _ in range(passes):
        moved = 0
        for i in order:
            old = labels[i]
            if not due[i] or size[old] == 1:
                continue
            due[i] = False
            n_met = 0  # clusters of its neighbors
            for e in range(pointers[i], pointers[i + 1]):
                k = labels[neighbors[e]]
                if towards[k] == 0 and weights[e] > 0:
                    met[n_met] = k
                    n_met += 1
                towards[k] += weights[e]
            volume[old] -= degree[i]
            new, gain = old, towards[old] - resolution * degree[i] * volume[old] / total
            for k in met[:n_met]:
                candidate = towards[k] - resolution * degree[i] * volume[k] / total
                if candidate > gain + 1e-12:
                    new, gain = k, candidate
            for k in met[:n_met]:
                towards[k] = 0
            volume[new] += degree[i]
            if new != old:
                labels[i] = new
                size[old] -= 1
                size[new] += 1
                moved += 1
                for e in range(pointers[i], pointers[i + 1]):
                    due[neighbors[e]] = True
        if moved <= n * 1e-4:
            break
