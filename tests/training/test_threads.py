import builtins
import os

import numba
import pytest
import torch
from joblib import cpu_count
from threadpoolctl import threadpool_info, threadpool_limits

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


@pytest.fixture
def on_eight_processors(monkeypatch, tmp_path):
    """A machine with eight processors, and a function that gives it the control files of a container."""
    groups, written, look, read = "/sys/fs/cgroup/", {}, os.path.exists, builtins.open

    def exists(path):
        return path in written or (not str(path).startswith(groups) and look(path))

    def write(files):
        for i, (name, text) in enumerate(files.items()):
            written[groups + name] = tmp_path / str(i)
            written[groups + name].write_text(text)

    for name in ("process_cpu_count", "cpu_count"):
        monkeypatch.setattr(os, name, lambda: 8, raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    monkeypatch.setattr(os.path, "exists", exists)
    monkeypatch.setattr(builtins, "open", lambda path, *more, **named: read(written.get(path, path), *more, **named))
    return write


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 8),
        ({"cpu.max": "300000 100000"}, 3),
        ({"cpu.max": "max 100000"}, 8),
        ({"cpu/cpu.cfs_quota_us": "200000", "cpu/cpu.cfs_period_us": "100000"}, 2),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 8),
    ],
)
def test_no_more_threads_than_a_container_may_use(on_eight_processors, files, expected):
    on_eight_processors(files)
    before = torch.get_num_threads()
    torch.set_num_threads(16)  # an oversubscribed pool
    with threads(-1, 50_000):
        assert torch.get_num_threads() == expected
    with threads(None, 50_000):
        assert torch.get_num_threads() == expected
        assert max(pools().values()) <= expected
    torch.set_num_threads(before)


def test_fewer_threads_by_affinity(on_eight_processors, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3}, raising=False)
    with threads(-1, 50_000):
        assert torch.get_num_threads() == 1


def test_what_uses_fewer_threads_is_left_alone(two_threads):
    with threadpool_limits(1, user_api="blas"), threads(None, 50_000):
        assert {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"} == {1}
        assert torch.get_num_threads() == 2


def test_all_threads(two_threads):
    with threads(-1, 10):
        assert torch.get_num_threads() == cpu_count()
    with pytest.raises(KeyError), threads(1, 10):
        raise KeyError
    assert torch.get_num_threads() == 2
