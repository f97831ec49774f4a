"""What the stages of one training share: the graph, the settings, random numbers, and where progress goes.

There is one random stream for each stage, so that a change in one stage leaves the draws of the others alone.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias

import numpy as np
import scipy.sparse as sp
from numpy.random import Generator

from scvcc._clusters.evidence import Points
from scvcc._training.checkpoint import Arrays, Checkpoint
from scvcc._training.monitor import Gauge, Monitor
from scvcc._training.settings import Settings

# what an objective returns: centers, the partition they were made for, the coordinates it was found in, views on the way
Outcome: TypeAlias = tuple[np.ndarray, np.ndarray, np.ndarray, dict[str, np.ndarray]]
STAGES = tuple(
    "weights losses structure clusters placing map encoder joint paper assignment novelty parts evidence tree".split()
)


def stream(seed: int, stage: str) -> Generator:
    """The generator of a stage; the streams of one seed do not depend on each other."""
    return np.random.default_rng(np.random.SeedSequence(seed).spawn(len(STAGES))[STAGES.index(stage)])


def draw_seed(rng: Generator) -> int:
    """A seed for what takes a number."""
    return int(rng.integers(2**31))


@dataclass
class Run:
    """The latent graph, what the user chose, the seed of all random numbers, where progress goes, and the points."""

    graph: sp.csr_matrix
    settings: Settings
    seed: int
    monitor: Monitor
    points: Points | None = None  # what evidence for clusters is sought in; None: none is sought
    checkpoint: Checkpoint = field(default_factory=Checkpoint)

    def rng(self, stage: str) -> Generator:
        """Random numbers for a stage; every call starts the stage's stream again."""
        return stream(self.seed, stage)

    def once(self, stage: str, compute: Callable[[], tuple[np.ndarray, ...]]) -> list[np.ndarray]:
        """What a stage computes, or computed before the fit was interrupted."""
        kept = self.checkpoint.kept(stage)
        if not kept:
            kept = {str(i): array for i, array in enumerate(compute())}
            self.keep(stage, lambda: kept)
        return [kept[str(i)] for i in range(len(kept))]

    def keep(self, stage: str, state: Callable[[], Arrays]) -> None:
        """Keep the state of a stage, and what was recorded so far, if there is a checkpoint."""
        if self.checkpoint.path is not None:
            self.checkpoint.keep(**{stage: state(), "monitor": self.monitor.state()})

    @cached_property
    def gauge(self) -> Gauge:
        """Measures the losses of coordinates; made when first asked for."""
        return Gauge(self.graph, self.settings, self.rng("losses"))
