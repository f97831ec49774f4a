import logging

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from sklearn.datasets import load_digits, make_blobs
from sklearn.metrics import adjusted_rand_score

from scvcc._clusters import labels as _labels
from scvcc._training import graph as _graph
from scvcc._training import joint as _joint
from scvcc._training import monitor as _monitor
from scvcc._training import paper as _paper
from scvcc._training import recipe as _train
from scvcc._training.encoder import Encoder, NoisyInput, Rows, encode
from scvcc._training.settings import GAMMA, MAP_EPOCHS, Settings, resolve_weights

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def blobs():
    X, truth = make_blobs(400, n_features=6, centers=4, cluster_std=1.0, random_state=0)
    graph = _graph.latent_graph(_graph.neighbor_distances(X, 10))
    return X.astype(np.float32), graph, truth


def settings(**changes):
    return Settings(**{"n_clusters": 4, "hidden": (32,), **changes})


def run(blobs, **changes):
    X, graph, _ = blobs
    return _train.train(X, graph, settings(**changes), device=CPU, seed=0, progress=False)


@pytest.fixture(scope="module")
def trained(blobs):
    return run(blobs, keep_stages=True)


def test_recipe_separates_blobs(blobs, trained):
    X, _, truth = blobs
    labels = np.linalg.norm(trained.H[:, None] - trained.centers[None], axis=-1).argmin(axis=1)
    assert adjusted_rand_score(truth, labels) > 0.98
    np.testing.assert_array_equal(encode(trained.encoder, Rows(X, CPU)), trained.H)


def test_history_has_every_stage_in_order(trained):
    history = trained.history
    stages = list(dict.fromkeys(history["stage"]))
    assert stages == ["structure", "map", "encoder", "joint"]
    assert {len(column) for column in history.values()} == {len(history["stage"])}
    on_map = history["stage"] == "map"
    assert np.isfinite([history[name][on_map] for name in ("boundary", "contraction", "expansion", "clustering")]).all()
    np.testing.assert_allclose(history["beta"][on_map][-1], GAMMA * MAP_EPOCHS)
    np.testing.assert_allclose(history["beta"][history["stage"] == "joint"][0], GAMMA * (MAP_EPOCHS + 1))
    assert np.isfinite(history["label_change"][on_map][1:]).all()
    structure = history["total"][history["stage"] == "structure"]
    assert structure[-1] < structure[0]


def test_gauge_equals_the_exact_losses(blobs):
    X, graph, _ = blobs
    H = np.random.default_rng(0).normal(size=(400, 2))
    gauge = _train.Gauge(graph, settings(), np.random.default_rng(0), size=200_000)
    found = gauge(H, H[:4], beta=0.3)
    edges = _train._sampling.augmented_edges(graph)
    d = np.sqrt(((H[edges.head] - H[edges.tail]) ** 2).sum(axis=1) + 1e-6)
    boundary = (edges.boundary * (d - 0.1 * np.log(1 - np.exp(-d)))).sum()
    contraction = (edges.contraction * d).sum()
    assert found["boundary"] == pytest.approx(boundary, rel=0.02)
    assert found["contraction"] == pytest.approx(contraction, rel=0.02)
    total = 0.1 * found["boundary"] + found["contraction"] + 0.2 * found["expansion"] + 0.3 * found["clustering"]
    assert found["total"] == pytest.approx(total)


def test_placed_clusters_keep_to_their_places(blobs):
    X, graph, truth = blobs
    placed = _train.place_clusters(X.astype(float), truth, graph, settings(), np.random.default_rng(0))
    means = np.array([placed[truth == k].mean(axis=0) for k in range(4)])
    spread = max(placed[truth == k].std(axis=0).max() for k in range(4))
    gaps = np.linalg.norm(means[:, None] - means[None], axis=-1)[np.triu_indices(4, 1)]
    assert gaps.min() > 5 * spread


@pytest.mark.parametrize("latent_dim", [1, 2, 5, 40])
def test_any_latent_dimension(blobs, latent_dim):
    result = run(blobs, latent_dim=latent_dim, epochs=1)
    assert result.H.shape == (400, latent_dim)
    assert np.isfinite(result.H).all()


