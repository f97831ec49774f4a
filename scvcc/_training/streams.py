"""Random numbers: one stream for each stage, so that a change in one stage leaves the draws of the others alone."""

import numpy as np
from numpy.random import Generator

STAGES = tuple("weights losses structure clusters placing map encoder joint paper assignment novelty parts".split())


def stream(seed: int, stage: str) -> Generator:
    """The generator of a stage; the streams of one seed do not depend on each other."""
    return np.random.default_rng(np.random.SeedSequence(seed).spawn(len(STAGES))[STAGES.index(stage)])


def draw_seed(rng: Generator) -> int:
    """A seed for what takes a number."""
    return int(rng.integers(2**31))
