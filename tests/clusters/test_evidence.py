"""The valley test against slow loops and literal cases, its level and its power, and merging."""

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.stats import binomtest, combine_pvalues
from sklearn.cluster import KMeans
from sklearn.covariance import ledoit_wolf
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from scvcc._clusters import evidence
from scvcc._clusters.evidence import Points, merge_unsupported, neighbor_pairs, split_p, support_between
from scvcc._clusters.merging import ClusterGraph
from scvcc._training.graph import latent_graph, neighbor_distances


def halves(X, seed=0):
    return KMeans(2, n_init=1, random_state=seed).fit_predict(X)


def points(X, batch=None):
    return Points(X.astype(np.float32), latent_graph(neighbor_distances(X, 14)), batch)


@pytest.mark.parametrize("shape", [(200, 5), (40, 60)])
def test_covariance_is_that_of_scikit_learn(shape):
    Z = np.random.default_rng(0).normal(size=shape) * np.linspace(1, 3, shape[1])
    assert evidence.shrunk_covariance(Z) == pytest.approx(ledoit_wolf(Z, assume_centered=True)[0])


def test_direction_is_the_discriminant():
    rng = np.random.default_rng(1)
    side = np.repeat([0, 1], [700, 300])
    X = rng.normal(size=(1000, 4)) @ rng.normal(size=(4, 4)) + 3 * side[:, None]
    weights, middle = evidence.direction(X, side)
    theirs = LinearDiscriminantAnalysis(priors=[0.5, 0.5]).fit(X, side).coef_[0]
    assert abs(weights @ theirs) / np.linalg.norm(weights) / np.linalg.norm(theirs) > 0.999
    score = X @ weights - middle
    assert [score[side == c].mean() for c in (0, 1)] == pytest.approx([-1, 1])


