"""How well a partition agrees with known groups, and how tight the clusters of an embedding are."""

import numpy as np
import pandas as pd
import scipy.sparse as sp
from numpy.typing import ArrayLike
from scipy.optimize import linear_sum_assignment
from scipy.spatial import cKDTree
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score
from sklearn.metrics.cluster import contingency_matrix

from scvcc._training.graph import attractive_forces, check_graph, check_sparse, entry_rows

__all__ = ["ari", "batch_mixing", "boundary_score", "clustering_accuracy", "compactness", "nmi"]


def __dir__() -> list[str]:
    return __all__


def clustering_accuracy(labels_true: ArrayLike, labels_pred: ArrayLike) -> float:
    """Share of points whose cluster is matched to their group, under the best one-to-one matching (Hungarian method).

    Clusters without a group of their own, when there are more clusters than groups, count as wrong.

    Parameters
    ----------
    labels_true
        Known group of each point: numbers, strings or a categorical column.
    labels_pred
        Cluster of each point.

    Returns
    -------
    A number between 0 and 1.

    Examples
    --------
    >>> import scvcc
    >>> scvcc.metrics.clustering_accuracy(["B", "B", "T", "T"], [1, 1, 0, 1])
    0.75
    """
    table = contingency_matrix(*_label_pair(labels_true, labels_pred))
    groups, clusters = linear_sum_assignment(table, maximize=True)
    return float(table[groups, clusters].sum() / table.sum())


def nmi(labels_true: ArrayLike, labels_pred: ArrayLike) -> float:
    """Normalized mutual information with the arithmetic mean of the two entropies.

    Parameters
    ----------
    labels_true
        Known group of each point: numbers, strings or a categorical column.
    labels_pred
        Cluster of each point.

    Returns
    -------
    A number between 0 (independent) and 1 (the same partition).

    Examples
    --------
    >>> import scvcc
    >>> scvcc.metrics.nmi(["B", "B", "T", "T"], [1, 1, 0, 0])
    1.0
    """
    return float(normalized_mutual_info_score(*_label_pair(labels_true, labels_pred)))


def ari(labels_true: ArrayLike, labels_pred: ArrayLike) -> float:
    """Adjusted Rand index: pairs of points on which the two partitions agree, corrected for chance.

    Parameters
    ----------
    labels_true
        Known group of each point: numbers, strings or a categorical column.
    labels_pred
        Cluster of each point.

    Returns
    -------
    1 for the same partition, about 0 for independent ones.

    Examples
    --------
    >>> import scvcc
    >>> scvcc.metrics.ari(["B", "B", "T", "T"], [1, 1, 0, 0])
    1.0
    """
    return float(adjusted_rand_score(*_label_pair(labels_true, labels_pred)))


def compactness(embedding: ArrayLike, labels: ArrayLike) -> float:
    r"""How tight the clusters of an embedding are in relation to the gaps between them.

    With the spread :math:`s`, the mean distance of a point to the center of its cluster, and the gap :math:`g`, the
    mean distance of a cluster's center to the nearest other center (each cluster weighted by its size), this is
    :math:`g / (g + s)`. It does not depend on the units of the embedding.

    Parameters
    ----------
    embedding
        Coordinates, one row for each point.
    labels
        Cluster of each point; at least two clusters.

    Returns
    -------
    A number between 0 and 1; 1 when each cluster is a single point, 0.5 when points are as far from their own center as
    that is from the next one.

    Examples
    --------
    >>> import numpy as np
    >>> import scvcc
    >>> points = np.array([[0.0, 0.0], [0.0, 2.0], [9.0, 0.0], [9.0, 2.0]])
    >>> round(scvcc.metrics.compactness(points, ["a", "a", "b", "b"]), 3)
    0.9
    """
    H = np.asarray(embedding)
    if H.dtype.kind not in "biuf":
        raise TypeError(f"embedding must be numbers, found dtype {H.dtype}.")
    codes = _codes(labels, "labels")
    if H.ndim != 2 or H.shape[1] == 0 or len(H) != len(codes):
        raise ValueError(f"embedding has shape {H.shape}, but there are {len(codes)} labels: give one row per label.")
    if not np.isfinite(H).all():
        raise ValueError("embedding has NaN or infinite entries: select the points that have coordinates first.")
    H = H / (np.abs(H).max() or 1)  # squares of very large or small numbers overflow
    sizes = np.bincount(codes)
    if len(sizes) < 2:
        raise ValueError("labels name a single cluster: compactness compares clusters and needs at least two.")
    centers = np.stack([np.bincount(codes, weights=column) for column in H.T], axis=1) / sizes[:, None]
    spread = float(np.linalg.norm(H - centers[codes], axis=1).mean())
    nearest = cKDTree(centers).query(centers, k=2)[0][:, 1]
    gap = float(np.average(nearest, weights=sizes))
    return gap / (gap + spread) if gap + spread > 0 else 0.0


