"""What training reports: a history of losses, a progress bar, and an error as soon as a loss is not finite."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from tqdm.auto import tqdm

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

LOSSES = ("boundary", "contraction", "expansion", "clustering", "anchor", "total")
COLUMNS = ("stage", "step", *LOSSES, "beta", "label_change")


class Monitor:
    """Collects the records of all stages and shows one progress bar over them."""

    def __init__(self, total_steps: int, *, show: bool) -> None:
        self._records: list[dict[str, object]] = []
        self._labels: np.ndarray | None = None
        self._bar = tqdm(total=total_steps, disable=not show, desc="VCC", unit="step", leave=False)

    def __enter__(self) -> Monitor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.close()

    def advance(self, stage: str, steps: int = 1) -> None:
        """Move the bar on."""
        self._bar.set_description(f"VCC: {stage}", refresh=False)
        self._bar.update(steps)

    def record(self, stage: str, step: int, values: Mapping[str, float], *, labels: np.ndarray | None = None) -> float:
        """Keep one row of the history; returns the share of labels that changed since the last labels seen."""
        for name in LOSSES:
            if not math.isfinite(values.get(name, 0.0)):
                raise FloatingPointError(
                    f"The {name} loss became {values[name]} in stage {stage!r} at step {step}. "
                    "Check X for extreme values, scale it, or lower learning_rate."
                )
        change = math.nan
        if labels is not None and self._labels is not None:
            change = float(np.mean(labels != self._labels))
        self._labels = labels if labels is not None else self._labels
        self._records.append({"stage": stage, "step": step, "label_change": change, **values})
        self._bar.set_postfix(loss=f"{values['total']:.3f}", refresh=False)
        return change

    def history(self) -> dict[str, np.ndarray]:
        """The records as columns of equal length; NaN where a value was not defined."""
        return {name: np.array([record.get(name, math.nan) for record in self._records]) for name in COLUMNS}
