"""The latent graph: from points to symmetric neighbor weights (equations 1 and 2 of the paper)."""

from typing import Any, Literal, TypeAlias

import numpy as np
import scipy.sparse as sp
from sklearn.decomposition import PCA, TruncatedSVD
from sklearn.neighbors import NearestNeighbors
from sklearn.preprocessing import normalize

from scvcc._training.forks import check_kernels

Matrix: TypeAlias = np.ndarray | sp.spmatrix | sp.sparray
GraphMode: TypeAlias = Literal["distance", "connectivity"]

EXACT_SEARCH_LIMIT = 16_384  # rows; below, brute force is as quick as pynndescent's start-up


def search_space(X: Matrix, n_pcs: int | None, *, seed: int) -> Matrix:
    """Reduce `X` for the neighbor search: PCA, or truncated SVD where `X` is sparse.

    Returns `X` itself when it has no more than `n_pcs` features or `n_pcs` is None.
    """
    if n_pcs is None or X.shape[1] <= n_pcs:
        return X
    n_components = min(n_pcs, min(X.shape) - 1)
    if n_components < 1:
        return X
    axes = TruncatedSVD if sp.issparse(X) else PCA
    return axes(n_components, random_state=seed).fit_transform(X)


def neighbor_distances(
    Z: Matrix, n_neighbors: int, *, metric: str = "euclidean", seed: int = 0, n_jobs: int | None = None
) -> sp.csr_matrix:
    """Distances to the `n_neighbors` nearest other rows, as a sparse matrix with explicit zeros for duplicates.

    Exact up to `EXACT_SEARCH_LIMIT` rows, by nearest neighbor descent above. The metric "cosine" is the Euclidean
    distance between unit rows: the same order, and on the same footing as other Euclidean distances.
    """
    if metric == "cosine":
        Z, metric = normalize(Z), "euclidean"
    if Z.shape[0] <= EXACT_SEARCH_LIMIT:
        search = NearestNeighbors(n_neighbors=n_neighbors, metric=metric, n_jobs=n_jobs).fit(Z)
        graph = search.kneighbors_graph(mode="distance")  # without rows to look up, a row is not its own neighbor
        check_distances(graph, metric)
        return graph
    check_kernels()
    from pynndescent import NNDescent  # compiles on import, so only where it is needed

    index = NNDescent(Z, metric=metric, n_neighbors=n_neighbors + 1, random_state=seed, n_jobs=n_jobs)
    return _without_self(*index.neighbor_graph)


def check_distances(graph: Matrix, metric: str) -> None:
    """Refuse a metric that does not know how far apart some rows are."""
    if not np.isfinite(graph.data).all():
        raise ValueError(
            f"metric={metric!r} gives no distance for some rows, most likely because all values of such a row are the same: "
            "leave these rows out, or choose another metric."
        )


def _without_self(indices: np.ndarray, distances: np.ndarray) -> sp.csr_matrix:
    """Neighbors found by descent as a sparse matrix; a row that did not find itself loses its farthest neighbor instead.

    Neighbors that were not found have index −1.
    """
    n = len(indices)
    is_self = indices == np.arange(n)[:, None]
    is_self[~is_self.any(axis=1), -1] = True
    keep = ~is_self & (indices >= 0)
    indptr = np.concatenate([[0], np.cumsum(keep.sum(axis=1))])
    return sp.csr_matrix((distances[keep], indices[keep], indptr), shape=(n, n))


def check_graph(graph: Matrix, n: int, mode: GraphMode) -> sp.csr_matrix:
    """A clean float64 copy of a user's graph: CSR, finite, non-negative, no diagonal, explicit zeros kept."""
    if mode not in ("distance", "connectivity"):
        raise ValueError(f"graph_mode must be 'distance' or 'connectivity', found {mode!r}.")
    if not sp.issparse(graph):
        raise TypeError(f"graph must be a scipy sparse matrix or array, found {type(graph).__name__}.")
    if graph.shape != (n, n):
        raise ValueError(f"graph has shape {graph.shape}, but X has {n} rows: pass a graph of shape ({n}, {n}).")
    if graph.dtype.kind not in "biuf":
        raise TypeError(f"graph has dtype {graph.dtype}: give real numbers.")
    check_sparse(graph, "graph")
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


