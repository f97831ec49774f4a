"""How often the test for a valley is right: `python -m benchmarks.evidence levels power types leiden time --sets baron zheng`.

- levels: one hump cut in two by k-means, whose p-value should be below .05 in at most one draw of twenty; and bent curves,
  where it is not
- power: two Gaussians by distance and balance, with the true groups given
- types: pairs of true types that the neighbor graph links, and types that are pure by sorting or genotype, cut in two
- leiden: Leiden's clusters at resolution 1, what is merged of them, and Gaussian noise with as many cells
- time: seconds of a node by the number of rows

Every measurement is a row of `benchmarks/results/evidence.csv`; what is there already is not run again.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from itertools import product
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from tqdm import tqdm

from .data import SETS, data_folder, load, present
from .process import RESULTS, Clock, Rows, append, circumstances
from .report import TITLES, markdown, save
from .run import read_rows

KEY = ("experiment", "case", "n", "draw")
COLUMNS = (*KEY, "trials", "hits", "value", "threads", "versions", "commit", "machine")
EXPERIMENTS = ("levels", "power", "types", "leiden", "time")
LEVEL, DRAWS, FOLDS_OF_POWER = 0.05, 40, 20
SIZES, GAPS, RARE = (300, 1000, 3000), (2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 6.0, 7.0), (0.5, 0.1, 0.01)
PURE = ("zheng", "scmixology", "mnist_test", "bbc")  # labels that do not depend on the matrix
LENGTHS = (1_000, 3_000, 10_000, 30_000, 100_000)


def _noise(n: int, rng: np.random.Generator, d: int = 10) -> np.ndarray:
    return rng.normal(size=(n, d))


def _correlated(n: int, rng: np.random.Generator) -> np.ndarray:
    return rng.normal(size=(n, 50)) @ (rng.normal(size=(50, 50)) / np.sqrt(50))


def _along(curve: Callable[[np.ndarray], list[np.ndarray]]) -> Callable[[int, np.random.Generator], np.ndarray]:
    """Points along a curve of two coordinates, with noise around it and in eight other dimensions."""

    def draw(n: int, rng: np.random.Generator) -> np.ndarray:
        X = rng.normal(size=(n, 10)) * 0.5
        X[:, :2] += np.column_stack(curve(rng.uniform(size=n)))
        return X

    return draw


def _arc(share: float, radius: float = 5.0) -> Callable[[int, np.random.Generator], np.ndarray]:
    return _along(lambda t: [radius * np.cos(2 * np.pi * share * t), radius * np.sin(2 * np.pi * share * t)])


NULLS: dict[str, Callable[[int, np.random.Generator], np.ndarray]] = {
    "Gaussian, 10 dimensions": _noise,
    "correlated, 50 dimensions": _correlated,
    "heavy tails (t, 5 degrees)": lambda n, rng: rng.standard_t(5, size=(n, 10)),
    "skewed (lognormal)": lambda n, rng: rng.lognormal(0, 0.6, size=(n, 10)),
    "straight line": _along(lambda t: [10 * t, 0 * t]),
}
BENT = {"quarter of a circle": _arc(0.25), "half of a circle": _arc(0.5), "three quarters of a circle": _arc(0.75)}


def halves(X: np.ndarray, seed: int) -> np.ndarray:
    from sklearn.cluster import KMeans

    return KMeans(2, n_init=1, random_state=seed).fit_predict(X)


def p_of(X: np.ndarray, side: np.ndarray, rng: np.random.Generator) -> float:
    from scvcc._clusters.evidence import split_p

    return split_p(X.astype(np.float64), side, rng)


# ------------------------------------------------------------------------------------------------------ measuring


def level(task: dict[str, Any]) -> Rows:
    rng = np.random.default_rng([task["draw"], task["n"]])
    X = (NULLS | BENT)[task["case"]](task["n"], rng)
    return [{"trials": 1, "hits": int(p_of(X, halves(X, task["draw"]), rng) < LEVEL)}]


def power(task: dict[str, Any]) -> Rows:
    """Two groups with unit variance; the case is the share of the smaller one and the distance of the means."""
    share, gap = map(float, task["case"].split(" at "))
    rng = np.random.default_rng(task["draw"])
    side = (np.arange(task["n"]) < share * task["n"]).astype(int)
    X = _noise(task["n"], rng)
    X[:, 0] += gap * side
    return [{"trials": 1, "hits": int(p_of(X, side, rng) < LEVEL)}]


def _points(task: dict[str, Any]) -> tuple[Any, np.ndarray]:
    """Components and latent graph of a set, and its types as numbers."""
    from scvcc._clusters.evidence import Points
    from scvcc._training.graph import components, latent_graph

    data = load(task["case"], Path(task["data"]))
    return Points(components(data.X, 0), latent_graph(data.graph)), np.unique(data.y, return_inverse=True)[1], data


def types(task: dict[str, Any]) -> Rows:
    """Neighboring true types told apart, and pure types cut in two, of all that there are."""
    from scvcc._clusters.evidence import support_between

    points, truth, _ = _points(task)
    rng = np.random.default_rng(task["draw"])
    p = support_between(points, truth, rng).p
    rows = [{"trials": len(p), "hits": int((p < LEVEL).sum()), "value": "neighbors"}]
    if task["case"] in PURE:
        groups = [points.X[truth == k] for k in range(truth.max() + 1)]
        cut = [p_of(X, halves(X, task["draw"]), rng) for X in groups if len(X) >= 50]
        rows.append({"trials": len(cut), "hits": int((np.array(cut) < LEVEL).sum()), "value": "pure"})
    return rows


def leiden(task: dict[str, Any]) -> Rows:
    """Pairs of Leiden's clusters by whether both hold mostly the same true type, and the scores before and after merging."""
    from scvcc._clusters.evidence import merge_unsupported, support_between
    from scvcc.metrics import ari, nmi

    from .methods import leiden as cluster

    points, truth, data = _points(task)
    labels = np.unique(cluster(data, None, task["draw"]), return_inverse=True)[1]
    rng, clock = np.random.default_rng(task["draw"]), Clock()
    found = support_between(points, labels, rng)
    merged = merge_unsupported(points, labels, rng)[labels]
    seconds = clock.read()["cpu_seconds"]
    table = np.bincount(labels * (truth.max() + 1) + truth, minlength=(labels.max() + 1) * (truth.max() + 1))
    main = table.reshape(labels.max() + 1, -1).argmax(axis=1)
    within = main[found.pairs[:, 0]] == main[found.pairs[:, 1]]
    rows = [
        {"value": "inside a type", "trials": int(within.sum()), "hits": int((found.p[within] >= LEVEL).sum())},
        {"value": "between types", "trials": int((~within).sum()), "hits": int((found.p[~within] < LEVEL).sum())},
        {"value": "seconds", "trials": 1, "hits": seconds},
    ]
    for name, given in (("before", labels), ("merged", merged)):
        scores = {"clusters": given.max() + 1, "nmi": nmi(truth, given), "ari": ari(truth, given)}
        rows += [{"value": f"{name} {score}", "trials": 1, "hits": round(float(v), 4)} for score, v in scores.items()]
    return rows


