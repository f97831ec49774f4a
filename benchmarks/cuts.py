"""Cuts of one fit against direct fits, and rare types: `python -m benchmarks.cuts levels rare families`.

- levels: one fit with the true K on each set; a cut of its tree at other numbers is scored beside a fit with that number.
- rare: 10,000 cells (or all others) with one type cut down to a small share; the F1 score of its best cluster.
- families: 20,000 simulated cells of 200 types in 20 families, with K given and unknown.

What is in `benchmarks/results/cuts.csv` is not measured again.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from tqdm import tqdm

from .data import CELLS, SETS, Data, data_folder, load, present
from .methods import fit_vcc, kmeans, leiden
from .one import scores
from .process import RESULTS, Clock, Rows, append, circumstances, in_process, prepare
from .run import read_rows
from .sketch import best_f1

KEY = ("part", "set", "seed", "case")
COLUMNS = (
    *KEY,
    *"method status k n nmi ari f1 acc k_found smallest seconds cpu_seconds threads versions commit machine".split(),
)
RARE_SETS, RARE_SHARES, RARE_TYPES, RARE_CELLS = ("ifnb", "mnist_test", "kidney"), (0.01, 0.003, 0.001), 3, 10_000
STEPS = (-3, 3)  # and half and twice the true number


def measure(task: dict[str, Any]) -> Rows:
    part = {"levels": _levels, "rare": _rare, "families": _families}[task["part"]]
    return [{name: task[name] for name in KEY} | row for row in part(task)]


def _levels(task: dict[str, Any]) -> Iterator[dict[str, Any]]:
    data, seed = load(task["set"], Path(task["data"])), task["seed"]
    K = data.n_classes
    clock = Clock()
    fitted = fit_vcc(data, K, seed)
    yield {"method": "fit", "k": K} | _scored(data.y, fitted.labels_) | clock.read()
    for k in sorted({max(K + step, 2) for step in STEPS} | {max(K // 2, 2), 2 * K} - {K}):
        clock = Clock()
        direct = fit_vcc(data, k, seed).labels_
        yield {"method": "direct", "k": k} | _scored(data.y, direct) | clock.read()
        if k <= len(fitted.tree_.size):
            clock = Clock()
            yield {"method": "cut", "k": k} | _scored(data.y, fitted.tree_.cut(k)[fitted.leaves_]) | clock.read()


def _rare(task: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The case names the type, by rank of size, and its share."""
    seed, (rank, share) = task["seed"], (int(task["case"].split(":")[0]), float(task["case"].split(":")[1]))
    whole = load(task["set"], Path(task["data"]))
    data, is_rare = with_rare_type(whole, rank, share, seed)
    K = data.n_classes
    for k in (K, K + 2, None):
        fitted = fit_vcc(data, k, seed)
        yield {"method": "fit", "k": _given(k, K)} | _scored(data.y, fitted.labels_, is_rare)
        finer = [min(n, len(fitted.tree_.size)) for n in (2 * fitted.n_clusters_, 4 * fitted.n_clusters_, 10_000)]
        for name, n in zip(("cut at 2 K", "cut at 4 K", "leaves"), finer, strict=True):
            yield {"method": name, "k": _given(k, K)} | _scored(data.y, fitted.tree_.cut(n)[fitted.leaves_], is_rare)
        nodes = [np.isin(fitted.leaves_, np.concatenate(sides)) for sides in fitted.tree_.sides()]
        nodes += [fitted.leaves_ == leaf for leaf in range(len(fitted.tree_.size))]
        f1 = max(2 * (node & is_rare).sum() / (node.sum() + is_rare.sum()) for node in nodes)
        yield {"method": "best node of the tree", "k": _given(k, K), "f1": round(float(f1), 4)}
    for k in (K, K + 2):
        yield {"method": "kmeans", "k": _given(k, K)} | _scored(data.y, kmeans(data, k, seed), is_rare)
    for resolution in (1.0, 2.0):
        found = leiden(data, None, seed, resolution=resolution)
        yield {"method": f"leiden at {resolution:g}", "k": "unknown"} | _scored(data.y, found, is_rare)


def _given(k: int | None, K: int) -> str:
    return "unknown" if k is None else "K" if k == K else f"K + {k - K}"


