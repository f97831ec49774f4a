"""Data, quick settings and comparisons that several test modules use."""

from __future__ import annotations

import os
from contextlib import contextmanager

os.environ.setdefault("MPLBACKEND", "Agg")

import anndata as ad
import matplotlib.pyplot as plt
import numba
import numpy as np
import pandas as pd
import pytest
import scanpy as sc
import scipy.sparse as sp
import torch
from sklearn.datasets import make_blobs
from torch.utils import backend_registration

import scvcc

if not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"):
    collect_ignore = ["standin.py", "test_device.py"]  # older releases of torch have no devices written in Python

QUICK = {"hidden": (16,), "epochs": 0, "progress": False}


@pytest.fixture(autouse=True)
def one_thread():
    """Test workers share the cores: threads of small problems would only wait for each other."""
    numba.set_num_threads(1)
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def no_open_figures():
    yield
    plt.close("all")


@pytest.fixture(scope="session")
def quick() -> dict:
    """Settings of VCC for a run of about a second."""
    return QUICK


@pytest.fixture(scope="session")
def _blobs() -> ad.AnnData:
    X, y = make_blobs(240, 20, centers=4, cluster_std=4.5, random_state=3)  # apart, but with a connected graph
    obs = pd.DataFrame({"truth": pd.Categorical(y.astype(str))}, index=[f"cell{i}" for i in range(240)])
    return ad.AnnData(X.astype(np.float32), obs=obs, var=pd.DataFrame(index=[f"gene{i}" for i in range(20)]))


@pytest.fixture
def blobs(_blobs) -> ad.AnnData:
    """240 cells of 4 groups in 20 variables; no graph yet."""
    return _blobs.copy()


@pytest.fixture(scope="session")
def _neighbors(_blobs) -> ad.AnnData:
    adata = _blobs.copy()
    sc.pp.neighbors(adata, n_neighbors=15, use_rep="X")
    return adata


@pytest.fixture
def neighbors(_neighbors) -> ad.AnnData:
    """The same cells with scanpy's graph."""
    return _neighbors.copy()


@pytest.fixture(scope="session")
def _clustered(_neighbors) -> ad.AnnData:
    numba.set_num_threads(1)
    torch.set_num_threads(1)
    adata = _neighbors.copy()
    scvcc.tl.vcc(adata, 4, keep_stages=True, **QUICK)
    return adata


@pytest.fixture
def clustered(_clustered) -> ad.AnnData:
    """The same cells with a result, stages kept."""
    return _clustered.copy()


@pytest.fixture(scope="session")
def _pbmc() -> ad.AnnData:
    return sc.datasets.pbmc68k_reduced()


@pytest.fixture
def pbmc(_pbmc) -> ad.AnnData:
    """700 real cells in 765 genes, with scanpy's PCA and graph."""
    return _pbmc.copy()


def _same(a, b) -> bool:
    """Deep equality of what an AnnData can hold, NaN equal to NaN."""
    if isinstance(a, dict) or hasattr(a, "keys") and not isinstance(a, pd.DataFrame):
        return set(a) == set(b) and all(_same(a[k], b[k]) for k in a)
    if sp.issparse(a):
        return a.shape == b.shape and a.dtype == b.dtype and (a != b).nnz == 0 and a.nnz == b.nnz
    if isinstance(a, (pd.DataFrame, pd.Series)):
        return a.equals(b)
    a, b = np.asarray(a), np.asarray(b)
    if a.dtype.kind in "OUST" or b.dtype.kind in "OUST":
        return list(map(str, a.ravel().tolist())) == list(map(str, b.ravel().tolist()))
    return a.shape == b.shape and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")


def _everything(adata: ad.AnnData) -> dict:
    """A deep copy of all that an AnnData holds."""
    copy = adata.to_memory(copy=True)
    slots = {name: dict(getattr(copy, name)) for name in ("uns", "obsm", "varm", "obsp", "varp", "layers")}
    return {"X": copy.X, "obs": copy.obs, "var": copy.var, **slots}


@pytest.fixture(scope="session")
def same():
    return _same


@pytest.fixture(scope="session")
def everything():
    return _everything


@pytest.fixture(scope="session")
def untouched():
    """Return a context manager that fails if an AnnData changes inside."""

    @contextmanager
    def check(adata):
        before = _everything(adata)
        yield
        after = _everything(adata)
        changed = [name for name in before if not _same(before[name], after[name])]
        assert not changed, f"changed: {changed}"

    return check
