"""How unlike the training rows a row is, as the estimator finds it."""

from copy import copy

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from sklearn.datasets import make_blobs

from scvcc import VCC
from scvcc._clusters.novelty import Companions, novelty, pool, take_sample
from scvcc._model.derived import expect_shrunk
from scvcc._model.placing import place
from scvcc._training.encoder import Rows, encode_with_features

X, y = make_blobs([60, 80, 100], n_features=8, cluster_std=2.0, random_state=0)
X = X.astype(np.float32)
NEW = make_blobs(50, n_features=8, cluster_std=3.0, random_state=5)[0].astype(np.float32)


@pytest.fixture(scope="module")
def model():
    torch.set_num_threads(1)
    return VCC(3, hidden=(24, 90, 12), epochs=0).fit(X)


def second_layer(model, rows):
    return encode_with_features(model.encoder_, Rows(rows, torch.device("cpu")), model.sample_.projection)[1]


def test_novelty_is_that_of_the_second_layer_in_the_cluster_of_the_row(model):
    assert model.sample_.projection.shape == (90, 64) and model.sample_.rows.shape == (240, 64)
    np.testing.assert_allclose(model.sample_.rows, second_layer(model, X), rtol=1e-5)
    expected = novelty(model.sample_, second_layer(model, NEW), model.predict(NEW))
    np.testing.assert_array_equal(model.novelty(NEW), expected)


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
    H, pooled, alone = place(model, X, np.copy)
    np.testing.assert_array_equal(H, model.transform(X))
    np.testing.assert_array_equal(alone, whole)  # of all rows: they are fewer than 2,000
    np.testing.assert_array_equal(pooled, whole)  # where new rows come to lie is not known, and none are pooled


@pytest.fixture(scope="module")
def pooling(model):
    """A model that knows where new rows come to lie: here, where those of the fit are."""
    pooling = copy(model)
    expect_shrunk(pooling, X, np.ones(8), 4)
    return pooling


def test_rows_are_pooled_where_it_is_known_what_new_ones_are_like(pooling):
    _, pooled, alone = place(pooling, X, np.copy)
    others = Companions(second_layer(pooling, X), alone)
    expected = pool(pooling.sample_, others, others.rows, alone)
    np.testing.assert_array_equal(pooled, expected)
    assert not np.array_equal(pooled, alone)


def test_companions_of_a_kind_raise_each_others_novelty(pooling):
    """Rows of a fourth group lie somewhat apart; that they all do is seen only together."""
    group = X[y == 2][:40] + 1.2 * (X[y == 1].mean(axis=0) - X[y == 2].mean(axis=0)) * np.arange(8) % 3
    query = np.concatenate([X[y != 2][:100] + 0.1, group])
    _, together, _ = place(pooling, query, np.copy)
    alone = pooling.novelty(query)
    assert np.mean(together[100:] > 0.95) >= np.mean(alone[100:] > 0.95)
    assert together[100:].std() < alone[100:].std() or together[100:].min() > 0.99


def test_new_rows_that_come_nearer_to_the_mean_are_expected_there():
    model = VCC(3, hidden=(24, 16), epochs=0, random_state=4).fit(X)
    before = model.sample_
    expect_shrunk(model, X, np.full(8, 0.5), 4)
    for name in ("rows", "middle", "spread", "projection"):  # the distances of the training rows are as they were
        np.testing.assert_array_equal(getattr(model.sample_, name), getattr(before, name))
    halved = X.mean(axis=0) + 0.5 * (X - X.mean(axis=0))
    expected = take_sample(
        before.rows, model.labels_, second_layer(model, halved), model.predict(halved), before.projection, 3
    )
    np.testing.assert_allclose(model.sample_.scores, expected.scores, rtol=1e-3, atol=1e-3)
    assert not np.allclose(model.sample_.scores, before.scores, atol=0.1)


def test_a_large_training_set_leaves_a_bounded_sample():
    many = np.random.default_rng(0).normal(size=(2_100, 8)).astype(np.float32)
    model = VCC(3, hidden=(70,), epochs=0).fit(many)
    sample = model.sample_
    assert sample.rows.shape == (2_000, 64) and sample.scores.shape == sample.pooled.shape == (2_000,)
    assert sum(array.nbytes for array in vars(sample).values()) < 1e6
    found = model.novelty(many)
    assert found.min() >= 0 and found.max() <= 1
    assert np.mean(found) == pytest.approx(0.5, abs=0.08)


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
    again = VCC(3, hidden=(24, 90, 12), epochs=0).fit(X)
    for name, array in vars(model.sample_).items():
        np.testing.assert_array_equal(getattr(again.sample_, name), array)
