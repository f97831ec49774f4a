"""Sets with batches: `python -m benchmarks.batches fit --sets "ifnb by stim" --methods vcc harmony --seeds 0`.

- `fit`: VCC with and without the batches, beside Leiden at K on Harmony's, bbknn's and scVI's view of the same cells, on real
  sets and on made ones (`benchmarks/batchsets.py`); labels, mixing and time
- `half`: half of the cells are fitted with their batches, the others labeled
- `unseen`: one batch is left out (the seed is its number), and labeled
- `steps`: the neighbors that are found when one step of the correction is left out; nothing is fitted

Each set and seed is measured in a process of its own and adds lines to `benchmarks/results/batches.csv`; what is there
already is not run again.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import numpy as np
import scipy.sparse as sp
from tqdm import tqdm

from . import mixing
from .batchsets import MADE, NAMES, REAL, Batched, load_batched
from .data import CELLS, Data, data_folder, present
from .methods import fit_vcc, leiden, scvi_latent
from .newcells import ingest
from .one import scores
from .process import RESULTS, Clock, Rows, append, circumstances, in_process, prepare
from .report import markdown
from .run import read_rows
from .sketch import best_f1

if TYPE_CHECKING:
    import pandas as pd

KEY = ("experiment", "set", "seed", "method")
COLUMNS = (
    *KEY,
    *"status n acc nmi ari k_found f1 ilisi kbet connectivity purity aligned seconds cpu_seconds peak_mb base_mb".split(),
    *"threads versions commit machine".split(),
)
SEEDS = {"real": range(5), "made": range(3), "scvi": range(1), "half": range(3)}
STEPS = {  # what is changed in scvcc._training.batches, so that a step does nothing
    "all steps": {},
    "corrected even if mixed": {"APART": -1.0},
    "no shift": {"EVIDENCE": 2.0},
    "groups count as independent": {"CLOSE": 1e9},
    "all batches trusted": {"COMMON": (-2.0, -1.0)},
    "no offsets": {"COMMON": (2.0, 3.0)},
    "one round of offsets": {"OFFSET_ROUNDS": 1},
}
HALVED = ("ifnb by stim", "ifnb by donor", "covid by sample", "baron by donor")
LEFT_OUT = {"ifnb by donor": 8, "covid by sample": 3}  # numbers of batches
NEIGHBORS = 15

NOTES = {
    "real": "K is given; means over seeds (Harmony and bbknn: one; scVI: one seed, trained for fewer steps than its default, as in the other tables). "
    "Leiden's resolution is the one that gives K clusters, on 15 neighbors in the space that Harmony or scVI correct, or on "
    "bbknn's own graph.",
    "mixing": "How well batches are mixed, in the space in which neighbors are searched (bbknn has none): graph iLISI over all "
    "cells, kBET within types, and connectivity of types in the graph of 15 neighbors, each from 0 to 1. The formulas are "
    "those of scib-metrics.",
    "made": "Sets made of sorted PBMC, PBMC 3k, human kidney and mouse pancreas, in which what the batches have in common is "
    "known (`benchmarks/batchsets.py`): NMI, means over sets and seeds. *Before the change*: the same cells before batches "
    "were shifted.",
    "missing": "One half of the set lacks a type (the second, third or fourth largest), and is shifted and scaled: F1 of the "
    "cluster that matches this type best.",
    "steps": "The 15 neighbors of each cell in the corrected components, where one step is left out or changed. *Pure*: the "
    "share of neighbors of the cell's own type. *Aligned*: among these, the share from other batches, relative to that by "
    "chance, over types that several batches have. Means over sets and seeds.",
    "new": "`half`: half of the cells are fitted with their batches, the other half comes as it is. `unseen`: one batch is left "
    "out of the fit (mean over batches), then labeled; *fitted jointly* are the same cells in a fit of all. Neighbors and "
    "`sc.tl.ingest` look for new cells among the corrected components of the fitted ones. NMI.",
}

Found = tuple[np.ndarray, np.ndarray | None]  # labels, and the space that the method took the neighbors from
Method = Callable[[Batched, int], Found]


# ---------------------------------------------------------------------------------------------------- methods


def plain(world: Batched, seed: int) -> Found:
    return fit_vcc(world.data, world.data.n_classes, seed).labels_, world.data.features


def before(world: Batched, seed: int) -> Found:
    """Without batches, on the set before its batches were changed."""
    return fit_vcc(world.before, world.data.n_classes, seed).labels_, world.before.features


def vcc(world: Batched, seed: int) -> Found:
    return fit_vcc(world.data, world.data.n_classes, seed, world.batch).labels_, None


def harmony(world: Batched, seed: int) -> Found:
    Z = corrected_by_harmony(world, seed)
    return leiden(Data(Z, world.data.y, world.data.kind), world.data.n_classes, seed), Z


def bbknn(world: Batched, seed: int) -> Found:
    from bbknn.matrix import bbknn as build

    options = {"computation": "pynndescent", "pynndescent_random_state": seed}
    weights = build(world.data.features, world.batch.astype(str), **options)[1]
    return leiden(world.data, world.data.n_classes, seed, sp.csr_matrix(weights)), None


def scvi(world: Batched, seed: int) -> Found:
    Z = scvi_latent(world.data, seed, world.batch)
    return leiden(Data(Z, world.data.y, world.data.kind), world.data.n_classes, seed), Z


METHODS: dict[str, Method] = {
    "plain": plain,
    "vcc": vcc,
    "before": before,
    "harmony": harmony,
    "bbknn": bbknn,
    "scvi": scvi,
}


def corrected_by_harmony(world: Batched, seed: int) -> np.ndarray:
    import pandas as pd
    from harmonypy import run_harmony

    obs = pd.DataFrame({"batch": world.batch.astype(str)})
    Z = np.asarray(run_harmony(world.data.features, obs, "batch", verbose=False, random_state=seed).Z_corr)
    return (Z if len(Z) == len(obs) else Z.T).astype(np.float32)  # turned round before harmonypy 0.1


def corrected(X: np.ndarray, batch: np.ndarray, seed: int) -> np.ndarray:
    from scvcc._model.neighbors import Batches, without_batches

    return without_batches(X, Batches.of(batch, len(batch)), 1.0, seed).Z


def without_step(world: Batched, changes: dict[str, Any], seed: int) -> np.ndarray:
    """The components of a set, corrected with some constants of the correction changed."""
    from scvcc._training import batches

    X = np.ascontiguousarray(world.data.features, dtype=np.float32)
    with patch.multiple(batches, **changes) if changes else nullcontext():
        return batches.correct_batches(X, world.batch, seed=seed).Z


# ---------------------------------------------------------------------------------------------------- measurements


@dataclass(frozen=True)
class Job:
    experiment: str
    set: str
    seed: int
    method: str


def jobs() -> list[Job]:
    found = []
    for name in REAL:
        ways = ("plain", "vcc", "harmony", "bbknn")
        found += [Job("fit", name, seed, method) for seed in SEEDS["real"] for method in ways]
        found += [Job("fit", name, seed, "scvi") for seed in SEEDS["scvi"]]
    for name in MADE:
        ways = ("plain", "vcc", "before", "harmony", "bbknn")
        found += [Job("fit", name, seed, method) for seed in SEEDS["made"] for method in ways]
    found += [Job("steps", name, seed, "vcc") for name in NAMES for seed in SEEDS["made"]]
    found += [Job("half", name, seed, "vcc") for name in HALVED for seed in SEEDS["half"]]
    return found + [Job("unseen", name, b, "vcc") for name, count in LEFT_OUT.items() for b in range(count)]


def measure(task: dict[str, Any]) -> Rows:
    experiment, name, seed, folder = task["experiment"], task["set"], task["seed"], Path(task["data"])
    if experiment == "fit":
        rng = np.random.default_rng(0)
        vcc(Batched(small := Data(rng.random((200, 8)), np.arange(200) % 4, CELLS), np.arange(200) % 2, small), 0)
        world = load_batched(name, folder, seed)
        return [row for method in task["methods"] for row in fitted(world, method, seed)]
    if experiment == "steps":
        return steps(load_batched(name, folder, seed), seed)
    world = load_batched(name, folder)
    if experiment == "unseen":
        fit_rows = np.flatnonzero(world.batch != seed)
        return carried(world, fit_rows, 0) + jointly(world, seed)
    fit_rows = np.sort(np.random.default_rng(seed).permutation(len(world.batch))[: len(world.batch) // 2])
    return carried(load_batched(name, folder, fit_rows=fit_rows), fit_rows, seed)


def fitted(world: Batched, method: str, seed: int) -> Rows:
    """Labels of one method, scored; one that fails has a row too."""
    clock, y = Clock(), world.data.y
    try:
        labels, Z = METHODS[method](world, seed)
    except ModuleNotFoundError as error:
        return [{"method": method, "status": f"not installed: {error.name}"}]
    except Exception as error:  # noqa: BLE001 - whatever a method raises is its result
        return [{"method": method, "status": f"error: {type(error).__name__}: {error}"[:200]}]
    row = {"method": method} | clock.read() | scores(y, labels)
    if world.missing is not None:
        row["f1"] = round(best_f1(y == world.missing, labels), 4)
    Z = corrected(world.data.features, world.batch, seed) if method == "vcc" else Z
    return [row if Z is None else row | mixing.scores(Z, y, world.batch)]


def steps(world: Batched, seed: int) -> Rows:
    """The neighbors without a correction, with it, and with each step of it left out."""
    rows = [{"method": "no correction"} | mixing.neighbor_scores(world.data.features, world.data.y, world.batch)]
    for name, changes in STEPS.items():
        clock = Clock()
        Z = without_step(world, changes, seed)
        rows.append({"method": name} | clock.read() | mixing.neighbor_scores(Z, world.data.y, world.batch))
    return rows


def carried(world: Batched, fit_rows: np.ndarray, seed: int) -> Rows:
    """Scores of fitted and of new cells, the new ones labeled by the model, by neighbors and by scanpy's ingest.

    New cells come as they are. Neighbors are looked for among the corrected components of the fitted ones.
    """
    from sklearn.neighbors import KNeighborsClassifier

    new_rows = np.setdiff1d(np.arange(len(world.batch)), fit_rows)
    fit, new, batch = world.data.rows(fit_rows), world.data.rows(new_rows), world.batch[fit_rows]
    model = fit_vcc(fit, fit.n_classes, seed, batch)
    Z = corrected(fit.X, batch, seed)
    ways = {
        "new, predict": model.predict(new.X),
        "new, neighbors": KNeighborsClassifier(NEIGHBORS).fit(Z, model.labels_).predict(new.X),
        "new, ingest": ingest(Z, model.labels_, new.X)(),
    }
    rows = [{"method": "fit"} | scores(fit.y, model.labels_)]
    return rows + [{"method": way} | scores(new.y, labels) for way, labels in ways.items()]


def jointly(world: Batched, left_out: int) -> Rows:
    """Scores of the cells of one batch, fitted together with all others."""
    labels = fit_vcc(world.data, world.data.n_classes, 0, world.batch).labels_
    mine = world.batch == left_out
    return [{"method": "fitted jointly"} | scores(world.data.y[mine], labels[mine])]


# ---------------------------------------------------------------------------------------------------- the page

TITLES = {
    "plain": "VCC without batches",
    "vcc": "**VCC**",
    "harmony": "Harmony + Leiden",
    "bbknn": "bbknn + Leiden",
    "scvi": "scVI + Leiden",
    "before": "VCC, before the change",
}
NEW = {name: name for name in ("fit", "new, predict", "new, neighbors", "new, ingest", "fitted jointly")}


def page(path: Path) -> str:
    import pandas as pd

    rows = pd.read_csv(path)
    rows = rows[rows.status == "ok"].drop_duplicates([*KEY], keep="last")
    fit = rows[rows.experiment == "fit"]
    real, made = fit[fit.set.isin(REAL)], fit[fit.set.isin(MADE)]
    parts = [
        f"## Several samples\n\n{NOTES['real']}\n",
        _table(real, "set", ("nmi", "ari"), ("plain", "vcc", "harmony", "bbknn", "scvi"), "NMI / ARI"),
        f"{NOTES['mixing']}\n",
        _table(
            real, "set", ("ilisi", "kbet", "connectivity"), ("plain", "vcc", "harmony", "scvi"), "iLISI / kBET / conn."
        ),
    ]
    if len(made):
        made = made.assign(way=made.set.map(lambda name: MADE[name][1]))
        lost = made.pivot_table(index=["way", "set", "seed"], columns="method", values="nmi")
        lost = (lost["vcc"] - lost["plain"]).groupby("set").mean().groupby(lambda name: MADE[name][1]).min()
        ways = ("before", "plain", "vcc", "harmony", "bbknn")
        worst = {way: f"{value:+.3f}" for way, value in lost.items()}
        parts += [f"{NOTES['made']}\n", _table(made, "way", ("nmi",), ways, "NMI", {"VCC − without, worst set": worst})]
        parts += [
            f"{NOTES['missing']}\n",
            _table(made[made.f1.notna()], "set", ("f1",), ways, "F1 of the missing type"),
        ]
    stepwise = rows[rows.experiment == "steps"]
    if len(stepwise):
        parts += [f"### The steps of the correction\n\n{NOTES['steps']}\n", _steps_table(stepwise)]
    carried = rows[rows.experiment.isin(("half", "unseen"))]
    if len(carried):
        carried = carried.assign(case=carried.set + ", " + carried.experiment)
        parts += [f"{NOTES['new']}\n", _table(carried, "case", ("nmi",), tuple(NEW), "NMI", titles=NEW)]
    return "\n".join(parts)


def _steps_table(rows: pd.DataFrame) -> str:
    """A line for each way of making or taking sets, a pair of columns for each step left out."""
    rows = rows.assign(way=rows.set.map(lambda name: MADE[name][1] if name in MADE else name))
    columns = [name for name in ("no correction", *STEPS) if name in set(rows.method)]
    lines = []
    for way, mine in [*rows.groupby("way", sort=False), ("*mean*", rows)]:
        means = mine.groupby("method")[["purity", "aligned"]].mean().reindex(columns).to_numpy()
        cells = [" / ".join("–" if np.isnan(v) else f"{v:.2f}" for v in pair) for pair in means]
        lines.append([str(way), str(len(mine.drop_duplicates(["set", "seed"]))), *cells])
    return markdown(["pure / aligned", "runs", *columns], lines)


def _table(
    rows: pd.DataFrame,
    by: str,
    metrics: tuple[str, ...],
    methods: tuple[str, ...],
    corner: str,
    more: dict[str, dict[str, str]] | None = None,
    titles: dict[str, str] = TITLES,
) -> str:
    """Means over sets and seeds, a line for each value of a column, and a column for each method that was run."""
    columns, lines = [method for method in methods if method in set(rows.method)], []
    for value, mine in rows.groupby(by, sort=False):
        means = mine.groupby("method")[list(metrics)].mean().reindex(columns)
        cells = [" / ".join("–" if np.isnan(v) else f"{v:.3f}" for v in line) for line in means.to_numpy()]
        seeds = str(mine.seed[mine.method.isin(("vcc", "fit"))].nunique())
        lines.append([str(value), seeds, *cells, *(found.get(value, "") for found in (more or {}).values())])
    return markdown([corner, "seeds", *(titles[method] for method in columns), *(more or {})], lines)


# ---------------------------------------------------------------------------------------------------- the run


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.batches", description=__doc__.splitlines()[0])
    parser.add_argument("experiment", nargs="*", default="all", choices=["all", "fit", "half", "unseen", "steps"])
    parser.add_argument("--sets", nargs="+", choices=[*NAMES, "real", "made"], help="only these sets")
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), help="only these methods")
    parser.add_argument("--seeds", nargs="+", type=int, help="only these seeds")
    parser.add_argument("--data", help="folder of the data sets (default: $SCVCC_DATA, then ../shared/data)")
    parser.add_argument("--out", type=Path, default=RESULTS / "batches.csv", help="CSV file that collects the results")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=3600, help="processor seconds that a thread may use")
    parser.add_argument("--again", action="store_true", help="run again what was measured at another commit")
    return parser.parse_args(arguments)


def choose(args: argparse.Namespace) -> list[Job]:
    groups = {"real": REAL, "made": MADE}
    sets = {name for given in args.sets or NAMES for name in groups.get(given, (given,))}
    return [
        job
        for job in jobs()
        if ("all" in args.experiment or job.experiment in args.experiment)
        and job.set in sets
        and (args.methods is None or job.method in args.methods)
        and (args.seeds is None or job.seed in args.seeds)
    ]


def still_to_do(wanted: list[Job], rows: list[dict[str, str]]) -> dict[tuple[str, str, int], list[str]]:
    """Methods that remain, by experiment, set and seed: these share the reading of the set."""
    done = {(r["experiment"], r["set"], r["seed"], r["method"]) for r in rows if r["status"] == "ok"}
    todo: dict[tuple[str, str, int], list[str]] = {}
    for job in wanted:
        name = {"fit": job.method, "steps": "all steps"}.get(job.experiment, "fit")
        if (job.experiment, job.set, str(job.seed), name) not in done:
            todo.setdefault((job.experiment, job.set, job.seed), []).append(job.method)
    return todo


def main() -> None:
    args = parse()
    folder, here = data_folder(args.data), circumstances(args.threads)
    bases = {name: (REAL | MADE)[name][0] for name in NAMES}
    wanted = choose(args)
    there = present(dict.fromkeys(bases[job.set] for job in wanted), folder)
    rows = [row for row in read_rows(args.out) if not args.again or row["commit"] == here["commit"]]
    todo = still_to_do([job for job in wanted if bases[job.set] in there], rows)
    prepare(args.threads)
    for (experiment, name, seed), methods in tqdm(todo.items(), unit="run", smoothing=0):
        task = {"experiment": experiment, "set": name, "seed": seed}
        more = {"methods": methods, "threads": args.threads, "data": str(folder)}
        found = in_process(measure, task | more, args.timeout * args.threads)
        append(args.out, COLUMNS, [here | task | row for row in found])
        for row in found:
            if row["status"] != "ok":
                tqdm.write(f"{task} {row.get('method', methods)}: {row['status']}")


if __name__ == "__main__":
    main()
