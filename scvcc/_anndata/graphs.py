"""Which neighbor graph a run is trained on: the stored one that fits the request, or a new one."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
import pandas as pd
import scanpy as sc
import scipy.sparse as sp
from anndata import AnnData
from scipy.sparse.csgraph import connected_components

from scvcc._anndata.batches import corrected
from scvcc._anndata.messages import info, listed
from scvcc._anndata.representation import Additions, Representation, Request, Source, graph_source, params_of
from scvcc._model.checks import warn
from scvcc._model.lazy import computed
from scvcc._model.rows import on_host, values
from scvcc._training.forks import check_kernels
from scvcc._training.graph import GraphMode, check_distances, check_graph, entry_rows


@dataclass(frozen=True)
class Graph:
    """A neighbor graph in memory: sparse (n, n), distances or weights, with the parameters it was made with."""

    matrix: sp.csr_matrix
    mode: GraphMode
    name: str
    params: Mapping[str, Any] = field(default_factory=dict)
    additions: Additions = field(default_factory=dict)
    rows: np.ndarray | None = None  # numbers of its cells among those to be clustered, where it is of a part of them

    def restricted_to(self, cells: np.ndarray) -> Self:
        """The part of the graph between the chosen cells."""
        part = self.matrix[cells][:, cells]
        if part.nnz == 0:
            raise ValueError(f"restrict_to: {self.name} has no edge between the {int(cells.sum())} chosen cells.")
        return replace(self, matrix=part)


def stored_graph(adata: AnnData, request: Request, wanted: Source | None) -> Graph | None:
    """The graph that is stored in `adata`, or None if one has to be built.

    A graph that the user names is used as it is. The default one is used unless its parameters contradict the request.
    A metric that was not recorded is scanpy's default; a number of neighbors that was not recorded fits no request.
    """
    if request.neighbors_key is not None and request.obsp is not None:
        raise ValueError("neighbors_key and obsp both name a graph: give one of them.")
    if request.obsp is not None:
        return _in_obsp(adata, request.obsp)
    if request.neighbors_key is not None:
        if request.neighbors_key not in adata.uns:
            raise ValueError(
                f"neighbors_key={request.neighbors_key!r} is not in adata.uns: "
                f"run sc.pp.neighbors(adata, key_added={request.neighbors_key!r}) first."
            )
        return _at_key(adata, request.neighbors_key)
    if request.batch_key is not None:
        return None
    for key in ("neighbors", f"{request.key}_neighbors"):
        if _is_stored(adata, key):
            params = params_of(adata.uns.get(key))
            contradiction = _contradiction(adata, params, request, wanted)
            if contradiction is None and key != "neighbors" and "batch_key" in params:
                contradiction = "it was built with a batch_key"
            if contradiction is None:
                return _at_key(adata, key)
            info(f"graph adata.uns[{key!r}] is not used: {contradiction}")
    return None


def _is_stored(adata: AnnData, key: str) -> bool:
    return key in adata.uns or (key == "neighbors" and ("distances" in adata.obsp or "connectivities" in adata.obsp))


def _contradiction(adata: AnnData, params: Mapping[str, Any], request: Request, wanted: Source | None) -> str | None:
    made_on = graph_source(adata, params)
    if wanted is not None and made_on is not None and not made_on.same_as(wanted, adata):
        return f"it was built on {made_on}, not on {wanted}"
    made_with = {"n_neighbors": params.get("n_neighbors"), "metric": params.get("metric", "euclidean")}
    for name, value in request.search.items():
        if made_with[name] != value:
            return f"it was built with {name}={made_with[name]!r}, not {value!r}"
    return None


def _at_key(adata: AnnData, key: str) -> Graph:
    """Read the graph of `adata.uns[key]`: its distances, or its connectivities where there are no distances."""
    entry = adata.uns.get(key, {})
    entry = entry if isinstance(entry, Mapping) else {}
    kinds: dict[GraphMode, str] = {"distance": "distances", "connectivity": "connectivities"}
    for mode, kind in kinds.items():
        name = entry.get(f"{kind}_key", kind if key == "neighbors" else None)
        if name in adata.obsp:
            return _read(adata, adata.obsp[name], mode, f"adata.obsp[{name!r}]", params_of(entry))
        if sp.issparse(entry.get(kind)):  # where AnnData objects before 0.7 kept it
            return _read(adata, entry[kind], mode, f"adata.uns[{key!r}][{kind!r}]", params_of(entry))
    raise ValueError(
        f"adata.uns[{key!r}] describes a graph, but adata.obsp has neither its distances nor its connectivities: "
        f"run sc.pp.neighbors again, or remove adata.uns[{key!r}] to have a graph built."
    )


def _in_obsp(adata: AnnData, name: str) -> Graph:
    """Read a matrix of obsp; its description in uns, or else its name, tells distances from weights."""
    if name not in adata.obsp:
        raise ValueError(f"obsp={name!r} is not in adata.obsp, which has {listed(adata.obsp)}.")
    mode: GraphMode = "distance" if "dist" in name.lower() else "connectivity"
    params: Mapping[str, Any] = {}
    for entry in adata.uns.values():
        if isinstance(entry, Mapping) and name in (entry.get("distances_key"), entry.get("connectivities_key")):
            mode = "distance" if entry.get("distances_key") == name else "connectivity"
            params = params_of(entry)
    return _read(adata, adata.obsp[name], mode, f"adata.obsp[{name!r}]", params)


def _read(adata: AnnData, matrix: Any, mode: GraphMode, name: str, params: Mapping[str, Any]) -> Graph:
    """Bring any layout to one: a float32 CSR copy without diagonal, zero distances kept, columns in order."""
    matrix = computed(on_host(matrix))
    if isinstance(matrix, np.ndarray):
        matrix = sp.csr_matrix(matrix)
    if not sp.issparse(matrix):
        raise TypeError(f"{name} is a {type(matrix).__name__}: a scipy sparse matrix or a numpy array is needed.")
    n = adata.n_obs
    if matrix.shape != (n, n):
        raise ValueError(
            f"{name} has shape {matrix.shape}, but adata has {n} cells: the graph is of other cells or from before "
            "filtering. Run sc.pp.neighbors again."
        )
    try:
        csr = check_graph(matrix, n, mode).astype(np.float32)
    except ValueError as error:
        raise ValueError(f"{name}: {error} sc.pp.neighbors builds one.") from error
    csr.sort_indices()
    return Graph(csr, mode, name, params)


def built_graph(adata: AnnData, representation: Representation, request: Request, key: str | None = None) -> Graph:
    """Build the graph with scanpy on an AnnData that holds nothing but the representation."""
    check_kernels()
    if key is None:
        own = request.batch_key is not None or _is_stored(adata, "neighbors")
        key = f"{request.key}_neighbors" if own else "neighbors"
    search = {"n_neighbors": 16, "metric": "euclidean", **request.search}
    X, source, n_neighbors, table = values(representation.X, None), representation.source, search["n_neighbors"], None
    if X.shape[0] <= n_neighbors:
        raise ValueError(
            f"n_neighbors={n_neighbors} needs more than {n_neighbors} cells, but adata has {X.shape[0]}: "
            "lower n_neighbors."
        )
    if request.batch_key is not None:
        X, table = corrected(adata, X, request)
    light = AnnData(obs=pd.DataFrame(index=pd.RangeIndex(X.shape[0]).astype(str)))
    light.obsm["rep"] = sp.csr_matrix(X) if sp.issparse(X) else X
    key_added = None if key == "neighbors" else key
    try:
        sc.pp.neighbors(light, use_rep="rep", key_added=key_added, random_state=request.seed, **search)
    except ValueError as error:
        asked = ", ".join(f"{name}={value!r}" for name, value in search.items())
        raise ValueError(f"No graph can be built with {asked}: {error}") from error
    entry = dict(light.uns[key])
    check_distances(light.obsp[entry["distances_key"]], search["metric"])
    made_on = {name: value for name, value in source.params.items() if value is not None}
    if request.batch_key is not None:
        made_on |= {"batch_key": np.array(request.batch_key), "batch_strength": request.batch_strength}
        entry["batches"] = table
    entry["params"] = {**entry["params"], **made_on}
    additions: Additions = {"obsp": {name: light.obsp[name] for name in light.obsp}, "uns": {key: entry}}
    what = "" if table is None else " without differences between batches"
    info(f"graph built: sc.pp.neighbors on {source}{what}, kept in adata.uns[{key!r}] and adata.obsp")
    name = entry["distances_key"]
    graph = _read(light, light.obsp[name], "distance", f"adata.obsp[{name!r}]", entry["params"])
    return replace(graph, additions=additions)


def warn_about(graph: Graph, n_clusters: int | None, *, restricted: bool) -> None:
    """Say, in one warning, what makes the result less certain: few neighbors, pieces, isolated cells, duplicates."""
    matrix, found = graph.matrix, []
    kept, made = float(np.median(np.diff(matrix.indptr))), int(graph.params.get("n_neighbors") or 0)
    thinned = kept < made / 3
    if thinned:
        found.append(f"it was built with {made} neighbors, and cells have a median of {kept:.0f} left")
    structure = sp.csr_matrix((np.ones(matrix.nnz, dtype=np.int8), matrix.indices, matrix.indptr), shape=matrix.shape)
    n_pieces, piece = connected_components(structure, directed=False)
    if n_pieces > 1:
        n_isolated = int((np.bincount(piece) == 1).sum())
        single = f", {n_isolated} of them single cells without a neighbor" if n_isolated else ""
        found.append(f"it is in {n_pieces} pieces{single}")
    if graph.mode == "distance" and (zero := matrix.data == 0).any():
        n_duplicates = len(np.union1d(entry_rows(matrix)[zero], matrix.indices[zero]))
        found.append(f"{n_duplicates} cells have an exact duplicate")
    if not found:
        return
    if n_clusters is not None and n_clusters < n_pieces:
        found.append(f"n_clusters={n_clusters} is below the number of pieces, so unconnected pieces share a cluster")
    advice = "" if n_pieces == 1 else " A larger n_neighbors connects more cells."
    if restricted and advice:
        advice = " Consider moving cells that are far apart to an AnnData of their own, with its own graph."
    elif thinned:
        advice = " Run sc.pp.neighbors again for a sharper result."
    warn(f"The neighbor graph {graph.name} may be unreliable: {'; '.join(found)}.{advice}")
