import numpy as np
import pytest
import scipy.sparse as sp

from scvcc._training import sampling as _sampling


def random_graph(n, density, seed=0):
    upper = sp.triu(sp.random(n, n, density=density, random_state=seed), k=1)
    graph = sp.csr_matrix(upper + upper.T, dtype=np.float32)
    graph.sort_indices()
    return graph


def test_rates_equal_the_formulas():
    weights = np.array([1.0, 0.5, 0.3, 0.06, 0.001])
    np.testing.assert_array_equal(_sampling.boundary_rates(weights), [1, 2, 3, 16, 50])
    np.testing.assert_array_equal(_sampling.boundary_rates(weights, cap=1e9), [1, 2, 3, 16, 1000])
    mean = weights.mean()
    np.testing.assert_array_equal(_sampling.contraction_rates(weights), [int(w / mean) for w in weights])
    assert (_sampling.contraction_rates(weights)[weights < mean] == 0).all()


@pytest.mark.parametrize("value", [0.1, 0.7, 1 / 3])
def test_equal_weights_are_all_drawn(value):
    weights = np.full(7, value, dtype=np.float32)
    np.testing.assert_array_equal(_sampling.boundary_rates(weights), 1)
    np.testing.assert_array_equal(_sampling.contraction_rates(weights), 1)


def test_augmented_edges_are_each_edge_once():
    graph = random_graph(12, 0.4)
    edges = _sampling.augmented_edges(graph)
    assert len(edges.head) == graph.nnz // 2
    assert (edges.head < edges.tail).all()
    weights = np.array([graph[i, j] for i, j in zip(edges.head, edges.tail, strict=True)])
    duplicated = _sampling.boundary_rates(weights)
    np.testing.assert_allclose(edges.boundary, duplicated / duplicated.sum())
    assert edges.contraction.sum() == pytest.approx(1)


def test_drawn_edges_follow_their_shares():
    graph = random_graph(8, 0.3, seed=1)
    edges = _sampling.augmented_edges(graph)
    *drawn, (head, tail) = _sampling.draw_pairs(edges, graph, 20_000, np.random.default_rng(0))
    for (first, second), share in zip(drawn, (edges.boundary, edges.contraction), strict=True):
        frequency = [((first == i) & (second == j)).mean() for i, j in zip(edges.head, edges.tail, strict=True)]
        assert sum(frequency) == pytest.approx(1)
        np.testing.assert_allclose(frequency, share, atol=0.015)
    assert not np.asarray(graph[head, tail]).any()


@pytest.mark.parametrize("n", range(2, 11))
@pytest.mark.parametrize("density", [0.3, 0.8])
def test_disconnected_pairs_by_enumeration(n, density):
    graph = random_graph(n, density, seed=n)
    allowed = {(i, j) for i in range(n) for j in range(n) if i != j and graph[i, j] == 0}
    head, tail = _sampling.sample_disconnected_pairs(graph, 4000, np.random.default_rng(n))
    assert set(zip(head.tolist(), tail.tolist(), strict=True)) == allowed
    if allowed:
        assert len(head) == 4000
        counts = np.unique(head * n + tail, return_counts=True)[1]
        assert counts.max() < 3 * 4000 / len(allowed) + 30  # roughly uniform


def test_a_nearly_complete_graph_does_not_take_long():
    graph = sp.lil_matrix(np.ones((300, 300)) - np.eye(300))
    graph[7, 250] = graph[250, 7] = 0
    head, tail = _sampling.sample_disconnected_pairs(sp.csr_matrix(graph), 20_000, np.random.default_rng(0))
    assert set(zip(head.tolist(), tail.tolist(), strict=True)) == {(7, 250), (250, 7)}


@pytest.mark.parametrize("n", [3, 6, 10])
def test_strangers_by_enumeration(n):
    graph = random_graph(n, 0.5, seed=n)
    tails, valid = _sampling.sample_strangers(graph, np.arange(n), 300, np.random.default_rng(0))
    for i in range(n):
        allowed = {j for j in range(n) if j != i and graph[i, j] == 0}
        assert set(tails[i][valid[i]].tolist()) == allowed
        assert set(tails[i][~valid[i]].tolist()) == set(range(n)) - allowed


def test_sampled_neighbors_follow_their_rates():
    graph = random_graph(8, 0.7)
    rates = np.floor(np.random.default_rng(0).uniform(0, 4, graph.nnz))
    drawn = _sampling.sample_neighbors(graph, np.arange(8), rates, 6000, np.random.default_rng(1))
    for i in range(8):
        row = slice(graph.indptr[i], graph.indptr[i + 1])
        expected = np.zeros(8)
        expected[graph.indices[row]] = rates[row]
        if expected.sum() == 0:
            assert (drawn[i] == i).all()
            continue
        np.testing.assert_allclose(np.bincount(drawn[i], minlength=8) / 6000, expected / expected.sum(), atol=0.03)


def test_rows_without_edges_draw_themselves():
    graph = sp.csr_matrix(([1.0, 1.0], ([0, 1], [1, 0])), shape=(4, 4))
    drawn = _sampling.sample_neighbors(graph, np.arange(4), np.ones(2), 5, np.random.default_rng(0))
    np.testing.assert_array_equal(drawn[:, 0], [1, 0, 2, 3])


def test_draws_are_for_the_points_asked_for():
    graph, points = random_graph(9, 0.4), np.array([5, 2, 5])
    drawn = _sampling.sample_neighbors(graph, points, np.ones(graph.nnz), 500, np.random.default_rng(0))
    tails, valid = _sampling.sample_strangers(graph, points, 500, np.random.default_rng(0))
    for row, i in enumerate(points):
        neighbors = set(np.flatnonzero(graph[i].toarray().ravel()).tolist())
        assert set(drawn[row].tolist()) == neighbors
        assert set(tails[row][valid[row]].tolist()) == set(range(9)) - neighbors - {int(i)}
