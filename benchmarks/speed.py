"""Time and memory as ratios within one run: `python -m benchmarks.speed mnist ifnb --threads 2`.

Every figure is the median of repeated measurements, each in a process of its own, the contestants taking turns. Imports
and compilation are over before the clock starts, except in the cases "import" and "start". The cells of the growing sets
are simulated: points drawn between real cells. Results go to `benchmarks/results/speed.csv`. Run it on a machine that
does nothing else; `--check` then fails where a goal is missed. `make bench-goals` runs the cases that have another method
as their goal, in about a quarter of an hour.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
from tqdm import tqdm

from .data import CELLS, Data, data_folder, load
from .methods import kmeans, leiden
from .process import RESULTS, Clock, Rows, append, circumstances, forget_peak, in_process, prepare

COLUMNS = tuple(
    "case method n repeat status seconds cpu_seconds peak_mb base_mb nmi ari threads versions commit machine".split()
)
GROWTH = (25_000, 50_000, 100_000, 200_000, 400_000)
MILLION = 1_000_000
# contestants of each case, ours first
CASES: dict[str, tuple[str, ...]] = {
    "mnist": ("vcc", "umap_kmeans", "umap_pixels"),
    "ifnb": ("tl_vcc", "umap_leiden"),
    "pbmc3k": ("tl_vcc", "umap_leiden"),
    "types_200": ("tl_vcc", "umap_leiden"),
    "naive": ("vcc", "naive"),
    **{f"cells_{n}": ("vcc", "vcc_whole", "umap_kmeans", "leiden") for n in GROWTH},
    "million": ("vcc",),
    "start": ("warm", "cold"),
    "import": ("scvcc",),
}
WITH_GRAPH = ("ifnb", "pbmc3k", "types_200")  # stored in AnnData before the clock starts
# what is aimed at: our time over the other's, or a limit of our own
GOALS = {"mnist": 0.45, "ifnb": 0.35, "pbmc3k": 0.5, "types_200": 0.8, "naive": 0.1}
LIMITS = {"exponent": 1.05, "memory_exponent": 1.0, "million_seconds": 20, "million_mb": 4096}
LIMITS |= {"import_seconds": 1, "warm_seconds": 3, "cold_seconds": 10}
N_CLUSTERS = {
    "mnist": 10,
    "naive": 10,
    "types_200": 200,
}  # others: 8, the types of ifnb, also where cells are drawn from it
WARM_ROWS = 17_000  # above what VCC and UMAP search exactly


def simulated_cells(n: int, folder: Path) -> Data:
    """Cells between real ones: a point drawn on the line from a cell of ifnb to one of its 15 nearest neighbors."""
    real, rng = load("ifnb", folder), np.random.default_rng(0)
    first = rng.integers(len(real.y), size=n)
    second = real.neighbors[0][first, rng.integers(1, real.n_neighbors + 1, size=n)]
    share = rng.random((n, 1), dtype=np.float32)
    X = real.X[first] + share * (real.X[second] - real.X[first])
    return Data(X, np.where(share[:, 0] < 0.5, real.y[first], real.y[second]), CELLS)


def simulated_types(n: int = 20_000, n_types: int = 200) -> Data:
    """Gaussian types in 50 dimensions, spread along them as unevenly as along principal components."""
    rng = np.random.default_rng(0)
    places = rng.normal(size=(n_types, 50)) * np.geomspace(3, 0.3, 50)
    y = rng.integers(n_types, size=n)
    return Data((places[y] + rng.normal(size=(n, 50))).astype(np.float32), y, CELLS)


def case_data(case: str, folder: Path) -> Data:
    if case == "types_200":
        return simulated_types()
    if case.startswith("cells") or case == "million":
        return simulated_cells(MILLION if case == "million" else int(case.split("_")[1]), folder)
    return load({"naive": "mnist_test"}.get(case, case), folder)


# ---------------------------------------------------------------------------------------------------- contestants


def vcc(data: Data, k: int, threads: int, **options: Any) -> np.ndarray:
    from scvcc import VCC

    return VCC(k, n_jobs=threads, random_state=0, **options).fit(data.X).labels_


def naive(data: Data, k: int, threads: int) -> np.ndarray:
    """The paper's objective with both ends of every edge encoded, in batches of 200 edges, in single precision."""
    from types import SimpleNamespace

    from scvcc._training import paper as _paper

    # the package encodes a point once for all its edges in a batch; without np.unique, once for each
    each_end = {"unique": lambda points, return_inverse: (points, np.arange(len(points)))}
    _paper.np = SimpleNamespace(**{**vars(np), **each_end})  # in this process, which measures nothing else
    return vcc(data, k, threads, objective="paper")


