"""Batches: the graph that knows them, what is written, and the word where they were forgotten."""

import logging

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import scanpy as sc
import scipy.sparse as sp
from sklearn.datasets import make_blobs

import scvcc
from scvcc import VCC
from scvcc._anndata.batches import mention_forgotten_batches, mixing
from scvcc._model.neighbors import Batches
from scvcc._model.sketch import sketch


@pytest.fixture(scope="module")
def _shifted():
    """Four types in 20 variables, in two samples of which one is shifted by more than the types are apart from it."""
    X, y = make_blobs(600, 20, centers=4, cluster_std=1.0, center_box=(-6, 6), random_state=3)
    rng = np.random.default_rng(0)
    second = rng.random(600) < 0.5
    X[second] += 6 * rng.choice([-1, 1], size=20)
    obs = pd.DataFrame(
        {"type": y.astype(str), "sample": np.where(second, "b", "a")}, index=[f"c{i}" for i in range(600)]
    )
    return ad.AnnData(X.astype(np.float32), obs=obs, var=pd.DataFrame(index=[f"g{i}" for i in range(20)]))


@pytest.fixture
def shifted(_shifted):
    return _shifted.copy()


def test_a_shifted_sample_is_laid_onto_the_other(shifted, quick, caplog):
    shifted.obs["type"] = shifted.obs["type"].astype("category")
    scvcc.tl.vcc(shifted, 4, use_rep="X", key_added="plain", **quick)
    assert scvcc.metrics.ari(shifted.obs["type"], shifted.obs["plain"]) < 0.8
    with caplog.at_level(logging.INFO, "scvcc"):
        scvcc.tl.vcc(shifted, 4, use_rep="X", batch_key="sample", **quick)
    assert scvcc.metrics.ari(shifted.obs["type"], shifted.obs["vcc"]) > 0.95
    assert "batches shifted" in caplog.text or "batches corrected" in caplog.text
    record = shifted.uns["vcc_neighbors"]
    assert list(record["batches"].index) == ["a", "b"]
    assert record["params"]["batch_key"].tolist() == ["sample"]
    assert (
        shifted.uns["vcc"]["mixing"].min()
        > 0.8
        > shifted.obs.groupby("plain", observed=True)["sample"].nunique().min() - 1
    )
    assert "batches" not in shifted.uns["neighbors"]  # the plain graph stays as it is


def test_a_number_of_clusters_is_suggested_on_the_graph_of_batches(shifted, quick):
    ways = {"use_rep": "X", "k_range": (2, 8), "progress": False}
    assert not scvcc.tl.suggest_n_clusters(shifted, **ways).set_index("n_clusters")["suggested"][4]
    table = scvcc.tl.suggest_n_clusters(shifted, batch_key="sample", **ways)
    assert table.set_index("n_clusters")["suggested"][4]
    assert shifted.uns["vcc_neighbors"]["params"]["batch_key"].tolist() == ["sample"]
    distances = shifted.obsp["vcc_neighbors_distances"].copy()
    scvcc.tl.vcc(shifted, use_rep="X", batch_key="sample", **quick)
    assert shifted.obs["vcc"].nunique() == 4
    np.testing.assert_array_equal(shifted.obsp["vcc_neighbors_distances"].toarray(), distances.toarray())


def test_random_batches_change_nothing(neighbors, quick):
    neighbors.obs["sample"] = np.random.default_rng(0).choice(list("abc"), 240)
    scvcc.tl.vcc(neighbors, 4, n_neighbors=16, key_added="plain", **quick)
    scvcc.tl.vcc(neighbors, 4, batch_key="sample", **quick)
    np.testing.assert_array_equal(neighbors.obs["vcc"], neighbors.obs["plain"])
    np.testing.assert_array_equal(neighbors.obsm["X_vcc"], neighbors.obsm["X_plain"])


def test_a_named_graph_is_used_all_the_same(neighbors, quick):
    neighbors.obs["sample"] = list("ab") * 120
    scvcc.tl.vcc(neighbors, 4, batch_key="sample", neighbors_key="neighbors", **quick)
    assert neighbors.uns["vcc"]["graph"]["name"] == "adata.obsp['distances']"
    assert "vcc_neighbors" not in neighbors.uns


def test_what_the_run_leaves_is_read_back_and_repeated(shifted, quick, tmp_path):
    scvcc.tl.vcc(shifted, 4, use_rep="X", batch_key=["sample"], **quick)
    shifted.write_h5ad(tmp_path / "a.h5ad")
    again = ad.read_h5ad(tmp_path / "a.h5ad")
    scvcc.tl.vcc(again, **again.uns["vcc"]["params"], progress=False)
    np.testing.assert_array_equal(again.obsm["X_vcc"], shifted.obsm["X_vcc"])
    scvcc.tl.stability(again, 1, progress=False)
    assert again.uns["vcc_stability"]["clusters"]["stability"].min() > 0.7


def test_a_graph_of_batches_is_no_default_for_a_run_without(shifted, quick, caplog):
    scvcc.tl.vcc(shifted, 4, use_rep="X", batch_key="sample", **quick)
    with caplog.at_level(logging.INFO, "scvcc"):
        scvcc.tl.vcc(shifted, 4, use_rep="X", **quick)
    assert "adata.uns['vcc_neighbors'] is not used: it was built with a batch_key" in caplog.text
    assert "neighbors" in shifted.uns


