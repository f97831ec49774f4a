"""Measuring in a process of its own, and what is noted beside each measurement."""

from __future__ import annotations

import contextlib
import csv
import ctypes
import gc
import multiprocessing
import os
import platform
import resource
import signal
import subprocess
import time
import warnings
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from multiprocessing.connection import Connection
from pathlib import Path
from types import MappingProxyType
from typing import Any

# A fresh process for each measurement, started from one that has only imported these.
PROCESSES = multiprocessing.get_context("forkserver")
PRELOADED = ["scanpy", "umap", "torch", "sklearn.cluster", "sklearn.mixture", "scvcc.metrics", "benchmarks.one"]
PACKAGES = (
    "scvcc",
    "torch",
    "numpy",
    "scipy",
    "scikit-learn",
    "scanpy",
    "umap-learn",
    "igraph",
    "clustpy",
    "scvi-tools",
)
RESULTS = Path(os.environ.get("SCVCC_RESULTS") or Path(__file__).parent / "results")

Rows = list[dict[str, Any]]


def prepare(threads: int) -> None:
    """Fix the number of threads of the processes to come, and what they have imported."""
    for name in ("OMP", "OPENBLAS", "MKL", "NUMBA"):
        os.environ[f"{name}_NUM_THREADS"] = str(threads)
    PROCESSES.set_forkserver_preload(PRELOADED)


def in_process(function: Callable[[dict[str, Any]], Rows], task: dict[str, Any], limit: float) -> Rows:
    """Rows that `function` returns; a run that fails, or needs more than `limit` seconds of a processor, is a row too."""
    receiver, sender = PROCESSES.Pipe(duplex=False)
    process = PROCESSES.Process(target=_work, args=(function, task, round(limit), sender))
    process.start()
    sender.close()
    rows: Rows = [{"status": "timeout", "seconds": limit}]
    if receiver.poll(5 * limit):  # a run that waits, or shares the machine, uses less processor time than that
        try:
            rows = receiver.recv()
        except EOFError:  # ended without a word: too slow, out of memory, or a crash in compiled code
            process.join()
            if process.exitcode != -signal.SIGXCPU:
                rows = [{"status": f"error: exit code {process.exitcode}"}]
        process.join(5)
    process.kill()
    process.join()
    return rows


def _work(function: Callable[[dict[str, Any]], Rows], task: dict[str, Any], limit: int, sender: Connection) -> None:
    warnings.simplefilter("ignore")
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 5))
    base = peak_mb()  # what the libraries took
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
        try:
            rows = function(task)
        except ModuleNotFoundError as error:
            rows = [{"status": f"not installed: {error.name}"}]
        except Exception as error:  # noqa: BLE001 - whatever a method raises is its result
            rows = [{"status": f"error: {type(error).__name__}: {error}"[:200]}]
    sender.send([{"status": "ok", "peak_mb": peak_mb(), "base_mb": base} | row for row in rows])
    sender.close()


def peak_mb() -> int:
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def forget_peak() -> int:
    """Let the peak start anew from what the process holds now, where Linux allows it; returns that, in MB.

    Memory that was freed goes back to the system first: used again unseen, it would flatter small data the most.
    """
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):  # a libc without it
        ctypes.CDLL(None).malloc_trim(0)
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return peak_mb()


class Clock:
    """Wall-clock time, and processor time: the second hardly depends on what else the machine is doing.

    `spent` is a reading that counts too: of work that several measurements share.
    """

    def __init__(self, spent: Mapping[str, float] = MappingProxyType({"seconds": 0.0, "cpu_seconds": 0.0})) -> None:
        self.start = time.perf_counter() - spent["seconds"]
        self.cpu = time.process_time() - spent["cpu_seconds"]

    def read(self) -> dict[str, float]:
        wall, cpu = time.perf_counter() - self.start, time.process_time() - self.cpu
        return {"seconds": round(wall, 2), "cpu_seconds": round(cpu, 2)}


def circumstances(threads: int) -> dict[str, Any]:
    found = [f"python {platform.python_version()}"]
    for package in PACKAGES:
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    return {"threads": threads, "versions": "; ".join(found), "commit": _commit(), "machine": _machine()}


def _commit() -> str:
    """The last commit that changed the package."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(Path(__file__).parent), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()

    last = git("log", "-1", "--format=%h", "--", "../scvcc") or "none"
    return last + ("+changes" if git("status", "--porcelain", "--", "../scvcc") else "")


def _machine() -> str:
    model = platform.processor() or platform.machine()
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), model)
    return f"{model}, {os.cpu_count()} cores, {platform.system()}"


def append(path: Path, columns: tuple[str, ...], rows: Rows) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, columns)
        if fresh:
            writer.writeheader()
        writer.writerows(rows)
