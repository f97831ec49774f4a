"""Sets with batches: real ones, and ones made of a real set in which what the batches have in common is known.

A made set splits the cells of a set and then may change the batches' features. Names read like
"zheng, type 2 missing from a shifted half": the set, then the way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .data import SETS, Data, load

REAL = {
    "ifnb by stim": ("ifnb", "stim"),
    "ifnb by donor": ("ifnb", "donor"),
    "covid by sample": ("covid", "sample"),
    "baron by donor": ("baron", "donor"),
    "scmixology by plate": ("scmixology", "plate"),
}
BASES = ("zheng", "pbmc3k", "kidney", "baron")  # sets that others are made of


@dataclass(frozen=True)
class Batched:
    """A set, the batch of each of its rows as a number, and how it was before its batches were changed."""

    data: Data
    batch: np.ndarray  # (n,)
    before: Data
    missing: int | None = None  # the type that one batch lacks


Split = Callable[[Data, np.random.Generator], Batched]


# ---------------------------------------------------------------------------------------------------- which cells


def random_halves(data: Data, rng: np.random.Generator) -> Batched:
    return Batched(data, rng.permutation(len(data.y)) % 2, data)


def missing_type(rank: int) -> Split:
    """Two halves, of which the second lacks the type of this rank by size and has all features shifted and scaled."""

    def split(data: Data, rng: np.random.Generator) -> Batched:
        gone = int(np.argsort(-np.bincount(data.y), kind="stable")[rank])
        batch = rng.permutation(len(data.y)) % 2
        batch[data.y == gone] = 0
        return Batched(shifted(data, batch, rng), batch, data, gone)

    return split


def in_common(share: float | int) -> Split:
    """Two batches with so many types in common (0.5: half of them), each other type in one of them; nothing is shifted."""

    def split(data: Data, rng: np.random.Generator) -> Batched:
        types = rng.permutation(np.unique(data.y))
        common = round(share * len(types)) if isinstance(share, float) else share
        home = np.full(data.y.max() + 1, -1)
        home[types[common:]] = np.arange(len(types) - common) % 2
        either = rng.integers(2, size=len(data.y))
        return Batched(data, np.where(home[data.y] < 0, either, home[data.y]), data)

    return split


def thinned(data: Data, rng: np.random.Generator) -> Batched:
    """A shifted batch of a twentieth of the cells of the other one."""
    batch = np.zeros(len(data.y), dtype=int)
    batch[rng.choice(len(data.y), len(data.y) // 20, replace=False)] = 1
    return Batched(shifted(data, batch, rng), batch, data)


def small_donors(shift: float) -> Split:
    """A dozen donors of three types each and 40 cells or fewer of a type."""

    def split(data: Data, rng: np.random.Generator) -> Batched:
        types = np.flatnonzero(np.bincount(data.y) >= 40)
        rows, batch = [], []
        for donor in range(12):
            for kind in rng.choice(types, 3, replace=False):
                chosen = rng.choice(np.flatnonzero(data.y == kind), rng.integers(5, 41), replace=False)
                rows.append(chosen)
                batch.append(np.full(len(chosen), donor))
        drawn, first = np.unique(np.concatenate(rows), return_index=True)
        batch = np.concatenate(batch)[first]
        before = data.rows(drawn)
        return Batched(shifted(before, batch, rng, shift) if shift else before, batch, before)

    return split


def mostly_in_one(data: Data, rng: np.random.Generator) -> Batched:
    """Three batches; nine in ten cells of each type are in the same one; nothing is shifted."""
    home = rng.permutation(np.arange(data.y.max() + 1) % 3)
    away = rng.random(len(data.y)) < 0.1
    return Batched(data, np.where(away, rng.integers(3, size=len(data.y)), home[data.y]), data)


def technologies(data: Data, rng: np.random.Generator) -> Batched:
    """Five batches far apart: a shift of each, a smaller one of each type in it, and types in uneven shares."""
    shares = rng.dirichlet(np.full(5, 2.0), size=data.y.max() + 1)
    batch = (rng.random((len(data.y), 1)) > np.cumsum(shares[data.y], axis=1)[:, :-1]).sum(axis=1)
    moved = shifted(data, batch, rng, 1.5)
    for b in np.unique(batch):
        for kind in np.unique(data.y):
            moved.X[(batch == b) & (data.y == kind)] += _direction(data.X, rng, 0.5)
    return Batched(moved, batch, data)


# ---------------------------------------------------------------------------------------------------- what is changed


def _direction(X: np.ndarray, rng: np.random.Generator, length: float) -> np.ndarray:
    """A random direction (d,) of this length, relative to the spread of all rows; axes count as they vary."""
    vector = rng.normal(size=X.shape[1]) * X.std(axis=0)
    return (length * np.linalg.norm(X.std(axis=0)) * vector / np.linalg.norm(vector)).astype(np.float32)


def shifted(data: Data, batch: np.ndarray, rng: np.random.Generator, length: float = 1.0) -> Data:
    """All batches but the first with all features shifted, by `length` times the spread of all rows, and scaled."""
    X = data.X.copy()
    for b in np.unique(batch)[1:]:
        scale = np.exp(rng.normal(0, 0.1, X.shape[1])).astype(np.float32)
        X[batch == b] = X[batch == b] * scale + _direction(data.X, rng, length)
    return Data(X, data.y, data.kind, data.counts)


# ---------------------------------------------------------------------------------------------------- all of them

WAYS: dict[str, Split] = {
    "random halves": random_halves,
    **{f"type {rank} missing from a shifted half": missing_type(rank) for rank in (1, 2, 3)},
    **{f"{count} types in common": in_common(count) for count in (0, 1, 2)},
    "half of the types in common": in_common(0.5),
    "a thin shifted batch": thinned,
    "a dozen small donors": small_donors(0.0),
    "a dozen small shifted donors": small_donors(0.5),
    "most of a type in one batch": mostly_in_one,
    "five technologies": technologies,
}
MADE = {f"{base}, {way}": (base, way) for way in WAYS for base in BASES if way != "random halves"}
MADE |= {f"{base}, random halves": (base, "random halves") for base in ("mnist_test", "ifnb", *BASES)}
NAMES = (*REAL, *MADE)


def load_batched(name: str, folder: Path, seed: int = 0, fit_rows: np.ndarray | None = None) -> Batched:
    """Read a set with batches; `seed` is of what is made of it."""
    if name in MADE:
        base, way = MADE[name]
        return WAYS[way](load(base, folder), np.random.default_rng(seed))
    base, column = REAL[name]
    data, names = load(base, folder, fit_rows), obs_column(base, folder, column)
    return Batched(data, np.unique(names, return_inverse=True)[1], data)


def obs_column(name: str, folder: Path, column: str) -> np.ndarray:
    """A column of obs, of the cells that have a label."""
    import anndata as ad

    obs = ad.read_h5ad(folder / SETS[name].file, backed="r").obs
    return obs.loc[obs[SETS[name].labels].notna(), column].astype(str).to_numpy()