def with_rare_type(data: Data, rank: int, share: float, seed: int) -> tuple[Data, np.ndarray]:
    """At most 10,000 rows, `share` of them of the type with this rank of distinctness; the others as they are."""
    kinds = distinct_types(data)
    rng, rare = np.random.default_rng(seed), kinds[rank]
    others = rng.permutation(np.flatnonzero(data.y != rare))[:RARE_CELLS]
    count = max(round(share / (1 - share) * len(others)), 2)
    mine = rng.permutation(np.flatnonzero(data.y == rare))[:count]
    part = data.rows(np.sort(np.concatenate([others, mine])))
    return part, part.y == rare


def distinct_types(data: Data, n_neighbors: int = 15, least: int = 100) -> np.ndarray:
    """Types with 100 rows or more, those first whose rows have the most graph neighbors of their own type."""
    indices, _ = data.neighbors
    same = (data.y[indices[:, 1:]] == data.y[:, None]).mean(axis=1)
    sizes = np.bincount(data.y)
    purity = np.array([same[data.y == k].mean() if size >= least else -1 for k, size in enumerate(sizes)])
    return np.argsort(-purity, kind="stable")


def families(seed: int, n: int = 20_000) -> tuple[Data, np.ndarray]:
    """Cells of 200 types in 20 families, in 30 dimensions: distances of about 12 between families and 6.5 between their types."""
    rng = np.random.default_rng(seed)
    middle = 12 / np.sqrt(60) * rng.normal(size=(20, 30))
    types = np.repeat(middle, 10, axis=0) + 6.5 / np.sqrt(60) * rng.normal(size=(200, 30))
    y = np.sort(np.arange(n) % 200)
    return Data((types[y] + rng.normal(size=(n, 30))).astype(np.float32), y, CELLS), y // 10


def _families(task: dict[str, Any]) -> Iterator[dict[str, Any]]:
    seed = task["seed"]
    data, family = families(seed)
    for k in (200, None):
        clock = Clock()
        fitted = fit_vcc(data, k, seed)
        spent, given = clock.read(), "200" if k else "unknown"
        yield {"method": "fit", "k": given} | _scored(data.y, fitted.labels_) | spent
        if len(fitted.tree_.size) >= 200:
            yield {"method": "cut at 200", "k": given} | _scored(data.y, fitted.tree_.cut(200)[fitted.leaves_])
        yield {"method": "cut at 20, families", "k": given} | _scored(family, fitted.tree_.cut(20)[fitted.leaves_])
    for name, method in (("kmeans", kmeans), ("leiden", leiden)):
        clock = Clock()
        labels = method(data, 200, seed)
        yield {"method": name, "k": "200"} | _scored(data.y, labels) | clock.read()
    clock = Clock()
    yield {"method": "leiden at 1", "k": "unknown"} | _scored(data.y, leiden(data, None, seed)) | clock.read()


def _scored(y: np.ndarray, labels: np.ndarray, is_rare: np.ndarray | None = None) -> dict[str, Any]:
    row = scores(y, labels) | {"smallest": int(np.bincount(labels).min())}
    return row if is_rare is None else row | {"f1": round(best_f1(is_rare, labels), 4)}


# --------------------------------------------------------------------------------------------------------- the page


def page(path: Path) -> str:
    rows = pd.read_csv(path)
    rows = rows[rows.status == "ok"]
    parts = {"levels": _levels_table, "rare": _rare_table, "families": _families_table}
    texts = [make(rows[rows.part == name]) for name, make in parts.items() if (rows.part == name).any()]
    return "## Any number of clusters from one fit\n\n" + "\n".join(texts)


