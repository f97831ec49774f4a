"""`tl.vcc(..., save_to=)` and `tl.map_query`: new cells with a reference's own projection."""

import os

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import scanpy as sc
import scipy.sparse as sp
import torch
from sklearn.datasets import make_blobs
from sklearn.metrics import roc_auc_score

import scvcc
from scvcc import VCC
from scvcc._anndata.projection import describe
from scvcc._anndata.representation import Representation, Source
from scvcc._clusters.novelty import expected_shrinkage
from scvcc._model.derived import expect_shrunk

QUICK = {"n_clusters": 4, "hidden": (16,), "epochs": 0, "progress": False}
N, P = 240, 60


def cells():
    """Cells of 4 groups in 60 positive variables with means far from zero, a third of them zeros."""
    X, y = make_blobs(2 * N, P, centers=4, cluster_std=9, random_state=3)
    X = np.maximum(X + np.linspace(0, 8, P), 0).astype(np.float32)
    names = [f"gene{i}" for i in range(P)]
    obs = pd.DataFrame({"truth": y.astype(str)}, index=[f"cell{i}" for i in range(2 * N)])
    return ad.AnnData(X, obs=obs, var=pd.DataFrame(index=names))


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """A reference on 10 components of a PCA, the file of its model, and other cells of the same kind."""
    torch.set_num_threads(1)
    adata = cells()
    reference, query = adata[:N].copy(), adata[N:].copy()
    sc.pp.pca(reference, n_comps=10)
    sc.pp.neighbors(reference)
    reference.uns["vcc_colors"] = np.array(["#ff0000", "#00ff00", "#0000ff", "#ffff00"])
    file = tmp_path_factory.mktemp("model") / "model.safetensors"
    scvcc.tl.vcc(reference, save_to=file, **QUICK)
    return reference, query, file


@pytest.fixture
def reference(fitted):
    return fitted[0].copy()


@pytest.fixture
def query(fitted):
    return fitted[1].copy()


@pytest.fixture(scope="module")
def file(fitted):
    return fitted[2]


def bare(adata):
    """The same cells with nothing but what was measured."""
    return ad.AnnData(adata.X, obs=adata.obs[[]], var=adata.var[[]], layers=dict(adata.layers))


def assert_reproduced(reference, file):
    """Mapping the reference's own cells gives its result back."""
    again = bare(reference)
    scvcc.tl.map_query(again, file, max_novelty=None)
    spread = reference.obsm["X_vcc"].std()
    np.testing.assert_allclose(again.obsm["X_vcc"], reference.obsm["X_vcc"], atol=1e-3 * spread)
    assert (again.obs["vcc"] == reference.obs["vcc"]).all()
    np.testing.assert_allclose(again.obs["vcc_confidence"], reference.obs["vcc_confidence"], atol=1e-2)


def test_cells_of_the_reference_come_back(reference, file):
    assert_reproduced(reference, file)


def test_new_cells_get_the_labels_of_their_kind(reference, query, file):
    scvcc.tl.map_query(query, file)
    name = reference.obs.groupby("vcc", observed=True)["truth"].agg(lambda column: column.mode()[0])
    assert (query.obs["vcc"].map(name).astype(str) == query.obs["truth"]).mean() > 0.9


def test_what_is_written(query, file, same, everything):
    before = everything(query)
    scvcc.tl.map_query(query, file)
    assert set(query.obs) - set(before["obs"]) == {"vcc", "vcc_confidence", "vcc_novelty"}
    assert set(query.obsm) == {"X_vcc"} and set(query.uns) == {"vcc", "vcc_colors"}
    assert query.obs["vcc"].cat.categories.tolist() == ["0", "1", "2", "3", "unassigned"]
    assert query.uns["vcc_colors"].tolist() == ["#ff0000", "#00ff00", "#0000ff", "#ffff00", "#c8c8c8"]
    assert query.uns["vcc"]["max_novelty"] == 0.99
    assert query.obsm["X_vcc"].shape == (N, 2) and query.obsm["X_vcc"].dtype == np.float32
    assert query.obs["vcc_confidence"].between(0, 1).all()
    assert same(query.X, before["X"]) and same(query.var, before["var"])


