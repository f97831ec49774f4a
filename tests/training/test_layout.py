import numpy as np
import pytest
import scipy.sparse as sp
from scipy.optimize import minimize
from scipy.sparse.linalg import ArpackError, ArpackNoConvergence
from scipy.spatial.distance import pdist

from scvcc._clusters.assignment import nearest_center
from scvcc._training import graph as _graph
from scvcc._training import layout as _layout


@pytest.mark.parametrize("n", [60, 400])
def test_spectral_start_equals_dense_eigenvectors(n):
    rng = np.random.default_rng(0)
    Z = np.vstack([rng.normal(size=(n // 2, 3)), rng.normal(size=(n // 2, 3)) + 3])
    graph = _graph.latent_graph(_graph.neighbor_distances(Z, 10))
    degree = graph.toarray().sum(axis=1)
    values, vectors = np.linalg.eigh(graph.toarray() / np.sqrt(np.outer(degree, degree)))
    expected = vectors[:, -2] / np.sqrt(degree)
    found = _layout.spectral_start(graph, 3, np.random.default_rng(0))
    assert abs(np.corrcoef(found[:, 0], expected)[0, 1]) > 0.999
    assert np.abs(found).max() < 1.01


def test_spectral_start_of_pieces_and_isolated_points_is_finite():
    block = np.ones((5, 5)) - np.eye(5)
    graph = sp.csr_matrix(sp.block_diag([block, block, np.zeros((2, 2))]), dtype=np.float32)
    H = _layout.spectral_start(graph, 4, np.random.default_rng(0))
    assert H.shape == (12, 4)
    assert np.isfinite(H).all()


def test_placed_clusters_keep_to_their_places(blobs, make_run):
    X, graph, truth = blobs
    placed = _layout.place_clusters(X.astype(float), truth, make_run(graph))
    means = np.array([placed[truth == k].mean(axis=0) for k in range(4)])
    spread = max(placed[truth == k].std(axis=0).max() for k in range(4))
    gaps = np.linalg.norm(means[:, None] - means[None], axis=-1)[np.triu_indices(4, 1)]
    assert gaps.min() > 5 * spread


def test_strongly_linked_clusters_stay_apart_on_the_map(make_run):
    rng = np.random.default_rng(0)
    Z = rng.uniform(size=(600, 2)) * [6, 1]  # a continuum
    graph = _graph.latent_graph(_graph.neighbor_distances(Z, 10))
    labels = (Z[:, 0] // 1).astype(np.int64)
    run = make_run(graph, n_clusters=6)
    H, centers = _layout.optimize_map(_layout.place_clusters(Z, labels, run), labels, run)
    gaps = np.linalg.norm(centers[:, None] - centers[None], axis=-1) + 9 * np.eye(6)
    assert gaps.min() > 0.9
    assert (nearest_center(H, centers) == labels).mean() > 0.96  # .94 if contraction counts in full


def test_contraction_between_clusters_counts_a_quarter(make_run):
    """Two clusters of two points with one strong edge inside each and one between: forces by hand."""
    A = np.zeros((4, 4), np.float32)
    for i, j, weight in ((0, 1, 0.5), (2, 3, 0.5), (1, 2, 0.5)):
        A[i, j] = A[j, i] = weight
    attraction, repulsion = _layout._cluster_forces(np.array([0, 0, 1, 1]), make_run(sp.csr_matrix(A)))
    chance = 2 * 0.5 * 0.5
    expected = 0.25 * (1 / 3) + 0.01 * chance  # each edge has a third of the contraction
    np.testing.assert_allclose(attraction, [[0, expected], [expected, 0]], rtol=1e-6)
    apart = max(0.2 * chance, np.expm1(1) * expected)
    np.testing.assert_allclose(repulsion, [[0, apart], [apart, 0]], rtol=1e-6)


def test_best_places_are_where_the_forces_balance():
    rng, K = np.random.default_rng(0), 16
    attraction, repulsion = np.triu(rng.random((K, K)) ** 8, 1), 3 * np.triu(rng.random((K, K)), 1)
    pairs = np.triu_indices(K, 1)

    def energy(places):
        d = pdist(places.reshape(K, 2))
        return (attraction[pairs] * d - repulsion[pairs] * np.log(-np.expm1(-d))).sum()

    candidates = rng.normal(size=(6, K, 2))
    forces = ((half + half.T).astype(np.float32) for half in (attraction, repulsion))
    places = _layout._best_places(candidates, *forces)
    reached = [minimize(energy, start.ravel()).fun for start in candidates]
    assert minimize(energy, places.ravel()).fun > energy(places) - 0.5
    assert energy(places) < np.median(reached) < max(reached) - 0.5  # there was a choice to be made


def test_eigenvectors_that_do_not_converge_leave_noise(blobs, monkeypatch):
    def some(matrix, k, **_):
        raise ArpackNoConvergence("", np.array([0.5, 1.0, 0.9]), np.eye(matrix.shape[0])[:, :3])

    graph, rng = blobs[1], np.random.default_rng(0)
    monkeypatch.setattr(_layout, "eigsh", some)
    H = _layout.spectral_start(graph, 5, rng)
    np.testing.assert_allclose(H[[2, 0], [0, 1]], 1, atol=0.01)  # the second and the third by their values
    assert np.abs(H[:, 2:]).max() < 0.01 and H[:, 2:].std(axis=0).min() > 0

    def none(matrix, k, **_):
        raise ArpackError(-9)

    monkeypatch.setattr(_layout, "eigsh", none)
    H = _layout.spectral_start(graph, 5, rng)
    assert np.abs(H).max() < 0.01 and H.std(axis=0).min() > 0
