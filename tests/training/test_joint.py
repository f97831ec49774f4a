from dataclasses import replace

import numpy as np
import pytest
import torch

from scvcc._training import joint as _joint
from scvcc._training.encoder import Encoder, Rows, encode
from scvcc._training.fitting import Learner
from scvcc._training.joint import JointStage, joint_steps
from scvcc._training.losses import soft_assignment
from scvcc._training.sampling import augmented_edges

CPU = torch.device("cpu")


@pytest.fixture
def stage(blobs, make_run):
    X, graph, truth = blobs
    encoder = Encoder(6, (16,), 2, torch.Generator().manual_seed(0))
    encoder.standardize(X, graph)
    H = np.eye(4, 2, dtype=np.float32)[truth]
    stage, rows = JointStage(encoder, Rows(X, CPU), H, np.eye(4, 2), make_run(graph)), Rows(X, CPU)
    stage.learner = Learner(encoder, rows, np.random.default_rng(0), noise=0.0)
    stage.bank = encode(encoder, rows)
    return stage


def test_joint_losses_are_the_exact_ones_in_expectation(stage):
    H = stage.bank.clone()
    everything, sums = torch.arange(400), []
    for seed in range(30):
        stage.rng = np.random.default_rng(seed)
        stage.count_clusters()
        drawn = stage.draw(everything.numpy())
        sums.append({name: value.item() for name, value in stage.losses(everything, *drawn).items()})
    edges = augmented_edges(stage.run.graph)
    d = (H[edges.head] - H[edges.tail]).square().sum(dim=1).add(1e-6).sqrt().double()
    expected = float((torch.from_numpy(edges.contraction) * d).sum())
    assert np.mean([s["contraction"] for s in sums]) == pytest.approx(expected, rel=0.02)
    boundary = d - 0.1 * torch.log(1 - torch.exp(-d))
    expected = float((torch.from_numpy(edges.boundary) * boundary).sum())
    assert np.mean([s["boundary"] for s in sums]) == pytest.approx(expected, rel=0.02)
    gaps = np.sqrt(((H.numpy()[:, None] - H.numpy()[None]) ** 2).sum(axis=-1) + 1e-6)
    apart = (stage.run.graph.toarray() == 0) & ~np.eye(400, dtype=bool)
    expected = -np.log(1 - np.exp(-gaps[apart].astype(np.float64))).mean()
    assert np.mean([s["expansion"] for s in sums]) == pytest.approx(expected, rel=0.05)


def test_joint_target_uses_frequencies_of_all_cells(stage):
    stage.count_clusters()
    Q = soft_assignment(stage.bank, stage.centers)
    np.testing.assert_allclose(stage.frequencies, Q.sum(dim=0).detach(), rtol=1e-5)


def test_joint_stage_takes_the_epochs_asked_for(blobs, trained_on):
    assert (trained_on(blobs, epochs=6).history["stage"] == "joint").sum() == 6


def test_epochs_zero_skips_the_joint_stage(blobs, trained_on):
    assert "joint" not in trained_on(blobs, epochs=0).history["stage"]


def test_joint_stage_is_budgeted_in_steps(settings):
    assert [joint_steps(n, settings()) for n in (100, 1000, 20_000, 10**6)] == [4, 16, 40, 40]
    assert joint_steps(1000, settings(epochs=7)) == 7 * 4


def test_the_rate_is_a_thirtieth_of_the_encoders_and_falls_linearly(blobs, make_run, monkeypatch):
    X, graph, truth = blobs
    rates, original = [], _joint.take_step
    monkeypatch.setattr(_joint, "take_step", lambda *args, **kw: rates.append(args[3]) or original(*args, **kw))
    encoder = Encoder(6, (8,), 2, torch.Generator().manual_seed(0))
    coordinates = np.eye(4, 2, dtype=np.float32)[truth]
    _joint.train_jointly(encoder, Rows(X, CPU), coordinates, np.eye(4, 2), make_run(graph, learning_rate=6e-3))
    np.testing.assert_allclose(rates, 2e-4 * (1 - np.arange(8) / 8))


def test_the_bank_holds_the_last_embeddings(stage):
    """What a batch was embedded as is what later batches meet."""
    batch = torch.arange(100)
    stage.bank = torch.zeros_like(stage.bank)
    met = [others[:100] for others in stage.draw(np.arange(400))]
    stage.count_clusters()
    stage.losses(batch, *met)
    expected = encode(stage.learner.encoder, stage.learner.rows)
    np.testing.assert_allclose(stage.bank[:100], expected[:100], atol=2e-2)  # bfloat16, where it is fast
    assert not stage.bank[100:].any()
    assert expected[:100].abs().max() > 0.05


def test_the_last_epoch_is_as_long_as_there_are_steps_left(stage):
    stage.run = replace(stage.run, settings=replace(stage.run.settings, batch_size=100))
    stage.total_steps = 3
    stage.run_epoch()
    assert stage.step == 3
