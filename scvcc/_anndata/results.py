"""What a run leaves in `adata`, and how it is read back. What scvcc did not write, it never removes or replaces."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from anndata import AnnData
from natsort import natsorted

from scvcc import __version__
from scvcc._anndata.evidence import support_tables
from scvcc._anndata.representation import Additions, Representation, Request, set_fields, uninterrupted, write_additions
from scvcc._anndata.tree import leaf_column, tree_record
from scvcc._model.checks import warn

if TYPE_CHECKING:  # these need torch, which `import scvcc.pp` does not
    from scvcc._anndata.graphs import Graph
    from scvcc._anndata.inputs import Part
    from scvcc._model.vcc import VCC


def check_name(key_added: str) -> None:
    """Refuse what cannot name a result in a file."""
    if not key_added or "/" in key_added:
        raise ValueError(f"key_added must be a name without '/', found {key_added!r}.")


def check_key(adata: AnnData, key: str, *names: str, layer: str | None = None) -> None:
    """Refuse to write a result under `key`, with obs columns `{key}_{name}`, over what scvcc did not write."""
    check_name(key)
    of_pca = dict.fromkeys(("pca", f"pca_{layer}"), "scanpy keeps its PCA")
    kept = {"neighbors": "scanpy keeps its graph", "lsa": "scvcc.pp.lsa keeps its components", **of_pca}
    if owner := kept.get(key):
        raise ValueError(f"key_added={key!r} is where {owner}: choose another name.")
    fields = [f"uns/{key}", f"obsm/X_{key}", f"obs/{key}", *(f"obs/{key}_{name}" for name in names)]
    refuse_strangers(adata, key, fields)
    categories = own_record(adata, key).get("categories")
    if categories is not None and key in adata.obs:
        now = list(map(str, adata.obs[key].astype("category").cat.categories))
        if set(now) - set(map(str, categories)):
            warn(
                f"The categories of adata.obs[{key!r}] were changed, and the new result replaces them: "
                "set key_added to keep them."
            )


def refuse_strangers(adata: AnnData, key: str, fields: Iterable[str]) -> None:
    """Refuse to write `fields`, such as "obs/vcc", where they are there and not known as a result under `key`."""
    own = _own_fields(adata, key)
    for field in fields:
        attribute, _, name = field.partition("/")
        if field not in own and name in getattr(adata, attribute):
            raise ValueError(
                f"key_added={key!r} would overwrite adata.{attribute}[{name!r}], which is not known to be a result of "
                "scvcc: choose another name, or delete or rename it first."
            )


def own_record(adata: AnnData, key: str) -> Mapping[str, Any]:
    """The record of a result under `key`, empty where there is none."""
    record = adata.uns.get(key)
    return record if isinstance(record, Mapping) and "fields" in record else {}


def _own_fields(adata: AnnData, key: str) -> set[str]:
    """Fields that scvcc wrote under `key`; a record may be lost, as by anndata.concat, but not all its fields with it."""
    if record := own_record(adata, key):
        return {f"uns/{key}", *map(str, record["fields"])}
    usual = {f"obs/{key}", f"obs/{key}_confidence", f"obsm/X_{key}"}
    lost = key not in adata.uns and all(f.partition("/")[2] in getattr(adata, f.partition("/")[0]) for f in usual)
    return usual | {f"obs/{key}_leaf"} if lost else set()


@uninterrupted()
def write_result(
    adata: AnnData,
    model: VCC,
    graph: Graph,
    representation: Representation,
    part: Part,
    request: Request,
    mixing: np.ndarray | None,
) -> None:
    """Write everything a run leaves in `adata`. All values are computed before the first one is set."""
    key, cells = request.key, part.cells
    labels = part.labels(adata, model.labels_)
    column = pd.Categorical(labels, categories=natsorted({label for label in labels if isinstance(label, str)}))
    trained = cells if graph.rows is None else np.isin(np.arange(adata.n_obs), np.flatnonzero(cells)[graph.rows])
    stages = {name: spread(H, trained) for name, H in getattr(model, "stages_", {}).items()}
    clusters = [f"{part.prefix}{k}" for k in range(model.n_clusters_)]
    obs: dict[str, Any] = {"confidence": spread(model.confidence_, cells)}
    obs["leaf"] = leaf_column(model.tree_, clusters, model.leaves_, cells)
    if not np.array_equal(trained, cells):
        obs["trained"] = trained
    obsm = {f"X_{key}": spread(model.embedding_, cells), **{f"X_{key}_{name}": H for name, H in stages.items()}}
    record = {
        "params": _params(model, request, graph, part),
        "n_clusters": model.n_clusters_,
        "graph": {"name": graph.name, "mode": graph.mode, "params": dict(graph.params)},
        "representation": representation.source.params,
        "history": model.history_,
        "tree": tree_record(model.tree_, clusters),
        "stages": list(stages),
        "restrict_to": None if part.column is None else {"key": part.column, "categories": part.categories},
        "versions": _versions(),
        "device": model.device_,
        "mixing": mixing,
        "support": _support(model, part),
    }
    write_fields(adata, key, column, record, obs=obs, obsm=obsm)
    write_additions(adata, representation, graph)


def _support(model: VCC, part: Part) -> dict[str, pd.DataFrame] | None:
    names = [f"{part.prefix}{k}" for k in range(model.n_clusters_)]
    return None if model.support_ is None else support_tables(model.support_, names, model.labels_)


def _params(model: VCC, request: Request, graph: Graph, part: Part) -> dict[str, Any]:
    """What repeats the run; `n_pcs` is the request's, which has another meaning in `VCC`."""
    params = {
        name: value for name, value in model.get_params().items() if name not in ("n_pcs", "progress", "checkpoint")
    }
    params |= {**request.params, "random_state": request.seed, "key_added": request.key}
    if graph.rows is None:
        params["max_train_cells"] = None  # had no effect
    if part.column is not None:
        params["restrict_to"] = [part.column, part.categories]
    return params


