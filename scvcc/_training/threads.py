"""How many threads the compiled kernels and torch use."""

from collections.abc import Iterator
from contextlib import contextmanager

import numba
import torch


@contextmanager
def restored_threads() -> Iterator[None]:
    """Put the numbers of threads back afterwards.

    Where numba and torch share an OpenMP runtime, a parallel kernel changes torch's number too.
    """
    before = numba.get_num_threads(), torch.get_num_threads()
    try:
        yield
    finally:
        numba.set_num_threads(before[0])
        torch.set_num_threads(before[1])


@contextmanager
def threads(n_jobs: int | None) -> Iterator[None]:
    """Use `n_jobs` threads in numba and torch; -1 is all, None leaves them as they are."""
    with restored_threads():
        if n_jobs is not None:
            limit = int(numba.config.NUMBA_NUM_THREADS)  # type: ignore[attr-defined]
            wanted = limit if n_jobs == -1 else n_jobs
            numba.set_num_threads(min(wanted, limit))
            torch.set_num_threads(wanted)
        yield


@contextmanager
def threads_for(n: int, least: int = 2_000) -> Iterator[None]:
    """As many of the caller's numba threads as have `least` of `n` points each: waking one costs more than a few points."""
    with restored_threads():
        numba.set_num_threads(max(1, min(numba.get_num_threads(), n // least)))
        yield
