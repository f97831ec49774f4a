"""A tree of nested partitions that passes through a given one: its clusters join above it and split below it.

Small groups of points within a cluster are merged along the graph, by gain of modularity. From the top, the split comes
first whose two sides are linked the least. Which leaf a point belongs to is read off the encoder's first hidden layer, in
which more of the differences within a cluster is left than in later ones: these have to forget them to make it compact.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TypeAlias

import numpy as np
import scipy.sparse as sp
from numpy.random import Generator

from scvcc._clusters.assignment import best_power
from scvcc._clusters.evidence import shrunk_covariance, split_p
from scvcc._clusters.merging import ClusterGraph, Linkage, compact
from scvcc._clusters.partition import kmeans_labels

Edges: TypeAlias = tuple[np.ndarray, np.ndarray, np.ndarray]  # both ends and the weights of edges
LINKAGE = Linkage(resolution=1.0)  # nearest to direct fits of five linkages, above the partition and below it


@dataclass(frozen=True)
class Tree:
    """Leaves, and the merges of them one by one until all are one; after some of them, the clusters are the fitted ones.

    Leaves are numbered along the tree, so that those of a node follow each other below the fitted partition. A node goes
    by the number of its first leaf.
    """

    cluster: np.ndarray  # (L,) fitted cluster of each leaf, ascending
    size: np.ndarray  # (L,) rows of each leaf
    merges: np.ndarray  # (L - 1, 2) nodes that become one, and go by the first of the two
    link: np.ndarray  # (L - 1,) weight between the two, relative to the geometric mean of their volumes

    @property
    def first(self) -> np.ndarray:
        """The first leaf of each fitted cluster, (K,)."""
        return np.unique(self.cluster, return_index=True)[1]

    def cut(self, n_clusters: int) -> np.ndarray:
        """The cluster of each leaf where the tree has `n_clusters`, (L,); with K clusters, the fitted ones."""
        parent = np.arange(len(self.cluster))
        for kept, absorbed in self.merges[: len(parent) - n_clusters]:
            parent[parent == absorbed] = kept
        return compact(parent)

    def names(self, n_clusters: int, clusters: Sequence[str] | None = None) -> list[str]:
        """Names of the clusters of a cut: "0+3" for two that joined, "3,0" and "3,1" for the parts of "3"."""
        first, n_leaves = self.first, len(self.cluster)
        clusters = list(map(str, range(len(first)))) if clusters is None else clusters
        if n_clusters <= len(first):
            node = self.cut(n_clusters)[first]
            return [
                "+".join(name for name, own in zip(clusters, node, strict=True) if own == k) for k in range(n_clusters)
            ]
        name = dict(zip(first.tolist(), clusters, strict=True))
        for kept, absorbed in self.merges[n_leaves - n_clusters : n_leaves - len(first)][::-1].tolist():
            name[kept], name[absorbed] = f"{name[kept]},0", f"{name[kept]},1"
        return [name[leaf] for leaf in sorted(name)]

    def joined(self, names: Sequence[str], group: np.ndarray) -> list[str]:
        """The name of each cluster of a cut where those of a `group` become one.

        "3,0" and "3,1" are "3" again; "3,0" and "4" are "3,0+4".
        """
        n_leaves, n_clusters = len(self.cluster), len(names)
        first = np.unique(self.cut(n_clusters), return_index=True)[1].tolist()
        name, own = dict(zip(first, names, strict=True)), dict(zip(first, group.tolist(), strict=True))
        whole = set(first)  # nodes that lie in one group
        for kept, absorbed in self.merges[n_leaves - n_clusters : n_leaves - len(self.first)].tolist():
            if {kept, absorbed} <= whole and own[kept] == own[absorbed]:
                name[kept] = name[kept].removesuffix(",0")
                del name[absorbed]
            else:
                whole.discard(kept)
        return ["+".join(part for node, part in name.items() if own[node] == k) for k in group.tolist()]

    def sides(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """The leaves of the two nodes of each merge."""
        members = {leaf: np.array([leaf]) for leaf in range(len(self.cluster))}
        for kept, absorbed in self.merges.tolist():
            yield members[kept], members[absorbed]
            members[kept] = np.concatenate([members[kept], members.pop(absorbed)])


def find_leaves(
    H: np.ndarray, graph: sp.csr_matrix, labels: np.ndarray, rng: Generator, min_size: int, most: int = 1000
) -> np.ndarray:
    """Groups of the points of each cluster, (n,), of `min_size` points or more, and about `most` at the most.

    Near points make up a group, and too small ones join those in their cluster that the graph leads to.
    """
    K = int(labels.max()) + 1
    count = int(np.clip(len(H) // 5, 1, max(most, 4 * K)))
    group = compact(labels * count + kmeans_labels(H, count, rng, init="random", max_iter=5))
    view, owner = ClusterGraph.of(graph, group), np.zeros(int(group.max()) + 1, np.intp)
    owner[group] = labels
    leaf, n_leaves = np.empty(len(owner), np.intp), 0
    for k in range(K):
        members = np.flatnonzero(owner == k)
        part = view.among(members)
        for parent in chain([np.arange(len(members))], replace(LINKAGE, min_size=min_size).merge_chain(part)):
            parts = compact(parent)
            if np.bincount(parts, part.size).min() >= min_size:
                break
        leaf[members] = n_leaves + parts
        n_leaves += int(parts.max()) + 1
    return leaf[group]


def grow_tree(graph: sp.csr_matrix, leaf: np.ndarray, labels: np.ndarray) -> tuple[Tree, np.ndarray]:
    """The tree over leaves 0 … L−1 that lie within clusters, and the old number of each of its leaves."""
    view, cluster = ClusterGraph.of(graph, leaf), np.zeros(int(leaf.max()) + 1, np.intp)
    cluster[leaf] = labels
    groups = [np.flatnonzero(cluster == k) for k in range(int(labels.max()) + 1)]
    chains = [_splits(view.among(members)) for members in groups]
    pairs = np.concatenate([members[merges] for members, (merges, _, _) in zip(groups, chains, strict=True)])
    link, key = (np.concatenate([found[i] for found in chains]) for i in (1, 2))
    fine = np.argsort(-key, kind="stable")
    above, above_link, above_key = _splits(view.merged(cluster))
    coarse = np.argsort(-above_key, kind="stable")
    order = _larger_first(pairs[fine], groups, view.size)
    joins = np.concatenate([pairs[fine], np.array([group[0] for group in groups])[above[coarse]]])
    tree = Tree(cluster[order], view.size[order], _renumbered(joins, order), np.append(link[fine], above_link[coarse]))
    return tree, order


def _splits(view: ClusterGraph) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Merges of all clusters, how strongly the two sides are linked, and the strongest link from there to the top.

    In descending order of the last, a merge comes before those that it is a part of.
    """
    merges, share, volume = LINKAGE.merges(view), view.share.copy(), view.volume.copy()
    link, above = np.zeros(len(merges)), np.full(len(volume), -1)
    parent = np.full(len(merges), -1)  # the merge that the node of a merge is a side of
    for i, (kept, absorbed) in enumerate(merges):
        link[i] = share[kept, absorbed] / max(np.sqrt(volume[kept] * volume[absorbed]), 1e-300)
        for side in (kept, absorbed):
            if above[side] >= 0:
                parent[above[side]] = i
        above[kept] = i
        share[kept] += share[absorbed]
        share[:, kept] += share[:, absorbed]
        volume[kept] += volume[absorbed]
    key = link.copy()
    for i in range(len(merges) - 2, -1, -1):
        key[i] = max(key[i], key[parent[i]])
    return merges, link, key


