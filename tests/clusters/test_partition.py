import numpy as np
import pytest
from scipy.stats import rankdata
from sklearn.datasets import make_blobs
from sklearn.metrics import adjusted_rand_score

from scvcc._clusters import partition as _partition
from scvcc._clusters.assignment import nearest_center
from scvcc._clusters.merging import ClusterGraph, compact
from scvcc._training import graph as _graph


def test_agreement_is_the_adjusted_rand_index():
    rng = np.random.default_rng(0)
    partitions = [compact(rng.integers(k, size=40)) for k in (1, 1, 2, 3, 4, 5)]
    expected = [[adjusted_rand_score(a, b) for b in partitions] for a in partitions]
    np.testing.assert_allclose(_partition.agreement_between(partitions), expected, atol=1e-12)


@pytest.mark.parametrize("seed", range(12))
def test_the_choice_counted_by_hand(blobs, monkeypatch, seed):
    """Each score names a tenth, copies included; of those like the most agreed with, the one with the highest compromise."""
    H, graph, _ = blobs
    rng = np.random.default_rng(seed)
    pool = [compact(nearest_center(H, H[rng.choice(210, 4, replace=False)])) for _ in range(80)]
    times = rng.integers(1, 4, size=80)
    monkeypatch.setattr(_partition, "candidate_partitions", lambda *_: (pool, times))
    views = [
        (labels, ClusterGraph.of(graph, labels))
        for labels, count in zip(pool, times, strict=True)
        for _ in range(count)
    ]
    views = [(labels, view) for labels, view in views if view.size.min() >= 5 and not view.is_lopsided()]
    modularity = [view.modularity(0.75) for _, view in views]
    separation = [view.separation() for _, view in views]
    weakest = [view.weakest_conductance() for _, view in views]
    compromise = (
        _partition.rank_with_ties(np.array(separation))
        + _partition.rank_with_ties(-np.array(weakest))
        + 0.25 * rankdata(modularity)
    )
    named = []
    for score in (modularity, separation, compromise):
        named += sorted(range(len(views)), key=lambda i: -score[i])[: len(views) // 10]
    like = {(i, j): adjusted_rand_score(views[i][0], views[j][0]) for i in named for j in named}
    center = max(sorted(set(named)), key=lambda i: sum(like[i, j] for j in named))
    best = max((i for i in sorted(set(named)) if like[center, i] >= 0.9), key=lambda i: compromise[i])
    np.testing.assert_array_equal(_partition.choose_partition(H, graph, 4, rng), views[best][0])


def test_partitions_are_counted_however_they_are_numbered():
    rng = np.random.default_rng(0)
    partitions = [rng.integers(k, size=300) for k in (1, 2, 3, 150)]
    renumbered = [rng.permutation(labels.max() + 1 + extra)[labels] for labels in partitions for extra in (0, 0, 200)]
    found, times = _partition.distinct([*partitions, *renumbered], np.arange(16))
    assert [adjusted_rand_score(a, b) for a, b in zip(found, partitions, strict=True)] == [1.0] * 4
    assert [labels.max() + 1 for labels in found] == [len(np.unique(labels)) for labels in partitions]
    assert times.tolist() == [i + sum(range(4 + 3 * i, 7 + 3 * i)) for i in range(4)]


def test_candidates_count_every_start(blobs):
    H, graph, _ = blobs
    candidates, times = _partition.candidate_partitions(H, graph, 3, np.random.default_rng(0))
    starts = 30 + 9 * len(_partition.LINKAGES)
    assert times.sum() == 2 * starts  # as found, and polished
    agreement = _partition.agreement_between(candidates) - np.eye(len(candidates))
    assert agreement.max() < 1


@pytest.mark.parametrize("seed", range(4))
def test_chosen_partition_finds_the_blobs(blobs, seed):
    """Nearly all other candidates cut the largest one, each at another place: the truth is found often, and counts so."""
    H, graph, truth = blobs
    labels = _partition.choose_partition(H, graph, 3, np.random.default_rng(seed))
    assert adjusted_rand_score(truth, labels) > 0.98


@pytest.mark.parametrize("n_blobs", [3, 5])
def test_the_choice_finds_clear_groups_of_very_different_size(n_blobs):
    sizes = (30 * 2 ** np.arange(n_blobs)).tolist()
    H, truth = make_blobs(sizes, n_features=10, centers=15 * np.eye(n_blobs, 10), random_state=0)
    graph = _graph.latent_graph(_graph.neighbor_distances(H, 15))
    labels = _partition.choose_partition(H, graph, n_blobs, np.random.default_rng(0))
    assert adjusted_rand_score(truth, labels) == 1


@pytest.mark.parametrize(("n", "n_clusters", "expected"), [(210, 3, 42), (210, 10, 100), (20, 3, 20), (9000, 3, 1000)])
def test_kmeans_runs_on_few_weighted_groups(n, n_clusters, expected):
    H = np.random.default_rng(0).normal(size=(n, 2)) * [1, 5]
    group, means, sizes = _partition.small_groups(H, n_clusters, np.random.default_rng(0))
    assert 0.9 * expected < len(means) <= expected
    np.testing.assert_array_equal(sizes, np.bincount(group))
    np.testing.assert_allclose(means[7], H[group == 7].mean(axis=0))
    within = np.square(H - means[group]).sum() / np.square(H - H.mean(axis=0)).sum()
    assert within < 10 / expected  # near points


def test_kmeans_on_weighted_groups_is_kmeans_on_their_points():
    """Three points at 0 join the hundred at 1; were all places alike, those at 1 would join those at 1.9."""
    places, sizes = np.array([[0.0], [1.0], [1.9]]), np.array([3, 100, 100])
    for seed in range(5):
        found = _partition.kmeans_labels(places, 2, np.random.default_rng(seed), sizes.astype(float))
        points = _partition.kmeans_labels(np.repeat(places, sizes, axis=0), 2, np.random.default_rng(seed))
        assert found[0] == found[1] != found[2]
        assert points[0] == points[3] != points[103]


def test_candidates_take_no_more_kmeans_for_more_points(monkeypatch):
    """Rows times clusters of all runs of k-means: what a step of it costs."""
    work, original = [], _partition.kmeans_labels

    def counted(H, k, *args, **options):
        work[-1] += min(len(H), 20_000) * k
        return original(H, k, *args, **options)

    monkeypatch.setattr(_partition, "kmeans_labels", counted)
    for n in (6000, 24_000):
        H, _ = make_blobs(n, n_features=2, centers=5, random_state=0)
        graph = _graph.latent_graph(_graph.neighbor_distances(H, 5))
        work.append(0)
        _partition.candidate_partitions(H, graph, 5, np.random.default_rng(0))
    groups = 1000 * (30 * 5 + 3 * 5 * (2 + 3 + 8))
    assert work == [6000 * 1000 + groups, 20_000 * 1000 + groups]


def test_kmeans_on_part_of_the_rows(blobs):
    H, _, truth = blobs
    labels = _partition.kmeans_labels(H, 3, np.random.default_rng(0), most_rows=100)
    assert labels.shape == (210,)
    assert adjusted_rand_score(truth, labels) > 0.98
