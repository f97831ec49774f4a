"""How unlike the training rows a row is."""

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from sklearn.datasets import make_blobs

from scvcc import VCC
from scvcc._model.vcc import place
from scvcc._training.encoder import Rows, encode_with_features

X, y = make_blobs([60, 80, 100], n_features=8, cluster_std=2.0, random_state=0)
X = X.astype(np.float32)


@pytest.fixture(scope="module")
def model():
    torch.set_num_threads(1)
    return VCC(3, hidden=(24, 90), epochs=0).fit(X)


def slow_novelty(sample, Z):
    """Percentile of the mean distance to the five nearest sampled rows, itself left out."""
    result = []
    own = [np.sort(np.linalg.norm(sample.rows - row, axis=1))[1:6].mean() for row in sample.rows]
    for row in Z:
        d = np.sort(np.linalg.norm(sample.rows - row, axis=1))
        d = d[1:6] if d[0] < 1e-5 else d[:5]
        result.append(np.mean(np.array(own) < d.mean()))
    return np.array(result)


def test_novelty_is_the_percentile_of_the_distance_to_the_sample(model):
    new = make_blobs(50, n_features=8, cluster_std=3.0, random_state=5)[0].astype(np.float32)
    Z = encode_with_features(model.encoder_, Rows(new, torch.device("cpu")), model.sample_.projection)[1]
    np.testing.assert_allclose(model.novelty(new), slow_novelty(model.sample_, Z), atol=2 / 240)


def test_training_rows_are_spread_evenly(model):
    found = np.sort(model.novelty(X))
    np.testing.assert_allclose(found, np.arange(240) / 240, atol=2 / 240)


def test_strange_rows_are_novel(model):
    rng = np.random.default_rng(0)
    strange = X.mean(axis=0) + 4 * (rng.permuted(X, axis=1)[:50] - X.mean(axis=0))
    assert np.median(model.novelty(strange)) > 0.99
    assert model.predict_proba(strange).max(axis=1).mean() > 0.5  # which the probabilities do not notice


def test_a_row_is_as_novel_alone_as_in_company_and_sparse_as_dense(model):
    whole = model.novelty(X)
    assert whole.dtype == np.float32 and whole.shape == (240,)
    np.testing.assert_array_equal(model.novelty(X[7:8]), whole[7:8])
    np.testing.assert_array_equal(model.novelty(sp.csr_matrix(X)), whole)
    np.testing.assert_array_equal(place(model, X)[0], model.transform(X))


def test_a_large_training_set_leaves_a_bounded_sample():
    many = np.random.default_rng(0).normal(size=(2_100, 8)).astype(np.float32)
    model = VCC(3, hidden=(70,), epochs=0).fit(many)
    sample = model.sample_
    assert (
        sample.rows.shape == (2_000, 64) and sample.distances.shape == (2_000,) and sample.projection.shape == (70, 64)
    )
    assert (np.diff(sample.distances) >= 0).all()
    found = model.novelty(many)
    assert found.min() >= 0 and found.max() <= 1
    assert np.mean(found) == pytest.approx(0.5, abs=0.08)


def test_projected_distances_are_those_of_the_layer(model):
    rows = Rows(X, torch.device("cpu"))
    Z = encode_with_features(model.encoder_, rows, model.sample_.projection)[1]
    full = encode_with_features(model.encoder_, rows, np.eye(90, dtype=np.float32))[1]
    i, j = np.arange(100), np.arange(100, 200)
    ratio = np.linalg.norm(Z[i] - Z[j], axis=1) / np.linalg.norm(full[i] - full[j], axis=1)
    assert ratio.mean() == pytest.approx(1, abs=0.1) and ratio.std() < 0.2


@pytest.mark.parametrize("hidden", [(), (4,)])
def test_narrow_layers_are_kept_as_they_are(hidden):
    model = VCC(3, hidden=hidden, epochs=0).fit(X)
    width = hidden[-1] if hidden else 8
    np.testing.assert_array_equal(model.sample_.projection, np.eye(width))
    assert model.novelty(X + 100).min() == 1


def test_few_rows():
    model = VCC(2, hidden=(4,), epochs=0, n_neighbors=2).fit(X[:3])
    assert model.novelty(X[:5]).shape == (5,)


def test_same_seed_same_sample(model):
    again = VCC(3, hidden=(24, 90), epochs=0).fit(X)
    for name in ("rows", "distances", "projection"):
        np.testing.assert_array_equal(getattr(again.sample_, name), getattr(model.sample_, name))