def umap_kmeans(data: Data, k: int, threads: int) -> np.ndarray:
    """umap-learn in its fastest mode, without a seed and in parallel, on the same 50 components."""
    import umap

    H = umap.UMAP(n_neighbors=data.n_neighbors, n_jobs=threads).fit_transform(data.features)
    return kmeans(Data(H, data.y, CELLS), k, 0)


def umap_pixels(data: Data, k: int, threads: int) -> np.ndarray:
    """The same on the 784 pixels themselves."""
    return umap_kmeans(Data(data.X, data.y, CELLS), k, threads)


def tl_vcc(adata: Any, k: int, threads: int) -> np.ndarray:
    import scvcc

    scvcc.tl.vcc(adata, k, n_jobs=threads)
    return adata.obs["vcc"].to_numpy()


def umap_leiden(adata: Any, k: int, threads: int) -> np.ndarray:
    import scanpy as sc

    sc.tl.umap(adata)
    sc.tl.leiden(adata, flavor="igraph", n_iterations=2, directed=False)
    return adata.obs["leiden"].to_numpy()


CONTESTANTS = {
    "vcc": vcc,
    "vcc_whole": lambda data, k, threads: vcc(data, k, threads, max_train_cells=None),
    "naive": naive,
    "umap_kmeans": umap_kmeans,
    "umap_pixels": umap_pixels,
    "leiden": lambda data, k, threads: leiden(data, None, 0),
    "tl_vcc": tl_vcc,
    "umap_leiden": umap_leiden,
}


# ---------------------------------------------------------------------------------------------------- measuring


def warm_up(threads: int, *, others: bool = False) -> None:
    """Compile what a fit needs, both neighbor searches included; with `others`, what UMAP and Leiden need too."""
    from scvcc import VCC

    rng = np.random.default_rng(0)
    X = rng.normal(size=(WARM_ROWS, 50)).astype(np.float32) + 4 * rng.integers(4, size=(WARM_ROWS, 1))
    for n in (600, WARM_ROWS):
        VCC(4, hidden=(8,), epochs=1, n_jobs=threads).fit(X[:n])
    if others:
        import umap

        umap.UMAP(n_epochs=5, n_jobs=threads).fit(X)
        adata = _with_graph(Data(X[:600], np.zeros(600, int), CELLS))
        umap_leiden(adata, 4, threads)
        leiden(Data(X[:600], np.zeros(600, int), CELLS), None, 0)


def measure(task: dict[str, Any]) -> Rows:
    from scvcc.metrics import ari, nmi

    case, threads, run = task["case"], task["threads"], CONTESTANTS[task["method"]]
    data = case_data(case, Path(task["data"]))
    warm_up(threads, others=not task["method"].startswith(("vcc", "naive", "tl_vcc")))
    subject = _with_graph(data) if case in WITH_GRAPH else Data(data.X, data.y, data.kind)  # without what is cached
    base = {"base_mb": forget_peak()}  # libraries, compiled code and the data
    clock = Clock()
    labels = run(subject, N_CLUSTERS.get(case, 8), threads)
    spent = clock.read()
    scores = {name: round(score(data.y, labels), 4) for name, score in (("nmi", nmi), ("ari", ari))}
    return [{"n": len(data.y)} | scores | base | spent]


def _with_graph(data: Data) -> Any:
    import anndata as ad
    import scanpy as sc

    adata = ad.AnnData(data.X, obsm={"X_pca": data.X})
    sc.pp.neighbors(adata, n_neighbors=data.n_neighbors, use_rep="X_pca")
    return adata


def timed_alone(code: str, **environment: str) -> dict[str, Any]:
    """A row with the seconds that a line takes in a process of its own, where anndata is imported already."""
    program = f"import time, anndata; t = time.perf_counter(); {code}; print(time.perf_counter() - t)"
    command = [sys.executable, "-W", "ignore", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, **environment})
    return {"status": "ok", "seconds": round(float(done.stdout.split()[-1]), 3)}


def fresh(method: str) -> dict[str, Any]:
    """A row of the cases that need a fresh process: importing, and a first call with compiled code on disk or without."""
    if method == "scvcc":
        return timed_alone("import scvcc")
    data = "import scanpy, scvcc; adata = scanpy.datasets.pbmc68k_reduced(); t = time.perf_counter()"
    first_call = f"{data}; scvcc.tl.vcc(adata)"
    if method == "warm":
        return timed_alone(first_call)
    with TemporaryDirectory() as empty:
        return timed_alone(first_call, NUMBA_CACHE_DIR=empty)


# ---------------------------------------------------------------------------------------------------- the run


