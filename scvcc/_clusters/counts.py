"""Numbers of clusters: merges of micro-clusters into each, how they score, and which one is estimated."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import scipy.sparse as sp
from numpy.random import Generator

from scvcc._clusters.merging import ClusterGraph, Linkage, compact
from scvcc._clusters.partition import choose_partition, kmeans_labels


@dataclass(frozen=True)
class Count:
    """The best partition found into some number of clusters: a merge of micro-clusters."""

    parent: np.ndarray  # cluster of each micro-cluster
    score: float
    cut: float  # share of the graph's weight between clusters
    smallest: int  # points
    largest: float  # share of the graph's weight at one cluster
    eligible: bool  # no cluster is too small, none holds nearly all

    @classmethod
    def of(cls, fine: ClusterGraph, parent: np.ndarray, min_size: int) -> Self:
        """The merge `parent` of micro-clusters, scored; resolution .5, since 1 finds more clusters than there are."""
        view = fine.merged(parent)
        smallest, eligible = int(view.size.min()), not view.is_lopsided()
        score = view.modularity(resolution=0.5)
        return cls(parent, score, view.cut(), smallest, float(view.volume.max()), eligible and smallest >= min_size)


def score_counts(
    H: np.ndarray, graph: sp.csr_matrix, rng: Generator, *, limits: tuple[int, int] = (2, 40), min_size: int = 1
) -> tuple[np.ndarray, dict[int, Count]]:
    """Micro-clusters of `H`, and for each number of clusters the merge of them with the highest modularity."""
    n_fine = np.clip(len(H) // 10, min(len(H) // 2, 10), max(100, 2 * limits[1]))
    labels = compact(kmeans_labels(H, int(n_fine), rng))
    fine = ClusterGraph.of(graph, labels)
    min_size = min(min_size, len(H) // 2)
    best: dict[int, Count] = {}
    by_gain = (Linkage(resolution=resolution) for resolution in (1.0, 0.5, 0.25))
    for linkage in (*by_gain, Linkage(power=0.75, min_size=0.01), Linkage(power=0.5)):
        chain = replace(linkage, min_size=max(min_size, linkage.least(len(H)))).merge_chain(fine)
        for parent in map(compact, (np.arange(len(fine.volume)), *chain)):
            k = int(parent.max()) + 1
            if limits[0] <= k <= limits[1]:
                count = Count.of(fine, parent, min_size)
                if k not in best or (count.eligible, count.score) > (best[k].eligible, best[k].score):
                    best[k] = count
    return labels, dict(sorted(best.items()))


def best_count(counts: Mapping[int, Count]) -> int:
    """The eligible number of clusters with the highest score; the lowest number if none is eligible."""
    eligible = [k for k, count in counts.items() if count.eligible]
    return max(eligible, key=lambda k: counts[k].score) if eligible else min(counts, default=2)


def estimate_n_clusters(H: np.ndarray, graph: sp.csr_matrix, rng: Generator, min_size: int = 1) -> int:
    """Number of clusters, 2 or more, of the partition with the highest modularity among merges of micro-clusters."""
    return best_count(_scores_around_best(H, graph, rng, min_size)[1])


def _scores_around_best(
    H: np.ndarray, graph: sp.csr_matrix, rng: Generator, min_size: int, most: int = 40
) -> tuple[np.ndarray, dict[int, Count]]:
    """The scores of up to 40 clusters, or of four times as many again and again while the best number is near the end."""
    fine, counts = score_counts(H, graph, rng, limits=(2, most), min_size=min_size)
    if best_count(counts) > 0.8 * most and 8 * most < len(H) // 10:
        return _scores_around_best(H, graph, rng, min_size, 4 * most)
    return fine, counts


def estimate_partition(H: np.ndarray, graph: sp.csr_matrix, rng: Generator, min_size: int = 1) -> np.ndarray:
    """The choice among partitions into the estimated number of clusters; if it has too small a cluster, the merge."""
    fine, counts = _scores_around_best(H, graph, rng, min_size)
    k = best_count(counts)
    labels = choose_partition(H, graph, k, rng)
    if k in counts and np.bincount(labels).min() < min(min_size, counts[k].smallest):
        return counts[k].parent[fine]
    return labels
