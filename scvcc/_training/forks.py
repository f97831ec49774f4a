"""Processes made by fork: they have a copy of the parent's libraries, but not the threads that these wait for."""

import inspect
import os
import sys

_seen = {"forked": False, "compiled": False}


def _note() -> None:
    """Remember, in a child, that it is one, and whether the parent had started numba's threads with OpenMP."""
    caller = getattr(inspect.currentframe(), "f_back", None)
    if caller is not None and caller.f_globals.get("__name__") == "multiprocessing.forkserver":
        return  # the server has imported modules, and computed nothing
    _seen["forked"] = True
    if "numba" in sys.modules:
        try:
            _seen["compiled"] |= sys.modules["numba"].threading_layer() == "omp"
        except ValueError:  # not started
            pass


if hasattr(os, "register_at_fork"):  # not on Windows, where no process is made by fork
    os.register_at_fork(after_in_child=_note)


def is_forked() -> bool:
    """Whether this process was made by fork since scvcc was imported. More than one thread may then wait for ever."""
    return _seen["forked"]


def check_kernels() -> None:
    """Refuse to run parallel kernels where OpenMP would end the process."""
    if _seen["compiled"]:
        raise RuntimeError(
            "This process was forked from one that had used threads, and cannot fit a model or search for neighbors. "
            "Start processes with multiprocessing.get_context('spawn') or 'forkserver', or fork before numba, scanpy or "
            "scvcc compute anything. A model that is already fitted still works here."
        )
