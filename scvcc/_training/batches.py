"""Batches: components in which cells of the same kind lie together, whatever sample they come from.

What differs between two batches may be technical or a matter of which cells they hold, and only the first is to be
taken away. Four steps, each of which changes nothing unless the data speak for it:

1. Families. Where a kind of cells is mixed between two batches, no technical difference parts them: they count as one.
2. One shift per family, if distinct groups of cells agree on it. Groups close to each other count as one witness.
3. Families again: those that the shift has mixed are done.
4. Offsets by kind of cells, for families of which nearly all groups of cells have a counterpart in another one.
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

SAMPLE = 6000  # cells that estimates about all batches look at
FAMILY_SAMPLE = 1500  # cells of one family, or of those it is compared with
LEAST_CELLS = 10  # of a batch that says anything
NEIGHBORS = 15
GROUPS = 10  # of cells, at most

APART = 0.1  # from here on batches are not mixed; random batches stay below .06
MIXED = 0.85  # share of foreign neighbors, relative to chance, in a group where two families are mixed
MIXED_GROUP = 20  # cells of each family in such a group
MIXED_SHARE = 0.1  # of the smaller family's cells are in such groups: then the families are one

SHIFT_MUTUAL, SHIFT_GROUP, SHIFT_ROUNDS = 20, 5, 6  # mutual neighbors, cells for each group, rounds
CLOSE = 0.5  # groups at a distance of one shift are correlated by exp(-CLOSE)
EVIDENCE = 0.6  # below, groups do not agree on a shift

COMMON_MUTUAL, COMMON_GROUP = 5, 20
COVERED = 0.3  # share of a group's cells with a counterpart, where the whole group has one
COMMON = (0.7, 0.85)  # trust in the offsets grows from 0 to 1 between these shares of groups with a counterpart

CLUSTER_CELLS, MOST_CLUSTERS = 30, 100
SOFTNESS = 0.1
DIVERSITY = 2.0  # exponent of the preference for clusters that are short of a cell's family
NOISE = 2.0  # offsets that spread less than this multiple of chance are none
OFFSET_ROUNDS, CLUSTER_ROUNDS, BLOCKS, TOLERANCE = 10, 4, 20, 0.005


@dataclass(frozen=True)
class Correction:
    """Components for the neighbor search, and what was done to each of the B batches.

    Attributes
    ----------
    Z
        Corrected components (n, d); the object that was given if nothing is corrected.
    outcome
        Of each batch: "already mixed" with all others, "shifted", "corrected" by kind of cells (and shifted, if the
        evidence is there), or "left as it is" because it has too little in common with the others.
    family
        Batches with the same number were mixed as they came.
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
    family: np.ndarray
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
    n_batches = int(batch.max()) + 1
    zero = np.zeros(n_batches)
    rows = _spread_sample(batch, SAMPLE, rng)
    apart = separation(Z[rows], batch[rows], n_jobs=n_jobs)
    family = np.zeros(n_batches, dtype=int)
    if strength > 0 and apart.max() >= APART:
        family = find_families(Z[rows], batch[rows], np.arange(n_batches), rng, n_jobs=n_jobs)
    if len(np.unique(family)) == 1:
        return Correction(Z, ("already mixed",) * n_batches, family, apart, zero, zero, zero)

    X = Z - Z.mean(axis=0)  # directions from the center are meaningful, and products precise
    shifts, agreement = agreed_shifts(X, family[batch], rng)
    moved = X + shifts[family[batch]]
    merged = find_families(moved[rows], batch[rows], family, rng, n_jobs=n_jobs) if shifts.any() else family
    codes = np.unique(merged, return_inverse=True)[1]
    trust = np.zeros(codes.max() + 1)
    if len(trust) > 1:
        left = separation(moved[rows], codes[batch[rows]], n_jobs=n_jobs)
        trust = counterparts(moved, codes[batch], rng) * (left >= APART)
        if trust.any():
            moved = remove_offsets(moved, codes[batch], DIVERSITY * trust * left, trust, rng)
    length = np.linalg.norm(shifts, axis=1)[family] / np.linalg.norm(X.std(axis=0))
    outcome = _outcomes(length, trust[codes], anchor=np.bincount(family[batch]).argmax() == family)
    if not (length.any() or trust.any()):
        return Correction(Z, outcome, family, apart, length, agreement[family], trust[codes])
    corrected = (Z + strength * (moved - X)).astype(np.float32)
    return Correction(corrected, outcome, family, apart, length, agreement[family], trust[codes])


def _outcomes(length: np.ndarray, trust: np.ndarray, *, anchor: np.ndarray) -> tuple[str, ...]:
    """One word per batch; the family that the others are shifted onto counts as shifted with them."""
    shifted = (length > 0) | (anchor & length.any())
    return tuple(
        "corrected" if t > 0 else "shifted" if s else "left as it is" for t, s in zip(trust, shifted, strict=True)
    )