def seconds(task: dict[str, Any]) -> Rows:
    """Processor seconds of one test of all rows, 50 components, where nothing can end it early and where it can."""
    rng = np.random.default_rng(task["draw"])
    X = _noise(task["n"], rng, 50)
    side = (np.arange(task["n"]) % 2).astype(int)
    X[:, 0] += {"one hump": 2.5, "two humps": 6.0}[task["case"]] * side
    clock = Clock()
    p_of(X, side, rng)
    return [{"trials": 1, "hits": clock.read()["cpu_seconds"]}]


MEASURES = dict(zip(EXPERIMENTS, (level, power, types, leiden, seconds), strict=True))


def tasks(experiment: str, sets: Iterable[str]) -> list[dict[str, Any]]:
    cases: dict[str, Iterable[tuple[Any, ...]]] = {
        "levels": product([*NULLS, *BENT], SIZES, range(DRAWS)),
        "power": product([f"{share} at {gap}" for share, gap in product(RARE, GAPS)], [2000], range(FOLDS_OF_POWER)),
        "types": product(sets, [0], range(3)),
        "leiden": product(sets, [0], range(3)),
        "time": product(["one hump", "two humps"], LENGTHS, range(3)),
    }
    return [dict(zip(KEY, (experiment, *case), strict=True)) for case in cases[experiment]]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.evidence", description=__doc__.splitlines()[0])
    parser.add_argument("experiments", nargs="*", default=[], help=f"of {', '.join(EXPERIMENTS)}; all without")
    parser.add_argument("--sets", nargs="+", choices=list(SETS), default=list(SETS))
    parser.add_argument("--data", help="folder of the data sets (default: $SCVCC_DATA, then ../shared/data)")
    parser.add_argument("--out", type=Path, default=RESULTS / "evidence.csv")
    args = parser.parse_args()
    if unknown := set(args.experiments) - set(EXPERIMENTS):
        parser.error(f"unknown experiments {sorted(unknown)}: choose from {', '.join(EXPERIMENTS)}")
    folder, here = data_folder(args.data), circumstances(1)
    done = {tuple(row[name] for name in KEY) for row in read_rows(args.out)}
    there = present(args.sets, folder) if {"types", "leiden"} & set(args.experiments or EXPERIMENTS) else []
    todo = [task for name in args.experiments or EXPERIMENTS for task in tasks(name, there)]
    for task in tqdm([task for task in todo if tuple(str(task[name]) for name in KEY) not in done], unit="draw"):
        rows = MEASURES[task["experiment"]](task | {"data": str(folder)})
        append(args.out, COLUMNS, [here | task | row for row in rows])


# ------------------------------------------------------------------------------------------------------ the page


