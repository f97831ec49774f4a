import numpy as np
import pytest
import scipy.sparse as sp
from scipy.spatial.distance import cdist

from scvcc._training import graph as _graph


@pytest.fixture
def points():
    return np.random.default_rng(0).normal(size=(60, 5))


def slow_neighbors(Z, m):
    D = cdist(Z, Z)
    np.fill_diagonal(D, np.inf)
    index = np.argsort(D, axis=1)[:, :m]
    return index, np.take_along_axis(D, index, axis=1)


def slow_latent_graph(index, D):
    n = len(index)
    scale = np.median([row.max() - row.min() for row in D])
    F = np.zeros((n, n))
    for i in range(n):
        weights = np.exp(-D[i] / scale)
        F[i, index[i]] = weights / weights.sum()
    out = np.zeros((n, n))
    for i in range(n):
        for j in range(n):
            out[i, j] = 1 - (1 - F[i, j]) * (1 - F[j, i])
    return out


def test_neighbors_are_the_nearest_others(points):
    found = _graph.neighbor_distances(points, 7)
    index, D = slow_neighbors(points, 7)
    for i in range(len(points)):
        row = found[[i]]
        assert set(row.indices) == set(index[i])
        np.testing.assert_allclose(np.sort(row.data), D[i], rtol=1e-6)


def test_cosine_is_euclidean_between_unit_rows(points):
    scaled = points * np.random.default_rng(1).uniform(0.1, 10, size=(60, 1))
    unit = points / np.linalg.norm(points, axis=1, keepdims=True)
    a = _graph.neighbor_distances(scaled, 6, metric="cosine")
    b = _graph.neighbor_distances(unit, 6)
    np.testing.assert_allclose(a.toarray(), b.toarray(), atol=1e-6)


def test_sparse_search_equals_dense(points):
    X = np.where(points > 0.3, points, 0)
    a = _graph.neighbor_distances(sp.csr_matrix(X), 5)
    b = _graph.neighbor_distances(X, 5)
    np.testing.assert_allclose(np.sort(a.data), np.sort(b.data), atol=1e-6)


def test_duplicates_are_explicit_zeros():
    Z = np.repeat(np.random.default_rng(0).normal(size=(10, 3)), 3, axis=0)
    D = _graph.neighbor_distances(Z, 2)
    assert D.nnz == 60
    np.testing.assert_allclose(D.data, 0, atol=1e-6)
    weights = _graph.latent_graph(D)
    assert np.isfinite(weights.data).all()
    assert (weights.data > 0).all()


def test_approximate_search_above_the_limit(points, monkeypatch):
    Z = np.random.default_rng(0).normal(size=(1500, 8)).astype(np.float32)
    exact = _graph.neighbor_distances(Z, 10)
    monkeypatch.setattr(_graph, "EXACT_SEARCH_LIMIT", 1000)
    found = _graph.neighbor_distances(Z, 10)
    assert (found.diagonal() == 0).all()
    assert (np.diff(found.indptr) == 10).all()
    overlap = np.mean([len(set(found[[i]].indices) & set(exact[[i]].indices)) / 10 for i in range(1500)])
    assert overlap > 0.95
    again = _graph.neighbor_distances(Z, 10)
    np.testing.assert_array_equal(found.indices, again.indices)


def test_unfilled_places_and_missing_self_are_dropped():
    indices = np.array([[0, 1, 2], [1, 0, -1], [1, 0, 1]])  # the last row did not find itself
    distances = np.array([[0.0, 1.0, 2.0], [0.0, 1.0, np.inf], [3.0, 4.0, 5.0]])
    csr = _graph._without_self(indices, distances)
    np.testing.assert_array_equal(csr.toarray(), [[0, 1, 2], [1, 0, 0], [4, 3, 0]])


def test_latent_graph_equals_the_formula(points):
    index, D = slow_neighbors(points, 6)
    expected = slow_latent_graph(index, D)
    found = _graph.latent_graph(_graph.neighbor_distances(points, 6))
    np.testing.assert_allclose(found.toarray(), expected, rtol=1e-5, atol=1e-7)
    assert abs(found - found.T).max() < 1e-7
    assert found.has_sorted_indices


@pytest.mark.parametrize("unit", [1e-6, 1e6])
def test_latent_graph_has_no_units(points, unit):
    a = _graph.latent_graph(_graph.neighbor_distances(points, 6))
    b = _graph.latent_graph(_graph.neighbor_distances(points * unit, 6))
    np.testing.assert_allclose(a.toarray(), b.toarray(), rtol=1e-4)


