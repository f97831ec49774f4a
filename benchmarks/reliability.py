"""Figures of docs/reliability: `python -m benchmarks.reliability [same | ari | memory] [--data DIR]`; all three if none is named.

- same: so many fits of one seed, each in a process of its own, and how many different results there are
- ari: agreement of a fit with one of shuffled rows, of other threads, of double precision, and of another seed
- memory: peak of fits of generated cells, less what the libraries take, and the line through it

Tables are printed; rows go to `benchmarks/results/reliability.csv`.
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from .data import data_folder, load, present
from .process import RESULTS, Rows, append, circumstances, forget_peak, in_process, peak_mb, prepare
from .scale import TYPES, some_cells

SETS = ("pbmc3k", "ifnb", "mnist_test")
VARIANTS = ("shuffled rows", "two threads", "double precision", "another seed")
SIZES, REPEATS, THREADS = (10_000, 30_000, 100_000), 20, 2
COLUMNS = tuple("what set variant n value status threads versions commit machine".split())


def fit(task: dict[str, Any]) -> Rows:
    """Labels in the order of the data, and a sum over all that was fitted."""
    from scvcc import VCC

    data = load(task["set"], Path(task["data"]))
    X, variant = np.asarray(data.features, np.float32), task["variant"]
    order = np.random.default_rng(1).permutation(len(X)) if variant == "shuffled rows" else np.arange(len(X))
    model = VCC(
        data.n_classes, n_jobs=2 if variant == "two threads" else 1, random_state=int(variant == "another seed")
    )
    model.fit(X[order].astype(np.float64 if variant == "double precision" else np.float32))
    found = (model.labels_, model.embedding_, model.cluster_centers_, model.leaves_, *model.encoder_.arrays().values())
    digest = hashlib.sha256(b"".join(np.ascontiguousarray(array).tobytes() for array in found)).hexdigest()
    return [{"n": len(X), "labels": model.labels_[np.argsort(order)], "digest": digest}]


def fitted(task: dict[str, Any]) -> dict[str, Any]:
    """A fit in a process of its own."""
    (row,) = in_process(fit, task, 600)
    if row["status"] != "ok":
        raise SystemExit(f"{task['set']}: {row['status']}")
    return row


def same(folder: str) -> Iterable[dict[str, Any]]:
    task = {"set": SETS[0], "variant": "", "data": folder}
    rows = [fitted(task) for _ in range(REPEATS)]
    found = {row["digest"] for row in rows}
    print(f"{REPEATS} fits of {task['set']}, one seed, a process each: {len(found)} different result(s)")
    yield {"what": "same", **task, "n": REPEATS, "value": len(found), "status": rows[0]["status"]}


def ari(folder: str) -> Iterable[dict[str, Any]]:
    from sklearn.metrics import adjusted_rand_score

    print("\n| | " + " | ".join(VARIANTS) + " |\n" + "|---" * (len(VARIANTS) + 1) + "|")
    for name in present(SETS, Path(folder)):
        tasks = [{"set": name, "variant": variant, "data": folder} for variant in ("", *VARIANTS)]
        first, *others = map(fitted, tasks)
        values = [adjusted_rand_score(first["labels"], other["labels"]) for other in others]
        equal = [", same bits" if other["digest"] == first["digest"] else "" for other in others]
        print(f"| {name} | " + " | ".join(f"{v:.3f}{same}" for v, same in zip(values, equal, strict=True)) + " |")
        for task, value, other in zip(tasks[1:], values, others, strict=True):
            yield {"what": "ari", **task, "n": other["n"], "value": round(value, 4), "status": other["status"]}


def fit_generated(task: dict[str, Any]) -> Rows:
    """Peak of a fit on all of `n` cells beyond what the process took before it had any."""
    from scvcc import VCC

    warm = VCC(TYPES, n_jobs=1).fit(some_cells(0, 20_000)[0])  # imports and compilation, those of the search too
    base = forget_peak()
    X = some_cells(0, task["n"])[0]
    VCC(TYPES, n_jobs=1, max_train_cells=None).fit(X)
    return [{"value": peak_mb() - base, "base": base, "variant": f"{warm.n_clusters_} clusters"}]


def memory(_: str) -> Iterable[dict[str, Any]]:
    rows = [{"n": n, **in_process(fit_generated, {"n": n}, 1200)[0]} for n in SIZES]
    peaks = np.array([row["value"] for row in rows], float)
    slope, start = np.polyfit(SIZES, peaks, 1)
    for row in rows:
        print(
            f"{row['n']} x 50: {row['value']} MB beyond {row['base']} MB, {1000 * row['value'] / row['n']:.2f} KB a cell"
        )
        yield {"what": "memory", **row}
    off = np.abs(peaks - slope * np.array(SIZES) - start).max()
    print(f"peak = base + {start:.0f} MB + {1000 * slope:.2f} KB a cell; the sizes are within {off:.0f} MB of it")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = {part.__name__: part for part in (same, ari, memory)}
    parser.add_argument("parts", nargs="*", choices=[*parts, []], help="what to measure")
    parser.add_argument("--data", help="folder of the data sets")
    options = parser.parse_args()
    prepare(THREADS)
    for name in options.parts or parts:
        for row in parts[name](str(data_folder(options.data))):
            kept = {column: row[column] for column in COLUMNS if column in row}
            append(RESULTS / "reliability.csv", COLUMNS, [{**kept, **circumstances(THREADS)}])


if __name__ == "__main__":
    main()
