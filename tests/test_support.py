"""`scvcc.tl.test_clusters` and its plot."""

import logging

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import scanpy as sc

import scvcc
from scvcc._model import derived as _derived
from scvcc.tl import test_clusters as assess  # under its own name, pytest would take it for a test


@pytest.fixture
def cut(neighbors):
    """The four groups as "a" to "d", the first of them cut in two, and one cell without a label."""
    truth = neighbors.obs["truth"].astype(int).to_numpy()
    labels = np.array(list("abcd"), dtype=object)[truth]
    labels[np.flatnonzero(truth == 0)[::2]] = "e"
    labels[7] = None
    neighbors.obs["cut"] = pd.Categorical(labels)
    return neighbors


def test_what_is_written(cut, same, everything):
    before = everything(cut)
    copy = assess(cut, "cut", copy=True)
    assert same(everything(cut), before)
    assert assess(cut, "cut", key_added="joined") is None
    assert set(cut.uns) - set(copy.uns) == set() and set(copy.uns) - set(before["uns"]) == {"cut_support"}
    record = cut.uns["cut_support"]
    assert record["clusters"].index.tolist() == list("abcde")
    assert record["clusters"]["n_cells"].sum() == 239
    assert record["clusters"]["merged"].tolist() == ["a+e", "b", "c", "d", "a+e"]
    weak = record["pairs"].loc[~record["pairs"]["supported"], ["a", "b"]].to_numpy()
    assert set(record["clusters"].index[~record["clusters"]["supported"]]) == set(weak.ravel())
    pairs = record["pairs"].set_index(["a", "b"])
    assert not pairs.loc[("a", "e"), "supported"] and pairs.loc[("a", "e"), "link"] > 0.2
    assert (pairs["supported"] == (pairs["p"] < 0.05)).all() and pairs["supported"].sum() >= len(pairs) - 3
    assert cut.obs["joined"].cat.categories.tolist() == ["a+e", "b", "c", "d"]
    assert cut.obs["joined"].isna().sum() == 1
    assert (cut.obs["joined"].dropna() == "a+e").sum() == cut.obs["cut"].isin(["a", "e"]).sum()


def test_again_and_on_disk(cut, tmp_path):
    assess(cut, "cut", key_added="joined")
    first = cut.uns["cut_support"]["pairs"]["p"].to_numpy()
    assess(cut, "cut", key_added="joined")
    assert (cut.uns["cut_support"]["pairs"]["p"] == first).all()
    cut.write_h5ad(tmp_path / "cut.h5ad")
    back = sc.read_h5ad(tmp_path / "cut.h5ad")
    assess(back, "cut", key_added="joined")
    assert scvcc.pl.support(back, key="cut", return_fig=True) is not None


def test_never_replaces_what_it_did_not_write(cut):
    with pytest.raises(ValueError, match=r"would overwrite adata.obs\['truth'\]"):
        assess(cut, "cut", key_added="truth")
    cut.uns["cut_support"] = {"mine": 1}
    with pytest.raises(ValueError, match=r"would overwrite adata.uns\['cut_support'\]"):
        assess(cut, "cut")


def test_errors(cut):
    with pytest.raises(ValueError, match="key='leiden' is not a column of adata.obs"):
        assess(cut)
    cut.obs["one"] = "a"
    cut.obs["each"] = cut.obs_names
    for key in ("one", "each"):
        with pytest.raises(ValueError, match="at least 2 clusters are needed"):
            assess(cut, key)
    with pytest.raises(ValueError, match=r"run scvcc.tl.test_clusters\(adata, key='cut'\) first"):
        scvcc.pl.support(cut, key="cut")


def test_batches_are_no_evidence(cut):
    cut.obs["sample"] = cut.obs["truth"].isin(["0", "1"]).map({True: "x", False: "y"})
    assess(cut, "truth", batch_key="sample")
    pairs = cut.uns["truth_support"]["pairs"]
    one_batch = pairs["a"].isin(["0", "1"]) == pairs["b"].isin(["0", "1"])
    assert (pairs["supported"] == one_batch).all() and not one_batch.all()
    assert cut.uns["truth_support"]["params"]["batch_key"].tolist() == ["sample"]


def test_a_result_is_tested_on_its_own_graph(blobs, quick):
    sc.pp.pca(blobs, n_comps=5)
    sc.pp.neighbors(blobs, key_added="mine")
    scvcc.tl.vcc(blobs, 4, neighbors_key="mine", **quick)
    assess(blobs, "vcc")
    assert blobs.uns["vcc_support"]["params"]["use_rep"] == "X_pca"
    assert "neighbors" not in blobs.uns


@pytest.fixture
def noise():
    """One cloud of 300 cells."""
    return ad.AnnData(np.random.default_rng(0).normal(size=(300, 8)).astype(np.float32))


