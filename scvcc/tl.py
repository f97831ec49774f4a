"""Tools: functions that compute something and write it into an AnnData."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

import numpy as np
import pandas as pd
from anndata import AnnData
from numpy.random import Generator, RandomState

from scvcc._anndata import results
from scvcc._anndata.batches import as_columns, batches_of, mention_forgotten_batches, mixing
from scvcc._anndata.graphs import warn_about
from scvcc._anndata.inputs import Part, chosen_part, find_inputs
from scvcc._anndata.matrices import check_adata
from scvcc._anndata.messages import hint, info
from scvcc._anndata.projection import describe
from scvcc._anndata.query import check_target, place_query, read_reference, write_query
from scvcc._anndata.representation import Request, write_additions
from scvcc._model.checks import as_seed, check_integer, check_share, warn
from scvcc._model.parameters import checked_settings, resolve_device
from scvcc._model.vcc import VCC
from scvcc._training.explore import recurrence, suggest_counts
from scvcc._training.graph import given_graph

__all__ = ["map_query", "stability", "suggest_n_clusters", "vcc"]


def __dir__() -> list[str]:
    return __all__


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
    device: str = "auto",
    random_state: int | Generator | RandomState | None = 0,
    save_to: str | os.PathLike[str] | None = None,
    copy: bool = False,
    **kwargs: Any,
) -> AnnData | None:
    """Cluster cells and place them on a compact map with Very Compact Clusters (VCC).

    The neighbor graph stored in `adata` is used, and the encoder is trained on the representation that this graph was
    built on. Where there is no graph, one is built with :func:`scanpy.pp.neighbors` and left where scanpy keeps it.
    `sc.settings.verbosity = 2`, or level INFO of the logger "scvcc", shows which graph and which representation were
    used, how many clusters were found, and the time.

    Parameters
    ----------
    adata
        Annotated data: cells, or documents, in rows. Written to only after all is computed.
    n_clusters
        Number of clusters. None estimates it.
    use_rep
        Representation for the encoder, and for the graph where one is built: "X" or a key of `adata.obsm`. None takes
        the one the graph was built on; without a graph `X_pca`, then `X_lsa`, then `X` if it has at most 50 variables,
        else a PCA is computed and kept in `X_pca`.
    n_pcs
        Use this many leading columns of the representation.
    layer
        Take this layer instead of `X`, for the PCA or, with `use_rep="X"`, as it is.
    neighbors_key
        Graph made by `sc.pp.neighbors(adata, key_added=neighbors_key)`. None takes the default one, "neighbors". A
        graph with connectivities only is used through these.
    obsp
        Name of a matrix in `adata.obsp` to use as graph: distances if `adata.uns` or its name ("dist") says so, weights
        otherwise.
    n_neighbors
        Size of the neighborhood where a graph is built, the cell itself included, as in :func:`scanpy.pp.neighbors`;
        None is 15. Where the stored default graph contradicts this or another of `metric`, `use_rep`, `n_pcs` and
        `layer` that is set, it is left alone, and a new one is kept under `{key_added}_neighbors`.
    metric
        Distance where a graph is built; None is "euclidean".
    batch_key
        Column of `adata.obs` that names the batch of each cell, such as its sample or donor; a list of columns is combined.
        A neighbor graph that knows batches is then built and kept under `{key_added}_neighbors`; a stored graph is used
        only if `neighbors_key` or `obsp` names it. The encoder is trained on the representation as it is, so that new
        cells of these batches need no correction. `batch_strength`, from 0 to 1, takes away less. See
        :doc:`/howto/batches`.
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
        Further settings of :class:`~scvcc.VCC`, such as `hidden`, `latent_dim`, `keep_stages` or `progress`.

    Returns
    -------
    None, or the copy if `copy=True`. Writes these fields:

    `adata.obs[key_added]`
        Cluster of each cell: categories "0", "1", … by decreasing size.
    `adata.obs[key_added + "_confidence"]`
        Probability of that cluster.
    `adata.obs[key_added + "_trained"]`
        Only if the encoder was trained on a sketch: which cells are in it.
    `adata.obsm["X_" + key_added]`
        The map. With `keep_stages=True` also `X_{key_added}_start`, `_placed` and `_coordinates`.
    `adata.uns[key_added]`
        Parameters, history of training, graph and representation used, versions and device. With `batch_key` also
        `mixing`: the entropy of the batches in each cluster, relative to that in all cells.
        `scvcc.tl.vcc(adata, **adata.uns["vcc"]["params"])` repeats the run.
    `adata.obsm["X_pca"]`, `adata.varm["PCs"]`, `adata.uns["pca"]`
        If a PCA had to be computed; under `X_pca_{layer}` if another PCA is there already.
    `adata.obsp["distances"]`, `adata.obsp["connectivities"]`, `adata.uns["neighbors"]`
        If a graph had to be built; under `{key_added}_neighbors` with `batch_key`, and `batches` there says what was done
        to each batch.

    With `restrict_to`, confidence and map of all other cells are NaN.

    Where there is no graph and more cells than `max_train_cells`, a setting of :class:`~scvcc.VCC` (100,000 unless set),
    the encoder is trained on a sketch of that many cells and a graph of these alone, which is not kept. All cells are
    placed and labeled; the stages of cells outside the sketch are NaN. A stored graph is used
    with all its cells, unless you set `max_train_cells`. See :doc:`/howto/large_data`.

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
    model = _model({"progress": True, "n_pcs": None, **settings})
    _check_run(adata, model, request, part)
    if save_to is not None:
        check_target(adata, save_to)

    start = info("clustering with VCC")
    X, graph, representation = find_inputs(adata, model, request, part, sketch="max_train_cells" in kwargs)
    warn_about(graph, n_clusters, restricted=restrict_to is not None)
    model.fit(X, graph=graph.matrix, graph_mode=graph.mode, rows=graph.rows)

    mixed = None
    if request.batch_key is not None:
        mixed = mixing(model.labels_, batches_of(adata, request.batch_key).among(part.cells).codes)
    elif restrict_to is None:
        mention_forgotten_batches(adata, model.labels_)
    target = adata.copy() if copy else adata
    results.write_result(target, model, graph, representation, part, request, mixed)
    info(f"    finished: {model.n_clusters_} clusters in adata.obs[{key_added!r}] ({{time_passed}})", time=start)
    hint(f"    draw the map with scvcc.pl.vcc(adata, key={key_added!r})")
    if save_to is not None:  # last: a full disk does not cost the result
        categories = [f"{part.prefix}{k}" for k in range(model.n_clusters_)]
        extra = describe(target, representation, key=key_added, categories=categories)
        _save(model, save_to, extra, returned=copy)
    return target if copy else None


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
        Annotated data. Written to only after all is computed.
    k_range
        Lowest and highest number of clusters to score.
    min_cluster_size
        Never suggest a number that needs a cluster smaller than this.
    n_runs
        Repeat this many times on a random 80 % of the cells, to see which numbers give the same clusters again. Each
        repeat takes as long as a call without.
    use_rep
        Representation for the graph where one is built, as in :func:`~scvcc.tl.vcc`.
    n_pcs
        Leading columns of the representation to use.
    layer
        Layer to use instead of `X`.
    neighbors_key
        Graph made by `sc.pp.neighbors(adata, key_added=neighbors_key)`.
    obsp
        Name of a matrix in `adata.obsp` to use as graph.
    n_neighbors
        Size of the neighborhood where a graph is built.
    metric
        Distance where a graph is built.
    key_added
        Name of the result.
    random_state
        Seed or generator.
    progress
        Show a progress bar.

    Returns
    -------
    A table with a row for each number of clusters that was reached, the better the higher its `score`:

    `n_clusters`
        The number.
    `score`
        Modularity at resolution 0.5.
    `cut`
        Share of the graph's weight between clusters.
    `smallest`
        Cells in the smallest cluster.
    `largest`
        Share of the graph's weight at the largest cluster.
    `eligible`
        Whether no cluster is too small and none holds nearly everything.
    `reproducibility`
        With `n_runs`: mean adjusted Rand index between the clusters of all cells and those of the random parts.
    `suggested`
        True in one row: the eligible number with the highest score. If none is eligible, it is the lowest number, and
        a warning says so.

    Writes these fields:

    `adata.uns[key_added + "_n_clusters"]`
        The table, the suggested number and the parameters.
    `adata.obsm["X_pca"]`, `adata.obsp["distances"]`, …
        A PCA or a graph, if it had to be computed, as :func:`~scvcc.tl.vcc` does.

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
    check_integer("n_runs", n_runs, low=0)
    name = f"{key_added}_n_clusters"
    if name in adata.uns and "suggested" not in adata.uns[name]:
        raise ValueError(f"key_added={key_added!r} would overwrite adata.uns[{name!r}], which scvcc did not write.")
    request = Request(key_added, as_seed(random_state), use_rep, n_pcs, layer, neighbors_key, obsp, n_neighbors, metric)
    model = _model({"n_pcs": None, "min_cluster_size": min_cluster_size, **request.search})
    settings = checked_settings(model, adata.n_obs)
    _, graph, representation = find_inputs(adata, model, request, chosen_part(adata, None))
    latent = given_graph(graph.matrix, graph.matrix.shape[0], graph.mode)
    columns, suggested = suggest_counts(
        latent, settings, request.seed, limits=limits, n_runs=n_runs, share=0.8, progress=progress
    )
    table = pd.DataFrame(columns)
    table["suggested"] = table["n_clusters"] == suggested
    if not table["eligible"].any():
        warn(
            f"No number of clusters in k_range={limits} is eligible, by min_cluster_size={min_cluster_size}: {suggested} "
            "is only the lowest of them. Widen k_range, or lower min_cluster_size."
        )
    params = {"k_range": limits, "min_cluster_size": min_cluster_size, "n_runs": n_runs, "random_state": request.seed}
    record = {"suggested": suggested, "params": {**request.params, **params, "key_added": key_added}}

    write_additions(adata, representation, graph)
    adata.uns[name] = {**results.storable(record), "table": table.copy()}
    return table


