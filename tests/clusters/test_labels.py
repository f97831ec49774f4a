import numpy as np
import pytest
import scipy.sparse as sp
from scipy.stats import rankdata
from sklearn.datasets import make_blobs
from sklearn.metrics import adjusted_rand_score

from scvcc._clusters import labels as _labels
from scvcc._clusters.labels import ClusterGraph, Linkage
from scvcc._training import graph as _graph


@pytest.fixture
def blobs():
    rng = np.random.default_rng(0)
    sizes = [120, 60, 30]
    truth = np.repeat([0, 1, 2], sizes)
    H = rng.normal(scale=0.3, size=(210, 2)) + np.array([[0, 0], [4, 0], [0, 4]])[truth]
    graph = _graph.latent_graph(_graph.neighbor_distances(H, 10))
    return H, graph, truth


def slow_modularity(graph, labels, resolution):
    A = graph.toarray().astype(float)
    m2, k = A.sum(), A.sum(axis=1)
    same = labels[:, None] == labels[None, :]
    return ((A - resolution * np.outer(k, k) / m2) * same).sum() / m2


@pytest.mark.parametrize("resolution", [1.0, 0.5])
def test_modularity_equals_the_double_sum(blobs, resolution):
    _, graph, truth = blobs
    for labels in (truth, np.random.default_rng(0).integers(4, size=210)):
        found = ClusterGraph(graph, labels).modularity(resolution)
        assert found == pytest.approx(slow_modularity(graph, labels, resolution), rel=1e-5)


def test_scores_equal_their_definitions(blobs):
    _, graph, truth = blobs
    labels = np.where(np.arange(210) % 7 == 0, 1, truth)
    A = graph.toarray().astype(float)
    view = ClusterGraph(graph, labels)
    volume = np.array([A[labels == k].sum() for k in range(3)]) / A.sum()
    inside = np.array([A[np.ix_(labels == k, labels == k)].sum() for k in range(3)]) / A.sum()
    assert view.separation() == pytest.approx(-np.log(1 - inside.sum() + 0.01) - np.log((volume**2).sum()), rel=1e-5)
    assert view.weakest_conductance() == pytest.approx(max(1 - inside / volume), rel=1e-5)
    assert not view.is_lopsided()
    assert ClusterGraph(graph, np.minimum(np.arange(210), 2)).is_lopsided()


def test_a_coarser_view_equals_the_view_of_the_coarser_partition(blobs):
    H, graph, _ = blobs
    labels = np.random.default_rng(0).integers(6, size=210)
    parent = np.array([0, 1, 0, 2, 1, 2])
    a, b = ClusterGraph(graph, labels).merged(parent), ClusterGraph(graph, parent[labels])
    np.testing.assert_allclose(a.share, b.share, atol=1e-9)
    np.testing.assert_array_equal(a.size, b.size)


LINKAGES = [Linkage(resolution=0.7), Linkage(power=1.0), Linkage(power=0.5)]


@pytest.mark.parametrize("linkage", LINKAGES)
def test_merges_are_greedy(blobs, linkage):
    H, graph, _ = blobs
    labels = _labels.compact(_labels.kmeans_labels(H, 8, np.random.default_rng(0)))
    A = graph.toarray().astype(float) / graph.sum()
    current = np.arange(8)
    for parent in linkage.merge_chain(ClusterGraph(graph, labels)):
        best = {}
        for a in np.unique(current):
            for b in np.unique(current[current > a]):
                in_a, in_b = current[labels] == a, current[labels] == b
                weight, chance = A[np.ix_(in_a, in_b)].sum(), A[in_a].sum() * A[in_b].sum()
                best[a, b] = weight - 0.7 * chance if linkage.resolution else weight / chance**linkage.power
        joined = [(a, b) for a, b in best if (parent[current == b] == a).all()]
        assert len(joined) == 1
        assert best[joined[0]] == pytest.approx(max(best.values()), abs=1e-6)
        current = parent
    assert len(np.unique(current)) == 1


def merged(graph, labels, n_clusters, linkage):
    return _labels.merge_clusters(ClusterGraph(graph, labels), n_clusters, linkage)[labels]


def test_small_clusters_are_absorbed_first(blobs):
    H, graph, truth = blobs
    labels = truth.copy()
    labels[:2] = 3
    assert set(np.bincount(merged(graph, labels, 3, Linkage(min_size=5)))) == {120, 60, 30}


@pytest.mark.parametrize("power", [0.5, 1.0])
def test_merging_micro_clusters_finds_uneven_blobs(blobs, power):
    H, graph, truth = blobs
    fine = _labels.compact(_labels.kmeans_labels(H, 12, np.random.default_rng(0)))
    assert adjusted_rand_score(truth, merged(graph, fine, 3, Linkage(power=power))) > 0.98
    assert merged(graph, fine, 5, Linkage(power=power)).max() == 4


