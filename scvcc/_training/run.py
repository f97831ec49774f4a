"""What the stages of one training share."""

from dataclasses import dataclass
from functools import cached_property

import scipy.sparse as sp
from numpy.random import Generator

from scvcc._training.monitor import Gauge, Monitor
from scvcc._training.settings import Settings
from scvcc._training.streams import stream


@dataclass
class Run:
    """The latent graph, what the user chose, the seed of all random numbers, and where progress goes."""

    graph: sp.csr_matrix
    settings: Settings
    seed: int
    monitor: Monitor

    def rng(self, stage: str) -> Generator:
        """Random numbers for a stage; every call starts the stage's stream anew."""
        return stream(self.seed, stage)

    @cached_property
    def gauge(self) -> Gauge:
        """Measures the losses of coordinates; made when first asked for."""
        return Gauge(self.graph, self.settings, self.rng("losses"))
