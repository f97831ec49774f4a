"""How much work a fit does, counted and not timed: a guard against changes that make fits slower, on any machine."""

from collections import Counter

import numpy as np
import pytest
from sklearn.cluster import KMeans

from scvcc import VCC
from scvcc._clusters import partition as _partition
from scvcc._training import coordinates as _coordinates
from scvcc._training import fitting as _fitting


@pytest.fixture
def work(monkeypatch):
    """Counts the pairs of points under forces, the distances of k-means, the partitions polished, the rows learned from."""
    counts = Counter()

    class CountedKMeans(KMeans):
        def fit(self, X, y=None, sample_weight=None):
            super().fit(X, y, sample_weight)
            counts["distances"] += len(X) * self.n_clusters * (self.n_iter_ + 1)
            return self

    def counted(module, name, count):
        original = getattr(module, name)

        def run(*args, **kwargs):
            counts.update(count(*args))
            return original(*args, **kwargs)

        monkeypatch.setattr(module, name, run)

    monkeypatch.setattr(_partition, "KMeans", CountedKMeans)
    counted(
        _coordinates, "_add_gradient", lambda H, G, pointers, neighbors, *more: {"pairs": len(neighbors) + 5 * len(H)}
    )
    counted(_partition, "polish", lambda graph, partitions, *more: {"polished": len(partitions)})
    counted(_fitting.Learner, "__call__", lambda learner, batch: {"rows": len(batch)})
    return counts


@pytest.mark.parametrize(("n", "K", "distances"), [(600, 4, 996_000), (1200, 4, 3_772_000), (600, 12, 1_191_000)])
def test_a_fit_does_no_more_work_than_it_did(work, n, K, distances):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 6)).astype(np.float32) + 3 * rng.normal(size=(K, 6))[rng.integers(K, size=n)]
    graph = VCC(K, hidden=(8,)).fit(X).graph_
    assert work["pairs"] == (150 + 60) * (graph.nnz + 5 * n)  # steps of the structure and of the map
    assert work["rows"] <= (300 + 40) * 256  # steps of the encoder and of the joint stage
    assert work["polished"] <= 30 + 9 * 9  # k-means starts, and merges by nine linkages of nine fine partitions
    assert (
        work["distances"] <= 1.5 * distances
    )  # as many as were found when this was written; rounding moves them a little