def test_polish_gains_modularity_and_empties_nothing(blobs):
    H, graph, truth = blobs
    rng = np.random.default_rng(0)
    noisy = np.where(rng.random(210) < 0.2, rng.integers(3, size=210), truth)
    before = noisy.copy()
    found = _labels.polish(graph, noisy[None], rng.permutation(210))[0]
    np.testing.assert_array_equal(noisy, before)
    assert slow_modularity(graph, found, 0.75) > slow_modularity(graph, noisy, 0.75)
    assert adjusted_rand_score(truth, found) > 0.98
    alone = truth.copy()
    alone[0] = 3
    assert len(np.unique(_labels.polish(graph, alone[None], rng.permutation(210))[0])) == 4


def test_many_partitions_are_polished_as_each_alone(blobs):
    _, graph, truth = blobs
    rng = np.random.default_rng(1)
    noisy = np.where(rng.random((7, 210)) < 0.3, rng.integers(3, size=(7, 210)), truth)
    order = rng.permutation(210)
    alone = [_labels.polish(graph, labels[None], order)[0] for labels in noisy]
    np.testing.assert_array_equal(_labels.polish(graph, noisy, order), alone)


def test_polish_leaves_hardly_a_point_that_would_gain_by_moving(blobs):
    _, graph, _ = blobs
    rng = np.random.default_rng(0)
    found = _labels.polish(graph, rng.integers(3, size=(1, 210)), rng.permutation(210))[0]
    best, would_gain = slow_modularity(graph, found, 0.75), 0
    for point in range(210):
        others = np.repeat(found[None], 3, axis=0)
        others[:, point] = range(3)
        would_gain += max(slow_modularity(graph, moved, 0.75) for moved in others) > best + 1e-6
    assert would_gain <= 4  # ~20 if points are looked at only once


def test_agreement_is_the_adjusted_rand_index():
    rng = np.random.default_rng(0)
    partitions = [_labels.compact(rng.integers(k, size=40)) for k in (1, 1, 2, 3, 4, 5)]
    expected = [[adjusted_rand_score(a, b) for b in partitions] for a in partitions]
    np.testing.assert_allclose(_labels.agreement_between(partitions), expected, atol=1e-12)


