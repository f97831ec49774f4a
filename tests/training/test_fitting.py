import numpy as np
import pytest
import torch

from scvcc._training import fitting as _fitting
from scvcc._training.encoder import Encoder, Rows, encode
from scvcc._training.fitting import Learner, encoder_steps, fit_encoder, shuffled_batches

CPU = torch.device("cpu")


def make(X, graph, hidden):
    encoder = Encoder(6, hidden, 2, torch.Generator().manual_seed(0))
    encoder.standardize(X, graph)
    return encoder


def test_encoder_learns_the_coordinates(blobs, make_run):
    X, graph, truth = blobs
    target = np.eye(4, 2, dtype=np.float32)[truth] * 3
    encoder, run = make(X, graph, (128, 128)), make_run(graph)
    fit_encoder(encoder, Rows(X, CPU), target, 4, run)
    history = run.monitor.history()
    errors = history["anchor"]
    assert errors[-1] < 0.6 * errors[0]  # of noisy input
    assert np.abs(encode(encoder, Rows(X, CPU)).numpy() - target).mean() < 0.1
    assert errors[-1] == pytest.approx(history["total"][-1])
    assert history["step"][-1] == 300


def test_batches_cover_all_rows_once():
    batches = shuffled_batches(103, 20, np.random.default_rng(0), CPU)
    assert [len(b) for b in batches] == [20] * 5 + [3]
    assert sorted(torch.cat(batches).tolist()) == list(range(103))


def test_steps_grow_with_the_rows_and_the_clusters(settings):
    assert [encoder_steps(n, 4, settings()) for n in (100, 19_200, 19_201, 10**6)] == [300, 300, 304, 4 * 3907]
    assert [encoder_steps(100, k, settings()) for k in (2, 20, 40, 200)] == [300, 300, 600, 3000]


def test_learner_reads_noisy_input(blobs):
    X = torch.from_numpy(blobs[0])
    encoder = make(*blobs[:2], (16,))
    learner = Learner(encoder, Rows(blobs[0], CPU), np.random.default_rng(0))
    noise = learner.noisy(X, torch.arange(len(X))) - (X - encoder.center) / encoder.scale
    assert noise.mean() == pytest.approx(0, abs=0.02)
    assert noise.std() == pytest.approx(0.3, rel=0.05)


def test_input_without_noise_is_the_standardized_one(blobs):
    X = torch.from_numpy(blobs[0])
    encoder = make(*blobs[:2], (16,))
    clean = Learner(encoder, Rows(blobs[0], CPU), np.random.default_rng(0), noise=0.0)
    torch.testing.assert_close(
        encoder.head(encoder.hidden(clean.noisy(X, torch.arange(len(X))))), encoder(X), rtol=1e-4, atol=1e-5
    )
    torch.testing.assert_close(clean(torch.arange(400)), encoder(X), rtol=0.05, atol=0.02)  # bfloat16 at the worst


def test_the_rate_of_the_encoder_falls_linearly_to_a_twentieth(blobs, make_run, monkeypatch):
    X, graph, truth = blobs
    rates, original = [], _fitting.take_step
    monkeypatch.setattr(_fitting, "take_step", lambda *args, **kw: rates.append(args[3]) or original(*args, **kw))
    fit_encoder(make(X, graph, (8,)), Rows(X, CPU), np.eye(4, 2, dtype=np.float32)[truth], 4, make_run(graph))
    np.testing.assert_allclose(rates, 2e-3 * (1 - 0.95 * np.arange(300) / 300))


def test_large_errors_count_by_size(blobs, make_run):
    """Five away from the target in each dimension: 4.95 with the threshold at .1, 4.5 with one at 1."""
    X, graph, _ = blobs
    encoder, run = make(X, graph, (8,)), make_run(graph, learning_rate=1e-9)
    target = encode(encoder, Rows(X, CPU)).numpy() + 5
    fit_encoder(encoder, Rows(X, CPU), target, 4, run)
    assert run.monitor.history()["anchor"][0] == pytest.approx(4.95, abs=0.1)
