"""Drawn data: shapes, types, sparsity, scales, duplicates and constants. A documented error, or a result without NaN."""

import warnings
from functools import cache

import anndata as ad
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import scvcc
from scvcc import metrics
from scvcc._training import fitting, recipe

DTYPES = (*["float64"] * 4, *["float32"] * 3, "float16", "int64", "int32", "int8", "uint8", "bool")
EXPONENTS = st.integers(-17, 17) | st.sampled_from((0, 300, -300, 150, -160, 37, 38, 39, -39, -45))
SHAPES = {  # by random numbers, rows and columns
    "cloud": lambda rng, n, d: rng.normal(size=(n, d)),
    "groups": lambda rng, n, d: rng.normal(size=(n, d)) + 20 * rng.integers(3, size=(n, 1)),
    "equal": lambda rng, n, d: np.repeat(rng.normal(size=(1, d)), n, axis=0),
    "few": lambda rng, n, d: rng.normal(size=(3, d))[rng.integers(3, size=n)],
    "constant columns": lambda rng, n, d: rng.normal(size=(n, d)) * (rng.random(d) < 0.3) + 3,
    "outlier": lambda rng, n, d: rng.normal(size=(n, d)) + 1e12 * (np.arange(n) == 0)[:, None],
    "line": lambda rng, n, d: np.linspace(0, 1, n)[:, None] * np.ones(d),
    "counts": lambda rng, n, d: rng.poisson(0.3, size=(n, d)).astype(float),
    "far": lambda rng, n, d: rng.normal(size=(n, d)) + 1e7,
    "units": lambda rng, n, d: rng.normal(size=(n, d)) * 10.0 ** rng.integers(-8, 9, size=d),
}


def fuzz(*, quick: int, slow: int, **drawn):
    """Run a test for a few drawn examples, always the same ones, and as a slow test for many."""

    def decorate(test):
        @pytest.mark.parametrize("examples", [quick, pytest.param(slow, marks=pytest.mark.slow)])
        def run(examples):
            limits = settings(
                max_examples=examples,
                derandomize=True,
                database=None,
                deadline=None,
                suppress_health_check=list(HealthCheck),
            )
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                limits(given(**drawn)(test))()

        return run

    return decorate


@pytest.fixture(autouse=True)
def few_steps(monkeypatch):
    for module in (fitting, recipe):
        monkeypatch.setattr(module, "encoder_steps", lambda n, n_clusters, settings: 15)


def scaled(X, exponent, dtype):
    X = X * 10.0**exponent
    return (X.clip(np.finfo(dtype).min, np.finfo(dtype).max) if dtype.kind == "f" else X).astype(dtype)


@st.composite
def matrices(draw, least_rows=1, columns=None):
    """A matrix of one of the shapes, scaled, in some type, dense in some layout or sparse."""
    n = draw(st.integers(least_rows, 60))
    d = columns or draw(st.sampled_from((1, 2, 3, 7, 60)))
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    X = SHAPES[draw(st.sampled_from(sorted(SHAPES)))](rng, n, d)
    if draw(st.booleans()):
        X[rng.random((n, d)) < draw(st.sampled_from((0.3, 0.95, 1)))] = 0
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    X = scaled(X, draw(EXPONENTS), dtype)
    layout = draw(st.sampled_from(("C", "F", "step", "csr", "csc", "coo", "csr_array")))
    if layout == "step":
        return np.repeat(X, 2, axis=0)[::2]
    if layout in ("C", "F"):
        return np.array(X, order=layout)
    if X.dtype == np.float16:  # scipy has no sparse matrices of it
        return X
    return getattr(sp, layout if layout.endswith("array") else f"{layout}_matrix")(X)


