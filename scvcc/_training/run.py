"""What the stages of one training share."""

from dataclasses import dataclass
from functools import cached_property

import scipy.sparse as sp
from numpy.random import Generator

from scvcc._training.monitor import Gauge, Monitor
from scvcc._training.settings import Settings


@dataclass
class Run:
    """The latent graph, what the user chose, where random numbers come from, and where progress goes."""

    graph: sp.csr_matrix
    settings: Settings
    rng: Generator
    monitor: Monitor

    @cached_property
    def gauge(self) -> Gauge:
        """Measures the losses of coordinates; made when first asked for."""
        return Gauge(self.graph, self.settings, self.rng)
