"""Is a split supported? A test for a valley of density between two groups, and the merging of groups without one.

The null hypothesis is one hump: along the direction that tells two groups apart, density is nowhere between their peaks
lower than a share of the lower peak. Nothing is drawn from a null, and no shape is assumed: the direction, both peaks and
the valley are found on other points than those that are then counted, so that each count is binomial.

A small p-value says that there are two humps. A large one is no evidence for a single one: groups that overlap, or hold
few points, are beyond the test.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from numpy.random import Generator
from scipy.stats import binom, chi2

from scvcc._clusters.merging import ClusterGraph, compact

LEVEL = 0.05  # a split is supported below this p-value
DEPTH = 0.9  # a valley shallower than this share of the lower peak is none; at 1 a flat hump is at the level itself
FOLDS = 5  # a side needs a point in each


@dataclass(frozen=True)
class Support:
    """What is between the pairs of neighboring clusters."""

    pairs: np.ndarray  # (m, 2) clusters that the graph links
    link: np.ndarray  # (m,) share of the graph's weight at the smaller one that leads to the other
    p: np.ndarray  # (m,)

    @property
    def weak(self) -> np.ndarray:
        """Clusters that no valley separates from some neighbor, in order."""
        return np.unique(self.pairs[self.p >= LEVEL])


def split_p(
    X: np.ndarray,
    side: np.ndarray,
    rng: Generator,
    *,
    batch: np.ndarray | None = None,
    depth: float = DEPTH,
    repeats: int = 7,
) -> float:
    """P-value of one hump for the rows of `X` on two sides (0 or 1); with `batch`, of one hump in every batch.

    The median over `repeats` foldings, which end early where they agree.
    """
    strata = list(_strata(side, batch))
    if not strata:
        return 1.0
    found: list[float] = []
    while max(np.sum(np.array(found) < LEVEL), np.sum(np.array(found) >= LEVEL)) <= repeats // 2:
        p = [binomial_p(valley_counts(*_cross_scored(X[rows], side[rows], rng), depth)) for rows in strata]
        found.append(_all_one_hump(p))
        if len(found) == 1 and not LEVEL / 50 < found[0] < 0.5:
            break  # clear at once
    return float(np.median(found))


def _all_one_hump(p: list[float]) -> float:
    """P-value of one hump in every batch (Fisher 1925); counts of batches are not added: each may hold another peak."""
    return p[0] if len(p) == 1 else float(chi2.sf(-2 * np.log(np.maximum(p, 1e-300)).sum(), 2 * len(p)))


def _strata(side: np.ndarray, batch: np.ndarray | None) -> Iterator[np.ndarray]:
    """Rows to be compared with each other: all, or those of each batch that both sides are found in."""
    for code in [0] if batch is None else np.unique(batch):
        rows = np.arange(len(side)) if batch is None else np.flatnonzero(batch == code)
        if np.bincount(side[rows], minlength=2).min() >= FOLDS:
            yield rows


def _cross_scored(
    X: np.ndarray, side: np.ndarray, rng: Generator, most: int = 3_000
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Each row's score along the direction found on (`most` rows of a side of) the other folds; the sides, the folds."""
    fold, fitted = np.empty(len(side), dtype=np.intp), []
    for c in (0, 1):
        rows = rng.permutation(np.flatnonzero(side == c))
        fold[rows] = np.arange(len(rows)) % FOLDS
        fitted.append(rows[:most])
    sample = np.sort(np.concatenate(fitted))
    score = np.empty(len(X))
    for f in range(FOLDS):
        rest = sample[fold[sample] != f]
        weights, middle = direction(X[rest], side[rest])
        score[fold == f] = X[fold == f] @ weights - middle
    return score, side, fold


def direction(X: np.ndarray, side: np.ndarray) -> tuple[np.ndarray, float]:
    """Shrunk linear discriminant: weights, and the offset with which the means of the two sides score -1 and 1."""
    means = np.stack([X[side == c].mean(axis=0) for c in (0, 1)])
    rest = X - means[side]
    scale = rest.std(axis=0) + 1e-9
    gap = (means[1] - means[0]) / scale
    covariance = shrunk_covariance(rest / scale) + 1e-9 * np.eye(len(gap))  # rows of a side may all be the same
    weights = np.linalg.solve(covariance, gap) / scale
    weights /= max((means[1] - means[0]) @ weights / 2, 1e-12)
    return weights, float(means.mean(axis=0) @ weights)


