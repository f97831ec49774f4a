"""Centers and labels: candidate partitions, how the latent graph judges them, and soft assignment to centers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import combinations
from typing import TYPE_CHECKING

import numba as nb
import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import logsumexp
from scipy.stats import rankdata
from sklearn.cluster import KMeans

from scvcc._training.threads import restored_threads

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import scipy.sparse as sp
    from numpy.random import Generator

KMEANS_ROWS = 20_000  # k-means starts look at this many rows at most
KMEANS_STARTS = 30
FINE_FACTORS = (2, 3, 8)  # micro-clusters per cluster
FINE_STARTS = 3  # of each
POLISH_RESOLUTION = 0.75
SMALLEST = 5  # points of a cluster, where the candidates leave a choice
NAMED = 0.1  # share of the candidates that a judge names
ALIKE = 0.9  # adjusted Rand index of partitions that differ in little
TIE = 0.02  # a smaller difference between two candidates' scores says nothing
ESTIMATE_RESOLUTION = 0.5
MICRO_CLUSTERS, MOST_CLUSTERS = 100, 40  # for an unknown number of clusters


class ClusterGraph:
    """A latent graph seen from a partition: the share of its weight within and between clusters."""

    def __init__(self, graph: sp.csr_matrix, labels: np.ndarray) -> None:
        k = int(labels.max()) + 1
        between = _weight_between(graph.indptr, graph.indices, graph.data, labels, k)
        self.share = between / between.sum()  # (k, k), diagonal: inside
        self.volume = self.share.sum(axis=1)  # (k,)
        self.size = np.bincount(labels, minlength=k)  # (k,) points

    def merged(self, parent: np.ndarray) -> ClusterGraph:
        """The same graph seen from a coarser partition; `parent` (k,) numbers the new cluster of each old one."""
        k = int(parent.max()) + 1
        coarse = object.__new__(ClusterGraph)
        pairs = parent[:, None] * k + parent[None, :]
        coarse.share = np.bincount(pairs.ravel(), weights=self.share.ravel(), minlength=k * k).reshape(k, k)
        coarse.volume = coarse.share.sum(axis=1)
        coarse.size = np.bincount(parent, weights=self.size, minlength=k)
        return coarse

    def modularity(self, resolution: float = 1.0) -> float:
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


LINKAGES = (
    *(Linkage(resolution=resolution) for resolution in (1.0, 0.5, 0.25)),
    *(Linkage(power=power, min_size=size) for power in (1.0, 0.75, 0.5) for size in (5, 0.01)),
)
ESTIMATE_LINKAGES = (
    *(Linkage(resolution=resolution) for resolution in (1.0, 0.5, 0.25)),
    Linkage(power=0.75, min_size=0.01),
    Linkage(power=0.5),
)


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


def by_size(labels: np.ndarray, n_clusters: int) -> np.ndarray:
    """Order of clusters by decreasing size; ties keep their order."""
    return np.argsort(-np.bincount(labels, minlength=n_clusters), kind="stable")


def kmeans_labels(H: np.ndarray, n_clusters: int, rng: Generator) -> np.ndarray:
    """One k-means run, on a random part of the rows where there are many."""
    model = KMeans(n_clusters, n_init=1, random_state=int(rng.integers(2**31)))
    if len(H) <= KMEANS_ROWS:
        return model.fit(H).labels_
    return model.fit(H[rng.choice(len(H), KMEANS_ROWS, replace=False)]).predict(H)


def cluster_means(H: np.ndarray, labels: np.ndarray, n_clusters: int) -> np.ndarray:
    """Mean of each cluster, (K, dim)."""
    sums = np.stack([np.bincount(labels, weights=column, minlength=n_clusters) for column in H.T], axis=1)
    return sums / np.maximum(np.bincount(labels, minlength=n_clusters), 1)[:, None]


def cluster_medians(H: np.ndarray, labels: np.ndarray, n_clusters: int) -> np.ndarray:
    """Coordinate-wise median of each cluster, (K, dim); of all points for an empty one."""
    return np.stack([np.median(H[labels == k] if (labels == k).any() else H, axis=0) for k in range(n_clusters)])


def candidate_partitions(
    H: np.ndarray, graph: sp.csr_matrix, n_clusters: int, rng: Generator
) -> tuple[list[np.ndarray], np.ndarray]:
    """Partitions of `H` that differ in kind, and how often each was found.

    They are k-means starts, micro-clusters merged along the graph, and all these polished.
    """
    plain = [kmeans_labels(H, n_clusters, rng) for _ in range(KMEANS_STARTS)]
    for factor in FINE_FACTORS * FINE_STARTS:
        n_fine = max(min(factor * n_clusters, len(H) // 3), n_clusters)
        labels = compact(kmeans_labels(H, n_fine, rng))
        fine = ClusterGraph(graph, labels)
        plain += [merge_clusters(fine, n_clusters, linkage)[labels] for linkage in LINKAGES]
    plain, times = distinct(plain, np.ones(len(plain), dtype=int))
    polished = polish(graph, plain, rng.permutation(len(H)))
    return distinct([*plain, *polished], np.tile(times, 2))


def distinct(partitions: Iterable[np.ndarray], times: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
    """Every partition once, however its clusters are numbered, with its counts summed; labels in as few bits as they need."""
    found: dict[bytes, tuple[np.ndarray, int]] = {}
    for raw, count in zip(partitions, times, strict=True):
        labels = _number_as_they_occur(raw.astype(np.int32))
        labels = labels.astype(np.min_scalar_type(-int(labels.max()) - 1))
        key = blake2b(labels.data).digest()
        found[key] = labels, count + (found[key][1] if key in found else 0)
    return [labels for labels, _ in found.values()], np.array([count for _, count in found.values()])


def choose_partition(H: np.ndarray, graph: sp.csr_matrix, n_clusters: int, rng: Generator) -> np.ndarray:
    """The candidate that the latent graph speaks for; the spread of k-means itself is a poor judge.

    Three judges, none right on all data, each name the best tenth of the candidates: modularity, which likes clusters of
    even size; separation, which keeps rare but distinct ones; and a compromise that also asks every cluster to be a
    community. A candidate counts as often as it was found, since clear data lead to the same one again and again. The
    partition that agrees best with all those named is a safe choice but a blurred one: of those named that are much like
    it, the compromise's favorite wins.
    """
    candidates, times = candidate_partitions(H, graph, n_clusters, rng)
    most = max(labels.max() for labels in candidates)  # n_clusters − 1, except where many points coincide
    views = {i: ClusterGraph(graph, labels) for i, labels in enumerate(candidates) if labels.max() == most}
    eligible = [i for i, view in views.items() if not view.is_lopsided()] or list(views)
    eligible = [i for i in eligible if views[i].size.min() >= SMALLEST] or eligible
    pool = np.repeat(eligible, times[eligible])
    modularity = np.array([views[i].modularity(POLISH_RESOLUTION) for i in pool])
    separation = np.array([views[i].separation() for i in pool])
    conductance = np.array([views[i].weakest_conductance() for i in pool])
    compromise = _rank(separation) + _rank(-conductance) + 0.25 * rankdata(modularity)
    n_named = max(int(NAMED * len(pool)), 1)
    best = [pool[np.argsort(-score, kind="stable")[:n_named]] for score in (modularity, separation, compromise)]
    named, votes = np.unique(best, return_counts=True)
    agreement = agreement_between([candidates[i] for i in named])
    alike = named[agreement[np.argmax(agreement @ votes)] >= ALIKE]
    favorite = pool[np.argmax(np.where(np.isin(pool, alike), compromise, -np.inf))]
    return candidates[favorite].astype(np.intp)


def agreement_between(partitions: Sequence[np.ndarray]) -> np.ndarray:
    """Adjusted Rand index of each partition with each, (m, m)."""
    agreement = np.eye(len(partitions))
    for i, j in combinations(range(len(partitions)), 2):
        agreement[i, j] = agreement[j, i] = adjusted_rand(partitions[i], partitions[j])
    return agreement


def adjusted_rand(a: np.ndarray, b: np.ndarray) -> float:
    """Adjusted Rand index of two partitions numbered from 0; scikit-learn's sorts the labels first and takes longer."""
    k = int(b.max()) + 1
    table = np.bincount(a.astype(np.intp) * k + b, minlength=(int(a.max()) + 1) * k).reshape(-1, k)
    both, in_a, in_b, all_pairs = (
        float((counts * (counts - 1.0) / 2).sum())
        for counts in (table, table.sum(axis=1), table.sum(axis=0), np.array(len(a)))
    )
    chance, most = in_a * in_b / max(all_pairs, 1.0), (in_a + in_b) / 2
    return (both - chance) / (most - chance) if most > chance else 1.0


