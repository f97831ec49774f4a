"""What more cells cost: `python -m benchmarks.scale 100000 1000000 5000000 [--sketch 10000] [--workers 2] [--label]`.

Cells of 30 types, 50 components each, are generated into a zarr folder, which `read_lazy` opens: they are never in memory
at once. VCC is fitted on a sketch and labels all cells; with `--label` it is fitted on the first 50,000 cells and labels all.
With `--workers`, dask does this on a `LocalCluster` of so many processes, for which `distributed` has to be installed.
Results go to `benchmarks/results/scale.csv`.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from .process import RESULTS, Rows, append, circumstances, in_process, peak_mb, prepare

COLUMNS = tuple(
    "n sketch workers step seconds cpu_seconds peak_mb worker_cpu_seconds worker_peak_mb equal ari status "
    "threads versions commit machine".split()
)
TYPES, COMPONENTS, CHUNK, PART = 30, 50, 50_000, 20_000


def some_cells(first: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Cells and their types, always the same for a chunk; the rarest type is a hundredth of the commonest."""
    centers = 3 * np.random.default_rng(0).normal(size=(TYPES, COMPONENTS)) / np.sqrt(1 + np.arange(COMPONENTS))
    rng = np.random.default_rng([1, first])
    share = np.geomspace(1, 0.01, TYPES)
    y = rng.choice(TYPES, size, p=share / share.sum())
    noise = rng.standard_normal((size, COMPONENTS), dtype=np.float32) / np.sqrt(1 + np.arange(COMPONENTS))
    return (centers[y] + noise).astype(np.float32), y


def generate(path: Path, n: int) -> None:
    """Write `n` cells, chunk by chunk."""
    import anndata as ad
    import dask.array as da
    import pandas as pd

    def block(block_info: Any) -> np.ndarray:
        (first, end), _ = block_info[None]["array-location"]
        return some_cells(first, end - first)[0]

    sizes = [min(CHUNK, n - first) for first in range(0, n, CHUNK)]
    X = da.map_blocks(block, chunks=(tuple(sizes), (COMPONENTS,)), dtype=np.float32, meta=np.empty((0, 0), np.float32))
    ad.AnnData(obs=pd.DataFrame(index=pd.RangeIndex(n).astype(str)), obsm={"X_pca": X}).write_zarr(path)


def measure(task: dict[str, Any]) -> Rows:
    from anndata.experimental import read_lazy

    from scvcc import VCC

    n, workers, path = task["n"], task["workers"], Path(task["path"])
    with ExitStack() as stack:
        stack.enter_context(threadpool_limits(1))
        client = _cluster(stack, workers)
        X = read_lazy(path).obsm["X_pca"]
        model = VCC(TYPES, max_train_cells=task["sketch"])
        fit = _timed(lambda: model.fit(X[:CHUNK] if task["label"] else X), client)
        labels: list[np.ndarray] = []
        predict = _timed(lambda: labels.append(model.predict(X).compute()), client)
    part = X[:PART].compute(scheduler="synchronous")
    there = model.predict_proba(X)[:PART].compute(scheduler="synchronous")
    equal = bool((labels[0][:PART] == model.predict(part)).all() and (there == model.predict_proba(part)).all())
    truth = np.concatenate([some_cells(first, min(CHUNK, n - first))[1] for first in range(0, n, CHUNK)])
    from sklearn.metrics import adjusted_rand_score

    equal = equal and bool((labels[0][: len(model.labels_)] == model.labels_).all())
    quality = {"equal": equal, "ari": round(adjusted_rand_score(truth, labels[0]), 4)}
    fit_of = "fit of a part" if task["label"] else "fit"
    return [{"step": fit_of, **fit, **quality}, {"step": "predict", **predict, **quality}]


def _cluster(stack: ExitStack, workers: int) -> Any:
    """A client of so many processes of one thread each; None, and one thread of dask, without workers."""
    if workers == 0:
        import dask

        stack.enter_context(dask.config.set(scheduler="synchronous"))
        return None
    from distributed import Client, LocalCluster

    cluster = stack.enter_context(LocalCluster(workers, threads_per_worker=1, memory_limit=0, dashboard_address=None))
    return stack.enter_context(Client(cluster))


def _timed(work: Callable[[], Any], client: Any) -> dict[str, float]:
    """Seconds and peak memory of this process and, in the mean and at most, of the workers."""
    before, cpu, start = _of_workers(client), time.process_time(), time.perf_counter()
    work()
    row = {"seconds": time.perf_counter() - start, "cpu_seconds": time.process_time() - cpu, "peak_mb": peak_mb()}
    if client is None:
        return row
    used = _of_workers(client) - before
    return {**row, "worker_cpu_seconds": used[:, 0].sum(), "worker_peak_mb": (before + used)[:, 1].max()}


def _of_workers(client: Any) -> np.ndarray:
    """Processor seconds and peak MB of each worker."""
    if client is None:
        return np.zeros((0, 2))
    used = client.run(lambda: resource.getrusage(resource.RUSAGE_SELF)).values()
    return np.array([[u.ru_utime + u.ru_stime, u.ru_maxrss / 1024] for u in used])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cells", type=int, nargs="+")
    parser.add_argument("--sketch", type=int, default=100_000, help="cells to train on")
    parser.add_argument("--workers", type=int, default=0, help="processes of a LocalCluster; 0: none")
    parser.add_argument("--label", action="store_true", help="fit the first 50,000 cells only")
    parser.add_argument("--folder", type=Path, help="where the cells are kept; a folder that is removed if left out")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    prepare(1)
    with tempfile.TemporaryDirectory() as temporary:
        for n in options.cells:
            path = (options.folder or Path(temporary)) / f"cells_{n}.zarr"
            if not path.exists():
                generate(path, n)
            task = {
                "n": n,
                "sketch": options.sketch,
                "workers": options.workers,
                "label": options.label,
                "path": str(path),
            }
            for row in in_process(measure, task, 3600):
                row = {**task, **row, **circumstances(1)}
                kept = {name: row[name] for name in COLUMNS if name in row}
                append(RESULTS / "scale.csv", COLUMNS, [kept])
                print(dict(list(kept.items())[:12]), flush=True)


if __name__ == "__main__":
    main()
