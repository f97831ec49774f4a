import logging
import tracemalloc
import warnings

import anndata as ad
import h5py
import numba
import numpy as np
import pytest
import scipy.sparse as sp
import torch
from sklearn.base import clone
from sklearn.datasets import load_digits, make_blobs
from sklearn.metrics import adjusted_rand_score
from sklearn.neighbors import kneighbors_graph
from sklearn.utils.estimator_checks import parametrize_with_checks

from scvcc import VCC
from scvcc._model import rows as _rows
from scvcc._model import vcc as _estimator
from scvcc._training import coordinates as _coordinates
from scvcc._training import encoder as _encoder
from scvcc._training import fitting as _fitting
from scvcc._training import recipe as _train
from scvcc._training.threads import threads_for

SMALL = {"hidden": (32,), "epochs": 1}


ONE_CLUSTER = "the check sets n_clusters=1, which VCC refuses; the tests below cover the behavior with 3 clusters"
CLASSES = "the check takes every estimator with predict_proba and sparse input for a classifier"
NAMED_EXCEPTIONS = {
    "check_dont_overwrite_parameters": ONE_CLUSTER,
    "check_methods_subset_invariance": ONE_CLUSTER,
    "check_fit2d_1feature": ONE_CLUSTER,
    "check_fit2d_predict1d": ONE_CLUSTER,
    "check_estimator_sparse_array": CLASSES,
    "check_estimator_sparse_matrix": CLASSES,
}


