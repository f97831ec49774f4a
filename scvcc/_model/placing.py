"""Rows, new ones too, read block by block by a fitted model: their place on the map, label, probabilities and novelty."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from sklearn.utils.validation import check_is_fitted

from scvcc._clusters import assignment
from scvcc._clusters.assignment import nearest_center
from scvcc._clusters.novelty import Companions, novelty, pool
from scvcc._clusters.tree import LeafRule, Tree, assign_leaves, leaf_probabilities
from scvcc._model.checks import check_integer
from scvcc._model.lazy import is_lazy
from scvcc._model.rows import checked, lazily, over_blocks, readable, take_rows
from scvcc._training.encoder import Encoder, Rows, encode, encode_first_layer, encode_with_features
from scvcc._training.graph import Matrix
from scvcc._training.threads import threads

if TYPE_CHECKING:
    from scvcc._model.vcc import VCC


def over_rows(
    model: VCC, X: Matrix, function: Callable[[VCC, Matrix], np.ndarray], n_clusters: int | None = None
) -> np.ndarray:
    """What `function` makes of a model and the rows of `X`, which are read block by block; lazily if dask holds them."""
    check_is_fitted(model)
    if n_clusters is not None:
        check_cut(n_clusters, len(model.tree_.size))
    X = readable(model, X, reset=False)
    if is_lazy(X):
        return lazily(partial(function, _without_rows(model)), X)
    with threads(model.n_jobs, X.shape[0]):
        return over_blocks(partial(function, model), X)


def transformed(model: VCC, block: Matrix) -> np.ndarray:
    return embedded(model.encoder_, block)


def predicted(model: VCC, block: Matrix, n_clusters: int | None = None) -> np.ndarray:
    tree = model.tree_
    if n_clusters is None or n_clusters <= model.n_clusters_:
        labels = nearest_center(embedded(model.encoder_, block), model.cluster_centers_)
        return labels if n_clusters is None else tree.cut(n_clusters)[tree.first][labels]
    return tree.cut(n_clusters)[leaf_of(model.encoder_, model.cluster_centers_, tree, model.leaf_rule_, block)]


def probable(model: VCC, block: Matrix, n_clusters: int | None = None) -> np.ndarray:
    P, tree = probabilities(model, embedded(model.encoder_, block)), model.tree_
    if n_clusters is None:
        return P
    node = tree.cut(n_clusters)
    if n_clusters <= model.n_clusters_:
        node = node[tree.first]
    else:
        P = leaf_probabilities(_leaf_scores(model.encoder_, model.leaf_rule_, block), P, tree.cluster)
    return P @ (node[:, None] == np.arange(n_clusters))


def novel(model: VCC, block: Matrix) -> np.ndarray:
    return _placed(model, block)[:, -1]


def probabilities(model: VCC, H: np.ndarray) -> np.ndarray:
    """Probability of each cluster at places `H` of the map, (n, n_clusters_)."""
    return assignment.probabilities(H, model.cluster_centers_, model.sharpness_)


def place(
    model: VCC, X: Matrix, project: Callable[[Matrix], Matrix], most: int = 2000
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Where the rows of a query are on the map, their novelty, and that of some of them taken alone.

    `project` makes blocks of rows what the encoder knows. Novelty is pooled with that of at most 2,000 rows, which are
    read first: given these, each row is for itself.
    """
    chosen = np.sort(np.random.default_rng(0).permutation(X.shape[0])[:most])
    with threads(model.n_jobs, X.shape[0]):
        light = _without_rows(model)
        some = over_blocks(lambda block: np.column_stack(_alone(light, project(block))[1:]), take_rows(X, chosen))
        companions = Companions(some[:, :-1], some[:, -1])
        both = over_blocks(partial(_projected, light, project, companions), X)
    return np.ascontiguousarray(both[:, :-1]), both[:, -1], companions.novelty


def _projected(model: VCC, project: Callable[[Matrix], Matrix], companions: Companions, block: Matrix) -> np.ndarray:
    return _placed(model, project(block), companions)


def relabeled(
    model: VCC, X: Matrix, project: Callable[[Matrix], Matrix], n_clusters: int
) -> tuple[np.ndarray, np.ndarray]:
    """Labels of a query where the tree is cut into `n_clusters`, and the probability of each label."""
    with threads(model.n_jobs, X.shape[0]):
        both = over_blocks(partial(_relabeled, _without_rows(model), project, n_clusters), X)
    return both[:, 0].astype(np.int64), both[:, 1]


def _relabeled(model: VCC, project: Callable[[Matrix], Matrix], n_clusters: int, block: Matrix) -> np.ndarray:
    X = project(block)
    labels = predicted(model, X, n_clusters)
    return np.column_stack([labels, probable(model, X, n_clusters)[np.arange(len(labels)), labels]])


def check_cut(n_clusters: int, n_leaves: int) -> None:
    """Refuse a number of clusters that the tree does not have."""
    check_integer("n_clusters", n_clusters, (1, n_leaves), "the leaves of the tree")


def embedded(encoder: Encoder, block: Matrix) -> np.ndarray:
    return _placeable(encode(encoder, Rows(checked(block), encoder.center.device)).cpu().numpy())


def leaf_of(encoder: Encoder, centers: np.ndarray, tree: Tree, rule: LeafRule, block: Matrix) -> np.ndarray:
    labels = nearest_center(embedded(encoder, block), centers)
    return assign_leaves(_leaf_scores(encoder, rule, block), labels, tree.cluster)


def _leaf_scores(encoder: Encoder, rule: LeafRule, block: Matrix) -> np.ndarray:
    return encode_first_layer(encoder, Rows(checked(block), encoder.center.device), rule.weights) + rule.offset


def _placed(model: VCC, block: Matrix, companions: Companions | None = None) -> np.ndarray:
    """Embedding, and novelty in the last column."""
    H, Z, found = _alone(model, block)
    return np.column_stack([H, found if companions is None else pool(model.sample_, companions, Z, found)])


def _alone(model: VCC, block: Matrix) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Embedding, early features, and the novelty of each row by itself."""
    rows = Rows(checked(block), model.encoder_.center.device)
    H, Z = encode_with_features(model.encoder_, rows, model.sample_.projection)
    return _placeable(H), Z, novelty(model.sample_, Z, nearest_center(H, model.cluster_centers_))


def _placeable(H: np.ndarray) -> np.ndarray:
    if not np.isfinite(H).all():
        raise ValueError(
            "X has rows so far from the training data that single precision overflows: check the units of X."
        )
    return H


def _without_rows(model: VCC) -> VCC:
    """The model without what it knows of single rows, light enough to travel to other processes."""
    light = copy(model)
    for name in ("embedding_", "labels_", "leaves_", "trained_rows_", "graph_", "history_", "stages_", "extra_"):
        light.__dict__.pop(name, None)
    return light
