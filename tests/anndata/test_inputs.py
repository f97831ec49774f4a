"""Which graph and which representation are used, in every layout they are found in."""

import logging
import warnings

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import scanpy as sc
import scipy.sparse as sp
from scipy.sparse.linalg import ArpackError
from sklearn.neighbors import KNeighborsTransformer, kneighbors_graph

from scvcc import VCC
from scvcc._anndata.graphs import built_graph, stored_graph, warn_about
from scvcc._anndata.inputs import chosen_part, find_inputs
from scvcc._anndata.matrices import as_matrix, warn_if_counts
from scvcc._anndata.representation import (
    Representation,
    Request,
    Source,
    graph_source,
    matrix_at,
    params_of,
)
from scvcc._anndata.results import storable


def stored(adata, wanted=None, **arguments):
    return stored_graph(adata, Request("own", 0, **arguments), wanted)


def prepared(adata, **arguments):
    return find_inputs(adata, VCC(max_train_cells=None), Request("vcc", 0, **arguments), chosen_part(adata, None))[1:]


def identical(a, b):
    """Same edges in the same places, bit for bit: explicit zeros count."""
    return all(np.array_equal(getattr(a, part), getattr(b, part)) for part in ("indptr", "indices", "data"))


def with_self(D):
    """As pynndescent stores a graph: each cell its own first neighbor, at an explicit distance of 0."""
    rows = [np.r_[i, D.indices[D.indptr[i] : D.indptr[i + 1]]] for i in range(D.shape[0])]
    values = [np.r_[0.0, D.data[D.indptr[i] : D.indptr[i + 1]]] for i in range(D.shape[0])]
    indptr = np.r_[0, np.cumsum([len(r) for r in rows])]
    return sp.csr_matrix((np.concatenate(values), np.concatenate(rows), indptr), shape=D.shape)


def int64_indices(D):
    D = D.copy()
    D.indices, D.indptr = D.indices.astype(np.int64), D.indptr.astype(np.int64)
    return D


def by_distance(D):
    """Each row in the order of distance, columns unsorted."""
    D = D.copy()
    for i in range(D.shape[0]):
        row = slice(D.indptr[i], D.indptr[i + 1])
        order = np.argsort(D.data[row], kind="stable")
        D.indices[row], D.data[row] = D.indices[row][order], D.data[row][order]
    D.has_sorted_indices = False
    return D