def stability(
    adata: AnnData,
    n_runs: int = 10,
    *,
    key: str = "vcc",
    share: float = 0.8,
    random_state: int | Generator | RandomState | None = 0,
    progress: bool = True,
    copy: bool = False,
) -> AnnData | None:
    """Measure how well each cluster is found again when random parts of the cells are clustered anew.

    Each run takes a part of the cells and the graph between them, lays them out and divides them into the same number
    of clusters; no encoder is trained. Clusters are compared by the Jaccard index: cells in both over cells in either. As a
    rule of thumb, a cluster above 0.75 is stable, and one below 0.5 dissolves :cite:p:`stability`.
    :func:`scvcc.pl.stability` draws the result.

    Parameters
    ----------
    adata
        Annotated data with a result of :func:`~scvcc.tl.vcc`. Written to only after all is computed.
    n_runs
        Number of runs. Each takes one to two seconds of a core for 10,000 cells.
    key
        Name of the result: `key_added` of :func:`~scvcc.tl.vcc`. Renamed or merged clusters are taken as they are.
    share
        Share of the cells in each run.
    random_state
        Seed or generator.
    progress
        Show a progress bar.
    copy
        Return a copy with the result instead of writing to `adata`.

    Returns
    -------
    None, or the copy if `copy=True`. Writes these fields:

    `adata.obs[key + "_stability"]`
        Jaccard index of the cell's cluster with the cluster that the cell falls into: mean over the runs it is in.
    `adata.uns[key + "_stability"]`
        `clusters`: a table with the number of cells (`n_cells`; of the sketch, where there is one), the mean over runs of the Jaccard index with the best
        match (`stability`), and the lowest of them (`worst`). `runs`: that index by run and cluster. `params`.

    Examples
    --------
    >>> import scanpy as sc
    >>> import scvcc
    >>> adata = sc.datasets.pbmc68k_reduced()
    >>> scvcc.tl.vcc(adata, n_clusters=6, hidden=(64,), progress=False)
    >>> scvcc.tl.stability(adata, n_runs=3, progress=False)
    >>> adata.uns["vcc_stability"]["clusters"].shape
    (6, 3)
    """
    check_adata(adata, copy=copy)
    check_integer("n_runs", n_runs, low=1)
    check_share("share", share)
    run = results.stored_run(adata, key)
    name = f"{key}_stability"
    results.refuse_strangers(adata, key, [f"obs/{name}", f"uns/{name}"])
    seed = as_seed(random_state)
    model = _model({name: value for name, value in run.params.items() if name in inspect.signature(VCC).parameters})
    part = Part(run.cells, None if run.cells.all() else key)
    X, graph, _ = find_inputs(adata, model, run.request, part, sketch=run.params.get("max_train_cells") is not None)
    cells = np.flatnonzero(run.cells)
    members = cells if graph.rows is None else cells[graph.rows]
    labels, categories = run.labels(members)
    kept = round(share * len(members))
    if kept < len(categories) or kept == len(members):
        raise ValueError(
            f"share={share} leaves {kept} of {len(members)} cells for {len(categories)} clusters: choose another share, "
            "or merge clusters first."
        )
    settings = replace(checked_settings(model, X.shape[0]), objective="compact")
    latent = given_graph(graph.matrix, len(members), graph.mode)
    runs, recurring = recurrence(latent, labels, settings, seed, n_runs=n_runs, share=float(share), progress=progress)
    known = np.ma.masked_invalid(runs)  # a cluster of few cells may be in no run
    mean, worst = known.mean(axis=0).filled(np.nan), known.min(axis=0).filled(np.nan)
    clusters = pd.DataFrame(
        {"n_cells": np.bincount(labels), "stability": mean, "worst": worst}, index=pd.Index(categories, name="cluster")
    )
    params = {"n_runs": n_runs, "share": float(share), "random_state": seed, "key": key}
    target = adata.copy() if copy else adata
    column = results.spread(recurring, np.isin(np.arange(adata.n_obs), members))
    results.add_fields(
        target, key, {"obs": {name: column}, "uns": {name: {"clusters": clusters, "runs": runs, "params": params}}}
    )
    return target if copy else None


