"""AnnData on disk: opened with `read_lazy`, with matrices of dask, or backed; results are those in memory."""

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import scanpy as sc
import scipy.sparse as sp
from sklearn.datasets import make_blobs

import scvcc
from scvcc import VCC
from scvcc._anndata import query
from scvcc._model import rows as _rows

QUICK = {"n_clusters": 4, "hidden": (16,), "epochs": 0, "progress": False}
N, P = 400, 60


@pytest.fixture(autouse=True)
def blocks(monkeypatch):
    """Blocks of 64 rows, so that 400 cells are several."""
    monkeypatch.setattr(_rows, "_rows_at_a_time", lambda X: 64)


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """Cells of 4 groups in 60 genes, a third of the values zeros, with a PCA; and their files."""
    X, y = make_blobs(N, P, centers=4, cluster_std=9, random_state=3)
    X = sp.csr_matrix(np.maximum(X + np.linspace(0, 8, P), 0).astype(np.float32))
    obs = pd.DataFrame({"truth": y.astype(str), "sample": np.tile(["a", "b"], N // 2)}, dtype="category")
    obs.index = [f"cell{i}" for i in range(N)]
    adata = ad.AnnData(X, obs=obs, var=pd.DataFrame({"mean": X.toarray().mean(0)}, [f"gene{i}" for i in range(P)]))
    sc.pp.pca(adata, n_comps=10)
    sc.pp.neighbors(adata)
    folder = tmp_path_factory.mktemp("cells")
    adata.write_h5ad(folder / "cells.h5ad")
    adata.write_zarr(folder / "cells.zarr")
    return adata, folder


@pytest.fixture
def cells(stored):
    return stored[0].copy()


def opened(stored, suffix):
    return pytest.importorskip("anndata.experimental").read_lazy(stored[1] / f"cells.{suffix}")


def chunked(adata):
    """X and obsm as arrays of dask, the chunks of both cut in places of their own."""
    da = pytest.importorskip("dask.array")
    lazy = adata.copy()
    lazy.X = da.from_array(adata.X, chunks=(70, P))
    for name, values in adata.obsm.items():
        lazy.obsm[name] = da.from_array(values, chunks=(90, 3))
    return lazy


OPEN = {
    "zarr": lambda stored: opened(stored, "zarr"),
    "h5ad": lambda stored: opened(stored, "h5ad"),
    "dask": lambda stored: chunked(stored[0]),
    "backed": lambda stored: ad.read_h5ad(stored[1] / "cells.h5ad", backed="r"),
}


@pytest.fixture(params=OPEN)
def lazy(request, stored):
    if request.param != "backed":
        pytest.importorskip("dask.array")
        pytest.importorskip("xarray")
    return OPEN[request.param](stored)


def assert_same_result(lazy, cells, *names):
    np.testing.assert_array_equal(lazy.obsm["X_vcc"], cells.obsm["X_vcc"])
    for name in ("vcc", "vcc_confidence", *names):
        np.testing.assert_array_equal(lazy.obs[name], cells.obs[name])


def test_clusters_and_the_file_of_the_model(lazy, cells, tmp_path):
    for name, adata in (("a", lazy), ("b", cells)):
        scvcc.tl.vcc(adata, save_to=tmp_path / name, max_train_cells=150, **QUICK)
    assert_same_result(lazy, cells, "vcc_trained")
    a, b = (VCC.load(tmp_path / name).extra_ for name in "ab")
    assert set(a) == set(b)
    for name in a:
        np.testing.assert_array_equal(a[name], b[name])


def test_the_genes_themselves(lazy, cells):
    for adata in (lazy, cells):
        scvcc.tl.vcc(adata, use_rep="X", max_train_cells=150, **QUICK)
    assert_same_result(lazy, cells)


@pytest.mark.parametrize("lazy", ["zarr"], indirect=True)
def test_stored_graphs_batches_and_parts(lazy, cells):
    part = {"restrict_to": ("truth", ["0", "1"]), "max_train_cells": 150, "key_added": "part"}
    for adata in (lazy, cells):
        scvcc.tl.vcc(adata, **QUICK)
        scvcc.tl.vcc(adata, **{**QUICK, "n_clusters": 2}, batch_key="sample", **part)
    assert_same_result(lazy, cells, "part")


@pytest.fixture(scope="module")
def file(stored, tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "model.safetensors"
    scvcc.tl.vcc(stored[0], copy=True, save_to=path, max_train_cells=150, **QUICK)
    return path


def test_a_model_maps_cells_where_they_are(lazy, cells, file):
    scvcc.tl.map_query(cells, file)
    X = lazy.X
    scvcc.tl.map_query(lazy, file)
    assert_same_result(lazy, cells, "vcc_novelty")
    assert type(lazy.X) is type(X)


@pytest.mark.parametrize("suffix", ["h5ad", "zarr"])
def test_what_was_opened_can_be_written_with_the_result(suffix, stored, file, tmp_path):
    pytest.importorskip("xarray")
    cells = stored[0].copy()
    cells.uns["ranks"] = {"table": pd.DataFrame({"gene": ["a", "b"]}, ["0", "1"]), "names": np.array(["x", "y"])}
    getattr(cells, f"write_{suffix}")(tmp_path / f"in.{suffix}")
    lazy = pytest.importorskip("anndata.experimental").read_lazy(tmp_path / f"in.{suffix}")
    scvcc.tl.map_query(lazy, file)
    getattr(lazy, f"write_{suffix}")(tmp_path / f"out.{suffix}")
    again = getattr(ad, f"read_{suffix}")(tmp_path / f"out.{suffix}")
    kept = again.uns["ranks"]["table"]
    pd.testing.assert_frame_equal(
        kept, cells.uns["ranks"]["table"], check_dtype=False
    )  # strings have two types in pandas 3
    assert again.uns["ranks"]["names"].tolist() == ["x", "y"]
    assert again.obs["vcc"].notna().all() and (again.X != cells.X).nnz == 0


def test_no_block_is_larger_than_needed(stored, file, monkeypatch):
    """The projection meets 64 rows at a time, never the whole matrix."""
    met, project = [], query.project
    monkeypatch.setattr(query, "project", lambda about, X, *args: met.append(X.shape) or project(about, X, *args))
    for adata in (opened(stored, "zarr"), OPEN["backed"](stored), stored[0].copy()):
        scvcc.tl.map_query(adata, file)
        assert sum(rows for rows, _ in met) >= N and max(rows for rows, _ in met) <= 64
        met.clear()


def test_a_result_can_be_written(stored, tmp_path):
    lazy = opened(stored, "zarr")
    copy = scvcc.tl.vcc(lazy, copy=True, max_train_cells=150, **QUICK)
    assert "vcc" not in lazy.obs and "X_vcc" not in lazy.obsm
    copy.write_zarr(tmp_path / "out.zarr")
    back = ad.read_zarr(tmp_path / "out.zarr")
    assert back.obs["vcc"].tolist() == copy.obs["vcc"].tolist()
    assert (back.X != stored[0].X).nnz == 0


def test_a_pca_that_is_missing(cells):
    """Dask has another algorithm for it: the same components but for rounding and signs."""
    lazy = chunked(cells)
    for adata in (lazy, cells):
        del adata.obsm["X_pca"], adata.varm["PCs"], adata.uns["pca"]
        scvcc.tl.vcc(adata, n_pcs=10, max_train_cells=150, **QUICK)
    assert isinstance(lazy.obsm["X_pca"], np.ndarray)
    np.testing.assert_allclose(np.abs(lazy.obsm["X_pca"]), np.abs(cells.obsm["X_pca"]), rtol=0.1, atol=0.1)


def test_values_are_checked(cells, file):
    cells.X.data[-1] = np.nan
    with pytest.raises(ValueError, match="adata.X has 1 NaN"):
        scvcc.tl.map_query(chunked(cells), file)
    cells.obsm["X_pca"][300, 3] = np.nan
    for most, words in ((150, "NaN"), (None, "1 NaN")):
        lazy = chunked(cells)
        with pytest.raises(ValueError, match=words):
            scvcc.tl.vcc(lazy, max_train_cells=most, **QUICK)
        assert "vcc" not in lazy.obs
