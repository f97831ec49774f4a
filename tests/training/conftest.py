"""Four groups of points with their graph, and settings."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.datasets import make_blobs

from scvcc._training import graph as _graph
from scvcc._training.monitor import Monitor
from scvcc._training.recipe import train
from scvcc._training.run import Run
from scvcc._training.settings import Settings, resolve_weights


@pytest.fixture(scope="session")
def settings():
    """Settings as VCC gives them by default, for four clusters and a small network, with changes."""
    usual = Settings(
        n_clusters=4,
        min_cluster_size=10,
        merge_unsupported=False,
        latent_dim=2,
        hidden=(32,),
        objective="compact",
        weights=resolve_weights("compact", None),
        epochs=None,
        batch_size=256,
        learning_rate=2e-3,
    )
    return lambda **changes: replace(usual, **changes)


@pytest.fixture(scope="session")
def blobs():
    """Points of four groups, their graph, and their groups."""
    X, truth = make_blobs(400, n_features=6, centers=4, cluster_std=1.0, random_state=0)
    graph = _graph.latent_graph(_graph.neighbor_distances(X, 10))
    return X.astype(np.float32), graph, truth


@pytest.fixture
def make_run(settings):
    """What the stages share, for a graph."""

    def make(graph, seed=0, **changes):
        return Run(graph, settings(**changes), seed, Monitor(1, show=False))

    return make


@pytest.fixture(scope="session")
def trained_on(settings):
    """Train on points and their graph."""

    def run(points, progress=False, **changes):
        X, graph, *_ = points
        return train(X, graph, settings(**changes), device=torch.device("cpu"), seed=0, progress=progress)

    return run