def map_query(
    adata: AnnData,
    reference: str | os.PathLike[str] | VCC,
    *,
    key_added: str = "vcc",
    min_confidence: float | None = None,
    max_novelty: float | None = None,
    copy: bool = False,
) -> AnnData | None:
    """Label new cells and place them on the map of a reference.

    Variables are matched by name, in any order; others are ignored. The reference's own projection is applied, its PCA
    loadings and means or its LSA components, and then its encoder: no PCA of the new cells. Prepare the new cells as
    the reference was prepared, for instance by the same normalization; batch effects are not corrected.

    Parameters
    ----------
    adata
        New cells. Written to only after all is computed.
    reference
        File that `scvcc.tl.vcc(reference_adata, save_to=...)` wrote, or the model that `scvcc.VCC.load` read from it.
    key_added
        Name of the result.
    min_confidence
        Cells below this confidence, from 0 to 1, become "unassigned". It finds cells between known clusters.
    max_novelty
        Cells above this novelty, from 0 to 1, become "unassigned". It finds some of the cells of unknown kinds: in a
        test on seven data sets 0.99 left about a third of them unassigned, and 3 % of the others.
    copy
        Return a copy with the result instead of writing to `adata`.

    Returns
    -------
    None, or the copy if `copy=True`. A variable of the reference that `adata` lacks is taken as average; more than 20 %
    of them missing is an error. Writes these fields:

    `adata.obs[key_added]`
        Cluster of each cell, with the categories of the reference, and "unassigned" with `min_confidence` or
        `max_novelty`.
    `adata.obs[key_added + "_confidence"]`
        Probability of the most likely cluster.
    `adata.obs[key_added + "_novelty"]`
        Share of the reference's cells that lie closer to the others than this cell does: :meth:`scvcc.VCC.novelty`.
    `adata.obsm["X_" + key_added]`
        Place on the reference's map.
    `adata.uns[key_added]`, `adata.uns[key_added + "_colors"]`
        How the result was made, and the reference's colors, if it had them when it was saved.

    Examples
    --------
    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> import scanpy as sc
    >>> import scvcc
    >>> adata = sc.datasets.pbmc68k_reduced()
    >>> reference, query = adata[:500].copy(), adata[500:].copy()
    >>> sc.pp.pca(reference, n_comps=20)
    >>> sc.pp.neighbors(reference)
    >>> with TemporaryDirectory() as folder:
    ...     file = Path(folder) / "model.safetensors"
    ...     scvcc.tl.vcc(reference, n_clusters=6, hidden=(64,), progress=False, save_to=file)
    ...     scvcc.tl.map_query(query, file)
    >>> query.obsm["X_vcc"].shape
    (200, 2)
    """
    check_adata(adata, copy=copy)
    results.check_key(adata, key_added, "confidence", "novelty")
    limits = {"min_confidence": min_confidence, "max_novelty": max_novelty}
    for name, limit in limits.items():
        check_share(name, 0 if limit is None else limit)
    start = info("mapping onto the reference")
    model, about = read_reference(reference)
    H, novelty = place_query(adata, model, about)
    target = adata.copy() if copy else adata
    write_query(target, H, novelty, model, about, key=key_added, limits=limits)
    info(f"    finished: labels in adata.obs[{key_added!r}] ({{time_passed}})", time=start)
    return target if copy else None


