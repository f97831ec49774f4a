"""`tl.test_clusters`: are they real."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from anndata import AnnData
from numpy.random import Generator, RandomState

from scvcc._anndata import results
from scvcc._anndata.batches import as_columns, batches_of
from scvcc._anndata.evidence import merged_names, support_tables
from scvcc._anndata.inputs import Part, estimator, find_inputs
from scvcc._anndata.matrices import check_adata
from scvcc._anndata.messages import info, listed
from scvcc._anndata.representation import Request, write_additions
from scvcc._clusters.evidence import Points, merge_unsupported, support_between
from scvcc._model.checks import as_seed, validated
from scvcc._training.graph import components, given_graph
from scvcc._training.run import stream


@validated(n_pcs=0)
def test_clusters(
    adata: AnnData,
    key: str = "leiden",
    *,
    use_rep: str | None = None,
    n_pcs: int | None = None,
    neighbors_key: str | None = None,
    batch_key: str | Sequence[str] | None = None,
    key_added: str | None = None,
    random_state: int | Generator | RandomState | None = 0,
    copy: bool = False,
) -> AnnData | None:
    """Test whether clusters, by any method, are real: is there a valley of density between neighbors?

    For each pair of clusters that the neighbor graph links, the null hypothesis is that both are parts of one hump. The
    direction that separates them, their peaks and the valley are found on four fifths of the cells and tested on the
    rest, so no shape is assumed and clusters found in the same cells have no advantage. Then clusters are merged until all
    neighbors are supported.

    A small p-value is evidence for two groups. A large one is absence of evidence, not evidence for one group: the test
    misses two groups of equal size whose means are less than about 3.5 standard deviations apart, a small group closer
    than five to a large one, and groups of fewer than about ten cells. A single group along a strongly bent curve, such
    as a semicircle or more, looks like two. If a group was cut into many pieces, some pairs of pieces can have small
    p-values, since their shapes make a valley; the suggested merges allow for this and join them.

    Parameters
    ----------
    adata
        Annotated data with clusters and, usually, a neighbor graph. Nothing is written before everything is computed.
    key
        Column of `adata.obs` with the clusters, by any method. Cells without a cluster are left out.
    use_rep
        Representation to look for valleys in: "X" or a key of `adata.obsm`. None takes the one the graph was built on.
    n_pcs
        Use this many leading columns of the representation.
    neighbors_key
        Graph made by `sc.pp.neighbors(adata, key_added=neighbors_key)`. None takes the default one, "neighbors".
    batch_key
        Column of `adata.obs` that names the batch of each cell; a list of columns is combined. Clusters are then compared
        within batches only, so a batch is no evidence: two clusters without a common batch are not supported.
    key_added
        Column of `adata.obs` to write the merged clusters to. None writes none.
    random_state
        Seed or generator.
    copy
        Return a copy with the result instead of writing to `adata`.

    Returns
    -------
    None, or the copy if `copy=True`. Writes these fields:

    `adata.uns[key + "_support"]`
        `pairs`: for each pair of neighboring clusters `a` and `b` the share of the smaller one's graph weight that leads
        to the other (`link`), the p-value (`p`), and whether it is below 0.05 (`supported`). `clusters`: for each cluster
        the number of cells (`n_cells`), whether all its pairs are supported, and the cluster that it belongs to after the
        suggested merges (`merged`): "2+7" for "2" and "7". `params`.
    `adata.obs[key_added]`
        Only with `key_added`: the merged clusters.

    Examples
    --------
    >>> import scanpy as sc
    >>> import scvcc
    >>> adata = sc.datasets.pbmc68k_reduced()
    >>> scvcc.tl.test_clusters(adata, key="louvain", key_added="supported")
    >>> adata.uns["louvain_support"]["pairs"].columns.tolist()
    ['a', 'b', 'link', 'p', 'supported']
    >>> adata.obs["supported"].nunique() < adata.obs["louvain"].nunique()
    True
    """
    check_adata(adata, copy=copy)
    name, seed, columns = f"{key}_support", as_seed(random_state), as_columns(batch_key)
    _check_target(adata, name, key_added)
    known, labels, names = _read_clusters(adata, key)
    batches = None if columns is None else batches_of(adata, columns).among(known)
    request = Request(name, seed, use_rep, n_pcs, neighbors_key=neighbors_key)
    if use_rep is None and n_pcs is None and neighbors_key is None and "history" in results.own_record(adata, key):
        request = results.stored_run(adata, key).request
    start = info("testing clusters")
    part = Part(known, None if known.all() else key)
    X, graph, representation = find_inputs(adata, estimator({"n_pcs": None, "max_train_cells": None}), request, part)
    latent = given_graph(graph.matrix, X.shape[0], graph.mode)
    points = Points(components(X, seed), latent, None if batches is None else batches.codes)
    rng = stream(seed, "evidence")
    support, parent = support_between(points, labels, rng), merge_unsupported(points, labels, rng)

    merged = merged_names(names, parent)
    tables = support_tables(support, names, labels)
    tables["clusters"]["merged"] = merged
    params = {"key": key, "batch_key": columns, "random_state": seed, **representation.source.params}
    obs = {}
    if key_added is not None:
        column = np.full(adata.n_obs, None)
        column[known] = np.array(merged, dtype=object)[labels]
        obs[key_added] = pd.Categorical(column, categories=list(dict.fromkeys(merged)))
    record = results.storable({**tables, "params": params, "fields": [f"uns/{name}", *(f"obs/{k}" for k in obs)]})
    target = adata.copy() if copy else adata
    write_additions(target, representation, graph, fields={"obs": obs, "uns": {name: record}})
    done = f"{len(support.weak)} of {len(names)} clusters lack support against a neighbor, {parent.max() + 1} after merging"
    info(f"    finished: {done}, adata.uns[{name!r}] ({{time_passed}})", time=start)
    return target if copy else None


def _check_target(adata: AnnData, name: str, key_added: str | None) -> None:
    """Refuse to replace what scvcc did not write."""
    if key_added is not None:
        results.check_name(key_added)
    results.refuse_strangers(adata, name, [f"uns/{name}", *([] if key_added is None else [f"obs/{key_added}"])])


def _read_clusters(adata: AnnData, key: str) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Which cells have a cluster, the number of it for each of these, and the names of the clusters."""
    if key not in adata.obs:
        raise ValueError(f"key={key!r} is not a column of adata.obs, which has {listed(adata.obs)}.")
    known = adata.obs[key].notna().to_numpy(copy=True)
    clusters = adata.obs[key][known].astype("category").cat.remove_unused_categories()
    names = list(map(str, clusters.cat.categories))
    if not 2 <= len(names) <= len(clusters) / 2:
        raise ValueError(
            f"adata.obs[{key!r}] has {len(names)} clusters of {len(clusters)} cells: at least 2 clusters are needed, and "
            "at most half as many as there are cells."
        )
    return known, clusters.cat.codes.to_numpy(np.intp), names
