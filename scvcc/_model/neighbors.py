"""Which rows a model is trained on, and the neighbors among them, where no graph is given."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp

from scvcc._model.checks import warn
from scvcc._model.sketch import sketch
from scvcc._training.batches import correct_batches
from scvcc._training.graph import neighbor_distances, search_space
from scvcc._training.threads import threads

if TYPE_CHECKING:
    from scvcc._model.vcc import VCC
    from scvcc._training.batches import Correction
    from scvcc._training.graph import Matrix

logger = logging.getLogger("scvcc")


def rows_to_train_on(X: Matrix, model: VCC, seed: int, batch: np.ndarray | None = None) -> np.ndarray | None:
    """Numbers of the rows of a sketch, ascending, or None where all rows are trained on."""
    n, most = X.shape[0], model.max_train_cells
    if most is None or n <= most:
        return None
    logger.info("%d rows, more than max_train_cells=%d: training on a sketch of them.", n, most)
    with threads(model.n_jobs):
        return sketch(X, most, metric=model.metric, seed=seed, batch=batch)


def search(X: Matrix, model: VCC, seed: int, correction: Correction | None = None) -> sp.csr_matrix:
    """Distances from each row to its neighbors; `n_neighbors` counts the row itself, as in scanpy."""
    n, size = X.shape[0], model.n_neighbors
    if n < size:
        raise ValueError(
            f"n_neighbors={size} needs at least {size} rows, but X has {n}. Set n_neighbors to {n} or less."
        )
    with threads(model.n_jobs):
        Z = search_space(X, model.n_pcs, seed=seed) if correction is None else correction.Z
        return neighbor_distances(Z, size - 1, metric=model.metric, seed=seed, n_jobs=model.n_jobs)


def without_batches(X: Matrix, batch: np.ndarray, *, strength: float, seed: int, n_jobs: int | None) -> Correction:
    """Components of `X`, 50 at most, in which technical differences between batches are taken away."""
    with threads(n_jobs):
        Z = search_space(X, 50, seed=seed)
        Z = np.asarray(Z.toarray() if sp.issparse(Z) else Z, dtype=np.float32)
        return correct_batches(Z, batch, strength=strength, seed=seed, n_jobs=n_jobs)


def batch_codes(batch: Any, n: int, name: str = "batch") -> tuple[np.ndarray, list[str]]:
    """Number the batches of `n` rows from 0 in the order of their names; refuse missing values."""
    values = np.asarray(batch, dtype=object)
    if values.shape != (n,):
        raise ValueError(f"{name} must hold one batch for each of {n} rows, found shape {values.shape}.")
    missing = np.array([value is None or value != value for value in values])
    if missing.any():
        raise ValueError(f"{name} has {int(missing.sum())} missing values: give these rows a batch, or drop them.")
    names, codes = np.unique(values.astype(str), return_inverse=True)
    return codes, names.tolist()


def report(correction: Correction, names: list[str], tell: Any) -> None:
    """Say batch by batch what was done, and warn of those that have too little in common with the others."""
    by_outcome: dict[str, list[str]] = {}
    for name, outcome in zip(names, correction.outcome, strict=True):
        by_outcome.setdefault(outcome, []).append(name)
    for outcome, batches in by_outcome.items():
        tell(f"batches {outcome}: {', '.join(batches)}")
    if left := by_outcome.get("left as it is"):
        warn(
            f"{len(left)} of {len(names)} batches have too little in common with the others to be corrected, and are left "
            f"as they are: {', '.join(left[:10])}{', …' if len(left) > 10 else ''}."
        )
