"""How unlike the training rows a row is."""

from statistics import NormalDist

import numpy as np
import pytest

from scvcc._clusters import novelty as _novelty
from scvcc._clusters.novelty import Companions, expected_shrinkage, novelty, pool, projection, take_sample

RNG = np.random.default_rng(0)
LABELS = np.repeat([0, 1], [160, 80])
Z = (RNG.normal(size=(240, 6)) * np.where(LABELS, 3, 1)[:, None] + 20 * LABELS[:, None]).astype(np.float32)
MOVED = (Z * 0.99).astype(np.float32)
NEW = (RNG.normal(size=(50, 6)) * 2).astype(np.float32)


@pytest.fixture
def sample():
    return take_sample(Z, LABELS, MOVED, LABELS, np.eye(6, dtype=np.float32), 3)


def slow_distances(rows, points, own=None):
    """Log of the mean of the 15 smallest distances, to others."""
    found = []
    for i, point in enumerate(points):
        d = np.linalg.norm(rows.astype(float) - point, axis=1)
        d = np.delete(d, own[i]) if own is not None else d[d > 1e-4]
        found.append(np.log(np.sort(d)[:15].mean()))
    return np.array(found)


def slow_usual(labels):
    """Median and interquartile range of each cluster, shrunk to those of all with a weight of 30 rows."""
    d = slow_distances(Z, Z, np.arange(240))

    def both(x):
        return np.array([np.median(x), np.quantile(x, 0.75) - np.quantile(x, 0.25)])

    rows = [(labels == k).sum() for k in range(3)]
    return np.array(
        [(n * both(d[labels == k]) + 30 * both(d)) / (n + 30) if n else both(d) for k, n in enumerate(rows)]
    )


def test_novelty_is_the_share_of_moved_rows_with_a_smaller_distance_for_their_cluster(sample):
    usual = slow_usual(LABELS)
    np.testing.assert_allclose(np.column_stack([sample.middle, sample.spread]), usual, rtol=1e-4)
    known = (slow_distances(Z, MOVED, np.arange(240)) - usual[LABELS, 0]) / usual[LABELS, 1]
    points, labels = np.concatenate([NEW, Z[:30]]), np.arange(80) % 3
    relative = (slow_distances(Z, points) - usual[labels, 0]) / usual[labels, 1]
    found = novelty(sample, points, labels)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, [np.mean(known < r) for r in relative], atol=1.1 / 240)


def test_rows_of_the_sample_are_spread_evenly():
    sample = take_sample(Z, LABELS, Z, LABELS, np.eye(6), 2)
    np.testing.assert_allclose(np.sort(novelty(sample, Z, LABELS)), np.arange(240) / 240, atol=1.1 / 240)
    known = Companions(Z, novelty(sample, Z, LABELS))
    np.testing.assert_allclose(np.sort(pool(sample, known, Z, known.novelty)), np.arange(240) / 240, atol=1.1 / 240)


def test_pooling_is_with_the_nearest_other_companions(sample):
    own = novelty(sample, NEW, np.zeros(50, int))
    companions = Companions(NEW[:40], own[:40])

    def score(p, m=240):
        return NormalDist().inv_cdf(float(np.clip(p, 0.5 / m, 1 - 0.5 / m)))

    def slow_pool(rows, shares, points, mine):
        for point, p in zip(points, mine, strict=True):
            d = np.linalg.norm(rows - point, axis=1)
            near = [i for i in np.argsort(d) if d[i] > 1e-4][: _novelty.COMPANIONS]
            others = np.mean([score(shares[i]) for i in near])
            yield 0.2 * score(p) + 0.8 * others

    moved = novelty(sample, MOVED, LABELS)  # nearly: of the moved rows none is its own neighbor in the sample
    expected = list(slow_pool(NEW[:40], own[:40], NEW, own))
    assert sample.pooled.shape == (240,) and moved.shape == (240,)
    found = pool(sample, companions, NEW, own)
    np.testing.assert_allclose(found, [np.mean(sample.pooled < e) for e in expected], atol=1.1 / 240)
    np.testing.assert_array_equal(pool(sample, companions, NEW[3:4], own[3:4]), found[3:4])


def test_few_companions_are_not_asked(sample):
    own = novelty(sample, NEW, np.zeros(50, int))
    few = Companions(NEW[:5], own[:5])
    np.testing.assert_array_equal(pool(sample, few, NEW, own), own)


def test_wide_layers_are_projected():
    wide = projection(90, np.random.default_rng(0))
    assert wide.shape == (90, 64) and wide.dtype == np.float32
    points = np.random.default_rng(1).normal(size=(200, 90))
    ratio = np.linalg.norm((points[:100] - points[100:]) @ wide, axis=1)
    ratio /= np.linalg.norm(points[:100] - points[100:], axis=1)
    assert ratio.mean() == pytest.approx(1, abs=0.05) and ratio.std() < 0.15
    np.testing.assert_array_equal(projection(64, np.random.default_rng(0)), np.eye(64))


def test_few_rows_and_equal_rows():
    place, labels = np.array([[0.0], [1.0], [3.0]], np.float32), np.zeros(3, int)
    sample = take_sample(place, labels, place, labels, np.eye(1), 1)
    assert novelty(sample, np.array([[50.0]], np.float32), labels[:1]) == 1
    same = np.ones((40, 3), np.float32)
    sample = take_sample(same, np.zeros(40, int), same, np.zeros(40, int), np.eye(3), 1)
    assert novelty(sample, same, np.zeros(40, int)).max() == 0
    assert novelty(sample, same + 1, np.zeros(40, int)).min() == 1


def test_new_rows_come_nearer_to_the_mean_as_expected():
    """Rows of a few strong components and noise: the same PCA, and its components of other rows like them."""
    rng = np.random.default_rng(0)
    axes = np.linalg.qr(rng.normal(size=(600, 8)))[0]
    X = rng.normal(size=(600, 8)) * np.linspace(12, 4, 8) @ axes.T + rng.normal(size=(600, 600))
    fit, new = X[:300], X[300:]
    _, singular, components = np.linalg.svd(fit - fit.mean(axis=0), full_matrices=False)
    variance = singular[:20] ** 2 / 299
    scores = (new - fit.mean(axis=0)) @ components[:20].T
    found = expected_shrinkage(variance, fit.var(axis=0, ddof=1).sum(), 300, 600)
    actual = scores.std(axis=0) / np.sqrt(variance)
    assert actual[-1] < 0.6 and actual[0] > 0.9  # noise, and a strong component
    np.testing.assert_allclose(found, actual, atol=0.12)


def test_a_cluster_of_equal_distances_keeps_a_spread():
    angle = np.linspace(0, 2 * np.pi, 1000, endpoint=False)
    circle = np.stack([np.cos(angle), np.sin(angle)], axis=1) + 50
    rows = np.concatenate([np.random.default_rng(0).normal(size=(1000, 2)), circle]).astype(np.float32)
    labels = np.repeat([0, 1], 1000)
    spread = take_sample(rows, labels, rows, labels, np.eye(2, dtype=np.float32), 2).spread
    assert spread[1] >= 0.1 * spread[0]