# ---------------------------------------------------------------------------------------------------- what is mixed


def _draw(rows: np.ndarray, most: int, rng: Generator) -> np.ndarray:
    return rows if len(rows) <= most else np.sort(rng.choice(rows, most, replace=False))


def _spread_sample(codes: np.ndarray, most: int, rng: Generator) -> np.ndarray:
    """Rows drawn at random, but so that no batch is left with a handful while it has more."""
    if len(codes) <= most:
        return np.arange(len(codes))
    sizes = np.bincount(codes)
    least = most // (2 * len(sizes))
    members = np.split(np.argsort(codes, kind="stable"), np.cumsum(sizes)[:-1])
    quota = np.maximum(most * sizes // len(codes), least)
    return np.sort(np.concatenate([_draw(rows, q, rng) for rows, q in zip(members, quota, strict=True)]))


def _neighbor_codes(Z: np.ndarray, codes: np.ndarray, n_jobs: int | None) -> np.ndarray:
    """The batch of each row's neighbors, (n, k)."""
    k = min(NEIGHBORS, len(Z) - 1)
    graph = neighbor_distances(Z, k, n_jobs=n_jobs)
    return codes[graph.indices].reshape(len(Z), k)


def separation(Z: np.ndarray, codes: np.ndarray, *, n_jobs: int | None = None) -> np.ndarray:
    """How far each batch is from mixed with the others: 1 − share of foreign neighbors / its value by chance.

    Two standard errors are given away, and a batch of fewer than `LEAST_CELLS` cells says nothing.
    """
    foreign = (_neighbor_codes(Z, codes, n_jobs) != codes[:, None]).mean(axis=1)
    size = np.bincount(codes)
    n = np.maximum(size, 1)
    mean = np.bincount(codes, foreign) / n
    error = np.sqrt(np.maximum(np.bincount(codes, foreign**2) / n - mean**2, 0) / n)
    chance = np.maximum(1 - size / len(codes), 1e-9)
    return np.where(size >= LEAST_CELLS, np.clip(1 - (mean + 2 * error) / chance, 0, 1), 0)


def _groups(Z: np.ndarray, cells_each: int, rng: Generator) -> np.ndarray:
    n_groups = int(np.clip(len(Z) // cells_each, 1, GROUPS))
    return KMeans(n_groups, n_init=1, random_state=int(rng.integers(2**31))).fit(Z).labels_


def find_families(
    Z: np.ndarray, batch: np.ndarray, family: np.ndarray, rng: Generator, *, n_jobs: int | None = None
) -> np.ndarray:
    """Family (B,) of each batch, after uniting those of which a part of the cells is mixed, most mixed first.

    A technical difference reaches every kind of cells. So a kind that is mixed tells that none parts the two families,
    and that where they keep apart they hold different cells.
    """
    near = _neighbor_codes(Z, batch, n_jobs)
    group = _groups(Z, 30, rng)
    shape = (group.max() + 1, len(family))
    cells = np.zeros(shape)
    edges = np.zeros((*shape, len(family)))
    np.add.at(cells, (group, batch), 1)
    np.add.at(edges, (group[:, None], batch[:, None], near), 1)
    names, code = np.unique(family, return_inverse=True)
    member = np.eye(len(names))[code]  # (B, F)
    cells = cells @ member
    edges = np.einsum("gab,af,bh->gfh", edges, member, member)
    family = names[code]
    while True:
        mixed = _mixed_share(cells, edges)
        a, b = sorted(np.unravel_index(mixed.argmax(), mixed.shape))
        if mixed[a, b] < MIXED_SHARE:
            return family
        family = np.where(family == names[b], names[a], family)
        cells[:, a] += cells[:, b]
        edges[:, a] += edges[:, b]
        edges[:, :, a] += edges[:, :, b]
        names = np.delete(names, b)
        cells = np.delete(cells, b, axis=1)
        edges = np.delete(np.delete(edges, b, axis=1), b, axis=2)


def _mixed_share(cells: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Share (F, F) of the smaller family's cells in groups where two families are mixed.

    `cells` (groups, F) counts cells, `edges` (groups, F, F) the neighbors that cells of one family have in another.
    """
    own = np.einsum("gff->gf", edges)[:, :, None]
    seen = edges / np.maximum(edges + own, 1)  # of the neighbors in the two families, those in the other
    chance = cells[:, None, :] / np.maximum(cells[:, :, None] + cells[:, None, :] - 1, 1)
    ratio = seen / np.maximum(chance, 1e-9)
    both = np.minimum(cells[:, :, None], cells[:, None, :]) >= MIXED_GROUP
    mixed = both & (np.minimum(ratio, ratio.transpose(0, 2, 1)) >= MIXED)
    total = cells.sum(axis=0)
    share = (cells[:, :, None] * mixed).sum(axis=0) / np.maximum(total[:, None], 1)  # (F, F), of the first one's cells
    share = np.where(total[:, None] <= total, share, share.T)
    np.fill_diagonal(share, 0)
    return share


# ----------------------------------------------------------------------------------------------- one shift per family


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


def agreed_shifts(X: np.ndarray, family: np.ndarray, rng: Generator) -> tuple[np.ndarray, np.ndarray]:
    """Shift (F, d) of each family towards the larger ones, 0 without evidence, and the evidence (F,)."""
    sizes = np.bincount(family)
    shifts = np.zeros((len(sizes), X.shape[1]), dtype=np.float32)
    evidence = np.zeros(len(sizes))
    order = np.argsort(-sizes, kind="stable")
    done = np.flatnonzero(family == order[0])
    for f in order[1:]:
        rows = np.flatnonzero(family == f)
        if len(rows) < LEAST_CELLS:
            continue
        known = _draw(done, FAMILY_SAMPLE, rng)
        reference = X[known] + shifts[family[known]]
        shift, evidence[f] = agreed_shift(X[_draw(rows, FAMILY_SAMPLE, rng)], reference, rng)
        if evidence[f] >= EVIDENCE:
            shifts[f] = shift
        done = np.concatenate([done, rows])
    return shifts, evidence


def agreed_shift(Y: np.ndarray, reference: np.ndarray, rng: Generator) -> tuple[np.ndarray, float]:
    """The shift (d,) that lays `Y` onto `reference`, and how far groups of cells on both sides agree on it (0 to 1)."""
    sides = [_groups(Y, SHIFT_GROUP, rng), _groups(reference, SHIFT_GROUP, rng)]
    k = max(1, min(SHIFT_MUTUAL, len(Y) // 5))
    scale = np.linalg.norm(reference.std(axis=0))
    shift, evidence = np.zeros(Y.shape[1], dtype=np.float32), 0.0
    for _ in range(SHIFT_ROUNDS):
        i, j = mutual_neighbors(Y + shift, reference, k)
        found = [_consensus(Y, reference, i, j, sides[0]), _consensus(reference, Y, j, i, sides[1])]
        evidence = min(found[0][1], found[1][1])
        new = (evidence * (found[0][0] - found[1][0]) / 2).astype(np.float32)
        step, shift = np.linalg.norm(new - shift), new
        if evidence == 0 or step < 0.01 * scale:
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
    weight = np.sqrt(size[used]) / np.sqrt(size[used]).sum()
    center, weight = _median(vector, weight)
    length2 = max(float(center @ center), 1e-12)
    apart2 = ((place[:, None] - place) ** 2).sum(axis=2)
    together = weight @ np.exp(-CLOSE * apart2 / length2) @ weight  # 1 / the number of independent groups
    spread2 = weight @ ((vector - center) ** 2).sum(axis=1)
    error2 = together / max(1 - together, 1e-9) * spread2
    return center, max(0.0, 1 - error2 / length2)


def _median(vector: np.ndarray, weight: np.ndarray, rounds: int = 10) -> tuple[np.ndarray, np.ndarray]:
    """Weighted geometric median of rows, and the weights with which they enter it."""
    center, used = weight @ vector, weight
    for _ in range(rounds):
        distance = np.linalg.norm(vector - center, axis=1)
        used = weight / np.maximum(distance, 0.1 * np.median(distance) + 1e-9)
        used = used / used.sum()
        center = used @ vector
    return center, used


# ----------------------------------------------------------------------------------------------- offsets by kind of cells


def counterparts(X: np.ndarray, family: np.ndarray, rng: Generator) -> np.ndarray:
    """Trust (F,) in common kinds: have nearly all groups of a family, and of some other one, a counterpart elsewhere?"""
    score = np.zeros(family.max() + 1)
    for f in range(len(score)):
        rows = np.flatnonzero(family == f)
        if len(rows) < LEAST_CELLS:
            continue
        Y = X[_draw(rows, FAMILY_SAMPLE, rng)]
        rest = X[_draw(np.flatnonzero(family != f), FAMILY_SAMPLE, rng)]
        has = np.zeros(len(Y))
        has[mutual_neighbors(Y, rest, max(1, min(COMMON_MUTUAL, len(Y) // 3)))[0]] = 1
        for _ in range(3):  # clusterings differ
            group = _groups(Y, COMMON_GROUP, rng)
            score[f] += np.minimum(np.bincount(group, has) / np.bincount(group) / COVERED, 1).mean() / 3
    others = np.array([np.delete(score, f).max() for f in range(len(score))])
    low, high = COMMON
    return np.clip((np.minimum(score, others) - low) / (high - low), 0, 1)


def remove_offsets(
    X: np.ndarray, family: np.ndarray, power: np.ndarray, trust: np.ndarray, rng: Generator
) -> np.ndarray:
    """Soft clusters that prefer families they are short of; in each, the families' offsets are taken away."""
    one_hot = np.eye(len(trust), dtype=np.float32)[family]  # (n, F)
    U = _unit(X)
    n_clusters = int(np.clip(len(X) // CLUSTER_CELLS, 2, MOST_CLUSTERS))
    start = KMeans(n_clusters, n_init=1, max_iter=25, random_state=int(rng.integers(2**31)))
    R = _affinity(U, start.fit(U[_draw(np.arange(len(X)), 20_000, rng)]).cluster_centers_)
    R /= R.sum(axis=1, keepdims=True)
    Z, size = X, np.linalg.norm(X)
    for _ in range(OFFSET_ROUNDS):
        for _ in range(CLUSTER_ROUNDS):
            _assign(R, _affinity(U, R.T @ U), one_hot, family, power, rng)
        new = X - fitted_offsets(X, family, R, trust)
        step = np.linalg.norm(new - Z) / size
        Z, U = new, _unit(new)
        if step < TOLERANCE:
            break
    return Z


def _unit(X: np.ndarray) -> np.ndarray:
    return X / np.maximum(np.linalg.norm(X, axis=1, keepdims=True), 1e-12)


def _affinity(U: np.ndarray, centers: np.ndarray) -> np.ndarray:
    """How well unit rows fit clusters, (n, K)."""
    return np.exp(np.maximum(2 * (U @ _unit(centers).T - 1) / SOFTNESS, -80))


def _assign(
    R: np.ndarray,
    affinity: np.ndarray,
    one_hot: np.ndarray,
    family: np.ndarray,
    power: np.ndarray,
    rng: Generator,
) -> None:
    """Renew the soft assignment R (n, K) in place, block by block, with the counts of all other cells."""
    share = one_hot.mean(axis=0)
    counts = one_hot.T @ R  # (F, K)
    for rows in np.array_split(rng.permutation(len(R)), BLOCKS):
        counts -= one_hot[rows].T @ R[rows]
        expected = np.outer(share, counts.sum(axis=0))
        wanted = ((expected + 1) / (np.maximum(counts, 0) + 1)) ** power[:, None]
        block = affinity[rows] * wanted[family[rows]].astype(np.float32)
        R[rows] = block / block.sum(axis=1, keepdims=True)
        counts += one_hot[rows].T @ R[rows]


def fitted_offsets(X: np.ndarray, family: np.ndarray, R: np.ndarray, trust: np.ndarray) -> np.ndarray:
    """Offsets (n, d) of the families, by cluster: a model with random effects.

    Offsets are shrunk by the variance within / between families; a cluster in which families differ by less than
    `NOISE` times what chance allows has none.
    """
    members = [np.flatnonzero(family == f) for f in range(len(trust))]
    count = np.stack([R[r].sum(axis=0, dtype=np.float64) for r in members]) + 1e-9  # (F, K)
    mean = np.stack([R[r].T @ X[r] for r in members]) / count[:, :, None]  # (F, K, d)
    square = np.stack([R[r].T @ (X[r] ** 2).sum(axis=1) for r in members])
    total = count.sum(axis=0)
    within = np.maximum((square - count * (mean**2).sum(axis=2)).sum(axis=0) / total, 1e-12)
    present = count > 0.5
    effective = np.where(present, count**2 / np.maximum(np.stack([(R[r] ** 2).sum(axis=0) for r in members]), 1e-12), 0)
    between = _between_variance(mean, effective, within, present)
    ridge = within / np.maximum(between, 1e-12)
    shrunk = count * ridge / (count + ridge)
    center = (shrunk[:, :, None] * mean).sum(axis=0) / shrunk.sum(axis=0)[:, None]
    factor = trust[:, None] * count / (count + ridge) * (between > 0)
    offset = (factor[:, :, None] * (mean - center)).astype(np.float32)
    out = np.empty_like(X)
    for f, r in enumerate(members):
        out[r] = R[r] @ offset[f]
    return out


def _between_variance(mean: np.ndarray, size: np.ndarray, within: np.ndarray, present: np.ndarray) -> np.ndarray:
    """Variance (K,) of the families' means beyond chance, by moments (DerSimonian and Laird)."""
    total = np.maximum(size.sum(axis=0), 1e-9)
    center = (size[:, :, None] * mean).sum(axis=0) / total[:, None]
    spread = (size * ((mean - center) ** 2).sum(axis=2)).sum(axis=0)
    chance = within * np.maximum(present.sum(axis=0) - 1, 1)
    return np.maximum(0, spread - NOISE * chance) / np.maximum(total - (size**2).sum(axis=0) / total, 1e-9)
