"""The correction of batches: its formulas by slow loops, and what each step must leave alone."""

import numpy as np
import pytest
from sklearn.datasets import make_blobs
from sklearn.neighbors import NearestNeighbors

from scvcc._training import batches
from scvcc._training.batches import correct_batches


@pytest.fixture(scope="module")
def cells():
    """Five types in eight variables, and two random halves."""
    X, y = make_blobs(500, 8, centers=5, cluster_std=1.0, center_box=(-8, 8), random_state=1)
    return X.astype(np.float32), y, np.random.default_rng(0).permutation(500) % 2


def test_separation_is_one_less_the_share_of_foreign_neighbors():
    rng = np.random.default_rng(0)
    batch = rng.integers(3, size=90)
    Z = rng.normal(size=(90, 4)) + batch[:, None]
    near = NearestNeighbors(n_neighbors=15).fit(Z).kneighbors(return_distance=False)
    expected = []
    for b in range(3):
        shares = [np.mean([batch[j] != b for j in near[i]]) for i in range(90) if batch[i] == b]
        foreign = np.mean(shares) + 2 * np.std(shares) / np.sqrt(len(shares))
        expected.append(np.clip(1 - foreign / (1 - np.mean(batch == b)), 0, 1))
    np.testing.assert_allclose(batches.separation(Z, batch), expected)
    few = np.where(np.arange(90) < 5, 3, batch)
    assert batches.separation(Z, few)[3] == 0


@pytest.mark.parametrize("shift", [0, 1])
def test_separation_within_groups_compares_with_the_shares_of_batches_there(shift):
    rng = np.random.default_rng(0)
    group = np.repeat([0, 1], 150)
    batch = (rng.random(300) < np.where(group == 0, 0.15, 0.85)).astype(int)
    Z = rng.normal(size=(300, 4)) + 20 * group[:, None] + shift * batch[:, None]
    near = NearestNeighbors(n_neighbors=15).fit(Z).kneighbors(return_distance=False)
    expected = []
    for b in range(2):
        mine = np.flatnonzero(batch == b)
        shares = [np.mean(batch[near[i]] != b) for i in mine]
        drawn = np.mean([np.mean(np.delete(batch, i)[np.delete(group, i) == group[i]] != b) for i in mine])
        chance = 0.02 * np.mean(batch != b) + 0.98 * drawn
        expected.append(np.clip(1 - (np.mean(shares) + 2 * np.std(shares) / np.sqrt(len(mine))) / chance, 0, 1))
    np.testing.assert_allclose(batches.separation(Z, batch, group), expected, atol=1e-12)
    assert (max(expected) > batches.APART) == bool(shift)
    assert batches.separation(Z, batch).max() > batches.APART


def test_mutual_neighbors_are_near_both_ways():
    rng = np.random.default_rng(1)
    A, B = rng.normal(size=(30, 3)), rng.normal(size=(20, 3))
    D = np.linalg.norm(A[:, None] - B, axis=2)
    expected = {
        (i, j) for i in range(30) for j in range(20) if (D[i] < D[i, j]).sum() < 4 and (D[:, j] < D[i, j]).sum() < 4
    }
    assert set(zip(*batches.mutual_neighbors(A, B, 4), strict=True)) == expected


def test_median_is_where_the_sum_of_distances_is_least_and_ignores_one_far_row():
    vector = np.array([[0.0, 0.1], [0.1, 0.0], [-0.1, 0.0], [0.0, -0.1], [50.0, 50.0]])
    center, weight = batches._median(vector, np.ones(5))
    assert np.linalg.norm(center) < 0.1
    assert weight.sum() == pytest.approx(1) and weight[4] < 0.01


def test_offsets_of_one_cluster_are_those_of_a_model_with_random_effects():
    rng = np.random.default_rng(2)
    batch = np.repeat([0, 1, 2], [40, 30, 20])
    X = rng.normal(size=(90, 2)) + np.array([[0, 0], [3, 0], [0, 3]])[batch]
    rows = [X[batch == b] for b in range(3)]
    n, mean = np.array([len(r) for r in rows]), np.array([r.mean(axis=0) for r in rows])
    within = sum(((r - m) ** 2).sum() for r, m in zip(rows, mean, strict=True)) / 90
    center = n @ mean / 90
    between = (n @ ((mean - center) ** 2).sum(axis=1) - 2 * 2 * within) / (90 - (n**2).sum() / 90)
    kept = n / (n + within / between)  # DerSimonian and Laird; shrunk towards the mean with weights 1 / variance
    center = (kept @ mean) / kept.sum()
    expected = (kept[:, None] * (mean - center))[batch]
    found = batches.fitted_offsets(X, batch, np.ones((90, 1)), np.ones(3))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
    half = batches.fitted_offsets(X, batch, np.ones((90, 1)), np.array([1, 0, 0.5]))
    np.testing.assert_allclose(half, expected * np.array([1, 0, 0.5])[batch][:, None], rtol=1e-4, atol=1e-6)
    same = np.tile(rng.normal(size=(30, 2)), (3, 1)) + 0.01 * np.repeat(rng.normal(size=(3, 2)), 30, axis=0)
    assert not batches.fitted_offsets(same, np.repeat([0, 1, 2], 30), np.ones((90, 1)), np.ones(3)).any()  # chance


