"""`tl.cut`: the clusters of a run at another resolution."""

from __future__ import annotations

import numpy as np
from anndata import AnnData
from numpy.random import Generator, RandomState

from scvcc._anndata import results
from scvcc._anndata.batches import batches_of
from scvcc._anndata.matrices import check_adata
from scvcc._anndata.messages import info
from scvcc._anndata.representation import Source, matrix_at
from scvcc._anndata.tree import StoredTree, stored_tree
from scvcc._clusters.evidence import LEVEL
from scvcc._clusters.tree import split_support
from scvcc._model.checks import as_seed, check_integer, validated
from scvcc._training.graph import components
from scvcc._training.run import stream


@validated()
def cut(
    adata: AnnData,
    n_clusters: int,
    *,
    key: str = "vcc",
    key_added: str | None = None,
    support: bool = False,
    random_state: int | Generator | RandomState | None = 0,
    copy: bool = False,
) -> AnnData | None:
    """Coarser or finer clusters from the tree of a run, without training again.

    The tree passes through the clusters of :func:`~scvcc.tl.vcc`. Above them, clusters that the graph links most are
    joined; below, each is split along its own part of the graph. All levels are nested: cells that share a cluster share
    one at all coarser levels. :func:`scvcc.pl.tree` draws the tree.

    Parameters
    ----------
    adata
        Annotated data with a result of :func:`~scvcc.tl.vcc`.
    n_clusters
        Number of clusters, from 1 to the number of leaves of the tree.
    key
        Name of the result.
    key_added
        Name of the column to write. None is `f"{key}_{n_clusters}"`.
    support
        Test each split of the tree down to this level: is there a valley of density between its two sides? The p-values
        are as in :func:`~scvcc.tl.test_clusters`, and a large one is no evidence against a split. Within batches, if the
        run had a `batch_key`.
    random_state
        Seed or generator for the test.
    copy
        Return a copy with the result instead of writing to `adata`.

    Returns
    -------
    None, or the copy if `copy=True`. Writes these fields:

    `adata.obs[key_added]`
        Clusters, named after those of the run: "3" is split into "3,0" and "3,1", and "0+4" is "0" and "4" joined. Cells
        that the run left out with `restrict_to` keep their label. The next run under `key` removes the column.
    `adata.uns[key]["tree"]["p"]`
        Only with `support=True`: the p-value of each merge of the tree, NaN where it was not tested.

    Examples
    --------
    >>> import scanpy as sc
    >>> import scvcc
    >>> adata = sc.datasets.pbmc68k_reduced()
    >>> scvcc.tl.vcc(adata, n_clusters=6, hidden=(64,), progress=False)
    >>> scvcc.tl.cut(adata, n_clusters=9)
    >>> adata.obs["vcc_9"].nunique()
    9
    >>> int(adata.obs.groupby("vcc_9", observed=True)["vcc"].nunique().max())  # each lies in one of the six
    1
    """
    check_adata(adata, copy=copy)
    stored = stored_tree(adata, key)
    check_integer("n_clusters", n_clusters, (1, len(stored.tree.size)), "the leaves of the tree")
    name = f"{key}_{n_clusters}" if key_added is None else key_added
    results.check_name(name)
    record = results.own_record(adata, key)
    if name in adata.obs and (f"obs/{name}" not in record["fields"] or name in (key, f"{key}_leaf")):
        raise ValueError(f"adata.obs[{name!r}] exists, and is not a cut of {key!r}: choose another key_added.")
    start = info(f"cutting the tree {key!r}")
    labels = stored.labels(n_clusters, adata.obs[key])
    tree = dict(record["tree"])
    if support:
        tree["p"] = _tested(adata, key, stored, n_clusters, as_seed(random_state))
        n_supported = int((tree["p"] < LEVEL).sum())
        info(f"    {n_supported} of {n_clusters - 1} splits are supported")
    target = adata.copy() if copy else adata
    results.add_fields(target, key, {"obs": {name: labels}}, tree=tree)
    info(f"    finished: {n_clusters} clusters in adata.obs[{name!r}] ({{time_passed}})", time=start)
    return target if copy else None


def _tested(adata: AnnData, key: str, stored: StoredTree, n_clusters: int, seed: int) -> np.ndarray:
    """P-values of the splits that lead to so many clusters, on the representation of the run."""
    record, known = results.own_record(adata, key), stored.leaf >= 0
    chosen = record["representation"]
    n_pcs = None if chosen.get("n_pcs") is None else int(chosen["n_pcs"])
    X = matrix_at(adata, Source(chosen["use_rep"], n_pcs, chosen.get("layer")))[known]
    columns = record["params"].get("batch_key")
    batch = None if columns is None else batches_of(adata, list(map(str, columns))).among(known).codes
    Z = components(X, seed)
    return split_support(stored.tree, n_clusters, Z, stored.leaf[known], stream(seed, "evidence"), batch)
