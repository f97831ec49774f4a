"""`scvcc.tl.test_clusters` and its plot."""

import numpy as np
import pandas as pd
import pytest
import scanpy as sc

import scvcc
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
