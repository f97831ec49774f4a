"""dask arrays: the same bits as in memory, chunk by chunk, on any scheduler."""

import pickle
import subprocess
import sys

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.datasets import make_blobs

from scvcc import VCC
from scvcc._model import placing as _placing
from scvcc._model import rows as _rows
from scvcc._model.lazy import is_lazy, over_chunks
from scvcc._training.encoder import Encoder

da = pytest.importorskip("dask.array")
dask = pytest.importorskip("dask")

N, D = 3000, 8
CHUNKS = {"odd": (700, 1, 1299, 1000), "small": 37, "one": N, "columns": ((1024, N - 1024), (5, 3))}
METHODS = ("transform", "predict", "predict_proba", "novelty")
SKETCHED = {"n_clusters": 4, "hidden": (16,), "epochs": 0, "max_train_cells": 400}


@pytest.fixture(autouse=True)
def blocks(monkeypatch):
    """Blocks of 1,024 rows, so that 3,000 are several."""
    monkeypatch.setattr(_rows, "_rows_at_a_time", lambda X: 1024)


@pytest.fixture(scope="module")
def X():
    values = make_blobs(N, D, centers=4, cluster_std=2, random_state=0)[0]
    return np.where(values > 0, values, 0).astype(np.float32)


def chunked(X, chunks="odd", *, sparse=None):
    if chunks == "odd" or not isinstance(chunks, str):
        chunks = (CHUNKS.get(chunks, chunks), (X.shape[1],))
    else:
        chunks = CHUNKS[chunks] if chunks == "columns" else (CHUNKS[chunks], X.shape[1])
    lazy = da.from_array(X, chunks=chunks)
    return lazy if sparse is None else lazy.map_blocks(sparse)


@pytest.fixture(scope="module")
def fitted(X):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_rows, "_rows_at_a_time", lambda X: 1024)
        return VCC(**SKETCHED).fit(X)


@pytest.mark.parametrize("chunks", CHUNKS)
@pytest.mark.parametrize("method", METHODS)
def test_results_are_lazy_and_the_same_bits(X, fitted, chunks, method):
    lazy = getattr(fitted, method)(chunked(X, chunks))
    expected = getattr(fitted, method)(X)
    assert is_lazy(lazy)
    assert (lazy.shape, lazy.dtype) == (expected.shape, expected.dtype)
    np.testing.assert_array_equal(lazy.compute(), expected)
    np.testing.assert_array_equal(lazy[1500:1510].compute(), expected[1500:1510])


@pytest.mark.parametrize("form", [None, sp.csr_matrix, sp.csr_array, sp.csc_matrix])
def test_a_sketch_is_gathered_from_the_chunks(X, form):
    whole = X if form is None else form(X).tocsr()
    reference, model = VCC(**SKETCHED).fit(whole), VCC(**SKETCHED).fit(chunked(X, sparse=form))
    for name in ("trained_rows_", "labels_", "embedding_", "cluster_centers_"):
        np.testing.assert_array_equal(getattr(model, name), getattr(reference, name))
    np.testing.assert_array_equal(model.graph_.toarray(), reference.graph_.toarray())
    np.testing.assert_array_equal(model.novelty(chunked(X, sparse=form)).compute(), reference.novelty(whole))


def test_few_rows_are_read_whole(X):
    settings = {**SKETCHED, "max_train_cells": None}
    lazy, whole = VCC(**settings).fit(chunked(X[:500], 200)), VCC(**settings).fit(X[:500])
    np.testing.assert_array_equal(lazy.embedding_, whole.embedding_)


def test_a_fit_reads_each_chunk_seven_times(X):
    read = []

    def count(block, block_info=None):
        if block_info:
            read.append(block_info[0]["chunk-location"][0])
        return block

    VCC(**SKETCHED).fit(chunked(X, 500).map_blocks(count, dtype=X.dtype, meta=X[:0]))
    assert set(np.bincount(read).tolist()) == {7}  # the last time for the leaves of the tree


def test_chunks_that_begin_elsewhere_are_cut_anew(X):
    met = []
    lazy = over_chunks(lambda block: met.append(len(block)) or block[:, 0], chunked(X), 1024)
    with dask.config.set(scheduler="synchronous"):
        np.testing.assert_array_equal(lazy.compute(), X[:, 0])
    assert met == [1, 1024, 1024, 952]  # the first is the example


def test_any_scheduler(X, fitted):
    lazy, expected = fitted.predict_proba(chunked(X)), fitted.predict_proba(X)
    for scheduler in ("synchronous", "threads"):
        np.testing.assert_array_equal(lazy.compute(scheduler=scheduler), expected)


@pytest.mark.slow
def test_processes(X, fitted):
    lazy = fitted.predict_proba(chunked(X))
    np.testing.assert_array_equal(lazy.compute(scheduler="processes", num_workers=2), fitted.predict_proba(X))
    model = VCC(**SKETCHED)
    with dask.config.set(scheduler="processes", num_workers=2):
        model.fit(chunked(X))
    np.testing.assert_array_equal(model.labels_, fitted.labels_)


@pytest.mark.slow
def test_workers_of_a_cluster(X, fitted):
    """Where `distributed` is installed: what is computed on two processes is what is computed here."""
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(2, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster),
    ):
        model = VCC(**SKETCHED).fit(chunked(X))
        there = model.predict_proba(chunked(X)).compute()
    np.testing.assert_array_equal(model.labels_, fitted.labels_)
    np.testing.assert_array_equal(there, fitted.predict_proba(X))


def test_what_travels_is_small_and_plain(fitted):
    light = _placing._without_rows(fitted)
    assert not hasattr(light, "labels_") and hasattr(fitted, "labels_")
    raw = pickle.dumps(light)
    assert len(raw) < fitted.sample_.rows.nbytes + 25_000
    assert b"torch" not in raw.replace(b"cpu", b"")
    encoder = pickle.loads(raw).encoder_
    assert isinstance(encoder, Encoder)
    for name, value in fitted.encoder_.arrays().items():
        np.testing.assert_array_equal(encoder.arrays()[name], value)


def test_values_are_checked_in_the_chunks(X, fitted):
    with pytest.raises(ValueError, match="NaN"):
        fitted.predict(chunked(np.where(X == X.max(), np.nan, X))).compute()
    with pytest.raises(ValueError, match="features"):
        fitted.predict(chunked(X[:, :5]))
    unknown = chunked(X)[chunked(X)[:, 0] > 1]
    with pytest.raises(ValueError, match="compute_chunk_sizes"):
        fitted.predict(unknown)


def test_dask_is_not_imported():
    script = "import sys, numpy as np, scvcc; scvcc.VCC(2, hidden=(4,), epochs=0).fit(np.eye(40, 3)); sys.exit('dask' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