def test_random_batches_are_left_alone(cells):
    X, _, batch = cells
    done = correct_batches(X, batch)
    assert done.Z is X and done.outcome == ("already mixed", "already mixed")
    assert correct_batches(X, np.zeros(500, int)).Z is X


def test_a_shift_is_found_and_taken_away(cells):
    X, _, batch = cells
    shift = np.array([6, -6, 6, -6, 0, 0, 0, 0], np.float32)
    moved = X + shift * (batch == 1)[:, None]
    done = correct_batches(moved, batch)
    np.testing.assert_allclose(
        (moved - done.Z)[batch == 1].mean(axis=0) - (moved - done.Z)[batch == 0].mean(axis=0), shift, atol=0.6
    )
    assert set(done.outcome) <= {"shifted", "corrected"}
    assert batches.separation(done.Z, batch).max() < batches.APART
    assert correct_batches(moved, batch, strength=0).Z is moved
    half = correct_batches(moved, batch, strength=0.5).Z
    np.testing.assert_allclose(half, (moved + done.Z) / 2, atol=1e-4)
    np.testing.assert_array_equal(correct_batches(moved, batch).Z, done.Z)


def test_a_type_of_one_batch_stays_where_it_is_apart(cells):
    X, y, batch = cells
    batch = np.where(y == 3, 0, batch)
    moved = X + 5.0 * (batch == 1)[:, None].astype(np.float32)
    done = correct_batches(moved, batch)
    near = NearestNeighbors(n_neighbors=15).fit(done.Z).kneighbors(return_distance=False)
    assert (y[near[y == 3]] == 3).mean() > 0.98
    assert (batch[near[y != 3]] != batch[y != 3][:, None]).mean() > 0.3


def test_types_in_uneven_shares_are_left_as_they_are(cells):
    X, y, _ = cells
    batch = np.where(np.random.default_rng(5).random(500) < 0.15, 1 - y % 2, y % 2)
    done = correct_batches(X, batch)
    assert done.Z is X and min(done.apart) > batches.APART
    moved = X + 4.0 * (batch == 1)[:, None].astype(np.float32)
    assert correct_batches(moved, batch).Z is not moved


def test_batches_without_a_common_type_are_left_as_they_are(cells):
    X, y, _ = cells
    done = correct_batches(X, (y < 2).astype(int))
    assert done.Z is X and done.outcome == ("left as it is", "left as it is")


def test_cells_of_one_kind_are_no_evidence_for_a_shift():
    """Two blobs side by side agree within themselves on the way to each other; that is one witness, not ten."""
    rng = np.random.default_rng(3)
    A = rng.normal(size=(200, 5)).astype(np.float32)
    shift, evidence = batches.agreed_shift(A + 12, A, rng)
    assert evidence < batches.EVIDENCE


def test_offsets_that_differ_between_types_are_taken_away(cells):
    X, y, batch = cells
    rng = np.random.default_rng(4)
    moved = X + (batch == 1)[:, None] * rng.normal(scale=1.2, size=(5, 8)).astype(np.float32)[y]
    done = correct_batches(moved, batch)
    assert set(done.outcome) == {"corrected"}
    assert batches.separation(done.Z, batch).max() < 0.5 * batches.separation(moved, batch).max()


def test_a_batch_of_a_few_cells_says_nothing(cells):
    X, _, batch = cells
    batch = np.where(np.arange(500) == 7, 2, batch)
    moved = X + 5.0 * (batch == 1)[:, None].astype(np.float32)
    done = correct_batches(moved, batch)
    assert done.outcome[2] == "left as it is"
    np.testing.assert_allclose(done.Z[7] - done.Z.mean(axis=0), moved[7] - done.Z.mean(axis=0), atol=1e-4)


def test_a_batch_that_its_shift_has_mixed_is_left_there(cells, monkeypatch):
    X, _, batch = cells
    monkeypatch.setattr(batches, "counterparts", lambda moved, batch, rng: np.ones(2))
    found = correct_batches(X + 3.0 * (batch == 1)[:, None].astype(np.float32), batch)
    assert set(found.outcome) == {"shifted"}
