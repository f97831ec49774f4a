"""Cluster counts and stability, without an encoder."""

import numpy as np
import pytest
from sklearn.datasets import make_blobs

from scvcc import VCC
from scvcc._clusters import counts as _counts
from scvcc._clusters.evidence import Points
from scvcc._training import explore as _explore
from scvcc._training import graph as _graph


def graph_of(X):
    return _graph.latent_graph(_graph.neighbor_distances(X, 10))


@pytest.fixture(scope="module")
def apart():
    """Two groups that stand apart, and a third that is one cloud."""
    X, y = make_blobs([80, 80, 160], n_features=6, centers=np.eye(3, 6) * 30, random_state=0)
    return X.astype(np.float32), y, graph_of(X)


@pytest.fixture
def suggest(settings):
    def run(graph, **changes):
        options = {"limits": (2, 12), "n_runs": 0, "share": 0.8, "progress": False, **changes}
        points = Points(np.ones((graph.shape[0], 1), np.float32), graph)
        return _explore.suggest_counts(points, settings(n_clusters=None), 0, **options)[:2]

    return run


def test_suggestion_is_what_training_finds(apart, suggest):
    X, _, graph = apart
    table, suggested = suggest(graph, limits=(2, 40))
    model = VCC(None, hidden=(16,), epochs=0, n_neighbors=10, n_pcs=None).fit(X)
    assert suggested == model.n_clusters_ == 3
    assert table["n_clusters"][np.argmax(table["score"])] == 3


def test_coordinates_are_those_of_training(apart, monkeypatch, suggest):
    seen = []
    original = _counts.score_counts
    for module in (_counts, _explore):
        monkeypatch.setattr(module, "score_counts", lambda H, *a, **k: seen.append(H) or original(H, *a, **k))
    model = VCC(None, hidden=(4,), epochs=0).fit(apart[0])
    suggest(model.graph_)
    np.testing.assert_array_equal(*seen)


def test_reproducibility_is_the_agreement_of_parts(apart, suggest):
    _, _, graph = apart
    table, _ = suggest(graph, n_runs=3)
    at = dict(zip(table["n_clusters"], table["reproducibility"], strict=True))
    assert at[3] == pytest.approx(1.0)  # the groups are beyond doubt
    assert at[6] < 0.9  # cuts through a cloud are not
    assert "reproducibility" not in suggest(graph)[0]


def test_real_clusters_come_back_and_halves_of_a_cloud_do_not(apart, settings):
    X, y, graph = apart
    labels = np.where((y == 2) & (X[:, 4] > 0), 3, y)
    runs, cells = _explore.recurrence(graph, labels, settings(n_clusters=None), 0, n_runs=9, share=0.8, progress=False)
    assert runs.shape == (9, 4) and cells.shape == (320,)
    assert np.median(runs[:, :2], axis=0).min() > 0.99  # a rare run cuts a smaller cloud, and not the large one
    assert runs[:, 2:].mean() < 0.75
    assert cells[y < 2].mean() > 0.9 and cells[y == 2].mean() < 0.75


def test_cells_carry_the_index_of_their_cluster_with_the_one_they_fall_into(apart, monkeypatch, settings):
    _, y, graph = apart
    moved = np.where(np.arange(320) == 0, (y[0] + 1) % 3, y)  # one point in another cluster than it comes back in
    monkeypatch.setattr(_explore, "find_clusters", lambda H, part, *_: y[points])
    points = np.arange(320)
    monkeypatch.setattr(_explore, "parts", lambda *_: [(points, graph)])
    runs, cells = _explore.recurrence(graph, moved, settings(n_clusters=None), 0, n_runs=1, share=0.8, progress=False)
    assert (moved != y).sum() == 1
    for i in range(320):
        a, b = np.flatnonzero(moved == moved[i]), np.flatnonzero(y == y[i])
        assert cells[i] == pytest.approx(len(np.intersect1d(a, b)) / len(np.union1d(a, b)))
    for k in range(3):
        sets = [(moved == k) & (y == j) for j in range(3)]
        unions = [(moved == k) | (y == j) for j in range(3)]
        assert runs[0, k] == pytest.approx(max(a.sum() / b.sum() for a, b in zip(sets, unions, strict=True)))


def test_a_run_without_a_cluster_and_a_cell_without_a_run_say_nothing(apart, monkeypatch, settings):
    _, y, graph = apart
    points = np.flatnonzero(y != 0)
    part = graph[points][:, points]
    monkeypatch.setattr(_explore, "parts", lambda *_: [(points, part)])
    monkeypatch.setattr(_explore, "find_clusters", lambda *_: y[points])
    runs, cells = _explore.recurrence(graph, y, settings(n_clusters=None), 0, n_runs=1, share=0.8, progress=False)
    assert np.isnan(runs[0, 0]) and (runs[0, 1:] == 1).all()
    assert np.isnan(cells[y == 0]).all() and (cells[y != 0] == 1).all()


def test_parts_are_the_graph_between_random_points(apart):
    graph = apart[2]
    found = list(_explore.parts(graph, 3, 0.5, seed=1))
    assert len({points.tobytes() for points, _ in found}) == 3
    for points, part in found:
        assert len(points) == 160 and (np.diff(points) > 0).all()
        np.testing.assert_array_equal(part.toarray(), graph.toarray()[np.ix_(points, points)])
        assert part.has_sorted_indices
    drawn = np.bincount(np.concatenate([points for points, _ in _explore.parts(graph, 10, 0.8, seed=0)]))
    assert (drawn == 8).all()  # each point is left out in two of ten runs
    with pytest.raises(ValueError, match="share=0.01 leaves 3 points without an edge"):
        list(_explore.parts(graph, 1, 0.01, seed=1))


def test_same_seed_same_result_and_the_callers_generator_is_left_alone(apart, suggest):
    graph = apart[2]
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    a, b = (suggest(graph, n_runs=1)[0] for _ in range(2))
    for name in a:
        np.testing.assert_array_equal(a[name], b[name])
    np.testing.assert_array_equal(before, np.random.get_state()[1])  # noqa: NPY002


def test_jaccard_equals_its_definition():
    rng = np.random.default_rng(0)
    a, b = rng.integers(3, size=40), rng.integers(4, size=40)
    found = _explore.jaccard(a, b, 3)
    for i in range(3):
        for j in range(4):
            assert found[i, j] == ((a == i) & (b == j)).sum() / ((a == i) | (b == j)).sum()
    assert _explore.jaccard(np.zeros(4, int), np.zeros(4, int), 2).tolist() == [[1.0], [0.0]]
