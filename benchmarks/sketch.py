"""What training on a sketch costs: `python -m benchmarks.sketch mnist rare ifnb --seeds 0 1 2`.

VCC is trained on sketches of several sizes and on all rows, and scored on all rows with K given. "rare" is MNIST with one
digit (0, 1, 4 in turn) cut down to 0.3 % of the rows. "random" draws all rows alike, "spread" is the package's own sketch.
Results go to `benchmarks/results/sketch.csv`.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from tqdm import tqdm

from .data import Data, data_folder, load
from .one import scores
from .process import RESULTS, Clock, Rows, append, circumstances, in_process, prepare
from .speed import warm_up

COLUMNS = tuple(
    "set kind size seed status n acc nmi ari rare_share rare_rows rare_f1 rare_near seconds cpu_seconds "
    "threads versions commit machine".split()
)
SIZES = {"mnist": (20_000, 40_000), "rare": (20_000,), "ifnb": (5_000,)}
KINDS = ("random", "spread")
RARE_DIGITS, RARE_SHARE = (0, 1, 4), 0.003


def with_a_rare_class(data: Data, digit: int, seed: int) -> Data:
    """All rows of the other classes, and so many of this one that they are `RARE_SHARE` of the whole."""
    others, mine = np.flatnonzero(data.y != digit), np.flatnonzero(data.y == digit)
    count = round(RARE_SHARE / (1 - RARE_SHARE) * len(others))
    kept = np.random.default_rng(seed).choice(mine, count, replace=False)
    return data.rows(np.sort(np.concatenate([others, kept])))


def best_f1(is_rare: np.ndarray, labels: np.ndarray) -> float:
    """F1 score of the cluster that matches a class best."""
    both = np.bincount(labels, weights=is_rare)
    return float((2 * both / (np.bincount(labels) + is_rare.sum())).max())


def kept_together(is_rare: np.ndarray, H: np.ndarray) -> float:
    """Share of the 10 nearest rows on the map of a row of a class that are of that class too."""
    from sklearn.neighbors import NearestNeighbors

    _, near = NearestNeighbors(n_neighbors=11).fit(H).kneighbors(H[is_rare])
    return float((is_rare[near].sum(axis=1) - 1).mean() / 10)


def random_sketch(data: Data, size: int, seed: int) -> dict[str, Any]:
    """Rows that are drawn all alike, and the graph of their neighbors."""
    rows = np.sort(np.random.default_rng(seed).choice(len(data.y), size, replace=False))
    return {"rows": rows, "graph": data.rows(rows).graph}


def measure(task: dict[str, Any]) -> Rows:
    from scvcc import VCC

    name, seed, size = task["set"], task["seed"], task["size"]
    data = load({"rare": "mnist"}.get(name, name), Path(task["data"]))
    digit = RARE_DIGITS[seed % len(RARE_DIGITS)]
    if name == "rare":
        data = with_a_rare_class(data, digit, seed)
    warm_up(task["threads"])
    clock = Clock()
    model = VCC(data.n_classes, n_jobs=task["threads"], random_state=seed, max_train_cells=size)
    model.fit(data.X, **(random_sketch(data, size, seed) if task["kind"] == "random" else {}))
    row = clock.read() | scores(data.y, model.labels_)
    if name == "rare":
        is_rare = data.y == digit
        found = {"rare_share": is_rare.mean(), "rare_f1": best_f1(is_rare, model.labels_)}
        found["rare_near"] = kept_together(is_rare, model.embedding_)
        row |= {k: round(float(v), 4) for k, v in found.items()} | {
            "rare_rows": int(is_rare[model.trained_rows_].sum())
        }
    return [row]


def tasks(sets: list[str], seeds: list[int]) -> list[dict[str, Any]]:
    """All rows, then both kinds of sketches of every size, seed by seed."""
    return [
        {"set": name, "seed": seed, "kind": kind, "size": size}
        for name in sets
        for seed in seeds
        for size in (None, *SIZES[name])
        for kind in KINDS
        if size is not None or kind == "spread"
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sketch", description=__doc__.splitlines()[0])
    parser.add_argument("sets", nargs="*", default=list(SIZES))
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=1800, help="seconds")
    parser.add_argument("--data", help="folder of the data sets (default: $SCVCC_DATA, then ../shared/data)")
    parser.add_argument("--out", type=Path, default=RESULTS / "sketch.csv")
    args = parser.parse_args()
    prepare(args.threads)
    here = circumstances(args.threads)
    rows: Rows = []
    for task in tqdm(tasks(args.sets, args.seeds), unit="run"):
        where = {"threads": args.threads, "data": str(data_folder(args.data))}
        new = [here | task | row for row in in_process(measure, task | where, args.timeout * args.threads)]
        append(args.out, COLUMNS, [{column: row.get(column) for column in COLUMNS} for row in new])
        rows += new
    shown = ["set", "kind", "size", "seed", "status", "acc", "nmi", "rare_rows", "rare_f1", "rare_near", "seconds"]
    print(pd.DataFrame(rows).reindex(columns=shown).to_string(index=False))


if __name__ == "__main__":
    main()
