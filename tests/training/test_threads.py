import numba
import pytest
import torch
from threadpoolctl import threadpool_info

from scvcc._training.threads import threads


def pools():
    return {pool["filepath"]: pool["num_threads"] for pool in threadpool_info()}


@pytest.fixture
def two_threads():
    if numba.config.NUMBA_NUM_THREADS < 2:
        pytest.skip("one core")
    before = numba.get_num_threads(), torch.get_num_threads()
    numba.set_num_threads(2)
    torch.set_num_threads(2)
    yield
    numba.set_num_threads(before[0])
    torch.set_num_threads(before[1])


@pytest.mark.parametrize(
    ("n_jobs", "n_rows", "expected"), [(None, 700, 1), (None, 50_000, 2), (1, 50_000, 1), (2, 700, 2)]
)
def test_small_matrices_use_one_thread(two_threads, n_jobs, n_rows, expected):
    before = pools()
    with threads(n_jobs, n_rows):
        assert (numba.get_num_threads(), torch.get_num_threads()) == (expected, expected)
        if expected == 1:
            assert set(pools().values()) == {1}
    assert (numba.get_num_threads(), torch.get_num_threads()) == (2, 2)
    assert pools() == before


def test_all_threads(two_threads):
    with threads(-1, 10):
        assert torch.get_num_threads() == numba.config.NUMBA_NUM_THREADS
    with pytest.raises(KeyError), threads(1, 10):
        raise KeyError
    assert torch.get_num_threads() == 2