def _larger_first(merges: np.ndarray, groups: Sequence[np.ndarray], size: np.ndarray) -> np.ndarray:
    """Leaves cluster by cluster in the order of the tree, the larger side of each merge first."""
    block = {leaf: [leaf] for leaf in range(len(size))}
    for kept, absorbed in merges.tolist():
        sides = sorted((block[kept], block.pop(absorbed)), key=lambda leaves: -size[leaves].sum())
        block[kept] = sides[0] + sides[1]
    return np.concatenate([block[int(group[0])] for group in groups])


def _renumbered(merges: np.ndarray, order: np.ndarray) -> np.ndarray:
    """The same merges where leaves are numbered by `order`, and nodes go by their first leaf."""
    first, new = np.argsort(order), np.empty_like(merges)
    for i, (kept, absorbed) in enumerate(merges):
        new[i] = sorted((first[kept], first[absorbed]))
        first[kept] = new[i, 0]
    return new


def split_support(
    tree: Tree, n_clusters: int, X: np.ndarray, leaf: np.ndarray, rng: Generator, batch: np.ndarray | None = None
) -> np.ndarray:
    """P-value of one hump for the two sides of each merge, (L - 1,); NaN for splits below `n_clusters`."""
    p = np.full(len(tree.merges), np.nan)
    for i, (a, b) in enumerate(tree.sides()):
        if i >= len(tree.size) - n_clusters:
            rows = np.flatnonzero(np.isin(leaf, np.concatenate([a, b])))
            side = np.isin(leaf[rows], b).astype(np.intp)
            own = None if batch is None else batch[rows]
            p[i] = split_p(X[rows].astype(np.float64), side, rng, batch=own)
    return p


