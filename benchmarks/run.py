"""Measure methods on data sets: `python -m benchmarks.run table1 --methods vcc leiden --seeds 0 1 2`.

Each measurement runs in a process of its own and adds a line to `benchmarks/results/runs.csv`; what is there already is
not run again. A method that ran out of time on a set is not tried with further seeds.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tqdm import tqdm

from .data import CELLS, DOCUMENTS, SETS, data_folder, present
from .methods import METHODS
from .one import measure
from .process import RESULTS, Rows, append, circumstances, in_process, prepare
from .scattering import SCALINGS

KEY = ("method", "set", "seed", "k_known", "variant")
SCORES = tuple("part status k_given k_found n acc nmi ari seconds cpu_seconds peak_mb base_mb".split())
COLUMNS = (*KEY, *SCORES, "threads", "versions", "commit", "machine")

TABLE1 = ("mnist_test", "usps", "fashion", "rcv1_10k", "mnist")
TABLE2 = tuple(name for name, source in SETS.items() if source.kind == CELLS)
TABLE3 = tuple(name for name, source in SETS.items() if source.kind == DOCUMENTS)
ABLATED = ("mnist_test", "usps", "zheng", "kidney")
WITHOUT = (("contraction",), ("expansion",), ("contraction", "expansion"), ("boundary",), ("clustering",))
NEIGHBORS = (4, 6, 11, 16, 21, 26)
LATENT_DIMS = (2, 10, 20, 50, 100)
IMAGE_SETS = ("mnist_test", "usps", "fashion", "mnist")
SCALED = IMAGE_SETS[:3]
ON_FEATURES = ("kmeans", "umap_kmeans", "vcc")
SCATTERING = {"scattering": "maps"}  # features and the scaling that all sets share


@dataclass(frozen=True)
class Job:
    method: str
    set: str
    seed: int
    k_known: bool = True
    variant: dict[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, ...]:
        """As it stands in the CSV."""
        variant = json.dumps(self.variant, sort_keys=True) if self.variant else ""
        return self.method, self.set, str(self.seed), str(self.k_known), variant

    @property
    def work(self) -> tuple[Any, ...]:
        """What is run: jobs of one family on the same set and seed are answered together."""
        family = METHODS[self.method].family
        return (family, self.set, self.seed) if family else self.key


# ---------------------------------------------------------------------------------------------------- what to measure


Seeds = list[int] | None  # None: as many as the method has by default


def seeds_of(method: str, seeds: Seeds) -> list[int]:
    return list(range(METHODS[method].seeds)) if seeds is None else seeds


def table(sets: tuple[str, ...], seeds: Seeds) -> Iterator[Job]:
    for name in sets:
        for key, method in METHODS.items():
            if SETS[name].kind in method.kinds:
                for known in method.takes_k:
                    yield from (Job(key, name, seed, known) for seed in seeds_of(key, seeds))


def variants(sets: tuple[str, ...], options: list[dict[str, Any]], seeds: Seeds) -> Iterator[Job]:
    for name in sets:
        for variant in options:
            yield from (Job("vcc", name, seed, True, variant) for seed in seeds or range(3))


def on_features(sets: tuple[str, ...], seeds: Seeds) -> Iterator[Job]:
    """Scattering instead of pixels for a few methods, and VCC with the other scalings, which the table only compares."""
    for name in sets:
        for key in ON_FEATURES:
            yield from (Job(key, name, seed, True, SCATTERING) for seed in seeds_of(key, seeds))
    yield from variants(SCALED, [{"scattering": name} for name in SCALINGS if name != SCATTERING["scattering"]], seeds)


def experiments(seeds: Seeds = None) -> dict[str, list[Job]]:
    without = [{"loss_weights": dict.fromkeys(names, 0)} for names in WITHOUT]
    return {
        "table1": list(table(TABLE1, seeds)),
        "table2": list(table(TABLE2, seeds)),
        "table3": list(table(TABLE3, seeds)),
        "ablations": list(variants(ABLATED, [*without, {"objective": "paper"}], seeds)),
        "neighbors": list(variants(ABLATED, [{"n_neighbors": m} for m in NEIGHBORS], seeds)),
        "latent_dim": list(variants(ABLATED[:1], [{"latent_dim": d} for d in LATENT_DIMS], seeds)),
        "features": list(on_features(IMAGE_SETS, seeds)),
        "curve": [Job("vcc", "mnist_test", 0, True, {"curve": True})],
    }


# ---------------------------------------------------------------------------------------------------- measuring


def read_rows(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def still_to_do(jobs: list[Job], rows: list[dict[str, str]]) -> list[Job]:
    """Jobs without a row of their own and without a time-out of the same method on the same set; errors are retried."""
    done = {tuple(row[name] for name in KEY) for row in rows if row["status"] in ("ok", "timeout")}
    slow = {_without_seed(tuple(row[name] for name in KEY)) for row in rows if row["status"] == "timeout"}
    todo = [job for job in jobs if job.key not in done and _without_seed(job.key) not in slow]
    first: dict[tuple[Any, ...], Job] = {}
    for job in todo:
        first.setdefault(job.work, job)
    return list(first.values())


def _without_seed(key: tuple[str, ...]) -> tuple[str, ...]:
    return key[:2] + key[3:]


def measure_all(jobs: list[Job], args: argparse.Namespace) -> None:
    """Run the jobs that remain, each result written as it comes."""
    folder, here = data_folder(args.data), circumstances(args.threads)
    here_sets = present(dict.fromkeys(job.set for job in jobs), folder)

    def remaining(jobs: list[Job]) -> list[Job]:
        rows = read_rows(args.out)
        return still_to_do(jobs, [row for row in rows if not args.again or row["commit"] == here["commit"]])

    def attempt(job: Job) -> Rows:
        if not remaining([job]):  # meanwhile done by another process, or found too slow
            return []
        task = vars(job) | {"data": str(folder), "curve_file": str(args.out.parent / f"curve_{job.set}.csv")}
        key = dict(zip(KEY, job.key, strict=True))
        return [here | key | row for row in in_process(measure, task, args.timeout * args.threads)]

    todo = remaining([job for job in jobs if job.set in here_sets])
    if todo:
        prepare(args.threads)
    with tqdm(total=len(todo), unit="run", smoothing=0) as bar, ThreadPoolExecutor(args.jobs) as pool:
        for future in as_completed([pool.submit(attempt, job) for job in todo]):
            rows = future.result()
            for row in rows:
                if row["status"] != "ok":
                    bar.write(f"{row['method']} on {row['set']}, seed {row['seed']}: {row['status']}")
            append(args.out, COLUMNS, [row for row in rows if not row["status"].startswith("not installed")])
            bar.update()


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__.splitlines()[0])
    parser.add_argument("experiment", nargs="*", default="all", choices=["all", *experiments()])
    parser.add_argument("--sets", nargs="+", choices=list(SETS), help="only these data sets")
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), help="only these methods")
    parser.add_argument("--without", nargs="+", choices=list(METHODS), default=[], help="not these methods")
    parser.add_argument("--seeds", nargs="+", type=int, help="these seeds (default: 0-4 for VCC, 0-2 for the others)")
    parser.add_argument("--data", help="folder of the data sets (default: $SCVCC_DATA, then ../shared/data)")
    parser.add_argument("--out", type=Path, default=RESULTS / "runs.csv", help="CSV file that collects the results")
    parser.add_argument("--jobs", type=int, default=1, help="measurements at the same time")
    parser.add_argument("--threads", type=int, default=1, help="threads of each measurement")
    parser.add_argument("--timeout", type=float, default=600, help="processor seconds that a thread may use")
    parser.add_argument("--again", action="store_true", help="run again what was measured at another commit")
    return parser.parse_args(arguments)


def choose(args: argparse.Namespace) -> list[Job]:
    known = experiments(args.seeds)
    names = list(known) if "all" in args.experiment else args.experiment
    methods = set(args.methods or METHODS) - set(args.without)
    sets = set(args.sets or SETS)
    return [job for name in names for job in known[name] if job.method in methods and job.set in sets]


def main() -> None:
    args = parse()
    measure_all(choose(args), args)


if __name__ == "__main__":
    main()