LAYOUTS = {
    "float32": lambda D: D.astype(np.float32),
    "float64": lambda D: D.astype(np.float64),
    "with self": with_self,
    "with self, float32": lambda D: with_self(D).astype(np.float32),
    "by distance": by_distance,
    "int64 indices": int64_indices,
    "csr_array": sp.csr_array,
    "csc_matrix": sp.csc_matrix,
    "dense": lambda D: D.toarray(),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_of_a_graph_reads_the_same(neighbors, layout):
    expected = stored(neighbors).matrix
    neighbors.obsp["distances"] = LAYOUTS[layout](neighbors.obsp["distances"].tocsr())
    assert identical(stored(neighbors).matrix, expected)


def edges(matrix):
    """Position of each stored entry as one number, and its value, in the order of the numbers."""
    rows = np.repeat(np.arange(matrix.shape[0], dtype=np.int64), np.diff(matrix.indptr))
    return rows * matrix.shape[0] + matrix.indices, matrix.data


@pytest.mark.parametrize(
    ("transformer", "least_common"),
    [
        (KNeighborsTransformer(n_neighbors=14), 1.0),
        # compiles for most of a minute; its search is approximate
        pytest.param("pynndescent", 0.98, marks=pytest.mark.slow),
    ],
    ids=["sklearn", "pynndescent"],
)
def test_graphs_that_scanpy_makes_with_other_searches_read_the_same(neighbors, transformer, least_common):
    """Brute force leaves out the cell itself, transformers store it as an explicit zero."""
    expected = stored(neighbors).matrix
    sc.pp.neighbors(neighbors, n_neighbors=14, use_rep="X", transformer=transformer)
    assert (np.diff(neighbors.obsp["distances"].indptr) == 15).all()
    found = stored(neighbors).matrix
    assert (np.diff(found.indptr) == 14).all()
    (a, there), (b, here) = edges(expected), edges(found)
    common, in_a, in_b = np.intersect1d(a, b, return_indices=True)
    assert len(common) >= least_common * len(a)
    assert here[in_b] == pytest.approx(there[in_a], rel=1e-4)


def test_a_graph_from_sklearn_under_another_name(neighbors):
    expected = stored(neighbors).matrix
    neighbors.obsp["my_dist"] = kneighbors_graph(neighbors.X, 14, mode="distance")
    graph = stored(neighbors, obsp="my_dist")
    assert graph.mode == "distance"
    assert np.array_equal(graph.matrix.indices, expected.indices)
    assert graph.matrix.data == pytest.approx(expected.data, rel=1e-3)


def test_duplicates_stay_neighbors_at_distance_zero(blobs):
    blobs.X[5] = blobs.X[4]
    blobs.X[6] = blobs.X[4]
    sc.pp.neighbors(blobs, use_rep="X")
    D = blobs.obsp["distances"].tocsr()
    rows = np.repeat(np.arange(240), np.diff(D.indptr))
    off_diagonal = rows != D.indices
    graph = stored(blobs).matrix
    assert graph.nnz == off_diagonal.sum()
    assert (graph.data == 0).sum() == (D.data[off_diagonal] == 0).sum() > 0
    assert graph.diagonal().sum() == 0 and not (np.repeat(np.arange(240), np.diff(graph.indptr)) == graph.indices).any()


def test_ragged_rows_after_filtering(neighbors):
    part = neighbors[::2].copy()
    lengths = np.diff(part.obsp["distances"].indptr)
    assert lengths.min() < lengths.max()
    graph = stored(part)
    assert np.array_equal(np.diff(graph.matrix.indptr), lengths)


def test_stored_matrices_are_never_modified(neighbors, untouched):
    neighbors.obsp["distances"] = by_distance(with_self(neighbors.obsp["distances"]))
    before = neighbors.obsp["distances"].indices.copy()
    with untouched(neighbors):
        prepared(neighbors)
        prepared(neighbors, obsp="connectivities")
    assert np.array_equal(neighbors.obsp["distances"].indices, before)


def test_connectivities_alone_become_the_weights(neighbors, caplog):
    caplog.set_level(logging.INFO, "scvcc")
    del neighbors.obsp["distances"]
    graph, _ = prepared(neighbors)
    assert graph.mode == "connectivity"
    assert np.abs(graph.matrix - neighbors.obsp["connectivities"]).max() < 1e-6
    assert "taken as the weights of the latent graph" in caplog.text


def test_matrices_without_a_description_are_found(neighbors):
    del neighbors.uns["neighbors"]
    assert stored(neighbors).mode == "distance"


def test_matrices_in_uns_of_old_files_are_found(neighbors):
    expected = stored(neighbors).matrix
    neighbors.uns["neighbors"] = {"distances": neighbors.obsp["distances"], "params": {"n_neighbors": 15}}
    del neighbors.obsp["distances"], neighbors.obsp["connectivities"]
    assert identical(stored(neighbors).matrix, expected)


def test_neighbors_key_and_obsp_name_the_graph(neighbors):
    sc.pp.neighbors(neighbors, n_neighbors=5, use_rep="X", key_added="five")
    assert (np.diff(stored(neighbors, neighbors_key="five").matrix.indptr) == 4).all()
    assert stored(neighbors, obsp="five_distances").mode == "distance"
    assert stored(neighbors, obsp="five_connectivities").mode == "connectivity"
    neighbors.obsp["spatial"] = neighbors.obsp["connectivities"]
    assert stored(neighbors, obsp="spatial").mode == "connectivity"
    neighbors.uns["spatial_neighbors"] = {"distances_key": "spatial"}
    assert stored(neighbors, obsp="spatial").mode == "distance"


@pytest.mark.parametrize(
    ("spoil", "arguments", "message"),
    [
        (lambda a: None, {"neighbors_key": "none"}, "neighbors_key='none' is not in adata.uns"),
        (lambda a: None, {"obsp": "none"}, "obsp='none' is not in adata.obsp, which has 'distances', 'connectivities'"),
        (lambda a: None, {"neighbors_key": "neighbors", "obsp": "distances"}, "both name a graph"),
        (lambda a: [a.obsp.pop(k) for k in list(a.obsp)], {}, "neither its distances nor its connectivities"),
        (lambda a: a.obsp["distances"].data.__setitem__(0, np.nan), {}, "NaN"),
        (lambda a: a.obsp["distances"].data.__setitem__(0, -1), {}, "negative"),
        (lambda a: a.obsp.update(distances=sp.csr_matrix((240, 240))), {}, "no edge"),
    ],
)
def test_a_graph_that_cannot_be_used_is_named(neighbors, spoil, arguments, message):
    spoil(neighbors)
    with pytest.raises(ValueError, match=message):
        stored(neighbors, **arguments)


def test_a_graph_from_before_filtering_is_refused(neighbors):
    D = neighbors.obsp["distances"]
    part = neighbors[:100].copy()
    del part.obsp["distances"], part.obsp["connectivities"]
    part.uns["neighbors"] = {"distances": D, "params": {}}
    with pytest.raises(ValueError, match=r"shape \(240, 240\), but adata has 100 cells.*before filtering"):
        prepared(part)


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
@pytest.mark.parametrize("n_neighbors", [9, 15])
def test_a_graph_of_few_cells_is_used(n_neighbors, metric):
    adata = ad.AnnData(np.random.default_rng(0).normal(size=(16, 40)).astype(np.float32))
    sc.pp.neighbors(adata, n_neighbors=n_neighbors, use_rep="X", metric=metric)
    assert prepared(adata, n_neighbors=n_neighbors)[0].matrix.nnz == 16 * (n_neighbors - 1)


def test_a_graph_thinned_out_by_filtering_gets_a_warning(neighbors):
    part = neighbors[::6].copy()
    with pytest.warns(UserWarning, match="built with 15 neighbors, and cells have a median of"):
        warn_about(stored(part), None, restricted=False)


def test_parameters_of_old_files_may_be_arrays(pbmc):
    assert isinstance(pbmc.uns["neighbors"]["params"]["n_neighbors"], np.ndarray)
    graph, representation = prepared(pbmc)
    assert graph.params["n_neighbors"] == 10
    assert representation.source == Source("X_pca")


# ---------------------------------------------------------------------------------------------- representation


def test_representation_follows_the_graph(pbmc):
    pbmc.obsm["X_other"] = pbmc.obsm["X_pca"][:, ::-1].copy()
    sc.pp.neighbors(pbmc, use_rep="X_other", n_pcs=20)
    _, representation = prepared(pbmc)
    assert representation.source == Source("X_other", 20)
    assert np.array_equal(representation.X, pbmc.obsm["X_other"][:, :20])


@pytest.mark.parametrize(
    ("use_rep", "source"),
    [
        ("X_pca", Source("X_pca")),
        (np.array(["X_pca"]), Source("X_pca")),
        (["obsm", "X_pca"], Source("X_pca")),
        ('["obsm", "X_pca"]', Source("X_pca")),
        ('["layers", null]', Source("X")),
        (["layers", "scaled"], Source("X", layer="scaled")),
        ("X", Source("X")),
    ],
)
def test_forms_in_which_use_rep_is_stored(pbmc, use_rep, source):
    params = params_of({"params": {"use_rep": use_rep, "n_neighbors": 10}})
    assert graph_source(pbmc, params) == source


def test_a_spatial_graph_does_not_claim_a_representation(pbmc):
    assert graph_source(pbmc, {"n_neighbors": 6, "coord_type": "grid", "radius": None}) is None
    assert graph_source(pbmc, {"n_neighbors": 10, "method": "umap"}) == Source("X_pca")


def test_a_representation_that_is_gone_is_named(pbmc):
    sc.pp.neighbors(pbmc, use_rep="X_pca")
    del pbmc.obsm["X_pca"]
    with pytest.raises(ValueError, match=r"built on adata.obsm\['X_pca'\], which is missing from adata"):
        prepared(pbmc)


def test_a_layer_that_is_gone_is_named(pbmc):
    pbmc.uns["neighbors"]["params"]["use_rep"] = ["layers", "gone"]
    with pytest.raises(ValueError, match=r"built on adata.layers\['gone'\], which is missing from adata"):
        prepared(pbmc)
    with pytest.raises(ValueError, match="layer='gone' is not in adata.layers, which has nothing"):
        matrix_at(pbmc, Source("X", layer="gone"))


def test_an_explicit_default_counts_as_a_request(pbmc):
    pbmc.uns["neighbors"]["params"]["metric"] = "cosine"
    for request in ({"n_neighbors": 16}, {"metric": "euclidean"}):
        params = prepared(pbmc, **request)[0].additions["uns"]["vcc_neighbors"]["params"]
        assert (params["n_neighbors"], params["metric"]) == (16, "euclidean")


def test_another_request_builds_another_graph_and_leaves_the_stored_one(pbmc, untouched):
    pbmc.obsm["X_other"] = pbmc.obsm["X_pca"][:, :10].copy()
    requests = ({"use_rep": "X_other"}, {"n_pcs": 7}, {"n_neighbors": 30}, {"metric": "cosine"})
    pbmc.uns["neighbors"]["params"]["metric"] = "euclidean"
    for request in requests:
        with untouched(pbmc):
            graph, representation = prepared(pbmc, **request)
        assert set(graph.additions["uns"]) == {"vcc_neighbors"}
        params = graph.additions["uns"]["vcc_neighbors"]["params"]
        assert params["n_neighbors"] == request.get("n_neighbors", 16)
        assert params["metric"] == request.get("metric", "euclidean")
        assert params["use_rep"] == request.get("use_rep", "X_pca")
        assert representation.X.shape[1] == {"X_other": 10}.get(request.get("use_rep"), request.get("n_pcs", 50))
    for attribute, values in graph.additions.items():
        getattr(pbmc, attribute).update(values)
    again, _ = prepared(pbmc, metric="cosine")  # found under its own key the second time
    assert not again.additions
    assert identical(again.matrix, graph.matrix)


def test_what_a_graph_does_not_record_is_not_taken_for_what_was_asked(pbmc):
    assert "metric" not in pbmc.uns["neighbors"]["params"]
    assert stored(pbmc, metric="euclidean") is not None  # scanpy's default
    assert stored(pbmc, metric="cosine") is None
    assert prepared(pbmc, metric="cosine")[0].params["metric"] == "cosine"
    with pytest.raises(ValueError, match="No graph can be built with n_neighbors=16, metric='nope'"):
        prepared(pbmc, metric="nope")
    del pbmc.uns["neighbors"]["params"]["n_neighbors"]
    assert stored(pbmc) is not None
    assert stored(pbmc, n_neighbors=30) is None


def test_only_the_default_graph_has_default_names(neighbors):
    neighbors.uns["own"] = {"params": {}}
    with pytest.raises(ValueError, match=r"adata.uns\['own'\] describes a graph, but adata.obsp has neither"):
        stored(neighbors, neighbors_key="own")


def test_a_request_that_fits_uses_the_stored_graph(pbmc):
    for request in ({"use_rep": "X_pca"}, {"n_pcs": 50}, {"n_neighbors": 10}, {"use_rep": "X_pca", "n_pcs": 50}):
        assert prepared(pbmc, **request)[0].name == "adata.obsp['distances']", request


def test_without_graph_and_pca_both_are_computed_as_scanpy_would(pbmc, untouched, caplog):
    caplog.set_level(logging.INFO, "scvcc")
    expected = pbmc.copy()
    del pbmc.obsm["X_pca"], pbmc.varm["PCs"], pbmc.uns["pca"], pbmc.uns["neighbors"]
    del pbmc.obsp["distances"], pbmc.obsp["connectivities"]
    sc.pp.pca(expected)
    sc.pp.neighbors(expected, n_neighbors=16, use_rep="X_pca")
    with untouched(pbmc):
        graph, representation = prepared(pbmc)
    assert np.array_equal(representation.additions["obsm"]["X_pca"], expected.obsm["X_pca"])
    assert np.array_equal(representation.additions["varm"]["PCs"], expected.varm["PCs"])
    assert (graph.additions["obsp"]["distances"] != expected.obsp["distances"]).nnz == 0
    assert (graph.additions["obsp"]["connectivities"] != expected.obsp["connectivities"]).nnz == 0
    assert graph.additions["uns"]["neighbors"]["params"] == expected.uns["neighbors"]["params"]
    assert "PCA of adata.X, kept in adata.obsm['X_pca']" in caplog.text
    assert "sc.pp.neighbors on adata.obsm['X_pca']" in caplog.text


def test_few_variables_are_used_as_they_are(blobs):
    graph, representation = prepared(blobs)
    assert representation.source == Source("X")
    assert graph.additions["uns"]["neighbors"]["params"]["use_rep"] == "X"
    assert prepared(blobs, n_pcs=5)[1].X.shape == (240, 5)
    assert prepared(blobs, n_pcs=0)[1].source == Source("X")


def test_layers(pbmc):
    pbmc.layers["half"] = pbmc.X / 2
    _, representation = prepared(pbmc, layer="half", use_rep="X")
    assert np.array_equal(representation.X, pbmc.layers["half"])
    _, representation = prepared(pbmc, layer="half", n_pcs=5)
    assert representation.source.name == "X_pca_half"
    assert representation.additions["uns"]["X_pca_half"]["params"]["layer"] == "half"
    pbmc.obsm.update(representation.additions["obsm"])
    again = prepared(pbmc, layer="half")[1]
    assert not again.additions and again.X.shape == (700, 5)
    del pbmc.obsm["X_pca"], pbmc.obsm["X_pca_half"]
    assert prepared(pbmc, layer="half", n_pcs=5)[1].source.name == "X_pca"


@pytest.mark.parametrize(
    "convert",
    [
        lambda X: X.astype(np.float16),
        lambda X: np.asfortranarray(X),
        lambda X: X.astype(np.float64),
        sp.csr_matrix,
        sp.csc_matrix,
        sp.csr_array,
        lambda X: pd.DataFrame(X, index=[f"cell{i}" for i in range(240)]),
    ],
)
def test_kinds_of_matrices(blobs, convert):
    blobs.obsm["rep"] = convert(blobs.X)
    X = prepared(blobs, use_rep="rep")[1].X
    assert X.dtype in (np.float32, np.float64)
    assert np.asarray(X.toarray() if sp.issparse(X) else X) == pytest.approx(blobs.X, abs=2e-2)
    assert sp.issparse(X) == sp.issparse(blobs.obsm["rep"])


def test_integers_booleans_and_read_only_arrays(blobs):
    blobs.obsm["int"] = np.rint(blobs.X).astype(np.int16)
    blobs.obsm["bool"] = blobs.X > 0
    blobs.obsm["fixed"] = blobs.X.copy()
    blobs.obsm["fixed"].flags.writeable = False
    assert prepared(blobs, use_rep="int")[1].X.dtype == np.float32
    assert prepared(blobs, use_rep="bool")[1].X.dtype == np.float32
    assert np.shares_memory(prepared(blobs, use_rep="fixed")[1].X, blobs.obsm["fixed"])


class Lazy:
    """Stands for an array type of another library."""

    shape, ndim, dtype = (240, 3), 2, np.dtype("float32")


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        (np.full((240, 3), np.nan), ValueError, r"adata.obsm\['rep'\] has 720 NaN or infinite values"),
        (np.full((240, 3), np.inf), ValueError, "720 NaN or infinite"),
        (np.zeros((240, 3), complex), TypeError, "has dtype complex128"),
        (np.full((240, 3), "a", dtype=object), TypeError, "has dtype object"),
    ],
)
def test_bad_representations_are_named(blobs, values, error, message):
    blobs.obsm["rep"] = values
    with pytest.raises(error, match=message):
        prepared(blobs, use_rep="rep")