def shrunk_covariance(Z: np.ndarray) -> np.ndarray:
    """Covariance of centered rows, shrunk to a multiple of the identity as far as chance asks for (Ledoit & Wolf 2004)."""
    n, d = Z.shape
    cov = Z.T @ Z / n
    square, mean = np.square(cov).sum(), np.trace(cov) / d
    excess = square - d * mean**2
    noise = (np.square(np.square(Z).sum(axis=1)).mean() - square) / n
    share = min(noise / excess, 1.0) if excess > 0 else 1.0
    return (1 - share) * cov + share * mean * np.eye(d)


def valley_counts(score: np.ndarray, side: np.ndarray, fold: np.ndarray, depth: float) -> np.ndarray:
    """For either peak: points in its window, points in the valley, and points expected in the former, (2, 3).

    Windows are placed on the other folds' scores, and the points of each fold are counted in them.
    """
    total = np.zeros((2, 3))
    for f in range(FOLDS):
        rest, own = np.sort(score[fold != f]), np.sort(score[fold == f])
        peaks = [densest_half(np.sort(score[(fold != f) & (side == c)])) for c in (0, 1)]
        if peaks[1][0] <= peaks[0][1]:
            continue  # no room for a valley
        low, high = deepest_valley(rest, peaks, depth)
        in_valley = max(int(np.searchsorted(own, high, "left") - np.searchsorted(own, low, "right")), 0)
        for c, peak in enumerate(peaks):
            in_peak = _within(own, peak)
            total[c] += in_peak, in_valley, (in_peak + in_valley) * _null_share(peak, high - low, depth)
    return total


