"""`scvcc.tl.vcc` from call to result."""

import io
import logging
import subprocess
import sys
import textwrap
from inspect import unwrap

import anndata as ad
import h5py
import numpy as np
import pandas as pd
import pytest
import scanpy as sc
import scipy.sparse as sp
import torch
from sklearn.neighbors import KNeighborsTransformer

import scvcc
from scvcc._model.vcc import VCC
from scvcc._training import explore as _explore
from scvcc._training import recipe as _recipe


def test_what_is_written(clustered, _neighbors, same):
    new_obs = set(clustered.obs) - set(_neighbors.obs)
    assert new_obs == {"vcc", "vcc_confidence", "vcc_leaf"}
    assert set(clustered.uns) - set(_neighbors.uns) == {"vcc"}
    stages = {f"X_vcc_{name}" for name in ("start", "placed", "coordinates")}
    assert set(clustered.obsm) - set(_neighbors.obsm) == {"X_vcc", *stages}
    assert clustered.obsm["X_vcc"].shape == (240, 2)
    assert clustered.obsm["X_vcc"].dtype == np.float32
    assert clustered.obs["vcc"].cat.categories.tolist() == ["0", "1", "2", "3"]
    sizes = clustered.obs["vcc"].value_counts().loc[["0", "1", "2", "3"]]
    assert (np.diff(sizes) <= 0).all()
    assert clustered.obs["vcc_confidence"].between(0, 1).all()
    assert clustered.obs["vcc_confidence"].dtype == np.float32
    assert same(clustered.X, _neighbors.X)
    assert same(clustered.obsp, _neighbors.obsp)
    assert scvcc.metrics.ari(clustered.obs["truth"], clustered.obs["vcc"]) > 0.95


def test_result_is_that_of_the_estimator(clustered, _neighbors, quick):
    model = VCC(4, **quick).fit(_neighbors.X, graph=_neighbors.obsp["distances"])
    assert (clustered.obs["vcc"].astype(int) == model.labels_).all()
    assert clustered.obs["vcc_confidence"].to_numpy() == pytest.approx(model.proba_.max(axis=1), abs=1e-5)
    assert clustered.obsm["X_vcc"] == pytest.approx(model.embedding_, abs=1e-4)


def test_record_of_the_run(clustered):
    record = clustered.uns["vcc"]
    assert record["n_clusters"] == 4
    assert record["representation"] == {"use_rep": "X"}
    assert record["graph"]["name"] == "adata.obsp['distances']"
    assert record["graph"]["mode"] == "distance"
    assert record["device"] == "cpu"
    assert record["stages"].tolist() == ["start", "placed", "coordinates"]
    assert {"scvcc", "torch", "scanpy", "anndata", "python"} <= set(record["versions"])
    lengths = {len(column) for column in record["history"].values()}
    assert len(lengths) == 1
    assert {"stage", "step", "boundary", "contraction", "expansion", "clustering", "beta"} <= set(record["history"])
    assert record["params"]["random_state"] == 0
    assert record["params"]["hidden"].tolist() == [16]


def with_self_by_column(D):
    n = D.shape[0]
    D = sp.csr_matrix(D, dtype=np.float32).tocoo()
    return sp.csr_matrix(
        (np.r_[D.data, np.zeros(n, np.float32)], (np.r_[D.row, np.arange(n)], np.r_[D.col, np.arange(n)])), shape=(n, n)
    )


def int64_array(D):
    D = sp.csr_array(D)
    D.indices, D.indptr = D.indices.astype(np.int64), D.indptr.astype(np.int64)
    return D


@pytest.mark.parametrize("layout", [with_self_by_column, int64_array])
def test_same_graph_in_another_layout_same_result(neighbors, clustered, layout, quick):
    neighbors.obsp["distances"] = layout(neighbors.obsp["distances"])
    scvcc.tl.vcc(neighbors, 4, **quick)
    assert scvcc.metrics.ari(neighbors.obs["vcc"], clustered.obs["vcc"]) == 1


def test_same_graph_from_sklearn_through_scanpy_same_result(neighbors, clustered, quick):
    sc.pp.neighbors(neighbors, n_neighbors=14, use_rep="X", transformer=KNeighborsTransformer(n_neighbors=14))
    assert neighbors.obsp["distances"].nnz == 15 * 240  # each cell is stored as its own neighbor
    scvcc.tl.vcc(neighbors, 4, **quick)
    assert scvcc.metrics.ari(neighbors.obs["vcc"], clustered.obs["vcc"]) == 1


@pytest.mark.parametrize("kind", [sp.csr_matrix, sp.csc_matrix, sp.csr_array])
def test_sparse_equals_dense(neighbors, clustered, kind, quick):
    neighbors.X = kind(neighbors.X)
    scvcc.tl.vcc(neighbors, 4, **quick)
    assert sp.issparse(neighbors.X)
    assert scvcc.metrics.ari(neighbors.obs["vcc"], clustered.obs["vcc"]) == 1
    assert neighbors.obsm["X_vcc"] == pytest.approx(clustered.obsm["X_vcc"], abs=1e-2)


