from copy import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.datasets import make_blobs

from scvcc import VCC

X, KIND = make_blobs(400, n_features=6, centers=8, cluster_std=0.6, random_state=0)
X = X.astype(np.float32)


@pytest.fixture(scope="module")
def model():
    torch.set_num_threads(1)
    return VCC(4, hidden=(16, 8), epochs=0, random_state=0).fit(X)


def test_cuts_are_nested_and_hold_the_fitted_clusters(model):
    cuts = {n: model.predict(X, n_clusters=n) for n in (1, 2, 4, 6, len(model.tree_.size))}
    np.testing.assert_array_equal(cuts[4], model.labels_)
    np.testing.assert_array_equal(cuts[len(model.tree_.size)], model.leaves_)
    np.testing.assert_array_equal(np.bincount(model.leaves_), model.tree_.size)
    for coarse, fine in zip(cuts, list(cuts)[1:], strict=False):
        assert set(cuts[fine]) == set(range(fine))
        assert len({*zip(cuts[coarse], cuts[fine], strict=True)}) == fine


def test_finer_levels_find_what_the_fit_did_not_part(model):
    cut = model.predict(X, n_clusters=8)
    both = np.zeros((8, 8))
    np.add.at(both, (cut, KIND), 1)
    assert both.max(axis=1).sum() / len(X) > 0.95
    new, kind = make_blobs(300, n_features=6, centers=8, cluster_std=0.6, random_state=0)
    assert np.mean(both.argmax(axis=1)[model.predict(new, n_clusters=8)] == kind) > 0.95


def test_probabilities_of_parts_add_up(model):
    tree = model.tree_
    P = {n: model.predict_proba(X, n_clusters=n) for n in (2, 4, 9)}
    np.testing.assert_array_equal(P[4], model.predict_proba(X))
    for coarse, fine in ((2, 4), (4, 9)):
        parts = [np.unique(tree.cut(fine)[tree.cut(coarse) == k]) for k in range(coarse)]
        sums = np.stack([P[fine][:, part].sum(axis=1) for part in parts], axis=1)
        np.testing.assert_allclose(sums, P[coarse], atol=1e-12)
    assert np.mean(P[9].argmax(axis=1) == model.predict(X, n_clusters=9)) > 0.95


def test_saved_models_have_the_tree(model, tmp_path):
    model.save(tmp_path / "m")
    loaded = VCC.load(tmp_path / "m")
    for n in (2, 4, 9):
        np.testing.assert_array_equal(loaded.predict(X, n_clusters=n), model.predict(X, n_clusters=n))
        np.testing.assert_array_equal(loaded.predict_proba(X, n_clusters=n), model.predict_proba(X, n_clusters=n))
    assert loaded.tree_.names(9) == model.tree_.names(9)


@pytest.mark.parametrize("wrong", ["merges", "cluster"])
def test_trees_that_are_none_are_refused(wrong, model, tmp_path):
    broken = copy(model)
    array = getattr(model.tree_, wrong).copy()
    array[-1] = array[0]
    broken.tree_ = replace(model.tree_, **{wrong: array})
    with pytest.raises(ValueError, match="tree"):
        broken.save(tmp_path / "m")


@pytest.mark.parametrize(("n", "error"), [(0, ValueError), (1000, ValueError), (2.5, TypeError)])
def test_numbers_of_clusters_that_the_tree_lacks(n, error, model):
    with pytest.raises(error, match="n_clusters must be"):
        model.predict(X, n_clusters=n)
    with pytest.raises(error, match="n_clusters must be"):
        model.predict_proba(X, n_clusters=n)


def test_sketch_and_paper():
    sketched = VCC(4, hidden=(16,), epochs=0, max_train_cells=200, random_state=0).fit(X)
    assert sketched.tree_.size.sum() == len(X)
    np.testing.assert_array_equal(sketched.predict(X, n_clusters=4), sketched.labels_)
    leaves = sketched.predict(X, n_clusters=len(sketched.tree_.size))
    np.testing.assert_array_equal(leaves, sketched.leaves_)
    paper = VCC(3, hidden=(8,), objective="paper", epochs=1, random_state=0).fit(X)
    assert len(paper.tree_.size) > paper.n_clusters_
