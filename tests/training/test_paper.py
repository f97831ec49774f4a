import numpy as np

from scvcc._training import paper
from scvcc._training.settings import beta, resolve_weights


def test_paper_objective_runs_end_to_end(blobs, trained_on):
    X, graph, truth = blobs
    weights = resolve_weights("paper", None)
    result = trained_on(blobs, objective="paper", weights=weights, epochs=3)
    history = result.history
    assert set(history["stage"]) == {"paper"}
    np.testing.assert_allclose(history["beta"], [beta(0), beta(1), beta(2)][: len(history["beta"])])
    total = history["boundary"] + history["contraction"] + history["expansion"]
    total = total + history["beta"] * np.nan_to_num(history["clustering"])
    np.testing.assert_allclose(history["total"], total, rtol=1e-5)
    assert history["step"][0] == graph.nnz // 2 // 200
    assert result.centers.shape == (4, 2)
    assert set(result.stages) == {"start"}


def test_paper_epoch_counts_its_draws(blobs, trained_on, monkeypatch):
    _, graph, _ = blobs
    drawn = []
    original = paper.draw_pairs
    monkeypatch.setattr(paper, "draw_pairs", lambda *args: drawn.append(args[2]) or original(*args))
    trained_on(blobs, objective="paper", weights=resolve_weights("paper", None), epochs=2)
    assert drawn == [200] * (2 * (graph.nnz // 2 // 200))
