"""Which rows a model is trained on, and the neighbors among them, where no graph is given."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp

from scvcc._model.checks import warn
from scvcc._model.rows import on_host, values
from scvcc._model.sketch import sketch
from scvcc._training.batches import Correction, correct_batches
from scvcc._training.forks import check_kernels
from scvcc._training.graph import GraphMode, Matrix, components, given_graph, neighbor_distances, search_space
from scvcc._training.threads import threads

if TYPE_CHECKING:
    from scvcc._model.vcc import VCC

logger = logging.getLogger("scvcc")


@dataclass(frozen=True)
class Batches:
    """The batch of each row, as a number, and the names of the batches in the order of their numbers."""

    codes: np.ndarray  # (n,)
    names: list[str]

    @classmethod
    def of(cls, batch: Any, n: int, name: str = "batch") -> Batches:
        """Number the batches of `n` rows; refuse missing values."""
        given = np.asarray(batch, dtype=object)
        if given.shape != (n,):
            raise ValueError(f"{name} must hold one batch for each of {n} rows, found shape {given.shape}.")
        if missing := int(sum(value is None or (isinstance(value, float) and math.isnan(value)) for value in given)):
            raise ValueError(f"{name} has {missing} missing values: give these rows a batch, or leave them out.")
        names, codes = np.unique(given.astype(str), return_inverse=True)
        return cls(codes, names.tolist())

    def among(self, rows: np.ndarray | None) -> Batches:
        """The batches that the chosen rows (None: all) are of."""
        if rows is None:
            return self
        kept, codes = np.unique(self.codes[rows], return_inverse=True)
        return Batches(codes, [self.names[code] for code in kept])

    def report(self, correction: Correction, tell: Callable[[str], Any]) -> None:
        """Say batch by batch what was done, and warn of those that have too little in common with the others."""
        by_outcome: dict[str, list[str]] = {}
        for name, outcome in zip(self.names, correction.outcome, strict=True):
            by_outcome.setdefault(outcome, []).append(name)
        for outcome, names in by_outcome.items():
            tell(f"batches {outcome}: {', '.join(names)}")
        if left := by_outcome.get("left as it is"):
            warn(
                f"{len(left)} of {len(self.names)} batches have too few cells or too little in common with the others to be "
                f"corrected, or differ only in the shares of types, and are left as they are: {', '.join(left[:10])}{', …' if len(left) > 10 else ''}."
            )


def search(
    X: Matrix, model: VCC, seed: int, batches: Batches | None = None, tell: Callable[[str], Any] = logger.info
) -> tuple[np.ndarray | None, sp.csr_matrix]:
    """Rows to train on, ascending (None: all), and the distances from each to its neighbors among them.

    `n_neighbors` counts the row itself, as in scanpy.
    """
    check_kernels()
    rows, most, size = None, model.max_train_cells, model.n_neighbors
    with threads(model.n_jobs, X.shape[0]):
        if most is not None and X.shape[0] > most:
            tell(f"{X.shape[0]} rows, more than max_train_cells={most}: training on a sketch of them")
            codes = None if batches is None else batches.codes
            rows = sketch(X, most, metric=model.metric, seed=seed, batch=codes)
        part = values(X, rows)
        n = part.shape[0]
        if n < size:
            raise ValueError(
                f"n_neighbors={size} needs at least {size} rows, but X has {n}. Set n_neighbors to {n} or less."
            )
        if batches is None:
            Z = search_space(part, model.n_pcs, seed=seed)
        else:
            Z = without_batches(part, batches.among(rows), model.batch_strength, seed, tell).Z
        return rows, neighbor_distances(Z, size - 1, metric=model.metric, seed=seed, n_jobs=model.n_jobs)


def without_batches(
    X: Matrix, batches: Batches, strength: float, seed: int, tell: Callable[[str], Any] = logger.info
) -> Correction:
    """Components of `X`, 50 at most, in which technical differences between batches are taken away."""
    Z = components(X, seed)
    correction = correct_batches(Z, batches.codes, strength=strength, seed=seed)
    batches.report(correction, tell)
    return correction


def rows_and_graph(
    model: VCC,
    X: Matrix,
    graph: Matrix | None,
    mode: GraphMode,
    rows: np.ndarray | None,
    batches: Batches | None,
    seed: int,
) -> tuple[np.ndarray | None, sp.csr_matrix]:
    """Numbers of the rows to train on (None: all), and their latent graph."""
    n = X.shape[0]
    if graph is None:
        rows, distances = search(X, model, seed, batches)
        return rows, given_graph(distances, distances.shape[0], "distance")
    rows = None if rows is None else _checked_rows(rows, n)
    return rows, given_graph(on_host(graph), n if rows is None else len(rows), mode)


def _checked_rows(rows: Any, n: int) -> np.ndarray | None:
    """The numbers of rows, or None where they are all."""
    rows = np.asarray(rows)
    if rows.ndim != 1 or rows.dtype.kind not in "iu" or len(rows) < 2:
        raise ValueError(
            f"rows must be a list of at least 2 row numbers, found shape {rows.shape}, dtype {rows.dtype}."
        )
    if rows[0] < 0 or rows[-1] >= n or (np.diff(rows) <= 0).any():
        raise ValueError(f"rows must be different row numbers from 0 to {n - 1} in ascending order.")
    return None if len(rows) == n else rows
