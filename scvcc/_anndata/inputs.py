"""Between AnnData and arrays: which graph and which representation to use, and where the results go.

Everything here reads `adata` without changing it, except the writers at the end, which are called last.
"""

from __future__ import annotations

import inspect
import json
import logging
import platform
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import scanpy as sc
import scipy.sparse as sp
from anndata import AnnData
from natsort import natsorted
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import ArpackError
from sklearn.preprocessing import normalize as unit_rows

from scvcc import __version__
from scvcc._training.graph import boundary_score, check_graph

if TYPE_CHECKING:
    from scvcc._model.vcc import VCC
    from scvcc._training.graph import GraphMode, Matrix

log = logging.getLogger("scvcc")

DEFAULT_N_NEIGHBORS = 15
DEFAULT_METRIC = "euclidean"
SMALL_N_VARS = 50  # up to here X itself is the representation, as in scanpy
COUNTS_SAMPLE = 100_000  # stored values looked at to recognize raw counts
COUNTS_MAX = 10  # integers up to here may as well be categories or presence
CHANCE_PAIRS = 1_000  # edges compared with random pairs
CHANCE_LEVEL = 0.6  # 0.5 for a graph of other cells, close to 1 for the graph of these cells
OR_USE_REP = ", or name a representation that is in memory, for instance use_rep='X_pca'"
RESERVED = {
    "neighbors": "scanpy keeps its graph",
    "pca": "scanpy keeps its PCA",
    "lsa": "scvcc.pp.lsa keeps its components",
}
COLUMNS = ("confidence", "boundary", "novelty", "trained", "stability")  # beside the labels, in obs

Additions = dict[str, dict[str, Any]]
"""What the writer hands over besides the result: attribute of AnnData, key, value."""


# -------------------------------------------------------------------------------------------- what is handed over


def check_adata(adata: AnnData, *, copy: bool) -> None:
    """Refuse what cannot be written to, before anything is computed."""
    if not isinstance(adata, AnnData):
        raise TypeError(f"adata must be an AnnData, found {type(adata).__name__}: for a matrix use scvcc.VCC.")
    if adata.isbacked and copy:
        raise ValueError("copy=True does not work with a backed adata: load it with adata.to_memory() first.")
    if adata.isbacked and adata.is_view:
        raise ValueError(
            "adata is a part of a backed AnnData, which cannot be written to: load it with adata.to_memory() first."
        )


def check_name(key_added: str) -> None:
    """Refuse what cannot name a result in a file."""
    if not isinstance(key_added, str) or not key_added or "/" in key_added:
        raise ValueError(f"key_added must be a name without '/', found {key_added!r}.")


def check_layer(adata: AnnData, layer: str | None) -> None:
    """Refuse a layer that is not there."""
    if layer is not None and layer not in adata.layers:
        raise ValueError(f"layer={layer!r} is not in adata.layers, which has {_names(adata.layers)}.")


# ---------------------------------------------------------------------------------------------- representation


@dataclass(frozen=True)
class Source:
    """Where a representation is found: "X" (of a layer) or a key of obsm, and how many of its columns."""

    name: str
    n_pcs: int | None = None
    layer: str | None = None

    @property
    def short(self) -> str:
        """Name for a title."""
        return self.name if self.layer is None else f"{self.name} ({self.layer})"

    def __str__(self) -> str:
        if self.name == "X":
            return "adata.X" if self.layer is None else f"adata.layers[{self.layer!r}]"
        columns = "" if self.n_pcs is None else f"[:, :{self.n_pcs}]"
        return f"adata.obsm[{self.name!r}]{columns}"


@dataclass(frozen=True)
class Representation:
    """The matrix the encoder sees, where it came from, and what was computed on the way."""

    X: Matrix
    source: Source
    additions: Additions = field(default_factory=dict)


def requested_source(adata: AnnData, use_rep: str | None, n_pcs: int | None, layer: str | None) -> Source | None:
    """Return the representation that the caller asks for, or None where all is left open."""
    if use_rep is None and n_pcs is None and layer is None:
        return None
    _check_request(adata, use_rep, n_pcs, layer)
    if use_rep == "X" or (use_rep is None and n_pcs == 0):
        return Source("X", layer=layer)
    if use_rep is None:
        return default_source(adata, n_pcs, layer)
    return Source(use_rep, n_pcs)


def _check_request(adata: AnnData, use_rep: str | None, n_pcs: int | None, layer: str | None) -> None:
    if use_rep is not None and use_rep != "X" and use_rep not in adata.obsm:
        raise ValueError(f"use_rep={use_rep!r} is neither 'X' nor a key of adata.obsm, which has {_names(adata.obsm)}.")
    check_layer(adata, layer)
    if layer is not None and use_rep not in (None, "X"):
        raise ValueError(
            f"layer={layer!r} and use_rep={use_rep!r} name two different matrices: leave one out, or set use_rep='X'."
        )
    if n_pcs is None:
        return
    if isinstance(n_pcs, bool) or not isinstance(n_pcs, (int, np.integer)) or n_pcs < 0:
        raise ValueError(f"n_pcs must be a whole number of components or None, found {n_pcs!r}.")
    if use_rep == "X" and n_pcs:
        raise ValueError(f"n_pcs={n_pcs} does not apply to use_rep='X': leave use_rep out to run PCA first.")
    if use_rep not in (None, "X") and n_pcs == 0:
        raise ValueError(f"n_pcs=0 leaves no column of use_rep={use_rep!r}: leave n_pcs out to use all of them.")


