import logging

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from sklearn.feature_extraction.text import TfidfVectorizer

import scvcc
from scvcc._anndata.projection import project_documents


@pytest.fixture
def documents():
    """60 documents of two topics, as counts of 40 terms."""
    rng = np.random.default_rng(0)
    topic = np.repeat([0, 1], 30)
    rate = np.full((2, 40), 0.1)
    rate[0, :20] = rate[1, 20:] = 1.0
    counts = rng.poisson(rate[topic]).astype(np.float32)
    counts[:, 0] += 1  # no empty document
    return ad.AnnData(sp.csr_matrix(counts), obs=pd.DataFrame({"topic": topic}, index=[f"d{i}" for i in range(60)]))


def tfidf_of(counts):
    """The formula of the docstring, dense."""
    n = len(counts)
    weighted = counts * (np.log((1 + n) / (1 + (counts > 0).sum(axis=0))) + 1)
    return weighted / np.linalg.norm(weighted, axis=1, keepdims=True)


def test_lsa_is_the_truncated_svd_of_tfidf(documents):
    scvcc.pp.lsa(documents, 5, normalize=False)
    T = tfidf_of(documents.X.toarray())
    _, singular, Vt = np.linalg.svd(T, full_matrices=False)
    assert documents.uns["lsa"]["singular_values"] == pytest.approx(singular[:5], rel=1e-4)
    assert documents.uns["lsa"]["share"] == pytest.approx(singular[:5] ** 2 / (T**2).sum(), rel=1e-3)
    V = documents.varm["LSA"]
    assert np.abs(np.sum(V[:, :2] * Vt[:2].T, axis=0)) == pytest.approx(np.ones(2), abs=1e-3)
    assert documents.obsm["X_lsa"] == pytest.approx(T @ V, abs=1e-5)
    assert documents.obsm["X_lsa"].dtype == np.float32


def test_rows_have_length_one_and_new_documents_project_alike(documents):
    scvcc.pp.lsa(documents, 5)
    Z = documents.obsm["X_lsa"]
    assert np.linalg.norm(Z, axis=1) == pytest.approx(np.ones(60), abs=1e-5)
    again = project_documents(documents.X[7:9], documents.var["idf"].to_numpy(), documents.varm["LSA"], normalize=True)
    assert again == pytest.approx(Z[7:9], abs=1e-6)


@pytest.mark.parametrize("kind", [np.asarray, sp.csr_matrix, sp.csc_matrix, sp.csr_array])
def test_sparse_equals_dense(documents, kind):
    expected = scvcc.pp.lsa(documents, 5, copy=True).obsm["X_lsa"]
    documents.X = kind(documents.X.toarray())
    scvcc.pp.lsa(documents, 5)
    assert documents.obsm["X_lsa"] == pytest.approx(expected, abs=1e-4)


def test_integer_counts_are_weighted_and_weights_are_left_alone(documents, caplog):
    caplog.set_level(logging.INFO, "scvcc")
    documents.layers["counts"] = documents.X.astype(np.int32)
    scvcc.pp.lsa(documents, 5, layer="counts")
    assert "idf" in documents.var
    assert "TF-IDF" in caplog.text
    weights = ad.AnnData(sp.csr_matrix(tfidf_of(documents.X.toarray())))
    scvcc.pp.lsa(weights, 5)
    assert "idf" not in weights.var
    assert weights.obsm["X_lsa"] == pytest.approx(documents.obsm["X_lsa"], abs=1e-4)
    scvcc.pp.lsa(weights, 5, tfidf=True, key_added="twice")
    assert {"twice", "twice_idf"} <= {*weights.obsm, *weights.var}
    assert "twice" in weights.uns and "twice" in weights.varm


def test_copy_leaves_the_original(documents, untouched):
    with untouched(documents):
        copy = scvcc.pp.lsa(documents, 5, copy=True)
    assert "X_lsa" in copy.obsm


def test_round_trip(documents, tmp_path):
    scvcc.pp.lsa(documents, 5)
    documents.write_h5ad(tmp_path / "a.h5ad")
    again = ad.read_h5ad(tmp_path / "a.h5ad")
    assert again.uns["lsa"]["params"] == documents.uns["lsa"]["params"]
    assert np.array_equal(again.varm["LSA"], documents.varm["LSA"])


def test_a_matrix_that_would_not_fit_when_dense():
    n, d, terms = 60_000, 400_000, 8  # 96 GB as float32
    columns = np.random.default_rng(0).integers(d, size=n * terms)
    X = sp.csr_matrix((np.ones(n * terms, np.float32), columns, np.arange(0, n * terms + 1, terms)), shape=(n, d))
    adata = ad.AnnData(X)
    scvcc.pp.lsa(adata, 2, tfidf=False, normalize=False)
    assert adata.obsm["X_lsa"].shape == (n, 2)


