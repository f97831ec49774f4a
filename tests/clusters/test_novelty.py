"""How unlike the training rows a row is."""

import numpy as np
import pytest

from scvcc._clusters.novelty import novelty, projection, take_sample


@pytest.fixture
def sample():
    return take_sample(np.random.default_rng(0).normal(size=(240, 24)).astype(np.float32), np.eye(24))


def slow_novelty(sample, Z):
    """Percentile of the mean distance to the five nearest sampled rows, itself left out."""
    result = []
    own = [np.sort(np.linalg.norm(sample.rows - row, axis=1))[1:6].mean() for row in sample.rows]
    for row in Z:
        d = np.sort(np.linalg.norm(sample.rows - row, axis=1))
        d = d[1:6] if d[0] < 1e-5 else d[:5]
        result.append(np.mean(np.array(own) < d.mean()))
    return np.array(result)


def test_novelty_is_the_percentile_of_the_distance_to_the_sample(sample):
    new = np.random.default_rng(1).normal(size=(50, 24), scale=1.2).astype(np.float32)
    Z = np.concatenate([new, sample.rows[:50]])
    found = novelty(sample, Z)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, slow_novelty(sample, Z), atol=2 / 240)


def test_sampled_rows_are_spread_evenly(sample):
    np.testing.assert_allclose(np.sort(novelty(sample, sample.rows)), np.arange(240) / 240, atol=2 / 240)


def test_distances_are_sorted_and_wide_layers_projected(sample):
    assert sample.distances.shape == (240,) and (np.diff(sample.distances) >= 0).all()
    wide = projection(90, np.random.default_rng(0))
    assert wide.shape == (90, 64) and wide.dtype == np.float32
    Z = np.random.default_rng(1).normal(size=(200, 90))
    ratio = np.linalg.norm((Z[:100] - Z[100:]) @ wide, axis=1) / np.linalg.norm(Z[:100] - Z[100:], axis=1)
    assert ratio.mean() == pytest.approx(1, abs=0.05) and ratio.std() < 0.15
    np.testing.assert_array_equal(projection(64, np.random.default_rng(0)), np.eye(64))


def test_few_rows():
    sample = take_sample(np.array([[0.0], [1.0], [3.0]], np.float32), np.eye(1))
    assert novelty(sample, np.array([[0.0], [50.0]], np.float32)).tolist() == pytest.approx([1 / 3, 1])