def test_an_unknown_kind_of_array_is_named():
    with pytest.raises(TypeError, match="adata.X is a .*Lazy: convert it to a numpy array"):
        as_matrix(Lazy(), "adata.X")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"use_rep": "none"}, "use_rep='none' is neither 'X' nor a key of adata.obsm, which has nothing"),
        ({"layer": "none"}, "layer='none' is not in adata.layers"),
        ({"n_pcs": 5, "use_rep": "X"}, "does not apply to use_rep='X'"),
        ({"n_pcs": 20}, "n_pcs=20, but the data allow 19"),
        ({"n_neighbors": 240}, "n_neighbors=240 needs more than 240 cells"),
    ],
)
def test_bad_requests_are_named(blobs, untouched, arguments, message):
    with untouched(blobs), pytest.raises(ValueError, match=message):
        prepared(blobs, **arguments)


def test_more_columns_than_there_are(pbmc):
    with pytest.raises(ValueError, match=r"n_pcs=60, but adata.obsm\['X_pca'\] has 50 columns"):
        prepared(pbmc, n_pcs=60)


def test_no_columns_at_all(pbmc):
    with pytest.raises(ValueError, match="n_pcs=0 leaves no column of use_rep='X_pca'"):
        prepared(pbmc, use_rep="X_pca", n_pcs=0)


