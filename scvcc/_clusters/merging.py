"""Clusters seen through the graph: its weight within and between them, and greedy merging along it."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numba as nb
import numpy as np
import scipy.sparse as sp


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

    def strength(self, weight: np.ndarray, volume_a: np.ndarray, volume_b: np.ndarray) -> np.ndarray:
        chance = volume_a * volume_b
        if self.resolution is not None:
            return weight - self.resolution * chance
        return np.divide(weight, chance**self.power, out=np.zeros_like(weight), where=chance > 0)

    def least(self, n: float) -> float:
        """The smallest size, in points, that a cluster of `n` points is not absorbed at."""
        return self.min_size * n if self.min_size < 1 else self.min_size

    def merge_chain(self, clusters: ClusterGraph) -> Iterator[np.ndarray]:
        """Greedy merges: the cluster of each original cluster after every merge, down to a single one."""
        k = len(clusters.volume)
        share, volume, size = clusters.share.copy(), clusters.volume.copy(), clusters.size.astype(float)
        least = self.least(size.sum())
        strength = self.strength(share, volume[:, None], volume[None, :])
        np.fill_diagonal(strength, -np.inf)
        alive, parent = np.ones(k, dtype=bool), np.arange(k)
        for _ in range(k - 1):
            smallest = int(np.argmin(np.where(alive, size, np.inf)))
            if size[smallest] < least:
                pair = smallest, int(np.argmax(strength[smallest]))
            else:
                pair = divmod(int(np.argmax(strength)), k)
            kept, absorbed = sorted(pair)
            share[kept] += share[absorbed]
            share[:, kept] += share[:, absorbed]
            volume[kept] += volume[absorbed]
            size[kept] += size[absorbed]
            alive[absorbed] = False
            parent[parent == absorbed] = kept
            updated = np.where(alive, self.strength(share[kept], volume[kept], volume), -np.inf)
            updated[kept] = -np.inf
            strength[kept] = strength[:, kept] = updated
            strength[absorbed] = strength[:, absorbed] = -np.inf
            yield parent.copy()


def merge_clusters(fine: ClusterGraph, n_clusters: int, linkage: Linkage) -> np.ndarray:
    """The cluster of each cluster of a fine partition when it is merged down to `n_clusters`."""
    parent = np.arange(len(fine.volume))
    for merges, coarser in enumerate(linkage.merge_chain(fine), start=1):
        if len(fine.volume) - merges < n_clusters:
            break
        parent = coarser
    return compact(parent)


def compact(labels: np.ndarray) -> np.ndarray:
    """Renumber labels 0 … K−1 without gaps."""
    return np.unique(labels, return_inverse=True)[1].reshape(-1)


@nb.njit(cache=True)
def _weight_between(pointers, neighbors, weights, labels, k):
    """Sum of the weights from each cluster to each, (k, k)."""
    between = np.zeros((k, k))
    for i in range(len(labels)):
        for e in range(pointers[i], pointers[i + 1]):
            between[labels[i], labels[neighbors[e]]] += weights[e]
    return between
