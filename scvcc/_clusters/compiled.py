"""Compilation with numba, kept on disk where there is a folder for it."""

from collections.abc import Callable
from typing import Any

import numba


def compiled(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """`numba.njit` with a cache; if neither the package nor the home directory is writable, each process compiles."""

    def compile_later(function: Callable[..., Any]) -> Any:
        try:
            return numba.njit(cache=True, **options)(function)
        except RuntimeError:  # "no locator available": numba looks for its folder when a function is defined
            return numba.njit(**options)(function)

    return compile_later
