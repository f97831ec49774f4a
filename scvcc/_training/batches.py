"""Batches: components in which cells of the same kind lie together, whatever sample they come from.

What differs between two batches may be technical or a matter of which cells they hold, and only the first is to be
taken away. Four steps, each of which changes nothing unless the data support it:

1. Are the batches mixed as they come, or at least among the cells of each group? Then there is nothing to correct.
2. One shift per batch, if distinct groups of cells agree on it. Groups close to each other count as one witness.
3. Trust: do nearly all groups of cells of a batch have a counterpart in another one?
4. Offsets by kind of cells, for batches that are trusted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse as sp
from sklearn.cluster import KMeans

from scvcc._training.graph import neighbor_distances

if TYPE_CHECKING:
    from numpy.random import Generator

BATCH_SAMPLE = 1500  # cells of one batch, or of those it is compared with: their distances are one dense matrix
LEAST_CELLS = 10  # of a batch that says anything: fewer have no groups
APART = 0.2  # from here on batches are corrected: random ones stay below .06, donors of one run below .16, others are .47 or more
EVIDENCE = 0.6  # below, groups do not agree on a shift
CLOSE = 0.5  # groups at a distance of one shift are correlated by exp(-CLOSE)
COMMON = (0.7, 0.85)  # trust grows from 0 to 1 between these shares of groups with a counterpart
OFFSET_ROUNDS = 10


@dataclass(frozen=True)
class Correction:
    """Components for the neighbor search, and what was done to each of the B batches.

    Attributes
    ----------
    Z
        Corrected components (n, d); the object that was given if nothing is corrected.
    outcome
        Of each batch: "already mixed" with the others, "shifted", "corrected" by kind of cells (and shifted, if the
        evidence is there), or "left as it is" because it has too few cells or too little in common with the others, or
        because the batches differ only in the shares of types.
    apart
        How far each batch is from mixed with the others, as they came: 0 mixed, 1 no foreign neighbor.
    shift
        Length of the shift, relative to the spread of all cells.
    agreement
        How far groups of cells agree on a shift (0 to 1), whether it was accepted or not.
    common
        Trust in the offsets (0 to 1): do the batch's groups of cells have counterparts in other batches?
    """

    Z: np.ndarray
    outcome: tuple[str, ...]
    apart: np.ndarray
    shift: np.ndarray
    agreement: np.ndarray
    common: np.ndarray


def correct_batches(
    Z: np.ndarray, batch: np.ndarray, *, strength: float = 1.0, seed: int = 0, n_jobs: int | None = None
) -> Correction:
    """Remove technical differences between batches from components.

    Parameters
    ----------
    Z
        Dense components (n, d).
    batch
        Integer codes (n,) of the batches, 0 to B − 1.
    strength
        Share of the correction that is applied, 0 to 1.
    seed
        Of the samples and clusterings.
    n_jobs
        Threads of the neighbor search.
    """
    rng = np.random.default_rng(seed)
    size = np.bincount(batch)
    most = max(6000 // len(size), 50)  # cells that say whether all batches are mixed
    rows = np.concatenate([_draw(np.flatnonzero(batch == b), most, rng) for b in range(len(size))])
    apart = separation(Z[rows], batch[rows], n_jobs=n_jobs)
    zero = np.zeros(len(size))
    if strength == 0 or len(size) == 1 or apart.max() < APART:
        return Correction(Z, ("already mixed",) * len(size), apart, zero, zero, zero)

    group = _groups(Z[rows], 100, np.random.default_rng(seed), most=60)
    if separation(Z[rows], batch[rows], group, n_jobs=n_jobs).max() < APART:  # a matter of which cells they hold
        kept = np.where((apart < APART) & (size >= LEAST_CELLS), "already mixed", "left as it is")
        return Correction(Z, tuple(kept.tolist()), apart, zero, zero, zero)

    X = Z - Z.mean(axis=0)  # directions from the center are meaningful, and products precise
    shifts, agreement = agreed_shifts(X, batch, rng)
    moved = X + shifts[batch]
    left = separation(moved[rows], batch[rows], n_jobs=n_jobs)
    trust = counterparts(moved, batch, rng) * (left >= APART)
    if trust.any():
        moved = remove_offsets(moved, batch, trust, rng)
    length = np.linalg.norm(shifts, axis=1) / np.linalg.norm(X.std(axis=0))
    shifted = (length > 0) | (length.any() & (np.arange(len(size)) == size.argmax()))  # the others were moved onto it
    done = [trust > 0, shifted, (apart < APART) & (size >= LEAST_CELLS)]
    outcome = tuple(np.select(done, ["corrected", "shifted", "already mixed"], "left as it is").tolist())
    if length.any() or trust.any():
        Z = (Z + strength * (moved - X)).astype(np.float32)
    return Correction(Z, outcome, apart, length, agreement, trust)


def _draw(rows: np.ndarray, most: int, rng: Generator) -> np.ndarray:
    return rows if len(rows) <= most else np.sort(rng.choice(rows, most, replace=False))


def _groups(Z: np.ndarray, cells_each: int, rng: Generator, most: int = 10) -> np.ndarray:
    """Groups of cells, by default no more than a sample has large types."""
    n_groups = int(np.clip(len(Z) // cells_each, 1, most))
    return KMeans(n_groups, n_init=1, random_state=int(rng.integers(2**31))).fit(Z).labels_


def separation(
    Z: np.ndarray,
    batch: np.ndarray,
    group: np.ndarray | None = None,
    *,
    n_neighbors: int = 15,
    floor: float = 0.02,
    n_jobs: int | None = None,
) -> np.ndarray:
    """How far each batch is from mixed with the others: 1 − share of foreign neighbors / its value by chance.

    With `group` (n,), chance is that of drawing neighbors from the cell's own group, and in a group of one batch still the
    share `floor` of chance among all cells. Two standard errors are given away, and a batch of fewer than `LEAST_CELLS` cells says nothing.
    """
    k = min(n_neighbors, len(Z) - 1)
    near = batch[neighbor_distances(Z, k, n_jobs=n_jobs).indices].reshape(len(Z), k)
    foreign = (near != batch[:, None]).mean(axis=1)
    size = np.bincount(batch)
    mean = np.bincount(batch, foreign) / size
    error = np.sqrt(np.maximum(np.bincount(batch, foreign**2) / size - mean**2, 0) / size)
    chance = 1 - size / len(batch)
    if group is not None:
        inside = np.zeros((group.max() + 1, len(size)))
        np.add.at(inside, (group, batch), 1)
        drawn = 1 - (inside[group, batch] - 1) / np.maximum(inside.sum(axis=1)[group] - 1, 1)
        chance = floor * chance + (1 - floor) * np.bincount(batch, drawn) / size
    chance = np.maximum(chance, 1e-9)
    return np.where(size >= LEAST_CELLS, np.clip(1 - (mean + 2 * error) / chance, 0, 1), 0)


# ------------------------------------------------------------------------------------------------ one shift per batch


def mutual_neighbors(A: np.ndarray, B: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Pairs (row of A, row of B) that are each among the other's `k` nearest."""
    square = (B**2).sum(axis=1) - 2 * (A @ B.T) + (A**2).sum(axis=1)[:, None]
    k_a, k_b = min(k, len(B)), min(k, len(A))
    of_a = np.zeros(square.shape, dtype=bool)
    of_b = np.zeros(square.shape, dtype=bool)
    np.put_along_axis(of_a, np.argpartition(square, k_a - 1, axis=1)[:, :k_a], True, axis=1)
    np.put_along_axis(of_b, np.argpartition(square, k_b - 1, axis=0)[:k_b], True, axis=0)
    i, j = np.nonzero(of_a & of_b)
    return i, j


