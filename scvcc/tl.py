"""Tools: functions that compute something and write it into an AnnData."""

from __future__ import annotations

import inspect
import numbers
from typing import TYPE_CHECKING, Any

import numpy as np
from anndata import AnnData

from scvcc import _anndata, _query
from scvcc._estimator import VCC, _as_seed, resolve_device

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    from numpy.random import Generator, RandomState

__all__ = ["map_query", "vcc"]


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
    restrict_to: tuple[str, Sequence[str]] | None = None,
    key_added: str = "vcc",
    device: str = "auto",
    random_state: int | Generator | RandomState | None = 0,
    save_to: str | os.PathLike[str] | None = None,
    copy: bool = False,
    **kwargs: Any,
) -> AnnData | None:
    """Cluster cells and place them on a compact map with Very Compact Clusters (VCC).

    The neighbor graph stored in `adata` is used, and the encoder is trained on the representation that this graph was
    built on. Where there is no graph, one is built with :func:`scanpy.pp.neighbors` and left where scanpy keeps it.
    Messages at level INFO of the logger "scvcc" say which graph, which representation and how many clusters were used.

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
        Size of the neighborhood where a graph is built, as in :func:`scanpy.pp.neighbors`; None is 15. A stored default graph that
        contradicts this, `metric`, `use_rep`, `n_pcs` or `layer`, where they are set, is left alone, and a new one is
        kept under `{key_added}_neighbors`.
    metric
        Distance where a graph is built; None is "euclidean".
    restrict_to
        Cluster only the cells of some categories of an obs column, on their part of the graph:
        `("vcc", ["3"])` gives labels "3,0", "3,1", … The default of `key_added` is then "vcc_R".
    key_added
        Name of the result.
    device
        "auto" takes a CUDA GPU if there is one and the CPU otherwise; or any torch device.
    random_state
        Seed or generator. The same seed on the same machine gives the same result. None draws a seed.
    save_to
        File for the fitted model (safetensors), with all that :func:`~scvcc.tl.map_query` needs to label other cells.
        `scvcc.VCC.load(save_to)` gives the estimator.
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
    `adata.obs[key_added + "_boundary"]`
        Spread of the normalized distances to a cell's neighbors: a hint at borders between clusters.
    `adata.obsm["X_" + key_added]`
        The map. With `keep_stages=True` also `X_{key_added}_start`, `_placed` and `_coordinates`.
    `adata.uns[key_added]`
        Parameters, history of training, graph and representation used, versions and device.
        `scvcc.tl.vcc(adata, **adata.uns["vcc"]["params"])` repeats the run.
    `adata.obsm["X_pca"]`, `adata.varm["PCs"]`, `adata.uns["pca"]`
        If a PCA had to be computed; under `X_pca_{layer}` if another PCA is there already.
    `adata.obsp["distances"]`, `adata.obsp["connectivities"]`, `adata.uns["neighbors"]`
        If a graph had to be built.

    With `restrict_to`, confidence, boundary score and map of all other cells are NaN.

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
    if restrict_to is not None and key_added == "vcc":
        key_added = "vcc_R"
    _check_target(adata, key_added, copy=copy)
    seed = _as_seed(random_state)
    search: dict[str, Any] = {"n_neighbors": n_neighbors, "metric": metric}
    settings = {"n_clusters": n_clusters, "device": device, **{k: v for k, v in search.items() if v is not None}}
    model = _model({"progress": True, **settings, **kwargs, "random_state": seed})
    restricted = None if restrict_to is None else _anndata.restriction(adata, restrict_to)
    _check(adata, model, restricted)
    if save_to is not None:
        _query.check_target(adata, save_to)

    request: dict[str, Any] = {
        "use_rep": use_rep,
        "n_pcs": n_pcs,
        "layer": layer,
        "neighbors_key": neighbors_key,
        "obsp": obsp,
    }
    own_key = f"{key_added}_neighbors"
    graph, representation = _anndata.graph_and_representation(adata, **request, **search, own_key=own_key, seed=seed)
    X = representation.X
    if restricted is not None:
        graph, X = graph.restricted_to(restricted.cells), X[restricted.cells]
    _anndata.warn_about_pieces(graph, n_clusters)
    model.fit(X, graph=graph.matrix, graph_mode=graph.mode)

    params = {**_stored_settings(model), **request, **search, "random_state": seed, "key_added": key_added}
    if restricted is not None:
        params["restrict_to"] = [restricted.column, restricted.categories]
    extra = None
    if save_to is not None:
        prefix = "" if restricted is None else f"{'-'.join(restricted.categories)},"
        categories = [f"{prefix}{k}" for k in range(model.n_clusters_)]
        extra = _query.describe(adata, representation, key=key_added, categories=categories)
    target = adata.copy() if copy else adata
    _anndata.write_result(target, model, graph, representation, key=key_added, params=params, restricted=restricted)
    if save_to is not None:  # last: a full disk does not cost the result
        model.save(save_to, extra=extra)
    return target if copy else None


def map_query(
    adata: AnnData,
    reference: str | os.PathLike[str] | VCC,
    *,
    key_added: str = "vcc",
    min_confidence: float | None = None,
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
        Cells below this confidence, from 0 to 1, become "unassigned". None labels all cells.
    copy
        Return a copy with the result instead of writing to `adata`.

    Returns
    -------
    None, or the copy if `copy=True`. A variable of the reference that `adata` lacks is taken as average; more than 20 %
    of them missing is an error. Writes these fields:

    `adata.obs[key_added]`
        Cluster of each cell, with the categories of the reference, and "unassigned" with `min_confidence`.
    `adata.obs[key_added + "_confidence"]`
        Probability of the most likely cluster.
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
    _check_target(adata, key_added, copy=copy)
    number = isinstance(min_confidence, numbers.Real) and not isinstance(min_confidence, bool)
    if min_confidence is not None and not (number and 0 <= min_confidence <= 1):
        raise ValueError(f"min_confidence must be a number from 0 to 1 or None, found {min_confidence!r}.")
    model, about = _query.read_reference(reference)
    H = _query.place(adata, model, about)
    target = adata.copy() if copy else adata
    _query.write_query(target, H, model, about, key=key_added, min_confidence=min_confidence)
    return target if copy else None


def _model(settings: dict[str, Any]) -> VCC:
    """Make the estimator; settings may come back from a file, as numpy numbers and arrays."""
    known = list(inspect.signature(VCC).parameters)
    unknown = [name for name in settings if name not in known]
    if unknown:
        raise TypeError(f"vcc() does not know {', '.join(unknown)}: further arguments are settings of scvcc.VCC.")
    return VCC(**{name: _plain(value) for name, value in settings.items()})


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return tuple(value.tolist())
    return value.item() if isinstance(value, np.generic) else value


def _check(adata: AnnData, model: VCC, restricted: _anndata.Restriction | None) -> None:
    """Refuse what cannot work before anything is computed."""
    n_cells = adata.n_obs if restricted is None else int(restricted.cells.sum())
    if n_cells < 2:
        raise ValueError(f"There are {n_cells} cells to cluster: at least 2 are needed.")
    model._settings(n_cells)
    resolve_device(model.device)


def _check_target(adata: AnnData, key_added: str, *, copy: bool) -> None:
    if not isinstance(adata, AnnData):
        raise TypeError(f"adata must be an AnnData, found {type(adata).__name__}: for a matrix use scvcc.VCC.")
    if not isinstance(key_added, str) or not key_added or "/" in key_added:
        raise ValueError(f"key_added must be a name without '/', found {key_added!r}.")
    _anndata.check_key(adata, key_added)
    if copy and adata.isbacked:
        raise ValueError("copy=True does not work with a backed adata: load it with adata.to_memory() first.")


def _stored_settings(model: VCC) -> Mapping[str, Any]:
    """Settings of the estimator that repeat the run; `n_pcs` has another meaning in `vcc`."""
    return {name: value for name, value in model.get_params().items() if name not in ("n_pcs", "progress")}
