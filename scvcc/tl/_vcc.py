"""`tl.vcc`: from an AnnData to clusters and a map."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Sequence
from typing import Any

import torch
from anndata import AnnData
from numpy.random import Generator, RandomState

from scvcc._anndata import results
from scvcc._anndata.batches import as_columns, batches_of, mention_forgotten_batches, mixing
from scvcc._anndata.graphs import warn_about
from scvcc._anndata.inputs import Part, chosen_part, estimator, find_inputs
from scvcc._anndata.matrices import check_adata
from scvcc._anndata.messages import hint, info
from scvcc._anndata.projection import describe, shrinkage
from scvcc._anndata.query import check_target
from scvcc._anndata.representation import Request
from scvcc._model.checks import as_seed, validated, warn
from scvcc._model.derived import expect_shrunk
from scvcc._model.parameters import checked_settings, opened_checkpoint, resolve_device
from scvcc._model.vcc import VCC


def _takes_settings(function: Callable[..., Any]) -> Callable[..., Any]:
    """Show the settings of `VCC` in place of **kwargs, where notebooks complete them."""
    own = inspect.signature(function)
    names = [p for p in own.parameters.values() if p.kind is not p.VAR_KEYWORD]
    known = {p.name for p in names}
    settings = [p for p in inspect.signature(VCC).parameters.values() if p.name not in known]
    kept = [p.replace(kind=p.KEYWORD_ONLY, default=True if p.name == "progress" else p.default) for p in settings]
    function.__signature__ = own.replace(parameters=[*names, *kept])  # type: ignore[attr-defined]
    return function


@_takes_settings
@validated(n_pcs=0)
def vcc(
    adata: AnnData,
    n_clusters: int | None = None,
    *,
    use_rep: str | None = None,
    n_pcs: int | None = None,
    layer: str | None = None,
    neighbors_key: str | None = None,
    obsp: str | None = None,
    n_neighbors: int | None = None,
    metric: str | None = None,
    batch_key: str | Sequence[str] | None = None,
    restrict_to: tuple[str, Sequence[str]] | None = None,
    key_added: str | None = None,
    device: str | torch.device = "auto",
    random_state: int | Generator | RandomState | None = 0,
    save_to: str | os.PathLike[str] | None = None,
    copy: bool = False,
    **kwargs: Any,
) -> AnnData | None:
    """Cluster cells and place them on a compact map with Very Compact Clusters (VCC).

    Uses the neighbor graph stored in `adata`, and trains the encoder on the representation that this graph was built on.
    If there is no graph, one is built with :func:`scanpy.pp.neighbors` and stored where scanpy keeps it.
    `sc.settings.verbosity = 2`, or level INFO of the logger "scvcc", shows which graph and which representation were
    used, how many clusters were found, and the time.

    Parameters
    ----------
    adata
        Annotated data: cells, or documents, in rows. Nothing is written before everything is computed.
    n_clusters
        Number of clusters. None estimates it; it is 1, with a warning, if no valley of density separates any two clusters.
    use_rep
        Representation for the encoder, and for the graph if one is built: "X" or a key of `adata.obsm`. None takes
        the one the graph was built on; without a graph `X_pca`, then `X_lsa`, then `X` if it has at most 50 variables,
        else a PCA is computed and kept in `X_pca`.
    n_pcs
        Use this many leading columns of the representation.
    layer
        Use this layer instead of `X`: for the PCA or, with `use_rep="X"`, as it is.
    neighbors_key
        Graph made by `sc.pp.neighbors(adata, key_added=neighbors_key)`. None takes the default one, "neighbors". If
        it has connectivities only, these are used.
    obsp
        Name of a matrix in `adata.obsp` to use as the graph: distances if `adata.uns` or its name ("dist") says so, weights
        otherwise.
    n_neighbors
        Size of the neighborhood if a graph is built, the cell itself included, as in :func:`scanpy.pp.neighbors`;
        None is 16. If the stored default graph contradicts what you set here or in `metric`, `use_rep`, `n_pcs` or
        `layer`, it is left alone, and a new one is kept under `{key_added}_neighbors`.
    metric
        Distance if a graph is built; None is "euclidean".
    batch_key
        Column of `adata.obs` that names the batch of each cell, such as its sample or donor; a list of columns is combined.
        A batch-corrected neighbor graph is then built and kept under `{key_added}_neighbors`; a stored graph is used only
        if `neighbors_key` or `obsp` names it. The encoder is trained on the representation as it is, so new cells of these
        batches need no correction. A `batch_strength` below 1 corrects less. See :doc:`/howto/batches`.
    restrict_to
        Cluster only the cells of some categories of an obs column, on their part of the graph:
        `("vcc", ["3"])` gives labels "3,0", "3,1", …
    key_added
        Name of the result. None is "vcc", and "vcc_R" with `restrict_to`. What scvcc did not write is never replaced or
        removed: an error says so before anything is computed.
    device
        "auto" takes a CUDA GPU if there is one and the CPU otherwise; or any torch device.
    random_state
        Seed or generator. The same seed on the same machine gives the same result. None draws a seed.
    save_to
        File for the fitted model (safetensors), with all that :func:`~scvcc.tl.map_query` needs to label other cells.
        `scvcc.VCC.load(save_to)` gives the estimator. It is written last: if that fails, the result is in `adata`
        when the error is raised; with `copy=True` the error becomes a warning, and the copy is returned.
    copy
        Return a copy with the result instead of writing to `adata`.
    **kwargs
        Further settings of :class:`~scvcc.VCC`, such as `hidden`, `latent_dim`, `keep_stages`, `checkpoint` or `progress`.

    Returns
    -------
    None, or the copy if `copy=True`. Writes these fields:

    `adata.obs[key_added]`
        Cluster of each cell: categories "0", "1", … by decreasing size.
    `adata.obs[key_added + "_confidence"]`
        Probability of that cluster.
    `adata.obs[key_added + "_leaf"]`
        Leaf of the tree of clusters, which :func:`~scvcc.tl.cut` reads: "3,1,0" lies in cluster "3".
    `adata.obs[key_added + "_trained"]`
        Only if the encoder was trained on a sketch: which cells are in it.
    `adata.obsm["X_" + key_added]`
        The map. With `keep_stages=True` also `X_{key_added}_start`, `_placed` and `_coordinates`.
    `adata.uns[key_added]`
        Parameters, history of training, graph and representation used, versions and device. With `batch_key` also
        `mixing`: the entropy of the batches in each cluster, relative to that in all cells. `support` says which
        neighboring clusters are separated by a valley of density (:func:`scvcc.tl.test_clusters` explains the test): a
        table of `pairs`, and for each of the `clusters` whether all its pairs are supported. At most 1,000 cells of each
        cluster are tested, and none if there are more than 50 clusters.
        `scvcc.tl.vcc(adata, **adata.uns["vcc"]["params"])` repeats the run. `tree` has the nested clusters: the `cluster` and
        `size` of each leaf, and the `merges` in order: each row holds the two nodes that join (named by their first leaf),
        and `link` the graph's weight between them.
    `adata.obsm["X_pca"]`, `adata.varm["PCs"]`, `adata.uns["pca"]`
        If a PCA had to be computed; under `X_pca_{layer}` if another PCA is there already.
    `adata.obsp["distances"]`, `adata.obsp["connectivities"]`, `adata.uns["neighbors"]`
        If a graph had to be built; under `{key_added}_neighbors` with `batch_key`, and `batches` there says what was done
        to each batch.

    With `restrict_to`, confidence and map of all other cells are NaN.

    Without a graph, and with more cells than `max_train_cells` (100,000 unless set), the encoder is trained on a sketch of
    that many cells and a graph of these alone, which is not kept. All cells are placed and labeled; the stages of cells
    outside the sketch are NaN. A stored graph is used with all its cells, unless you set `max_train_cells`. See
    :doc:`/howto/large_data`.

    Examples
    --------
    >>> import scanpy as sc
    >>> import scvcc
    >>> adata = sc.datasets.pbmc68k_reduced()
    >>> scvcc.tl.vcc(adata, n_clusters=8, hidden=(64,), progress=False)
    >>> adata.obs["vcc"].nunique()
    8
    >>> adata.obsm["X_vcc"].shape
    (700, 2)
    """
    check_adata(adata, copy=copy)
    part = chosen_part(adata, restrict_to)
    if key_added is None:
        key_added = "vcc" if restrict_to is None else "vcc_R"
    batches = {"batch_key": as_columns(batch_key), "batch_strength": kwargs.get("batch_strength", 1.0)}
    request = Request(
        key_added, as_seed(random_state), use_rep, n_pcs, layer, neighbors_key, obsp, n_neighbors, metric, **batches
    )
    settings = {"n_clusters": n_clusters, "device": device, **request.search, **kwargs, "random_state": request.seed}
    model = estimator({"progress": True, "n_pcs": None, **settings})
    _check_run(adata, model, request, part)
    if save_to is not None:
        check_target(adata, save_to)

    start = info("clustering with VCC")
    X, graph, representation = find_inputs(adata, model, request, part, sketch="max_train_cells" in kwargs)
    warn_about(graph, n_clusters, restricted=restrict_to is not None)
    batch = None if request.batch_key is None else batches_of(adata, request.batch_key).among(part.cells).codes
    model.fit(X, graph=graph.matrix, graph_mode=graph.mode, rows=graph.rows, batch=batch)

    mixed = None
    if batch is not None:
        mixed = mixing(model.labels_, batch)
    elif restrict_to is None:
        mention_forgotten_batches(adata, model.labels_)
    target = adata.copy() if copy else adata
    results.write_result(target, model, graph, representation, part, request, mixed)
    info(f"    finished: {model.n_clusters_} clusters in adata.obs[{key_added!r}] ({{time_passed}})", time=start)
    if model.support_ is not None and len(model.support_.weak):
        weak = f"{len(model.support_.weak)} of {model.n_clusters_} clusters lack support against a neighbor"
        info(f"    {weak}: adata.uns[{key_added!r}]['support']")
    hint(f"draw the map with scvcc.pl.vcc(adata, key={key_added!r})")
    if save_to is not None:  # last: a full disk does not cost the result
        categories = [f"{part.prefix}{k}" for k in range(model.n_clusters_)]
        extra = describe(target, representation, key=key_added, categories=categories)
        if (expected := shrinkage(target, extra)) is not None:
            expect_shrunk(model, X, expected, request.seed)
        _save(model, save_to, extra, returned=copy)
    return target if copy else None


def _check_run(adata: AnnData, model: VCC, request: Request, part: Part) -> None:
    """Refuse what cannot work before anything is computed."""
    key = request.key
    if key == part.column:
        raise ValueError(
            f"key_added={key!r} would overwrite the column that restrict_to reads, and the run could not be "
            "repeated: choose another name."
        )
    n_cells = int(part.cells.sum())
    if n_cells < 2:
        raise ValueError(f"There are {n_cells} cells to cluster: at least 2 are needed.")
    checked_settings(model, n_cells)
    resolve_device(model.device)
    opened_checkpoint(model)
    sketched = model.max_train_cells is not None and adata.n_obs > model.max_train_cells
    results.check_key(adata, key, "confidence", "leaf", *(["trained"] if sketched else []), layer=request.layer)


def _save(model: VCC, path: str | os.PathLike[str], extra: dict[str, Any] | None, *, returned: bool) -> None:
    """Write the model; where the result is yet to be returned, an error must not cost it."""
    try:
        model.save(path, extra=extra)
    except (OSError, ValueError) as error:
        if not returned:
            raise
        warn(f"The result is returned, but the model was not saved: save_to={str(path)!r} failed. {error}")