def default_source(adata: AnnData, n_pcs: int | None = None, layer: str | None = None) -> Source:
    """Follow scanpy's habit: a stored PCA, else X where it has few variables, else a PCA to be computed."""
    stored = _stored_pca(adata, layer)
    if stored is not None:
        return Source(stored, n_pcs)
    if n_pcs is None and layer is None and "X_lsa" in adata.obsm:
        return Source("X_lsa")
    if n_pcs is None and adata.n_vars <= SMALL_N_VARS:
        return Source("X", layer=layer)
    name = "X_pca" if "X_pca" not in adata.obsm else f"X_pca_{layer}"
    return Source(name, n_pcs, layer)


def _stored_pca(adata: AnnData, layer: str | None) -> str | None:
    if "X_pca" in adata.obsm and (layer is None or _params(adata.uns.get("pca")).get("layer") == layer):
        return "X_pca"
    return f"X_pca_{layer}" if layer is not None and f"X_pca_{layer}" in adata.obsm else None


def graph_source(adata: AnnData, params: Mapping[str, Any]) -> Source | None:
    """Return the representation that a stored graph was built on, or None if its parameters do not say."""
    n_pcs = None if params.get("n_pcs") is None else int(params["n_pcs"])
    kind, name = _parse_use_rep(params.get("use_rep"))
    if kind == "layers":
        return Source("X", layer=name)
    if name == "X" or (name is None and n_pcs == 0):
        return Source("X", layer=params.get("layer"))
    if name is not None:
        return Source(name, n_pcs)
    # scanpy does not store its default; "method" is in what it stores, and not in the parameters of a spatial graph
    return Source("X_pca", n_pcs) if "X_pca" in adata.obsm and "method" in params else None


def _parse_use_rep(use_rep: Any) -> tuple[str, str | None]:
    """Understand a key, or the list of attribute and key (perhaps as JSON) that newer scanpy versions store."""
    if isinstance(use_rep, str) and use_rep.startswith("["):
        use_rep = json.loads(use_rep)
    if isinstance(use_rep, np.ndarray):
        use_rep = use_rep.tolist()
    if isinstance(use_rep, (list, tuple)) and use_rep:
        kind, name = (use_rep[0], use_rep[1]) if len(use_rep) > 1 else ("obsm", use_rep[0])
        if kind == "layers" and name is None:
            return "X", "X"
        return str(kind), name
    return "obsm", use_rep if isinstance(use_rep, str) else None


def read_representation(adata: AnnData, source: Source, *, seed: int) -> Representation:
    """Fetch the matrix at `source`; run PCA where it is to be computed."""
    if source.name != "X" and source.name not in adata.obsm:
        return _pca(adata, source, seed)
    X = matrix_at(adata, source, instead=OR_USE_REP)
    if source.name == "X":
        warn_if_counts(X, str(source))
    return Representation(finite(X, str(source)), source)


def matrix_at(adata: AnnData, source: Source, *, instead: str = "") -> Matrix:
    """Fetch a matrix that is there."""
    if source.name == "X":
        return variables(adata, source.layer, instead=instead)
    if source.name not in adata.obsm:
        raise ValueError(f"{source} is not there any more: compute it again.")
    X = _as_matrix(adata.obsm[source.name], f"adata.obsm[{source.name!r}]")
    if source.n_pcs is not None and source.n_pcs > X.shape[1]:
        raise ValueError(
            f"n_pcs={source.n_pcs}, but adata.obsm[{source.name!r}] has {X.shape[1]} columns: "
            "lower n_pcs, or compute more components first."
        )
    return X[:, : source.n_pcs]


def variables(adata: AnnData, layer: str | None = None, *, instead: str = "") -> Matrix:
    """Return X or a layer as a numeric matrix in memory; sparse stays sparse.

    `instead` says what else the caller's user can do where X is not in memory.
    """
    name = "adata.X" if layer is None else f"adata.layers[{layer!r}]"
    if layer is None and adata.isbacked:
        raise ValueError(
            "adata is backed, and adata.X would have to be read from its file: load it with adata.to_memory() "
            f"first{instead}."
        )
    if layer is not None and layer not in adata.layers:
        raise ValueError(f"{name} is not there: adata.layers has {_names(adata.layers)}.")
    X = adata.X if layer is None else adata.layers[layer]
    if X is None:
        raise ValueError(f"adata.X is empty (None): set it first{instead}.")
    X = _as_matrix(X, name)
    if 0 in X.shape:
        raise ValueError(f"{name} has shape {X.shape}: there is nothing to cluster.")
    return X


