from dataclasses import replace

import anndata as ad
import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import make_blobs

import scvcc
from scvcc._anndata.tree import stored_tree
from scvcc._clusters.evidence import LEVEL

X, KIND = make_blobs(360, n_features=8, centers=6, cluster_std=0.7, random_state=1)
SETTINGS = {"use_rep": "X", "hidden": (16,), "epochs": 0, "progress": False}


@pytest.fixture(scope="module")
def run():
    obs = pd.DataFrame({"kind": KIND.astype(str)}, index=[f"c{i}" for i in range(len(X))])
    adata = ad.AnnData(X.astype(np.float32), obs=obs)
    scvcc.tl.vcc(adata, 4, **SETTINGS)
    return adata


@pytest.fixture
def adata(run):
    return run.copy()


def test_levels_are_nested_and_named_after_the_clusters(adata):
    for n in (2, 4, 7):
        scvcc.tl.cut(adata, n)
        assert list(adata.obs[f"vcc_{n}"].cat.categories) == list(
            adata.obs[f"vcc_{n}"].cat.remove_unused_categories().cat.categories
        )
        assert adata.obs[f"vcc_{n}"].nunique() == n
    assert (adata.obs["vcc_4"].astype(str) == adata.obs["vcc"].astype(str)).all()
    for fine, cluster, coarse in zip(adata.obs["vcc_7"], adata.obs["vcc"], adata.obs["vcc_2"], strict=True):
        assert fine.split(",")[0] == cluster
        assert cluster in coarse.split("+")
    with pytest.raises(ValueError, match=r"n_clusters must be from 1 to \d+ \(the leaves"):
        scvcc.tl.cut(adata, 500)


@pytest.mark.parametrize("form", ["h5ad", "zarr"])
def test_a_part_of_the_cells_read_from_a_file(form, adata, tmp_path):
    scvcc.tl.cut(adata, 6, key_added="six")
    getattr(adata, f"write_{form}")(tmp_path / f"a.{form}")
    again = getattr(ad, f"read_{form}")(tmp_path / f"a.{form}")[::3].copy()
    scvcc.tl.cut(again, 6, key_added="six_again")
    assert (again.obs["six"].astype(str) == again.obs["six_again"].astype(str)).all()


def test_restricted_runs_keep_the_labels_of_other_cells(adata):
    scvcc.tl.vcc(adata, 2, restrict_to=("vcc", ["0"]), **SETTINGS)
    scvcc.tl.cut(adata, 3, key="vcc_R")
    inside = (adata.obs["vcc"] == "0").to_numpy()
    assert set(adata.obs["vcc_R_3"][inside]) <= {"0,0", "0,1", "0,0,0", "0,0,1", "0,1,0", "0,1,1"}
    assert adata.obs["vcc_R_3"][inside].nunique() == 3
    assert (adata.obs["vcc_R_3"][~inside].astype(str) == adata.obs["vcc"][~inside].astype(str)).all()
    assert adata.obs["vcc_R_leaf"][~inside].isna().all()


def test_support_is_that_of_the_two_sides(adata):
    scvcc.tl.cut(adata, 8, support=True)
    p = adata.uns["vcc"]["tree"]["p"]
    assert np.isfinite(p).sum() == 7
    assert (p[-5:] < LEVEL).all()  # six blobs: the first five splits are real
    assert (p[np.isfinite(p)][:2] > LEVEL).all()


def test_clusters_are_merged_until_all_neighbors_are_supported(adata):
    scvcc.tl.cut(adata, 12, merge_unsupported=True)  # six blobs, of which the run parts four
    assert scvcc.metrics.ari(adata.obs["kind"], adata.obs["vcc_supported"]) == 1.0
    assert "vcc_12" not in adata.obs
    names = adata.obs["vcc_supported"].cat.categories
    assert sorted({name.split(",")[0] for name in names}) == ["0", "1", "2", "3"]
    assert sorted(name.count(",") for name in names) == [0, 0, 1, 1, 1, 1]
    scvcc.tl.test_clusters(adata, "vcc_supported")
    assert adata.uns["vcc_supported_support"]["pairs"]["supported"].all()


@pytest.mark.parametrize("n_clusters", [2, 5])  # above and below the clusters of the run
def test_one_hump_is_one_cluster_at_every_level(n_clusters):
    noise = ad.AnnData(np.random.default_rng(0).normal(size=(200, 8)).astype(np.float32))
    scvcc.tl.vcc(noise, 3, **SETTINGS)
    scvcc.tl.cut(noise, n_clusters, key_added="one", merge_unsupported=True)
    (name,) = set(noise.obs["one"])
    assert noise.obs["one"].cat.categories.tolist() == [name]
    assert sorted(name.split("+")) == ["0", "1", "2"]  # in the order of the tree