@uninterrupted()
def write_fields(
    adata: AnnData,
    key: str,
    labels: pd.Categorical,
    record: Mapping[str, Any],
    *,
    obs: Mapping[str, Any],
    obsm: Mapping[str, np.ndarray],
    uns: Mapping[str, Any] | None = None,
) -> None:
    """Write a result, and remove what an earlier one under `key` left and this one does not replace.

    The labels come first: they turn a view into an AnnData of its own. Entries cannot be removed from a view's `uns`.
    """
    columns = {key: labels, **{f"{key}_{name}": values for name, values in obs.items()}}
    fields: Additions = {"obs": columns, "obsm": dict(obsm), "uns": dict(uns or {})}
    names = _names(fields)
    fields["uns"][key] = storable({**record, "categories": list(labels.categories), "fields": names})
    stale = _own_fields(adata, key) - {f"uns/{key}", *names}
    old = adata.obs[key].astype("category").cat.categories if key in adata.obs else labels.categories
    if list(old) != list(labels.categories) and f"uns/{key}_colors" not in names:
        stale.add(f"uns/{key}_colors")  # of other categories
    adata.obs[key] = labels
    for field in stale:
        attribute, _, name = field.partition("/")
        if name in getattr(adata, attribute):
            del getattr(adata, attribute)[name]
    set_fields(adata, fields)


@uninterrupted()
def add_fields(adata: AnnData, key: str, fields: Additions, **changes: Any) -> None:
    """Write more fields of the result under `key`, to be replaced or removed with it, and entries of its record."""
    record = dict(own_record(adata, key))
    set_fields(adata, fields)
    names = sorted({*map(str, record["fields"]), *_names(fields)})
    adata.uns[key] = {**record, **changes, "fields": np.array(names)}


def _names(fields: Additions) -> list[str]:
    return [f"{attribute}/{name}" for attribute, written in fields.items() for name in written]


def spread(values: np.ndarray, cells: np.ndarray) -> np.ndarray:
    """Put values of the chosen cells in their rows, NaN elsewhere."""
    full = np.full((len(cells), *values.shape[1:]), np.nan, dtype=np.float32)
    full[cells] = values
    return full


def _versions() -> dict[str, str]:
    packages = ("torch", "scanpy", "anndata", "numpy", "scipy", "scikit-learn")
    return {"scvcc": __version__, "python": platform.python_version(), **{name: version(name) for name in packages}}


def storable(value: Any) -> Any:
    """Convert to what h5ad and zarr can hold: no None, no empty dict, lists and tuples as arrays or JSON."""
    if isinstance(value, Mapping):
        items = {str(k).replace("/", "_"): storable(v) for k, v in value.items() if v is not None}
        return {k: v for k, v in items.items() if not (isinstance(v, dict) and not v)}
    if isinstance(value, (list, tuple)):
        numbers = all(isinstance(v, (bool, int, float, np.generic)) for v in value)
        plain = numbers or all(isinstance(v, str) for v in value)
        return np.array(value) if plain else json.dumps(value, default=str)  # JSON as in scanpy
    if isinstance(value, np.generic):
        return value.item()
    return value if isinstance(value, (str, bool, int, float, np.ndarray, pd.DataFrame)) else str(value)


@dataclass(frozen=True)
class Run:
    """A run of `tl.vcc` as `adata` holds it: the cells that have a label, and the settings."""

    column: pd.Series
    cells: np.ndarray  # bool, (n,)
    params: Mapping[str, Any]
    request: Request

    def labels(self, members: np.ndarray) -> tuple[np.ndarray, list[str]]:
        """Clusters of some cells as numbers, and their names; they may have been renamed, merged or emptied since."""
        column = self.column.iloc[members].cat.remove_unused_categories()
        if len(column.cat.categories) < 2:
            raise ValueError(f"adata.obs[{column.name!r}] has one cluster: at least 2 are needed.")
        return column.cat.codes.to_numpy(np.int64), list(map(str, column.cat.categories))


def stored_run(adata: AnnData, key: str) -> Run:
    """Read a run back; the graph is to be found as it was then."""
    record = adata.uns.get(key)
    if key not in adata.obs or not isinstance(record, Mapping) or "history" not in record:
        raise ValueError(f"adata holds no run named {key!r}: run scvcc.tl.vcc(adata, key_added={key!r}) first.")
    params = record.get("params")
    if not isinstance(params, Mapping) or "random_state" not in params or "fields" not in record:
        raise ValueError(f"adata.uns[{key!r}] is incomplete: run scvcc.tl.vcc again.")
    column = adata.obs[key].astype("category")
    cells = column.notna().to_numpy(copy=True)
    if "restrict_to" in params:  # the others carry the labels of another run
        cells &= np.isfinite(np.asarray(adata.obsm[f"X_{key}"])).all(axis=1)
    if not cells.any():
        raise ValueError(f"adata.obs[{key!r}] has no label left: run scvcc.tl.vcc(adata, key_added={key!r}) again.")
    chosen: dict[str, Any] = {name: params.get(name) for name in Request(key, 0).params}
    own = f"{key}_neighbors"
    if chosen["batch_key"] is not None and own in adata.uns:  # the graph of the run itself
        chosen |= {"batch_key": None, "neighbors_key": own}
    return Run(column, cells, params, Request(key, int(params["random_state"]), **chosen))
