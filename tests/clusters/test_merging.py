import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

from scvcc._clusters.merging import ClusterGraph, Linkage, compact, merge_clusters
from scvcc._clusters.partition import kmeans_labels


@pytest.mark.parametrize("resolution", [1.0, 0.5])
def test_modularity_equals_the_double_sum(blobs, resolution, slow_modularity):
    _, graph, truth = blobs
    for labels in (truth, np.random.default_rng(0).integers(4, size=210)):
        found = ClusterGraph.of(graph, labels).modularity(resolution)
        assert found == pytest.approx(slow_modularity(graph, labels, resolution), rel=1e-5)


def test_scores_equal_their_definitions(blobs):
    _, graph, truth = blobs
    labels = np.where(np.arange(210) % 7 == 0, 1, truth)
    A = graph.toarray().astype(float)
    view = ClusterGraph.of(graph, labels)
    volume = np.array([A[labels == k].sum() for k in range(3)]) / A.sum()
    inside = np.array([A[np.ix_(labels == k, labels == k)].sum() for k in range(3)]) / A.sum()
    assert view.separation() == pytest.approx(-np.log(1 - inside.sum() + 0.01) - np.log((volume**2).sum()), rel=1e-5)
    assert view.weakest_conductance() == pytest.approx(max(1 - inside / volume), rel=1e-5)
    assert not view.is_lopsided()
    assert ClusterGraph.of(graph, np.minimum(np.arange(210), 2)).is_lopsided()


def test_a_coarser_view_equals_the_view_of_the_coarser_partition(blobs):
    H, graph, _ = blobs
    labels = np.random.default_rng(0).integers(6, size=210)
    parent = np.array([0, 1, 0, 2, 1, 2])
    a, b = ClusterGraph.of(graph, labels).merged(parent), ClusterGraph.of(graph, parent[labels])
    np.testing.assert_allclose(a.share, b.share, atol=1e-9)
    np.testing.assert_array_equal(a.size, b.size)


LINKAGES = [Linkage(resolution=0.7), Linkage(power=1.0), Linkage(power=0.5), Linkage(power=0.75, min_size=30)]


@pytest.mark.parametrize("linkage", LINKAGES)
def test_merges_are_greedy(blobs, linkage):
    H, graph, _ = blobs
    labels = compact(kmeans_labels(H, 20, np.random.default_rng(0)))
    A = graph.toarray().astype(float) / graph.sum()
    current = np.arange(20)
    for parent in linkage.merge_chain(ClusterGraph.of(graph, labels)):
        best = {}
        for a in np.unique(current):
            for b in np.unique(current[current > a]):
                in_a, in_b = current[labels] == a, current[labels] == b
                weight, chance = A[np.ix_(in_a, in_b)].sum(), A[in_a].sum() * A[in_b].sum()
                best[a, b] = weight - 0.7 * chance if linkage.resolution else weight / chance**linkage.power
        size = np.bincount(current[labels], minlength=20)
        smallest = min(np.unique(current), key=lambda a: size[a])
        if size[smallest] < linkage.least(210):
            best = {pair: strength for pair, strength in best.items() if smallest in pair}
        joined = [(a, b) for a, b in best if (parent[current == b] == a).all()]
        assert len(joined) == 1
        assert best[joined[0]] == pytest.approx(max(best.values()), abs=1e-6)
        current = parent
        k = len(np.unique(current))
        np.testing.assert_array_equal(merge_clusters(ClusterGraph.of(graph, labels), k, linkage), compact(current))
    assert k == 1


def merged(graph, labels, n_clusters, linkage):
    return merge_clusters(ClusterGraph.of(graph, labels), n_clusters, linkage)[labels]


def test_small_clusters_are_absorbed_first(blobs):
    H, graph, truth = blobs
    labels = truth.copy()
    labels[:2] = 3
    assert set(np.bincount(merged(graph, labels, 3, Linkage(min_size=5)))) == {120, 60, 30}


@pytest.mark.parametrize("power", [0.5, 1.0])
def test_merging_micro_clusters_finds_uneven_blobs(blobs, power):
    H, graph, truth = blobs
    fine = compact(kmeans_labels(H, 12, np.random.default_rng(0)))
    assert adjusted_rand_score(truth, merged(graph, fine, 3, Linkage(power=power))) > 0.98
    assert merged(graph, fine, 5, Linkage(power=power)).max() == 4