def test_bare_call_builds_what_is_missing(pbmc, caplog, quick):
    caplog.set_level(logging.INFO, "scvcc")
    bare = ad.AnnData(pbmc.X, obs=pbmc.obs[["bulk_labels"]], var=pbmc.var[[]])
    scvcc.tl.vcc(bare, **quick)
    assert {"X_pca", "X_vcc"} <= set(bare.obsm)
    assert set(bare.obsp) == {"distances", "connectivities"}
    assert bare.uns["neighbors"]["params"]["use_rep"] == "X_pca"
    assert bare.obs["vcc"].nunique() == bare.uns["vcc"]["n_clusters"]
    assert "n_clusters" not in bare.uns["vcc"]["params"]
    assert "Set n_clusters" in caplog.text
    assert "representation: adata.obsm['X_pca'], 50 columns" in caplog.text
    sc.tl.umap(bare, maxiter=1)  # scanpy finds the graph


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits the memory of a process the way of Linux")
def test_a_sparse_matrix_whose_dense_form_does_not_fit():
    """In a process that is refused the 3.2 GB of the dense form, PCA and training still work."""
    program = """
        import resource
        import anndata as ad, numba, numpy as np, scipy.sparse as sp, torch
        from sklearn.neighbors import kneighbors_graph
        import scvcc

        def data(n, d, k=40):
            rng = np.random.default_rng(0)
            group = rng.integers(3, size=n)
            typical = rng.integers(20, size=(n, k)) + 20 * group[:, None]
            columns = np.where(rng.random((n, k)) < 0.5, typical, rng.integers(d, size=(n, k)))
            X = sp.csr_matrix((rng.random(n * k) + 0.5, columns.ravel(), np.arange(0, n * k + 1, k)), shape=(n, d))
            adata = ad.AnnData(X.astype("f4"), obs={"group": group})
            adata.obsp["distances"] = kneighbors_graph(X[:, :60], 10, mode="distance")
            return adata

        def run(adata):
            scvcc.tl.vcc(adata, 3, n_pcs=5, hidden=(64,), epochs=0, progress=False)

        numba.set_num_threads(1), torch.set_num_threads(1)
        run(data(100, 100))  # libraries and their threads take what they need
        adata = data(2_000, 400_000)
        used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + 1_500_000_000,) * 2)
        try:
            adata.X.toarray()
        except MemoryError:
            print("does not fit")
        run(adata)
        print(scvcc.metrics.ari(adata.obs["group"], adata.obs["vcc"]))
    """
    command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(program)]
    output = subprocess.run(command, capture_output=True, text=True, check=False)
    assert output.returncode == 0, output.stderr[-2000:]
    assert output.stdout.startswith("does not fit")
    assert float(output.stdout.split()[-1]) > 0.99  # the graph is in three pieces, one for each group


# ---------------------------------------------------------------------------------------- nothing but the result


@pytest.mark.parametrize("error", [KeyboardInterrupt, FloatingPointError])
def test_interrupt_and_failure_leave_everything_as_it_was(pbmc, untouched, monkeypatch, error, quick):
    bare = ad.AnnData(pbmc.X, obs=pbmc.obs, var=pbmc.var)

    def stop(self, *args, **kwargs):
        raise error

    monkeypatch.setattr(VCC, "fit", stop)
    with untouched(bare), pytest.raises(error):
        scvcc.tl.vcc(bare, 4, **quick)