@pytest.mark.parametrize("seed", range(12))
def test_the_choice_counted_by_hand(blobs, monkeypatch, seed):
    """Each score names a tenth, copies included; of those like the most agreed with, the one with the highest compromise."""
    H, graph, _ = blobs
    rng = np.random.default_rng(seed)
    pool = [_labels.compact(_labels.nearest_center(H, H[rng.choice(210, 4, replace=False)])) for _ in range(80)]
    times = rng.integers(1, 4, size=80)
    monkeypatch.setattr(_labels, "candidate_partitions", lambda *_: (pool, times))
    views = [
        (labels, ClusterGraph(graph, labels)) for labels, count in zip(pool, times, strict=True) for _ in range(count)
    ]
    views = [(labels, view) for labels, view in views if view.size.min() >= 5 and not view.is_lopsided()]
    modularity = [view.modularity(0.75) for _, view in views]
    separation = [view.separation() for _, view in views]
    weakest = [view.weakest_conductance() for _, view in views]
    compromise = _labels._rank(np.array(separation)) + _labels._rank(-np.array(weakest)) + 0.25 * rankdata(modularity)
    named = []
    for score in (modularity, separation, compromise):
        named += sorted(range(len(views)), key=lambda i: -score[i])[: len(views) // 10]
    like = {(i, j): adjusted_rand_score(views[i][0], views[j][0]) for i in named for j in named}
    center = max(sorted(set(named)), key=lambda i: sum(like[i, j] for j in named))
    best = max((i for i in sorted(set(named)) if like[center, i] >= 0.9), key=lambda i: compromise[i])
    np.testing.assert_array_equal(_labels.choose_partition(H, graph, 4, rng), views[best][0])


def test_partitions_are_counted_however_they_are_numbered():
    rng = np.random.default_rng(0)
    partitions = [rng.integers(k, size=300) for k in (1, 2, 3, 150)]
    renumbered = [rng.permutation(labels.max() + 1 + extra)[labels] for labels in partitions for extra in (0, 0, 200)]
    found, times = _labels.distinct([*partitions, *renumbered], np.arange(16))
    assert [adjusted_rand_score(a, b) for a, b in zip(found, partitions, strict=True)] == [1.0] * 4
    assert [labels.max() + 1 for labels in found] == [len(np.unique(labels)) for labels in partitions]
    assert times.tolist() == [i + sum(range(4 + 3 * i, 7 + 3 * i)) for i in range(4)]


def test_candidates_count_every_start(blobs):
    H, graph, _ = blobs
    candidates, times = _labels.candidate_partitions(H, graph, 3, np.random.default_rng(0))
    starts = _labels.KMEANS_STARTS + _labels.FINE_STARTS * len(_labels.FINE_FACTORS) * len(_labels.LINKAGES)
    assert times.sum() == 2 * starts  # as found, and polished
    agreement = _labels.agreement_between(candidates) - np.eye(len(candidates))
    assert agreement.max() < 1


@pytest.mark.parametrize("seed", range(4))
def test_chosen_partition_finds_the_blobs(blobs, seed):
    """Nearly all other candidates cut the largest one, each at another place: the truth is found often, and counts so."""
    H, graph, truth = blobs
    labels = _labels.choose_partition(H, graph, 3, np.random.default_rng(seed))
    assert adjusted_rand_score(truth, labels) > 0.98


@pytest.mark.parametrize("n_blobs", [3, 5])
def test_the_choice_finds_clear_groups_of_very_different_size(n_blobs):
    sizes = (30 * 2 ** np.arange(n_blobs)).tolist()
    H, truth = make_blobs(sizes, n_features=10, centers=15 * np.eye(n_blobs, 10), random_state=0)
    graph = _graph.latent_graph(_graph.neighbor_distances(H, 15))
    labels = _labels.choose_partition(H, graph, n_blobs, np.random.default_rng(0))
    assert adjusted_rand_score(truth, labels) == 1


@pytest.mark.parametrize("n_blobs", [3, 7])
def test_estimate_finds_the_number_of_blobs(n_blobs):
    H, _ = make_blobs(100 * n_blobs, n_features=10, centers=n_blobs, random_state=0)
    graph = _graph.latent_graph(_graph.neighbor_distances(H, 15))
    assert _labels.estimate_n_clusters(H, graph, np.random.default_rng(0)) == n_blobs


def test_estimate_can_be_as_many_as_the_micro_clusters():
    H = np.random.default_rng(0).normal(size=(50, 10)) + np.repeat(100 * np.eye(5, 10), 10, axis=0)
    graph = _graph.latent_graph(_graph.neighbor_distances(H, 7))
    assert _labels.estimate_n_clusters(H, graph, np.random.default_rng(0)) == 5


@pytest.fixture(scope="module")
def counts():
    H, _ = make_blobs([150, 100, 60, 40, 12, 6], n_features=10, random_state=0)
    graph = _graph.latent_graph(_graph.neighbor_distances(H, 5))
    return H, graph


def test_counts_equal_the_scores_of_their_partitions(counts):
    H, graph = counts
    fine, found = _labels.score_counts(H, graph, np.random.default_rng(0), limits=(3, 9))
    assert list(found) == list(range(3, 10))
    for k, count in found.items():
        labels = count.parent[fine]
        assert len(np.unique(labels)) == k
        assert count.score == pytest.approx(slow_modularity(graph, labels, 0.5), abs=1e-5)
        assert count.smallest == np.bincount(labels).min()
        different = labels[:, None] != labels[None, :]
        assert count.cut == pytest.approx((graph.toarray() * different).sum() / graph.sum(), abs=1e-5)
    assert _labels.best_count(found) == max(found, key=lambda k: found[k].score) == 6


@pytest.mark.parametrize(("min_size", "expected"), [(1, 6), (10, 5), (30, 4), (50, 3)])
def test_no_cluster_of_an_estimated_number_is_too_small(counts, min_size, expected):
    H, graph = counts
    fine, found = _labels.score_counts(H, graph, np.random.default_rng(0), min_size=min_size)
    k = _labels.estimate_n_clusters(H, graph, np.random.default_rng(0), min_size)
    assert k == _labels.best_count(found) == expected
    assert found[k].eligible and found[k].smallest >= min_size
    assert not any(count.eligible for count in found.values() if count.smallest < min_size)
    labels = _labels.estimate_partition(H, graph, np.random.default_rng(0), min_size)
    assert np.bincount(labels).min() >= min_size and labels.max() == k - 1


def test_a_choice_with_too_small_a_cluster_falls_back_to_the_estimate(counts, monkeypatch):
    H, graph = counts
    lopsided = np.minimum(np.arange(len(H)), 5)
    monkeypatch.setattr(_labels, "choose_partition", lambda *_: lopsided)
    assert np.array_equal(_labels.estimate_partition(H, graph, np.random.default_rng(0), 1), lopsided)
    labels = _labels.estimate_partition(H, graph, np.random.default_rng(0), 10)
    assert np.bincount(labels).tolist() != np.bincount(lopsided).tolist() and np.bincount(labels).min() >= 10


def test_lopsided_numbers_are_not_chosen(counts):
    H, graph = counts
    view = ClusterGraph(graph, np.minimum(np.arange(len(H)), 2))
    assert not _labels._count(view, np.arange(3), 1).eligible
    assert _labels._count(ClusterGraph(graph, np.arange(len(H)) % 3), np.arange(3), 1).eligible
    few = _labels.Count(np.zeros(1), 0.9, 0.0, 50, 0.99, eligible=False)
    good = _labels.Count(np.zeros(1), 0.5, 0.0, 50, 0.4, eligible=True)
    assert _labels.best_count({2: few, 3: good}) == 3
    assert _labels.best_count({4: few}) == 4
    assert _labels.best_count({}) == 2


def test_small_clusters_give_their_points_to_the_next_center():
    H = np.concatenate([np.zeros((30, 1)), np.full((3, 1), 4.0), np.full((20, 1), 10.0), np.full((2, 1), 12.0)])
    centers = np.array([[0.0], [4.0], [10.0], [12.0]])
    np.testing.assert_array_equal(_labels.drop_small_clusters(H, centers, 1), centers)
    np.testing.assert_array_equal(_labels.drop_small_clusters(H, centers, 3), centers[:3])
    np.testing.assert_array_equal(_labels.drop_small_clusters(H, centers, 4), centers[[0, 2]])
    np.testing.assert_array_equal(_labels.drop_small_clusters(H, centers, 1000), centers[[0, 2]])  # never below two


def test_kmeans_on_part_of_the_rows(blobs, monkeypatch):
    H, _, truth = blobs
    monkeypatch.setattr(_labels, "KMEANS_ROWS", 100)
    labels = _labels.kmeans_labels(H, 3, np.random.default_rng(0))
    assert labels.shape == (210,)
    assert adjusted_rand_score(truth, labels) > 0.98


def test_means_and_medians(blobs):
    H, _, truth = blobs
    for k in range(3):
        np.testing.assert_allclose(_labels.cluster_means(H, truth, 3)[k], H[truth == k].mean(axis=0))
        np.testing.assert_allclose(_labels.cluster_medians(H, truth, 3)[k], np.median(H[truth == k], axis=0))
    np.testing.assert_allclose(_labels.cluster_medians(H, truth, 4)[3], np.median(H, axis=0))


def test_order_by_size():
    labels = np.array([0, 1, 1, 2, 2, 2, 3])
    np.testing.assert_array_equal(_labels.by_size(labels, 5), [2, 1, 0, 3, 4])


def test_assignment_is_student_t_and_agrees_with_the_nearest_center(blobs):
    H, _, truth = blobs
    C = _labels.cluster_means(H, truth, 3)
    kernel = 1 / (1 + ((H[:, None] - C[None]) ** 2).sum(axis=-1))
    Q = _labels.assignment_probabilities(H, C)
    np.testing.assert_allclose(Q, kernel / kernel.sum(axis=1, keepdims=True))
    sharp = _labels.assignment_probabilities(H, C, 3.0)
    np.testing.assert_allclose(sharp, Q**3 / (Q**3).sum(axis=1, keepdims=True))
    np.testing.assert_array_equal(sharp.argmax(axis=1), _labels.nearest_center(H, C))
    far = _labels.assignment_probabilities(np.array([[1e8, 0.0]]), C, 50.0)
    assert np.isfinite(far).all()


def test_sharpness_predicts_the_labels_of_neighbors():
    # two clusters on a line; the chance that a neighbor has the same label is known for each point
    rng = np.random.default_rng(0)
    H = rng.uniform(-1, 1, size=(4000, 1))
    C = np.array([[-1.0], [1.0]])
    Q = _labels.assignment_probabilities(H, C, 4.0)
    labels = (rng.random(4000) < Q[:, 1]).astype(int)
    order = np.argsort(H[:, 0])
    heads = np.concatenate([order[:-1], order[1:]])
    tails = np.concatenate([order[1:], order[:-1]])
    graph = sp.csr_matrix((np.ones(len(heads), np.float32), (heads, tails)), shape=(4000, 4000))
    found = _labels.calibrate_sharpness(H, C, labels, graph, np.random.default_rng(0))
    assert found == pytest.approx(4.0, rel=0.1)


def test_empty_cluster_goes_back_to_its_points_or_is_dropped(blobs):
    H, _, truth = blobs
    C = _labels.cluster_means(H, truth, 3)
    lost = C.copy()
    lost[2] = [500, 500]
    mended = _labels.fill_empty_clusters(H, lost, truth)
    np.testing.assert_allclose(mended[2], np.median(H[truth == 2], axis=0))
    np.testing.assert_array_equal(mended[:2], C[:2])
    fewer = _labels.fill_empty_clusters(np.zeros((5, 2)), np.array([[0.0, 0], [9, 9]]), np.zeros(5, int))
    assert len(fewer) == 1