def test_strongly_linked_clusters_stay_apart_on_the_map():
    rng = np.random.default_rng(0)
    Z = rng.uniform(size=(600, 2)) * [6, 1]  # a continuum
    graph = _graph.latent_graph(_graph.neighbor_distances(Z, 10))
    labels = (Z[:, 0] // 1).astype(np.int64)
    places = _train.place_clusters(Z, labels, graph, settings(n_clusters=6), rng)
    with _monitor.Monitor(1, show=False) as monitor:
        gauge = _train.Gauge(graph, settings(), rng)
        H, centers = _train.optimize_map(places, labels, graph, settings(n_clusters=6), gauge, rng, monitor)
    gaps = np.linalg.norm(centers[:, None] - centers[None], axis=-1) + 9 * np.eye(6)
    assert gaps.min() > 0.9
    assert (_labels.nearest_center(H, centers) == labels).mean() > 0.96  # .94 if contraction counts in full


def test_encoder_learns_the_coordinates(blobs):
    X, graph, truth = blobs
    target = np.eye(4, 2, dtype=np.float32)[truth] * 3
    encoder = Encoder(6, (128, 128), 2, torch.Generator().manual_seed(0))
    encoder.standardize(X, graph)
    with _monitor.Monitor(1, show=False) as monitor:
        _train.fit_encoder(encoder, Rows(X, CPU), target, settings(), np.random.default_rng(0), monitor)
    errors = monitor.history()["anchor"]
    assert errors[-1] < 0.6 * errors[0]  # of noisy input
    assert np.abs(encode(encoder, Rows(X, CPU)).numpy() - target).mean() < 0.1
    assert errors[-1] == pytest.approx(monitor.history()["total"][-1])
    assert monitor.history()["step"][-1] == _train.ENCODER_STEPS


@pytest.mark.parametrize("module", [_train, _joint])
def test_network_is_trained_on_noisy_input(blobs, monkeypatch, module):
    seen = []

    class Recorded(NoisyInput):
        def __init__(self, encoder, *args, **kwargs):
            super().__init__(encoder, *args, **kwargs)
            self.encoder = encoder

        def __call__(self, x):
            z = super().__call__(x)
            seen.append(z - (x - self.encoder.center) / self.encoder.scale)
            return z

    monkeypatch.setattr(module, "NoisyInput", Recorded)
    run(blobs, epochs=1)
    noise = torch.cat(seen)
    assert len(noise) >= 400
    assert noise.mean() == pytest.approx(0, abs=0.02)
    assert noise.std() == pytest.approx(0.3, rel=0.05)


def test_input_without_noise_is_the_standardized_one(blobs):
    X = torch.from_numpy(blobs[0])
    encoder = Encoder(6, (16,), 2, torch.Generator().manual_seed(0))
    encoder.standardize(*blobs[:2])
    clean = NoisyInput(encoder, np.random.default_rng(0), size=0.0)
    torch.testing.assert_close(encoder.place(clean(X)), encoder(X), rtol=1e-4, atol=1e-5)


def test_joint_stage_is_budgeted_in_steps():
    assert [settings().joint_steps(n) for n in (100, 1000, 20_000, 10**6)] == [4, 16, 80, 80]
    assert settings(epochs=7).joint_steps(1000) == 7 * 4


def joint_stage(blobs, **changes):
    X, graph, truth = blobs
    encoder = Encoder(6, (16,), 2, torch.Generator().manual_seed(0))
    encoder.standardize(X, graph)
    H = np.eye(4, 2, dtype=np.float32)[truth]
    clean = NoisyInput(encoder, np.random.default_rng(0), size=0.0)
    stage = _joint.JointStage(encoder, Rows(X, CPU), H, np.eye(4, 2), graph, settings(**changes), clean)
    stage.bank = encode(encoder, stage.rows)
    return stage


def test_joint_losses_are_the_exact_ones_in_expectation(blobs):
    stage = joint_stage(blobs)
    H = stage.bank.clone()
    everything, sums = torch.arange(400), []
    for seed in range(30):
        rng = np.random.default_rng(seed)
        stage.count()
        drawn = stage.draw(everything.numpy(), rng)
        sums.append({name: value.item() for name, value in stage._losses(everything, drawn).items()})
    edges = _train._sampling.augmented_edges(stage.graph)
    d = (H[edges.head] - H[edges.tail]).square().sum(dim=1).add(1e-6).sqrt().double()
    expected = float((torch.from_numpy(edges.contraction) * d).sum())
    assert np.mean([s["contraction"] for s in sums]) == pytest.approx(expected, rel=0.02)
    boundary = d - 0.1 * torch.log(1 - torch.exp(-d))
    expected = float((torch.from_numpy(edges.boundary) * boundary).sum())
    assert np.mean([s["boundary"] for s in sums]) == pytest.approx(expected, rel=0.02)
    gaps = np.sqrt(((H.numpy()[:, None] - H.numpy()[None]) ** 2).sum(axis=-1) + 1e-6)
    apart = (stage.graph.toarray() == 0) & ~np.eye(400, dtype=bool)
    expected = -np.log(1 - np.exp(-gaps[apart].astype(np.float64))).mean()
    assert np.mean([s["expansion"] for s in sums]) == pytest.approx(expected, rel=0.05)


def test_joint_target_uses_frequencies_of_all_cells(blobs):
    stage = joint_stage(blobs)
    stage.count()
    Q = _joint._losses.soft_assignment(stage.bank, stage.centers)
    np.testing.assert_allclose(stage.frequencies, Q.sum(dim=0).detach(), rtol=1e-5)


def test_joint_stage_takes_the_epochs_asked_for(blobs):
    assert (run(blobs, epochs=6).history["stage"] == "joint").sum() == 6


def test_epochs_zero_skips_the_joint_stage(blobs):
    assert "joint" not in run(blobs, epochs=0).history["stage"]


@pytest.mark.parametrize("loss", ["boundary", "contraction", "expansion", "clustering"])
def test_each_loss_can_be_switched_off(blobs, loss):
    weights = resolve_weights("compact", {loss: 0})
    result = run(blobs, weights=weights, epochs=1)
    assert np.isfinite(result.H).all()
    record = {name: column[-1] for name, column in result.history.items()}
    total = sum(weights[name] * record[name] for name in ("boundary", "contraction", "expansion"))
    total += record["beta"] * weights["clustering"] * record["clustering"] + record["anchor"]
    assert record["total"] == pytest.approx(total, rel=1e-5)


def test_paper_objective_runs_end_to_end(blobs):
    X, graph, truth = blobs
    weights = resolve_weights("paper", None)
    result = run(blobs, objective="paper", weights=weights, epochs=3, keep_stages=True)
    history = result.history
    assert set(history["stage"]) == {"paper"}
    np.testing.assert_allclose(history["beta"], [0, GAMMA, 2 * GAMMA][: len(history["beta"])])
    total = history["boundary"] + history["contraction"] + history["expansion"]
    total = total + history["beta"] * np.nan_to_num(history["clustering"])
    np.testing.assert_allclose(history["total"], total, rtol=1e-5)
    assert history["step"][0] == _paper.steps_per_epoch(graph)
    assert result.centers.shape == (4, 2)
    assert set(result.stages) == {"start"}


def test_paper_epoch_counts_its_draws(blobs, monkeypatch):
    _, graph, _ = blobs
    drawn = []
    original = _paper._sampling.sample_edges
    monkeypatch.setattr(
        _paper._sampling, "sample_edges", lambda share, size, rng: drawn.append(size) or original(share, size, rng)
    )
    run(blobs, objective="paper", weights=resolve_weights("paper", None), epochs=2)
    assert drawn == [_paper.BATCH] * (2 * 2 * (graph.nnz // 2 // _paper.BATCH))


def test_unknown_number_of_clusters_is_logged(blobs, caplog):
    with caplog.at_level(logging.INFO, logger="scvcc"):
        result = run(blobs, n_clusters=None, epochs=1)
    assert f"found {len(result.centers)} clusters" in caplog.text
    assert "n_clusters" in caplog.text


def test_non_finite_loss_names_stage_step_and_loss():
    with _monitor.Monitor(1, show=False) as monitor, pytest.raises(FloatingPointError, match="expansion.*'map'.*25"):
        monitor.record("map", 25, {"expansion": float("nan"), "total": 1.0})


def test_extreme_input_raises_instead_of_returning_nan(blobs):
    X, graph, _ = blobs
    bad = X.copy()
    bad[0, 0] = np.inf  # past validation on purpose
    with np.errstate(all="ignore"), pytest.raises(FloatingPointError, match="anchor"):
        _train.train(bad, graph, settings(), device=CPU, seed=0, progress=False)


def test_progress_bar_shows_and_ends(blobs, capsys):
    X, graph, _ = blobs
    _train.train(X, graph, settings(epochs=1), device=CPU, seed=0, progress=True)
    shown = capsys.readouterr().err
    assert "VCC: structure" in shown or "VCC: encoder" in shown
    run(blobs, epochs=1)
    assert capsys.readouterr().err == ""


def test_planned_steps_equal_the_steps_taken(blobs, monkeypatch):
    X, graph, _ = blobs
    taken = []
    monkeypatch.setattr(_monitor.Monitor, "advance", lambda self, stage, steps=1: taken.append(steps))
    run(blobs)
    assert sum(taken) == _train._planned_steps(graph, settings())


def test_graph_in_pieces_with_isolated_points(blobs):
    X, graph, _ = blobs
    mask = np.ones(400)
    mask[:3] = 0
    cut = sp.csr_matrix(sp.diags(mask) @ graph @ sp.diags(mask), dtype=np.float32)
    cut.eliminate_zeros()
    cut.sort_indices()
    result = _train.train(X, cut, settings(epochs=1), device=CPU, seed=0, progress=False)
    assert np.isfinite(result.H).all()


def test_digits_are_found():
    X, truth = load_digits(return_X_y=True)
    graph = _graph.latent_graph(_graph.neighbor_distances(X, 15))
    result = _train.train(X, graph, settings(n_clusters=10, hidden=(256, 256)), device=CPU, seed=0, progress=False)
    labels = np.linalg.norm(result.H[:, None] - result.centers[None], axis=-1).argmin(axis=1)
    assert adjusted_rand_score(truth, labels) > 0.8  # k-means reaches .67
