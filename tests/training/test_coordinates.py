import numba
import numpy as np
import pytest
import scipy.sparse as sp
import torch

from scvcc._training import coordinates as _coordinates
from scvcc._training import graph as _graph
from scvcc._training import losses as _losses
from scvcc._training import sampling as _sampling
from scvcc._training.coordinates import FreeCoordinates
from scvcc._training.threads import threads_for


@pytest.fixture
def weighted(settings):
    """Settings with other weights."""
    return settings(weights={"boundary": 0.3, "contraction": 1.0, "expansion": 0.2, "clustering": 1.0})


@pytest.fixture
def graph():
    Z = np.random.default_rng(0).normal(size=(40, 4))
    return _graph.latent_graph(_graph.neighbor_distances(Z, 5))


def compiled_gradient(H, graph, *, boundary=0.0, contraction=0.0, expansion=0.0, repulsion=0.1, n_negatives=5, seed=0):
    minus, plus = _coordinates.edge_strengths(graph)
    forces = np.array([boundary, contraction, expansion, repulsion], np.float32)
    G = np.zeros(H.shape, np.float32)
    _coordinates._add_gradient(
        H.astype(np.float32),
        G,
        graph.indptr.astype(np.int64),
        graph.indices.astype(np.int32),
        minus,
        plus,
        forces,
        np.uint64(seed),
        n_negatives,
    )
    return G


@pytest.mark.parametrize(("boundary", "contraction"), [(0.4, 0.0), (0.0, 1.0), (0.3, 0.7)])
def test_edge_forces_are_the_gradient_of_the_losses(graph, boundary, contraction):
    H = np.random.default_rng(1).normal(size=(40, 3))
    points = torch.from_numpy(H).requires_grad_()
    edges = _sampling.augmented_edges(graph)
    d = _losses.pair_distance(points[edges.head], points[edges.tail])
    minus, plus = torch.from_numpy(edges.boundary), torch.from_numpy(edges.contraction)
    loss = boundary * _losses.boundary_loss(d, minus, repulsion=0.1) + contraction * _losses.contraction_loss(d, plus)
    (40 * loss).backward()
    found = compiled_gradient(H, graph, boundary=boundary, contraction=contraction)
    np.testing.assert_allclose(found, points.grad.numpy(), rtol=2e-4, atol=2e-5)


def test_exponential_is_accurate_over_its_range():
    x = np.concatenate([[0.0], np.geomspace(1e-3, 15, 2000)]).astype(np.float32)
    found = np.array([_coordinates._exp.py_func(value) for value in x])
    np.testing.assert_allclose(found, np.exp(x.astype(np.float64)), rtol=1e-6)


def test_strangers_are_neither_the_point_nor_its_neighbors(graph):
    pointers, neighbors = graph.indptr.astype(np.int64), graph.indices.astype(np.int32)
    drawn = set()
    for seed in range(300):
        starts, strangers = _coordinates._draw_strangers(40, 8, pointers[8:13], neighbors, np.uint64(seed), 5)
        drawn |= {(8 + i, int(j)) for i in range(4) for j in strangers[starts[i] : starts[i + 1]]}
    free = graph.toarray()[8:12] == 0
    free[np.arange(4), np.arange(8, 12)] = False
    assert drawn == {(8 + int(i), int(j)) for i, j in zip(*np.nonzero(free), strict=True)}


def test_far_edges_pull_and_do_not_push():
    pair = sp.csr_matrix(np.array([[0, 1], [1, 0]], dtype=np.float32))
    found = compiled_gradient(np.array([[0.0, 0.0], [100.0, 0.0]]), pair, boundary=1.0)
    near = compiled_gradient(np.array([[0.0, 0.0], [10.0, 0.0]]), pair, boundary=1.0)
    np.testing.assert_allclose(found, near, rtol=1e-5)
    assert found[0, 0] < 0 < found[1, 0]


def test_expansion_force_is_its_expected_gradient(graph):
    H = np.random.default_rng(1).normal(size=(40, 2))
    connected = (graph.toarray() > 0) | np.eye(40, dtype=bool)
    points = torch.from_numpy(H).requires_grad_()
    expected = np.zeros_like(H)
    for i in range(40):
        strangers = np.flatnonzero(~connected[i])
        d = _losses.pair_distance(points[i].expand(len(strangers), 2), torch.from_numpy(H[strangers]))
        gradient = torch.autograd.grad(_losses.expansion_loss(d), points)[0]
        expected[i] = 2 * gradient[i].numpy()
    draws = [compiled_gradient(H, graph, expansion=1.0, n_negatives=50, seed=s) for s in range(200)]
    spread = np.std(draws, axis=0) / np.sqrt(200)
    assert (np.abs(np.mean(draws, axis=0) - expected) < 5 * spread + 1e-3).all()