def batch_mixing(graph: sp.spmatrix | sp.sparray, batch: ArrayLike) -> np.ndarray:
    """How well batches are mixed around each cell: the share of its neighbors from other batches, relative to chance.

    Parameters
    ----------
    graph
        Neighbors, sparse (n, n), such as `adata.obsp["vcc_neighbors_distances"]`. Only which
        entries are stored counts, not their values.
    batch
        Batch of each cell.

    Returns
    -------
    Scores (n,): 0 if all neighbors are of the cell's own batch, 1 if they are as mixed as all cells. A score can exceed
    1, and is NaN for a cell without neighbors, and for all cells of a single batch.

    Examples
    --------
    >>> import scanpy as sc
    >>> import scvcc
    >>> adata = sc.datasets.pbmc68k_reduced()
    >>> score = scvcc.metrics.batch_mixing(adata.obsp["distances"], adata.obs["phase"])
    >>> bool(0.5 < score.mean() < 1.1)
    True
    """
    codes = _codes(batch, "batch")
    if not sp.issparse(graph):
        raise TypeError(f"graph must be a scipy sparse matrix or array, found {type(graph).__name__}.")
    check_sparse(graph, "graph")
    csr = sp.csr_matrix(graph)
    if csr.shape != (len(codes), len(codes)):
        raise ValueError(f"graph has shape {csr.shape}, but batch has {len(codes)} entries: give one batch per cell.")
    rows = entry_rows(csr)
    other, n_others = codes[rows] != codes[csr.indices], rows != csr.indices
    total = np.bincount(rows, n_others, len(codes))
    foreign = np.bincount(rows, other, len(codes))
    chance = (len(codes) - np.bincount(codes)[codes]) / max(len(codes) - 1, 1)
    return np.divide(foreign, total * chance, out=np.full(len(codes), np.nan), where=total * chance > 0)


def boundary_score(distances: sp.spmatrix | sp.sparray) -> np.ndarray:
    r"""How uneven the distances from each cell to its neighbors are: a hint at borders between clusters.

    By Lemma 1 of the VCC paper :cite:p:`vcc`, normalized neighbor distances vary more at the border of a cluster than
    inside it. The score is the standard deviation of a cell's attractive forces, the softmax of its negative neighbor
    distances, over their mean. On real data the hint is weak; the confidence of :func:`scvcc.tl.vcc` is a better one.

    Parameters
    ----------
    distances
        Distances to neighbors, sparse (n, n), such as `adata.obsp["distances"]`.

    Returns
    -------
    Scores (n,), 0 for cells with fewer than two neighbors.

    Examples
    --------
    >>> import scanpy as sc
    >>> import scvcc
    >>> adata = sc.datasets.pbmc68k_reduced()
    >>> scvcc.metrics.boundary_score(adata.obsp["distances"]).shape
    (700,)
    """
    F = attractive_forces(check_graph(distances, getattr(distances, "shape", (0,))[0], "distance"))
    n, rows = F.shape[0], entry_rows(F)
    n_neighbors = np.maximum(np.diff(F.indptr), 1)
    mean = np.bincount(rows, weights=F.data, minlength=n) / n_neighbors
    variance = np.bincount(rows, weights=(F.data - mean[rows]) ** 2, minlength=n) / n_neighbors
    return np.divide(np.sqrt(variance), mean, out=np.zeros(n), where=mean > 0).astype(np.float32)


def _label_pair(labels_true: ArrayLike, labels_pred: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    true, pred = _codes(labels_true, "labels_true"), _codes(labels_pred, "labels_pred")
    if len(true) != len(pred):
        raise ValueError(
            f"labels_true has {len(true)} entries and labels_pred {len(pred)}: give one of each per point."
        )
    return true, pred


def _codes(labels: ArrayLike, name: str) -> np.ndarray:
    """Number the distinct labels from 0; refuse what cannot be one label per point."""
    # as objects, or numpy would make text of a missing value among strings
    values = np.asarray(labels) if hasattr(labels, "dtype") else np.asarray(labels, dtype=object)
    if values.ndim != 1 or len(values) == 0:
        raise ValueError(f"{name} must be a non-empty list of one label per point, found shape {values.shape}.")
    codes, _ = pd.factorize(values)
    if (codes < 0).any():
        raise ValueError(
            f"{name} has {int((codes < 0).sum())} missing values: drop those points, or give them a label of their own."
        )
    return codes
