"""How many threads the compiled kernels, torch and k-means use."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import numba
import torch
from threadpoolctl import threadpool_limits


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
def threads(n_jobs: int | None, n_rows: int, *, small: int = 5_000) -> Iterator[None]:
    """Use `n_jobs` threads in numba, torch and the libraries below; -1 is all.

    None leaves them as they are for many rows. Small matrices then use one: on a busy machine threads of little work wait
    for each other, and 700 rows took three times the processor time of one thread.
    """
    if n_jobs is None and n_rows < small:
        n_jobs = 1
    with restored_threads(), ExitStack() as limits:
        if n_jobs is not None:
            most = int(numba.config.NUMBA_NUM_THREADS)  # type: ignore[attr-defined]
            wanted = most if n_jobs == -1 else n_jobs
            limits.enter_context(threadpool_limits(wanted))
            numba.set_num_threads(min(wanted, most))
            torch.set_num_threads(wanted)
        yield


@contextmanager
def threads_for(n: int, least: int = 2_000) -> Iterator[None]:
    """As many of the caller's numba threads as have `least` of `n` points each: waking one costs more than a few points."""
    with restored_threads():
        numba.set_num_threads(max(1, min(numba.get_num_threads(), n // least)))
        yield
