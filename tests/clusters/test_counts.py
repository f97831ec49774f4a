import numpy as np
import pytest
from sklearn.datasets import make_blobs

from scvcc._clusters import counts as _counts
from scvcc._clusters.merging import ClusterGraph
from scvcc._training import graph as _graph


@pytest.mark.parametrize("n_blobs", [3, 7])
def test_estimate_finds_the_number_of_blobs(n_blobs):
    H, _ = make_blobs(100 * n_blobs, n_features=10, centers=n_blobs, random_state=0)
    graph = _graph.latent_graph(_graph.neighbor_distances(H, 15))
    assert _counts.estimate_n_clusters(H, graph, np.random.default_rng(0)) == n_blobs


def test_estimate_can_be_as_many_as_the_micro_clusters():
    H = np.random.default_rng(0).normal(size=(50, 10)) + np.repeat(100 * np.eye(5, 10), 10, axis=0)
    graph = _graph.latent_graph(_graph.neighbor_distances(H, 7))
    assert _counts.estimate_n_clusters(H, graph, np.random.default_rng(0)) == 5


@pytest.fixture(scope="module")
def counts():
    H, _ = make_blobs([150, 100, 60, 40, 12, 6], n_features=10, random_state=0)
    graph = _graph.latent_graph(_graph.neighbor_distances(H, 5))
    return H, graph


def test_counts_equal_the_scores_of_their_partitions(counts, slow_modularity):
    H, graph = counts
    fine, found = _counts.score_counts(H, graph, np.random.default_rng(0), limits=(3, 9))
    assert list(found) == list(range(3, 10))
    for k, count in found.items():
        labels = count.parent[fine]
        assert len(np.unique(labels)) == k
        assert count.score == pytest.approx(slow_modularity(graph, labels, 0.5), abs=1e-5)
        assert count.smallest == np.bincount(labels).min()
        different = labels[:, None] != labels[None, :]
        assert count.cut == pytest.approx((graph.toarray() * different).sum() / graph.sum(), abs=1e-5)
    assert _counts.best_count(found) == max(found, key=lambda k: found[k].score) == 6


@pytest.mark.parametrize(("min_size", "expected"), [(1, 6), (10, 5), (30, 4), (50, 3)])
def test_no_cluster_of_an_estimated_number_is_too_small(counts, min_size, expected):
    H, graph = counts
    fine, found = _counts.score_counts(H, graph, np.random.default_rng(0), min_size=min_size)
    k = _counts.estimate_n_clusters(H, graph, np.random.default_rng(0), min_size)
    assert k == _counts.best_count(found) == expected
    assert found[k].eligible and found[k].smallest >= min_size
    assert not any(count.eligible for count in found.values() if count.smallest < min_size)
    labels = _counts.estimate_partition(H, graph, np.random.default_rng(0), min_size)
    assert np.bincount(labels).min() >= min_size and labels.max() == k - 1


def test_a_choice_with_too_small_a_cluster_falls_back_to_the_estimate(counts, monkeypatch):
    H, graph = counts
    lopsided = np.minimum(np.arange(len(H)), 5)
    monkeypatch.setattr(_counts, "choose_partition", lambda *_: lopsided)
    assert np.array_equal(_counts.estimate_partition(H, graph, np.random.default_rng(0), 1), lopsided)
    labels = _counts.estimate_partition(H, graph, np.random.default_rng(0), 10)
    assert np.bincount(labels).tolist() != np.bincount(lopsided).tolist() and np.bincount(labels).min() >= 10


def test_lopsided_numbers_are_not_chosen(counts):
    H, graph = counts
    view = ClusterGraph.of(graph, np.minimum(np.arange(len(H)), 2))
    assert not _counts.Count.of(view, np.arange(3), 1).eligible
    assert _counts.Count.of(ClusterGraph.of(graph, np.arange(len(H)) % 3), np.arange(3), 1).eligible
    few = _counts.Count(np.zeros(1), 0.9, 0.0, 50, 0.99, eligible=False)
    good = _counts.Count(np.zeros(1), 0.5, 0.0, 50, 0.4, eligible=True)
    assert _counts.best_count({2: few, 3: good}) == 3
    assert _counts.best_count({4: few}) == 4
    assert _counts.best_count({}) == 2


def test_more_than_forty_clusters_are_found():
    rng = np.random.default_rng(0)
    truth = np.repeat(np.arange(60), 60)
    H = 20 * rng.normal(size=(60, 6))[truth] + rng.normal(scale=0.3, size=(3600, 6))
    graph = _graph.latent_graph(_graph.neighbor_distances(H, 15))
    found = _counts.estimate_n_clusters(H, graph, rng, 10)
    assert 55 <= found <= 62


def test_of_all_merges_the_eligible_one_with_the_highest_score_is_kept(counts, monkeypatch):
    rng, tried = np.random.default_rng(0), {}

    def drawn(fine, parent, min_size):
        count = _counts.Count(parent, rng.random(), 0.0, 1, 0.0, bool(rng.random() < 0.3))
        tried.setdefault(int(parent.max()) + 1, []).append(count)
        return count

    monkeypatch.setattr(_counts.Count, "of", drawn)
    _, best = _counts.score_counts(*counts, np.random.default_rng(0), limits=(2, 20))
    assert len(best) == 19 and all(len(tried[k]) > 1 for k in best)
    for k, count in best.items():
        eligible = [other for other in tried[k] if other.eligible] or tried[k]
        assert count is max(eligible, key=lambda other: other.score)
