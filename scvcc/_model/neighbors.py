"""Which rows a model is trained on, and the neighbors among them, where no graph is given."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from scvcc._model.sketch import sketch
from scvcc._training.graph import neighbor_distances, search_space
from scvcc._training.threads import threads

if TYPE_CHECKING:
    import numpy as np
    import scipy.sparse as sp

    from scvcc._model.vcc import VCC
    from scvcc._training.graph import Matrix

logger = logging.getLogger("scvcc")


def rows_to_train_on(X: Matrix, model: VCC, seed: int) -> np.ndarray | None:
    """Numbers of the rows of a sketch, ascending, or None where all rows are trained on."""
    n, most = X.shape[0], model.max_train_cells
    if most is None or n <= most:
        return None
    logger.info("%d rows, more than max_train_cells=%d: training on a sketch of them.", n, most)
    with threads(model.n_jobs):
        return sketch(X, most, metric=model.metric, seed=seed)


def search(X: Matrix, model: VCC, seed: int) -> sp.csr_matrix:
    """Distances from each row to its neighbors; `n_neighbors` counts the row itself, as in scanpy."""
    n, size = X.shape[0], model.n_neighbors
    if n < size:
        raise ValueError(f"n_neighbors={size} needs at least {size} rows, but X has {n}. Set n_neighbors to {n} or less.")
    with threads(model.n_jobs):
        Z = search_space(X, model.n_pcs, seed=seed)
        return neighbor_distances(Z, size - 1, metric=model.metric, seed=seed, n_jobs=model.n_jobs)
