"""What a user chooses about training, and the schedule of β that the stages share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

BLOCK = 512  # rows per forward pass outside training; always full, see `encode`
MAP_EPOCHS = 20  # the coordinates of the map count as this many epochs, so that β ends at .2
# by objective; the paper's equal weights inflate clusters, its boundary loss above all (see docs/method)
LOSS_WEIGHTS = {
    "compact": {"boundary": 0.1, "contraction": 1.0, "expansion": 0.2, "clustering": 1.0},
    "paper": {"boundary": 1.0, "contraction": 1.0, "expansion": 1.0, "clustering": 1.0},
}


@dataclass(frozen=True)
class Settings:
    """What the user chose, checked; the defaults are those of `VCC`."""

    n_clusters: int | None
    min_cluster_size: int
    merge_unsupported: bool
    latent_dim: int
    hidden: Sequence[int]
    objective: str
    weights: Mapping[str, float]
    epochs: int | None
    batch_size: int
    learning_rate: float

    @property
    def repulsion(self) -> float:
        """Share of the repulsive half of the boundary loss; the paper's 1 inflates clusters to a radius of ln 2."""
        return 1.0 if self.objective == "paper" else 0.1

    def n_batches(self, n: int) -> int:
        """Mini-batches in an epoch of the encoder on `n` rows."""
        return -(-n // self.batch_size)


def beta(epoch: float, gamma: float = 0.01) -> float:
    """Weight of the clustering loss, β = γ · epoch with the paper's γ: structure first, clusters later."""
    return gamma * epoch


def resolve_weights(objective: str, given: Mapping[str, float] | None) -> dict[str, float]:
    """Loss weights of an objective, overridden by the user's own."""
    weights = dict(LOSS_WEIGHTS[objective])
    for name, value in (given or {}).items():
        if name not in weights:
            raise ValueError(f"loss_weights has no loss {name!r}: choose from {sorted(weights)}.")
        weights[name] = float(value)
    if not any(weights.values()):
        raise ValueError("loss_weights are all 0: nothing is left to train on. Give one of them a weight.")
    return weights
