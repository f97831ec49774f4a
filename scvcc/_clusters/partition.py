"""The partition into K clusters: candidates of several kinds, and the choice of the one that fits the graph best."""

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from itertools import combinations
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.random import Generator
from scipy.stats import rankdata
from sklearn.cluster import KMeans

from scvcc._clusters.assignment import cluster_means
from scvcc._clusters.merging import ClusterGraph, Linkage, compact, merge_clusters
from scvcc._clusters.polish import polish

RESOLUTION = 0.75  # of the modularity that polishes and judges; lower ones leave digits in one cluster
LINKAGES = (
    *(Linkage(resolution=resolution) for resolution in (1.0, 0.5, 0.25)),
    *(Linkage(power=power, min_size=size) for power in (1.0, 0.75, 0.5) for size in (5, 0.01)),
)


def choose_partition(H: np.ndarray, graph: sp.csr_matrix, n_clusters: int, rng: Generator) -> np.ndarray:
    """The candidate that the latent graph supports best; the spread of k-means itself is a poor judge.

    Three judges, none right on all data, each name the best tenth of the candidates: modularity, which likes clusters of
    even size; separation, which keeps rare but distinct ones; and a compromise that also asks every cluster to be a
    community. A candidate counts as often as it was found, since clear data lead to the same one again and again. The
    partition that agrees best with all those named is a safe choice but a blurred one: of those named that are much like
    it, the compromise's favorite wins.
    """
    candidates, times = candidate_partitions(H, graph, n_clusters, rng)
    views = [ClusterGraph.of(graph, labels) for labels in candidates]
    eligible = eligible_candidates(views)
    pool = np.repeat(eligible, times[eligible])
    modularity = np.array([views[i].modularity(RESOLUTION) for i in pool])
    separation = np.array([views[i].separation() for i in pool])
    conductance = np.array([views[i].weakest_conductance() for i in pool])
    compromise = rank_with_ties(separation) + rank_with_ties(-conductance) + 0.25 * rankdata(modularity)
    n_named = max(len(pool) // 10, 1)
    best = [pool[np.argsort(-score, kind="stable")[:n_named]] for score in (modularity, separation, compromise)]
    named, votes = np.unique(best, return_counts=True)
    agreement = agreement_between([candidates[i] for i in named])
    alike = named[agreement[np.argmax(agreement @ votes)] >= 0.9]  # partitions that differ in little
    favorite = pool[np.argmax(np.where(np.isin(pool, alike), compromise, -np.inf))]
    return candidates[favorite].astype(np.intp)


def candidate_partitions(
    H: np.ndarray, graph: sp.csr_matrix, n_clusters: int, rng: Generator
) -> tuple[list[np.ndarray], np.ndarray]:
    """Partitions of `H` that differ in kind, and how often each was found.

    They are k-means starts, micro-clusters (a few times as many) merged along the graph, and all these polished.
    """
    grain, means, sizes = small_groups(H, n_clusters, rng)
    plain = [kmeans_labels(means, n_clusters, rng, sizes)[grain] for _ in range(30)]
    for factor in (2, 3, 8) * 3:
        n_fine = min(max(min(factor * n_clusters, len(H) // 3), n_clusters), len(means))
        labels = compact(kmeans_labels(means, n_fine, rng, sizes))[grain] if n_fine < len(means) else grain
        fine = ClusterGraph.of(graph, labels)
        plain += [merge_clusters(fine, n_clusters, linkage)[labels] for linkage in LINKAGES]
    plain, times = distinct(plain, np.ones(len(plain), dtype=int))
    polished = polish(graph, plain, rng.permutation(len(H)), RESOLUTION)
    return distinct([*plain, *polished], np.tile(times, 2))


def small_groups(
    H: np.ndarray, n_clusters: int, rng: Generator, most: int = 1000
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Many groups of near points for k-means to run on instead of points: the group of each point, their means and sizes."""
    count = np.clip(len(H) // 5, min(10 * n_clusters, len(H)), max(most, 8 * n_clusters))
    group = compact(kmeans_labels(H, int(count), rng, init="random", max_iter=5))
    sizes = np.bincount(group)
    return group, cluster_means(H, group, len(sizes)), sizes.astype(float)


def kmeans_labels(
    H: np.ndarray,
    n_clusters: int,
    rng: Generator,
    weights: np.ndarray | None = None,
    *,
    most_rows: int = 20_000,
    **options: Any,
) -> np.ndarray:
    """One k-means run, on a random part of the rows where there are many."""
    model = KMeans(n_clusters, n_init=1, random_state=int(rng.integers(2**31)), **options)
    if len(H) <= most_rows:
        return model.fit(H, sample_weight=weights).labels_
    return model.fit(H[rng.choice(len(H), most_rows, replace=False)]).predict(H)


def distinct(partitions: Iterable[np.ndarray], times: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
    """Every partition once, however its clusters are numbered, with its counts summed; labels in 16 bits where that is enough."""
    kept: dict[bytes, tuple[np.ndarray, int]] = {}
    for raw, n_times in zip(partitions, times, strict=True):
        labels = _numbered_as_they_occur(raw)
        key = blake2b(labels.data).digest()
        kept[key] = labels, n_times + (kept[key][1] if key in kept else 0)
    return [labels for labels, _ in kept.values()], np.array([n_times for _, n_times in kept.values()])


def _numbered_as_they_occur(labels: np.ndarray) -> np.ndarray:
    first = np.full(int(labels.max()) + 1, len(labels))
    first[labels[::-1]] = np.arange(len(labels))[::-1]  # of repeated indices, the last assignment stays
    number = np.argsort(np.argsort(first))[labels]
    return number.astype(np.int16 if number.max() < 2**15 else np.int64)  # compiled code exists for few types


def eligible_candidates(views: Sequence[ClusterGraph], smallest: int = 5) -> np.ndarray:
    """Numbers of the candidates with all clusters, none of them huge or tiny; what none fulfills is not asked for."""
    most = max(len(view.size) for view in views)  # as many as asked for, except where many points coincide
    eligible = [i for i, view in enumerate(views) if len(view.size) == most]
    eligible = [i for i in eligible if not views[i].is_lopsided()] or eligible
    return np.array([i for i in eligible if views[i].size.min() >= smallest] or eligible)


def rank_with_ties(scores: np.ndarray, tie: float = 0.02) -> np.ndarray:
    """Ranks from 1, where a difference smaller than `tie` says nothing."""
    return rankdata(np.round(scores / tie))


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
        float((n * (n - 1.0) / 2).sum()) for n in (table, table.sum(axis=1), table.sum(axis=0), np.array(len(a)))
    )
    chance, most = in_a * in_b / max(all_pairs, 1.0), (in_a + in_b) / 2
    return (both - chance) / (most - chance) if most > chance else 1.0
