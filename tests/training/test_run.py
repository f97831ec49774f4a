import numpy as np
import pytest

from scvcc._training.run import STAGES, draw_seed, stream


def test_streams_are_those_that_numpy_spawns():
    children = np.random.SeedSequence(7).spawn(len(STAGES))
    for stage, child in zip(STAGES, children, strict=True):
        assert stream(7, stage).integers(2**60) == np.random.default_rng(child).integers(2**60)


def test_stages_and_seeds_draw_different_numbers():
    drawn = {int(stream(seed, stage).integers(2**60)) for seed in range(3) for stage in STAGES}
    assert len(drawn) == 3 * len(STAGES)
    assert stream(0, "map").integers(2**60) == stream(0, "map").integers(2**60)


def test_unknown_stages_and_seeds():
    with pytest.raises(ValueError, match="not in tuple"):
        stream(0, "nothing")
    assert 0 <= draw_seed(stream(0, "map")) < 2**31
