"""What the stages of one training share: the graph, the settings, random numbers, and where progress goes.

There is one random stream for each stage, so that a change in one stage leaves the draws of the others alone.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
import scipy.sparse as sp
from numpy.random import Generator

from scvcc._clusters.evidence import Points
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

    def rng(self, stage: str) -> Generator:
        """Random numbers for a stage; every call starts the stage's stream anew."""
        return stream(self.seed, stage)

    @cached_property
    def gauge(self) -> Gauge:
        """Measures the losses of coordinates; made when first asked for."""
        return Gauge(self.graph, self.settings, self.rng("losses"))
