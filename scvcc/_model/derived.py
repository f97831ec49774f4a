"""What a fit makes of a trained encoder: its clusters by size, their support, the tree, and the rows that judge novelty."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse as sp
from sklearn.utils.validation import check_is_fitted

from scvcc._clusters.assignment import by_size, drop_small_clusters, nearest_center, random_edges
from scvcc._clusters.evidence import Points, Support, support_between
from scvcc._clusters.merging import compact
from scvcc._clusters.novelty import Sample, projection, take_sample
from scvcc._clusters.tree import LeafRule, Tree, assign_leaves, calibrated, find_leaves, fit_leaf_rule, grow_tree
from scvcc._model.checks import warn
from scvcc._model.rows import over_blocks, values
from scvcc._training.encoder import Encoder, Rows, early_width, encode_first_layer, encode_with_features
from scvcc._training.graph import Matrix
from scvcc._training.recipe import Trained
from scvcc._training.run import stream
from scvcc._training.settings import Settings
from scvcc._training.threads import threads

if TYPE_CHECKING:
    from scvcc._model.vcc import VCC


def numbered_by_size(H: np.ndarray, centers: np.ndarray, settings: Settings) -> tuple[np.ndarray, np.ndarray]:
    """Labels and centers by decreasing size of the clusters, without too small ones where their number was estimated."""
    if settings.n_clusters is None:
        centers = drop_small_clusters(H, centers, settings.min_cluster_size)
    labels = over_blocks(lambda block: nearest_center(block, centers), H)
    order = by_size(labels, len(centers))
    return np.argsort(order)[labels], centers[order]


def support_of(points: Points, labels: np.ndarray, rng: np.random.Generator, most_tested: int = 50) -> Support | None:
    """Evidence for neighboring clusters, unless there are too many: 200 clusters have a thousand pairs."""
    return support_between(points, labels, rng, most=1000) if labels.max() < most_tested else None


def grown(
    trained: Trained, X: Matrix, labels: np.ndarray, graph: sp.csr_matrix, min_size: int, rng: np.random.Generator
) -> tuple[Tree, LeafRule, np.ndarray]:
    """The tree over the rows trained on, the rule that tells its leaves, and the leaf of each row by that rule."""
    leaf = find_leaves(trained.structure, graph, labels, rng, min_size)
    tree, order = grow_tree(graph, leaf, labels)
    most = min(len(order), max(256, 2 * len(trained.centers)))
    # each leaf takes a column of weights in the model
    leaf = tree.cut(most)[np.argsort(order)[leaf]]
    cluster = tree.cluster[np.unique(tree.cut(most), return_index=True)[1]]

    rows = Rows(X, trained.encoder.center.device)
    rule = fit_leaf_rule(encode_first_layer(trained.encoder, rows), leaf, rng)
    scores = encode_first_layer(trained.encoder, rows, rule.weights) + rule.offset
    leaf = assign_leaves(scores, labels, cluster)
    rule = calibrated(rule, scores, leaf, cluster, random_edges(graph, 2000, rng))
    tree, order = grow_tree(graph, compact(leaf), labels)
    return tree, rule.among(np.unique(leaf)[order]), np.argsort(order)[compact(leaf)]


def sample_of_all(
    X: Matrix, encoder: Encoder, centers: np.ndarray, seed: int, shrinkage: np.ndarray | None = None
) -> Sample:
    """A random sample of all rows, which a sketch is not; `shrinkage` moves them to where new rows would be.

    Without it new rows of known kinds may all lie a little further out, and a mean over many of them would show just that:
    none are pooled then.
    """
    rng, n, device = stream(seed, "novelty"), X.shape[0], encoder.center.device
    chosen = np.sort(rng.choice(n, min(2000, n), replace=False))
    onto = projection(early_width(encoder.sizes), rng)
    rows = moved = values(X, chosen)
    if shrinkage is not None:
        moved = rows.mean(axis=0) + (rows - rows.mean(axis=0)) * shrinkage.astype(np.float32)
    (H, Z), (H_moved, Z_moved) = (encode_with_features(encoder, Rows(part, device), onto) for part in (rows, moved))
    labels, moved_labels = nearest_center(H, centers), nearest_center(H_moved, centers)
    sample = take_sample(Z, labels, Z_moved, moved_labels, onto, len(centers))
    return sample if shrinkage is not None else replace(sample, pooled=np.zeros_like(sample.pooled))


def expect_shrunk(model: VCC, X: Matrix, shrinkage: np.ndarray, seed: int) -> None:
    """Judge novelty as for new rows that come nearer to the mean of `X`, the rows of `fit`, than these."""
    check_is_fitted(model)
    with threads(model.n_jobs, X.shape[0]):
        model.sample_ = sample_of_all(X, model.encoder_, model.cluster_centers_, seed, shrinkage)


def warn_about(n_found: int, n: int, settings: Settings) -> None:
    """Say where the number of clusters found is not what was asked for, or their size cannot be."""
    if 2 * settings.min_cluster_size > n:
        warn(
            f"min_cluster_size={settings.min_cluster_size} is more than half of the {n} rows: no two clusters can be that large."
        )
    if n_found == 1:
        warn(
            "There is no evidence for more than one cluster: no valley of density separates any two. To divide the rows "
            "anyway, set n_clusters, without merge_unsupported."
        )
    elif n_found < (settings.n_clusters or 0) and not settings.merge_unsupported:
        warn(
            f"n_clusters={settings.n_clusters}, but only {n_found} clusters have points: the encoder cannot tell the others apart, "
            "most often because groups of rows lie far from each other. Ask for fewer clusters, or divide a group on its "
            "own (restrict_to of scvcc.tl.vcc)."
        )