def _model(settings: dict[str, Any]) -> VCC:
    """Make the estimator; settings may come back from a file, as numpy numbers and arrays."""
    known = list(inspect.signature(VCC).parameters)
    for name in settings:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            meant = f"did you mean {near[0]}?" if near else "further arguments are settings of scvcc.VCC."
            raise TypeError(f"vcc() does not know {name}: {meant}")
    return VCC(**{name: _plain(value) for name, value in settings.items()})


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return tuple(value.tolist())
    return value.item() if isinstance(value, np.generic) else value


def _check_run(adata: AnnData, model: VCC, request: Request, part: Part) -> None:
    """Refuse what cannot work before anything is computed."""
    key = request.key
    if key == part.column:
        raise ValueError(
            f"key_added={key!r} would overwrite the column that restrict_to reads, and the run could not be "
            "repeated: choose another name."
        )
    sketched = model.max_train_cells is not None and adata.n_obs > model.max_train_cells
    results.check_key(adata, key, "confidence", *(["trained"] if sketched else []), layer=request.layer)
    n_cells = int(part.cells.sum())
    if n_cells < 2:
        raise ValueError(f"There are {n_cells} cells to cluster: at least 2 are needed.")
    checked_settings(model, n_cells)
    resolve_device(model.device)


def _save(model: VCC, path: str | os.PathLike[str], extra: dict[str, Any] | None, *, returned: bool) -> None:
    """Write the model; where the result is yet to be returned, an error must not cost it."""
    try:
        model.save(path, extra=extra)
    except (OSError, ValueError) as error:
        if not returned:
            raise
        warn(f"The result is returned, but the model was not saved: save_to={str(path)!r} failed. {error}")


def _checked_range(k_range: tuple[int, int], n_cells: int) -> tuple[int, int]:
    """Lowest and highest number of clusters, as whole numbers from 2 to half of the cells."""
    if isinstance(k_range, str) or not hasattr(k_range, "__len__") or len(k_range) != 2:
        raise ValueError(f"k_range must be the lowest and the highest number of clusters, found {k_range!r}.")
    low, high = k_range
    check_integer("k_range[0]", low, low=2)
    check_integer("k_range[1]", high, low=int(low))
    if low > n_cells // 2:
        raise ValueError(f"k_range starts at {low} clusters, too many for {n_cells} cells.")
    return int(low), int(high)