def _as_matrix(values: Any, name: str) -> Matrix:
    """Real-valued matrix of at least single precision; no copy where the values already are."""
    if isinstance(values, pd.DataFrame):
        values = values.to_numpy()
    if not sp.issparse(values):
        if not isinstance(values, np.ndarray):
            raise TypeError(
                f"{name} is a {type(values).__module__}.{type(values).__name__}: "
                "convert it to a numpy array or a scipy sparse matrix first."
            )
        values = np.asarray(values)
    if values.ndim != 2:
        raise ValueError(f"{name} has {values.ndim} dimension(s): a matrix with one row per cell is needed.")
    if values.dtype.kind not in "biuf":
        raise TypeError(
            f"{name} has dtype {values.dtype}: convert it to numbers, for instance with .astype('float32')."
        )
    if values.dtype.kind != "f" or values.dtype.itemsize < 4:
        return values.astype(np.float32)
    return values


def stored_values(X: Matrix) -> np.ndarray:
    """Return the entries of a dense, or the stored entries of a sparse matrix."""
    return np.asarray(X.data) if sp.issparse(X) else np.asarray(X)


def finite(X: Matrix, name: str) -> Matrix:
    """Return `X`, or raise an error that counts NaN and infinite values."""
    values = stored_values(X)
    # a finite sum needs no second look; an infinite one may be an overflow
    if not np.isfinite(values.sum(dtype=np.float64)) and not np.isfinite(values).all():
        count = int(np.size(values) - np.isfinite(values).sum())
        raise ValueError(f"{name} has {count} NaN or infinite values: remove or impute them first.")
    return X


