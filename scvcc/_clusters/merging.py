"""Clusters seen through the graph: its weight within and between them, and greedy merging along it."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numba as nb
import numpy as np
import scipy.sparse as sp

from scvcc._clusters.compiled import compiled


@dataclass(frozen=True)
class ClusterGraph:
    """A latent graph seen from a partition."""

    share: np.ndarray  # (k, k) of the graph's weight between clusters, diagonal: inside
    size: np.ndarray  # (k,) points

    @classmethod
    def of(cls, graph: sp.csr_matrix, labels: np.ndarray) -> Self:
        """The view from labels 0 … k−1."""
        k = int(labels.max()) + 1
        between = _weight_between(graph.indptr, graph.indices, graph.data, labels, k)
        return cls(between / between.sum(), np.bincount(labels, minlength=k))

    def merged(self, parent: np.ndarray) -> Self:
        """The view from a coarser partition; `parent` (k,) numbers the new cluster of each old one."""
        k = int(parent.max()) + 1
        pairs = parent[:, None] * k + parent[None, :]
        share = np.bincount(pairs.ravel(), weights=self.share.ravel(), minlength=k * k).reshape(k, k)
        return type(self)(share, np.bincount(parent, weights=self.size, minlength=k))

    def among(self, clusters: np.ndarray) -> Self:
        """The view of some clusters alone, as shares of the weight of the whole graph."""
        return type(self)(self.share[np.ix_(clusters, clusters)], self.size[clusters])

    @cached_property
    def volume(self) -> np.ndarray:
        """Share of the graph's weight at each cluster, (k,)."""
        return self.share.sum(axis=1)

    def modularity(self, resolution: float) -> float:
        """Share of weight inside clusters less what chance would give (Reichardt & Bornholdt 2006)."""
        return float(np.trace(self.share) - resolution * np.square(self.volume).sum())

    def cut(self) -> float:
        """Share of weight between clusters."""
        return float(1 - np.trace(self.share))

    def separation(self) -> float:
        """−log of the cut less log of the chance that two edge ends share a cluster: few cuts, many clusters."""
        return float(-np.log(self.cut() + 0.01) - np.log(np.square(self.volume).sum()))

    def weakest_conductance(self) -> float:
        """The largest share of any cluster's weight that leaves it: low if every cluster is a community."""
        inside = np.diagonal(self.share)
        return float(np.max(1 - np.divide(inside, self.volume, out=np.ones_like(inside), where=self.volume > 0)))

    def is_lopsided(self) -> bool:
        """Whether one cluster holds so much that the others are little more than outliers."""
        return bool(self.volume.max() > 0.5 + 0.5 / max(len(self.volume) - 1, 1))


@dataclass(frozen=True)
class Linkage:
    """How eagerly two clusters merge: gain of modularity at a resolution, or weight / (volume · volume) ** power.

    Power 1 is the linkage of Bonald et al. (2018); lower powers favor merging large clusters. Clusters below
    `min_size` points, or that share of all points, are absorbed first.
    """

    resolution: float | None = None
    power: float = 1.0
    min_size: float = 0

    def least(self, n: float) -> float:
        """The smallest size, in points, that a cluster of `n` points is not absorbed at."""
        return self.min_size * n if self.min_size < 1 else self.min_size

    def merges(self, clusters: ClusterGraph, n_clusters: int = 1) -> np.ndarray:
        """Greedy merges down to `n_clusters`: the cluster that is kept and the higher one that it absorbs, (merges, 2)."""
        size, gains = clusters.size.astype(np.float64), self.resolution is not None
        factor, power = (1.0, self.power) if self.resolution is None else (math.sqrt(self.resolution), 1.0)
        least = float(self.least(size.sum()))
        return _merges(clusters.share.copy(), clusters.volume.copy(), size, n_clusters, gains, factor, power, least)

    def merge_chain(self, clusters: ClusterGraph) -> Iterator[np.ndarray]:
        """The cluster of each original cluster after every merge, down to a single one."""
        merges = self.merges(clusters)
        return (_parent(merges[:done], len(clusters.size)) for done in range(1, len(merges) + 1))


def merge_clusters(fine: ClusterGraph, n_clusters: int, linkage: Linkage) -> np.ndarray:
    """The cluster of each cluster of a fine partition when it is merged down to `n_clusters`."""
    return compact(_parent(linkage.merges(fine, n_clusters), len(fine.size)))


def _parent(merges: np.ndarray, k: int) -> np.ndarray:
    """The cluster of each of `k` clusters after some merges."""
    parent = np.arange(k)
    parent[merges[:, 1]] = merges[:, 0]
    while (parent != parent[parent]).any():
        parent = parent[parent]
    return parent


def compact(labels: np.ndarray) -> np.ndarray:
    """Renumber labels 0 … K−1 without gaps."""
    return np.unique(labels, return_inverse=True)[1].reshape(-1)


@compiled()
def _weight_between(pointers, neighbors, weights, labels, k):
    """Sum of the weights from each cluster to each, (k, k)."""
    between = np.zeros((k, k))
    for i in range(len(labels)):
        for e in range(pointers[i], pointers[i + 1]):
            between[labels[i], labels[neighbors[e]]] += weights[e]
    return between


@nb.njit(inline="always")
def _strength(weight, chance, gains):
    """How eagerly two clusters merge."""
    if gains:
        return weight - chance
    return weight / chance if weight > 0 else 0.0


@nb.njit(inline="always")
def _best_partner(share, part, alive, a, gains):
    """The cluster that `a` merges most eagerly with, the first if there are several, and how eagerly."""
    best, most = -1, -np.inf
    for b in range(len(part)):
        if alive[b] and b != a:
            value = _strength(share[a, b], part[a] * part[b], gains)
            if value > most:
                best, most = b, value
    return best, most


@compiled()
def _merges(share, volume, size, n_clusters, gains, factor, power, least):
    """The merges of `Linkage.merges`; overwrites the arrays. Each cluster remembers its best partner, (partner, most)."""
    k = len(volume)
    part = factor * volume**power  # of a cluster in the chance of a pair
    alive, merges = np.ones(k, np.bool_), np.empty((max(k - n_clusters, 0), 2), np.int64)
    partner, most = np.empty(k, np.int64), np.empty(k)
    for a in range(k):
        partner[a], most[a] = _best_partner(share, part, alive, a, gains)
    for done in range(len(merges)):
        first, smallest = np.argmax(most), np.argmin(size)
        if size[smallest] < least:
            first = smallest
        kept, absorbed = min(first, partner[first]), max(first, partner[first])
        merges[done, 0], merges[done, 1] = kept, absorbed
        for a in range(k):
            share[kept, a] += share[absorbed, a]
        share[kept, kept] += share[kept, absorbed]
        volume[kept] += volume[absorbed]
        part[kept] = factor * volume[kept] ** power
        size[kept] += size[absorbed]
        size[absorbed], most[absorbed], alive[absorbed] = np.inf, -np.inf, False
        for a in range(k):
            if not alive[a]:
                continue
            if share[absorbed, a] > 0:
                share[a, kept] = share[kept, a]
            value = _strength(share[kept, a], part[kept] * part[a], gains)
            if a == kept or partner[a] in (kept, absorbed):
                partner[a], most[a] = _best_partner(share, part, alive, a, gains)
            elif value > most[a] or (value == most[a] and kept < partner[a]):
                partner[a], most[a] = kept, value
    return merges
