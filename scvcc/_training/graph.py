"""The latent graph: from points to symmetric neighbor weights (equations 1 and 2 of the paper)."""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np
import scipy.sparse as sp
from sklearn.decomposition import PCA, TruncatedSVD
from sklearn.neighbors import NearestNeighbors
from sklearn.preprocessing import normalize

Matrix: TypeAlias = np.ndarray | sp.spmatrix | sp.sparray
GraphMode: TypeAlias = Literal["distance", "connectivity"]

EXACT_SEARCH_LIMIT = 16_384  # rows; below, brute force is as quick as pynndescent's start-up
SMALLEST_WEIGHT = 1e-12  # keeps an edge in the graph when its softmax weight underflows


def search_space(X: Matrix, n_pcs: int | None, *, seed: int) -> Matrix:
    """Reduce `X` for the neighbor search: PCA, or truncated SVD where `X` is sparse.

    Returns `X` itself when it has no more than `n_pcs` features or `n_pcs` is None.
    """
    if n_pcs is None or X.shape[1] <= n_pcs:
        return X
    n_components = min(n_pcs, min(X.shape) - 1)
    if n_components < 1:
        return X
    if sp.issparse(X):
        return TruncatedSVD(n_components, random_state=seed).fit_transform(X)
    return PCA(n_components, random_state=seed).fit_transform(X)


def neighbor_distances(
    Z: Matrix, n_neighbors: int, *, metric: str = "euclidean", seed: int = 0, n_jobs: int | None = None
) -> sp.csr_matrix:
    """Distances to the `n_neighbors` nearest other rows, as a sparse matrix with explicit zeros for duplicates.

    Exact up to `EXACT_SEARCH_LIMIT` rows, by nearest neighbor descent above. The metric "cosine" is the Euclidean
    distance between unit rows: the same order, and on the same footing as other Euclidean distances.
    """
    n = Z.shape[0]
    if n <= n_neighbors:
        raise ValueError(
            f"n_neighbors={n_neighbors} needs at least {n_neighbors + 1} rows, but X has {n}. "
            f"Set n_neighbors to {max(n - 1, 1)} or less."
        )
    if metric == "cosine":
        Z, metric = normalize(Z), "euclidean"
    if n <= EXACT_SEARCH_LIMIT:
        search = NearestNeighbors(n_neighbors=n_neighbors, metric=metric, n_jobs=n_jobs).fit(Z)
        distances, indices = search.kneighbors()  # without an argument, a row is not its own neighbor
    else:
        indices, distances = _descend(Z, n_neighbors, metric, seed, n_jobs)
    return _as_csr(indices, distances, n)