def test_no_push_where_everything_is_connected():
    graph = sp.csr_matrix(np.ones((6, 6), np.float32) - np.eye(6, dtype=np.float32))
    H = np.random.default_rng(0).normal(size=(6, 2))
    np.testing.assert_array_equal(compiled_gradient(H, graph, expansion=1.0), 0)


def test_clustering_force_is_the_gradient_of_the_loss():
    rng = np.random.default_rng(0)
    H, C = rng.normal(size=(30, 2)).astype(np.float32), rng.normal(size=(4, 2))
    points, centers = torch.from_numpy(H.astype(np.float64)).requires_grad_(), torch.from_numpy(C).requires_grad_()
    Q = _losses.soft_assignment(points, centers)
    P = _losses.target_distribution(Q, Q.sum(dim=0)).detach()
    (0.7 * 30 * _losses.clustering_loss(P, Q)).backward()
    gradient = np.zeros_like(H)
    counts = Q.sum(dim=0).detach().numpy()
    frequencies, center_gradient = _coordinates.add_clustering_gradient(H, C, counts, gradient, 0.7)
    np.testing.assert_allclose(gradient, points.grad, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(center_gradient, centers.grad, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(frequencies, Q.sum(dim=0).detach(), rtol=1e-6)


def test_contraction_between_clusters_counts_less(graph):
    labels = np.arange(graph.shape[0]) % 3
    (minus, plus), (same_minus, held) = _coordinates.edge_strengths(graph), _coordinates.edge_strengths(graph, labels)
    heads = np.repeat(np.arange(graph.shape[0]), np.diff(graph.indptr))
    crossing = labels[heads] != labels[graph.indices]
    np.testing.assert_array_equal(same_minus, minus)
    np.testing.assert_allclose(held, np.where(crossing, 0.25, 1) * plus, rtol=1e-6)
    assert 0 < crossing.mean() < 1


def test_adam_step_equals_torch():
    rng = np.random.default_rng(0)
    H = rng.normal(size=(7, 3)).astype(np.float32)
    moments = np.zeros((2, 7, 3), np.float32)
    reference = torch.nn.Parameter(torch.from_numpy(H.copy()))
    optimizer = torch.optim.Adam([reference], lr=0.05, betas=(0.9, 0.99))
    for step in range(1, 6):
        gradient = rng.normal(size=(7, 3)).astype(np.float32)
        _coordinates.adam_step(H, gradient, moments, step, 0.05)
        reference.grad = torch.from_numpy(gradient)
        optimizer.step()
    np.testing.assert_allclose(H, reference.detach(), rtol=1e-4, atol=1e-6)


def test_same_bits_for_any_number_of_threads_and_any_chunks(graph, weighted, monkeypatch):
    monkeypatch.setattr(_coordinates, "threads_for", lambda n: threads_for(n, least=1))
    start = np.random.default_rng(2).normal(size=(40, 2))

    def run(threads, chunk):
        before = numba.get_num_threads()
        numba.set_num_threads(threads)
        points = FreeCoordinates(start, graph, weighted, 7, 30, 0.1, centers=np.eye(2))
        while points.step < 30:
            points.run(chunk)
        numba.set_num_threads(before)
        return points.H, points.centers

    H, centers = run(1, 30)
    for other in (run(min(2, numba.config.NUMBA_NUM_THREADS), 30), run(1, 7)):
        np.testing.assert_array_equal(other[0], H)
        np.testing.assert_array_equal(other[1], centers)


def test_another_seed_gives_other_pairs(graph):
    H = np.random.default_rng(1).normal(size=(40, 2))
    a, b = (compiled_gradient(H, graph, expansion=1.0, seed=seed) for seed in (0, 1))
    assert not np.allclose(a, b)


def test_schedules(weighted):
    graph = sp.csr_matrix(np.ones((3, 3), np.float32) - np.eye(3, dtype=np.float32))
    start = np.random.default_rng(0).normal(size=(3, 2))
    plain = FreeCoordinates(start, graph, weighted, 0, 10, 0.1)
    plain.run(5)
    assert plain.boundary_weight == weighted.weights["boundary"]
    assert plain.beta == 0
    with_centers = FreeCoordinates(start, graph, weighted, 0, 10, 0.1, centers=start[:2])
    with_centers.run(5)
    assert with_centers.boundary_weight == pytest.approx(weighted.weights["boundary"] / 2)
    assert with_centers.beta == pytest.approx(0.1)
    with_centers.run(99)
    assert with_centers.step == 10
    assert with_centers.beta == pytest.approx(0.2)
