"""New points: labels, confidence and novelty of rows that were not fitted. `python -m benchmarks.newcells transfer`.

- `transfer`: VCC is fitted on a part of the rows, and its labels are carried to the others in three ways: by its own
  `predict`, by the 15 nearest fitted rows in the space of the features, and by `scanpy.tl.ingest`
- `again`: two models are fitted on a third of the rows each; a row of the last third is labeled by both, and confidence is
  compared with the share of rows that both put into the same cluster
- `unseen`: one type of cells is left out of the fitted half; confidence, novelty of single cells and pooled, and the distance
  to the fitted rows are judged by how well they tell its cells from new cells of the other types, and the novelty also by
  how many cells of both it leaves unassigned. Again with a reference of five clusters too few or too many, and with documents
- `shift`: the novelty of whole queries that are like the reference, or not, such as cells of other donors
- `time`: seconds for 100,000 new cells

Each measurement runs in a process of its own and adds lines to `benchmarks/results/newcells.csv`; what is there already
is not run again.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from tqdm import tqdm

from .data import IMAGES, N_PCS, SETS, Data, data_folder, load, present
from .methods import fit_vcc
from .one import scores
from .process import RESULTS, Clock, Rows, append, circumstances, in_process, prepare
from .run import read_rows

KEY = ("experiment", "set", "split", "seed")
SCORES = tuple(
    "method item status n acc nmi ari named confidence auroc unassigned lost rare apart quartile seconds cpu_seconds peak_mb "
    "base_mb".split()
)
COLUMNS = (*KEY, *SCORES, "threads", "versions", "commit", "machine")

HALF, FIRST, LAST = "half", "first 60,000", "last 10,000"  # the rows that are fitted
SPLITS: dict[str, tuple[str, ...]] = {
    "mnist": (FIRST, LAST),
    "scmixology": (HALF,),
    "zheng": (HALF,),
    "kidney": (HALF,),
    "baron": (HALF,),
    "ifnb": (HALF, "stim = CTRL", "stim = STIM", "half of the donors"),
}
WRONG_K = {f"{HALF}, K - 5": -5, f"{HALF}, K + 5": 5}
UNSEEN = ("scmixology", "zheng", "kidney", "baron", "covid", "ifnb", "pbmc3k")
UNSEEN_TOPICS = ("bbc", "r8")
AGAIN = ("scmixology", "zheng", "baron", "kidney", "covid", "pbmc3k", "paul15", "bbc", "usps", "ifnb")
DONORS = "half of the donors"
SHIFTS = {"ifnb": (HALF, DONORS, "stim = CTRL"), "covid": (HALF, DONORS), "baron": (HALF, DONORS)}
DONOR = {"ifnb": "donor", "covid": "sample", "baron": "donor"}
LEAST_CELLS = 20  # of a type that is left out
FEW_CELLS = 30  # fitted ones of a rare type
LIMIT = 0.99  # the default of `tl.map_query`
BINS = 10  # of confidence
NEIGHBORS = 15
MANY = 100_000


@dataclass(frozen=True)
class Job:
    experiment: str
    set: str
    split: str
    seed: int


def jobs(seeds: list[int] | None = None) -> list[Job]:
    found = []
    for name, splits in SPLITS.items():
        for split in splits:
            repeats = 3 if name in ("mnist", "ifnb") else 5
            found += [Job("transfer", name, split, seed) for seed in seeds or range(repeats)]
    found += [Job("again", name, "thirds", seed) for name in AGAIN for seed in seeds or range(3)]
    found += [Job("unseen", name, HALF, seed) for name in (*UNSEEN, *UNSEEN_TOPICS) for seed in seeds or range(3)]
    found += [Job("unseen", name, split, seed) for split in WRONG_K for name in UNSEEN for seed in seeds or range(1)]
    found += [
        Job("shift", name, split, s) for name, splits in SHIFTS.items() for split in splits for s in seeds or range(3)
    ]
    return found + [Job("time", "ifnb", HALF, seed) for seed in seeds or range(3)]


# ---------------------------------------------------------------------------------------------------- which rows


def split_rows(job: Job, folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Rows to fit, and new rows."""
    n, rng = len(load(job.set, folder).y), np.random.default_rng(job.seed)
    if job.split == HALF:
        chosen = np.isin(np.arange(n), rng.permutation(n)[: n // 2])
    elif job.split in (FIRST, LAST):
        chosen = (np.arange(n) < 60_000) == (job.split == FIRST)
    elif job.split.startswith("stim"):
        chosen = _column(job.set, folder, "stim") == job.split.removeprefix("stim = ")
    else:
        donor = _column(job.set, folder, DONOR[job.set])
        names = rng.permutation(np.unique(donor))
        chosen = np.isin(donor, names[: -(-len(names) // 2)])
    return np.flatnonzero(chosen), np.flatnonzero(~chosen)


def _column(name: str, folder: Path, column: str) -> np.ndarray:
    """A column of obs, of the cells that have a label."""
    import anndata as ad

    obs = ad.read_h5ad(folder / SETS[name].file, backed="r").obs
    return obs.loc[obs[SETS[name].labels].notna(), column].astype(str).to_numpy()


def features(fit: Data, new: Data) -> tuple[np.ndarray, np.ndarray]:
    """Principal components of both parts, learnt from the fitted rows."""
    if fit.kind != IMAGES:
        return fit.features, new.features
    from sklearn.decomposition import PCA

    pca = PCA(N_PCS, random_state=0).fit(fit.X)
    return pca.transform(fit.X), pca.transform(new.X)


# ---------------------------------------------------------------------------------------------------- three ways


Carrier = Callable[[], np.ndarray]


def carriers(model: Any, fit: Data, new: Data) -> dict[str, Carrier]:
    """Functions that label the new rows with the clusters of the fitted ones; what they can prepare is prepared."""
    from sklearn.neighbors import KNeighborsClassifier

    Z_fit, Z_new = features(fit, new)
    neighbors = KNeighborsClassifier(NEIGHBORS).fit(Z_fit, model.labels_)
    return {
        "predict": lambda: model.predict(new.X),
        "neighbors": lambda: neighbors.predict(Z_new),
        "ingest": ingest(Z_fit, model.labels_, Z_new),
    }


def ingest(Z_fit: np.ndarray, labels: np.ndarray, Z_new: np.ndarray) -> Carrier:
    import anndata as ad
    import pandas as pd
    import scanpy as sc

    reference, query = ad.AnnData(Z_fit.astype(np.float32)), ad.AnnData(Z_new.astype(np.float32))
    reference.obs["label"] = pd.Categorical(labels.astype(str))
    sc.pp.neighbors(reference, n_neighbors=NEIGHBORS, use_rep="X")

    def carry() -> np.ndarray:
        sc.tl.ingest(query, reference, obs="label", embedding_method=())
        return query.obs["label"].astype(int).to_numpy()

    return carry


def names_of(labels: np.ndarray, y: np.ndarray, n_clusters: int) -> np.ndarray:
    """The most frequent class among the fitted rows of each cluster, as a user would name it."""
    table = np.zeros((n_clusters, int(y.max()) + 1), dtype=int)
    np.add.at(table, (labels, y), 1)
    return table.argmax(axis=1)


# ---------------------------------------------------------------------------------------------------- measurements


def measure(task: dict[str, Any]) -> Rows:
    job, folder = Job(**task["job"]), Path(task["data"])
    run = {"transfer": transfer, "again": again, "unseen": unseen, "shift": shift, "time": times}
    return run[job.experiment](job, folder)


def transfer(job: Job, folder: Path) -> Rows:
    """Scores of the fitted rows and of the new ones by each way."""
    fit_rows, new_rows = split_rows(job, folder)
    data = load(job.set, folder, fit_rows)
    fit, new = data.rows(fit_rows), data.rows(new_rows)
    clock = Clock()
    model = fit_vcc(fit, data.n_classes, job.seed)
    spent = clock.read()
    names = names_of(model.labels_, fit.y, model.n_clusters_)

    def row(method: str, part: Data, labels: np.ndarray, time: dict[str, float]) -> dict[str, Any]:
        named = round(float(np.mean(names[labels] == part.y)), 4)
        found = {name: value for name, value in scores(part.y, labels).items() if name != "k_found"}
        return {"method": method, "item": "fit" if part is fit else "new", "named": named} | time | found

    rows = [row("predict", fit, model.labels_, spent)]
    for method, carry in carriers(model, fit, new).items():
        clock = Clock()
        labels = carry()
        rows.append(row(method, new, labels, clock.read()))
    return rows


def reliability(confidence: np.ndarray, right: np.ndarray, method: str) -> Rows:
    """Share of rows named right, by confidence in bins of equal width."""
    bins = np.minimum((confidence * BINS).astype(int), BINS - 1)
    rows = []
    for b in range(BINS):
        inside = bins == b
        if inside.any():
            values = {
                "confidence": round(float(confidence[inside].mean()), 4),
                "named": round(float(right[inside].mean()), 4),
            }
            rows.append({"method": method, "item": f"bin {b}", "n": int(inside.sum())} | values)
    return rows


def again(job: Job, folder: Path) -> Rows:
    """Reliability against a second fit on other rows: with the number of classes, with five more, and with none given."""
    n, rows = len(load(job.set, folder).y), []
    first, second, third = np.array_split(np.random.default_rng(job.seed).permutation(n), 3)
    data = load(job.set, folder, np.concatenate([first, second]))
    for method, k in (("K", data.n_classes), ("K + 5", data.n_classes + 5), ("K unknown", None)):
        model, other = (fit_vcc(data.rows(part), k, job.seed + i) for i, part in enumerate((first, second)))
        proba, new = model.predict_proba(data.rows(third).X), data.rows(third)
        labels = proba.argmax(axis=1)
        rows += reliability(proba.max(axis=1), is_matched(labels, other.predict(new.X)), method)
        names = names_of(model.labels_, data.y[first], model.n_clusters_)
        rows += reliability(proba.max(axis=1), names[labels] == new.y, f"{method}, classes")
    return rows


def is_matched(labels: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Whether the cluster of each row is the match of its other one; clusters are matched one to one."""
    from scipy.optimize import linear_sum_assignment

    table = np.zeros((labels.max() + 1, others.max() + 1), dtype=int)
    np.add.at(table, (labels, others), 1)
    match = np.full(table.shape[1], -1)
    pairs = linear_sum_assignment(-table)
    match[pairs[1]] = pairs[0]
    return match[others] == labels


def novelties(model: Any, fit: Data, X: Any, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Novelty of new rows, each by itself and pooled, as `tl.map_query` finds it."""
    from scvcc._model.derived import expect_shrunk
    from scvcc._model.placing import place

    if fit.shrinkage is not None:
        expect_shrunk(model, fit.X, fit.shrinkage, seed)
    return model.novelty(X), place(model, X, lambda block: block)[1]


def unseen(job: Job, folder: Path) -> Rows:
    """How well the cells of a type that was left out are told from the others, one row for each measure and type."""
    from sklearn.metrics import roc_auc_score
    from sklearn.neighbors import NearestNeighbors

    y, rows = load(job.set, folder).y, []
    for left_out in np.flatnonzero(np.bincount(y) >= LEAST_CELLS):
        others = np.random.default_rng(job.seed).permutation(np.flatnonzero(y != left_out))
        fit_rows, known, strange = *np.split(others, [len(others) // 2]), np.flatnonzero(y == left_out)
        data = load(job.set, folder, fit_rows)
        fit, new = data.rows(fit_rows), data.rows(np.concatenate([known, strange]))
        model = fit_vcc(fit, max(len(np.unique(fit.y)) + WRONG_K.get(job.split, 0), 2), job.seed)
        distances, _ = NearestNeighbors(n_neighbors=NEIGHBORS).fit(fit.features).kneighbors(new.features)
        alone, pooled = novelties(model, fit, new.X, job.seed)
        is_new = new.y == left_out
        is_rare = ~is_new & (np.bincount(fit.y, minlength=len(y))[new.y] < FEW_CELLS)
        measures = {
            "confidence": 1 - model.predict_proba(new.X).max(axis=1),
            "distance in PCA space": distances.mean(axis=1),
            "novelty, single": alone,
            "novelty, pooled": pooled,
        }
        for method, values in measures.items():
            row = {"method": method, "item": f"type {left_out}", "n": len(strange)}
            row["auroc"] = round(float(roc_auc_score(is_new, values)), 4)
            if method.startswith("novelty"):
                for name, part in (("unassigned", is_new), ("lost", ~is_new), ("rare", is_rare)):
                    row[name] = round(float(np.mean(values[part] > LIMIT)), 4) if part.any() else None
                row["apart"] = round(apart(fit, new.X[is_new]), 2)
            rows.append(row)
    return rows


def apart(fit: Data, X: np.ndarray) -> float:
    """Distance of the center of some rows to the nearest center of a class, in standard deviations along this line."""
    known, X = (rows.toarray() if sp.issparse(rows) else rows for rows in (fit.X, X))
    classes = [known[fit.y == label] for label in np.unique(fit.y)]
    lines = [rows.mean(axis=0) - X.mean(axis=0) for rows in classes]
    nearest = int(np.argmin([np.linalg.norm(line) for line in lines]))
    line = lines[nearest] / np.linalg.norm(lines[nearest])
    spread = np.sqrt((np.var(X @ line) + np.var(classes[nearest] @ line)) / 2)
    return float(np.linalg.norm(lines[nearest]) / spread)


def shift(job: Job, folder: Path) -> Rows:
    """Novelty of a whole query; where donors are known, also with a reference fitted with them as batches."""
    fit_rows, new_rows = split_rows(job, folder)
    data = load(job.set, folder, fit_rows)
    fit, rows = data.rows(fit_rows), []
    donor = _column(job.set, folder, DONOR[job.set])[fit_rows] if job.split == DONORS else None
    is_known = np.bincount(fit.y, minlength=len(data.y))[data.y[new_rows]] >= FEW_CELLS
    for batch in [None] if donor is None or len(set(donor)) == 1 else [None, donor]:
        model = fit_vcc(fit, data.n_classes, job.seed, batch)
        alone, pooled = novelties(model, fit, data.X[new_rows], job.seed)
        found = {"unassigned": np.mean(pooled > LIMIT), "quartile": np.quantile(alone, 0.25)}
        found |= {"lost": np.mean(pooled[is_known] > LIMIT)}
        values = {name: round(float(value), 4) for name, value in found.items()}
        method = "novelty" if batch is None else "novelty, with batches"
        rows.append({"method": method, "item": "new", "n": len(new_rows)} | values)
    return rows


def times(job: Job, folder: Path) -> Rows:
    """Seconds to label 100,000 cells, the new ones repeated, after a first use on a few."""
    fit_rows, new_rows = split_rows(job, folder)
    data = load(job.set, folder, fit_rows)
    fit, rows = data.rows(fit_rows), []
    model = fit_vcc(fit, data.n_classes, job.seed)
    for size in (500, MANY):
        new = data.rows(np.resize(new_rows, size))
        for method, carry in carriers(model, fit, new).items():
            clock = Clock()
            carry()
            if size == MANY:
                rows.append({"method": method, "item": "new", "n": size} | clock.read())
        clock = Clock()
        model.novelty(new.X)
    return [*rows, {"method": "novelty", "item": "new", "n": size} | clock.read()]


# ---------------------------------------------------------------------------------------------------- the run


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.newcells", description=__doc__.splitlines()[0])
    parser.add_argument(
        "experiment", nargs="*", default="all", choices=["all", "transfer", "again", "unseen", "shift", "time"]
    )
    parser.add_argument("--sets", nargs="+", choices=list(SETS), help="only these data sets")
    parser.add_argument("--splits", nargs="+", help="only these ways to split the rows, such as half")
    parser.add_argument("--seeds", nargs="+", type=int, help="these seeds (default: 1 to 5, by experiment)")
    parser.add_argument("--data", help="folder of the data sets (default: $SCVCC_DATA, then ../shared/data)")
    parser.add_argument("--out", type=Path, default=RESULTS / "newcells.csv", help="CSV file that collects the results")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=3600, help="processor seconds that a thread may use")
    parser.add_argument("--again", action="store_true", help="run again what was measured at another commit")
    return parser.parse_args(arguments)


def choose(args: argparse.Namespace) -> list[Job]:
    return [
        job
        for job in jobs(args.seeds)
        if ("all" in args.experiment or job.experiment in args.experiment)
        and job.set in (args.sets or SETS)
        and job.split in (args.splits or [job.split])
    ]


def still_to_do(wanted: list[Job], rows: list[dict[str, str]]) -> list[Job]:
    done = {tuple(row[name] for name in KEY) for row in rows if row["status"] == "ok"}
    return [job for job in wanted if tuple(map(str, asdict(job).values())) not in done]


def main() -> None:
    args = parse()
    folder, here = data_folder(args.data), circumstances(args.threads)
    wanted = choose(args)
    here_sets = present(dict.fromkeys(job.set for job in wanted), folder)
    rows = [row for row in read_rows(args.out) if not args.again or row["commit"] == here["commit"]]
    todo = [job for job in still_to_do(wanted, rows) if job.set in here_sets]
    prepare(args.threads)
    for job in tqdm(todo, unit="run", smoothing=0):
        found = in_process(measure, {"job": asdict(job), "data": str(folder)}, args.timeout * args.threads)
        append(args.out, COLUMNS, [here | asdict(job) | row for row in found])
        for row in found:
            if row["status"] != "ok":
                tqdm.write(f"{job}: {row['status']}")


if __name__ == "__main__":
    main()