def test_layer_and_obsm_at_once(pbmc):
    pbmc.layers["a"] = pbmc.X
    with pytest.raises(ValueError, match="name two different matrices"):
        prepared(pbmc, layer="a", use_rep="X_pca")


@pytest.mark.parametrize("unit", [1e-200, 1e-30, 1e30, 1e200])
def test_numbers_out_of_range_are_named_before_a_graph_is_built(unit, monkeypatch):
    monkeypatch.setattr("scanpy.pp.neighbors", lambda *args, **kwargs: pytest.fail("searched"))
    X = np.random.default_rng(0).normal(size=(60, 5)) * unit
    with pytest.raises(ValueError, match="X has values (of )?up to .*scale X"):
        prepared(ad.AnnData(X), use_rep="X")


def refuse(*args, **kwargs):
    raise ArpackError(-9)


def test_a_pca_of_nothing_is_named(monkeypatch):
    monkeypatch.setattr("scanpy.pp.pca", refuse)  # older releases of scikit-learn go on with zeros
    with pytest.raises(ValueError, match="PCA of adata.X failed: most likely all cells have the same values"):
        prepared(ad.AnnData(np.ones((100, 60), np.float32)))


@pytest.mark.parametrize("missing", [np.nan, None])
def test_missing_values_in_highly_variable_are_named(pbmc, missing):
    bare = ad.AnnData(pbmc.X)
    bare.var["highly_variable"] = pd.Series([missing, *[True] * (bare.n_vars - 1)], index=bare.var_names, dtype=object)
    with pytest.raises(ValueError, match=r"var\['highly_variable'\] must be True or False, found dtype object and 1"):
        prepared(bare)
    bare.var["highly_variable"] = bare.var["highly_variable"].notna()
    assert prepared(bare)[1].X.shape == (700, 50)