def test_noise_is_one_cluster_and_all_else_works_with_it(noise, quick, tmp_path):
    noise.obs["half"] = pd.Categorical(np.arange(300) % 2)
    with pytest.warns(UserWarning, match="no evidence for more than one cluster"):
        scvcc.tl.vcc(noise, save_to=tmp_path / "one.safetensors", keep_stages=True, **quick)
    assert noise.obs["vcc"].cat.categories.tolist() == ["0"] and (noise.obs["vcc_confidence"] == 1).all()
    assert noise.obsm["X_vcc"].std(axis=0).min() > 0.01
    assert noise.uns["vcc"]["support"]["clusters"]["supported"].tolist() == [True]
    model = scvcc.VCC.load(tmp_path / "one.safetensors")
    assert (model.predict(noise.X) == 0).all() and (model.predict_proba(noise.X) == 1).all()
    scvcc.tl.map_query(noise[:50].copy(), tmp_path / "one.safetensors")
    for draw in (scvcc.pl.vcc, scvcc.pl.stages, scvcc.pl.history):
        assert draw(noise, return_fig=True) is not None
    for draw in (scvcc.pl.composition, scvcc.pl.confusion):
        assert draw(noise, "half", return_fig=True) is not None
    noise.write_h5ad(tmp_path / "one.h5ad")
    with pytest.raises(ValueError, match="one cluster: at least 2"):
        scvcc.tl.stability(noise, progress=False)
    with pytest.warns(UserWarning, match="no evidence for more than one cluster"):
        assert scvcc.tl.suggest_n_clusters(noise, progress=False)["suggested"].sum() == 1


def test_a_given_number_is_obeyed_and_clusters_without_support_are_counted(noise, quick, caplog):
    with caplog.at_level(logging.INFO, logger="scvcc"):
        scvcc.tl.vcc(noise, 3, **quick)
    assert noise.obs["vcc"].nunique() == 3
    record = noise.uns["vcc"]["support"]
    weak = record["pairs"].loc[~record["pairs"]["supported"], ["a", "b"]].to_numpy()
    unsupported = record["clusters"].index[~record["clusters"]["supported"]]
    assert set(unsupported) == set(weak.ravel()) and len(unsupported) > 0
    assert f"{len(unsupported)} of 3 clusters lack support" in caplog.text
    assert record["clusters"]["n_cells"].tolist() == noise.obs["vcc"].value_counts().tolist()


def test_clusters_without_support_merge_if_asked_to(neighbors, noise, quick, recwarn):
    scvcc.tl.vcc(neighbors, 7, merge_unsupported=True, **quick)
    assert pd.crosstab(neighbors.obs["vcc"], neighbors.obs["truth"]).gt(5).sum(axis=1).tolist() == [1, 1, 1, 1]
    assert neighbors.uns["vcc"]["support"]["pairs"]["supported"].all()
    assert not [w for w in recwarn if "clusters have points" in str(w.message)]
    with pytest.warns(UserWarning, match="no evidence for more than one cluster"):
        scvcc.tl.vcc(noise, 4, merge_unsupported=True, **quick)
    assert noise.obs["vcc"].nunique() == 1


def test_two_batches_of_one_cloud_are_one_cluster(noise, quick):
    noise.obs["batch"] = np.where(np.arange(300) < 150, "x", "y")
    noise.X[:150, 0] += 8
    scvcc.tl.vcc(noise, key_added="alone", **quick)
    assert noise.obs["alone"].nunique() == 2
    with pytest.warns(UserWarning, match="no evidence for more than one cluster"):
        scvcc.tl.vcc(noise, batch_key="batch", **quick)
    assert noise.obs["vcc"].nunique() == 1


def test_subclusters_are_named_in_the_record(clustered, quick):
    scvcc.tl.vcc(clustered, 2, restrict_to=("vcc", ["0"]), **quick)
    record = clustered.uns["vcc_R"]["support"]["clusters"]
    assert record.index.tolist() == ["0,0", "0,1"]
    assert record["n_cells"].sum() == (clustered.obs["vcc"] == "0").sum()


def test_many_clusters_are_not_tested_unless_asked_for(clustered, quick, monkeypatch):
    monkeypatch.setattr(_derived.support_of, "__defaults__", (3,))
    scvcc.tl.vcc(clustered, 4, **quick)
    assert "support" not in clustered.uns["vcc"]
    with pytest.raises(ValueError, match="has no 'support'"):
        scvcc.pl.vcc(clustered, mark_unsupported=True)


def test_clusters_without_support_are_marked_on_the_map(clustered):
    clustered.uns["vcc"]["support"]["clusters"]["supported"] = [True, False, False, True]
    axis = scvcc.pl.vcc(clustered, mark_unsupported=True, show=False)
    assert [text.get_text() for text in axis.texts] == ["0", "1?", "2?", "3"]
    assert [text.get_text() for text in scvcc.pl.vcc(clustered, show=False).texts] == ["0", "1", "2", "3"]
    scvcc.pl.vcc(clustered, "truth", mark_unsupported=True, show=False)


def test_plot(cut):
    assess(cut, "cut")
    axis = scvcc.pl.support(cut, key="cut", show=False)
    assert axis.get_title() == "cut: 5 clusters, 4 once merged"
    assert [tick.get_text() for tick in axis.get_xticklabels()] == ["a", "e", "b", "c", "d"]
    n_pairs = len(cut.uns["cut_support"]["pairs"])
    drawn = sum(len(points.get_offsets()) for points in axis.collections)
    assert drawn == 2 * n_pairs
    (frame,) = axis.patches
    assert (frame.get_x(), frame.get_width()) == (-0.5, 2)