def test_interrupt_between_the_stages_of_training(neighbors, untouched, monkeypatch, quick):
    def stop(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr("scvcc._training.encoder.Encoder.forward", stop)
    with untouched(neighbors), pytest.raises(KeyboardInterrupt):
        scvcc.tl.vcc(neighbors, 4, **quick)


def test_copy(neighbors, untouched, clustered, quick):
    with untouched(neighbors):
        result = scvcc.tl.vcc(neighbors, 4, copy=True, **quick)
    assert result.obs["vcc"].equals(clustered.obs["vcc"])


def test_random_states_of_the_caller_are_left_alone(neighbors, quick):
    del neighbors.uns["neighbors"], neighbors.obsp["distances"], neighbors.obsp["connectivities"]
    np.random.seed(7)  # noqa: NPY002
    before = np.random.get_state(), torch.get_rng_state().clone()  # noqa: NPY002
    scvcc.tl.vcc(neighbors, 4, random_state=None, **quick)
    np.testing.assert_equal(np.random.get_state(), before[0])  # noqa: NPY002
    assert torch.equal(before[1], torch.get_rng_state())
    drawn = neighbors.uns["vcc"]["params"]["random_state"]
    first = neighbors.obsm["X_vcc"].copy()
    scvcc.tl.vcc(neighbors, 4, random_state=drawn, **quick)  # a drawn seed is kept, so the run can be repeated
    assert np.array_equal(first, neighbors.obsm["X_vcc"])
    scvcc.tl.vcc(neighbors, 4, random_state=np.random.default_rng(0), **quick)
    assert neighbors.uns["vcc"]["params"]["random_state"] == int(np.random.default_rng(0).integers(2**31))


# -------------------------------------------------------------------------------------------------------- results


@pytest.mark.parametrize("suffix", ["h5ad", "zarr"])
def test_round_trip_and_repeat_from_the_file(clustered, tmp_path, suffix, same, everything):
    getattr(clustered, f"write_{suffix}")(tmp_path / f"a.{suffix}")
    again = getattr(ad, f"read_{suffix}")(tmp_path / f"a.{suffix}")
    before, after = everything(clustered), everything(again)
    assert all(same(before[name], after[name]) for name in before if name not in ("obs", "var"))
    pd.testing.assert_frame_equal(before["obs"], after["obs"])
    assert scvcc.pl.history(again, return_fig=True) is not None
    assert scvcc.pl.stages(again, return_fig=True) is not None
    if suffix == "h5ad":
        scvcc.tl.vcc(again, **again.uns["vcc"]["params"], progress=False)
        assert same(everything(again)["uns"], before["uns"])
        assert same(everything(again)["obsm"], before["obsm"])


@pytest.mark.parametrize("suffix", ["h5ad", "zarr"])
def test_a_restricted_run_without_hidden_layers_is_repeated_from_the_file(clustered, tmp_path, suffix, quick):
    scvcc.tl.vcc(clustered, 2, restrict_to=("vcc", ["1", "2"]), **{**quick, "hidden": ()})
    getattr(clustered, f"write_{suffix}")(tmp_path / f"a.{suffix}")
    again = getattr(ad, f"read_{suffix}")(tmp_path / f"a.{suffix}")
    params = again.uns["vcc_R"]["params"]
    assert params["hidden"].shape == (0,)
    for attribute in (again.obs, again.obsm, again.uns):
        for name in [name for name in attribute if "vcc_R" in name]:
            del attribute[name]
    scvcc.tl.vcc(again, **params, progress=False)
    assert again.obs["vcc_R"].equals(clustered.obs["vcc_R"])
    assert np.array_equal(again.obsm["X_vcc_R"], clustered.obsm["X_vcc_R"], equal_nan=True)


def test_the_record_holds_what_was_asked_for(neighbors, quick):
    scvcc.tl.vcc(neighbors, 4, **quick)
    assert not {"n_neighbors", "metric"} & set(neighbors.uns["vcc"]["params"])
    neighbors.uns["neighbors"]["params"]["n_neighbors"] = 10
    scvcc.tl.vcc(neighbors, 4, n_neighbors=15, metric="euclidean", **quick)
    params = neighbors.uns["vcc"]["params"]
    assert (params["n_neighbors"], params["metric"]) == (15, "euclidean")
    assert neighbors.uns["vcc"]["graph"]["name"] == "adata.obsp['vcc_neighbors_distances']"


def test_labels_are_plain_strings(clustered):
    assert {type(label) for label in clustered.obs["vcc"].cat.categories} == {str}


@pytest.mark.parametrize("name", ["vcc_confidence", "vcc_novelty", "vcc_stability", "vcc_trained"])
def test_columns_of_the_user_stay(neighbors, name, quick, untouched):
    """A column that this run would write is an error before anything is computed; any other one is left alone."""
    neighbors.obs[name] = np.arange(240.0)
    if name == "vcc_confidence":
        with untouched(neighbors), pytest.raises(ValueError, match=rf"would overwrite adata.obs\['{name}'\]"):
            scvcc.tl.vcc(neighbors, 4, **quick)
        return
    for _ in range(2):  # a rerun removes its own fields only
        scvcc.tl.vcc(neighbors, 4, **quick)
        np.testing.assert_array_equal(neighbors.obs[name], np.arange(240.0))


def test_a_sketch_does_not_replace_a_column_of_the_user(neighbors, quick, untouched):
    neighbors.obs["vcc_trained"] = "by hand"
    with untouched(neighbors), pytest.raises(ValueError, match=r"would overwrite adata.obs\['vcc_trained'\]"):
        scvcc.tl.vcc(neighbors, 4, max_train_cells=100, **quick)


def test_stability_does_not_replace_a_column_of_the_user(clustered, untouched):
    clustered.obs["vcc_stability"] = 1.0
    with untouched(clustered), pytest.raises(ValueError, match=r"would overwrite adata.obs\['vcc_stability'\]"):
        scvcc.tl.stability(clustered, 1, progress=False)


def test_a_rerun_knows_its_fields_by_its_record(clustered, quick, tmp_path, untouched):
    """The record survives a file; without it the usual three fields together are known, one alone is not."""
    scvcc.tl.stability(clustered, 1, progress=False)
    clustered.write_h5ad(tmp_path / "a.h5ad")
    again = ad.read_h5ad(tmp_path / "a.h5ad")
    scvcc.tl.vcc(again, 4, **quick)
    assert "vcc_stability" not in again.obs
    del clustered.uns["vcc"]
    scvcc.tl.vcc(clustered.copy(), 4, **quick)
    del clustered.obsm["X_vcc"]
    with untouched(clustered), pytest.raises(ValueError, match=r"would overwrite adata.obs\['vcc'\]"):
        scvcc.tl.vcc(clustered, 4, **quick)


def test_renamed_clusters_are_not_replaced_without_a_word(clustered, quick):
    clustered.obs["vcc"] = clustered.obs["vcc"].cat.rename_categories({"0": "B cells"})
    with pytest.warns(UserWarning, match="categories of adata.obs.'vcc'. were changed"):
        scvcc.tl.vcc(clustered, 4, **quick)


@pytest.fixture
def scanpys_log():
    """What scanpy's log shows; its settings are put back."""
    verbosity, logfile = sc.settings.verbosity, sc.settings.logfile
    sc.settings.logfile = shown = io.StringIO()
    yield shown
    sc.settings.verbosity, sc.settings.logfile = verbosity, logfile


def test_scanpys_verbosity_shows_what_is_done(neighbors, quick, scanpys_log):
    sc.settings.verbosity = 1
    scvcc.tl.vcc(neighbors, 4, **quick)
    assert scanpys_log.getvalue() == ""
    sc.settings.verbosity = 2
    scvcc.tl.vcc(neighbors, 4, **quick)
    shown = scanpys_log.getvalue()
    assert "graph: stored adata.obsp['distances']" in shown
    assert "representation: adata.X, 20 columns" in shown
    assert "finished: 4 clusters in adata.obs['vcc'] (0:00:0" in shown


def test_settings_of_the_estimator_are_offered(quick):
    import inspect

    parameters = inspect.signature(scvcc.tl.vcc).parameters
    assert set(inspect.signature(VCC).parameters) <= set(parameters)
    assert parameters["progress"].default is True
    assert parameters["n_pcs"].default is None  # scvcc.tl.vcc's own


def test_runs_side_by_side_and_rerun_with_another_k(clustered, quick, same):
    before = clustered.obs["vcc"].copy()
    clustered.uns["vcc_colors"] = ["red"] * 4
    scvcc.tl.vcc(clustered, 3, key_added="three", **quick)
    assert clustered.obs["vcc"].equals(before)
    assert clustered.obs["three"].nunique() == 3
    assert "three_confidence" in clustered.obs and "X_three" in clustered.obsm
    assert "vcc_colors" in clustered.uns
    scvcc.tl.vcc(clustered, 4, random_state=1, **quick)
    assert list(clustered.uns["vcc_colors"]) == ["red"] * 4  # same categories, same colors
    scvcc.tl.vcc(clustered, 3, **quick)
    assert "vcc_colors" not in clustered.uns
    assert clustered.obs["vcc"].cat.categories.tolist() == ["0", "1", "2"]
    assert not [name for name in clustered.obsm if name.startswith("X_vcc_")]  # stages of the first run


def test_more_than_ten_clusters_are_in_natural_order(neighbors, quick):
    scvcc.tl.vcc(neighbors, 12, **quick)
    assert neighbors.obs["vcc"].cat.categories.tolist() == [str(i) for i in range(12)]


def test_scanpy_takes_the_result(clustered):
    sc.pl.embedding(clustered, "vcc", color="vcc", show=False)
    sc.tl.rank_genes_groups(clustered, "vcc")
    sc.tl.dendrogram(clustered, "vcc", use_rep="X_vcc")


def test_restrict_to_divides_some_clusters(clustered, quick):
    before = clustered.obs["vcc"].copy()
    scvcc.tl.vcc(clustered, 2, restrict_to=("vcc", ["1", "2"]), **quick)
    result = clustered.obs["vcc_R"]
    chosen = before.isin(["1", "2"])
    assert clustered.obs["vcc"].equals(before)
    assert result.cat.categories.tolist() == ["0", "1-2,0", "1-2,1", "3"]
    assert (result[~chosen].astype(str) == before[~chosen].astype(str)).all()
    assert scvcc.metrics.ari(before[chosen], result[chosen]) > 0.95  # the two are found again
    for values in (clustered.obs["vcc_R_confidence"], clustered.obsm["X_vcc_R"][:, 0]):
        assert np.array_equal(np.isfinite(values), chosen)
    assert clustered.uns["vcc_R"]["restrict_to"]["categories"].tolist() == ["1", "2"]


def test_restrict_to_uses_the_graph_between_the_chosen_cells(clustered, monkeypatch, quick):
    chosen = (clustered.obs["vcc"] == "0").to_numpy()
    seen = {}

    def fit(self, X, *, graph, **_):
        seen.update(X=X, graph=graph)
        raise KeyboardInterrupt

    monkeypatch.setattr(VCC, "fit", fit)
    with pytest.raises(KeyboardInterrupt):
        scvcc.tl.vcc(clustered, 2, restrict_to=("vcc", "0"), **quick)
    assert np.array_equal(seen["X"], clustered.X[chosen])
    assert seen["graph"].toarray() == pytest.approx(clustered.obsp["distances"].toarray()[chosen][:, chosen], rel=1e-5)


@pytest.mark.parametrize(
    ("restrict_to", "message"),
    [
        (("vcc", ["9"]), r"has no category '9'; it has '0', '1', '2', '3'"),
        (("none", ["0"]), "'none', which is not a column"),
        ("vcc", "must be"),
        (("vcc", []), "none given"),
        (("vcc", 1), r"must be \(obs column, list of categories\), found \('vcc', 1\)"),
    ],
)
def test_bad_restrictions_are_named(clustered, untouched, restrict_to, message, quick):
    with untouched(clustered), pytest.raises(ValueError, match=message):
        scvcc.tl.vcc(clustered, 2, restrict_to=restrict_to, **quick)


def test_a_nested_restriction_is_repeated_from_its_record(clustered, quick):
    scvcc.tl.vcc(clustered, 2, restrict_to=("vcc", ["0"]), **quick)
    with pytest.raises(ValueError, match="key_added='vcc_R' would overwrite the column that restrict_to reads"):
        scvcc.tl.vcc(clustered, 2, restrict_to=("vcc_R", ["0,0"]), **quick)
    scvcc.tl.vcc(clustered, 2, restrict_to=("vcc_R", ["0,0"]), key_added="finer", **quick)
    before = clustered.obs["finer"].copy()
    assert {"0,0,0", "0,0,1", "0,1", "1"} <= set(before)
    assert set(clustered.obs["vcc_R"]) == {"0,0", "0,1", "1", "2", "3"}
    for key in ("vcc_R", "finer"):
        scvcc.tl.vcc(clustered, **clustered.uns[key]["params"], progress=False)
    assert clustered.obs["finer"].equals(before)


def test_a_name_given_with_a_restriction_is_kept(clustered, untouched, quick):
    with untouched(clustered), pytest.raises(ValueError, match="key_added='vcc' would overwrite the column"):
        scvcc.tl.vcc(clustered, 2, restrict_to=("vcc", ["0"]), key_added="vcc", **quick)
    scvcc.tl.vcc(clustered, 2, restrict_to=("truth", ["0", "1"]), key_added="vcc", **quick)
    assert "vcc_R" not in clustered.obs and "0-1,0" in set(clustered.obs["vcc"])


# --------------------------------------------------------------------------------------------------- kinds of AnnData


def test_connectivities_alone(neighbors, clustered, quick):
    del neighbors.obsp["distances"]
    scvcc.tl.vcc(neighbors, 4, **quick)
    assert neighbors.uns["vcc"]["graph"]["mode"] == "connectivity"
    assert scvcc.metrics.ari(neighbors.obs["vcc"], clustered.obs["vcc"]) > 0.95


def test_pieces_isolated_and_duplicate_cells_give_a_finite_result(blobs, quick):
    blobs.X[:60] += 500
    blobs.X[70:75] = blobs.X[70]
    sc.pp.neighbors(blobs, use_rep="X")
    D = blobs.obsp["distances"].tocoo()
    kept = (D.row != 3) & (D.col != 3)
    blobs.obsp["distances"] = sp.csr_matrix((D.data[kept], (D.row[kept], D.col[kept])), shape=D.shape)
    with pytest.warns(
        UserWarning, match="pieces, 1 of them single cells.*5 cells have an exact duplicate.*n_clusters=2 is"
    ):
        scvcc.tl.vcc(blobs, 2, **quick)
    assert np.isfinite(blobs.obsm["X_vcc"]).all()
    assert np.isfinite(blobs.obs["vcc_confidence"]).all()
    assert blobs.obs["vcc"].notna().all()


def test_ragged_graph_of_a_view(neighbors, untouched, quick):
    view = neighbors[neighbors.obs["truth"] != "0"]
    with untouched(neighbors), pytest.warns(ad.ImplicitModificationWarning):
        scvcc.tl.vcc(view, 3, **quick)
    assert scvcc.metrics.ari(view.obs["truth"], view.obs["vcc"]) > 0.9
    assert not view.is_view


@pytest.mark.filterwarnings("ignore::anndata.ImplicitModificationWarning")
def test_a_rerun_on_a_view_leaves_nothing_of_the_old_result(clustered, untouched, quick):
    clustered.uns["vcc_colors"] = ["red"] * 4
    scvcc.tl.stability(clustered, 1, progress=False)
    view = clustered[clustered.obs["truth"] != "0"]
    with untouched(clustered):
        scvcc.tl.vcc(view, 3, **quick)
    assert not {"vcc_colors", "vcc_stability"} & set(view.uns)
    assert "vcc_stability" not in view.obs and "X_vcc_start" not in view.obsm
    assert "history" in view.uns["vcc"]


@pytest.mark.filterwarnings("ignore::anndata.ImplicitModificationWarning")
def test_a_view_without_a_graph_gets_all_that_was_computed(pbmc, quick):
    bare = ad.AnnData(pbmc.X, obs=pbmc.obs[[]])
    view = bare[:300]
    scvcc.tl.vcc(view, 4, **quick)
    assert {"pca", "neighbors", "vcc"} <= set(view.uns) and {"X_pca", "X_vcc"} <= set(view.obsm)
    assert {"distances", "connectivities"} <= set(view.obsp) and "PCs" in view.varm
    assert not bare.uns


def test_backed(clustered, tmp_path, quick):
    clustered.obsm["X_pca"] = clustered.X[:, :10]
    for key in ("vcc", "vcc_confidence"):
        del clustered.obs[key]
    clustered.write_h5ad(tmp_path / "a.h5ad")
    backed = ad.read_h5ad(tmp_path / "a.h5ad", backed="r")
    with pytest.raises(ValueError, match="copy=True does not work with a backed"):
        scvcc.tl.vcc(backed, 4, copy=True, **quick)
    assert "vcc" not in backed.obs
    scvcc.tl.vcc(backed, 4, use_rep="X_pca", neighbors_key="neighbors", **quick)
    assert backed.obs["vcc"].nunique() == 4
    assert backed.isbacked
    with pytest.raises(ValueError, match=r"a part of a backed AnnData.*to_memory\(\)"):
        scvcc.tl.vcc(backed[:200], 4, use_rep="X_pca", **quick)
    del backed.obsm["X_pca"]
    with pytest.raises(ValueError, match=r"backed.*to_memory\(\).*use_rep='X_pca'"):  # a PCA needs all of X
        scvcc.tl.vcc(backed, 4, n_pcs=5, **quick)
    backed.file.close()


# ------------------------------------------------------------------------------------------------ many cells


@pytest.fixture(scope="module")
def _sketched(_blobs):
    adata = _blobs.copy()
    scvcc.tl.vcc(adata, 4, max_train_cells=100, keep_stages=True, hidden=(16,), epochs=0, progress=False)
    return adata


def test_many_cells_are_trained_on_as_a_sketch(blobs, quick, caplog, monkeypatch):
    monkeypatch.setattr(sc.pp, "neighbors", lambda *args, **kwargs: pytest.fail("a graph of all cells"))
    with caplog.at_level(logging.INFO, "scvcc"):
        scvcc.tl.vcc(blobs, 4, max_train_cells=100, keep_stages=True, **quick)
    assert "max_train_cells=100" in caplog.text
    assert "a sketch of 100 cells" in caplog.text
    assert not blobs.obsp
    assert "neighbors" not in blobs.uns
    trained = blobs.obs["vcc_trained"].to_numpy()
    assert trained.dtype == bool
    assert trained.sum() == 100
    assert scvcc.metrics.ari(blobs.obs["truth"], blobs.obs["vcc"]) > 0.95
    assert blobs.obs["vcc_confidence"].between(0.25, 1).all()
    assert np.isfinite(blobs.obsm["X_vcc"]).all()
    np.testing.assert_array_equal(np.isfinite(blobs.obsm["X_vcc_coordinates"]).all(axis=1), trained)
    model = VCC(4, max_train_cells=100, n_pcs=None, **{**quick, "progress": False}).fit(blobs.X)
    np.testing.assert_array_equal(blobs.obsm["X_vcc"], model.embedding_)
    np.testing.assert_array_equal(np.flatnonzero(trained), model.trained_rows_)


def test_a_sketched_run_is_written_read_and_repeated(_sketched, tmp_path, everything, same):
    _sketched.write_h5ad(tmp_path / "a.h5ad")
    again = ad.read_h5ad(tmp_path / "a.h5ad")
    scvcc.tl.vcc(again, **again.uns["vcc"]["params"], progress=False)
    before, after = everything(_sketched), everything(again)
    for slot in ("obs", "obsm", "obsp"):
        assert same(before[slot], after[slot]), slot
    scvcc.tl.vcc(again, **{**again.uns["vcc"]["params"], "max_train_cells": None}, progress=False)
    assert "vcc_trained" not in again.obs


def test_a_stored_graph_is_used_with_all_its_cells(neighbors, clustered, quick, monkeypatch, caplog):
    monkeypatch.setitem(unwrap(VCC.__init__).__kwdefaults__, "max_train_cells", 100)
    with caplog.at_level(logging.INFO, "scvcc"):
        scvcc.tl.vcc(neighbors, 4, **quick)
    assert "set max_train_cells to use fewer" in caplog.text
    assert "vcc_trained" not in neighbors.obs
    np.testing.assert_array_equal(neighbors.obsm["X_vcc"], clustered.obsm["X_vcc"])
    before = neighbors.obsm["X_vcc"].copy()
    scvcc.tl.vcc(neighbors, **neighbors.uns["vcc"]["params"], progress=False)
    np.testing.assert_array_equal(neighbors.obsm["X_vcc"], before)


def test_a_limit_that_was_asked_for_goes_before_a_stored_graph(neighbors, _sketched, quick, untouched, caplog):
    with untouched(neighbors), pytest.raises(ValueError, match=r"max_train_cells=100.*'neighbors'.*all 240 cells"):
        scvcc.tl.vcc(neighbors, 4, max_train_cells=100, neighbors_key="neighbors", **quick)
    graph = neighbors.obsp["distances"].copy()
    with caplog.at_level(logging.INFO, "scvcc"):
        scvcc.tl.vcc(neighbors, 4, max_train_cells=100, **quick)
    assert "adata.obsp['distances'] is not used: max_train_cells=100" in caplog.text
    np.testing.assert_array_equal(neighbors.obsm["X_vcc"], _sketched.obsm["X_vcc"])
    assert (neighbors.obsp["distances"] != graph).nnz == 0


@pytest.mark.parametrize("limit", [40, 130])
def test_a_restriction_of_many_cells(_sketched, quick, limit):
    adata = _sketched.copy()
    scvcc.tl.vcc(adata, 2, restrict_to=("truth", ["0", "1"]), max_train_cells=limit, **quick)
    chosen = adata.obs["truth"].isin(["0", "1"]).to_numpy()
    assert chosen.sum() == 120
    assert not adata.obsp
    assert scvcc.metrics.ari(adata.obs["truth"][chosen], adata.obs["vcc_R"][chosen]) == 1
    np.testing.assert_array_equal(np.isfinite(adata.obsm["X_vcc_R"]).all(axis=1), chosen)
    assert ("vcc_R_trained" in adata.obs) == (limit == 40)
    if limit == 40:
        assert adata.obs["vcc_R_trained"].sum() == 40
        assert chosen[adata.obs["vcc_R_trained"]].all()


def test_a_sketched_model_is_saved_and_maps_cells(blobs, quick, tmp_path):
    scvcc.tl.vcc(blobs, 4, max_train_cells=100, save_to=tmp_path / "model", **quick)
    query = ad.AnnData(blobs.X, var=blobs.var)
    scvcc.tl.map_query(query, tmp_path / "model", max_novelty=None)
    assert list(query.obs["vcc"]) == list(blobs.obs["vcc"])
    np.testing.assert_array_equal(query.obsm["X_vcc"], blobs.obsm["X_vcc"])


def test_a_backed_matrix_is_not_read(blobs, tmp_path, quick, monkeypatch):
    blobs.obsm["X_pca"] = blobs.X[:, :10]
    blobs.write_h5ad(tmp_path / "a.h5ad")
    expected = blobs.copy()
    scvcc.tl.vcc(expected, 4, max_train_cells=100, **quick)
    backed = ad.read_h5ad(tmp_path / "a.h5ad", backed="r")
    monkeypatch.setattr(h5py.Dataset, "__getitem__", lambda *args: pytest.fail("read from the file"))
    scvcc.tl.vcc(backed, 4, max_train_cells=100, **quick)
    monkeypatch.undo()
    np.testing.assert_array_equal(backed.obsm["X_vcc"], expected.obsm["X_vcc"])
    assert list(backed.obs["vcc"]) == list(expected.obs["vcc"])
    backed.file.close()


def test_modality_of_a_larger_object(neighbors, quick):
    modalities = {"rna": neighbors}  # what MuData is to us: something that hands out an AnnData
    scvcc.tl.vcc(modalities["rna"], 4, **quick)
    assert "vcc" in neighbors.obs


@pytest.mark.parametrize("convert", [np.asfortranarray, lambda X: X.astype(np.float16), lambda X: X.astype(np.float64)])
def test_kinds_of_x(neighbors, clustered, convert, quick):
    neighbors.X = convert(neighbors.X)
    neighbors.X.flags.writeable = False
    scvcc.tl.vcc(neighbors, 4, **quick)
    assert scvcc.metrics.ari(neighbors.obs["vcc"], clustered.obs["vcc"]) > 0.97


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"n_clusters": 1}, ValueError, "n_clusters must be from 2 to 240"),
        ({"n_clusters": 241}, ValueError, "n_clusters must be from 2 to 240"),
        ({"n_clusters": 2.5}, TypeError, "n_clusters must be an integer"),
        ({"key_added": "a/b"}, ValueError, "key_added must be a name without '/'"),
        ({"key_added": ""}, ValueError, "key_added must be"),
        ({"device": "toaster"}, ValueError, "device='toaster'"),
        ({"n_epoch": 3}, TypeError, "n_epoch is not a setting of VCC: did you mean epochs"),
        ({"use_rep": "none"}, ValueError, "use_rep='none'"),
        ({"neighbors_key": "none"}, ValueError, "neighbors_key='none'"),
        ({"random_state": 1.5}, TypeError, "random_state"),
    ],
)
def test_bad_arguments_are_named_and_nothing_is_written(blobs, untouched, arguments, error, message, quick):
    with untouched(blobs), pytest.raises(error, match=message):
        scvcc.tl.vcc(blobs, **{"n_clusters": 4, **quick, **arguments})