def test_documents_to_clusters(documents, quick):
    scvcc.pp.lsa(documents, 5)
    with pytest.warns(UserWarning, match="in 2 pieces"):
        scvcc.tl.vcc(documents, 2, **quick)
    assert documents.uns["vcc"]["representation"]["use_rep"] == "X_lsa"
    assert scvcc.metrics.ari(documents.obs["topic"], documents.obs["vcc"]) > 0.9


def test_vectorizer_weights_are_the_same(documents):
    """The path from texts: sklearn's vectorizer gives the weights that `lsa` would."""
    texts = [" ".join(f"w{j:02d} " * int(c) for j, c in enumerate(row)) for row in documents.X.toarray()]
    T = TfidfVectorizer().fit_transform(texts)
    assert T.toarray() == pytest.approx(tfidf_of(documents.X.toarray()), abs=1e-5)


def test_empty_documents_are_counted(documents):
    documents.X = sp.csr_matrix(documents.X.toarray() * (np.arange(60) != 3)[:, None])
    with pytest.warns(UserWarning, match="1 documents have no known term"):
        scvcc.pp.lsa(documents, 5)
    assert np.isfinite(documents.obsm["X_lsa"]).all()


def test_callers_random_state_is_left_alone(documents):
    np.random.seed(7)  # noqa: NPY002
    before = np.random.get_state()  # noqa: NPY002
    scvcc.pp.lsa(documents, 5, random_state=None)
    np.testing.assert_equal(np.random.get_state(), before)  # noqa: NPY002


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n_comps": 40}, "n_comps must be from 1 to 39"),
        ({"n_comps": 0}, "n_comps must be from 1 to 39 .*found 0"),
        ({"n_comps": 2.5}, "n_comps must be an integer, found 2.5"),
        ({"layer": "none"}, "layer='none' is not in"),
        ({"key_added": "a/b"}, "without '/'"),
    ],
)
def test_bad_arguments_are_named(documents, untouched, arguments, message):
    with untouched(documents), pytest.raises((TypeError, ValueError), match=message):
        scvcc.pp.lsa(documents, **{"n_comps": 5, **arguments})


def test_negative_values_cannot_be_weighted(documents, untouched):
    documents.X = -documents.X
    with untouched(documents), pytest.raises(ValueError, match="negative values"):
        scvcc.pp.lsa(documents, 5, tfidf=True)


def test_term_weights_of_others_are_left_alone(documents, untouched):
    documents.var["idf"] = 7.0
    with untouched(documents), pytest.raises(ValueError, match=r"overwrite adata.var\['idf'\].*another key_added"):
        scvcc.pp.lsa(documents, 5, tfidf=True)
    for _ in range(2):
        scvcc.pp.lsa(documents, 5, tfidf=False)
        assert (documents.var["idf"] == 7).all()


def test_term_weights_go_with_the_result_they_belong_to(documents):
    for _ in range(2):
        scvcc.pp.lsa(documents, 5, tfidf=True)
        assert "idf" in documents.var
    scvcc.pp.lsa(documents, 5, tfidf=False)
    assert "idf" not in documents.var


def test_missing_values_are_counted(documents):
    documents.X.data[:2] = np.nan
    with pytest.raises(ValueError, match="adata.X has 2 NaN"):
        scvcc.pp.lsa(documents, 5)


@pytest.mark.parametrize("kind", [sp.csr_matrix, sp.csc_matrix, sp.csr_array])
def test_stored_zeros_are_no_occurrences(documents, kind):
    expected = scvcc.pp.lsa(documents, 5, copy=True)
    X = kind(documents.X + np.ones(documents.shape, np.float32))
    X.data -= 1
    assert X.nnz == documents.n_obs * documents.n_vars
    documents.X = X
    scvcc.pp.lsa(documents, 5)
    assert documents.var["idf"].to_numpy() == pytest.approx(expected.var["idf"].to_numpy())
    assert documents.obsm["X_lsa"] == pytest.approx(expected.obsm["X_lsa"], abs=1e-4)
    assert documents.X.nnz == X.nnz  # left as it was


@pytest.mark.parametrize("kind", [np.asarray, sp.csr_matrix])
def test_nothing_but_zeros(kind):
    with pytest.raises(ValueError, match="adata.X has no value other than 0"):
        scvcc.pp.lsa(ad.AnnData(kind(np.zeros((20, 10), np.float32))), 5)


def test_other_objects():
    with pytest.raises(TypeError, match="adata must be an AnnData, found ndarray"):
        scvcc.pp.lsa(np.ones((20, 10)), 5)
