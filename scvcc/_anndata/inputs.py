"""What a run is trained on: cells, their representation and their graph, found in `adata` without changing it."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from anndata import AnnData
from natsort import natsorted

from scvcc._anndata.batches import batches_of
from scvcc._anndata.graphs import Graph, built_graph, stored_graph
from scvcc._anndata.messages import info, listed
from scvcc._anndata.representation import Representation, Request, graph_source, read_representation, requested_source
from scvcc._model.neighbors import Batches, search
from scvcc._model.rows import take_rows
from scvcc._model.vcc import VCC
from scvcc._training.graph import Matrix

if TYPE_CHECKING:
    from scvcc._anndata.results import Run


@dataclass(frozen=True)
class Part:
    """The cells to be clustered: all, or those of some categories of an obs column."""

    cells: np.ndarray  # bool, (n,)
    column: str | None = None
    categories: list[str] = field(default_factory=list)

    @property
    def prefix(self) -> str:
        """What stands before the number of a subcluster."""
        return "" if self.column is None else f"{'-'.join(self.categories)},"

    def labels(self, adata: AnnData, sub: np.ndarray) -> np.ndarray:
        """The subcluster of the chosen cells, after the label they had; the others keep theirs."""
        labels = np.full(adata.n_obs, None)
        if self.column is not None:
            labels = adata.obs[self.column].astype(object).map(str, na_action="ignore").to_numpy(object, copy=True)
        labels[self.cells] = [f"{self.prefix}{label}" for label in sub]
        return labels


def chosen_part(adata: AnnData, restrict_to: tuple[str, Sequence[str]] | None) -> Part:
    """Check `restrict_to`, perhaps as the JSON in which a run stores it, and find its cells; None: all of them."""
    if restrict_to is None:
        return Part(np.ones(adata.n_obs, dtype=bool))
    if isinstance(restrict_to, str):
        with suppress(ValueError):
            restrict_to = json.loads(restrict_to)
    pair = isinstance(restrict_to, Sequence) and not isinstance(restrict_to, str) and len(restrict_to) == 2
    if not pair or not isinstance(restrict_to[0], str) or not isinstance(restrict_to[1], Iterable):
        raise ValueError(f"restrict_to must be (obs column, list of categories), found {restrict_to!r}.")
    column, categories = restrict_to
    if column not in adata.obs:
        raise ValueError(f"restrict_to names {column!r}, which is not a column of adata.obs.")
    categories = [categories] if isinstance(categories, str) else [str(c) for c in categories]
    labels = adata.obs[column].astype(object).map(str, na_action="ignore")
    known = set(labels.dropna())
    unknown = [c for c in categories if c not in known]
    if unknown or not categories:
        raise ValueError(
            f"restrict_to: adata.obs[{column!r}] has no category {', '.join(map(repr, unknown)) or '(none given)'}; "
            f"it has {listed(natsorted(known))}."
        )
    return Part(labels.isin(categories).to_numpy(), column, categories)


def find_inputs(
    adata: AnnData, model: VCC, request: Request, part: Part, *, sketch: bool = False
) -> tuple[Matrix, Graph, Representation]:
    """Find the stored graph and the representation that belongs to it; compute what is missing.

    Returns the rows to be clustered, the graph of those to be trained on, and the representation both belong to. `sketch`
    says that the user chose `max_train_cells`, so that even a stored graph gives way to one of a sketch.
    """
    wanted = requested_source(adata, request)
    graph = stored_graph(adata, request, wanted)
    made_on = None if graph is None else graph_source(adata, graph.params)
    if wanted is None and made_on is not None and not made_on.is_in(adata):
        raise ValueError(
            f"The stored graph was built on {made_on}, which is missing from adata: "
            "name another representation with use_rep=, or run sc.pp.neighbors again."
        )
    representation = read_representation(adata, request, made_on, most=model.max_train_cells)
    info(f"representation: {representation.source}, {representation.X.shape[1]} columns")
    if graph is not None:
        what = (
            "its distances" if graph.mode == "distance" else "connectivities, taken as the weights of the latent graph"
        )
        info(f"graph: stored {graph.name} ({what})")
    X = representation.X if part.column is None else take_rows(representation.X, np.flatnonzero(part.cells))
    if _searches_itself(adata, graph, model, X.shape[0], request, asked=sketch):
        batches = None if request.batch_key is None else batches_of(adata, request.batch_key).among(part.cells)
        return X, _graph_of_rows_trained_on(X, model, representation, request.seed, batches), representation
    graph = graph or built_graph(adata, representation, request)
    return X, graph if part.column is None else graph.restricted_to(part.cells), representation


def find_again(adata: AnnData, run: Run) -> tuple[VCC, Matrix, Graph, np.ndarray]:
    """The estimator of a run, its rows, their graph, and the numbers of the cells that the graph is of."""
    model = estimator({name: value for name, value in run.params.items() if name in inspect.signature(VCC).parameters})
    part = Part(run.cells, None if run.cells.all() else str(run.column.name))
    X, graph, _ = find_inputs(adata, model, run.request, part, sketch=run.params.get("max_train_cells") is not None)
    cells = np.flatnonzero(run.cells)
    return model, X, graph, cells if graph.rows is None else cells[graph.rows]


def _searches_itself(
    adata: AnnData, graph: Graph | None, model: VCC, n_cells: int, request: Request, *, asked: bool
) -> bool:
    """Whether there are too many cells for a graph of all: one of a sketch, or of a restriction, then takes its place."""
    most = model.max_train_cells
    if most is None or graph is None:
        return most is not None and adata.n_obs > most
    if n_cells <= most:
        return False
    if asked and request.named is not None:
        raise ValueError(
            f"max_train_cells={most} asks for a graph of a sketch, but {request.named!r} is a graph of all {n_cells} "
            "cells: leave one of them out."
        )
    if asked:
        info(f"graph {graph.name} is not used: max_train_cells={most} asks for one of a sketch")
    else:
        info(f"all {n_cells} cells of the graph are trained on: set max_train_cells to use fewer")
    return asked


def _graph_of_rows_trained_on(
    X: Matrix, model: VCC, representation: Representation, seed: int, batches: Batches | None
) -> Graph:
    """The graph of a sketch, or of all cells to be clustered; it is not kept in `adata`."""
    rows, distances = search(X, model, seed, batches, info)
    n = distances.shape[0]
    alone = f"a sketch of {n} cells, and the encoder is trained on these alone"
    whose = "all cells to be clustered" if rows is None else alone
    info(f"more cells than max_train_cells={model.max_train_cells}: graph built of {whose}")
    params = {"n_neighbors": model.n_neighbors, "metric": model.metric, **representation.source.params}
    graph, rows = distances.astype(np.float32), np.arange(n) if rows is None else rows
    return Graph(graph, "distance", "of the cells trained on", params, rows=rows)


def estimator(settings: dict[str, Any]) -> VCC:
    """The estimator with these settings, which may come back from a file, as numpy numbers and arrays."""
    return VCC(**{name: _plain(value) for name, value in settings.items()})


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray) and value.ndim == 1:
        return tuple(value.tolist())
    return value.item() if isinstance(value, np.number | np.bool_) and value.dtype.kind in "biuf" else value
