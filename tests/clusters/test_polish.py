import numpy as np
import scipy.sparse as sp
from sklearn.metrics import adjusted_rand_score

from scvcc._clusters.polish import polish


def test_polish_gains_modularity_and_empties_nothing(blobs, slow_modularity):
    H, graph, truth = blobs
    rng = np.random.default_rng(0)
    noisy = np.where(rng.random(210) < 0.2, rng.integers(3, size=210), truth)
    before = noisy.copy()
    found = polish(graph, noisy[None], rng.permutation(210), 0.75)[0]
    np.testing.assert_array_equal(noisy, before)
    assert slow_modularity(graph, found, 0.75) > slow_modularity(graph, noisy, 0.75)
    assert adjusted_rand_score(truth, found) > 0.98
    alone = truth.copy()
    alone[0] = 3
    assert len(np.unique(polish(graph, alone[None], rng.permutation(210), 0.75)[0])) == 4


def test_points_move_to_clusters_of_their_neighbors_only():
    """At this resolution points of the larger cluster would gain in the other, where none of them has a neighbor."""
    graph = sp.csr_matrix(np.kron(np.eye(3), [[0, 1], [1, 0]]).astype(np.float32))
    labels = np.array([[0, 0, 0, 0, 1, 1]])
    np.testing.assert_array_equal(polish(graph, labels, np.arange(6), 10.0), labels)


def test_many_partitions_are_polished_as_each_alone(blobs):
    _, graph, truth = blobs
    rng = np.random.default_rng(1)
    noisy = np.where(rng.random((7, 210)) < 0.3, rng.integers(3, size=(7, 210)), truth)
    order = rng.permutation(210)
    alone = [polish(graph, labels[None], order, 0.75)[0] for labels in noisy]
    np.testing.assert_array_equal(polish(graph, noisy, order, 0.75), alone)


def test_polish_leaves_hardly_a_point_that_would_gain_by_moving(blobs, slow_modularity):
    _, graph, _ = blobs
    rng = np.random.default_rng(0)
    found = polish(graph, rng.integers(3, size=(1, 210)), rng.permutation(210), 0.75)[0]
    best, would_gain = slow_modularity(graph, found, 0.75), 0
    for point in range(210):
        others = np.repeat(found[None], 3, axis=0)
        others[:, point] = range(3)
        would_gain += max(slow_modularity(graph, moved, 0.75) for moved in others) > best + 1e-6
    assert would_gain <= 4  # ~20 if points are looked at only once