def test_latent_graph_of_four_points_by_hand():
    # 0 and 1 see each other; 2 sees 1 and 3, at distances 1 and 2; the only range of a row is 1, so the scale is 1
    D = sp.csr_matrix(([0.5, 0.5, 1.0, 2.0, 2.0], ([0, 1, 2, 2, 3], [1, 0, 1, 3, 2])), shape=(4, 4))
    found = _graph.latent_graph(D).toarray()
    near = 1 / (1 + np.exp(-1))
    far = 1 - near
    expected = np.zeros((4, 4))
    expected[0, 1] = expected[1, 0] = 1.0
    expected[1, 2] = expected[2, 1] = near
    expected[2, 3] = expected[3, 2] = 1.0  # 3's only neighbor: force 1; 1 + far − far
    assert far < 0.5
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_ragged_and_empty_rows(points):
    D = sp.lil_matrix(_graph.neighbor_distances(points, 6))
    D[3] = 0
    D[5, D.rows[5][1:]] = 0
    csr = sp.csr_matrix(D)
    csr.eliminate_zeros()
    found = _graph.latent_graph(csr)
    assert np.isfinite(found.data).all()
    assert (found.data <= 1 + 1e-6).all()


def test_far_outlier_keeps_its_edges(points):
    Z = np.vstack([points, 1e6 * np.ones((1, 5))])
    found = _graph.latent_graph(_graph.neighbor_distances(Z, 5))
    assert found[[60]].nnz == 5
    assert np.isfinite(found.data).all()


def test_check_graph_keeps_zeros_drops_self_and_copies():
    entries = ([0.0, 0.0, 2.0, 1.0], ([0, 0, 1, 2], [0, 1, 0, 1]))
    graph = sp.csr_matrix(entries, shape=(3, 3))
    before = graph.copy()
    clean = _graph.check_graph(graph, 3, "distance")
    assert clean.nnz == 3
    assert clean.dtype == np.float64
    assert set(zip(*clean.nonzero(), strict=True)) <= {(1, 0), (2, 1)}
    clean.data[:] = 7
    np.testing.assert_array_equal(graph.data, before.data)
    assert graph.nnz == before.nnz


def test_weights_count_relative_to_the_largest_and_zeros_are_no_edges():
    tiny = sp.csr_matrix(([1e-50, 2e-50, 0.0], ([0, 1, 2], [1, 2, 0])), shape=(3, 3))
    clean = _graph.given_graph(tiny, 3, "connectivity")
    np.testing.assert_allclose(clean.toarray(), [[0, 0.5, 0], [0.5, 0, 1], [0, 1, 0]])
    tiny.data[:] = 0
    with pytest.raises(ValueError, match="no edge"):
        _graph.check_graph(tiny, 3, "connectivity")


def test_check_graph_takes_int64_indices():
    graph = sp.csr_array(sp.random(20, 20, density=0.3, random_state=0))
    graph.indices, graph.indptr = graph.indices.astype(np.int64), graph.indptr.astype(np.int64)
    clean = _graph.check_graph(graph, 20, "connectivity")
    expected = graph.toarray() * ~np.eye(20, dtype=bool)
    np.testing.assert_allclose(clean.toarray(), expected / expected.max())


@pytest.mark.parametrize(
    ("graph", "mode", "error", "match"),
    [
        (np.ones((3, 3)), "distance", TypeError, "graph must be a scipy sparse"),
        (sp.eye(4), "distance", ValueError, r"shape \(4, 4\).*3 rows"),
        (sp.csr_matrix(np.full((3, 3), np.nan)), "distance", ValueError, "NaN"),
        (sp.csr_matrix(np.full((3, 3), -1.0)), "connectivity", ValueError, "negative"),
        (sp.eye(3), "connectivity", ValueError, "no edge"),
        (sp.eye(3), "similarity", ValueError, "graph_mode.*'similarity'"),
    ],
)
def test_bad_graphs_are_named(graph, mode, error, match):
    with pytest.raises(error, match=match):
        _graph.check_graph(graph, 3, mode)


def test_one_sided_affinities_become_symmetric():
    weights = sp.csr_matrix(([0.5, 0.2, 0.9], ([0, 1, 1], [1, 0, 2])), shape=(3, 3))
    found = _graph.given_graph(weights, 3, "connectivity").toarray()
    np.testing.assert_allclose(found, np.array([[0, 0.5, 0], [0.5, 0, 0.9], [0, 0.9, 0]]) / 0.9, rtol=1e-6)


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_search_space_reduces_only_wide_data(points, kind):
    X = points if kind == "dense" else sp.csr_matrix(points)
    assert _graph.search_space(X, 5, seed=0) is X
    assert _graph.search_space(X, None, seed=0) is X
    reduced = _graph.search_space(X, 3, seed=0)
    assert reduced.shape == (60, 3)
    reference = points - points.mean(axis=0) if kind == "dense" else points
    values = np.linalg.svd(reference, compute_uv=False)[:3]
    np.testing.assert_allclose(np.linalg.norm(reduced, axis=0), values, rtol=0.05)