@parametrize_with_checks(
    [VCC(n_clusters=3, n_neighbors=5, hidden=(16,), epochs=1)], expected_failed_checks=lambda _: NAMED_EXCEPTIONS
)
def test_scikit_learn_checks(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def data():
    X, truth = make_blobs([150, 100, 50], n_features=8, random_state=0)
    return X.astype(np.float32), truth


@pytest.fixture(scope="module")
def fitted(data):
    return VCC(3, keep_stages=True, **SMALL).fit(data[0])


def test_fitted_attributes(data, fitted):
    X, truth = data
    assert adjusted_rand_score(truth, fitted.labels_) == 1
    assert np.bincount(fitted.labels_).tolist() == [150, 100, 50]  # numbered by size
    assert fitted.embedding_.shape == (300, 2)
    assert fitted.embedding_.dtype == np.float32
    assert fitted.cluster_centers_.shape == (3, 2)
    assert fitted.n_clusters_ == 3
    assert fitted.n_features_in_ == 8
    assert fitted.graph_.shape == (300, 300)
    assert fitted.device_ == "cpu"
    assert list(fitted.stages_) == ["start", "placed", "coordinates"]
    assert all(H.shape == (300, 2) for H in fitted.stages_.values())


def test_labels_are_numbered_by_decreasing_size():
    X, truth = make_blobs([20, 70, 50, 90, 35, 60], n_features=8, random_state=1)
    model = VCC(6, **SMALL).fit(X)
    sizes = np.bincount(model.labels_)
    assert sizes.tolist() == sorted(sizes, reverse=True)
    assert adjusted_rand_score(truth, model.labels_) > 0.95
    np.testing.assert_array_equal(model.predict(X), model.labels_)


def test_predictions_on_training_rows_equal_the_fit(data, fitted):
    X, _ = data
    np.testing.assert_array_equal(fitted.transform(X), fitted.embedding_)
    np.testing.assert_array_equal(fitted.predict(X), fitted.labels_)
    np.testing.assert_array_equal(fitted.predict_proba(X), fitted.proba_)
    np.testing.assert_array_equal(fitted.proba_.argmax(axis=1), fitted.labels_)
    np.testing.assert_allclose(fitted.proba_.sum(axis=1), 1)


def test_a_row_gets_the_same_bits_in_any_company(data, fitted):
    X, _ = data
    np.testing.assert_array_equal(fitted.transform(X[[250, 3]]), fitted.embedding_[[250, 3]])


def test_parameters_are_not_overwritten_and_one_feature_is_enough(data):
    model = VCC(3, **SMALL)
    before = dict(model.get_params())
    model.fit(data[0][:, :1])
    assert model.get_params() == before
    assert all(name.endswith("_") or name in before for name in vars(model))
    with pytest.raises(ValueError, match="1D array"):
        model.predict(data[0][:, 0])


def test_new_rows_get_the_label_of_their_blob(data):
    X, truth = data
    half = np.arange(300) % 2 == 0
    model = VCC(3, **SMALL).fit(X[half])
    assert adjusted_rand_score(truth[~half], model.predict(X[~half])) > 0.98


def test_confidence_is_higher_inside_than_between(data, fitted):
    X, truth = data
    means = np.array([X[fitted.labels_ == k].mean(axis=0) for k in range(3)])
    inside = fitted.predict_proba(means).max(axis=1)
    between = fitted.predict_proba((means[:1] + means[1:]) / 2).max(axis=1)
    assert inside.min() > 0.95
    assert between.max() < inside.min()


@pytest.mark.parametrize(
    "convert", [sp.csr_matrix, sp.csc_matrix, sp.csr_array, lambda X: X.astype(np.float64), np.asfortranarray]
)
def test_every_container_gives_the_same_labels(data, fitted, convert):
    other = VCC(3, **SMALL).fit(convert(data[0]))
    assert adjusted_rand_score(fitted.labels_, other.labels_) == 1
    np.testing.assert_allclose(other.predict_proba(convert(data[0])), other.proba_)
    np.testing.assert_allclose(fitted.transform(convert(data[0])), fitted.embedding_, rtol=1e-5, atol=1e-6)


def test_integers_are_accepted():
    X, _ = load_digits(return_X_y=True)
    a = VCC(10, **SMALL).fit(X[:300].astype(np.uint8))
    b = VCC(10, **SMALL).fit(X[:300].astype(np.float32))
    np.testing.assert_array_equal(a.labels_, b.labels_)


def test_sparse_input_is_never_dense_as_a_whole(monkeypatch):
    X = sp.random(400, 300, density=0.05, format="csr", dtype=np.float32, random_state=0)
    largest = []
    original = sp.csr_matrix.toarray

    def watched(self, *args, **kwargs):
        largest.append(self.shape[0])
        return original(self, *args, **kwargs)

    monkeypatch.setattr(sp.csr_matrix, "toarray", watched)
    monkeypatch.setattr(_encoder, "BLOCK", 128)
    VCC(3, batch_size=64, n_pcs=10, **SMALL).fit(X)
    assert largest  # the sparse branch ran
    assert sum(rows == 64 for rows in largest) > 50
    assert max(largest) <= 128


def test_given_graphs_are_used(data):
    X, truth = data
    distances = kneighbors_graph(X, 15, mode="distance")  # and the row itself
    searched = VCC(3, **SMALL).fit(X)
    given = VCC(3, **SMALL).fit(X, graph=distances)
    np.testing.assert_allclose(given.graph_.toarray(), searched.graph_.toarray(), atol=1e-5)
    np.testing.assert_array_equal(given.labels_, searched.labels_)
    # a graph that contradicts X wins over X
    rng = np.random.default_rng(0)
    shuffled = truth[rng.permutation(300)]
    blocks = sp.csr_matrix((shuffled[:, None] == shuffled[None, :]) * (rng.random((300, 300)) < 0.1), dtype=float)
    by_graph = VCC(3, hidden=(256, 256), epochs=0).fit(X, graph=blocks, graph_mode="connectivity")
    np.testing.assert_array_equal(
        by_graph.graph_.toarray() > 0, (blocks.maximum(blocks.T)).toarray() * ~np.eye(300, dtype=bool) > 0
    )


def test_same_seed_same_bits_and_other_seed_other_map(data):
    X, _ = data
    a, b, c = (VCC(3, random_state=seed, **SMALL).fit(X) for seed in (1, 1, 2))
    np.testing.assert_array_equal(a.embedding_, b.embedding_)
    np.testing.assert_array_equal(a.labels_, b.labels_)
    assert not np.array_equal(a.embedding_, c.embedding_)


def test_random_state_kinds(data):
    X, _ = data
    a, b = (VCC(3, random_state=np.random.default_rng(5), **SMALL).fit(X) for _ in range(2))
    np.testing.assert_array_equal(a.embedding_, b.embedding_)
    VCC(3, random_state=None, **SMALL).fit(X)
    with pytest.raises(TypeError, match="random_state.*0.5"):
        VCC(3, random_state=0.5).fit(X)


def test_random_states_of_the_caller_are_untouched(data):
    X, _ = data
    np.random.seed(3)  # noqa: NPY002
    torch.manual_seed(3)
    numpy_state, torch_state = np.random.get_state()[1:3], torch.random.get_rng_state()  # noqa: NPY002
    model = VCC(3, **SMALL).fit(X)
    model.predict(X)
    assert np.random.get_state()[2] == numpy_state[1]  # noqa: NPY002
    np.testing.assert_array_equal(np.random.get_state()[1], numpy_state[0])  # noqa: NPY002
    assert torch.equal(torch.random.get_rng_state(), torch_state)


def test_threads_are_set_and_put_back(data, monkeypatch):
    X, _ = data
    seen = []
    original = _estimator.train
    monkeypatch.setattr(
        _estimator, "train", lambda *args, **kwargs: seen.append(torch.get_num_threads()) or original(*args, **kwargs)
    )
    before = torch.get_num_threads()
    VCC(3, n_jobs=1, **SMALL).fit(X)
    assert seen == [1]
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("n_jobs", [None, 1])
def test_compiled_kernels_do_not_change_the_threads_of_torch(data, monkeypatch, n_jobs):
    seen = []
    original = _train.fit_encoder
    monkeypatch.setattr(_coordinates, "threads_for", lambda n: threads_for(n, least=1))
    monkeypatch.setattr(_train, "fit_encoder", lambda *args: seen.append(torch.get_num_threads()) or original(*args))
    numba.set_num_threads(numba.config.NUMBA_NUM_THREADS)
    torch.set_num_threads(1)
    VCC(3, n_jobs=n_jobs, **SMALL).fit(data[0])
    assert seen == [1]
    assert torch.get_num_threads() == 1
    assert numba.get_num_threads() == numba.config.NUMBA_NUM_THREADS


def test_number_of_clusters_is_estimated(data):
    assert VCC(**SMALL).fit(data[0]).n_clusters_ == 3


def test_interrupt_leaves_the_estimator_unfitted(data, monkeypatch):
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr("scvcc._training.recipe.fit_encoder", interrupted)
    model = VCC(3, **SMALL)
    with pytest.raises(KeyboardInterrupt):
        model.fit(data[0])
    assert not hasattr(model, "labels_")


def test_duplicates_and_two_points_per_cluster():
    X = np.repeat(np.random.default_rng(0).normal(size=(6, 4)), 10, axis=0)
    model = VCC(6, n_neighbors=5, **SMALL).fit(X)
    assert np.isfinite(model.embedding_).all()
    assert adjusted_rand_score(np.repeat(np.arange(6), 10), model.labels_) > 0.9


def test_as_many_clusters_as_rows():
    X = np.random.default_rng(0).normal(size=(8, 3))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = VCC(8, n_neighbors=3, **SMALL).fit(X)
    assert np.isfinite(model.embedding_).all()
    assert 2 <= model.n_clusters_ <= 8
    said = [str(w.message) for w in caught if "n_clusters=8" in str(w.message)]
    assert bool(said) == (model.n_clusters_ < 8)


BAD_PARAMETERS = [
    ({"n_clusters": 1}, ValueError, "n_clusters must be from 2 to 300.*found 1"),
    ({"n_clusters": 301}, ValueError, "n_clusters must be from 2 to 300.*found 301"),
    ({"n_clusters": 2.5}, TypeError, "n_clusters must be an integer or None, found 2.5"),
    ({"n_neighbors": 301}, ValueError, "n_neighbors=301 needs at least 301 rows"),
    ({"n_neighbors": 0}, ValueError, "n_neighbors must be at least 2"),
    ({"latent_dim": 0}, ValueError, "latent_dim"),
    ({"batch_size": 0}, ValueError, "batch_size"),
    ({"n_pcs": 0}, ValueError, "n_pcs"),
    ({"hidden": (0,)}, ValueError, "hidden"),
    ({"epochs": -1}, ValueError, "epochs"),
    ({"epochs": 0, "objective": "paper"}, ValueError, "epochs"),
    ({"learning_rate": 0}, ValueError, "learning_rate"),
    ({"objective": "best"}, ValueError, "objective.*'best'"),
    ({"loss_weights": {"magic": 1}}, ValueError, "loss_weights.*'magic'"),
    ({"device": "quantum"}, ValueError, "device=.quantum. cannot be used"),
    ({"n_jobs": -2}, ValueError, "n_jobs"),
    ({"n_jobs": 0}, ValueError, "n_jobs"),
    ({"hidden": 64}, TypeError, "hidden.*64"),
    ({"learning_rate": "a"}, TypeError, "learning_rate.*'a'"),
    ({"loss_weights": {"boundary": "a"}}, TypeError, r"loss_weights must be a dict of numbers.*'a'"),
    ({"loss_weights": {"boundary": -1}}, ValueError, "loss_weights must be at least 0, found -1"),
    ({"loss_weights": [1, 2]}, TypeError, "loss_weights.*list"),
    ({"device": None}, ValueError, "device=None"),
    *[({"device": name}, ValueError, f"device={name!r} cannot be used") for name in ("meta", "cpu:7", "xpu", "hpu")],
    ({"loss_weights": dict.fromkeys(("boundary", "contraction", "expansion", "clustering"), 0)}, ValueError, "all 0"),
    ({"learning_rate": float("inf")}, ValueError, "learning_rate"),
    ({"n_clusters": np.timedelta64(3)}, TypeError, "n_clusters must be an integer or None, found .*timedelta64"),
    ({"metric": ["euclidean"]}, TypeError, "metric must be a string, found"),
    ({"keep_stages": 1}, TypeError, "keep_stages must be True or False, found 1 of type int"),
    ({"random_state": -1}, ValueError, "random_state"),
    ({"max_train_cells": 15}, ValueError, "max_train_cells must be at least 16"),  # n_neighbors=16
    ({"max_train_cells": 20, "n_clusters": 30}, ValueError, "max_train_cells must be at least 30"),
    ({"max_train_cells": 1e5}, TypeError, "max_train_cells"),
]


@pytest.mark.parametrize(("parameters", "error", "match"), BAD_PARAMETERS)
def test_bad_parameters_are_named(data, parameters, error, match):
    with pytest.raises(error, match=match):
        VCC(**{"n_clusters": 3, **parameters}).fit(data[0])


@pytest.mark.parametrize(
    ("X", "error", "match"),
    [
        (np.full((30, 3), np.nan), ValueError, "NaN"),
        (np.full((30, 3), np.inf), ValueError, "infinity"),
        (np.empty((0, 3)), ValueError, "0 sample"),
        (np.ones((1, 3)), ValueError, "1 sample"),
        (np.ones((30, 0)), ValueError, "0 feature"),
        (np.ones((30, 3), dtype=complex), ValueError, "[Cc]omplex"),
        (np.full((30, 3), "a", dtype=object), ValueError, "could not convert"),
        (np.ones(30), ValueError, "1D"),
    ],
)
def test_bad_input_is_named(X, error, match):
    with pytest.raises(error, match=match):
        VCC(3, n_neighbors=5).fit(X)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_missing_gpu_is_said(data):
    with pytest.raises(ValueError, match="device=.cuda. cannot be used: torch finds no such device"):
        VCC(3, device="cuda").fit(data[0])


def test_parameters_survive_cloning():
    model = VCC(4, loss_weights={"boundary": 0.5}, hidden=[16])
    assert clone(model).get_params() == model.get_params()


def test_feature_names_of_the_output(fitted):
    assert fitted.get_feature_names_out().tolist() == ["vcc0", "vcc1"]


# ------------------------------------------------------------------------------------------------- many rows


@pytest.fixture(scope="module")
def sketched(data):
    return VCC(3, keep_stages=True, max_train_cells=120, **SMALL).fit(data[0])


def test_a_sketch_is_trained_on_and_all_rows_are_labeled(data, sketched):
    X, truth = data
    rows = sketched.trained_rows_
    assert len(rows) == 120
    assert sketched.graph_.shape == (120, 120)
    assert all(H.shape == (120, 2) for H in sketched.stages_.values())
    assert adjusted_rand_score(truth, sketched.labels_) == 1
    assert np.bincount(sketched.labels_).tolist() == [150, 100, 50]  # sizes among all rows
    alone = VCC(3, max_train_cells=None, **SMALL).fit(X[rows])
    np.testing.assert_array_equal(sketched.embedding_, alone.transform(X))
    np.testing.assert_array_equal(sketched.predict(X), sketched.labels_)
    np.testing.assert_array_equal(sketched.predict_proba(X), sketched.proba_)
    order = [np.abs(alone.cluster_centers_ - center).sum(axis=1).argmin() for center in sketched.cluster_centers_]
    np.testing.assert_allclose(sketched.proba_, alone.predict_proba(X)[:, order], rtol=1e-6)


def test_novelty_of_a_sketched_model_is_that_of_all_rows(data, sketched):
    found = sketched.novelty(data[0])
    assert np.quantile(found, [0.25, 0.5, 0.75]) == pytest.approx([0.25, 0.5, 0.75], abs=0.02)


def test_few_rows_or_a_graph_are_trained_on_as_a_whole(data, fitted, caplog):
    X = data[0]
    assert fitted.trained_rows_.tolist() == list(range(300))
    for limit in (300, None):
        model = VCC(3, max_train_cells=limit, **SMALL).fit(X)
        np.testing.assert_array_equal(model.embedding_, fitted.embedding_)
    graph = kneighbors_graph(X, 10, mode="distance")
    with caplog.at_level(logging.INFO, "scvcc"):
        assert VCC(3, max_train_cells=100, **SMALL).fit(X, graph=graph).graph_.shape == (300, 300)
    assert "sketch" not in caplog.text


def test_a_bad_row_outside_the_sketch_is_found_before_training(data, sketched, monkeypatch):
    monkeypatch.setattr(_estimator, "train", lambda *args, **kwargs: pytest.fail("trained"))
    X = data[0].copy()
    X[np.setdiff1d(np.arange(300), sketched.trained_rows_)[-1]] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        VCC(3, max_train_cells=120, **SMALL).fit(X)


def stored_kinds(X, folder):
    """The rows in memory, and in files that are read in parts."""
    np.save(folder / "rows.npy", X)
    with h5py.File(folder / "rows.h5", "w") as file:
        file["X"] = X
    ad.AnnData(sp.csr_matrix(X, dtype=np.float32)).write_h5ad(folder / "rows.h5ad")
    return {
        "csr": sp.csr_matrix(X),
        "memmap": np.load(folder / "rows.npy", mmap_mode="r"),
        "h5py": h5py.File(folder / "rows.h5")["X"],
        "backed": ad.read_h5ad(folder / "rows.h5ad", backed="r").X,
    }


def test_rows_in_files_give_the_same_bits(data, tmp_path, monkeypatch):
    monkeypatch.setattr(_encoder, "BLOCK", 64)
    monkeypatch.setattr(_rows, "_rows_at_a_time", lambda X: 64)
    monkeypatch.setattr(_fitting, "encoder_steps", lambda n, n_clusters, settings: 20)
    X = np.round(np.abs(data[0])).astype(np.uint8)  # whole numbers: no kind rounds
    kinds = stored_kinds(X, tmp_path)
    for limit in (120, None):
        settings = {"n_clusters": 3, "max_train_cells": limit, "hidden": (8,), "epochs": 0}
        dense, sparse = VCC(**settings).fit(X), VCC(**settings).fit(sp.csr_matrix(X))
        for name, rows in kinds.items():
            model = VCC(**settings).fit(rows)
            expected = sparse if name in ("csr", "backed") else dense
            np.testing.assert_array_equal(model.embedding_, expected.embedding_, err_msg=name)
            np.testing.assert_array_equal(dense.transform(rows), dense.embedding_, err_msg=name)
            np.testing.assert_array_equal(dense.predict(rows), dense.labels_, err_msg=name)
            np.testing.assert_array_equal(dense.predict_proba(rows), dense.proba_, err_msg=name)
            np.testing.assert_array_equal(dense.novelty(rows), dense.novelty(X), err_msg=name)


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """A model, and many rows and few of them in all kinds."""
    X = np.random.default_rng(0).integers(0, 4, size=(24_576, 40), dtype=np.uint8)
    model = VCC(8, hidden=(4,), epochs=0, n_neighbors=5).fit(X[:400])
    return model, *(stored_kinds(part, tmp_path_factory.mktemp("rows")) for part in (X, X[:4096]))


@pytest.mark.parametrize("method", ["transform", "predict", "predict_proba", "novelty"])
@pytest.mark.parametrize("kind", ["csr", "memmap", "h5py", "backed"])
def test_memory_grows_by_no_more_than_the_output(large, monkeypatch, kind, method):
    monkeypatch.setattr(_rows, "_rows_at_a_time", lambda X: 512)  # 512 rows at a time
    model, many, few = large
    beyond = {}
    for part in (many[kind], few[kind]):
        getattr(model, method)(part[:600])  # imports and caches
        tracemalloc.start()
        found = getattr(model, method)(part)
        beyond[part.shape[0]] = tracemalloc.get_traced_memory()[1] - found.nbytes
        tracemalloc.stop()
    assert beyond[24_576] < beyond[4096] + 8 * 20_480  # anndata keeps pointers to the rows; a copy has 40 bytes per row


def test_columns_on_disk_are_refused(data, fitted, tmp_path):
    ad.AnnData(sp.csc_matrix(data[0])).write_h5ad(tmp_path / "columns.h5ad")
    columns = ad.read_h5ad(tmp_path / "columns.h5ad", backed="r").X
    for use in (fitted.predict, VCC(3, **SMALL).fit):
        with pytest.raises(ValueError, match="CSC, by columns.*store it as CSR"):
            use(columns)
