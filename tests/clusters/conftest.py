"""Points in groups, and the slow way to a modularity."""

import numpy as np
import pytest

from scvcc._training import graph as _graph


@pytest.fixture
def blobs():
    rng = np.random.default_rng(0)
    sizes = [120, 60, 30]
    truth = np.repeat([0, 1, 2], sizes)
    H = rng.normal(scale=0.3, size=(210, 2)) + np.array([[0, 0], [4, 0], [0, 4]])[truth]
    graph = _graph.latent_graph(_graph.neighbor_distances(H, 10))
    return H, graph, truth


@pytest.fixture
def slow_modularity():
    def modularity(graph, labels, resolution):
        A = graph.toarray().astype(float)
        m2, k = A.sum(), A.sum(axis=1)
        same = labels[:, None] == labels[None, :]
        return ((A - resolution * np.outer(k, k) / m2) * same).sum() / m2

    return modularity