def test_empty_matrices():
    with pytest.raises(ValueError, match=r"shape \(5, 0\)"):
        prepared(ad.AnnData(np.zeros((5, 0), np.float32)))
    with pytest.raises(ValueError, match="empty"):
        prepared(ad.AnnData(obs=pd.DataFrame(index=list("abc"))), use_rep="X")


@pytest.mark.parametrize("kind", [np.asarray, sp.csr_matrix])
def test_raw_counts_get_a_warning_that_names_the_preparation(kind):
    counts = np.random.default_rng(0).poisson(5, size=(60, 30)).astype(np.float32)
    with pytest.warns(UserWarning, match=r"raw counts .*normalize_total.*log1p.*pca.*scvcc.pp.lsa"):
        warn_if_counts(kind(counts), "adata.X")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_if_counts(kind(np.log1p(counts)), "adata.X")
        warn_if_counts(kind((counts > 3).astype(np.float32)), "adata.X")
        warn_if_counts(kind(counts - 3), "adata.X")


# ----------------------------------------------------------------------------------------------- the graph's state


def test_pieces_isolated_cells_and_duplicates_are_counted_in_one_warning(blobs):
    blobs.X[:60] += 1000  # a piece of its own
    blobs.X[7] = blobs.X[8]
    sc.pp.neighbors(blobs, n_neighbors=30, use_rep="X")
    D = blobs.obsp["distances"].tocoo()
    kept = (D.row != 3) & (D.col != 3)  # cell 3 loses its neighbors
    blobs.obsp["distances"] = sp.csr_matrix((D.data[kept], (D.row[kept], D.col[kept])), shape=D.shape)
    graph = stored(blobs)
    with pytest.warns(UserWarning, match="in 3 pieces, 1 of them single cells without a neighbor") as caught:
        warn_about(graph, 2, restricted=False)
    assert len(caught) == 1
    assert "n_clusters=2 is below the number of pieces" in str(caught[0].message)
    assert "2 cells have an exact duplicate" in str(caught[0].message)
    assert caught[0].filename == __file__