@pytest.mark.parametrize(
    ("key", "spoil", "message"),
    [
        ("neighbors", lambda a: None, "'neighbors' is where scanpy keeps its graph"),
        ("leiden", lambda a: a.uns.update(leiden={"params": {}}), r"overwrite adata.uns\['leiden'\].*another name"),
        ("umap", lambda a: a.obsm.update(X_umap=a.X[:, :3]), r"would overwrite adata.obsm\['X_umap'\]"),
        ("truth", lambda a: None, r"key_added='truth' would overwrite adata.obs\['truth'\].*another name"),
        ("pca", lambda a: None, "key_added='pca' is where scanpy keeps its PCA"),
        ("lsa", lambda a: None, "key_added='lsa' is where scvcc.pp.lsa keeps"),
    ],
)
def test_results_of_others_are_not_overwritten(neighbors, untouched, key, spoil, message, quick):
    spoil(neighbors)
    with untouched(neighbors), pytest.raises(ValueError, match=message):
        scvcc.tl.vcc(neighbors, 4, key_added=key, **quick)


def test_the_pca_of_a_layer_is_not_overwritten(pbmc, untouched, quick):
    pbmc.layers["log"] = pbmc.X
    with untouched(pbmc), pytest.raises(ValueError, match="'pca_log' is where scanpy keeps its PCA"):
        scvcc.tl.vcc(pbmc, 4, layer="log", key_added="pca_log", **quick)