def _descend(Z: Matrix, n_neighbors: int, metric: str, seed: int, n_jobs: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Approximate neighbors; a row's own index and unfilled places come back as -1."""
    from pynndescent import NNDescent  # compiles on import, so only where it is needed

    index = NNDescent(Z, metric=metric, n_neighbors=n_neighbors + 1, random_state=seed, n_jobs=n_jobs)
    indices, distances = index.neighbor_graph
    is_self = indices == np.arange(len(indices))[:, None]
    is_self[~is_self.any(axis=1), -1] = True  # self was not found: drop the farthest instead
    shape = (len(indices), n_neighbors)
    return indices[~is_self].reshape(shape), distances[~is_self].reshape(shape)


def _as_csr(indices: np.ndarray, distances: np.ndarray, n: int) -> sp.csr_matrix:
    found = indices >= 0
    indptr = np.concatenate([[0], np.cumsum(found.sum(axis=1))])
    return sp.csr_matrix((distances[found], indices[found], indptr), shape=(n, n))


def check_graph(graph: Matrix, n: int, mode: GraphMode) -> sp.csr_matrix:
    """A clean float64 copy of a user's graph: CSR, finite, non-negative, no diagonal, explicit zeros kept."""
    if mode not in ("distance", "connectivity"):
        raise ValueError(f"graph_mode must be 'distance' or 'connectivity', found {mode!r}.")
    if not sp.issparse(graph):
        raise TypeError(f"graph must be a scipy sparse matrix or array, found {type(graph).__name__}.")
    if graph.shape != (n, n):
        raise ValueError(f"graph has shape {graph.shape}, but X has {n} rows: pass a graph of shape ({n}, {n}).")
    csr = sp.csr_matrix(graph, dtype=np.float64, copy=True)
    if not np.isfinite(csr.data).all() or (csr.data < 0).any():
        raise ValueError("graph has NaN, infinite or negative entries: rebuild it, or remove those entries.")
    csr = _without_diagonal(csr)
    if mode == "connectivity":  # no weight is no edge; weights count relative to the largest
        csr.eliminate_zeros()
        csr.data /= csr.data.max(initial=1e-300)
    if csr.nnz == 0:
        raise ValueError("graph has no edge between different rows: rebuild it with more neighbors.")
    return csr


def _without_diagonal(csr: sp.csr_matrix) -> sp.csr_matrix:
    rows = _row_of_each_entry(csr)
    keep = rows != csr.indices
    indptr = np.concatenate([[0], np.cumsum(np.bincount(rows[keep], minlength=csr.shape[0]))])
    return sp.csr_matrix((csr.data[keep], csr.indices[keep], indptr), shape=csr.shape)


def _row_of_each_entry(csr: sp.csr_matrix) -> np.ndarray:
    return np.repeat(np.arange(csr.shape[0]), np.diff(csr.indptr))


def attractive_forces(distances: sp.csr_matrix) -> sp.csr_matrix:
    """F, the softmax of −D / s over each row of a sparse matrix of neighbor distances (equation 1).

    The scale s, the median over rows of the range of D, makes the forces independent of the units of the data; it is 1
    on MNIST with pixels in [0, 1], the paper's case. Rows may hold different numbers of neighbors.
    """
    D = distances.astype(np.float64)
    rows = _row_of_each_entry(D)
    nearest, farthest = _row_extremes(D, rows)
    force = np.exp((nearest[rows] - D.data) / _distance_scale(D, nearest, farthest))
    force /= np.bincount(rows, weights=force, minlength=D.shape[0])[rows]
    return sp.csr_matrix((np.maximum(force, SMALLEST_WEIGHT), D.indices, D.indptr), shape=D.shape)


def latent_graph(distances: sp.csr_matrix) -> sp.csr_matrix:
    """The paper's latent graph F̃ = F + Fᵀ − F∘Fᵀ of a sparse matrix of neighbor distances (equation 2)."""
    F = attractive_forces(distances)
    return _tidy(F + F.T - F.multiply(F.T))


def given_graph(graph: Matrix, n: int, mode: GraphMode) -> sp.csr_matrix:
    """The latent graph of distances, or weights, that a user gives for `n` points."""
    checked = check_graph(graph, n, mode)
    return latent_graph(checked) if mode == "distance" else symmetric_weights(checked)


def _row_extremes(D: sp.csr_matrix, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    nearest = np.full(D.shape[0], np.inf)
    farthest = np.full(D.shape[0], -np.inf)
    np.minimum.at(nearest, rows, D.data)
    np.maximum.at(farthest, rows, D.data)
    return nearest, farthest


def _distance_scale(D: sp.csr_matrix, nearest: np.ndarray, farthest: np.ndarray) -> float:
    spread = (farthest - nearest)[np.diff(D.indptr) > 1]
    scale = float(np.median(spread)) if len(spread) else 0.0
    if scale <= 0:  # most neighbors coincide: fall back to the rows that have a range, then to any positive number
        positive = spread[spread > 0]
        scale = float(np.median(positive)) if len(positive) else 1.0
    return scale


def symmetric_weights(weights: sp.csr_matrix) -> sp.csr_matrix:
    """Given affinities as a latent graph: the larger of the two directions, zeros dropped."""
    return _tidy(weights.maximum(weights.T))


def _tidy(graph: sp.spmatrix) -> sp.csr_matrix:
    csr = sp.csr_matrix(graph, dtype=np.float32)
    csr.eliminate_zeros()
    csr.sort_indices()
    return csr


def boundary_score(graph: sp.csr_matrix, mode: GraphMode = "distance") -> np.ndarray:
    """How uneven each row's neighborhood is: the coefficient of variation of its attractive forces (or weights).

    Lemma 1 of the paper: at the border between clusters, normalized neighbor distances spread more widely than inside
    one. Rows with fewer than two neighbors score 0.
    """
    csr = check_graph(graph, graph.shape[0], mode)
    F = attractive_forces(csr) if mode == "distance" else csr
    n, rows = F.shape[0], _row_of_each_entry(F)
    count = np.maximum(np.bincount(rows, minlength=n), 1)
    mean = np.bincount(rows, weights=F.data, minlength=n) / count
    variance = np.bincount(rows, weights=(F.data - mean[rows]) ** 2, minlength=n) / count
    return np.divide(np.sqrt(variance), mean, out=np.zeros(n), where=mean > 0).astype(np.float32)