def agreed_shifts(X: np.ndarray, batch: np.ndarray, rng: Generator) -> tuple[np.ndarray, np.ndarray]:
    """Shift (B, d) of each batch towards the larger ones, 0 without evidence, and the evidence (B,)."""
    size = np.bincount(batch)
    shifts = np.zeros((len(size), X.shape[1]), dtype=np.float32)
    evidence = np.zeros(len(size))
    order = np.argsort(-size, kind="stable")
    done = np.flatnonzero(batch == order[0])
    for b in order[1:]:
        if size[b] < LEAST_CELLS:
            break
        rows = np.flatnonzero(batch == b)
        known = _draw(done, BATCH_SAMPLE, rng)
        shift, evidence[b] = agreed_shift(X[_draw(rows, BATCH_SAMPLE, rng)], X[known] + shifts[batch[known]], rng)
        if evidence[b] >= EVIDENCE:
            shifts[b] = shift
        done = np.concatenate([done, rows])
    return shifts, evidence


def agreed_shift(
    Y: np.ndarray, reference: np.ndarray, rng: Generator, *, mutual: int = 20, cells_each: int = 5, rounds: int = 6
) -> tuple[np.ndarray, float]:
    """The shift (d,) that lays `Y` onto `reference`, and how far groups of cells on both sides agree on it (0 to 1)."""
    sides = _groups(Y, cells_each, rng), _groups(reference, cells_each, rng)
    k = max(1, min(mutual, len(Y) // 5))
    shift, evidence = np.zeros(Y.shape[1], dtype=np.float32), 0.0
    for _ in range(rounds):
        i, j = mutual_neighbors(Y + shift, reference, k)
        (there, agree), (back, agree_too) = (
            _consensus(Y, reference, i, j, sides[0]),
            _consensus(reference, Y, j, i, sides[1]),
        )
        evidence = min(agree, agree_too)
        shift = (evidence * (there - back) / 2).astype(np.float32)
        if evidence == 0:
            break
    return shift, evidence


def _consensus(
    A: np.ndarray, B: np.ndarray, i: np.ndarray, j: np.ndarray, group: np.ndarray
) -> tuple[np.ndarray, float]:
    """The displacement from A to B that groups of A have in common, and how much of it is agreement.

    The center is the geometric median of the groups' displacements: groups without a counterpart point elsewhere.
    The agreement is James and Stein's shrinkage factor, for groups that are the more correlated the closer they lie
    compared with the displacement: cells of one kind agree on any displacement.
    """
    cells, inverse, count = np.unique(i, return_inverse=True, return_counts=True)
    pairs = sp.csr_matrix((1 / count[inverse], (inverse, j)), shape=(len(cells), len(B)))
    own = group[cells]
    size = np.bincount(own)
    used = np.flatnonzero(size >= 3)
    if len(used) < 2:
        return np.zeros(A.shape[1]), 0.0
    member = (own == used[:, None]) / size[used][:, None]  # (groups, cells): means
    place = member @ A[cells]
    vector = member @ (pairs @ B) - place
    center, weight = _median(vector, np.sqrt(size[used]))
    length2 = max(float(center @ center), 1e-12)
    apart2 = ((place[:, None] - place) ** 2).sum(axis=2)
    together = weight @ np.exp(-CLOSE * apart2 / length2) @ weight  # 1 / the number of independent groups
    spread2 = weight @ ((vector - center) ** 2).sum(axis=1)
    error2 = together / max(1 - together, 1e-9) * spread2
    return center, max(0.0, 1 - error2 / length2)


def _median(vector: np.ndarray, weight: np.ndarray, rounds: int = 10) -> tuple[np.ndarray, np.ndarray]:
    """Weighted geometric median of rows, and the weights with which they enter it."""
    used = weight / weight.sum()
    for _ in range(rounds):
        distance = np.linalg.norm(vector - used @ vector, axis=1)
        used = weight / np.maximum(distance, 0.1 * np.median(distance) + 1e-9)
        used = used / used.sum()
    return used @ vector, used


# --------------------------------------------------------------------------------------------- offsets by kind of cells


def counterparts(
    X: np.ndarray,
    batch: np.ndarray,
    rng: Generator,
    *,
    mutual: int = 5,
    cells_each: int = 20,
    covered: float = 0.3,
) -> np.ndarray:
    """Trust (B,) in common kinds: have nearly all groups of a batch, and of some other one, a counterpart elsewhere?

    A group has one if the share `covered` of its cells has.
    """
    score = np.zeros(batch.max() + 1)
    for b in range(len(score)):
        rows = np.flatnonzero(batch == b)
        if len(rows) < LEAST_CELLS:
            continue
        Y = X[_draw(rows, BATCH_SAMPLE, rng)]
        rest = X[_draw(np.flatnonzero(batch != b), BATCH_SAMPLE, rng)]
        has = np.zeros(len(Y))
        has[mutual_neighbors(Y, rest, max(1, min(mutual, len(Y) // 3)))[0]] = 1
        for _ in range(3):  # clusterings differ
            group = _groups(Y, cells_each, rng)
            score[b] += np.minimum(np.bincount(group, has) / np.bincount(group) / covered, 1).mean() / 3
    others = np.array([np.delete(score, b).max() for b in range(len(score))])
    low, high = COMMON
    return np.clip((np.minimum(score, others) - low) / (high - low), 0, 1)


def remove_offsets(
    X: np.ndarray, batch: np.ndarray, trust: np.ndarray, rng: Generator, *, softness: float = 0.1
) -> np.ndarray:
    """Take away the batches' offsets in each of many soft clusters, which are then found again among the corrected rows.

    Number and softness of the clusters are those of Harmony.
    """
    n_clusters = int(np.clip(len(X) // 30, 2, 100))
    start = KMeans(n_clusters, n_init=1, max_iter=25, random_state=int(rng.integers(2**31)))
    U = _unit(X)
    centers = start.fit(U[_draw(np.arange(len(X)), 20_000, rng)]).cluster_centers_
    for _ in range(OFFSET_ROUNDS):
        R = np.exp(2 * (U @ _unit(centers).T - 1) / softness)
        R /= R.sum(axis=1, keepdims=True)
        Z = X - fitted_offsets(X, batch, R, trust)
        U = _unit(Z)
        centers = R.T @ U
    return Z


def _unit(X: np.ndarray) -> np.ndarray:
    return X / np.maximum(np.linalg.norm(X, axis=1, keepdims=True), 1e-12)


def fitted_offsets(X: np.ndarray, batch: np.ndarray, R: np.ndarray, trust: np.ndarray) -> np.ndarray:
    """Offsets (n, d) of the batches, by soft cluster, R (n, K): a model with random effects.

    Offsets are shrunk by the variance within / between batches; a cluster in which batches differ by less than
    twice what chance allows has none.
    """
    members = [np.flatnonzero(batch == b) for b in range(len(trust))]
    count = np.stack([R[r].sum(axis=0, dtype=np.float64) for r in members]) + 1e-9  # (B, K)
    mean = np.stack([R[r].T @ X[r] for r in members]) / count[:, :, None]  # (B, K, d)
    square = np.stack([R[r].T @ (X[r] ** 2).sum(axis=1) for r in members])
    within = np.maximum((square - count * (mean**2).sum(axis=2)).sum(axis=0) / count.sum(axis=0), 1e-12)
    effective = count**2 / np.maximum(np.stack([(R[r] ** 2).sum(axis=0) for r in members]), 1e-12)
    between = _between_variance(mean, np.where(count > 0.5, effective, 0), within)
    ridge = within / np.maximum(between, 1e-12)
    shrunk = count * ridge / (count + ridge)
    center = (shrunk[:, :, None] * mean).sum(axis=0) / shrunk.sum(axis=0)[:, None]
    factor = trust[:, None] * count / (count + ridge) * (between > 0)
    offset = (factor[:, :, None] * (mean - center)).astype(np.float32)
    out = np.empty_like(X)
    for b, r in enumerate(members):
        out[r] = R[r] @ offset[b]
    return out


def _between_variance(mean: np.ndarray, size: np.ndarray, within: np.ndarray, noise: float = 2.0) -> np.ndarray:
    """Variance (K,) of the batches' means beyond chance, by moments (DerSimonian and Laird)."""
    total = np.maximum(size.sum(axis=0), 1e-9)
    center = (size[:, :, None] * mean).sum(axis=0) / total[:, None]
    spread = (size * ((mean - center) ** 2).sum(axis=2)).sum(axis=0)
    chance = within * np.maximum((size > 0).sum(axis=0) - 1, 1)
    return np.maximum(0, spread - noise * chance) / np.maximum(total - (size**2).sum(axis=0) / total, 1e-9)