def test_result_can_be_stored_and_drawn(query, file, tmp_path):
    scvcc.tl.map_query(query, file, min_confidence=0.5)
    query.write_h5ad(tmp_path / "query.h5ad")
    back = ad.read_h5ad(tmp_path / "query.h5ad")
    assert back.obs["vcc"].cat.categories.tolist() == ["0", "1", "2", "3", "unassigned"]
    scvcc.pl.vcc(back, show=False)
    assert back.uns["vcc_colors"].tolist()[:2] == ["#ff0000", "#00ff00"]


def test_unassigned(query, file):
    plain = scvcc.tl.map_query(query, file, max_novelty=None, copy=True)
    level = float(plain.obs["vcc_confidence"].median())
    scvcc.tl.map_query(query, VCC.load(file), min_confidence=level, max_novelty=None)
    low = (plain.obs["vcc_confidence"] < level).to_numpy()
    assert 0 < low.sum() < N
    assert (query.obs["vcc"][low] == "unassigned").all()
    assert (query.obs["vcc"][~low].astype(str) == plain.obs["vcc"][~low].astype(str)).all()
    assert len(query.uns["vcc_colors"]) == 5


def test_cells_of_another_kind_are_novel(reference, query, file):
    strange = query[:40].copy()
    strange.X = np.random.default_rng(0).permuted(strange.X, axis=1)  # the same values, in the wrong genes
    both = ad.concat([query, strange], index_unique="-")
    scvcc.tl.map_query(both, file, max_novelty=0.8)
    novelty = both.obs["vcc_novelty"].to_numpy()
    assert novelty.dtype == np.float32 and ((novelty >= 0) & (novelty <= 1)).all()
    assert roc_auc_score(np.arange(N + 40) >= N, novelty) > 0.85
    plain = scvcc.tl.map_query(both, file, max_novelty=None, copy=True)
    expected = np.where(novelty > 0.8, "unassigned", plain.obs["vcc"].astype(str))
    assert (both.obs["vcc"].astype(str) == expected).all()
    assert both.uns["vcc"]["max_novelty"] == 0.8
    few = scvcc.tl.map_query(reference[:20], file, copy=True).obs["vcc_novelty"]  # too few to be pooled
    np.testing.assert_allclose(VCC.load(file).novelty(reference.obsm["X_pca"][:20]), few, atol=0.05)


def test_the_whole_is_summed_up(reference, query, file):
    scvcc.tl.map_query(query, file, max_novelty=0.9)
    found = query.uns["vcc"]["summary"]
    assert found["unassigned"] == pytest.approx((query.obs["vcc_novelty"] > 0.9).mean())
    assert "empty_clusters" not in found or not len(found["empty_clusters"])
    own = VCC.load(file).novelty(scvcc.tl.map_query(reference, file, copy=True).obsm["X_pca"])
    assert np.median(own) == pytest.approx(0.5, abs=0.15) and not found["off_reference"]
    one = reference[reference.obs["vcc"] == "2"].copy()
    scvcc.tl.map_query(one, file, max_novelty=None)
    assert one.uns["vcc"]["summary"]["empty_clusters"].tolist() == ["0", "1", "3"]
    assert one.uns["vcc"]["summary"]["unassigned"] == 0


def test_a_query_that_lies_off_the_reference(query, file, tmp_path):
    query.X = query.X * 1.5
    with pytest.warns(UserWarning, match="query as a whole is unlike the reference: three quarters"):
        scvcc.tl.map_query(query, file)
    found = query.uns["vcc"]["summary"]
    assert found["off_reference"] and found["lower_quartile"] > 0.6 and found["novelty"] > 0.8
    query.write_h5ad(tmp_path / "q.h5ad")
    back = ad.read_h5ad(tmp_path / "q.h5ad").uns["vcc"]["summary"]
    assert back["off_reference"] and back["unassigned"] == found["unassigned"]


def test_novelty_is_calibrated_for_new_cells_where_the_pca_says_how(reference, query, tmp_path):
    file, plain = tmp_path / "m", tmp_path / "plain"
    scvcc.tl.vcc(reference, save_to=file, **QUICK)
    variance = reference.uns["pca"].pop("variance")
    scvcc.tl.vcc(reference, save_to=plain, **QUICK)
    moved, own = VCC.load(file).sample_, VCC.load(plain).sample_
    np.testing.assert_array_equal(moved.middle, own.middle)
    total = variance[0] / reference.uns["pca"]["variance_ratio"][0]
    assert total == pytest.approx(reference.X.var(axis=0, ddof=1).sum(), rel=1e-3)
    factor = expected_shrinkage(variance, total, N, P)
    assert 0.2 < factor.min() < 0.9 < factor.max() <= 1
    model = VCC.load(plain)
    expect_shrunk(model, reference.obsm["X_pca"], factor, 0)
    np.testing.assert_allclose(model.sample_.scores, moved.scores, atol=1e-3)


