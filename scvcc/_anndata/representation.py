"""Which representation of the cells the encoder sees: the one asked for, the graph's own, or scanpy's default."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import current_thread, main_thread
from typing import Any

import numpy as np
import pandas as pd
import scanpy as sc
from anndata import AnnData
from scipy.sparse.linalg import ArpackError

from scvcc._anndata.matrices import as_matrix, at_hand, check_layer, finite, name_of, variables, warn_if_counts
from scvcc._anndata.messages import info, listed
from scvcc._model.lazy import computed
from scvcc._training.graph import Matrix

Additions = dict[str, dict[str, Any]]
"""What the writer hands over besides the result: attribute of AnnData, key, value."""


@dataclass(frozen=True)
class Request:
    """What the user asks of graph and representation, None where it is left open; `key` and `seed` of the run."""

    key: str
    seed: int
    use_rep: str | None = None
    n_pcs: int | None = None
    layer: str | None = None
    neighbors_key: str | None = None
    obsp: str | None = None
    n_neighbors: int | None = None
    metric: str | None = None
    batch_key: list[str] | None = None
    batch_strength: float = 1.0

    @property
    def named(self) -> str | None:
        """The stored graph that the user names."""
        return self.neighbors_key or self.obsp

    @property
    def params(self) -> dict[str, Any]:
        """The choices as the record of a run keeps them."""
        return {name: value for name, value in vars(self).items() if name not in ("key", "seed", "batch_strength")}

    @property
    def search(self) -> dict[str, Any]:
        """The settings of `VCC` that were chosen."""
        chosen = {"n_neighbors": self.n_neighbors, "metric": self.metric}
        return {name: value for name, value in chosen.items() if value is not None}


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

    @property
    def params(self) -> dict[str, Any]:
        """As a graph's parameters and the record of a run keep it."""
        return {"use_rep": self.name, "n_pcs": self.n_pcs, "layer": self.layer if self.name == "X" else None}

    def is_in(self, adata: AnnData) -> bool:
        """Whether the matrix is there."""
        return self.name in adata.obsm or (self.name == "X" and (self.layer is None or self.layer in adata.layers))

    def same_as(self, other: Source, adata: AnnData) -> bool:
        """Whether both name the same columns."""
        if self.name != other.name or self.name not in adata.obsm:
            return self.name == other.name and self.layer == other.layer
        n_columns = adata.obsm[self.name].shape[1]
        return (self.n_pcs or n_columns) == (other.n_pcs or n_columns)

    def __str__(self) -> str:
        if self.name == "X":
            return name_of(self.layer)
        columns = "" if self.n_pcs is None else f"[:, :{self.n_pcs}]"
        return f"adata.obsm[{self.name!r}]{columns}"


@dataclass(frozen=True)
class Representation:
    """The matrix the encoder sees, where it came from, and what was computed on the way."""

    X: Matrix
    source: Source
    additions: Additions = field(default_factory=dict)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Let Ctrl-C wait until the block is done, so that a result is written completely or not at all."""
    if current_thread() is not main_thread():  # signals go to the main thread alone
        yield
        return
    pending: list[tuple[Any, ...]] = []
    before = signal.signal(signal.SIGINT, lambda *arguments: pending.append(arguments))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before if before is not None else signal.SIG_DFL)
    if pending and callable(before):
        before(*pending[0])


@uninterrupted()
def write_additions(adata: AnnData, *parts: Any, fields: Additions | None = None) -> None:
    """Write the representation and the graph where they had to be computed, and then the fields of a result."""
    for additions in (*(part.additions for part in parts), fields or {}):
        set_fields(adata, additions)


@uninterrupted()
def set_fields(adata: AnnData, fields: Additions) -> None:
    """Set the fields, attribute by attribute."""
    for attribute, written in fields.items():
        for name, value in written.items():
            getattr(adata, attribute)[name] = value  # looked up each time: the first one may turn a view into a copy


def requested_source(adata: AnnData, request: Request) -> Source | None:
    """The representation that the user asks for, or None where all is left open."""
    use_rep, n_pcs, layer = request.use_rep, request.n_pcs, request.layer
    if use_rep is None and n_pcs is None and layer is None:
        return None
    _check(adata, request)
    if use_rep == "X" or (use_rep is None and n_pcs == 0):
        return Source("X", layer=layer)
    return default_source(adata, n_pcs, layer) if use_rep is None else Source(use_rep, n_pcs)


def _check(adata: AnnData, request: Request) -> None:
    use_rep, n_pcs, layer = request.use_rep, request.n_pcs, request.layer
    if use_rep is not None and use_rep != "X" and use_rep not in adata.obsm:
        raise ValueError(f"use_rep={use_rep!r} is neither 'X' nor a key of adata.obsm, which has {listed(adata.obsm)}.")
    check_layer(adata, layer)
    if layer is not None and use_rep not in (None, "X"):
        raise ValueError(
            f"layer={layer!r} and use_rep={use_rep!r} name two different matrices: leave one out, or set use_rep='X'."
        )
    if n_pcs is None:
        return
    if use_rep == "X" and n_pcs:
        raise ValueError(f"n_pcs={n_pcs} does not apply to use_rep='X': leave use_rep out to run PCA first.")
    if use_rep not in (None, "X") and n_pcs == 0:
        raise ValueError(f"n_pcs=0 leaves no column of use_rep={use_rep!r}: leave n_pcs out to use all of them.")


def default_source(adata: AnnData, n_pcs: int | None = None, layer: str | None = None) -> Source:
    """Follow scanpy's habit: a stored PCA, else X where it has up to 50 variables, else a PCA to be computed."""
    of_layer = f"X_pca_{layer}"
    if "X_pca" in adata.obsm and (layer is None or params_of(adata.uns.get("pca")).get("layer") == layer):
        return Source("X_pca", n_pcs)
    if layer is not None and of_layer in adata.obsm:
        return Source(of_layer, n_pcs)
    if n_pcs is None and layer is None and "X_lsa" in adata.obsm:
        return Source("X_lsa")
    if n_pcs is None and adata.n_vars <= 50:
        return Source("X", layer=layer)
    return Source("X_pca" if "X_pca" not in adata.obsm else of_layer, n_pcs, layer)


