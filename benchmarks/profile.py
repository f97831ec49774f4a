"""Where the time of a fit goes, stage by stage: `python -m benchmarks.profile mnist mnist_test ifnb --threads 2`.

Each set is fitted in a process of its own, after a warm-up that compiles. The time of a stage excludes the stages it
calls. The network's stages are also given as FLOP/s beside plain `torch.mm` of the same shapes, measured right after.
Results go to `benchmarks/results/profile.csv`. Run it on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from .data import CELLS, data_folder, load
from .process import RESULTS, Rows, append, circumstances, in_process, prepare

COLUMNS = tuple("set n stage seconds cpu_seconds share gflop_s peak_share status threads versions commit machine".split())
# stage of the table, by module and function; what no stage claims is "other"
STAGES = {
    "_graph.search_space": "graph: search space",
    "_graph.neighbor_distances": "graph: neighbor search",
    "_graph.latent_graph": "graph: weights",
    "_train.Gauge": "losses for the history",
    "_train.spectral_start": "spectral start",
    "_train.optimize_structure": "structure",
    "_train.find_clusters": "clusters",
    "_train.place_clusters": "map: start",
    "_train.optimize_map": "map",
    "_train.fit_encoder": "encoder",
    "_train.train_jointly": "joint",
    "_train.encode": "output",
    "_labels.calibrate_sharpness": "output",
}
NETWORK = ("encoder", "joint")


class Stopwatch:
    """Wall-clock and processor time by stage; a stage is paused while another one runs inside it."""

    def __init__(self) -> None:
        self.spent: dict[str, np.ndarray] = defaultdict(lambda: np.zeros(2))
        self._running = ["other"]
        self._since = self._now()

    @staticmethod
    def _now() -> np.ndarray:
        return np.array([time.perf_counter(), time.process_time()])

    def _note(self) -> None:
        now = self._now()
        self.spent[self._running[-1]] += now - self._since
        self._since = now

    def timed(self, stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function, updated=())
        def run(*args: Any, **kwargs: Any) -> Any:
            self._note()
            self._running.append(stage)
            try:
                return function(*args, **kwargs)
            finally:
                self._note()
                self._running.pop()

        return run


@contextmanager
def watched() -> Iterator[Stopwatch]:
    """A stopwatch on all stages of every fit inside the block."""
    import scvcc._estimator
    import scvcc._train

    watch, before = Stopwatch(), {}
    for name, stage in STAGES.items():
        module, function = name.split(".")
        home = getattr(scvcc, module)
        before[name] = getattr(home, function)
        setattr(home, function, watch.timed(stage, before[name]))
    try:
        yield watch
    finally:
        watch._note()
        for name, function in before.items():
            module, attribute = name.split(".")
            setattr(getattr(scvcc, module), attribute, function)


def trained_flops(sizes: list[int], rows: int) -> float:
    """Multiplications and additions of forward and backward: 6 per weight and row, 4 in the first layer."""
    weights = [a * b for a, b in zip(sizes, sizes[1:], strict=False)]
    return float(rows) * (6 * sum(weights) - 2 * weights[0])


def plain_products(sizes: list[int], batch: int, dtype: Any, seconds: float = 1.0) -> float:
    """FLOP/s of `torch.mm` on the products of one training step: forward, and both gradients of each layer."""
    import torch

    def matrix(rows: int, columns: int) -> torch.Tensor:
        return torch.rand(rows, columns, dtype=torch.float32).to(dtype)

    pairs = []
    for layer, (a, b) in enumerate(zip(sizes, sizes[1:], strict=False)):
        x, w, g = matrix(batch, a), matrix(b, a), matrix(batch, b)
        pairs += [(x, w.T), (g.T, x)] + ([(g, w)] if layer else [])
    steps, start = 0, None
    while start is None or time.perf_counter() - start < seconds:
        for left, right in pairs:
            torch.mm(left, right)
        if start is None:  # the first round warms up
            start = time.perf_counter()
        else:
            steps += 1
    return trained_flops(sizes, batch) * steps / (time.perf_counter() - start)


def measure(task: dict[str, Any]) -> Rows:
    import torch

    from scvcc import VCC, _encoder

    data = load(task["set"], Path(task["data"]))
    k, threads = data.n_classes, task["threads"]
    model = VCC(k, n_jobs=threads, random_state=0)
    graph = data.graph if data.kind == CELLS else None  # cells come with a graph, as in tl.vcc
    for n in (600, 20_000):  # compile both neighbor searches
        small = np.resize(np.arange(len(data.y)), n)
        VCC(4, n_jobs=threads, hidden=(8,), epochs=1).fit(
            data.X[small] + np.random.default_rng(0).normal(scale=0.01, size=(n, data.X.shape[1]))
        )
    with watched() as watch:
        model.fit(data.X, graph=graph)
    sizes = [data.X.shape[1], *model.hidden, model.latent_dim]
    steps = pd.DataFrame(model.history_).groupby("stage").step.max()
    torch.set_num_threads(threads)
    fast = torch.bfloat16 if _encoder.has_fast_bfloat16(torch.device("cpu")) else torch.float32
    reachable = {dtype: plain_products(sizes, model.batch_size, dtype) for dtype in (torch.float32, fast)}
    rows: Rows = [_row(f"torch.mm, {str(d).removeprefix('torch.')}", flops=f) for d, f in reachable.items()]
    total = sum(spent[0] for spent in watch.spent.values())
    for stage, spent in watch.spent.items():
        done = trained_flops(sizes, int(steps[stage]) * model.batch_size) / spent[0] if stage in NETWORK else None
        rows.append(_row(stage, spent, share=spent[0] / total, flops=done, reachable=reachable[fast]))
    rows.append(_row("all", np.sum(list(watch.spent.values()), axis=0), share=1.0))
    return [{"n": len(data.y)} | row for row in rows]


def _row(
    stage: str,
    spent: np.ndarray | None = None,
    *,
    share: float | None = None,
    flops: float | None = None,
    reachable: float | None = None,
) -> dict[str, Any]:
    seconds = {} if spent is None else {"seconds": round(float(spent[0]), 3), "cpu_seconds": round(float(spent[1]), 3)}
    rate = {} if flops is None else {"gflop_s": round(flops / 1e9, 1)}
    part = {} if flops is None or reachable is None else {"peak_share": round(flops / reachable, 3)}
    return {"stage": stage, "share": None if share is None else round(share, 4)} | seconds | rate | part


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.profile", description=__doc__.splitlines()[0])
    parser.add_argument("sets", nargs="*", default=["mnist", "mnist_test", "ifnb"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=1800, help="seconds")
    parser.add_argument("--data", help="folder of the data sets (default: $SCVCC_DATA, then ../shared/data)")
    parser.add_argument("--out", type=Path, default=RESULTS / "profile.csv")
    args = parser.parse_args()
    prepare(args.threads)
    here = circumstances(args.threads)
    for name in args.sets:
        task = {"set": name, "threads": args.threads, "data": str(data_folder(args.data))}
        rows = [here | {"set": name} | row for row in in_process(measure, task, args.timeout * args.threads)]
        append(args.out, COLUMNS, [{column: row.get(column) for column in COLUMNS} for row in rows])
        shown = ["n", "stage", "seconds", "cpu_seconds", "share", "gflop_s", "peak_share", "status"]
        print(name, pd.DataFrame(rows).reindex(columns=shown).to_string(index=False), sep="\n")


if __name__ == "__main__":
    main()
