"""The stages of the coordinates: a spectral start, the structure in many dimensions, then the map."""

import numpy as np
import scipy.sparse as sp
from numpy.random import Generator
from scipy.sparse.linalg import ArpackError, ArpackNoConvergence, eigsh
from sklearn.decomposition import PCA

from scvcc._clusters.assignment import cluster_means, cluster_medians, nearest_center
from scvcc._training.coordinates import BETWEEN, OUT_OF_REACH, FreeCoordinates, adam_step
from scvcc._training.losses import DISTANCE_FLOOR
from scvcc._training.run import Run, draw_seed
from scvcc._training.sampling import augmented_edges
from scvcc._training.threads import threads_for

STRUCTURE_STEPS, MAP_STEPS = 150, 60  # more gain nothing; half as many of the first cost .006 ARI


def optimize_structure(run: Run) -> tuple[np.ndarray, np.ndarray]:
    """Start and end of the coordinates in as many dimensions as clusters: in two, clusters block each other's way."""
    rng, dim = run.rng("structure"), int(np.clip(run.settings.n_clusters or 16, 2, 32))
    start = spectral_start(run.graph, dim, rng)
    points = FreeCoordinates(start, run.graph, run.settings, draw_seed(rng), STRUCTURE_STEPS, 0.12)
    _optimize(points, "structure", run)
    return _principal_axes(start, run.settings.latent_dim), points.H


def place_clusters(H: np.ndarray, labels: np.ndarray, run: Run, starts: int = 6) -> np.ndarray:
    """Start of the map: each cluster at a place found on the graph of clusters, each point a little beside it."""
    K, dim, rng = int(labels.max()) + 1, run.settings.latent_dim, run.rng("placing")
    means = cluster_means(H, labels, K)
    candidates = rng.normal(size=(starts, K, dim))
    candidates[0] = _principal_axes(means, dim)
    places = _best_places(candidates, *_cluster_forces(labels, run))
    residual = _principal_axes(H - means[labels], dim)
    residual *= 0.05 / max(residual.std(), 1e-9)
    return places[labels] + residual + rng.normal(scale=1e-3, size=residual.shape)


def optimize_map(placed: np.ndarray, labels: np.ndarray, run: Run) -> tuple[np.ndarray, np.ndarray]:
    """Coordinates and centers of the map under all four losses.

    Contraction between clusters counts less: two dimensions would merge clusters that were found in many.
    """
    centers = cluster_medians(placed, labels, int(labels.max()) + 1)
    seed = draw_seed(run.rng("map"))
    points = FreeCoordinates(placed, run.graph, run.settings, seed, MAP_STEPS, 0.03, centers, labels)
    _optimize(points, "map", run)
    return points.H, points.centers


def _optimize(points: FreeCoordinates, stage: str, run: Run, report_every: int = 25) -> None:
    while points.step < points.total_steps:
        before = points.step
        points.run(report_every)
        run.monitor.advance(stage, points.step - before)
        labels = nearest_center(points.H, points.centers) if len(points.centers) else None
        run.monitor.record(stage, points.step, run.gauge(points.H, points.centers, points.beta), labels=labels)


# ----------------------------------------------------------------------------------------------------- the starts


def spectral_start(graph: sp.csr_matrix, dim: int, rng: Generator) -> np.ndarray:
    """Leading non-trivial eigenvectors of the normalized graph, each scaled to a largest entry of 1."""
    n = graph.shape[0]
    degree = np.asarray(graph.sum(axis=1), dtype=np.float64).ravel()
    inverse_root = np.divide(1, np.sqrt(degree), out=np.zeros(n), where=degree > 0)
    scaling = sp.diags(inverse_root)
    normalized = 0.5 * (scaling @ graph.astype(np.float64) @ scaling + sp.eye(n))  # eigenvalues in [0, 1]
    vectors = _leading_vectors(sp.csr_matrix(normalized), min(dim + 1, n), rng)[:, 1:]
    H = np.zeros((n, dim))
    H[:, : vectors.shape[1]] = vectors * inverse_root[:, None]
    H /= np.maximum(np.abs(H).max(axis=0), np.finfo(np.float64).tiny)
    return H + rng.normal(scale=1e-3, size=H.shape)


