"""Time and memory as ratios within one run: `python -m benchmarks.speed mnist ifnb --threads 2`.

Every figure is the median of repeated measurements, each in a process of its own, the contestants taking turns. Imports
and compilation are over before the clock starts, except in the cases "import" and "demo". Results go to
`benchmarks/results/speed.csv`. Run it on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from tqdm import tqdm

from .data import CELLS, Data, data_folder, load
from .methods import kmeans, leiden
from .process import RESULTS, Clock, Rows, append, circumstances, in_process, prepare

COLUMNS = tuple(
    "case method n repeat status seconds cpu_seconds peak_mb base_mb nmi threads versions commit machine".split()
)
GROWTH = (25_000, 50_000, 100_000, 200_000)
# contestants of each case, ours first, and the ratio of ours to the other that is aimed at
CASES: dict[str, tuple[str, ...]] = {
    "mnist": ("vcc", "umap_kmeans"),
    "ifnb": ("tl_vcc", "umap_leiden"),
    "naive": ("vcc", "paper"),
    **{f"cells_{n}": ("vcc", "umap_kmeans", "leiden") for n in GROWTH},
    "million": ("vcc",),
    "demo": ("tl_vcc",),
    "import": ("scvcc",),
}
GOALS = {"mnist": 0.8, "ifnb": 0.8, "naive": 0.1}
N_CLUSTERS = {"mnist": 10, "naive": 10}  # cells: 8, the types of the set they are drawn from


def simulated_cells(n: int, folder: Path) -> Data:
    """Cells between real ones: a point drawn on the line from a cell of ifnb to one of its 15 nearest neighbors."""
    real, rng = load("ifnb", folder), np.random.default_rng(0)
    first = rng.integers(len(real.y), size=n)
    second = real.neighbors[0][first, rng.integers(1, real.n_neighbors + 1, size=n)]
    share = rng.random((n, 1), dtype=np.float32)
    X = real.X[first] + share * (real.X[second] - real.X[first])
    return Data(X, np.where(share[:, 0] < 0.5, real.y[first], real.y[second]), CELLS)


def case_data(case: str, folder: Path) -> Data:
    if case.startswith("cells") or case == "million":
        return simulated_cells(1_000_000 if case == "million" else int(case.split("_")[1]), folder)
    return load({"naive": "mnist_test"}.get(case, case), folder)


# ---------------------------------------------------------------------------------------------------- contestants


def vcc(data: Data, k: int, threads: int, **options: Any) -> np.ndarray:
    from scvcc import VCC

    return VCC(k, n_jobs=threads, random_state=0, **options).fit(data.X).labels_


def umap_kmeans(data: Data, k: int, threads: int) -> np.ndarray:
    """umap-learn in its fastest mode, without a seed and in parallel, on the same 50 components."""
    import umap

    H = umap.UMAP(n_neighbors=data.n_neighbors, n_jobs=threads).fit_transform(data.features)
    return kmeans(Data(H, data.y, CELLS), k, 0)


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
    "paper": lambda data, k, threads: vcc(data, k, threads, objective="paper"),
    "umap_kmeans": umap_kmeans,
    "leiden": lambda data, k, threads: leiden(data, None, 0),
    "tl_vcc": tl_vcc,
    "umap_leiden": umap_leiden,
}


def measure(task: dict[str, Any]) -> Rows:
    from scvcc.metrics import nmi

    case, threads, run = task["case"], task["threads"], CONTESTANTS[task["method"]]
    if case == "demo":
        import scanpy as sc

        adata = sc.datasets.pbmc68k_reduced()
        clock = Clock()
        labels = run(adata, None, threads)
        return [{"n": adata.n_obs, "nmi": round(nmi(adata.obs["bulk_labels"], labels), 4)} | clock.read()]
    data = case_data(case, Path(task["data"]))
    if task["method"] != "paper":
        run(_subject(case, data.rows(np.arange(0, len(data.y), len(data.y) // 500))), 4, threads)
    subject = _subject(case, data)
    clock = Clock()
    labels = run(subject, N_CLUSTERS.get(case, 8), threads)
    return [{"n": len(data.y), "nmi": round(nmi(data.y, labels), 4)} | clock.read()]


def _subject(case: str, data: Data) -> Any:
    """What the contestants get: for ifnb an AnnData with its graph, else the matrix."""
    if case != "ifnb":
        return data
    import anndata as ad
    import scanpy as sc

    adata = ad.AnnData(data.X, obsm={"X_pca": data.X})
    sc.pp.neighbors(adata, n_neighbors=data.n_neighbors, use_rep="X_pca")
    return adata


def import_time() -> float:
    """Seconds that `import scvcc` takes when anndata is imported already."""
    code = "import time, anndata; t = time.perf_counter(); import scvcc; print(time.perf_counter() - t)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return float(done.stdout)


# ---------------------------------------------------------------------------------------------------- the run


def ratios(rows: pd.DataFrame) -> pd.DataFrame:
    """Medians of each contestant, and of ours over each other, by case."""
    ok = rows[rows.status == "ok"]
    columns = ["n", "seconds", "cpu_seconds", "peak_mb", "base_mb", "nmi"]
    table = ok.groupby(["case", "method"], sort=False)[columns].median().reset_index()
    first = ~table.case.duplicated()
    ours = table[first].set_index("case").seconds
    return table.assign(ratio=(table.case.map(ours) / table.seconds).mask(first))


def exponent(table: pd.DataFrame, method: str) -> float:
    """Slope of log time against log n over the growing sets."""
    mine = table[table.case.str.startswith("cells_") & (table.method == method)]
    return float(np.polyfit(np.log(mine.n), np.log(mine.seconds), 1)[0]) if len(mine) > 1 else float("nan")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed", description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", help=f"of {', '.join(CASES)} (default: all but million)")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=1800, help="seconds")
    parser.add_argument("--data", help="folder of the data sets (default: $SCVCC_DATA, then ../shared/data)")
    parser.add_argument("--out", type=Path, default=RESULTS / "speed.csv")
    parser.add_argument("--check", action="store_true", help="fail if a ratio is above its goal")
    args = parser.parse_args()
    cases = args.cases or [case for case in CASES if case != "million"]
    prepare(args.threads)
    here = circumstances(args.threads)
    tasks = [(case, i, method) for case in cases for i in range(args.repeats) for method in CASES[case]]
    rows: Rows = []
    for case, repeat, method in tqdm(tasks, unit="run"):
        task = {"case": case, "method": method, "threads": args.threads, "data": str(data_folder(args.data))}
        if case == "import":
            found: Rows = [{"status": "ok", "seconds": round(import_time(), 3)}]
        else:
            found = in_process(measure, task, args.timeout * args.threads)
        new = [here | {"case": case, "method": method, "repeat": repeat} | row for row in found]
        append(args.out, COLUMNS, new)
        rows += new
    table = ratios(pd.DataFrame(rows).reindex(columns=COLUMNS))
    print(table.to_string(index=False, float_format="%.3g"))
    missed = [case for case, goal in GOALS.items() if (table[table.case == case].ratio > goal).any()]
    if args.check and missed:
        sys.exit(f"slower than the goal: {', '.join(missed)}")


if __name__ == "__main__":
    main()
