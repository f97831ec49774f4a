"""Preprocessing: representations for data that scanpy's own functions do not cover."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import scipy.sparse as sp
from anndata import AnnData
from numpy.random import Generator, RandomState
from sklearn.feature_extraction.text import TfidfTransformer
from sklearn.utils.extmath import randomized_svd

from scvcc._anndata.matrices import check_adata, finite, has_negative, name_of, stored_values, variables
from scvcc._anndata.messages import info
from scvcc._anndata.projection import project_documents, weighted_terms
from scvcc._anndata.representation import (
    Request,
    keys_beside,
    params_of,
    read_representation,
    set_fields,
    uninterrupted,
    write_additions,
)
from scvcc._anndata.results import check_name, storable
from scvcc._model.checks import as_seed, check_integer, validated, warn
from scvcc._training.graph import Matrix

__all__ = ["lsa", "neighbors"]


def __dir__() -> list[str]:
    return __all__


@validated()
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

    The matrix stays sparse and is not centered, so a missing term stays zero. `scvcc.tl.vcc(adata)` finds the result if
    there is no `X_pca`; otherwise set `use_rep="X_lsa"`.

    Parameters
    ----------
    adata
        Documents in rows, terms in columns: counts or TF-IDF weights.
    n_comps
        Number of components, below the number of documents and of terms.
    layer
        Use this layer instead of `X`.
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
    check_adata(adata, copy=copy)
    check_name(key_added)
    name = name_of(layer)
    X = variables(adata, layer)
    why = f"one below the smaller of {adata.n_obs} documents and {adata.n_vars} terms"
    check_integer("n_comps", n_comps, (1, min(adata.shape) - 1), why)
    finite(X, name)
    if not stored_values(X).any():
        raise ValueError(f"{name} has no value other than 0: there is nothing to decompose.")
    tfidf = _are_counts(X) if tfidf is None else tfidf
    varm_key, uns_key, idf_key = keys_beside(key_added)
    stale = _own_weights(adata, idf_key, uns_key, needed=tfidf)
    idf = _idf(X) if tfidf else None
    weighted = weighted_terms(X, idf)
    seed = as_seed(random_state)
    _, singular, Vt = randomized_svd(weighted, n_comps, n_iter=7, random_state=seed)
    components = np.ascontiguousarray(Vt.T, dtype=np.float32)
    Z = project_documents(X, idf, components, normalize=normalize)
    empty = int((np.linalg.norm(Z, axis=1) == 0).sum())
    if empty:
        warn(f"{empty} documents have no known term and are all zeros in {key_added!r}: consider dropping them.")

    total = float(np.square(stored_values(weighted), dtype=np.float64).sum())
    params = {"tfidf": tfidf, "normalize": normalize, "n_comps": n_comps, "layer": layer, "random_state": seed}
    record = {"params": params, "singular_values": singular, "share": singular**2 / total, "n_documents": adata.n_obs}
    target = adata.copy() if copy else adata
    fields = {"obsm": {key_added: Z}, "varm": {varm_key: components}, "uns": {uns_key: storable(record)}}
    with uninterrupted():
        set_fields(target, {**fields, "var": {} if idf is None else {idf_key: idf}})
        if stale and idf is None:
            del target.var[idf_key]
    info(f"representation computed: {n_comps} LSA components{' of TF-IDF' if tfidf else ''}")
    return target if copy else None


@validated(n_neighbors=2, n_pcs=0, batch_strength=(0, 1))
def neighbors(
    adata: AnnData,
    batch_key: str | Sequence[str],
    *,
    n_neighbors: int = 16,
    use_rep: str | None = None,
    n_pcs: int | None = None,
    metric: str = "euclidean",
    batch_strength: float = 1.0,
    random_state: int | Generator | RandomState | None = 0,
    key_added: str | None = None,
    copy: bool = False,
) -> AnnData | None:
    """Build a batch-corrected neighbor graph, for `scvcc.tl.vcc`, `sc.tl.umap` and `sc.tl.leiden`.

    Technical differences between batches are removed before the neighbor search, as far as the data support it: batches
    that are already mixed, differ only in the shares of types, or have too little in common with the others are left as
    they are. The stored representation is not changed. `scvcc.tl.vcc(adata, batch_key=...)` builds the same graph.

    Parameters
    ----------
    adata
        Annotated data.
    batch_key
        Column of `adata.obs` that names the batch of each cell, such as its sample or donor; a list of columns is combined.
    n_neighbors
        Size of the neighborhood, the cell itself included.
    use_rep
        Representation: "X" or a key of `adata.obsm`. None takes the one that :func:`scvcc.tl.vcc` would.
    n_pcs
        Use this many leading columns of the representation.
    metric
        Distance.
    batch_strength
        Share of the differences between batches to remove, from 0 to 1.
    random_state
        Seed or generator.
    key_added
        Name of the graph. None is "neighbors", where scanpy's functions look for it.
    copy
        Return a copy with the result instead of writing to `adata`.

    Returns
    -------
    None, or the copy if `copy=True`. Writes these fields:

    `adata.obsp["distances" | key_added + "_distances"]`, `adata.obsp["connectivities" | key_added + "_connectivities"]`
        The graph, as :func:`scanpy.pp.neighbors` writes it.
    `adata.uns["neighbors" | key_added]`
        Its parameters, and `batches`: what was done to each batch.

    Examples
    --------
    >>> import scanpy as sc
    >>> import scvcc
    >>> adata = sc.datasets.pbmc68k_reduced()
    >>> adata.obs["sample"] = ["a", "b"] * 350
    >>> scvcc.pp.neighbors(adata, "sample")
    >>> adata.uns["neighbors"]["batches"]["outcome"].tolist()
    ['already mixed', 'already mixed']
    """
    from scvcc._anndata.batches import as_columns  # these need torch, which `import scvcc.pp` does not
    from scvcc._anndata.graphs import built_graph

    check_adata(adata, copy=copy)
    key = "neighbors" if key_added is None else key_added
    check_name(key)
    seed, columns = as_seed(random_state), as_columns(batch_key)
    if columns is None:
        raise ValueError("batch_key must name a column of adata.obs: without batches use sc.pp.neighbors.")
    request = Request(key, seed, use_rep, n_pcs, None, None, None, n_neighbors, metric, columns, batch_strength)
    representation = read_representation(adata, request)
    graph = built_graph(adata, representation, request, key)
    target = adata.copy() if copy else adata
    write_additions(target, representation, graph)
    return target if copy else None


def _idf(X: Matrix) -> np.ndarray:
    if has_negative(X):
        raise ValueError(
            "tfidf=True needs counts, but the matrix has negative values: set tfidf=False, or give counts."
        )
    if sp.issparse(X) and not stored_values(X).all():  # a stored zero is no occurrence
        X = sp.csr_matrix(X, copy=True)
        X.eliminate_zeros()
    return TfidfTransformer().fit(X).idf_.astype(np.float32)


def _are_counts(X: Matrix) -> bool:
    values = stored_values(X)
    return bool((values >= 0).all() and (values == np.rint(values)).all())


def _own_weights(adata: AnnData, idf_key: str, uns_key: str, *, needed: bool) -> bool:
    """Whether the column of term weights is of an earlier call; where it is needed, refuse to overwrite another one."""
    own = idf_key in adata.var and bool(params_of(adata.uns.get(uns_key)).get("tfidf"))
    if needed and idf_key in adata.var and not own:
        raise ValueError(
            f"key_added: TF-IDF would overwrite adata.var[{idf_key!r}], which is not known to be a result of "
            "scvcc.pp.lsa. Choose another key_added, rename that column, or set tfidf=False."
        )
    return own