def test_a_result_without_its_record_is_replaced(clustered, quick):
    del clustered.uns["vcc"]  # as anndata.concat does
    scvcc.tl.vcc(clustered, 3, **quick)
    assert clustered.obs["vcc"].nunique() == 3


def test_too_few_cells_and_other_objects():
    with pytest.raises(ValueError, match="1 cells to cluster"):
        scvcc.tl.vcc(ad.AnnData(np.ones((1, 5), np.float32)), 2)
    with pytest.raises(ValueError, match="0 cells to cluster"):
        scvcc.tl.vcc(ad.AnnData(np.ones((0, 5), np.float32)))
    with pytest.raises(TypeError, match="adata must be an AnnData, found ndarray"):
        scvcc.tl.vcc(np.ones((10, 5)))
    with pytest.raises(TypeError, match="adata must be an AnnData, found ndarray"):
        scvcc.tl.vcc(np.ones((10, 5)), restrict_to=("vcc", ["0"]))


def test_raw_counts_are_pointed_out(pbmc, quick):
    counts = np.random.default_rng(0).poisson(3, size=(120, 60)).astype(np.float32)
    counts[:60, :30] += 20
    with pytest.warns(UserWarning, match="adata.X looks like raw counts") as caught:
        scvcc.tl.vcc(ad.AnnData(counts), 2, **quick)
    assert {warning.filename for warning in caught if "raw counts" in str(warning.message)} == {__file__}