def graph_source(adata: AnnData, params: Mapping[str, Any]) -> Source | None:
    """The representation that a stored graph was built on, or None if its parameters do not say."""
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
        return ("X", "X") if kind == "layers" and name is None else (str(kind), name)
    return "obsm", use_rep if isinstance(use_rep, str) else None


def params_of(entry: Any) -> Mapping[str, Any]:
    """The parameters of an entry of uns; old files hold numbers and names as arrays of length 1."""
    params = entry.get("params") if isinstance(entry, Mapping) else None
    if not isinstance(params, Mapping):
        return {}
    return {k: v.item() if isinstance(v, (np.ndarray, np.generic)) and v.size == 1 else v for k, v in params.items()}


def read_representation(
    adata: AnnData, request: Request, made_on: Source | None = None, *, most: int | None = None
) -> Representation:
    """Fetch the matrix asked for, else the one that a graph was `made_on`, else the default; run PCA where needed.

    With more than `most` cells, a matrix that is on disk stays there, and its values are checked as they are read.
    """
    source = requested_source(adata, request) or made_on or default_source(adata)
    if source.name != "X" and source.name not in adata.obsm:
        return _pca(adata, source, request.seed)
    X = matrix_at(adata, source, blocks=most is not None and adata.n_obs > most)
    if source.name == "X":
        warn_if_counts(at_hand(X), str(source))
    return Representation(finite(X, str(source)), source)


def keys_beside(name: str) -> tuple[str, str, str]:
    """Where a PCA or an LSA in obsm[name] has its components (varm), parameters (uns) and weights of terms (var)."""
    usual = {"X_pca": ("PCs", "pca", "idf"), "X_lsa": ("LSA", "lsa", "idf")}  # `sc.pp.pca` has the same habit
    return usual.get(name, (name, name, f"{name}_idf"))


def matrix_at(adata: AnnData, source: Source, *, blocks: bool = False) -> Matrix:
    """Fetch a matrix that is there."""
    if source.name == "X":
        X = variables(adata, source.layer, blocks=True)
        return X if blocks else as_matrix(X, str(source))
    if source.name not in adata.obsm:
        raise ValueError(f"{source} is missing from adata: compute it again.")
    X = as_matrix(adata.obsm[source.name], f"adata.obsm[{source.name!r}]", blocks=blocks)
    if source.n_pcs is not None and source.n_pcs > X.shape[1]:
        raise ValueError(
            f"n_pcs={source.n_pcs}, but adata.obsm[{source.name!r}] has {X.shape[1]} columns: "
            "lower n_pcs, or compute more components first."
        )
    return X[:, : source.n_pcs]


def _pca(adata: AnnData, source: Source, seed: int) -> Representation:
    """Run scanpy's PCA on an AnnData that shares X, so that `adata` stays as it is until the result is written."""
    where = name_of(source.layer)
    other = ", or name a representation that is in memory, for instance use_rep='X_pca'"
    X = variables(adata, source.layer, instead=other, blocks=not adata.isbacked)  # scanpy has a PCA for dask
    warn_if_counts(at_hand(X), where)
    finite(X, where)
    var = _chosen_variables(adata)
    limit = min(adata.n_obs, int(var["highly_variable"].sum()) if len(var.columns) else adata.n_vars) - 1
    if limit < 1 or (source.n_pcs or 0) > limit:
        raise ValueError(
            f"n_pcs={source.n_pcs}, but the data allow {max(limit, 0)} components: set n_pcs or use_rep='X'."
        )
    light = AnnData(X=X, obs=pd.DataFrame(index=adata.obs_names), var=var)
    try:
        sc.pp.pca(light, n_comps=source.n_pcs, random_state=seed)
    except ArpackError as error:
        raise ValueError(
            f"PCA of {where} failed: most likely all cells have the same values there, and there is nothing to cluster."
        ) from error
    loadings, entry, _ = keys_beside(source.name)
    record = dict(light.uns["pca"])
    if source.layer is not None:
        record["params"] = {**record["params"], "layer": source.layer}
    info(f"representation computed: PCA of {where}, kept in adata.obsm[{source.name!r}]")
    Z = computed(light.obsm["X_pca"])
    additions = {"obsm": {source.name: Z}, "varm": {loadings: light.varm["PCs"]}, "uns": {entry: record}}
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