def densest_half(x: np.ndarray) -> tuple[float, float]:
    """The shortest interval with half of the sorted numbers."""
    m = max((len(x) + 1) // 2, 2)
    i = int(np.argmin(x[m - 1 :] - x[: len(x) - m + 1]))
    return float(x[i]), float(x[i + m - 1])


def deepest_valley(
    x: np.ndarray, peaks: list[tuple[float, float]], depth: float, places: int = 24
) -> tuple[float, float]:
    """The interval between two peaks with the strongest lack of points, two of `places` steps wide at least."""
    edge = np.linspace(peaks[0][1], peaks[1][0], places + 1)
    below = np.searchsorted(x, edge)
    i, j = np.triu_indices(places + 1, 2)
    inside, width = below[j] - below[i], edge[j] - edge[i]
    lack = np.full(len(i), np.inf)
    for peak in peaks:
        in_peak, share = _within(x, peak), _null_share(peak, width, depth)
        n = in_peak + inside
        lack = np.minimum(lack, (in_peak - n * share) / np.sqrt(np.maximum(n * share * (1 - share), 1e-9)))
    best = int(lack.argmax())
    return float(edge[i[best]]), float(edge[j[best]])


def _null_share(peak: tuple[float, float], width: np.ndarray | float, depth: float) -> np.ndarray | float:
    """Share of the points in peak and valley that is in the peak, where the valley is just not deep enough."""
    length = max(peak[1] - peak[0], 1e-9)
    return length / (length + depth * width)


def _within(x: np.ndarray, window: tuple[float, float]) -> int:
    return int(np.searchsorted(x, window[1], "right") - np.searchsorted(x, window[0], "left"))


def binomial_p(counts: np.ndarray) -> float:
    """The larger p-value of both peaks.

    Sums of binomials that differ in their share are compared with the binomial of the mean share, whose tail is heavier
    (Hoeffding 1956).
    """
    n = counts[:, 0] + counts[:, 1]
    share = np.divide(counts[:, 2], n, out=np.ones(2), where=n > 0)
    return float(np.where(n > 0, binom.sf(counts[:, 0] - 1, n, np.minimum(share, 1)), 1.0).max())


@dataclass(frozen=True)
class Points:
    """Points, the latent graph between them, and the batch of each, where there are batches."""

    X: np.ndarray  # (n, d) components
    graph: sp.csr_matrix
    batch: np.ndarray | None = None  # (n,)

    def p_between(self, rows: tuple[np.ndarray, np.ndarray], rng: Generator, depth: float = DEPTH) -> float:
        """P-value of one hump for two groups of rows."""
        chosen, side = np.concatenate(rows), np.repeat([0, 1], [len(part) for part in rows])
        batch = None if self.batch is None else self.batch[chosen]
        return split_p(self.X[chosen].astype(np.float64), side, rng, batch=batch, depth=depth)


def neighbor_pairs(view: ClusterGraph, least: float = 0.01) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of clusters, (m, 2), that the graph links by a share of the smaller one's weight, and that share."""
    smaller = np.minimum(view.volume[:, None], view.volume[None, :])
    link = np.divide(view.share, smaller, out=np.zeros_like(view.share), where=smaller > 0)
    pairs = np.argwhere(np.triu(link >= least, 1))
    return pairs, link[pairs[:, 0], pairs[:, 1]]


def _members(labels: np.ndarray, most: float, rng: Generator) -> list[np.ndarray]:
    """Rows of each cluster, `most` of them at random where there are more."""
    members = [np.flatnonzero(labels == k) for k in range(int(labels.max()) + 1)]
    return [rows if len(rows) <= most else rng.choice(rows, int(most), replace=False) for rows in members]


def support_between(points: Points, labels: np.ndarray, rng: Generator, *, most: float = np.inf) -> Support:
    """The p-value of each pair of neighboring clusters, of which `most` points each are looked at."""
    pairs, link = neighbor_pairs(ClusterGraph.of(points.graph, labels))
    rows = _members(labels, most, rng)
    p = [points.p_between((rows[a], rows[b]), rng) for a, b in pairs]
    return Support(pairs, link, np.array(p, dtype=float))


def clearly_parted(points: Points, labels: np.ndarray, rng: Generator, most: int = 500) -> bool:
    """Whether a deep valley separates some neighboring clusters, the most weakly linked first; tests `most` points of each."""
    rows, (pairs, link) = _members(labels, most, rng), neighbor_pairs(ClusterGraph.of(points.graph, labels))
    p = (points.p_between((rows[a], rows[b]), rng, 0.3) for a, b in pairs[np.argsort(link, kind="stable")])
    return any(value < LEVEL / 100 for value in p)  # deeper and surer than elsewhere, since many pairs are asked


def _link_strength(view: ClusterGraph) -> np.ndarray:
    """Weight between clusters relative to their volumes, (k, k); merging the most strongly linked keeps rare types longest."""
    chance = np.outer(view.volume, view.volume) ** 0.75
    return np.divide(view.share, chance, out=np.zeros_like(view.share), where=chance > 0)


def merge_unsupported(points: Points, labels: np.ndarray, rng: Generator) -> np.ndarray:
    """The merged cluster of each cluster: neighbors merge, the most strongly linked first, until all are supported.

    A pair is supported as a whole, or by a deeper valley between the two first clusters that face each other: a cluster
    merged from several is no longer one hump, and the first test then sees little.
    """
    first, rows = ClusterGraph.of(points.graph, labels), _members(labels, np.inf, rng)
    strength = _link_strength(first)
    known: dict[tuple[bytes, bytes], bool] = {}

    def supported(a: np.ndarray, b: np.ndarray) -> bool:
        # a shallower valley between two pieces is made by the shape of one hump alone
        i, j = np.unravel_index(strength[np.ix_(a, b)].argmax(), (len(a), len(b)))
        if points.p_between((rows[a[i]], rows[b[j]]), rng, depth=0.5) < LEVEL:
            return True
        whole = tuple(np.concatenate([rows[k] for k in side]) for side in (a, b))
        return points.p_between((whole[0], whole[1]), rng) < LEVEL

    parent, merging = np.arange(len(rows)), True
    while merging:
        view, merging = first.merged(parent), False
        pairs, linked = neighbor_pairs(view)[0], _link_strength(view)
        for a, b in pairs[np.argsort(-linked[pairs[:, 0], pairs[:, 1]], kind="stable")]:
            sides = np.flatnonzero(parent == a), np.flatnonzero(parent == b)
            key = sides[0].tobytes(), sides[1].tobytes()
            if key not in known:
                known[key] = supported(*sides)
            if not known[key]:
                parent, merging = compact(np.where(parent == b, a, parent)), True
                break
    return parent