def test_both_limits_count(query, file):
    plain = scvcc.tl.map_query(query, file, copy=True)
    low, high = float(plain.obs["vcc_confidence"].quantile(0.2)), float(plain.obs["vcc_novelty"].quantile(0.8))
    scvcc.tl.map_query(query, file, min_confidence=low, max_novelty=high)
    doubtful = (plain.obs["vcc_confidence"] < low) | (plain.obs["vcc_novelty"] > high)
    assert ((query.obs["vcc"] == "unassigned") == doubtful).all()
    assert 0.2 <= doubtful.mean() < 0.6


def test_a_column_of_the_user_stays(query, file, untouched):
    query.obs["vcc_novelty"] = 0.5
    with untouched(query), pytest.raises(ValueError, match=r"would overwrite adata.obs\['vcc_novelty'\]"):
        scvcc.tl.map_query(query, file)


def test_copy_leaves_the_original(query, file, untouched):
    with untouched(query):
        assert scvcc.tl.map_query(query, file, copy=True).obsm["X_vcc"].shape == (N, 2)


def test_an_own_result_is_replaced(reference, file):
    other = reference[:100].copy()
    other.obs["vcc_boundary"] = 1.0  # the user's own
    scvcc.tl.map_query(other, file)
    assert "vcc_boundary" in other.obs and "history" not in other.uns["vcc"]


@pytest.mark.filterwarnings("ignore::anndata.ImplicitModificationWarning")
def test_an_own_result_is_replaced_on_a_view(reference, file):
    scvcc.tl.stability(reference, 1, progress=False)
    other = reference[:100]
    model = VCC.load(file)
    model.extra_["colors"] = []
    scvcc.tl.map_query(other, model, max_novelty=0.9)
    assert not {"vcc_stability", "vcc_colors"} & set(other.uns)
    assert "vcc_stability" not in other.obs and "history" not in other.uns["vcc"]


def test_columns_of_others_are_not_overwritten(query, file, untouched):
    with untouched(query), pytest.raises(ValueError, match=r"key_added='truth' would overwrite adata.obs\['truth'\]"):
        scvcc.tl.map_query(query, file, key_added="truth")
    scvcc.tl.map_query(query, file)
    scvcc.tl.map_query(query, file)  # its own


@pytest.mark.parametrize("draw", [scvcc.pl.history, scvcc.pl.similarity])
def test_plots_of_training_are_of_the_reference(query, file, draw):
    scvcc.tl.map_query(query, file)
    sc.pp.pca(query, n_comps=10)
    with pytest.raises(ValueError, match="key='vcc' is a result of scvcc.tl.map_query"):
        draw(query)


# ------------------------------------------------------------------------------------------------------ alignment


def test_order_and_further_variables_do_not_matter(query, file):
    wide = ad.concat([query, ad.AnnData(np.ones((N, 5), np.float32), obs=query.obs)], axis=1, merge="same")
    wide.var_names = [*query.var_names, *(f"other{i}" for i in range(5))]
    shuffled = wide[:, np.random.default_rng(0).permutation(wide.n_vars)].copy()
    for adata in (query, shuffled):
        scvcc.tl.map_query(adata, file)
    np.testing.assert_allclose(shuffled.obsm["X_vcc"], query.obsm["X_vcc"], rtol=1e-4, atol=1e-4)


def test_the_pca_of_the_query_is_not_used(query, file):
    plain = scvcc.tl.map_query(query, file, copy=True)
    sc.pp.pca(query, n_comps=10)
    scvcc.tl.map_query(query, file)
    np.testing.assert_array_equal(query.obsm["X_vcc"], plain.obsm["X_vcc"])