def check_sparse(X: Any, name: str) -> None:
    """Refuse a sparse matrix whose indices lead out of it: compiled code would read and write elsewhere in memory."""
    if X.format == "coo":
        pairs, fits = list(zip((X.row, X.col), X.shape, strict=True)), True
    elif X.format in ("csr", "csc"):
        n, width = X.shape if X.format == "csr" else X.shape[::-1]
        ends = np.asarray(X.indptr)
        fits = ends.shape == (n + 1,) and ends[0] == 0 and bool((np.diff(ends) >= 0).all())
        fits = fits and ends[-1] <= min(len(X.indices), len(X.data))
        pairs = [(X.indices, width)]
    else:
        return
    if not fits or any(len(index) and not 0 <= index.min() <= index.max() < length for index, length in pairs):
        raise ValueError(
            f"{name} is a damaged {X.format} matrix, with indices outside its shape {X.shape}: build it again."
        )


def _without_diagonal(csr: sp.csr_matrix) -> sp.csr_matrix:
    keep = entry_rows(csr) != csr.indices
    indptr = np.concatenate([[0], np.cumsum(keep)])[csr.indptr]
    return sp.csr_matrix((csr.data[keep], csr.indices[keep], indptr), shape=csr.shape)


def entry_rows(csr: sp.csr_matrix) -> np.ndarray:
    """Number of the row of each stored entry."""
    return np.repeat(np.arange(csr.shape[0]), np.diff(csr.indptr))


def attractive_forces(distances: sp.csr_matrix) -> sp.csr_matrix:
    """F, the softmax of −D / s over each row of a sparse matrix of neighbor distances (equation 1).

    The scale s, the median over rows of the range of D, makes the forces independent of the units of the data; it is 1
    on MNIST with pixels in [0, 1], the paper's case. Rows may hold different numbers of neighbors.
    """
    D = distances.astype(np.float64)
    n, rows = D.shape[0], entry_rows(D)
    nearest, farthest = np.full(n, np.inf), np.full(n, -np.inf)
    np.minimum.at(nearest, rows, D.data)
    np.maximum.at(farthest, rows, D.data)
    scale = _typical((farthest - nearest)[np.diff(D.indptr) > 1])
    force = np.exp((nearest[rows] - D.data) / scale)
    force /= np.bincount(rows, weights=force, minlength=n)[rows]
    force = np.maximum(force, 1e-12)  # an edge stays in the graph when its softmax weight underflows
    return sp.csr_matrix((force, D.indices, D.indptr), shape=D.shape)


def _typical(ranges: np.ndarray) -> float:
    """The median; if most neighbors coincide, that of the rows that have a range; then any positive number."""
    for values in (ranges, ranges[ranges > 0]):
        if len(values) and np.median(values) > 0:
            return float(np.median(values))
    return 1.0


def latent_graph(distances: sp.csr_matrix) -> sp.csr_matrix:
    """The paper's latent graph F̃ = F + Fᵀ − F∘Fᵀ of a sparse matrix of neighbor distances (equation 2)."""
    F = attractive_forces(distances)
    return _tidy(F + F.T - F.multiply(F.T))


def given_graph(graph: Matrix, n: int, mode: GraphMode) -> sp.csr_matrix:
    """The latent graph of distances that a user gives for `n` points, or of weights: the larger of both directions."""
    checked = check_graph(graph, n, mode)
    return latent_graph(checked) if mode == "distance" else _tidy(checked.maximum(checked.T))


def dense(X: Matrix) -> np.ndarray:
    """`X` as an array."""
    return X.toarray() if isinstance(X, sp.spmatrix | sp.sparray) else np.asarray(X)


def components(X: Matrix, seed: int) -> np.ndarray:
    """Components of `X`, 50 at most: what distances between rows are measured in where no user chose."""
    return dense(search_space(X, 50, seed=seed)).astype(np.float32, copy=False)


def _tidy(graph: sp.spmatrix) -> sp.csr_matrix:
    csr = sp.csr_matrix(graph, dtype=np.float32)
    csr.eliminate_zeros()
    csr.sort_indices()
    return csr