# -------------------------------------------------------------------------------------------- number of clusters


def test_suggestion_is_the_number_that_vcc_finds(neighbors, pbmc, quick, caplog):
    table = scvcc.tl.suggest_n_clusters(neighbors, progress=False)
    scvcc.tl.vcc(neighbors, **quick)
    assert table.loc[table["suggested"], "n_clusters"].tolist() == [neighbors.uns["vcc"]["n_clusters"]] == [4]
    table = scvcc.tl.suggest_n_clusters(pbmc, progress=False)
    with caplog.at_level(logging.INFO, logger="scvcc"):
        scvcc.tl.vcc(pbmc, **quick)  # so small an encoder may lose a cluster afterwards
    assert f"found {table.loc[table['suggested'], 'n_clusters'].item()} clusters" in caplog.text


def test_table_of_numbers_of_clusters(neighbors, everything, same, tmp_path):
    before = everything(neighbors)
    table = scvcc.tl.suggest_n_clusters(neighbors, k_range=(3, 9), n_runs=1, progress=False)
    assert table["n_clusters"].tolist() == list(range(3, 10))
    assert table["suggested"].sum() == 1 and table.loc[table["suggested"], "n_clusters"].item() == 4
    assert table.loc[table["suggested"], "reproducibility"].item() > 0.9
    assert set(neighbors.uns) - set(before["uns"]) == {"vcc_n_clusters"}
    assert all(same(everything(neighbors)[slot], before[slot]) for slot in before if slot != "uns")
    neighbors.write_h5ad(tmp_path / "a.h5ad")
    record = ad.read_h5ad(tmp_path / "a.h5ad").uns["vcc_n_clusters"]
    pd.testing.assert_frame_equal(record["table"].reset_index(drop=True), table, check_index_type=False)
    assert record["suggested"] == 4 and record["params"]["k_range"].tolist() == [3, 9]