def test_a_cell_alone_and_blocks(query, file, monkeypatch):
    whole = scvcc.tl.map_query(query, file, copy=True)
    single = query[7].copy()
    scvcc.tl.map_query(single, file)
    np.testing.assert_allclose(single.obsm["X_vcc"], whole.obsm["X_vcc"][7:8], rtol=1e-4, atol=1e-4)
    monkeypatch.setattr("scvcc._model.rows._rows_at_a_time", lambda X: 96)
    scvcc.tl.map_query(query, file)
    np.testing.assert_allclose(query.obsm["X_vcc"], whole.obsm["X_vcc"], rtol=1e-4, atol=1e-4)


def test_sparse_is_dense(query, file):
    dense = scvcc.tl.map_query(query, file, copy=True)
    for convert in (sp.csr_matrix, sp.csc_matrix, sp.csr_array):
        query.X = convert(dense.X)
        scvcc.tl.map_query(query, file)
        np.testing.assert_allclose(query.obsm["X_vcc"], dense.obsm["X_vcc"], rtol=1e-4, atol=1e-4)


def test_missing_variables_are_at_the_mean_of_the_reference(reference, query, file):
    gone = query.var_names[[3, 30, 59]]
    average = query.copy()
    average.X[:, [3, 30, 59]] = reference.X[:, [3, 30, 59]].mean(axis=0)
    scvcc.tl.map_query(average, file)
    less = query[:, ~query.var_names.isin(gone)].copy()
    with pytest.warns(UserWarning, match="3 of the 60 variables of the reference are missing"):
        scvcc.tl.map_query(less, file)
    np.testing.assert_allclose(less.obsm["X_vcc"], average.obsm["X_vcc"], rtol=1e-3, atol=1e-3)


def test_too_many_missing_variables(query, file, untouched):
    enough, few = query[:, 12:].copy(), query[:, 13:].copy()
    with pytest.warns(UserWarning, match="12 of the 60"):
        scvcc.tl.map_query(enough, file)
    with untouched(few), pytest.raises(ValueError, match="13 of the 60 .* more than 20%"):
        scvcc.tl.map_query(few, file)
    few.var_names = [f"ENS{i}" for i in range(few.n_vars)]
    with pytest.raises(ValueError, match="such as 'gene0', adata such as 'ENS0'"):
        scvcc.tl.map_query(few, file)


# ---------------------------------------------------------------------------------------------- other projections


def masked(adata):
    adata.var["highly_variable"] = np.arange(P) % 3 > 0
    sc.pp.pca(adata, n_comps=8)


def uncentered(adata):
    adata.X = sp.csr_matrix(adata.X)
    sc.pp.pca(adata, n_comps=8, zero_center=False)


def layered(adata):
    adata.layers["log"] = np.log1p(adata.X)
    sc.pp.pca(adata, n_comps=8, layer="log")


def named(adata):
    sc.pp.pca(adata, n_comps=8, key_added="mine")


def computed(adata):
    adata.X = sp.csr_matrix(adata.X)


def lsa(adata):
    adata.X = sp.csr_matrix(np.rint(adata.X))
    scvcc.pp.lsa(adata, n_comps=8)


def lsa_of_weights(adata):
    scvcc.pp.lsa(adata, n_comps=8, tfidf=False, normalize=False, key_added="other")


@pytest.mark.parametrize(
    ("prepare", "arguments", "kind", "n_variables"),
    [
        (masked, {}, "pca", 40),
        (uncentered, {}, "pca", 60),
        (layered, {"n_pcs": 5}, "pca", 60),
        (named, {"use_rep": "mine"}, "pca", 60),
        (computed, {}, "pca", 60),
        (computed, {"use_rep": "X"}, "X", 60),
        (lsa, {}, "lsa", 60),
        (lsa_of_weights, {"use_rep": "other"}, "lsa", 60),
    ],
)
def test_every_projection_reproduces_its_reference(tmp_path, prepare, arguments, kind, n_variables):
    reference, file = cells()[:N].copy(), tmp_path / "m"
    prepare(reference)
    scvcc.tl.vcc(reference, save_to=file, **arguments, **QUICK)
    about = VCC.load(file).extra_
    assert (about["kind"], len(about["var_names"])) == (kind, n_variables)
    assert_reproduced(reference, file)