def test_parts_sketches_and_new_cells(shifted, quick, tmp_path):
    reference, query = shifted[:450].copy(), shifted[450:].copy()
    file = tmp_path / "m"
    scvcc.tl.vcc(reference, 4, use_rep="X", batch_key="sample", save_to=file, hidden=(64,), progress=False)
    scvcc.tl.map_query(query, file)  # not corrected: the encoder has learnt it
    assert scvcc.metrics.ari(query.obs["type"], query.obs["vcc"]) > 0.9
    scvcc.tl.vcc(reference, 2, use_rep="X", batch_key="sample", restrict_to=("type", ["0", "1"]), **quick)
    part = reference.obs["type"].isin(["0", "1"])
    assert scvcc.metrics.ari(reference.obs["type"][part], reference.obs["vcc_R"][part]) > 0.95
    scvcc.tl.vcc(shifted, 4, use_rep="X", batch_key="sample", max_train_cells=200, key_added="few", **quick)
    assert shifted.obs["few_trained"].sum() == 200
    assert scvcc.metrics.ari(shifted.obs["type"], shifted.obs["few"]) > 0.9


def test_the_estimator_takes_batches(shifted):
    X, batch = shifted.X, shifted.obs["sample"].to_numpy()
    plain = VCC(4, hidden=(16,), epochs=0).fit(X)
    model = VCC(4, hidden=(16,), epochs=0).fit(X, batch=batch)
    assert scvcc.metrics.ari(shifted.obs["type"], model.labels_) > 0.95
    none = VCC(4, hidden=(16,), epochs=0, batch_strength=0).fit(X, batch=batch)
    np.testing.assert_array_equal(none.graph_.toarray(), plain.graph_.toarray())
    sparse = VCC(4, hidden=(16,), epochs=0).fit(sp.csr_matrix(X), batch=batch)
    np.testing.assert_allclose(sparse.graph_.toarray(), model.graph_.toarray(), atol=1e-4)


def test_the_graph_alone_is_one_for_scanpy(shifted):
    scvcc.pp.neighbors(shifted, "sample", use_rep="X")
    sc.tl.leiden(shifted, resolution=0.2, flavor="igraph", n_iterations=2, directed=False)
    assert scvcc.metrics.ari(shifted.obs["type"], shifted.obs["leiden"]) > 0.9
    copy = scvcc.pp.neighbors(shifted, ["sample"], use_rep="X", key_added="mine", copy=True)
    assert "mine" not in shifted.uns
    assert (copy.obsp["mine_distances"] != shifted.obsp["distances"]).nnz == 0


@pytest.mark.parametrize(
    ("change", "arguments", "message"),
    [
        ({}, {"batch_key": "donor"}, "batch_key='donor' is not a column of adata.obs, which has 'type', 'sample'"),
        ({"sample": None}, {"batch_key": "sample"}, "batch_key='sample' has 1 missing values"),
        ({}, {"batch_key": "sample", "batch_strength": 2}, "batch_strength must be from 0 to 1, found 2"),
    ],
)
def test_bad_batches_are_named(shifted, quick, untouched, change, arguments, message):
    for column, value in change.items():
        shifted.obs.loc["c7", column] = value
    with untouched(shifted), pytest.raises(ValueError, match=message):
        scvcc.tl.vcc(shifted, 4, use_rep="X", **arguments, **quick)


@pytest.mark.parametrize("sizes", [(599, 1), (580, 20), (6,) * 100])
def test_odd_sizes_of_batches(shifted, quick, sizes):
    shifted.obs["sample"] = np.repeat([f"s{i}" for i in range(len(sizes))], sizes)
    scvcc.tl.vcc(shifted, 4, use_rep="X", batch_key="sample", **quick)
    assert shifted.obs["vcc"].nunique() == 4
    assert np.isfinite(shifted.obsm["X_vcc"]).all()


def test_batches_are_numbered_by_name_and_counted():
    batches = Batches.of(["b", "a", "b", "c"], 4)
    assert batches.codes.tolist() == [1, 0, 1, 2] and batches.names == ["a", "b", "c"]
    part = batches.among(np.array([0, 3]))
    assert part.codes.tolist() == [0, 1] and part.names == ["b", "c"]
    with pytest.raises(ValueError, match=r"one batch for each of 3 rows, found shape \(2,\)"):
        Batches.of(["a", "b"], 3)
    with pytest.raises(ValueError, match="1 missing values"):
        Batches.of(["a", float("nan")], 2)


def test_mixing_is_relative_entropy():
    labels, codes = np.array([0, 0, 0, 0, 1, 1, 1, 1]), np.array([0, 1, 0, 1, 0, 0, 0, 1])
    overall = -(5 / 8 * np.log(5 / 8) + 3 / 8 * np.log(3 / 8))
    second = -(0.75 * np.log(0.75) + 0.25 * np.log(0.25))
    np.testing.assert_allclose(mixing(labels, codes), np.array([np.log(2), second]) / overall)


def test_every_batch_is_in_a_sketch():
    X = np.random.default_rng(0).normal(size=(3000, 5)).astype(np.float32)
    batch = np.zeros(3000, int)
    batch[7:10], batch[100:300] = 1, 2
    rows = sketch(X, 300, seed=0, batch=batch)
    assert len(rows) == 300 and len(set(rows)) == 300
    drawn = np.bincount(batch[rows], minlength=3)
    assert drawn[1] == 3 and drawn[2] >= 50


def test_forgotten_batches_get_a_word(caplog):
    labels = np.repeat([0, 1, 2, 3], 50)
    adata = ad.AnnData(np.zeros((200, 1), np.float32))
    adata.obs["Donor_ID"] = np.repeat(["x", "y"], 100)
    adata.obs["condition"] = np.repeat(["x", "y"], 100)
    adata.obs["batch"] = list("ab") * 100
    with caplog.at_level(logging.WARNING, "scvcc"):
        mention_forgotten_batches(adata, labels)
    assert len(caplog.records) == 1
    assert (
        "clusters 0, 1, 2, 3 are nearly all of one Donor_ID each" in caplog.text
        and "batch_key='Donor_ID'" in caplog.text
    )