def test_suggestion_computes_what_is_missing_and_vcc_uses_it(blobs, quick):
    scvcc.tl.suggest_n_clusters(blobs, k_range=(2, 6), n_neighbors=12, key_added="mine", progress=False)
    assert blobs.uns["neighbors"]["params"]["n_neighbors"] == 12
    graph = blobs.obsp["distances"].copy()
    scvcc.tl.vcc(blobs, key_added="mine", **quick)
    assert (blobs.obsp["distances"] != graph).nnz == 0
    assert blobs.uns["mine"]["graph"]["params"]["n_neighbors"] == 12


def test_small_clusters_are_not_suggested(neighbors, quick):
    table = scvcc.tl.suggest_n_clusters(neighbors, min_cluster_size=70, progress=False)
    assert (table["eligible"] <= (table["smallest"] >= 70)).all()
    scvcc.tl.vcc(neighbors, min_cluster_size=70, **quick)
    sizes = neighbors.obs["vcc"].value_counts()
    assert sizes.min() >= 70 and 2 <= len(sizes) < 4
    assert neighbors.uns["vcc"]["params"]["min_cluster_size"] == 70
    scvcc.tl.vcc(neighbors, 4, min_cluster_size=70, **quick)  # a given number comes first
    assert neighbors.obs["vcc"].nunique() == 4


def test_clusters_that_turn_out_too_small_are_given_up(neighbors, quick, monkeypatch):
    truth = neighbors.obs["truth"].cat.codes.to_numpy(np.int64)  # four groups of 60
    monkeypatch.setattr(_recipe, "estimate_partition", lambda *_: truth)
    scvcc.tl.vcc(neighbors, min_cluster_size=61, **quick)
    assert neighbors.obs["vcc"].value_counts().min() >= 61
    scvcc.tl.vcc(neighbors, min_cluster_size=50, **quick)
    assert neighbors.obs["vcc"].nunique() == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"k_range": (5, 5.5)}, "k_range must be a pair of integers"),
        ({"k_range": (1, 5)}, r"k_range\[0\] must be at least 2, found 1"),
        ({"k_range": (5, 4)}, r"k_range\[1\] must be at least 5, found 4"),
        ({"k_range": (200, 300)}, "k_range starts at 200 clusters, too many for 240 cells"),
        ({"k_range": (60, 80)}, r"k_range=\(60, 80\) is out of reach: 240 points"),
        ({"n_runs": -1}, "n_runs must be at least 0"),
        ({"min_cluster_size": 0}, "min_cluster_size must be at least 1"),
        ({"use_rep": "nothing"}, "use_rep='nothing' is neither"),
        ({"key_added": "a/b"}, "key_added must be a name"),
    ],
)
def test_wrong_requests_for_a_suggestion(neighbors, arguments, message, untouched):
    with untouched(neighbors), pytest.raises((TypeError, ValueError), match=message):
        scvcc.tl.suggest_n_clusters(neighbors, progress=False, **arguments)


