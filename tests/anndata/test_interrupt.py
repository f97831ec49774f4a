"""Ctrl-C: a result is written completely or not at all."""

import os
import signal
import sys
import threading
import time

import numpy as np
import pytest

import scvcc
from scvcc._anndata.representation import set_fields, uninterrupted


def test_an_interrupt_waits_until_the_block_is_done():
    done = []
    with pytest.raises(KeyboardInterrupt):
        with uninterrupted():
            with uninterrupted():
                os.kill(os.getpid(), signal.SIGINT)
                done.append("inner")
            done.append("outer")
    assert done == ["inner", "outer"]


def test_an_error_in_the_block_is_raised():
    with pytest.raises(ValueError, match="mine"), uninterrupted():
        raise ValueError("mine")


@pytest.fixture(autouse=True)
def handler():
    """Python's own handler, which a job in the background does not have."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="module")
def model_file(_clustered, tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "model.safetensors"
    adata = _clustered.copy()
    scvcc.tl.vcc(adata, 4, hidden=(16,), epochs=0, progress=False, save_to=path)
    return path


@pytest.fixture(
    params=["vcc", "map_query", "stability", "cut", "test_clusters", "suggest_n_clusters", "neighbors", "lsa"]
)
def task(request, _blobs, _clustered, model_file):
    """A function that writes several fields, and the cells that it is called with."""
    fresh, done = _blobs.copy(), _clustered.copy()
    fresh.obs["batch"] = np.array(["a", "b"])[np.arange(240) % 2]
    calls = {
        "vcc": (fresh, lambda a: scvcc.tl.vcc(a, 4, hidden=(16,), epochs=0, progress=False)),
        "map_query": (fresh, lambda a: scvcc.tl.map_query(a, model_file)),
        "stability": (done, lambda a: scvcc.tl.stability(a, n_runs=1, progress=False)),
        "cut": (done, lambda a: scvcc.tl.cut(a, 3, support=True)),
        "test_clusters": (fresh, lambda a: scvcc.tl.test_clusters(a, "truth", key_added="merged")),
        "suggest_n_clusters": (fresh, lambda a: scvcc.tl.suggest_n_clusters(a, k_range=(2, 4), progress=False)),
        "neighbors": (fresh, lambda a: scvcc.pp.neighbors(a, "batch")),
        "lsa": (fresh, lambda a: scvcc.pp.lsa(a, n_comps=3, tfidf=False)),
    }
    return calls[request.param]


class Interrupt:
    """Press Ctrl-C at the `moment`-th call or return of a function since the first field was begun to be written."""

    def __init__(self, moment=None):
        self.moment, self.seen = moment, 0

    def __call__(self, frame, event, argument):
        if event in ("call", "c_call", "return", "c_return") and (
            self.seen or frame.f_code is set_fields.__wrapped__.__code__
        ):
            self.seen += 1
            if self.seen == self.moment:
                signal.raise_signal(signal.SIGINT)

    def during(self, call, adata):
        sys.setprofile(self)
        try:
            call(adata)
        finally:
            sys.setprofile(None)


def test_a_result_is_written_completely(task, everything, same):
    adata, call = task
    complete, counter = adata.copy(), Interrupt()
    counter.during(call, complete)
    complete, empty = everything(complete), everything(adata)
    assert not same(complete, empty)
    for moment in np.linspace(5, 0.9 * counter.seen, 5 if counter.seen > 1000 else 20).astype(int):
        again = adata.copy()
        with pytest.raises(KeyboardInterrupt):
            Interrupt(moment).during(call, again)
        left = everything(again)
        assert same(left, empty) or same(left, complete), moment


@pytest.mark.slow
def test_interrupts_at_random_moments(task, everything, same, monkeypatch):
    """Twenty times, with a clock: nothing half done, no thread or file left, the handler of signals as it was."""
    adata, call = task
    complete = adata.copy()
    call(complete)
    start = time.perf_counter()
    call(adata.copy())
    length = time.perf_counter() - start
    complete, empty, threads = everything(complete), everything(adata), set(threading.enumerate())
    monkeypatch.setattr(sys, "unraisablehook", lambda error: None)
    before = signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    rng, interrupted = np.random.default_rng(0), 0
    try:
        for share in rng.uniform(0.02, 1, 20):
            again = adata.copy()
            try:
                signal.setitimer(signal.ITIMER_REAL, share * length)
                call(again)
                signal.setitimer(signal.ITIMER_REAL, 0)
            except (KeyboardInterrupt, SystemError) as error:  # numba makes the latter of the former in compiled code
                assert isinstance(error, KeyboardInterrupt) or isinstance(error.__cause__, KeyboardInterrupt)
                interrupted += 1
            left = everything(again)
            assert same(left, empty) or same(left, complete), share
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert interrupted >= 10
    assert set(threading.enumerate()) <= threads


def test_another_thread_writes_without_touching_the_signal():
    done, handler = [], signal.getsignal(signal.SIGINT)

    def write():
        with uninterrupted():
            done.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=write)
    thread.start()
    thread.join()
    assert done == [handler]