def _rank(scores: np.ndarray) -> np.ndarray:
    return rankdata(np.round(scores / TIE))


@dataclass(frozen=True)
class Count:
    """The best partition found into some number of clusters: a merge of micro-clusters."""

    parent: np.ndarray  # cluster of each micro-cluster
    score: float
    cut: float  # share of the graph's weight between clusters
    smallest: int  # points
    largest: float  # share of the graph's weight at one cluster
    eligible: bool  # no cluster is too small, none holds nearly all


def score_counts(
    H: np.ndarray,
    graph: sp.csr_matrix,
    rng: Generator,
    *,
    limits: tuple[int, int] = (2, MOST_CLUSTERS),
    min_size: int = 1,
) -> tuple[np.ndarray, dict[int, Count]]:
    """Micro-clusters of `H`, and for each number of clusters the merge of them with the highest modularity."""
    n_fine = np.clip(len(H) // 10, min(len(H) // 2, 10), max(MICRO_CLUSTERS, 2 * limits[1]))
    labels = compact(kmeans_labels(H, int(n_fine), rng))
    fine = ClusterGraph(graph, labels)
    min_size = min(min_size, len(H) // 2)
    best: dict[int, Count] = {}
    for linkage in ESTIMATE_LINKAGES:
        chain = replace(linkage, min_size=max(min_size, linkage.least(len(H)))).merge_chain(fine)
        for parent in map(compact, (np.arange(len(fine.volume)), *chain)):
            k = int(parent.max()) + 1
            if limits[0] <= k <= limits[1]:
                found = _count(fine.merged(parent), parent, min_size)
                if k not in best or (found.eligible, found.score) > (best[k].eligible, best[k].score):
                    best[k] = found
    return labels, dict(sorted(best.items()))


def _count(view: ClusterGraph, parent: np.ndarray, min_size: int) -> Count:
    smallest, largest = int(view.size.min()), float(view.volume.max())
    eligible = smallest >= min_size and not view.is_lopsided()
    return Count(parent, view.modularity(ESTIMATE_RESOLUTION), view.cut(), smallest, largest, eligible)


def best_count(counts: Mapping[int, Count]) -> int:
    """The eligible number of clusters with the highest score; the lowest number if none is eligible."""
    eligible = [k for k, count in counts.items() if count.eligible]
    return max(eligible, key=lambda k: counts[k].score) if eligible else min(counts, default=2)


def estimate_n_clusters(H: np.ndarray, graph: sp.csr_matrix, rng: Generator, min_size: int = 1) -> int:
    """Number of clusters, 2 to 40, of the partition with the highest modularity among merges of micro-clusters."""
    return best_count(score_counts(H, graph, rng, min_size=min_size)[1])


def estimate_partition(H: np.ndarray, graph: sp.csr_matrix, rng: Generator, min_size: int = 1) -> np.ndarray:
    """The choice among partitions into the estimated number of clusters; if it has too small a cluster, the merge."""
    fine, counts = score_counts(H, graph, rng, min_size=min_size)
    k = best_count(counts)
    labels = choose_partition(H, graph, k, rng)
    if k in counts and np.bincount(labels).min() < min(min_size, counts[k].smallest):
        return counts[k].parent[fine]
    return labels


def drop_small_clusters(H: np.ndarray, centers: np.ndarray, min_size: int) -> np.ndarray:
    """Centers without those of clusters below `min_size` points, smallest first; their points go to the next center."""
    min_size = min(min_size, len(H) // 2)
    while len(centers) > 2:
        sizes = np.bincount(nearest_center(H, centers), minlength=len(centers))
        if sizes.min() >= min_size:
            break
        centers = np.delete(centers, int(sizes.argmin()), axis=0)
    return centers


def polish(graph: sp.csr_matrix, partitions: Sequence[np.ndarray], order: np.ndarray) -> np.ndarray:
    """Each partition with single points moved between clusters for as long as modularity gains, (m, n); none is emptied."""
    degree = np.asarray(graph.sum(axis=1), dtype=np.float64).ravel()
    polished = np.array(partitions)
    with restored_threads():
        _polish(graph.indptr, graph.indices, graph.data, degree, polished, order, POLISH_RESOLUTION)
    return polished


@nb.njit(parallel=True, cache=True)
def _polish(pointers, neighbors, weights, degree, partitions, order, resolution):
    for p in nb.prange(len(partitions)):
        _move_points(pointers, neighbors, weights, degree, partitions[p], order, resolution)


@nb.njit(cache=True)
def _move_points(pointers, neighbors, weights, degree, labels, order, resolution, passes=10):
    n, K = len(labels), labels.max() + 1
    volume, size, total = np.zeros(K), np.zeros(K, np.int64), degree.sum()
    for i in range(n):
        volume[labels[i]] += degree[i]
        size[labels[i]] += 1
    towards, due = np.zeros(K), np.ones(n, np.bool_)
    for _ in range(passes):
        moved = 0
        for i in order:
            old = labels[i]
            if not due[i] or size[old] == 1:
                continue
            due[i] = False
            towards[:] = 0
            for e in range(pointers[i], pointers[i + 1]):
                towards[labels[neighbors[e]]] += weights[e]
            volume[old] -= degree[i]
            new, gain = old, towards[old] - resolution * degree[i] * volume[old] / total
            for k in range(K):
                candidate = towards[k] - resolution * degree[i] * volume[k] / total
                if candidate > gain + 1e-12:
                    new, gain = k, candidate
            volume[new] += degree[i]
            if new != old:
                labels[i] = new
                size[old] -= 1
                size[new] += 1
                moved += 1
                for e in range(pointers[i], pointers[i + 1]):
                    due[neighbors[e]] = True
        if moved <= n * 1e-4:
            break


@nb.njit(cache=True)
def _number_as_they_occur(labels):
    number, used = np.full(labels.max() + 1, -1, np.int32), 0
    for i in range(len(labels)):
        if number[labels[i]] < 0:
            number[labels[i]] = used
            used += 1
        labels[i] = number[labels[i]]
    return labels


@nb.njit(cache=True)
def _weight_between(pointers, neighbors, weights, labels, k):
    """Sum of the weights from each cluster to each, (k, k)."""
    between = np.zeros((k, k))
    for i in range(len(labels)):
        for e in range(pointers[i], pointers[i + 1]):
            between[labels[i], labels[neighbors[e]]] += weights[e]
    return between


def nearest_center(H: np.ndarray, centers: np.ndarray) -> np.ndarray:
    """Index of the nearest center of each row: the hard form of the soft assignment."""
    return squared_distances(H, centers).argmin(axis=1)


def squared_distances(H: np.ndarray, centers: np.ndarray) -> np.ndarray:
    """Squared distances (n, K), exact also where a point sits on a center."""
    H, centers = np.asarray(H, np.float64), np.asarray(centers, np.float64)
    total = np.zeros((len(H), len(centers)))
    for column, center in zip(H.T, centers.T, strict=True):  # n × K at a time, never n × K × dim
        total += np.square(column[:, None] - center[None, :])
    return total


def assignment_probabilities(H: np.ndarray, centers: np.ndarray, sharpness: float = 1.0) -> np.ndarray:
    """Soft assignment Q (n, K) to the power of `sharpness`, rows sum to one."""
    logits = -sharpness * np.log1p(squared_distances(H, centers))
    logits -= logits.max(axis=1, keepdims=True)
    probabilities = np.exp(logits)
    return probabilities / probabilities.sum(axis=1, keepdims=True)


def calibrate_sharpness(
    H: np.ndarray, centers: np.ndarray, labels: np.ndarray, graph: sp.csr_matrix, rng: Generator
) -> float:
    """Power of Q that best predicts the label of a random graph neighbor: one number, found without ground truth.

    Student-t assignments among K centers are far from certain even at a center, since every other center keeps a share.
    With this power, a probability of .9 means that about nine in ten neighbors of such points carry that label.
    """
    entries = rng.choice(graph.nnz, min(graph.nnz, 50_000), replace=False)
    heads = np.searchsorted(graph.indptr, entries, side="right") - 1
    neighbor_labels, weights = labels[graph.indices[entries]], graph.data[entries]
    logits = -np.log1p(squared_distances(H[heads], centers))

    def neighbor_surprise(log_sharpness: float) -> float:
        scaled = np.exp(log_sharpness) * logits
        chosen = scaled[np.arange(len(scaled)), neighbor_labels]
        return float(np.average(logsumexp(scaled, axis=1) - chosen, weights=weights))

    return float(np.exp(minimize_scalar(neighbor_surprise, bounds=(-2.0, 4.0), method="bounded").x))


def fill_empty_clusters(H: np.ndarray, centers: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Move the center of a cluster that lost all its points back to the points it was made for; else drop it."""
    K = len(centers)
    counts = np.bincount(nearest_center(H, centers), minlength=K)
    if (counts == 0).any():
        homes = cluster_medians(H, labels, K)
        centers = np.where((counts == 0)[:, None], homes, centers)
        counts = np.bincount(nearest_center(H, centers), minlength=K)
    return centers[counts > 0]