def test_a_range_without_eligible_numbers_gets_a_warning(pbmc):
    with pytest.warns(UserWarning, match=r"No number of clusters in k_range=\(60, 120\) is eligible"):
        table = scvcc.tl.suggest_n_clusters(pbmc, k_range=(60, 120), progress=False)
    assert table.loc[table["suggested"], "n_clusters"].tolist() == [table["n_clusters"].min()]


# ---------------------------------------------------------------------------------------------------- stability


def test_stability_is_written(clustered, everything, same, tmp_path):
    before = everything(clustered)
    result = scvcc.tl.stability(clustered, 3, progress=False, copy=True)
    assert all(same(everything(clustered)[slot], before[slot]) for slot in before)
    scvcc.tl.stability(clustered, 3, progress=False)
    assert same(everything(clustered)["obs"], everything(result)["obs"])
    assert set(clustered.obs) - set(before["obs"]) == {"vcc_stability"}
    assert set(clustered.uns) - set(before["uns"]) == {"vcc_stability"}
    record = clustered.uns["vcc_stability"]
    assert record["runs"].shape == (3, 4)
    assert record["clusters"].index.tolist() == ["0", "1", "2", "3"]
    assert record["clusters"]["n_cells"].tolist() == clustered.obs["vcc"].value_counts(sort=False).tolist()
    np.testing.assert_allclose(record["clusters"]["stability"], record["runs"].mean(axis=0))
    np.testing.assert_allclose(record["clusters"]["worst"], record["runs"].min(axis=0))
    assert record["clusters"]["stability"].min() > 0.9  # the groups are apart
    assert clustered.obs["vcc_stability"].between(0, 1).all()
    clustered.write_h5ad(tmp_path / "a.h5ad")
    back = ad.read_h5ad(tmp_path / "a.h5ad")
    pd.testing.assert_frame_equal(back.uns["vcc_stability"]["clusters"], record["clusters"])
    scvcc.tl.stability(back, 3, progress=False)  # from a file, as it was
    assert back.obs["vcc_stability"].equals(clustered.obs["vcc_stability"])


def test_a_cluster_made_of_two_halves_is_not_stable(clustered):
    names = clustered.obs["vcc"].astype(str).to_numpy()
    odd = (names == "0") & (np.arange(240) % 2 == 0)
    clustered.obs["vcc"] = pd.Categorical(np.where(odd, "drawn by lot", names))
    scvcc.tl.stability(clustered, 3, progress=False)
    found = clustered.uns["vcc_stability"]["clusters"]["stability"]
    assert found["drawn by lot"] < 0.6 and found["0"] < 0.6 and found[["1", "2"]].min() > 0.6
    cells = clustered.obs.groupby("vcc", observed=True)["vcc_stability"].mean()
    assert cells["drawn by lot"] < 0.6 < cells["1"]


def test_stability_of_a_restricted_run(clustered, quick):
    part = ("truth", ["0", "1", "2"])
    scvcc.tl.vcc(clustered, 3, restrict_to=part, **quick)
    scvcc.tl.stability(clustered, 2, key="vcc_R", progress=False)
    others = (clustered.obs["truth"] == "3").to_numpy()
    assert clustered.obs["vcc_R_stability"].isna().to_numpy().tolist() == others.tolist()
    assert len(clustered.uns["vcc_R_stability"]["clusters"]) == 3


def test_a_new_run_drops_the_stability_of_the_old(clustered, quick):
    scvcc.tl.stability(clustered, 1, progress=False)
    scvcc.tl.vcc(clustered, 3, **quick)
    assert "vcc_stability" not in clustered.obs and "vcc_stability" not in clustered.uns


def test_wrong_requests_for_stability(clustered, untouched):
    merged = clustered.copy()
    merged.obs["vcc"] = pd.Categorical(["all"] * 240)
    with untouched(clustered):
        for adata, arguments, message in (
            (clustered, {"key": "other"}, "no run named 'other': run scvcc.tl.vcc"),
            (clustered, {"n_runs": 0}, "n_runs must be at least 1"),
            (clustered, {"share": 1.0}, "share=1.0 leaves 240 of 240 cells"),
            (clustered, {"share": 0.01}, "share=0.01 leaves 2 of 240 cells for 4 clusters: choose another share"),
            (merged, {}, "has one cluster: at least 2"),
        ):
            with pytest.raises(ValueError, match=message):
                scvcc.tl.stability(adata, progress=False, **arguments)


def test_stability_of_a_cluster_that_is_in_no_run(clustered, recwarn):
    names = clustered.obs["vcc"].astype(str).to_numpy()
    left_out = next(i for i in range(240) if i not in next(_explore.parts(clustered.obsp["distances"], 1, 0.8, 0))[0])
    names[left_out] = "alone"
    clustered.obs["vcc"] = pd.Categorical(names)
    scvcc.tl.stability(clustered, 1, progress=False)
    assert clustered.uns["vcc_stability"]["clusters"].loc["alone", ["stability", "worst"]].isna().all()
    assert not [w for w in recwarn if issubclass(w.category, RuntimeWarning)]


def test_a_result_named_stability_can_be_written(clustered, tmp_path, quick):
    scvcc.tl.vcc(clustered, 4, key_added="stability", **quick)
    scvcc.tl.stability(clustered, 1, key="stability", progress=False)
    clustered.write_h5ad(tmp_path / "a.h5ad")
    assert "stability_stability" in ad.read_h5ad(tmp_path / "a.h5ad").uns
