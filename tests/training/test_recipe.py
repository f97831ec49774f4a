import logging
import sys

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from sklearn.datasets import load_digits
from sklearn.metrics import adjusted_rand_score

from scvcc._training import fitting as _fitting
from scvcc._training import graph as _graph
from scvcc._training import monitor as _monitor
from scvcc._training.encoder import Rows, encode
from scvcc._training.recipe import planned_steps
from scvcc._training.settings import MAP_EPOCHS, beta, resolve_weights

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def trained(blobs, trained_on):
    return trained_on(blobs)


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
    np.testing.assert_allclose(history["beta"][on_map][-1], beta(MAP_EPOCHS))
    np.testing.assert_allclose(history["beta"][history["stage"] == "joint"][0], beta(MAP_EPOCHS + 1))
    assert np.isfinite(history["label_change"][on_map][1:]).all()
    structure = history["total"][history["stage"] == "structure"]
    assert structure[-1] < structure[0]


@pytest.mark.parametrize("latent_dim", [1, 2, 5, 40])
def test_any_latent_dimension(blobs, trained_on, latent_dim):
    result = trained_on(blobs, latent_dim=latent_dim, epochs=1)
    assert result.H.shape == (400, latent_dim)
    assert np.isfinite(result.H).all()


def test_network_is_trained_on_noisy_input(blobs, trained_on, monkeypatch):
    seen = []

    original = _fitting.Learner.noisy

    def recorded(learner, x, *noise):
        z = original(learner, x, *noise)
        seen.append(z - (x - learner.encoder.center) / learner.encoder.scale)
        return z

    monkeypatch.setattr(_fitting.Learner, "noisy", recorded)
    trained_on(blobs, epochs=2)
    noise = torch.cat(seen)
    assert len(noise) == 150 * 400 + 2 * 400  # 300 steps of the regression, and two passes of the joint stage
    assert noise.mean() == pytest.approx(0, abs=0.02)
    assert noise.std() == pytest.approx(0.3, rel=0.05)


@pytest.mark.parametrize("loss", ["boundary", "contraction", "expansion", "clustering"])
def test_each_loss_can_be_switched_off(blobs, trained_on, loss):
    weights = resolve_weights("compact", {loss: 0})
    result = trained_on(blobs, weights=weights, epochs=1)
    assert np.isfinite(result.H).all()
    record = {name: column[-1] for name, column in result.history.items()}
    total = sum(weights[name] * record[name] for name in ("boundary", "contraction", "expansion"))
    total += record["beta"] * weights["clustering"] * record["clustering"] + record["anchor"]
    assert record["total"] == pytest.approx(total, rel=1e-5)


def test_unknown_number_of_clusters_is_logged(blobs, trained_on, caplog):
    with caplog.at_level(logging.INFO, logger="scvcc"):
        result = trained_on(blobs, n_clusters=None, epochs=1)
    assert f"found {len(result.centers)} clusters" in caplog.text
    assert "n_clusters" in caplog.text


def test_extreme_input_raises_instead_of_returning_nan(blobs, trained_on):
    X, graph, _ = blobs
    bad = X.copy()
    bad[0, 0] = 3e38  # finite, but not what the encoder makes of it
    with np.errstate(all="ignore"), pytest.raises(ValueError, match="loss became nan"):
        trained_on((bad, graph))


def test_progress_bar_shows_and_ends(blobs, trained_on, capsys, monkeypatch):
    trained_on(blobs, progress=True, epochs=1)
    assert capsys.readouterr().err == ""  # neither a terminal nor a notebook
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    trained_on(blobs, progress=True, epochs=1)
    shown = capsys.readouterr().err
    assert "VCC: structure" in shown or "VCC: encoder" in shown
    trained_on(blobs, epochs=1)
    assert capsys.readouterr().err == ""


def test_planned_steps_equal_the_steps_taken(blobs, trained_on, settings, monkeypatch):
    taken = []
    monkeypatch.setattr(_monitor.Monitor, "advance", lambda self, stage, steps=1: taken.append(steps))
    trained_on(blobs)
    assert sum(taken) == planned_steps(blobs[1], settings())


def test_graph_in_pieces_with_isolated_points(blobs, trained_on):
    X, graph, _ = blobs
    mask = np.ones(400)
    mask[:3] = 0
    cut = sp.csr_matrix(sp.diags(mask) @ graph @ sp.diags(mask), dtype=np.float32)
    cut.eliminate_zeros()
    cut.sort_indices()
    result = trained_on((X, cut), epochs=1)
    assert np.isfinite(result.H).all()


def test_digits_are_found(trained_on):
    X, truth = load_digits(return_X_y=True)
    graph = _graph.latent_graph(_graph.neighbor_distances(X, 15))
    result = trained_on((X, graph), n_clusters=10, hidden=(256, 256))
    labels = np.linalg.norm(result.H[:, None] - result.centers[None], axis=-1).argmin(axis=1)
    assert adjusted_rand_score(truth, labels) > 0.75  # k-means reaches .67
