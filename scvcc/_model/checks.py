"""Checks of arguments: every error names the argument, what was found and what is allowed."""

import inspect
import numbers
import warnings
from typing import Any

import numpy as np


def check_integer(name: str, value: Any, *, low: int, high: int | None = None, why: str = "") -> None:
    """Refuse what is not a whole number from `low` to `high`; `why` explains the upper limit."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name} must be an integer, found {value!r} of type {type(value).__name__}.")
    if int(value) < low or (high is not None and int(value) > high):
        limits = f"at least {low}" if high is None else f"from {low} to {high}" + (f" ({why})" if why else "")
        raise ValueError(f"{name} must be {limits}, found {value}.")


def check_share(name: str, value: Any) -> None:
    """Refuse what is not a number from 0 to 1."""
    number = isinstance(value, numbers.Real) and not isinstance(value, bool | np.bool_)
    if not (number and 0 <= value <= 1):
        raise ValueError(f"{name} must be a number from 0 to 1, found {value!r}.")


def as_seed(random_state: Any) -> int:
    """One integer from what scikit-learn and numpy users pass; drawing it is all that happens to a generator."""
    if random_state is None:
        return int(np.random.default_rng().integers(2**31))
    if isinstance(random_state, np.random.Generator):
        return int(random_state.integers(2**31))
    if isinstance(random_state, np.random.RandomState):
        return int(random_state.randint(2**31 - 1))
    check_integer("random_state", random_state, low=0, high=2**32 - 1, why="a numpy seed")
    return int(random_state)


def warn(message: str) -> None:
    """Warn at the line of the user's code that called into the package."""
    frame, level = inspect.currentframe(), 1
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "scvcc":
        frame, level = frame.f_back, level + 1
    warnings.warn(message, UserWarning, stacklevel=level)