def test_a_batch_is_no_evidence():
    adata = ad.AnnData(np.random.default_rng(0).normal(size=(300, 4)).astype(np.float32))
    adata.obs["batch"] = np.tile(["a", "b"], 150)
    adata.X[1::2, 0] += 4.5
    scvcc.tl.vcc(adata, 2, n_neighbors=40, key_added="plain", **SETTINGS)
    scvcc.tl.vcc(adata, 2, batch_key="batch", batch_strength=0, n_neighbors=40, **SETTINGS)
    for key, found in {"plain": 2, "vcc": 1}.items():
        scvcc.tl.cut(adata, 3, key=key, merge_unsupported=True)
        assert adata.obs[f"{key}_supported"].nunique() == found


def test_merging_where_a_sketch_was_trained_on():
    adata = ad.AnnData(X.astype(np.float32))
    scvcc.tl.vcc(adata, 4, max_train_cells=300, **SETTINGS)
    scvcc.tl.cut(adata, 12, merge_unsupported=True)
    assert scvcc.metrics.ari(KIND, adata.obs["vcc_supported"]) == 1.0


def test_merging_in_a_part_of_the_cells(adata):
    inside = (adata.obs["vcc"] == "0").to_numpy()
    scvcc.tl.vcc(adata, 2, restrict_to=("vcc", ["0"]), **SETTINGS)
    scvcc.tl.cut(adata, 6, key="vcc_R", merge_unsupported=True)
    assert scvcc.metrics.ari(adata.obs["kind"][inside], adata.obs["vcc_R_supported"][inside]) == 1.0
    assert (adata.obs["vcc_R_supported"][~inside].astype(str) == adata.obs["vcc"][~inside].astype(str)).all()


def test_nothing_else_is_replaced(adata):
    adata.obs["mine"] = "a"
    for name in ("mine", "vcc", "vcc_leaf"):
        with pytest.raises(ValueError, match="choose another key_added"):
            scvcc.tl.cut(adata, 5, key_added=name)
    with pytest.raises(ValueError, match=r"run scvcc.tl.vcc\(adata, key_added='other'\) first"):
        scvcc.tl.cut(adata, 5, key="other")
    copied = scvcc.tl.cut(adata, 5, copy=True)
    assert "vcc_5" in copied.obs
    assert "vcc_5" not in adata.obs
    scvcc.tl.cut(adata, 5)
    scvcc.tl.cut(adata, 5)  # its own column is replaced
    scvcc.tl.vcc(adata, 3, **SETTINGS)
    assert "vcc_5" not in adata.obs  # a cut of a tree that is gone


def test_new_cells_at_every_level(adata, tmp_path):
    scvcc.tl.vcc(adata, 4, save_to=tmp_path / "m", **SETTINGS)
    model = scvcc.VCC.load(tmp_path / "m")
    for n in (2, 6, 9):
        scvcc.tl.cut(adata, n)
        query = adata[::2].copy()
        scvcc.tl.map_query(query, tmp_path / "m", key_added="new", n_clusters=n, max_novelty=None)
        assert (query.obs["new"].astype(str) == query.obs[f"vcc_{n}"].astype(str)).all()
        P = model.predict_proba(query.X, n_clusters=n)
        own = P[np.arange(len(P)), query.obs["new"].cat.codes]
        np.testing.assert_allclose(query.obs["new_confidence"], own, atol=1e-6)
    scvcc.tl.map_query(query, tmp_path / "m", key_added="doubted", n_clusters=6, min_confidence=1)
    assert query.obs["doubted"].cat.categories[-1] == "unassigned"
    with pytest.raises(ValueError, match="n_clusters must be from 1"):
        scvcc.tl.map_query(query, tmp_path / "m", n_clusters=0)


def test_cells_left_out_may_have_the_name_of_a_cluster(clustered):
    stored = stored_tree(clustered, "vcc")
    left_out = np.arange(240) < 10
    stored = replace(stored, leaf=np.where(left_out, -1, stored.leaf))
    others = clustered.obs["vcc"].astype(str).where(~left_out, "0")
    found = stored.labels(4, others)
    assert (found[left_out] == "0").all() and found.categories.tolist() == ["0", "1", "2", "3"]
