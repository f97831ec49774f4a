"""`tl.suggest_n_clusters`: how many clusters."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from anndata import AnnData
from numpy.random import Generator, RandomState

from scvcc._anndata import results
from scvcc._anndata.batches import as_columns
from scvcc._anndata.inputs import chosen_part, estimator, find_inputs
from scvcc._anndata.matrices import check_adata
from scvcc._anndata.representation import Request, write_additions
from scvcc._clusters.evidence import Points
from scvcc._model.checks import as_seed, check_integer, validated, warn
from scvcc._model.parameters import checked_settings
from scvcc._model.rows import values
from scvcc._training.explore import suggest_counts
from scvcc._training.graph import components, given_graph


@validated(n_runs=0, n_pcs=0)
def suggest_n_clusters(
    adata: AnnData,
    *,
    k_range: tuple[int, int] = (2, 40),
    min_cluster_size: int = 10,
    n_runs: int = 0,
    use_rep: str | None = None,
    n_pcs: int | None = None,
    layer: str | None = None,
    neighbors_key: str | None = None,
    obsp: str | None = None,
    n_neighbors: int | None = None,
    metric: str | None = None,
    batch_key: str | Sequence[str] | None = None,
    key_added: str = "vcc",
    random_state: int | Generator | RandomState | None = 0,
    progress: bool = True,
) -> pd.DataFrame:
    """Score numbers of clusters, and suggest one.

    The cells are laid out once, as in the first stage of :func:`~scvcc.tl.vcc`, and grouped into about a hundred small
    clusters, which are then merged along the graph in several ways. For each number of clusters the best merge is scored by
    its modularity: the share of the graph's weight within clusters, less what chance would give. The suggestion is the
    number that `scvcc.tl.vcc(adata)` starts from with the same graph, seed and `min_cluster_size`. No encoder is
    trained: it takes about two seconds of a core for 10,000 cells. :func:`scvcc.pl.n_clusters` draws the table.

    Parameters
    ----------
    adata
        Annotated data. Nothing is written before everything is computed.
    k_range
        Lowest and highest number of clusters to score.
    min_cluster_size
        Never suggest a number that needs a cluster smaller than this.
    n_runs
        Repeat this many times on a random 80 % of the cells, to see which numbers give the same clusters again. Each
        repeat takes as long as a call with `n_runs=0`.
    use_rep
        Representation for the graph if one is built, as in :func:`~scvcc.tl.vcc`.
    n_pcs
        Leading columns of the representation to use.
    layer
        Layer to use instead of `X`.
    neighbors_key
        Graph made by `sc.pp.neighbors(adata, key_added=neighbors_key)`.
    obsp
        Name of a matrix in `adata.obsp` to use as the graph.
    n_neighbors
        Size of the neighborhood if a graph is built.
    metric
        Distance if a graph is built.
    batch_key
        Column of `adata.obs` that names the batch of each cell, or a list of columns: the graph is then the batch-corrected
        one that :func:`~scvcc.tl.vcc` builds.
    key_added
        Name of the result.
    random_state
        Seed or generator.
    progress
        Show a progress bar.

    Returns
    -------
    A table with a row for each number of clusters that was reached. A higher `score` is better:

    `n_clusters`
        The number.
    `score`
        Modularity at resolution 0.5.
    `cut`
        Share of the graph's weight between clusters.
    `smallest`
        Cells in the smallest cluster.
    `largest`
        Share of the graph's weight in the largest cluster.
    `eligible`
        Whether no cluster is too small and none holds nearly everything.
    `reproducibility`
        With `n_runs`: mean adjusted Rand index between the clusters of all cells and those of the random parts.
    `suggested`
        True in one row: the eligible number with the highest score. If none is eligible, it is the lowest number, with a
        warning. There is also a warning if no valley of density separates any of the clusters.

    Writes these fields:

    `adata.uns[key_added + "_n_clusters"]`
        The table, the suggested number and the parameters.
    `adata.obsm["X_pca"]`, `adata.obsp["distances"]`, …
        A PCA or a graph, if it had to be computed, as in :func:`~scvcc.tl.vcc`.

    Examples
    --------
    >>> import scanpy as sc
    >>> import scvcc
    >>> adata = sc.datasets.pbmc68k_reduced()
    >>> table = scvcc.tl.suggest_n_clusters(adata, k_range=(2, 12), progress=False)
    >>> int(table["suggested"].sum())
    1
    """
    check_adata(adata)
    results.check_key(adata, key_added)
    limits = _checked_range(k_range, adata.n_obs)
    name = f"{key_added}_n_clusters"
    if name in adata.uns and "suggested" not in adata.uns[name]:
        raise ValueError(f"key_added={key_added!r} would overwrite adata.uns[{name!r}], which scvcc did not write.")
    graph_of = (use_rep, n_pcs, layer, neighbors_key, obsp, n_neighbors, metric, as_columns(batch_key))
    request = Request(key_added, as_seed(random_state), *graph_of)
    model = estimator({"n_pcs": None, "min_cluster_size": min_cluster_size, **request.search})
    settings = checked_settings(model, adata.n_obs)
    X, graph, representation = find_inputs(adata, model, request, chosen_part(adata, None))
    latent = given_graph(graph.matrix, graph.matrix.shape[0], graph.mode)
    points = Points(components(values(X, graph.rows), request.seed), latent)
    columns, suggested, supported = suggest_counts(
        points, settings, request.seed, limits=limits, n_runs=n_runs, share=0.8, progress=progress
    )
    table = pd.DataFrame(columns)
    table["suggested"] = table["n_clusters"] == suggested
    if not table["eligible"].any():
        warn(
            f"No number of clusters in k_range={limits} is eligible with min_cluster_size={min_cluster_size}: {suggested} "
            "is just the lowest. Widen k_range, or lower min_cluster_size."
        )
    if not supported:
        warn(
            "There is no evidence for more than one cluster: no valley of density separates any two. scvcc.tl.vcc(adata) "
            "returns one cluster, unless n_clusters is set."
        )
    params = {"k_range": limits, "min_cluster_size": min_cluster_size, "n_runs": n_runs, "random_state": request.seed}
    record = {"suggested": suggested, "params": {**request.params, **params, "key_added": key_added}}

    record = {**results.storable(record), "table": table.copy()}
    write_additions(adata, representation, graph, fields={"uns": {name: record}})
    return table


def _checked_range(k_range: tuple[int, int], n_cells: int) -> tuple[int, int]:
    """Lowest and highest number of clusters, as whole numbers from 2 to half of the cells."""
    low, high = k_range
    check_integer("k_range[0]", low, 2)
    check_integer("k_range[1]", high, int(low))
    if low > n_cells // 2:
        raise ValueError(f"k_range starts at {low} clusters, too many for {n_cells} cells.")
    return int(low), int(high)
