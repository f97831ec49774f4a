"""What training reports: losses on a fixed sample, a history of records, a progress bar, and an error if a loss is not finite."""

import math
import sys
from collections.abc import Iterable, Mapping
from typing import Any, Self

import numpy as np
import scipy.sparse as sp
import torch
from numpy.random import Generator
from torch import Tensor
from tqdm.auto import tqdm

from scvcc._training.checkpoint import Arrays, as_bytes, from_bytes
from scvcc._training.losses import drawn_losses, self_training_loss, weighted_total
from scvcc._training.sampling import augmented_edges, draw_pairs
from scvcc._training.settings import Settings

LOSSES = ("boundary", "contraction", "expansion", "clustering", "anchor", "total")


class Monitor:
    """Collects the records of all stages and shows one progress bar over them."""

    def __init__(self, total_steps: int, *, show: bool) -> None:
        self._records: list[dict[str, Any]] = []
        self._labels: np.ndarray | None = None
        self._bar = tqdm(total=total_steps, disable=not (show and _is_watched()), desc="VCC", unit="step", leave=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.close()

    def advance(self, stage: str, steps: int = 1) -> None:
        """Move the bar on."""
        self._bar.set_description(f"VCC: {stage}", refresh=False)
        self._bar.update(steps)

    def record(self, stage: str, step: int, values: Mapping[str, float], *, labels: np.ndarray | None = None) -> float:
        """Keep one row of the history; returns the share of labels that changed since the last labels seen."""
        for name in LOSSES:
            if not math.isfinite(values.get(name, 0.0)):
                raise ValueError(
                    f"The {name} loss became {values[name]} in stage {stage!r} at step {step}. "
                    "Check X for extreme values, scale it, or lower learning_rate."
                )
        change = math.nan
        if labels is not None:
            change = change if self._labels is None else float(np.mean(labels != self._labels))
            self._labels = labels
        self._records.append({"stage": stage, "step": step, "label_change": change, **values})
        self._bar.set_postfix(loss=f"{values['total']:.3f}", refresh=False)
        return change

    def state(self) -> Arrays:
        """What a checkpoint keeps."""
        return {"records": as_bytes(self._records)} | ({} if self._labels is None else {"labels": self._labels})

    def restore(self, state: Arrays) -> None:
        """Resume from what `state` returned, if anything."""
        if state:
            self._records, self._labels = from_bytes(state["records"]), state.get("labels")
            self._bar.update(sum({record["stage"]: record["step"] for record in self._records}.values()))

    def history(self) -> dict[str, np.ndarray]:
        """The records as columns of equal length; NaN where a value was not defined."""
        columns = ("stage", "step", *LOSSES, "beta", "label_change")
        return {name: np.array([record.get(name, math.nan) for record in self._records]) for name in columns}


def _is_watched() -> bool:
    """Whether output goes to a terminal or a notebook; in a log file a progress bar is noise."""
    notebook = any(base.__module__ == "tqdm.notebook" for base in tqdm.__mro__)
    return notebook or (sys.stderr is not None and sys.stderr.isatty())


class Gauge:
    """Measures the four losses of an embedding on a fixed sample of edges, disconnected pairs and points."""

    def __init__(self, graph: sp.csr_matrix, settings: Settings, rng: Generator, size: int = 20_000) -> None:
        self._pairs = draw_pairs(augmented_edges(graph), graph, size, rng)
        self._points = rng.permutation(graph.shape[0])[: size // 4]
        self._settings = settings

    def __call__(self, H: np.ndarray, centers: np.ndarray, beta: float) -> dict[str, float]:
        """The losses by name, their weighted total, and β; without centers there is no clustering loss."""
        points = torch.from_numpy(np.asarray(H, np.float64))
        terms = drawn_losses(points, self._pairs, repulsion=self._settings.repulsion)
        if len(centers):
            sample = points[self._points]
            terms["clustering"] = self_training_loss(sample, torch.from_numpy(np.asarray(centers, np.float64)))
        terms["total"] = weighted_total(terms, self._settings.weights, beta)
        return {name: float(value) for name, value in terms.items()} | {"beta": beta}


def mean_losses(steps: Iterable[Mapping[str, Tensor]]) -> dict[str, float]:
    """Take the steps of an epoch, each of which gives its losses; returns the mean of each loss."""
    sums: dict[str, Tensor] = {}
    n_steps = 0
    for terms in steps:
        sums = {name: value.detach() + sums.get(name, 0) for name, value in terms.items()}
        n_steps += 1
    return {name: float(value) / n_steps for name, value in sums.items()}
