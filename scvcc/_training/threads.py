"""How many threads the compiled kernels, torch and k-means use."""

from collections.abc import Iterator
from contextlib import contextmanager

import numba
import torch
from joblib import cpu_count
from threadpoolctl import threadpool_info, threadpool_limits

from scvcc._training.forks import is_forked


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
    """Use `n_jobs` threads in numba, torch and the libraries below; −1 uses all available processors.

    Available are those that this process may use, by its affinity and by the quota of its container. None uses at most as
    many threads, and one for small matrices: on a busy machine, threads with little work wait for each other, and 700 rows
    took three times the processor time of one thread. A forked process always uses one.
    """
    n_jobs = 1 if is_forked() else n_jobs
    if n_jobs is None:
        most = 1 if n_rows < small else cpu_count()
        counts = {library: min(count, most) for library, count in _threads_now().items()}
    else:
        counts = dict.fromkeys(_threads_now(), cpu_count() if n_jobs == -1 else n_jobs)
    with restored_threads(), threadpool_limits(counts):
        numba.set_num_threads(min(counts["numba"], int(numba.config.NUMBA_NUM_THREADS)))  # type: ignore[attr-defined]
        torch.set_num_threads(counts["torch"])
        yield


def _threads_now() -> dict[str, int]:
    """The number of threads by library; the smallest where one is loaded twice."""
    counts = {"numba": numba.get_num_threads(), "torch": torch.get_num_threads()}
    for pool in threadpool_info():
        counts[pool["prefix"]] = min(pool["num_threads"], counts.get(pool["prefix"], pool["num_threads"]))
    return counts


@contextmanager
def threads_for(n: int, least: int = 2_000) -> Iterator[None]:
    """As many of the caller's numba threads as have `least` of `n` points each: waking one costs more than a few points."""
    with restored_threads():
        numba.set_num_threads(max(1, min(numba.get_num_threads(), n // least)))
        yield
