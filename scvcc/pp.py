"""Preprocessing: representations for data that scanpy's own functions do not cover."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse as sp
from sklearn.feature_extraction.text import TfidfTransformer
from sklearn.preprocessing import normalize as unit_rows
from sklearn.utils.extmath import randomized_svd

from scvcc._anndata import inputs as _anndata
from scvcc._model.vcc import _as_seed

if TYPE_CHECKING:
    from anndata import AnnData
    from numpy.random import Generator, RandomState

    from scvcc._training.graph import Matrix

__all__ = ["lsa"]

log = logging.getLogger("scvcc")


def lsa(
    adata: AnnData,
    n_comps: int = 100,
    *,
    layer: str | None = None,
    tfidf: bool | None = None,
    normalize: bool = True,
    random_state: int | Generator | RandomState | None = 0,
    key_added: str = "X_lsa",
    copy: bool = False,
) -> AnnData | None:
    r"""Represent documents by latent semantic analysis: a truncated SVD of their TF-IDF matrix.

    The matrix stays sparse and is not centered, so that a missing term stays zero. Use the result with
    `scvcc.tl.vcc(adata)`, which finds it, or with `use_rep="X_lsa"`.

    Parameters
    ----------
    adata
        Documents in rows, terms in columns: counts or TF-IDF weights.
    n_comps
        Number of components, below the number of documents and of terms.
    layer
        Take this layer instead of `X`.
    tfidf
        Whether to weight counts by TF-IDF first: counts times :math:`\ln\frac{1 + n}{1 + n_t} + 1` for a term in
        :math:`n_t` of :math:`n` documents, each document scaled to length 1. None does so if all values are whole
        numbers.
    normalize
        Scale each document to length 1 in the result, so that Euclidean distances order documents as cosines do.
    random_state
        Seed or generator of the randomized SVD.
    key_added
        Name of the result.
    copy
        Return a copy with the result instead of writing to `adata`.

    Returns
    -------
    None, or the copy if `copy=True`. Writes these fields:

    `adata.obsm["X_lsa" | key_added]`
        The representation.
    `adata.varm["LSA" | key_added]`
        Components. `T @ adata.varm["LSA"]`, with rows scaled to length 1 if `normalize`, projects the TF-IDF matrix
        `T` of new documents.
    `adata.var["idf" | key_added + "_idf"]`
        Weight of each term; only if TF-IDF was applied.
    `adata.uns["lsa" | key_added]`
        Parameters, singular values, and the share of the sum of squares that each component holds.

    Examples
    --------
    From a list of texts to clusters:

    >>> import anndata as ad
    >>> import pandas as pd
    >>> import scvcc
    >>> from sklearn.feature_extraction.text import CountVectorizer
    >>> pets = ["the cat sat with the dog", "a dog and a cat", "cat food and dog food", "the dog chased the cat"]
    >>> stars = ["a star and its planet", "the planet orbits a star", "star light", "light of a distant planet"]
    >>> terms = CountVectorizer()
    >>> counts = terms.fit_transform(5 * (pets + stars))
    >>> adata = ad.AnnData(counts.astype("float32"), var=pd.DataFrame(index=terms.get_feature_names_out()))
    >>> scvcc.pp.lsa(adata, n_comps=5)
    >>> adata.obsm["X_lsa"].shape
    (40, 5)
    """
    _check(adata, n_comps, layer, key_added, copy=copy)
    name = "adata.X" if layer is None else f"adata.layers[{layer!r}]"
    X = _anndata.finite(_anndata.variables(adata, layer), name)
    if not _anndata.stored_values(X).any():
        raise ValueError(f"{name} has no value other than 0: there is nothing to decompose.")
    tfidf = _are_counts(X) if tfidf is None else tfidf
    varm_key, idf_key, uns_key = _keys(key_added)
    stale = _own_weights(adata, idf_key, uns_key, needed=tfidf)
    idf = _idf(X) if tfidf else None
    weighted = _weighted(X, idf)
    seed = _as_seed(random_state)
    _, singular, Vt = randomized_svd(weighted, n_comps, n_iter=7, random_state=seed)
    components = np.ascontiguousarray(Vt.T, dtype=np.float32)
    Z = _project(X, idf, components, normalize=normalize)
    empty = int((np.linalg.norm(Z, axis=1) == 0).sum())
    if empty:
        _anndata.warn(
            f"{empty} documents have no known term and are all zeros in {key_added!r}: consider dropping them."
        )

    total = float(np.square(_anndata.stored_values(weighted), dtype=np.float64).sum())
    params = {"tfidf": tfidf, "normalize": normalize, "n_comps": n_comps, "layer": layer, "random_state": seed}
    info = {"params": params, "singular_values": singular, "share": singular**2 / total, "n_documents": adata.n_obs}
    target = adata.copy() if copy else adata
    target.obsm[key_added] = Z
    target.varm[varm_key] = components
    if idf is not None:
        target.var[idf_key] = idf
    elif stale:
        del target.var[idf_key]
    target.uns[uns_key] = _anndata.storable(info)
    log.info("representation computed: %d LSA components%s", n_comps, " of TF-IDF" if tfidf else "")
    return target if copy else None


def _keys(key_added: str) -> tuple[str, str, str]:
    """Where components, term weights and parameters go, in varm, var and uns; the way of `sc.pp.pca`."""
    return ("LSA", "idf", "lsa") if key_added == "X_lsa" else (key_added, f"{key_added}_idf", key_added)


def _project(X: Matrix, idf: np.ndarray | None, components: np.ndarray, *, normalize: bool) -> np.ndarray:
    """Project documents onto LSA components; `idf` is None where `X` is weighted already."""
    Z = np.asarray(_weighted(X, idf) @ components, dtype=np.float32)
    return unit_rows(Z) if normalize else Z


def _weighted(X: Matrix, idf: np.ndarray | None) -> Matrix:
    """Apply the weights of the terms and scale each document to length 1."""
    if idf is None:
        return X
    weighted = X @ sp.diags(idf) if sp.issparse(X) else X * idf
    return unit_rows(weighted, copy=False)


def _idf(X: Matrix) -> np.ndarray:
    if _anndata.stored_values(X).min(initial=0) < 0:
        raise ValueError(
            "tfidf=True needs counts, but the matrix has negative values: set tfidf=False, or give counts."
        )
    if sp.issparse(X) and not _anndata.stored_values(X).all():  # a stored zero is no occurrence
        X = sp.csr_matrix(X, copy=True)
        X.eliminate_zeros()
    return TfidfTransformer().fit(X).idf_.astype(np.float32)


def _are_counts(X: Matrix) -> bool:
    values = _anndata.stored_values(X)
    return bool((values >= 0).all() and (values == np.rint(values)).all())


def _check(adata: AnnData, n_comps: int, layer: str | None, key_added: str, *, copy: bool) -> None:
    _anndata.check_adata(adata, copy=copy)
    _anndata.check_name(key_added)
    _anndata.check_layer(adata, layer)
    limit = min(adata.shape) - 1
    if isinstance(n_comps, bool) or not isinstance(n_comps, (int, np.integer)) or not 1 <= n_comps <= limit:
        raise ValueError(
            f"n_comps={n_comps!r} must be from 1 to {limit}, one below the smaller of {adata.n_obs} documents and "
            f"{adata.n_vars} terms."
        )


def _own_weights(adata: AnnData, idf_key: str, uns_key: str, *, needed: bool) -> bool:
    """Whether the column of term weights is of an earlier call; where it is needed, refuse to overwrite another one."""
    own = idf_key in adata.var and bool(_anndata._params(adata.uns.get(uns_key)).get("tfidf"))
    if needed and idf_key in adata.var and not own:
        raise ValueError(
            f"key_added: TF-IDF would overwrite adata.var[{idf_key!r}], which is not known as a result of "
            "scvcc.pp.lsa. Choose another key_added, rename that column, or set tfidf=False."
        )
    return own
