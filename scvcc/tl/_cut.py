"""`tl.cut`: the clusters of a run at another resolution."""

from __future__ import annotations

import numpy as np
from anndata import AnnData
from numpy.random import Generator, RandomState

from scvcc._anndata import results
from scvcc._anndata.batches import batches_of
from scvcc._anndata.inputs import find_again
from scvcc._anndata.matrices import check_adata
from scvcc._anndata.messages import info
from scvcc._anndata.representation import Source, matrix_at
from scvcc._anndata.tree import StoredTree, stored_tree
from scvcc._clusters.evidence import LEVEL, Points
from scvcc._clusters.evidence import merge_unsupported as merging
from scvcc._clusters.tree import split_support
from scvcc._model.checks import as_seed, check_integer, validated
from scvcc._model.rows import take_rows
from scvcc._training.graph import components, given_graph
from scvcc._training.run import stream


@validated()
def cut(
    adata: AnnData,
    n_clusters: int,
    *,
    key: str = "vcc",
    key_added: str | None = None,
    support: bool = False,
    merge_unsupported: bool = False,
    random_state: int | Generator | RandomState | None = 0,
    copy: bool = False,
) -> AnnData | None:
    """Coarser or finer clusters from the tree of a run, without training again.

    The clusters of :func:`~scvcc.tl.vcc` are one level of the tree. At coarser levels, the clusters that the graph links
    most are joined; at finer levels, each is split along its own part of the graph. Cells that share a cluster share one at
    all coarser levels. :func:`scvcc.pl.tree` draws the tree.

    Parameters
    ----------
    adata
        Annotated data with a result of :func:`~scvcc.tl.vcc`.
    n_clusters
        Number of clusters, from 1 to the number of leaves of the tree.
    key
        Name of the result.
    key_added
        Name of the column to write. None is `f"{key}_{n_clusters}"`, or `f"{key}_supported"` with `merge_unsupported`.
    support
        Test each split of the tree down to this level: is there a valley of density between its two sides? The p-values
        are as in :func:`~scvcc.tl.test_clusters`; a large one is no evidence against a split. If the run had a
        `batch_key`, cells are compared within batches.
    merge_unsupported
        Merge the clusters of this level until a valley of density separates all neighbors, as `merge_unsupported` of
        :class:`~scvcc.VCC` does; `n_clusters` is then an upper limit. A large one can find clusters that the run did not
        separate. Needs the representation and the graph of the run.
    random_state
        Seed or generator for the tests.
    copy
        Return a copy with the result instead of writing to `adata`.

    Returns
    -------
    None, or the copy if `copy=True`. Writes these fields:

    `adata.obs[key_added]`
        Clusters, named after those of the run: "3" is split into "3,0" and "3,1", and "0+4" is "0" and "4" joined. Where
        `merge_unsupported` joins parts of two clusters, as in "3,0+4", they are not nested in those of the run. Cells
        that the run left out with `restrict_to` keep their label. The next run under `key` removes the column.
    `adata.uns[key]["tree"]["p"]`
        Only with `support=True`: the p-value of each merge of the tree, NaN if it was not tested.

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

    Only clusters with support, 15 at most:

    >>> scvcc.tl.cut(adata, n_clusters=15, merge_unsupported=True)
    >>> adata.obs["vcc_supported"].nunique() < 15
    True
    """
    check_adata(adata, copy=copy)
    stored = stored_tree(adata, key)
    check_integer("n_clusters", n_clusters, (1, len(stored.tree.size)), "the leaves of the tree")
    usual = f"{key}_supported" if merge_unsupported else f"{key}_{n_clusters}"
    name = usual if key_added is None else key_added
    results.check_name(name)
    record = results.own_record(adata, key)
    if name in adata.obs and (f"obs/{name}" not in record["fields"] or name in (key, f"{key}_leaf")):
        raise ValueError(f"adata.obs[{name!r}] exists, and is not a cut of {key!r}: choose another key_added.")
    start = info(f"cutting the tree {key!r}")
    tree, seed = dict(record["tree"]), as_seed(random_state)
    group = _supported(adata, key, stored, n_clusters, seed) if merge_unsupported else None
    labels = stored.labels(n_clusters, adata.obs[key], group)
    if support:
        tree["p"] = _tested(adata, key, stored, n_clusters, seed)
        n_supported = int((tree["p"] < LEVEL).sum())
        info(f"    {n_supported} of {n_clusters - 1} splits are supported")
    target = adata.copy() if copy else adata
    results.add_fields(target, key, {"obs": {name: labels}}, tree=tree)
    found = n_clusters if group is None else len(np.unique(group))
    info(f"    finished: {found} clusters in adata.obs[{name!r}] ({{time_passed}})", time=start)
    return target if copy else None


def _tested(adata: AnnData, key: str, stored: StoredTree, n_clusters: int, seed: int) -> np.ndarray:
    """P-values of the splits that lead to `n_clusters`, on the representation of the run."""
    record, known = results.own_record(adata, key), stored.leaf >= 0
    chosen = record["representation"]
    n_pcs = None if chosen.get("n_pcs") is None else int(chosen["n_pcs"])
    X = matrix_at(adata, Source(chosen["use_rep"], n_pcs, chosen.get("layer")))[known]
    Z, batch = components(X, seed), _batches(adata, key, known)
    return split_support(stored.tree, n_clusters, Z, stored.leaf[known], stream(seed, "evidence"), batch)


def _supported(adata: AnnData, key: str, stored: StoredTree, n_clusters: int, seed: int) -> np.ndarray:
    """A number for each cluster of a cut, the same for those to be merged."""
    _, X, graph, cells = find_again(adata, results.stored_run(adata, key))
    part = X if graph.rows is None else take_rows(X, graph.rows)
    latent = given_graph(graph.matrix, len(cells), graph.mode)
    points = Points(components(part, seed), latent, _batches(adata, key, np.isin(np.arange(adata.n_obs), cells)))
    there, labels = np.unique(stored.tree.cut(n_clusters)[stored.leaf[cells]], return_inverse=True)
    parent = merging(points, labels, stream(seed, "evidence"))
    group = np.arange(n_clusters)
    group[there] = there[np.unique(parent, return_index=True)[1][parent]]
    return group


def _batches(adata: AnnData, key: str, cells: np.ndarray) -> np.ndarray | None:
    """The batch of each of the `cells` (bool), if the run had a `batch_key`."""
    columns = results.own_record(adata, key)["params"].get("batch_key")
    return None if columns is None else batches_of(adata, list(map(str, columns))).among(cells).codes
