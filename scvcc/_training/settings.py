"""What a user chooses about training, and the constants that the stages share."""

from __future__ import annotations

import numbers
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

GAMMA = 0.01  # β = GAMMA · epoch
MAP_EPOCHS = 20  # the coordinates of the map count as this many epochs, so that β ends at .2
WEIGHT_DECAY = 5e-4
JOINT_EPOCHS, JOINT_STEPS = 4, 80  # at most
COMPACT_WEIGHTS = {"boundary": 0.1, "contraction": 1.0, "expansion": 0.2, "clustering": 1.0}
PAPER_WEIGHTS = {"boundary": 1.0, "contraction": 1.0, "expansion": 1.0, "clustering": 1.0}


@dataclass(frozen=True)
class Settings:
    """What the user chose; everything else about training is a constant of the stage that uses it."""

    n_clusters: int | None
    min_cluster_size: int = 10
    latent_dim: int = 2
    hidden: tuple[int, ...] = (500, 500, 500)
    objective: str = "compact"
    weights: dict[str, float] = field(default_factory=lambda: dict(COMPACT_WEIGHTS))
    epochs: int | None = None
    batch_size: int = 256
    learning_rate: float = 2e-3
    keep_stages: bool = False

    @property
    def repulsion(self) -> float:
        """Share of the repulsive half of the boundary loss; the paper's 1 inflates clusters to a radius of ln 2."""
        return 1.0 if self.objective == "paper" else 0.1

    def n_batches(self, n: int) -> int:
        """Mini-batches in an epoch of the encoder on `n` rows."""
        return -(-n // self.batch_size)

    def joint_steps(self, n: int) -> int:
        """Steps of the joint stage on `n` rows."""
        if self.epochs is not None:
            return self.epochs * self.n_batches(n)
        return min(JOINT_EPOCHS * self.n_batches(n), JOINT_STEPS)


def resolve_weights(objective: str, given: Mapping[str, float] | None) -> dict[str, float]:
    """Loss weights of an objective with the user's own put over them."""
    defaults = {"compact": COMPACT_WEIGHTS, "paper": PAPER_WEIGHTS}
    if objective not in defaults:
        raise ValueError(f"objective must be one of {sorted(defaults)}, found {objective!r}.")
    weights = dict(defaults[objective])
    if not isinstance(given or {}, Mapping):
        raise TypeError(f"loss_weights must be a dict of weights by loss, found {type(given).__name__}.")
    for name, value in (given or {}).items():
        if name not in weights:
            raise ValueError(f"loss_weights has no loss {name!r}: choose from {sorted(weights)}.")
        if not isinstance(value, numbers.Real) or not np.isfinite(value) or value < 0:
            raise ValueError(f"loss_weights[{name!r}] must be a number >= 0, found {value!r}.")
        weights[name] = float(value)
    return weights


def weighted_total(terms: Mapping[str, Any], weights: Mapping[str, float], beta: float) -> Any:
    """L = Σ weight · loss, with β on the clustering loss; terms without a weight, such as the anchor, count once."""
    coefficients = {**weights, "clustering": weights["clustering"] * beta}
    return sum(coefficients.get(name, 1.0) * value for name, value in terms.items())