def _levels_table(rows: pd.DataFrame) -> str:
    from .report import markdown

    fitted = rows[rows.method == "fit"].set_index(["set", "seed"]).k.astype(int)
    rows = rows[rows.method != "fit"].assign(k=lambda t: t.k.astype(int))
    rows["K"] = fitted.reindex(pd.MultiIndex.from_frame(rows[["set", "seed"]])).to_numpy()
    wide = rows.pivot_table(index=["set", "seed", "K", "k"], columns="method", values="nmi").dropna().reset_index()
    wide["level"] = np.where(wide.k == 2 * wide.K, "2 K", np.where(wide.k == wide.K // 2, "K / 2", "K ± 3"))
    lines = []
    for name in [name for name in SETS if name in set(wide.set)] + ["*mean*"]:
        mine = wide if name == "*mean*" else wide[wide.set == name]
        cells = [mine[mine.level == level] for level in ("K / 2", "K ± 3", "2 K")]
        text = [
            f"{c.cut.mean():.3f} / {c.direct.mean():.3f} ({(c.cut - c.direct).mean():+.3f})" if len(c) else "–"
            for c in cells
        ]
        lines.append([SETS[name].title if name in SETS else name, str(mine.seed.nunique()), *text])
    text = (
        "One fit with the true K, and cuts of its tree at other numbers, beside fits with these numbers: NMI of cut / direct "
        "fit (difference). K ± 3 is the mean of both.\n\n"
    )
    return text + markdown(("set", "seeds", "K / 2", "K ± 3", "2 K"), lines)


def _rare_table(rows: pd.DataFrame) -> str:
    from .report import markdown

    rows = rows.assign(share=rows.case.str.split(":").str[1].astype(float))
    given = [k for k in ("K", "K + 2", "unknown") if k in set(rows.k)]
    lines = []
    for method in dict.fromkeys(rows.method):
        mine = rows[rows.method == method]
        means = [mine[(mine.share == share) & (mine.k == k)].f1.mean() for share in RARE_SHARES for k in given]
        lines.append([method, *("–" if np.isnan(value) else f"{value:.2f}" for value in means)])
    n = rows.groupby(["set", "case"]).ngroups // rows.share.nunique()
    text = (
        f"F1 of the best cluster for a type cut down to a share of the cells: means over {n} types, the most distinct of "
        f"{', '.join(SETS[name].title for name in rows.set.unique())} (seeds: {rows.seed.nunique()}). *Best node*: of all nodes of the tree.\n\n"
    )
    header = ("", *(f"{share:.1%}, {k}" for share in RARE_SHARES for k in given))
    return text + markdown(header, lines)


def _families_table(rows: pd.DataFrame) -> str:
    from .report import markdown

    lines = []
    for (method, k), mine in rows.groupby(["method", "k"], sort=False):
        seconds = mine.cpu_seconds.mean()
        cells = [f"{mine[name].mean():.3f}" for name in ("nmi", "ari")]
        cells += [
            f"{mine.k_found.mean():.0f}",
            f"{mine.smallest.min():.0f}",
            "–" if np.isnan(seconds) else f"{seconds:.0f}",
        ]
        lines.append([method, k, *cells])
    text = (
        f"20,000 simulated cells, 200 types in 20 families; means over seeds ({rows.seed.nunique()}). The last column is in "
        "processor seconds.\n\n"
    )
    return text + markdown(("", "K", "NMI", "ARI", "found", "smallest", "seconds"), lines)


def tasks(parts: list[str], sets: list[str] | None, seeds: list[int]) -> list[dict[str, Any]]:
    """Everything with the first seed, then with the next."""
    small = [name for name in SETS if name != "mnist"]
    where = {
        "levels": [(name, "") for name in small],
        "rare": [
            (name, f"{rank}:{share}") for share in RARE_SHARES for name in RARE_SETS for rank in range(RARE_TYPES)
        ],
        "families": [("simulated", "")],
    }
    return [
        {"part": part, "set": name, "seed": seed, "case": case}
        for seed in seeds
        for part in parts
        for name, case in where[part]
        if sets is None or name in sets
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cuts", description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", default=["levels", "rare", "families"])
    parser.add_argument("--sets", nargs="+")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=900, help="processor seconds")
    parser.add_argument("--data", help="folder of the data sets (default: $SCVCC_DATA, then ../shared/data)")
    parser.add_argument("--out", type=Path, default=RESULTS / "cuts.csv")
    args = parser.parse_args()
    prepare(args.threads)
    here, folder = circumstances(args.threads), data_folder(args.data)
    done = {tuple(row[name] for name in KEY) for row in read_rows(args.out) if row["status"] == "ok"}
    wanted = tasks(args.parts, args.sets, args.seeds)
    there = {*present(dict.fromkeys(task["set"] for task in wanted if task["set"] in SETS), folder), "simulated"}
    todo = [task for task in wanted if task["set"] in there and tuple(str(task[name]) for name in KEY) not in done]
    for task in tqdm(todo, unit="run"):
        rows = in_process(measure, task | {"data": str(folder)}, args.timeout * args.threads)
        append(args.out, COLUMNS, [{c: (here | task | row).get(c) for c in COLUMNS} for row in rows])


if __name__ == "__main__":
    main()