@st.composite
def graphs(draw, n):
    """Neighbors of n points: in pieces, one-sided, with equal, zero or far-off values."""
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    dense = rng.random((n, n)) * (rng.random((n, n)) < draw(st.sampled_from((0.02, 0.2, 0.8))))
    kind = draw(st.sampled_from(("any", "equal", "pieces", "diagonal", "tail")))
    if kind == "equal":
        dense = (dense > 0).astype(float)
    elif kind == "pieces":
        dense[: n // 2, n // 2 :] = dense[n // 2 :, : n // 2] = 0
    elif kind == "diagonal":
        np.fill_diagonal(dense, 1)
    elif kind == "tail":
        dense **= 40
    graph = sp.csr_matrix(scaled(dense, draw(EXPONENTS), np.dtype(draw(st.sampled_from(("float64", "float32"))))))
    if draw(st.booleans()):
        graph.data[rng.random(graph.nnz) < 0.2] = 0  # stored zeros
    return graph


def assert_result(model, X):
    n = X.shape[0]
    K = model.n_clusters_
    for name in ("embedding_", "cluster_centers_", "proba_", "confidence_", "sharpness_"):
        assert np.isfinite(getattr(model, name)).all(), name
    assert model.embedding_.shape == (n, 2) and model.labels_.shape == (n,)
    assert np.array_equal(np.unique(model.labels_), np.arange(K))
    assert (np.diff(np.bincount(model.labels_)) <= 0).all(), "clusters are not numbered by size"
    np.testing.assert_allclose(model.proba_.sum(axis=1), 1, atol=1e-5)
    if model.support_ is not None:
        assert np.isfinite(model.support_.p).all() and np.isfinite(model.support_.link).all()
    assert all(np.isfinite(model.history_[name]).all() for name in ("total", "step"))


def outcome(named, ask, *args, **kwargs):
    """What a call gives; None after an error that is documented and names what is wrong."""
    try:
        return ask(*args, **kwargs)
    except (ValueError, TypeError) as error:
        text = str(error)
        assert any(name in text for name in named), text
        assert "NaN" not in text and "nan" not in text, text
        return None


@fuzz(
    quick=30,
    slow=600,
    X=matrices(),
    n_clusters=st.sampled_from((None, 2, 3, 10)),
    n_neighbors=st.sampled_from((2, 5, 16)),
    n_pcs=st.sampled_from((None, 2, 50)),
    others=st.sampled_from(
        ({}, {"objective": "paper", "epochs": 1}, {"epochs": 1}, {"metric": "cosine"}, {"max_train_cells": 20})
    ),
)
def test_any_matrix(X, n_clusters, n_neighbors, n_pcs, others):
    model = scvcc.VCC(n_clusters, n_neighbors=n_neighbors, n_pcs=n_pcs, hidden=(8,), **{"epochs": 0, **others})
    before = X.copy()
    named = ("X ", "rows", "n_clusters", "n_neighbors", "metric", "sample", "feature", "max_train_cells")
    fitted = outcome(named, model.fit, X)
    assert (abs(X - before)).sum() == 0 if sp.issparse(X) else np.array_equal(X, before), "X was changed"
    if fitted is not None:
        assert_result(fitted, X)
        assert np.array_equal(fitted.predict(X), fitted.labels_)
        found = outcome(("X",), fitted.novelty, X)
        assert found is not None and np.isfinite(found).all()


@cache
def fitted_on_two_groups():
    rng = np.random.default_rng(0)
    X = np.concatenate([rng.normal(m, 1, (40, 7)) for m in (0, 6)])
    return scvcc.VCC(2, hidden=(8,), epochs=0).fit(X)


@fuzz(quick=40, slow=1000, X=matrices(columns=7))
def test_any_new_rows(X):
    model = fitted_on_two_groups()
    for ask in (model.transform, model.predict_proba, model.novelty, model.predict):
        found = outcome(("X ",), ask, X)
        assert found is None or (len(found) == X.shape[0] and np.isfinite(found).all())


@fuzz(
    quick=15,
    slow=400,
    graph=graphs(50),
    mode=st.sampled_from(("distance", "connectivity")),
    n_clusters=st.sampled_from((None, 2, 5)),
)
def test_any_graph(graph, mode, n_clusters):
    X = np.random.default_rng(0).normal(size=(50, 4))
    before = graph.copy()
    fitted = outcome(
        ("graph", "metric"), scvcc.VCC(n_clusters, hidden=(8,), epochs=0).fit, X, graph=graph, graph_mode=mode
    )
    assert (graph != before).nnz == 0 and graph.nnz == before.nnz
    if fitted is not None:
        assert_result(fitted, X)


@fuzz(quick=60, slow=2000, X=matrices(least_rows=2), graph=graphs(30), seed=st.integers(0, 99), K=st.integers(1, 5))
def test_any_metric(X, graph, seed, K):
    rng = np.random.default_rng(seed)
    labels, others = rng.integers(K, size=(2, X.shape[0]))
    for metric in (metrics.nmi, metrics.ari, metrics.clustering_accuracy):
        assert -1 <= metric(labels, others) <= 1
    if not sp.issparse(X):
        found = outcome(("embedding", "labels"), metrics.compactness, X, labels)
        assert found is None or (np.isfinite(found) and found >= 0)
    named = ("graph", "distances")
    found = outcome(named, metrics.boundary_score, graph)
    assert found is None or np.isfinite(found).all()
    mixing = metrics.batch_mixing(graph, np.arange(30) % 3)
    rows = np.repeat(np.arange(30), np.diff(graph.indptr))
    n_others = np.bincount(rows, rows != graph.indices, 30)
    assert np.array_equal(np.isnan(mixing), n_others == 0)


# more find what docs/reliability.md names: with numbers that scanpy's search cannot take, the error may speak of NaN
@fuzz(quick=5, slow=100, X=matrices(least_rows=12), batch=st.booleans())
def test_any_adata(X, batch):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        X = X.tocsr() if sp.issparse(X) and X.format not in ("csr", "csc") else X  # all that older releases take
        adata = ad.AnnData(X.astype(np.float32) if X.dtype == np.float16 else X)
        adata.obs["batch"] = list("ab" * 60)[: adata.n_obs]
    before = adata.copy()
    given = {"batch_key": "batch"} if batch else {}
    done = outcome(
        ("X", "n_neighbors", "PCA", "cells", "batch", "metric"),
        lambda: scvcc.tl.vcc(
            adata, None, use_rep="X", n_neighbors=5, hidden=(8,), epochs=0, progress=False, copy=True, **given
        ),
    )
    assert list(adata.obs) == ["batch"] and not adata.uns and not adata.obsm and not adata.obsp
    assert abs(adata.X - before.X).sum() == 0 if sp.issparse(X) else np.array_equal(adata.X, before.X)
    if done is not None:
        assert np.isfinite(done.obsm["X_vcc"]).all() and np.isfinite(done.obs["vcc_confidence"]).all()
        assert done.obs["vcc"].notna().all()