def test_missing_variables_of_x_are_at_their_mean(tmp_path):
    reference, file = cells()[:N].copy(), tmp_path / "m"
    scvcc.tl.vcc(reference, use_rep="X", save_to=file, **QUICK)
    average = bare(reference)
    average.X = reference.X.copy()
    average.X[:, 5] = reference.X[:, 5].mean()
    scvcc.tl.map_query(average, file)
    less = bare(reference)[:, np.arange(P) != 5].copy()
    less.X = sp.csr_matrix(less.X)
    with pytest.warns(UserWarning, match="1 of the 60"):
        scvcc.tl.map_query(less, file)
    np.testing.assert_allclose(less.obsm["X_vcc"], average.obsm["X_vcc"], rtol=1e-3, atol=1e-3)


def test_part_of_the_cells(reference, tmp_path):
    scvcc.tl.vcc(reference, restrict_to=("vcc", ["0", "1"]), save_to=tmp_path / "m", **{**QUICK, "n_clusters": 2})
    chosen = reference[reference.obs["vcc"].isin(["0", "1"])]
    again = bare(chosen.copy())
    scvcc.tl.map_query(again, tmp_path / "m", max_novelty=None)
    assert again.obs["vcc"].cat.categories.tolist() == ["0-1,0", "0-1,1"]
    assert (again.obs["vcc"].astype(str) == chosen.obs["vcc_R"].astype(str)).all()


def test_a_reference_that_cannot_project(query, tmp_path, untouched):
    reference, file = cells()[:N].copy(), tmp_path / "m"
    sc.pp.pca(reference, n_comps=8)
    reference.obsm["X_pca"][:100] += 5
    with pytest.warns(UserWarning, match="cannot be used with scvcc.tl.map_query"):
        scvcc.tl.vcc(reference, save_to=file, **QUICK)
    with untouched(query), pytest.raises(ValueError, match="matrix has changed since, or the result was corrected"):
        scvcc.tl.map_query(query, file)
    again = VCC.load(file).predict(reference.obsm["X_pca"])
    assert (again.astype(str) == reference.obs["vcc"]).all()


def test_cells_dropped_after_the_pca(tmp_path):
    """The PCA is centered on the mean of all cells, which is not that of the rest."""
    whole, file = cells(), tmp_path / "m"
    sc.pp.pca(whole, n_comps=8)
    reference = whole[whole.obs["truth"] != "0"].copy()
    assert np.abs(reference.obsm["X_pca"].mean(axis=0)).max() > 1
    sc.pp.neighbors(reference)
    scvcc.tl.vcc(reference, save_to=file, **{**QUICK, "n_clusters": 3})
    assert_reproduced(reference, file)


@pytest.mark.parametrize("change", ["rescaled", "without loadings", "foreign", "without term weights"])
def test_reasons_why_a_reference_cannot_project(change):
    reference, use_rep = cells()[:N].copy(), "X_pca"
    sc.pp.pca(reference, n_comps=8)
    if change == "rescaled":
        reference.X = reference.X * 2
    elif change == "without loadings":
        del reference.varm["PCs"]
    elif change == "foreign":
        reference.obsm["X_scVI"], use_rep = reference.obsm["X_pca"], "X_scVI"
    else:
        scvcc.pp.lsa(reference, n_comps=8, tfidf=True)
        del reference.var["idf"]
        use_rep = "X_lsa"
    representation = Representation(reference.obsm[use_rep], Source(use_rep))
    with pytest.warns(UserWarning, match="cannot be used with scvcc.tl.map_query"):
        about = describe(reference, representation, key="vcc", categories=["0"])
    assert about["kind"] == "unknown"
    part = {"rescaled": "changed since", "without loadings": "varm['PCs']", "foreign": "varm['X_scVI']"}
    assert part.get(change, "run scvcc.pp.lsa") in about["reason"]


# --------------------------------------------------------------------------------------------------------- errors


def test_references_of_the_wrong_kind(reference, query, file, tmp_path):
    with pytest.raises(TypeError, match="save_to"):
        scvcc.tl.map_query(query, reference)
    with pytest.raises(TypeError, match="found int"):
        scvcc.tl.map_query(query, 3)
    with pytest.raises(FileNotFoundError):
        scvcc.tl.map_query(query, tmp_path / "nothing")
    plain = VCC.load(file)
    del plain.extra_
    with pytest.raises(ValueError, match="which variables"):
        scvcc.tl.map_query(query, plain)
    plain.extra_ = {**VCC.load(file).extra_, "mean": np.zeros(3)}
    with pytest.raises(ValueError, match="contradicts itself"):
        scvcc.tl.map_query(query, plain)


