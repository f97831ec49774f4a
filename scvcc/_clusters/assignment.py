"""Points and centers: which center is nearest, how sure that is, and what becomes of clusters without points."""

import numpy as np
import scipy.sparse as sp
from numpy.random import Generator
from scipy.optimize import minimize_scalar
from scipy.spatial.distance import cdist
from scipy.special import log_softmax, softmax


def nearest_center(H: np.ndarray, centers: np.ndarray) -> np.ndarray:
    """Index of the nearest center of each row: the hard form of the soft assignment."""
    return cdist(H, centers, "sqeuclidean").argmin(axis=1)


def probabilities(H: np.ndarray, centers: np.ndarray, sharpness: float = 1.0) -> np.ndarray:
    """Soft assignment Q (n, K) to the power of `sharpness`, rows sum to one."""
    return softmax(-sharpness * np.log1p(cdist(H, centers, "sqeuclidean")), axis=1)


def calibrate_sharpness(
    H: np.ndarray,
    centers: np.ndarray,
    labels: np.ndarray,
    graph: sp.csr_matrix,
    rng: Generator,
    n_points: int = 5_000,
) -> float:
    """Power of Q that best predicts what cluster the neighbors of a point vote for: one number, found without ground truth.

    Student-t assignments among K centers are far from certain even at a center, since every other center keeps a share.
    The votes are redrawn by a Bayesian bootstrap, as if other points had been neighbors. With this power, a probability
    of .9 means that about nine in ten such points would get that label again.
    """
    n = graph.shape[0]
    points = rng.choice(n, min(n, n_points), replace=False)
    points = points[np.diff(graph.indptr)[points] > 0]
    votes = sp.csr_matrix(graph[points])
    votes.data = votes.data * rng.exponential(size=votes.nnz)
    elected = votes @ sp.csr_matrix((np.ones(n), (np.arange(n), labels)), shape=(n, len(centers)))
    logits = -np.log1p(cdist(H[points], centers, "sqeuclidean"))
    return best_power(logits, np.asarray(elected.argmax(axis=1)).ravel(), np.ones(len(points)))


def random_edges(graph: sp.csr_matrix, n_edges: int, rng: Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Both ends and the weights of different edges, all of them if there are no more."""
    entries = rng.choice(graph.nnz, min(graph.nnz, n_edges), replace=False)
    return np.searchsorted(graph.indptr, entries, side="right") - 1, graph.indices[entries], graph.data[entries]


def best_power(logits: np.ndarray, targets: np.ndarray, weights: np.ndarray, lowest: float = -2.0) -> float:
    """The power, from exp(lowest) on, of the probabilities in each row with which they predict the targets best."""

    def surprise(log_power: float) -> float:
        log_probabilities = log_softmax(np.exp(log_power) * logits, axis=1)
        return -float(np.average(log_probabilities[np.arange(len(targets)), targets], weights=weights))

    return float(np.exp(minimize_scalar(surprise, bounds=(lowest, 4.0), method="bounded").x))


def drop_small_clusters(H: np.ndarray, centers: np.ndarray, min_size: int) -> np.ndarray:
    """Centers without those of clusters below `min_size` points, smallest first; their points go to the next center."""
    min_size = min(min_size, len(H) // 2)
    while len(centers) > 2:
        sizes = _sizes(H, centers)
        if sizes.min() >= min_size:
            break
        centers = np.delete(centers, int(sizes.argmin()), axis=0)
    return centers


def fill_empty_clusters(H: np.ndarray, centers: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Move the center of a cluster that lost all its points back to the points it was made for; else drop it."""
    is_empty = _sizes(H, centers) == 0
    if is_empty.any():
        centers = np.where(is_empty[:, None], cluster_medians(H, labels, len(centers)), centers)
    return centers[_sizes(H, centers) > 0]


def _sizes(H: np.ndarray, centers: np.ndarray) -> np.ndarray:
    return np.bincount(nearest_center(H, centers), minlength=len(centers))


def by_size(labels: np.ndarray, n_clusters: int) -> np.ndarray:
    """Order of clusters by decreasing size, and by their first point where sizes are equal: as the partition has it."""
    first = np.full(n_clusters, len(labels))
    np.minimum.at(first, labels, np.arange(len(labels)))
    return np.lexsort((first, -np.bincount(labels, minlength=n_clusters)))


def cluster_means(H: np.ndarray, labels: np.ndarray, n_clusters: int) -> np.ndarray:
    """Mean of each cluster, (K, dim)."""
    sums = np.stack([np.bincount(labels, weights=column, minlength=n_clusters) for column in H.T], axis=1)
    return sums / np.maximum(np.bincount(labels, minlength=n_clusters), 1)[:, None]


def cluster_medians(H: np.ndarray, labels: np.ndarray, n_clusters: int) -> np.ndarray:
    """Coordinate-wise median of each cluster, (K, dim); of all points for an empty one."""
    return np.stack([np.median(H[labels == k] if (labels == k).any() else H, axis=0) for k in range(n_clusters)])