def warn_if_counts(X: Matrix, name: str) -> None:
    """Warn where the matrix holds large whole numbers only, as raw counts do."""
    values = stored_values(X)
    values = values[:: max(1, values.size // COUNTS_SAMPLE)].ravel()
    if values.size == 0 or values.min() < 0 or values.max() <= COUNTS_MAX or np.any(values != np.rint(values)):
        return
    warn(
        f"{name} looks like raw counts (whole numbers up to {values.max():.0f}). Usual preparation for cells: "
        "sc.pp.normalize_total, sc.pp.log1p, sc.pp.highly_variable_genes, sc.pp.pca; for documents: scvcc.pp.lsa."
    )


def _pca(adata: AnnData, source: Source, seed: int) -> Representation:
    """Run scanpy's PCA on an AnnData that shares X, so that `adata` stays as it is until the result is written."""
    X = variables(adata, source.layer, instead=OR_USE_REP)
    where = "adata.X" if source.layer is None else f"adata.layers[{source.layer!r}]"
    warn_if_counts(X, where)
    finite(X, where)
    var = _chosen_variables(adata)
    limit = min(adata.n_obs, int(var["highly_variable"].sum()) if len(var.columns) else adata.n_vars) - 1
    if limit < 1 or (source.n_pcs or 0) > limit:
        raise ValueError(
            f"n_pcs={source.n_pcs}, but the data allow {max(limit, 0)} components: set n_pcs or use_rep='X'."
        )
    light = AnnData(X=X, obs=pd.DataFrame(index=adata.obs_names), var=var)
    key_added = None if source.name == "X_pca" else source.name
    try:
        sc.pp.pca(light, n_comps=source.n_pcs, random_state=seed, key_added=key_added)
    except ArpackError as error:
        raise ValueError(
            f"PCA of {where} failed: most likely all cells have the same values there, and there is nothing to cluster."
        ) from error
    keys = ("PCs", "pca") if source.name == "X_pca" else (source.name, source.name)
    info = dict(light.uns[keys[1]])
    if source.layer is not None:
        info["params"] = {**info["params"], "layer": source.layer}
    log.info("representation computed: PCA of %s, kept in adata.obsm[%r]", where, source.name)
    Z = light.obsm[source.name]
    additions = {"obsm": {source.name: Z}, "varm": {keys[0]: light.varm[keys[0]]}, "uns": {keys[1]: info}}
    return Representation(Z, Source(source.name), additions)


def _chosen_variables(adata: AnnData) -> pd.DataFrame:
    """The column with which scanpy's PCA chooses variables, where there is one."""
    if "highly_variable" not in adata.var:
        return adata.var[[]]
    column = adata.var["highly_variable"]
    if not pd.api.types.is_bool_dtype(column) or column.isna().any():
        raise ValueError(
            f"adata.var['highly_variable'] must be True or False, found dtype {column.dtype} and {column.isna().sum()} "
            "missing values: drop the column, or fill and convert it with .fillna(False).astype(bool)."
        )
    return pd.DataFrame({"highly_variable": column.astype(bool)})


# ------------------------------------------------------------------------------------------------------- graph


@dataclass(frozen=True)
class Graph:
    """A neighbor graph in memory: sparse (n, n), distances or weights, with the parameters it was made with."""

    matrix: sp.csr_matrix
    mode: GraphMode
    name: str
    params: Mapping[str, Any] = field(default_factory=dict)
    additions: Additions = field(default_factory=dict)
    rows: np.ndarray | None = None  # numbers of its cells among those to be clustered, where it is of a part of them

    def restricted_to(self, cells: np.ndarray) -> Graph:
        """Return the part of the graph between the chosen cells."""
        part = self.matrix[cells][:, cells]
        if part.nnz == 0:
            raise ValueError(f"restrict_to: {self.name} has no edge between the {int(cells.sum())} chosen cells.")
        return replace(self, matrix=part)


def choose_graph(
    adata: AnnData,
    wanted: Source | None,
    *,
    neighbors_key: str | None,
    obsp: str | None,
    n_neighbors: int | None,
    metric: str | None,
    own_key: str,
) -> Graph | None:
    """Return the graph that is stored in `adata`, or None if one has to be built.

    A graph named by the caller is used as it is. The default one is used unless its parameters contradict the request.
    A metric that was not recorded is scanpy's default; a number of neighbors that was not recorded fits no request.
    """
    if neighbors_key is not None and obsp is not None:
        raise ValueError("neighbors_key and obsp both name a graph: give one of them.")
    if obsp is not None:
        return _graph_in_obsp(adata, obsp)
    if neighbors_key is not None:
        if neighbors_key not in adata.uns:
            raise ValueError(
                f"neighbors_key={neighbors_key!r} is not in adata.uns: "
                f"run sc.pp.neighbors(adata, key_added={neighbors_key!r}) first."
            )
        return _graph_at_key(adata, neighbors_key)
    for key in ("neighbors", own_key):
        if _has_graph(adata, key):
            params = _params(adata.uns.get(key))
            contradiction = _contradiction(adata, params, wanted, n_neighbors, metric)
            if contradiction is None:
                return _graph_at_key(adata, key)
            log.info("graph adata.uns[%r] is not used: %s", key, contradiction)
    return None


def _has_graph(adata: AnnData, key: str) -> bool:
    return key in adata.uns or (key == "neighbors" and ("distances" in adata.obsp or "connectivities" in adata.obsp))


def _contradiction(
    adata: AnnData, params: Mapping[str, Any], wanted: Source | None, n_neighbors: int | None, metric: str | None
) -> str | None:
    made_on = graph_source(adata, params)
    if wanted is not None and made_on is not None and not _same_source(adata, made_on, wanted):
        return f"it was built on {made_on}, not on {wanted}"
    made_with = {"n_neighbors": params.get("n_neighbors"), "metric": params.get("metric", DEFAULT_METRIC)}
    for name, value in (("n_neighbors", n_neighbors), ("metric", metric)):
        if value is not None and made_with[name] != value:
            return f"it was built with {name}={made_with[name]!r}, not {value!r}"
    return None


def _is_there(adata: AnnData, source: Source) -> bool:
    return source.name in adata.obsm or (source.name == "X" and (source.layer is None or source.layer in adata.layers))


def _same_source(adata: AnnData, a: Source, b: Source) -> bool:
    if a.name != b.name or a.name not in adata.obsm:
        return a.name == b.name and a.layer == b.layer
    n_columns = adata.obsm[a.name].shape[1]
    return (a.n_pcs or n_columns) == (b.n_pcs or n_columns)


def _graph_at_key(adata: AnnData, key: str) -> Graph:
    """Read the graph of `adata.uns[key]`: its distances, or its connectivities where there are no distances."""
    entry = adata.uns.get(key, {})
    entry = entry if isinstance(entry, Mapping) else {}
    kinds: tuple[tuple[GraphMode, str], ...] = (("distance", "distances"), ("connectivity", "connectivities"))
    for mode, kind in kinds:
        name = entry.get(f"{kind}_key", kind if key == "neighbors" else None)
        if name in adata.obsp:
            return _read_graph(adata, adata.obsp[name], mode, f"adata.obsp[{name!r}]", _params(entry))
        if sp.issparse(entry.get(kind)):  # where AnnData objects before 0.7 kept it
            return _read_graph(adata, entry[kind], mode, f"adata.uns[{key!r}][{kind!r}]", _params(entry))
    raise ValueError(
        f"adata.uns[{key!r}] describes a graph, but adata.obsp has neither its distances nor its connectivities: "
        f"run sc.pp.neighbors again, or remove adata.uns[{key!r}] to have a graph built."
    )


def _graph_in_obsp(adata: AnnData, name: str) -> Graph:
    """Read a matrix of obsp; its description in uns, or else its name, tells distances from weights."""
    if name not in adata.obsp:
        raise ValueError(f"obsp={name!r} is not in adata.obsp, which has {_names(adata.obsp)}.")
    mode: GraphMode = "distance" if "dist" in name.lower() else "connectivity"
    params: Mapping[str, Any] = {}
    for entry in adata.uns.values():
        if isinstance(entry, Mapping) and name in (entry.get("distances_key"), entry.get("connectivities_key")):
            mode = "distance" if entry.get("distances_key") == name else "connectivity"
            params = _params(entry)
    return _read_graph(adata, adata.obsp[name], mode, f"adata.obsp[{name!r}]", params)


def _read_graph(adata: AnnData, matrix: Any, mode: GraphMode, name: str, params: Mapping[str, Any]) -> Graph:
    """Bring any layout to one: a float32 CSR copy without diagonal, zero distances kept, columns in order."""
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
        raise ValueError(f"{name}: {error} sc.pp.neighbors does it.") from error
    if mode == "connectivity":
        csr.eliminate_zeros()
    csr.sort_indices()
    return Graph(csr, mode, name, params)


def build_graph(representation: Representation, *, n_neighbors: int, metric: str, seed: int, key: str) -> Graph:
    """Build the graph with scanpy on an AnnData that holds nothing but the representation."""
    X, source = representation.X, representation.source
    if n_neighbors < 2:
        raise ValueError(f"n_neighbors={n_neighbors} counts the cell itself, as in scanpy: at least 2 are needed.")
    if X.shape[0] <= n_neighbors:
        raise ValueError(
            f"n_neighbors={n_neighbors} needs more than {n_neighbors} cells, but adata has {X.shape[0]}: "
            "lower n_neighbors."
        )
    light = AnnData(obs=pd.DataFrame(index=pd.RangeIndex(X.shape[0]).astype(str)))
    light.obsm["rep"] = sp.csr_matrix(X) if sp.issparse(X) else X
    key_added = None if key == "neighbors" else key
    search: dict[str, Any] = {"n_neighbors": n_neighbors, "metric": metric, "random_state": seed}
    try:
        sc.pp.neighbors(light, use_rep="rep", key_added=key_added, **search)
    except ValueError as error:
        raise ValueError(f"No graph can be built with n_neighbors={n_neighbors}, metric={metric!r}: {error}") from error
    entry = dict(light.uns[key])
    made_on = {"use_rep": source.name, "n_pcs": source.n_pcs, "layer": source.layer if source.name == "X" else None}
    entry["params"] = {**entry["params"], **{k: v for k, v in made_on.items() if v is not None}}
    additions: Additions = {"obsp": {name: light.obsp[name] for name in light.obsp}, "uns": {key: entry}}
    log.info("graph built: sc.pp.neighbors on %s, kept in adata.uns[%r] and adata.obsp", source, key)
    name = entry["distances_key"]
    graph = _read_graph(light, light.obsp[name], "distance", f"adata.obsp[{name!r}]", entry["params"])
    return replace(graph, additions=additions)


def check_graph_fits(graph: Graph, X: Matrix) -> None:
    """Refuse a graph whose neighbors are no closer in `X` than random cells: it is of other cells."""
    rows, near, far = _pairs_to_compare(graph.matrix)
    space = _comparable(X[np.concatenate([rows, near, far])], graph.params.get("metric")) if len(rows) else None
    if space is not None:
        here, there, elsewhere = np.arange(3 * len(rows)).reshape(3, -1)
        _refuse_chance(graph, pair_distances(space, here, there), pair_distances(space, here, elsewhere))
    kept, made = float(np.median(np.diff(graph.matrix.indptr))), graph.params.get("n_neighbors")
    if made is not None and kept < int(made) / 3:
        warn(
            f"{graph.name} was built with {int(made)} neighbors, but cells have a median of {kept:.0f} left after "
            "filtering: run sc.pp.neighbors again for a sharper result."
        )


def _pairs_to_compare(matrix: sp.csr_matrix) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw edges, and for each a cell that is no neighbor of its row; none where most cells are neighbors."""
    n, rng = matrix.shape[0], np.random.default_rng(0)
    entries = rng.integers(matrix.nnz, size=CHANCE_PAIRS)
    rows = np.searchsorted(matrix.indptr, entries, side="right") - 1
    others = rng.integers(n, size=CHANCE_PAIRS)
    strangers = others != rows
    for i, (row, other) in enumerate(zip(rows, others, strict=True)):
        strangers[i] &= other not in matrix.indices[matrix.indptr[row] : matrix.indptr[row + 1]]
    usable = strangers & (2 * np.diff(matrix.indptr)[rows] <= n - 1)
    return rows[usable], matrix.indices[entries[usable]], others[usable]


def _comparable(X: Matrix, metric: Any) -> Matrix | None:
    """Return rows whose Euclidean distances are in the order of `metric`, or None where there are none."""
    if metric in (None, "euclidean", "l2", "sqeuclidean"):
        return X
    if metric == "cosine":
        return unit_rows(X)
    if metric == "correlation" and not sp.issparse(X):
        return unit_rows(X - X.mean(axis=1, keepdims=True))
    return None


def _refuse_chance(graph: Graph, near: np.ndarray, far: np.ndarray) -> None:
    closer = float((near <= far).mean())
    if closer < CHANCE_LEVEL:
        raise ValueError(
            f"{graph.name} does not belong to this representation: its neighbors are no closer than random cells "
            f"({closer:.0%} of comparisons). It may be of other cells, or of cells in another order: "
            "run sc.pp.neighbors again."
        )


def pair_distances(X: Matrix, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Return Euclidean distances between rows of `X`, pair by pair."""
    difference = X[rows] - X[columns]
    if sp.issparse(difference):
        return np.sqrt(np.asarray(difference.multiply(difference).sum(axis=1)).ravel())
    return np.linalg.norm(difference, axis=1)


def warn_about_pieces(graph: Graph, n_clusters: int | None) -> None:
    """Count, in one warning, what makes the result less certain: pieces, isolated cells and duplicates."""
    matrix = graph.matrix
    structure = sp.csr_matrix((np.ones(matrix.nnz, dtype=np.int8), matrix.indices, matrix.indptr), shape=matrix.shape)
    n_pieces, piece = connected_components(structure, directed=False)
    n_isolated = int((np.bincount(piece) == 1).sum())
    found = []
    if n_pieces > 1:
        single = f", {n_isolated} of them single cells without a neighbor" if n_isolated else ""
        found.append(f"it is in {n_pieces} pieces{single}")
    if graph.mode == "distance" and (zero := matrix.data == 0).any():
        rows = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
        n_duplicates = len(np.union1d(rows[zero], matrix.indices[zero]))
        found.append(f"{n_duplicates} cells have an exact duplicate")
    if not found:
        return
    if n_clusters is not None and n_clusters < n_pieces:
        found.append(f"n_clusters={n_clusters} is below the number of pieces, so unconnected pieces share a cluster")
    advice = " A larger n_neighbors connects more cells." if n_pieces > 1 else ""
    warn(f"The neighbor graph {graph.name} needs a look: {'; '.join(found)}.{advice}")


# --------------------------------------------------------------------------------------- both, as a run needs it


def find_graph(
    adata: AnnData,
    *,
    use_rep: str | None,
    n_pcs: int | None,
    layer: str | None,
    neighbors_key: str | None,
    obsp: str | None,
    n_neighbors: int | None,
    metric: str | None,
    own_key: str,
    seed: int,
) -> tuple[Graph | None, Representation]:
    """Find the stored graph, if there is one, and the representation that belongs to it, computed if it is missing."""
    wanted = requested_source(adata, use_rep, n_pcs, layer)
    search: dict[str, Any] = {"n_neighbors": n_neighbors, "metric": metric}
    graph = choose_graph(adata, wanted, neighbors_key=neighbors_key, obsp=obsp, own_key=own_key, **search)
    made_on = None if graph is None else graph_source(adata, graph.params)
    if wanted is None and made_on is not None and not _is_there(adata, made_on):
        raise ValueError(
            f"The stored graph was built on {made_on}, which is not there any more: "
            "name another representation with use_rep=, or run sc.pp.neighbors again."
        )
    representation = read_representation(adata, wanted or made_on or default_source(adata), seed=seed)
    log.info("representation: %s, %d columns", representation.source, representation.X.shape[1])
    if graph is None:
        return None, representation
    what = "its distances" if graph.mode == "distance" else "connectivities, taken as the weights of the latent graph"
    log.info("graph: stored %s (%s)", graph.name, what)
    if graph.mode == "distance" and made_on is not None and _same_source(adata, made_on, representation.source):
        check_graph_fits(graph, representation.X)
    return graph, representation


def missing_graph(
    adata: AnnData,
    representation: Representation,
    *,
    n_neighbors: int | None,
    metric: str | None,
    own_key: str,
    seed: int,
    **_: Any,
) -> Graph:
    """Build the graph that is not there."""
    key = own_key if _has_graph(adata, "neighbors") else "neighbors"
    search: dict[str, Any] = {"n_neighbors": n_neighbors or DEFAULT_N_NEIGHBORS, "metric": metric or DEFAULT_METRIC}
    return build_graph(representation, seed=seed, key=key, **search)


def sketch_graph(rows: np.ndarray | None, distances: sp.csr_matrix, source: Source, model: VCC) -> Graph:
    """The graph that `VCC` found, of the sketch `rows` or of all cells to be clustered; it is not kept in `adata`."""
    n = distances.shape[0]
    what = (
        "all cells to be clustered" if rows is None else f"a sketch of {n} cells: the encoder is trained on these alone"
    )
    log.info("graph built: more cells than max_train_cells=%d, so of %s", model.max_train_cells, what)
    made_on = {"use_rep": source.name, "n_pcs": source.n_pcs, "layer": source.layer}
    params = {"n_neighbors": model.n_neighbors, "metric": model.metric, **made_on}
    rows = np.arange(n) if rows is None else rows
    return Graph(distances.astype(np.float32), "distance", "of the cells trained on", params, rows=rows)


# ------------------------------------------------------------------------------------------- part of the cells


@dataclass(frozen=True)
class Restriction:
    """The cells of some categories of an obs column, to be clustered further."""

    column: str
    categories: list[str]
    cells: np.ndarray  # bool, (n,)

    @property
    def prefix(self) -> str:
        """What stands before the number of a subcluster."""
        return f"{'-'.join(self.categories)},"

    def labels(self, adata: AnnData, sub: np.ndarray) -> np.ndarray:
        """Keep the labels of the other cells, and append the subcluster to those of the chosen ones."""
        labels = adata.obs[self.column].astype(object).to_numpy(copy=True)
        labels = np.array([label if pd.isna(label) else str(label) for label in labels], dtype=object)
        labels[self.cells] = [f"{self.prefix}{label}" for label in sub]
        return labels


def restriction(adata: AnnData, restrict_to: tuple[str, Sequence[str]]) -> Restriction:
    """Check `restrict_to`, perhaps as the JSON in which a run stores it, and find its cells."""
    if isinstance(restrict_to, str) and restrict_to.startswith("["):
        restrict_to = json.loads(restrict_to)
    if isinstance(restrict_to, str) or not isinstance(restrict_to, Sequence) or len(restrict_to) != 2:
        raise ValueError(f"restrict_to must be (obs column, list of categories), found {restrict_to!r}.")
    column, categories = restrict_to
    if not isinstance(categories, Iterable):
        raise ValueError(f"restrict_to must be (obs column, list of categories), found {restrict_to!r}.")
    if column not in adata.obs:
        raise ValueError(f"restrict_to names {column!r}, which is not a column of adata.obs.")
    categories = [categories] if isinstance(categories, str) else [str(c) for c in categories]
    values = adata.obs[column].astype(object).map(str, na_action="ignore")
    known = set(values.dropna())
    unknown = [c for c in categories if c not in known]
    if unknown or not categories:
        raise ValueError(
            f"restrict_to: adata.obs[{column!r}] has no category {', '.join(map(repr, unknown)) or '(none given)'}; "
            f"it has {_names(natsorted(known))}."
        )
    return Restriction(column, categories, values.isin(categories).to_numpy())


# ----------------------------------------------------------------------------------------------------- results


def check_key(adata: AnnData, key: str, *, layer: str | None = None) -> None:
    """Refuse a name under which something is kept that is not a result of this package, or that a run may write to."""
    reserved = {**RESERVED, f"pca_{layer}": RESERVED["pca"]}
    if key in reserved:
        raise ValueError(f"key_added={key!r} is where {reserved[key]}: choose another name.")
    record = adata.uns.get(key)
    if isinstance(record, Mapping) and ("history" in record or "mapped" in record):
        return
    if record is None and f"{key}_confidence" in adata.obs:  # ours, with its record lost, as by anndata.concat
        return
    for attribute, name in (("uns", key), ("obsm", f"X_{key}"), ("obs", key)):
        if name in getattr(adata, attribute):
            raise ValueError(
                f"key_added={key!r} would overwrite adata.{attribute}[{name!r}], which is not known as a result of "
                "scvcc: choose another name, or delete it first."
            )


def write_result(
    adata: AnnData,
    model: VCC,
    graph: Graph,
    representation: Representation,
    *,
    key: str,
    params: Mapping[str, Any],
    restricted: Restriction | None = None,
) -> None:
    """Write everything a run leaves in `adata`. All values are computed before the first one is set."""
    cells = np.ones(adata.n_obs, dtype=bool) if restricted is None else restricted.cells
    labels = np.array([str(label) for label in model.labels_], dtype=object)
    if restricted is not None:
        labels = restricted.labels(adata, labels)
    categories = natsorted({label for label in labels if isinstance(label, str)})
    column = pd.Categorical(labels, categories=categories)
    trained = cells if graph.rows is None else np.isin(np.arange(adata.n_obs), np.flatnonzero(cells)[graph.rows])
    obsm = {f"X_{key}": _spread(model.embedding_, cells)}
    obsm |= {f"X_{key}_{name}": _spread(H, trained) for name, H in getattr(model, "stages_", {}).items()}
    obs = {
        "confidence": _spread(model._confidence(), cells),
        "boundary": _spread(boundary_score(graph.matrix, graph.mode), trained),
    }
    if not np.array_equal(trained, cells):
        obs["trained"] = trained
    uns = {key: _record(model, graph, representation.source, params, restricted)}
    write_fields(adata, key, column, obs=obs, obsm=obsm, uns=uns)
    write_additions(adata, graph, representation)


def write_fields(
    adata: AnnData,
    key: str,
    labels: pd.Categorical,
    *,
    obs: Mapping[str, np.ndarray],
    obsm: Mapping[str, np.ndarray],
    uns: Mapping[str, Any],
) -> None:
    """Write a result, and remove what an earlier one under `key` left and this one does not replace.

    The labels come first: they turn a view into an AnnData of its own. Entries cannot be removed from a view's `uns`.
    """
    columns = {key: labels, **{f"{key}_{name}": values for name, values in obs.items()}}
    fields: Additions = {"obs": columns, "obsm": dict(obsm), "uns": dict(uns)}
    stale = _stale_fields(adata, key, labels)
    adata.obs[key] = labels
    for attribute, names in stale.items():
        for name in names - fields[attribute].keys():
            del getattr(adata, attribute)[name]
    _set_fields(adata, fields)


def _stale_fields(adata: AnnData, key: str, labels: pd.Categorical) -> dict[str, set[str]]:
    """Fields of an earlier result under `key`, by attribute; colors stay if the categories are the same."""
    previous = adata.uns.get(key)
    stages = previous.get("stages", []) if isinstance(previous, Mapping) else []
    old = adata.obs[key].astype("category").cat.categories if key in adata.obs else labels.categories
    colors = [] if list(old) == list(labels.categories) else [f"{key}_colors"]
    names = {
        "obs": {f"{key}_{name}" for name in COLUMNS},
        "obsm": {f"X_{key}_{stage}" for stage in stages},
        "uns": {f"{key}_stability", *colors},
    }
    return {attribute: found & set(getattr(adata, attribute)) for attribute, found in names.items()}


def write_additions(adata: AnnData, graph: Graph, representation: Representation) -> None:
    """Write the representation and the graph where they had to be computed."""
    for part in (representation.additions, graph.additions):
        _set_fields(adata, part)


def _set_fields(adata: AnnData, fields: Additions) -> None:
    for attribute, values in fields.items():
        for name, value in values.items():
            getattr(adata, attribute)[name] = value  # looked up each time: the first one may turn a view into a copy


def _spread(values: np.ndarray, cells: np.ndarray) -> np.ndarray:
    """Put values of the chosen cells in their rows, NaN elsewhere."""
    full = np.full((len(cells), *values.shape[1:]), np.nan, dtype=np.float32)
    full[cells] = values
    return full


def _record(
    model: VCC, graph: Graph, source: Source, params: Mapping[str, Any], restricted: Restriction | None
) -> dict[str, Any]:
    record = {
        "params": params,
        "n_clusters": model.n_clusters_,
        "graph": {"name": graph.name, "mode": graph.mode, "params": dict(graph.params)},
        "representation": {"use_rep": source.name, "n_pcs": source.n_pcs, "layer": source.layer},
        "history": model.history_,
        "stages": list(getattr(model, "stages_", {})),
        "restrict_to": None if restricted is None else {"key": restricted.column, "categories": restricted.categories},
        "versions": _versions(),
        "device": model.device_,
    }
    return storable(record)


def _versions() -> dict[str, str]:
    packages = ("torch", "scanpy", "anndata", "numpy", "scipy", "scikit-learn")
    return {"scvcc": __version__, "python": platform.python_version(), **{name: version(name) for name in packages}}


def storable(value: Any) -> Any:
    """Convert to what h5ad and zarr can hold: no None, no empty dict, lists and tuples as arrays or JSON."""
    if isinstance(value, Mapping):
        items = {str(k).replace("/", "_"): storable(v) for k, v in value.items() if v is not None}
        return {k: v for k, v in items.items() if not (isinstance(v, dict) and not v)}
    if isinstance(value, (list, tuple)):
        return _storable_list(value)
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, (str, bool, int, float, np.ndarray)):
        return value
    return str(value)


def _storable_list(value: Sequence[Any]) -> np.ndarray | str:
    """Convert numbers, or names, to an array; anything else to JSON, as scanpy does."""
    names = all(isinstance(v, str) for v in value)
    if names or all(isinstance(v, (bool, int, float, np.generic)) for v in value):
        return np.array(value)
    return json.dumps(value, default=str)


@dataclass(frozen=True)
class Run:
    """A run of `tl.vcc` as `adata` holds it: the cells that have a label, and the settings."""

    column: pd.Series
    cells: np.ndarray  # bool, (n,)
    params: Mapping[str, Any]
    request: Mapping[str, Any]

    def labels(self, members: np.ndarray) -> tuple[np.ndarray, list[str]]:
        """Clusters of some cells as numbers, and their names; they may have been renamed, merged or emptied since."""
        found = self.column.iloc[members].cat.remove_unused_categories()
        if len(found.cat.categories) < 2:
            raise ValueError(f"adata.obs[{self.column.name!r}] has one cluster: at least 2 are needed.")
        return found.cat.codes.to_numpy(np.int64), list(map(str, found.cat.categories))


def stored_run(adata: AnnData, key: str) -> Run:
    """Read a run back; the graph is to be found as it was then."""
    record = adata.uns.get(key)
    if key not in adata.obs or not isinstance(record, Mapping) or "history" not in record:
        raise ValueError(f"adata holds no run named {key!r}: run scvcc.tl.vcc(adata, key_added={key!r}) first.")
    params = {name: v.item() if isinstance(v, np.generic) else v for name, v in record["params"].items()}
    column = adata.obs[key].astype("category")
    cells = column.notna().to_numpy()
    if "restrict_to" in params:  # the others carry the labels of another run
        cells = cells & np.isfinite(np.asarray(adata.obsm[f"X_{key}"])).all(axis=1)  # pandas 3 gives read-only arrays
    names = ("use_rep", "n_pcs", "layer", "neighbors_key", "obsp", "n_neighbors", "metric")
    request = {**{name: params.get(name) for name in names}, "own_key": f"{key}_neighbors"}
    return Run(column, cells, params, {**request, "seed": int(params["random_state"])})


def result_source(adata: AnnData, key: str) -> Source:
    """Return the representation that the run stored under `key` was trained on."""
    stored = adata.uns[key]["representation"]
    n_pcs = stored.get("n_pcs")
    return Source(str(stored["use_rep"]), None if n_pcs is None else int(n_pcs), stored.get("layer"))


def _params(entry: Any) -> Mapping[str, Any]:
    """Return the parameters of an entry of uns; old files hold numbers and names as arrays of length 1."""
    params = entry.get("params") if isinstance(entry, Mapping) else None
    if not isinstance(params, Mapping):
        return {}
    return {k: v.item() if isinstance(v, (np.ndarray, np.generic)) and v.size == 1 else v for k, v in params.items()}


def warn(message: str) -> None:
    """Warn at the line of the user's code that called into the package."""
    frame, level = inspect.currentframe(), 1
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "scvcc":
        frame, level = frame.f_back, level + 1
    warnings.warn(message, UserWarning, stacklevel=level)


def _names(keys: Any) -> str:
    keys = [str(k) for k in keys if k is not None]  # anndata 0.13 lists X among the layers, as None
    shown = ", ".join(repr(k) for k in keys[:12])
    return (shown + (", …" if len(keys) > 12 else "")) or "nothing"