@pytest.mark.parametrize("n", [2, 3, 10, 31])
def test_densest_half(n):
    x = np.sort(np.random.default_rng(n).normal(size=n))
    m = max(-(-n // 2), 2)
    width, low = min((x[i + m - 1] - x[i], x[i]) for i in range(n - m + 1))
    assert evidence.densest_half(x) == pytest.approx((low, low + width))


def test_deepest_valley_is_the_one_a_slow_search_finds():
    rng = np.random.default_rng(2)
    x = np.sort(np.concatenate([rng.normal(-1, 0.3, 300), rng.normal(1, 0.4, 200)]))
    peaks = [(-1.2, -0.8), (0.8, 1.3)]
    edge, best = np.linspace(-0.8, 0.8, 25), (-np.inf, None)
    for i in range(25):
        for j in range(i + 2, 25):
            inside, lacks = ((x >= edge[i]) & (x < edge[j])).sum(), []
            for low, high in peaks:
                peak = ((x >= low) & (x <= high)).sum()
                q = (high - low) / (high - low + 0.8 * (edge[j] - edge[i]))
                n = peak + inside
                lacks.append((peak - n * q) / np.sqrt(n * q * (1 - q)))
            best = max(best, (min(lacks), (edge[i], edge[j])), key=lambda found: found[0])
    assert evidence.deepest_valley(x, peaks, 0.8) == pytest.approx(best[1])


def test_points_are_counted_in_windows_of_the_other_folds():
    rng = np.random.default_rng(3)
    side = np.repeat([0, 1], [120, 80])
    score = rng.normal(size=200) * 0.4 + 2 * side - 1
    fold = rng.permutation(200) % evidence.FOLDS
    expected = np.zeros((2, 3))
    for f in range(evidence.FOLDS):
        own, rest = score[fold == f], np.sort(score[fold != f])
        peaks = [evidence.densest_half(np.sort(score[(fold != f) & (side == c)])) for c in (0, 1)]
        low, high = evidence.deepest_valley(rest, peaks, 0.8)
        for c, (a, b) in enumerate(peaks):
            peak, valley = ((own >= a) & (own <= b)).sum(), ((own > low) & (own < high)).sum()
            expected[c] += peak, valley, (peak + valley) * (b - a) / (b - a + 0.8 * (high - low))
    assert evidence.valley_counts(score, side, fold, 0.8) == pytest.approx(expected)


def test_p_is_that_of_the_binomial_test():
    p = evidence.binomial_p(np.array([[30.0, 10.0, 20.0], [25.0, 10.0, 14.0]]))
    assert p == pytest.approx(binomtest(30, 40, 0.5, alternative="greater").pvalue)
    assert evidence.binomial_p(np.zeros((2, 3))) == 1


def hump(kind, n, rng):
    if kind == "line":
        return np.column_stack([rng.uniform(0, 10, n), *rng.normal(size=(9, n))])
    draw = {
        "normal": rng.normal,
        "heavy": lambda size: rng.standard_t(5, size),
        "skewed": lambda size: rng.lognormal(0, 0.6, size),
    }
    return draw[kind](size=(n, 10))


@pytest.mark.parametrize("kind", ["normal", "heavy", "skewed", "line"])
def test_one_hump_cut_in_two_is_not_supported(kind):
    rng = np.random.default_rng(4)
    for seed in range(10):
        X = hump(kind, 400, rng)
        assert split_p(X, halves(X, seed), rng) >= 0.05


@pytest.mark.parametrize(("n_rare", "gap"), [(300, 4.5), (60, 7)])
def test_two_humps_are(n_rare, gap):
    rng = np.random.default_rng(5)
    side = np.repeat([0, 1], [600 - n_rare, n_rare])
    X = rng.normal(size=(600, 10))
    X[:, 0] += gap * side
    assert split_p(X, side, rng) < 0.01
    assert split_p(X, 1 - side, rng) < 0.01  # whichever is first


def test_few_points_and_sides_without_room_are_not():
    rng = np.random.default_rng(6)
    X = np.concatenate([rng.normal(size=(100, 3)), 50 + rng.normal(size=(4, 3))])
    assert split_p(X, np.repeat([0, 1], [100, 4]), rng) == 1
    assert split_p(np.ones((40, 3)), np.repeat([0, 1], 20), rng) == 1
    same = rng.normal(size=(300, 3))
    assert split_p(same, rng.integers(2, size=300), rng) > 0.5


def test_a_batch_is_no_evidence():
    rng = np.random.default_rng(7)
    batch = np.repeat([0, 1, 2], 200)
    X = rng.normal(size=(600, 6))
    X[batch == 1] += 6
    side = (batch == 1).astype(int)
    assert split_p(X, side, rng) < 1e-6
    assert split_p(X, side, rng, batch=batch) == 1
    side[rng.choice(600, 60, replace=False)] ^= 1  # some of each side in each batch
    assert split_p(X, side, rng, batch=batch) >= 0.05
    types = np.tile([0, 1], 300)
    X[:, 2] += 5 * types
    assert split_p(X, types, rng, batch=batch) < 1e-6


def test_clusters_that_are_mostly_one_batch_each_have_no_valley_within_a_batch():
    rng = np.random.default_rng(12)
    batch = np.repeat([0, 1], 500)
    X = rng.normal(size=(1000, 10))
    X[:, 0] += 4 * batch
    side = (X[:, 0] > 2).astype(int)  # a few cells of each batch are on the other side
    assert split_p(X, side, rng) < 1e-6
    assert split_p(X, side, rng, batch=batch) > 0.5


def test_batches_are_summed_up_as_by_fisher():
    assert evidence._all_one_hump([0.3]) == 0.3
    assert evidence._all_one_hump([0.2, 0.01, 0.6]) == pytest.approx(combine_pvalues([0.2, 0.01, 0.6]).pvalue)
    assert 0 <= evidence._all_one_hump([0.0, 1.0]) < 1e-100


def test_pairs_that_the_graph_links():
    share = np.array([[0.5, 0.02, 0.001], [0.02, 0.2, 0.0], [0.001, 0.0, 0.258]])
    pairs, link = neighbor_pairs(ClusterGraph(share, np.array([50, 22, 28])))
    assert pairs.tolist() == [[0, 1]]
    assert link == pytest.approx([0.02 / 0.22])


def test_support_of_pairs():
    rng = np.random.default_rng(8)
    truth = np.repeat([0, 1, 2], [400, 300, 300])
    X = rng.normal(size=(1000, 5))
    X[:, :2] += 4 * np.array([[0, 0], [1, 0], [0, 1]])[truth]
    cut = np.where((truth == 0) & (X[:, 3] > 0), 3, truth)
    found = support_between(points(X), cut, rng)
    p = {tuple(pair): p for pair, p in zip(found.pairs.tolist(), found.p, strict=True)}
    assert p[0, 3] >= 0.05 > max(p[pair] for pair in p if pair != (0, 3))
    assert found.weak.tolist() == [0, 3]


def test_of_large_clusters_as_many_points_as_asked_are_looked_at(monkeypatch):
    rng, seen = np.random.default_rng(8), []
    X = rng.normal(size=(600, 5))
    labels = np.repeat([0, 1], [500, 100])
    X[:, 0] += 6 * labels
    between = Points.p_between
    monkeypatch.setattr(Points, "p_between", lambda self, rows, *a: seen.append(rows) or between(self, rows, *a))
    assert support_between(points(X), labels, rng, most=150).p.max(initial=0) < 0.01
    for rows in seen:
        assert [len(rows[0]), len(rows[1])] == [150, 100] and (labels[rows[0]] == 0).all()


def test_one_clear_valley_is_enough_and_pieces_of_one_hump_have_none():
    rng = np.random.default_rng(11)
    X, far = rng.normal(size=(900, 6)).astype(np.float32), np.arange(900) < 200
    labels = np.where(far, 3, KMeans(3, n_init=1, random_state=0).fit_predict(X))
    linked = sp.csr_matrix(np.ones((900, 900), np.float32))  # all clusters with each other
    assert not evidence.clearly_parted(Points(X, linked), labels, rng)
    X[far, 0] += 8
    assert evidence.clearly_parted(Points(X, linked), labels, rng)


def test_pieces_of_one_hump_merge_into_one():
    rng = np.random.default_rng(9)
    X = rng.normal(size=(600, 8))
    cut = KMeans(6, n_init=1, random_state=0).fit_predict(X)
    assert merge_unsupported(points(X), cut, rng).tolist() == [0] * 6


def test_pieces_of_several_humps_merge_into_these():
    rng = np.random.default_rng(10)
    truth = np.repeat([0, 1, 2], [300, 200, 100])
    X = rng.normal(size=(600, 8)) + 3.5 * np.eye(8)[truth]
    cut = 2 * truth + halves(X[:, 4:])
    parent = merge_unsupported(points(X), cut, rng)
    assert parent.tolist() == [0, 0, 1, 1, 2, 2]