# -------------------------------------------------------------------------------------------- the leaf of a point


@dataclass(frozen=True)
class LeafRule:
    """Linear scores of leaves in the encoder's first hidden layer; those of one cluster are compared with each other."""

    weights: np.ndarray  # (width of the layer, L) float32
    offset: np.ndarray  # (L,) float32

    def among(self, leaves: np.ndarray) -> "LeafRule":
        """The rule for some of the leaves."""
        return LeafRule(np.ascontiguousarray(self.weights[:, leaves]), self.offset[leaves])


def fit_leaf_rule(Z: np.ndarray, leaf: np.ndarray, rng: Generator, most: int = 5000) -> LeafRule:
    """Shrunk linear discriminant of leaves 0 … L−1 on the first hidden layer; spread inside leaves from `most` rows."""
    n, size = len(leaf), np.bincount(leaf)
    members = sp.csr_matrix((np.ones(n, np.float32), (leaf, np.arange(n))))
    means = (members @ Z).astype(np.float64) / size[:, None]
    rows = np.sort(rng.choice(n, min(n, most), replace=False))
    covariance = shrunk_covariance(Z[rows] - means[leaf[rows]])
    covariance += 1e-9 * (np.trace(covariance) / len(covariance) + 1) * np.eye(len(covariance))
    weights = np.linalg.solve(covariance, means.T)
    offset = np.log(size) - (means.T * weights).sum(axis=0) / 2
    return LeafRule(weights.astype(np.float32), offset.astype(np.float32))


def assign_leaves(scores: np.ndarray, labels: np.ndarray, cluster: np.ndarray) -> np.ndarray:
    """The leaf with the highest score among those of each row's cluster."""
    return np.where(cluster == labels[:, None], scores, -np.inf).argmax(axis=1)


def calibrated(rule: LeafRule, scores: np.ndarray, leaf: np.ndarray, cluster: np.ndarray, edges: Edges) -> LeafRule:
    """The rule with its scores stretched by the number with which they predict the leaves of graph neighbors best.

    Only neighbors in the same cluster count.
    """
    heads, tails, weights = edges
    within = (cluster[leaf[heads]] == cluster[leaf[tails]]) & (np.bincount(cluster)[cluster[leaf[heads]]] > 1)
    if not within.any():
        return rule
    own = cluster[leaf[heads[within]]]
    starts, counts = np.unique(cluster, return_index=True)[1], np.bincount(cluster)
    place = np.arange(counts.max())
    columns = np.minimum(starts[own][:, None] + place, len(cluster) - 1)
    among = np.where(place < counts[own][:, None], scores[heads[within][:, None], columns], -np.inf)
    power = best_power(among, leaf[tails[within]] - starts[own], weights[within], lowest=-5.0)
    return LeafRule(rule.weights * np.float32(power), rule.offset * np.float32(power))


def leaf_probabilities(scores: np.ndarray, probabilities: np.ndarray, cluster: np.ndarray) -> np.ndarray:
    """Probability of each leaf, (n, L): that of its cluster, shared out among the cluster's leaves by their scores."""
    starts = np.unique(cluster, return_index=True)[1]
    scores = scores.astype(np.float64)
    scores = np.exp(scores - np.maximum.reduceat(scores, starts, axis=1)[:, cluster])
    return probabilities[:, cluster] * scores / np.add.reduceat(scores, starts, axis=1)[:, cluster]
