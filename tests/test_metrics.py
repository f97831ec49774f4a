import itertools

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score
from sklearn.neighbors import kneighbors_graph

from scvcc import metrics


def best_accuracy(true, pred):
    """The definition: try every way to name the clusters."""
    names = sorted(set(true)) + [object() for _ in set(pred)]
    clusters = sorted(set(pred))
    return max(
        np.mean([mapping[p] == t for t, p in zip(true, pred, strict=True)])
        for mapping in (dict(zip(clusters, p, strict=True)) for p in itertools.permutations(names, len(clusters)))
    )


@pytest.mark.parametrize(("n_groups", "n_clusters"), [(3, 3), (4, 2), (2, 4)])
def test_accuracy_is_the_best_over_all_matchings(n_groups, n_clusters):
    rng = np.random.default_rng(n_groups)
    for _ in range(5):
        true, pred = rng.integers(n_groups, size=30), rng.integers(n_clusters, size=30)
        assert metrics.clustering_accuracy(true, pred) == pytest.approx(best_accuracy(list(true), list(pred)))


def test_scores_agree_with_sklearn_and_take_columns():
    rng = np.random.default_rng(0)
    true, pred = rng.choice(["B", "T", "NK"], 50), rng.integers(4, size=50)
    column = pd.Series(pd.Categorical(true))
    assert metrics.nmi(column, pred) == pytest.approx(normalized_mutual_info_score(true, pred))
    assert metrics.ari(column, list(pred)) == pytest.approx(adjusted_rand_score(true, pred))
    assert metrics.clustering_accuracy(column, column) == 1


def test_compactness_of_a_known_picture():
    # clusters of 2 and 1 points; spread (1 + 1 + 0) / 3, gap 4 for every cluster
    points, labels = [[0, 0], [0, 2], [4, 1]], ["a", "a", "b"]
    assert metrics.compactness(points, labels) == pytest.approx(4 / (4 + 2 / 3))
    assert metrics.compactness(1000 * np.array(points), labels) == pytest.approx(4 / (4 + 2 / 3))


def test_compactness_rises_as_clusters_shrink_and_weighs_by_size():
    rng = np.random.default_rng(0)
    labels = np.repeat([0, 1, 2], 40)
    centers = np.array([[0, 0], [5, 0], [0, 5]])[labels]
    noise = rng.normal(size=(120, 2))
    values = [metrics.compactness(centers + s * noise, labels) for s in (2, 1, 0.5, 0)]
    assert values == sorted(values)
    assert values[-1] == 1


def test_compactness_weighs_gaps_by_the_size_of_clusters():
    rng = np.random.default_rng(0)
    labels = np.repeat([0, 1, 2], [30, 5, 10])
    H = rng.normal(size=(45, 2)) + np.array([[0, 0], [4, 0], [30, 9]])[labels]
    centers = [H[labels == k].mean(axis=0) for k in range(3)]
    spread = np.mean([np.linalg.norm(h - centers[k]) for h, k in zip(H, labels, strict=True)])
    gap = np.mean([min(np.linalg.norm(centers[k] - centers[other]) for other in {0, 1, 2} - {k}) for k in labels])
    assert metrics.compactness(H, labels) == pytest.approx(gap / (gap + spread))


def test_compactness_of_one_place_is_zero():
    assert metrics.compactness(np.zeros((4, 2)), [0, 0, 1, 1]) == 0


@pytest.mark.parametrize("score", [metrics.clustering_accuracy, metrics.nmi, metrics.ari])
@pytest.mark.parametrize(
    ("true", "pred", "message"),
    [
        ([0, 1], [0, 1, 1], "labels_true has 2 entries and labels_pred 3"),
        ([], [], "labels_true must be a non-empty"),
        ([[0, 1]], [[0, 1]], r"found shape \(1, 2\)"),
        (["a", None, "b"], [0, 1, 2], "labels_true has 1 missing"),
        (["a", "a", np.nan, "b"], [0, 0, 1, 2], "labels_true has 1 missing"),
        ([0, 1], [0.0, np.nan], "labels_pred has 1 missing"),
    ],
)
def test_bad_labels_are_named(score, true, pred, message):
    with pytest.raises(ValueError, match=message):
        score(true, pred)


@pytest.mark.parametrize(
    ("embedding", "labels", "message"),
    [
        (np.zeros((3, 2)), [0, 1], r"embedding has shape \(3, 2\)"),
        (np.zeros(3), [0, 1, 1], r"embedding has shape \(3,\)"),
        ([[0.0, np.nan], [1, 1]], [0, 1], "NaN or infinite"),
        (np.zeros((3, 2)), [1, 1, 1], "single cluster"),
    ],
)
def test_bad_embeddings_are_named(embedding, labels, message):
    with pytest.raises(ValueError, match=message):
        metrics.compactness(embedding, labels)


def test_batch_mixing_is_the_share_of_foreign_neighbors_over_chance():
    graph = sp.csr_matrix(np.array([[5, 1, 1, 0], [1, 0, 0, 0], [0, 0, 5, 1], [0, 0, 0, 0]], float))
    found = metrics.batch_mixing(graph, ["a", "a", "b", "b"])
    np.testing.assert_allclose(found, [0.5 / (2 / 3), 0, 0, np.nan])  # a cell's own entry does not count
    with pytest.raises(ValueError, match=r"graph has shape \(4, 4\), but batch has 3 entries"):
        metrics.batch_mixing(graph, ["a", "a", "b"])


def test_boundary_score_is_the_relative_spread_of_the_forces():
    D = kneighbors_graph(np.random.default_rng(0).normal(size=(60, 3)), 8, mode="distance")
    rows = [row[row > 0] for row in D.toarray()]
    scale = np.median([np.ptp(row) for row in rows])
    forces = [np.exp(-row / scale) / np.exp(-row / scale).sum() for row in rows]
    np.testing.assert_allclose(metrics.boundary_score(D), [f.std() / f.mean() for f in forces], rtol=1e-4)
    np.testing.assert_allclose(metrics.boundary_score(D * 1000), metrics.boundary_score(D), rtol=1e-4)


def test_boundary_score_is_higher_between_clusters():
    rng = np.random.default_rng(0)
    inside = rng.normal(size=(400, 2))
    between = np.column_stack([rng.uniform(2, 8, 30), rng.normal(scale=0.2, size=30)])
    Z = np.vstack([inside, inside + [10, 0], between])
    score = metrics.boundary_score(kneighbors_graph(Z, 15, mode="distance"))
    core = np.linalg.norm(inside, axis=1) < 1
    assert np.median(score[800:]) > np.median(score[:400][core])