def latest(rows: pd.DataFrame) -> pd.DataFrame:
    """The last measurement of each repeat."""
    return rows.drop_duplicates(["case", "method", "repeat"], keep="last")


def ratios(rows: pd.DataFrame) -> pd.DataFrame:
    """Medians of each contestant, and of ours over each other, by case."""
    ok = latest(rows)
    ok = ok[ok.status == "ok"]
    columns = ["n", "seconds", "cpu_seconds", "peak_mb", "base_mb", "nmi", "ari"]
    table = ok.groupby(["case", "method"], sort=False)[columns].median().reset_index()
    order = {case: i for i, case in enumerate(CASES)}
    table = table.sort_values("case", key=lambda case: case.map(order), kind="stable", ignore_index=True)
    ours = {case: methods[0] for case, methods in CASES.items()}
    first = table.method == table.case.map(ours)
    seconds = table[first].set_index("case").seconds
    return table.assign(ratio=(table.case.map(seconds) / table.seconds).mask(first))


def exponent(table: pd.DataFrame, method: str, column: str = "seconds") -> float:
    """Slope of log time, or log memory, against log n over the growing sets."""
    mine = table[table.case.str.startswith("cells_") & (table.method == method)]
    values = mine.peak_mb - mine.base_mb if column == "mb" else mine[column]
    fits = (values > 0).to_numpy()
    return float(np.polyfit(np.log(mine.n[fits]), np.log(values[fits]), 1)[0]) if fits.sum() > 1 else float("nan")


def verdicts(table: pd.DataFrame) -> dict[str, tuple[float, float]]:
    """What was measured and what is aimed at, by goal; NaN where it was not measured."""

    def ours(case: str, column: str, contestant: int = 0) -> float:
        found = table[(table.case == case) & (table.method == CASES[case][contestant])]
        return float(found[column].iloc[0]) if len(found) else float("nan")

    found = {f"{case}, ratio": (float(table[table.case == case].ratio.max()), goal) for case, goal in GOALS.items()}
    return found | {
        "growth of time, exponent": (exponent(table, "vcc"), LIMITS["exponent"]),
        "growth of time without a sketch, exponent": (exponent(table, "vcc_whole"), LIMITS["exponent"]),
        "growth of memory without a sketch, exponent": (exponent(table, "vcc_whole", "mb"), LIMITS["memory_exponent"]),
        "million, seconds": (ours("million", "seconds"), LIMITS["million_seconds"]),
        "million, MB beyond the data": (ours("million", "peak_mb") - ours("million", "base_mb"), LIMITS["million_mb"]),
        "import, seconds": (ours("import", "seconds"), LIMITS["import_seconds"]),
        "first call, seconds": (ours("start", "seconds"), LIMITS["warm_seconds"]),
        "first call without compiled code, seconds": (ours("start", "seconds", 1), LIMITS["cold_seconds"]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed", description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", help=f"of {', '.join(CASES)} (default: all)")
    parser.add_argument("--methods", nargs="*", help="contestants (default: all of a case)")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=3600, help="seconds")
    parser.add_argument("--data", help="folder of the data sets (default: $SCVCC_DATA, then ../shared/data)")
    parser.add_argument("--out", type=Path, default=RESULTS / "speed.csv")
    parser.add_argument("--check", action="store_true", help="fail if something is slower or larger than its goal")
    args = parser.parse_args()
    unknown = set(args.cases) - set(CASES)
    if unknown:
        parser.error(f"unknown cases: {', '.join(sorted(unknown))}")
    prepare(args.threads)
    here = circumstances(args.threads)
    tasks = [
        (case, repeat, method)
        for case in args.cases or CASES
        for repeat in range(args.repeats)
        for method in CASES[case]
        if not args.methods or method in args.methods
    ]
    rows: Rows = []
    for case, repeat, method in tqdm(tasks, unit="run"):
        task = {"case": case, "method": method, "threads": args.threads, "data": str(data_folder(args.data))}
        if case in ("import", "start"):
            found: Rows = [fresh(method)]
        else:
            found = in_process(measure, task, args.timeout * args.threads)
        new = [here | {"case": case, "method": method, "repeat": repeat} | row for row in found]
        append(args.out, COLUMNS, new)
        rows += new
    table = ratios(pd.DataFrame(rows).reindex(columns=COLUMNS))
    print(table.to_string(index=False, float_format="%.3g"))
    missed = [f"{name} {value:.3g} > {goal}" for name, (value, goal) in verdicts(table).items() if value > goal]
    if args.check and missed:
        sys.exit(f"missed: {'; '.join(missed)}")


if __name__ == "__main__":
    main()
