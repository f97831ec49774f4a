"""Where the time of a fit goes, stage by stage: `python -m benchmarks.profile mnist mnist_test ifnb --threads 2`.

Each set is fitted several times, each time in a process of its own, after a warm-up that compiles. The time of a stage
excludes the stages it calls. For the network's stages, `gflop` is the arithmetic per second, and `of_mm` its share of what
plain `torch.mm` of the same shapes reaches with as many threads, measured right after. Both are by the clock on the wall, since
a thread that waits for another one uses the processor too: run it on a machine that does nothing else. Results go to
`benchmarks/results/profile.csv`.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from .data import CELLS, data_folder, load
from .process import RESULTS, Rows, append, circumstances, in_process, prepare
from .speed import warm_up

COLUMNS = tuple(
    "set repeat n stage seconds cpu_seconds share gflop of_mm status threads versions commit machine".split()
)
# stage of the table, by module and function; what no stage claims is "other"
STAGES = {
    "_model.neighbors.search_space": "graph: search space",
    "_model.neighbors.neighbor_distances": "graph: neighbor search",
    "_training.graph.latent_graph": "graph: weights",
    "_training.run.Gauge": "losses for the history",
    "_training.layout.spectral_start": "spectral start",
    "_training.recipe.optimize_structure": "structure",
    "_training.recipe.find_clusters": "clusters",
    "_training.recipe.place_clusters": "map: start",
    "_training.recipe.optimize_map": "map",
    "_training.recipe.fit_encoder": "encoder",
    "_training.recipe.train_jointly": "joint",
    "_training.recipe.encode": "output",
    "_model.vcc.calibrate_sharpness": "confidence",
    "_model.vcc.components": "components for support",
    "_model.vcc.support_of": "support",
    "_model.vcc.sample_of_all": "novelty",
    "_model.vcc.grown": "tree",
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
    watch, before = Stopwatch(), []
    for name, stage in STAGES.items():
        module, _, function = name.rpartition(".")
        home = import_module(f"scvcc.{module}")
        before.append((home, function, getattr(home, function)))
        setattr(home, function, watch.timed(stage, getattr(home, function)))
    try:
        yield watch
    finally:
        watch._note()
        for home, function, original in before:
            setattr(home, function, original)


def trained_flops(sizes: list[int], rows: int) -> float:
    """Multiplications and additions of forward and backward: 6 per weight and row, 4 in the first layer."""
    weights = [a * b for a, b in zip(sizes, sizes[1:], strict=False)]
    return float(rows) * (6 * sum(weights) - 2 * weights[0])


def plain_products(sizes: list[int], batch: int, dtype: Any, seconds: float = 2.0) -> float:
    """FLOP per second of `torch.mm` on the products of a training step: forward and both gradients."""
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

    from scvcc import VCC
    from scvcc._training.fitting import has_fast_bfloat16

    data, threads = load(task["set"], Path(task["data"])), task["threads"]
    model = VCC(data.n_classes, n_jobs=threads, random_state=0)
    graph = data.graph if data.kind == CELLS else None  # cells come with a graph, as in tl.vcc
    warm_up(threads)
    with watched() as watch:
        model.fit(data.X, graph=graph)
    torch.set_num_threads(threads)
    sizes = [data.X.shape[1], *model.hidden, model.latent_dim]
    steps = pd.DataFrame(model.history_).groupby("stage").step.max()
    fast = torch.bfloat16 if has_fast_bfloat16(torch.device("cpu")) else torch.float32
    reached = {dtype: plain_products(sizes, model.batch_size, dtype) for dtype in (torch.float32, fast)}
    rows: Rows = [{"stage": f"torch.mm, {str(d).removeprefix('torch.')}", "gflop": f} for d, f in reached.items()]
    total = np.sum(list(watch.spent.values()), axis=0)
    for stage, spent in [*watch.spent.items(), ("all", total)]:
        row = {"stage": stage, "seconds": spent[0], "cpu_seconds": spent[1], "share": spent[0] / total[0]}
        if stage in NETWORK and stage in steps:
            row["gflop"] = trained_flops(sizes, int(steps[stage]) * model.batch_size) / spent[0]
            row["of_mm"] = row["gflop"] / reached[fast]
        rows.append(row)
    scale = {"gflop": 1e-9}
    tidy = [{k: v if isinstance(v, str) else round(v * scale.get(k, 1), 4) for k, v in row.items()} for row in rows]
    return [{"n": len(data.y)} | row for row in tidy]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.profile", description=__doc__.splitlines()[0])
    parser.add_argument("sets", nargs="*", default=["mnist", "mnist_test", "ifnb"])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=1800, help="seconds")
    parser.add_argument("--data", help="folder of the data sets (default: $SCVCC_DATA, then ../shared/data)")
    parser.add_argument("--out", type=Path, default=RESULTS / "profile.csv")
    args = parser.parse_args()
    prepare(args.threads)
    here = circumstances(args.threads)
    for name, repeat in product(args.sets, range(args.repeats)):
        task = {"set": name, "threads": args.threads, "data": str(data_folder(args.data))}
        key = {"set": name, "repeat": repeat}
        rows = [here | key | row for row in in_process(measure, task, args.timeout * args.threads)]
        append(args.out, COLUMNS, [{column: row.get(column) for column in COLUMNS} for row in rows])
        shown = ["n", "stage", "seconds", "cpu_seconds", "share", "gflop", "of_mm", "status"]
        print(name, pd.DataFrame(rows).reindex(columns=shown).to_string(index=False), sep="\n")


if __name__ == "__main__":
    main()