def _leading_vectors(matrix: sp.csr_matrix, k: int, rng: Generator) -> np.ndarray:
    n = matrix.shape[0]
    start = rng.uniform(-1, 1, n)
    if n <= max(4 * k, 100):
        return np.linalg.eigh(matrix.toarray())[1][:, ::-1][:, :k]
    n_lanczos = min(n, max(2 * k + 10, 30))
    try:
        values, vectors = eigsh(matrix, k=k, which="LA", v0=start, tol=1e-4, maxiter=3000, ncv=n_lanczos)
    except ArpackNoConvergence as stopped:
        values, vectors = stopped.eigenvalues, stopped.eigenvectors
    except ArpackError:  # no start at all: the noise added by the caller is then the whole start
        return np.zeros((n, k))
    return vectors[:, np.argsort(-values)]


def _principal_axes(H: np.ndarray, dim: int) -> np.ndarray:
    """The first `dim` principal components, padded with zeros."""
    n_components = min(dim, *H.shape)
    out = np.zeros((len(H), dim))
    if H.std(axis=0).any():
        out[:, :n_components] = PCA(n_components, svd_solver="full").fit_transform(H)
    return out


def _cluster_forces(labels: np.ndarray, run: Run) -> tuple[np.ndarray, np.ndarray]:
    """Attraction and repulsion (K, K) between clusters: the contraction and expansion losses summed over pairs."""
    K = int(labels.max()) + 1
    edges = augmented_edges(run.graph)
    pairs = labels[edges.head] * K + labels[edges.tail]
    pull = np.bincount(pairs, weights=edges.contraction, minlength=K * K).reshape(K, K)
    share = np.bincount(labels, minlength=K) / len(labels)
    chance = 2 * np.outer(share, share)
    gravity = 0.01 * chance  # clusters without a common edge would drift apart for ever
    attraction = BETWEEN * (pull + pull.T) + gravity
    least = np.expm1(1.0) * attraction  # with it the two forces balance at a distance of 1
    repulsion = np.maximum(max(run.settings.weights["expansion"], 0.05) * chance, least)
    others = 1 - np.eye(K)
    return (attraction * others).astype(np.float32), (repulsion * others).astype(np.float32)


def _best_places(candidates: np.ndarray, attraction: np.ndarray, repulsion: np.ndarray, steps: int = 150) -> np.ndarray:
    """The best of several placements of K points, (starts, K, dim) → (K, dim)."""
    places, dim = candidates.astype(np.float32), candidates.shape[2]
    moments = np.zeros((2, len(places) * places.shape[1], dim), np.float32)
    with threads_for(len(moments[0])):
        for step in range(1, steps + 1):
            d = _distances(places)  # (starts, K, K)
            force = (attraction - repulsion / np.expm1(np.minimum(d, OUT_OF_REACH))) / d
            gradient = force.sum(axis=2, keepdims=True) * places - force @ places
            adam_step(places.reshape(-1, dim), gradient.reshape(-1, dim), moments, step, 0.1)
    d = _distances(places)
    energy = (attraction * d - repulsion * np.log(-np.expm1(-d))).sum(axis=(1, 2))
    return places[energy.argmin()].astype(np.float64)


def _distances(places: np.ndarray) -> np.ndarray:
    """Between the points of each placement, (starts, K, K); never quite zero."""
    differences = (places[:, :, None, x] - places[:, None, :, x] for x in range(places.shape[2]))
    return np.sqrt(sum(np.square(difference) for difference in differences) + np.float32(DISTANCE_FLOOR))