NOTE_LEVEL = (
    "Share of draws in which a single hump, cut in two by 2-means, is called two groups (p < 0.05), of {draws} draws at each "
    "size. At most 0.05 is right. The bent curves below the line are where the test fails."
)
NOTE_TYPES = (
    "Neighboring true types: pairs of types that the neighbor graph links, and how many of them are supported. Pure types: "
    "those whose labels do not depend on the matrix, cut in two by 2-means, and how many cuts are supported; some of these "
    "types may have parts. Means of three runs."
)
NOTE_LEIDEN = (
    "`test_clusters` on Leiden's clusters at resolution 1, three seeds. A split is inside a type if both clusters hold mostly "
    "the same type: *flagged* is how many of these pairs lack support. Between types, *kept* is how many have it. Then the "
    "clusters before and after merging those without support: number / NMI / ARI. Seconds of a processor for pairs and merges."
)


def shares(rows: pd.DataFrame, index: str, columns: str) -> pd.DataFrame:
    sums = rows.groupby([index, columns], sort=False)[["hits", "trials"]].sum()
    return (sums.hits / sums.trials).unstack()


def level_table(rows: pd.DataFrame) -> str:
    found = shares(rows, "case", "n").reindex([*NULLS, *BENT]).dropna(how="all")
    lines = [
        [name, *("–" if pd.isna(v) else f"{v:.2f}" for v in row)]
        for name, row in zip(found.index, found.values, strict=True)
    ]
    return markdown(["one hump", *(f"{n:,} points" for n in found.columns)], lines)


def power_figure(rows: pd.DataFrame, timed: pd.DataFrame) -> str:
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    parts = rows.case.str.split(" at ", expand=True).astype(float)
    found = shares(rows.assign(share=parts[0], gap=parts[1]), "gap", "share").sort_index()
    for share in RARE:
        name = f"{round(100 * share)} : {100 - round(100 * share)}"
        left.plot(found.index, found[share], marker="o", label=name)
    left.axhline(LEVEL, color="0.8", zorder=0)
    left.set(xlabel="distance of the means, in standard deviations", ylabel="share supported", ylim=(-0.02, 1.02))
    left.legend(frameon=False, title="2,000 points, divided")
    for case, group in timed.groupby("case", sort=False):
        medians = group.groupby("n").hits.median()
        right.plot(medians.index, medians, marker="o", label=case)
    right.set(xlabel="rows", ylabel="processor seconds of a test", xscale="log", yscale="log")
    right.legend(frameon=False)
    return save(figure, "evidence")


def counted(rows: pd.DataFrame, value: str) -> str:
    mine = rows[rows.value == value]
    return f"{mine.hits.mean():.1f} of {mine.trials.mean():.1f}" if len(mine) and mine.trials.sum() else "–"


def types_table(rows: pd.DataFrame) -> str:
    lines = [[TITLES[name], counted(group, "neighbors"), counted(group, "pure")] for name, group in _by_set(rows)]
    lines.append(["*all*", *(_total(rows, value) for value in ("neighbors", "pure"))])
    return markdown(["set", "neighboring types told apart", "pure types cut in two"], lines)


def leiden_table(rows: pd.DataFrame) -> str:
    lines = []
    for name, group in _by_set(rows):
        means = group.groupby("value").hits.mean()
        shown = [
            f"{means[f'{when} clusters']:.1f} / {means[f'{when} nmi']:.3f} / {means[f'{when} ari']:.3f}"
            for when in ("before", "merged")
        ]
        lines.append(
            [
                TITLES[name],
                counted(group, "inside a type"),
                counted(group, "between types"),
                *shown,
                f"{means['seconds']:.2f}",
            ]
        )
    means = rows.groupby(["case", "value"]).hits.mean().groupby("value").mean()
    shown = [f"– / {means[f'{when} nmi']:.3f} / {means[f'{when} ari']:.3f}" for when in ("before", "merged")]
    lines.append(["*all*", _total(rows, "inside a type"), _total(rows, "between types"), *shown, ""])
    return markdown(["set", "inside a type: flagged", "between types: kept", "Leiden", "merged", "seconds"], lines)


def _by_set(rows: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    return [(name, rows[rows.case == name]) for name in SETS if (rows.case == name).any()]


def _total(rows: pd.DataFrame, value: str) -> str:
    mine = rows[rows.value == value]
    return f"{mine.hits.sum() / mine.trials.sum():.2f}"


def page(path: Path) -> str:
    rows = pd.read_csv(path)
    levels, powers, pairs, clusters, timed = (rows[rows.experiment == name] for name in EXPERIMENTS)
    parts = ["## Evidence for clusters\n\nHow often the test of `scvcc.tl.test_clusters` is right.\n"]
    if len(levels):
        parts += [NOTE_LEVEL.format(draws=levels.draw.nunique()) + "\n", level_table(levels)]
    if len(powers) and len(timed):
        parts.append(
            f"Two Gaussians in ten dimensions, with the true groups given ({powers.draw.nunique()} draws), and the time of a test "
            f"(50 components):\n\n{power_figure(powers, timed)}\n"
        )
    if len(pairs):
        parts += [NOTE_TYPES + "\n", types_table(pairs)]
    if len(clusters):
        parts += [NOTE_LEIDEN + "\n", leiden_table(clusters)]
    return "\n".join(parts)


if __name__ == "__main__":
    main()
