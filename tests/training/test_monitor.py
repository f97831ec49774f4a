import numpy as np
import pytest
import torch

from scvcc._training.monitor import Gauge, Monitor, mean_losses
from scvcc._training.sampling import augmented_edges


def test_gauge_equals_the_exact_losses(blobs, settings):
    X, graph, _ = blobs
    H = np.random.default_rng(0).normal(size=(400, 2))
    gauge = Gauge(graph, settings(), np.random.default_rng(0), size=200_000)
    found = gauge(H, H[:4], beta=0.3)
    edges = augmented_edges(graph)
    d = np.sqrt(((H[edges.head] - H[edges.tail]) ** 2).sum(axis=1) + 1e-6)
    boundary = (edges.boundary * (d - 0.1 * np.log(1 - np.exp(-d)))).sum()
    contraction = (edges.contraction * d).sum()
    assert found["boundary"] == pytest.approx(boundary, rel=0.02)
    assert found["contraction"] == pytest.approx(contraction, rel=0.02)
    total = 0.1 * found["boundary"] + found["contraction"] + 0.2 * found["expansion"] + 0.3 * found["clustering"]
    assert found["total"] == pytest.approx(total)


def test_non_finite_loss_names_stage_step_and_loss():
    with Monitor(1, show=False) as monitor, pytest.raises(ValueError, match="expansion.*'map'.*25"):
        monitor.record("map", 25, {"expansion": float("nan"), "total": 1.0})


def test_labels_are_compared_with_the_last_ones_seen():
    with Monitor(1, show=False) as monitor:
        for labels in (None, [0, 1, 1, 2], None, [0, 1, 2, 2]):
            monitor.record("map", 1, {"total": 1.0}, labels=None if labels is None else np.array(labels))
    np.testing.assert_array_equal(monitor.history()["label_change"], [np.nan, np.nan, np.nan, 0.25])


def test_losses_of_an_epoch_are_means_over_its_steps():
    steps = ({"anchor": torch.tensor(float(i), requires_grad=True), "total": torch.tensor(2.0)} for i in range(4))
    assert mean_losses(steps) == {"anchor": 1.5, "total": 2.0}