@pytest.mark.parametrize(
    ("value", "error", "allowed"),
    [
        *((value, ValueError, "from 0 to 1") for value in (-0.1, 1.1, np.nan)),
        *((value, TypeError, "a number or None") for value in ("high", True)),
    ],
)
def test_min_confidence_is_checked(query, file, value, error, allowed):
    for name in ("min_confidence", "max_novelty"):
        with pytest.raises(error, match=f"{name} must be {allowed}, found"):
            scvcc.tl.map_query(query, file, **{name: value})


def test_queries_that_cannot_be_read(query, file, untouched):
    with pytest.raises(TypeError, match="must be an AnnData"):
        scvcc.tl.map_query(query.X, file)
    holes = query.copy()
    holes.X[3, 4] = np.nan
    with pytest.raises(ValueError, match="1 NaN"):
        scvcc.tl.map_query(holes, file)
    with pytest.raises(ValueError, match="adata has no variables, and the reference has 60"):
        scvcc.tl.map_query(query[:, []].copy(), file)
    query.var_names = ["gene0", *query.var_names[:-1]]
    with untouched(query), pytest.raises(ValueError, match="var_names_make_unique"):
        scvcc.tl.map_query(query, file)


def test_a_backed_query(query, file, tmp_path):
    query.write_h5ad(tmp_path / "q.h5ad")
    backed = ad.read_h5ad(tmp_path / "q.h5ad", backed="r")
    with pytest.raises(ValueError, match="a part of a backed AnnData"):
        scvcc.tl.map_query(backed[:100], file)
    backed.file.close()


def test_another_preparation_is_noticed(query, file):
    scaled = query.copy()
    sc.pp.scale(scaled)
    with pytest.warns(UserWarning, match="adata has negative values and the reference has none"):
        scvcc.tl.map_query(scaled, file)
    query.X = np.rint(100 * query.X)
    with pytest.warns(UserWarning, match="raw counts"):
        scvcc.tl.map_query(query, file)


def test_a_layer_of_the_reference_is_needed(query, file):
    model = VCC.load(file)
    model.extra_["layer"] = "log"
    with pytest.raises(ValueError, match="layer 'log'"):
        scvcc.tl.map_query(query, model)
    query.layers["log"], query.X = query.X, None
    scvcc.tl.map_query(query, model)


def test_save_to_is_checked_before_the_run(reference, tmp_path, untouched):
    with untouched(reference):
        for path in (tmp_path, tmp_path / "nowhere" / "m"):
            with pytest.raises(ValueError, match="save_to"):
                scvcc.tl.vcc(reference, save_to=path, **QUICK)
        with pytest.raises(TypeError, match="save_to"):
            scvcc.tl.vcc(reference, save_to=3, **QUICK)
    reference.var_names = ["a"] * P
    with pytest.raises(ValueError, match="make_unique"):
        scvcc.tl.vcc(reference, save_to=tmp_path / "m", **QUICK)


def test_a_full_disk_does_not_cost_the_result(tmp_path, monkeypatch):
    reference = cells()[:N].copy()

    def fail(*args):
        raise OSError("no space left")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="no space"):
        scvcc.tl.vcc(reference, save_to=tmp_path / "m", **QUICK)
    assert "vcc" in reference.obs
    assert not list(tmp_path.iterdir())


def test_a_full_disk_does_not_cost_the_copy(tmp_path, monkeypatch, untouched):
    reference = cells()[:N].copy()

    def fail(*args):
        raise OSError("no space left")

    monkeypatch.setattr(os, "replace", fail)
    with untouched(reference), pytest.warns(UserWarning, match="model was not saved: save_to=.*no space left"):
        result = scvcc.tl.vcc(reference, save_to=tmp_path / "m", copy=True, **QUICK)
    assert "vcc" in result.obs
    assert not list(tmp_path.iterdir())


def test_saving_does_not_change_the_result(reference, tmp_path, same):
    other = scvcc.tl.vcc(reference, copy=True, **QUICK)
    scvcc.tl.vcc(reference, save_to=tmp_path / "m", **QUICK)
    assert same(other.obs, reference.obs) and same(other.obsm, reference.obsm)
    assert "save_to" not in reference.uns["vcc"]["params"]