def test_duplicates_are_counted(blobs):
    blobs.X[5] = blobs.X[4]
    sc.pp.neighbors(blobs, use_rep="X")
    with pytest.warns(UserWarning, match="2 cells have an exact duplicate"):
        warn_about(stored(blobs), None, restricted=False)


def test_a_part_of_the_cells_is_not_told_to_raise_n_neighbors(blobs):
    blobs.X[:60] += 1000
    sc.pp.neighbors(blobs, use_rep="X")
    with pytest.warns(UserWarning, match="an AnnData of their own"):
        warn_about(stored(blobs), None, restricted=True)


def test_a_sound_graph_is_quiet(neighbors):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_about(stored(neighbors), 4, restricted=False)


@pytest.mark.slow
@pytest.mark.parametrize(("n", "metric"), [(8_300, "euclidean"), (4_200, "cosine")])
def test_graphs_are_built_where_scanpy_switches_to_approximate_search(n, metric):
    X = np.random.default_rng(0).normal(size=(n, 4)).astype(np.float32)
    representation = Representation(X, Source("X"))
    graph = built_graph(ad.AnnData(X), representation, Request("vcc", 0, n_neighbors=5, metric=metric))
    lengths = np.diff(graph.matrix.indptr)
    assert graph.matrix.shape == (n, n)
    assert np.median(lengths) in (4, 5)


def test_what_can_be_stored():
    value = {"a": None, "b": (1, 2), "c": {}, "d": {"e/f": np.float32(1.5)}, "g": [], "h": ["x", "y"], "i": len}
    result = storable(value)
    assert set(result) == {"b", "d", "g", "h", "i"}
    assert result["g"].shape == (0,)  # hidden=() is a setting
    assert isinstance(result["b"], np.ndarray) and result["b"].tolist() == [1, 2]
    assert result["d"] == {"e_f": 1.5}
    assert result["h"].tolist() == ["x", "y"]
    assert isinstance(result["i"], str)


def test_lists_of_several_kinds_are_stored_as_json(blobs, tmp_path):
    blobs.uns["a"] = storable({"use_rep": ["layers", None], "nested": ("y", ["1", "2"]), "mixed": ["x", 1]})
    blobs.write_h5ad(tmp_path / "a.h5ad")
    again = ad.read_h5ad(tmp_path / "a.h5ad").uns["a"]
    assert again == {"use_rep": '["layers", null]', "nested": '["y", ["1", "2"]]', "mixed": '["x", 1]'}
    assert graph_source(blobs, again) == Source("X")
