import numpy as np
import pytest
import scipy.sparse as sp

from scvcc._clusters import assignment as _assignment


def test_small_clusters_give_their_points_to_the_next_center():
    H = np.concatenate([np.zeros((30, 1)), np.full((3, 1), 4.0), np.full((20, 1), 10.0), np.full((2, 1), 12.0)])
    centers = np.array([[0.0], [4.0], [10.0], [12.0]])
    np.testing.assert_array_equal(_assignment.drop_small_clusters(H, centers, 1), centers)
    np.testing.assert_array_equal(_assignment.drop_small_clusters(H, centers, 3), centers[:3])
    np.testing.assert_array_equal(_assignment.drop_small_clusters(H, centers, 4), centers[[0, 2]])
    np.testing.assert_array_equal(_assignment.drop_small_clusters(H, centers, 1000), centers[[0, 2]])  # never below two


def test_means_and_medians(blobs):
    H, _, truth = blobs
    for k in range(3):
        np.testing.assert_allclose(_assignment.cluster_means(H, truth, 3)[k], H[truth == k].mean(axis=0))
        np.testing.assert_allclose(_assignment.cluster_medians(H, truth, 3)[k], np.median(H[truth == k], axis=0))
    np.testing.assert_allclose(_assignment.cluster_medians(H, truth, 4)[3], np.median(H, axis=0))


def test_order_by_size():
    labels = np.array([0, 1, 1, 2, 2, 2, 3])
    np.testing.assert_array_equal(_assignment.by_size(labels, 5), [2, 1, 0, 3, 4])


def test_numbers_depend_on_the_partition_alone():
    rng = np.random.default_rng(0)
    for _ in range(50):
        labels = np.unique(rng.integers(6, size=12), return_inverse=True)[1]  # many clusters of one size
        K = labels.max() + 1
        numbered = [np.argsort(_assignment.by_size(a, K))[a] for a in (labels, rng.permutation(K)[labels])]
        np.testing.assert_array_equal(*numbered)
        assert (np.diff(np.bincount(numbered[0])) <= 0).all()


def test_assignment_is_student_t_and_agrees_with_the_nearest_center(blobs):
    H, _, truth = blobs
    C = _assignment.cluster_means(H, truth, 3)
    kernel = 1 / (1 + ((H[:, None] - C[None]) ** 2).sum(axis=-1))
    Q = _assignment.probabilities(H, C)
    np.testing.assert_allclose(Q, kernel / kernel.sum(axis=1, keepdims=True))
    sharp = _assignment.probabilities(H, C, 3.0)
    np.testing.assert_allclose(sharp, Q**3 / (Q**3).sum(axis=1, keepdims=True))
    np.testing.assert_array_equal(sharp.argmax(axis=1), _assignment.nearest_center(H, C))
    far = _assignment.probabilities(np.array([[1e8, 0.0]]), C, 50.0)
    assert np.isfinite(far).all()


@pytest.mark.parametrize("n_neighbors", [2, 8])
def test_sharpness_predicts_the_votes_of_neighbors(n_neighbors):
    # two clusters on a line; the chance that a neighbor has a label is known for each point
    rng = np.random.default_rng(0)
    H = np.sort(rng.uniform(-1, 1, size=(4000, 1)), axis=0)
    C = np.array([[-1.0], [1.0]])
    Q = _assignment.probabilities(H, C, 4.0)
    labels = (rng.random(4000) < Q[:, 1]).astype(int)
    near = range(-n_neighbors // 2, n_neighbors // 2 + 1)
    graph = sp.diags_array(
        [np.ones(4000 - abs(k), np.float32) for k in near if k], offsets=[k for k in near if k]
    ).tocsr()
    found = _assignment.calibrate_sharpness(H, C, labels, graph, np.random.default_rng(0))
    elected = [
        max(
            (0, 1),
            key=lambda k, i=i: sum(rng.exponential() for j in near if j and 0 <= i + j < 4000 and labels[i + j] == k),
        )
        for i in range(4000)
    ]
    expected = _assignment.best_power(np.log(_assignment.probabilities(H, C)), np.array(elected), np.ones(4000))
    assert found == pytest.approx(expected, rel=0.12)
    assert (
        found == pytest.approx(4.0, rel=0.12) if n_neighbors == 2 else found > 6
    )  # one draw of two is a neighbor's label


def test_empty_cluster_goes_back_to_its_points_or_is_dropped(blobs):
    H, _, truth = blobs
    C = _assignment.cluster_means(H, truth, 3)
    lost = C.copy()
    lost[2] = [500, 500]
    mended = _assignment.fill_empty_clusters(H, lost, truth)
    np.testing.assert_allclose(mended[2], np.median(H[truth == 2], axis=0))
    np.testing.assert_array_equal(mended[:2], C[:2])
    fewer = _assignment.fill_empty_clusters(np.zeros((5, 2)), np.array([[0.0, 0], [9, 9]]), np.zeros(5, int))
    assert len(fewer) == 1


def test_a_weight_counts_like_so_many_points():
    rng = np.random.default_rng(0)
    logits, targets, weights = rng.normal(size=(60, 4)), rng.integers(4, size=60), rng.integers(1, 9, size=60)
    targets[:30] = logits[:30].argmax(axis=1)
    expected = _assignment.best_power(logits.repeat(weights, axis=0), targets.repeat(weights), np.ones(weights.sum()))
    assert _assignment.best_power(logits, targets, weights) == pytest.approx(expected)
