"""One way to check an argument: every error names it, what was found and what is allowed."""

import functools
import inspect
import math
import os
import reprlib
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np

Limits = float | tuple[float, float]  # the lowest value, or the lowest and the highest
Function = TypeVar("Function", bound=Callable[..., Any])
Class = TypeVar("Class")

# what a type in a signature asks for, in words and as types; types that are not listed are left to the function
KINDS: dict[Any, tuple[str, Any]] = {
    bool: ("True or False", bool | np.bool_),
    int: ("an integer", Integral),
    float: ("a number", Real),
    str: ("a string", str),
    NoneType: ("None", NoneType),
    Mapping: ("a dict", Mapping),
    Sequence: ("a list", Sequence | np.ndarray),
    tuple: ("a pair", Sequence | np.ndarray),
    os.PathLike: ("a path", os.PathLike),
}


def validated(**limits: Limits) -> Callable[[Function], Function]:
    """Refuse arguments that are not what the signature says, or outside of `limits`, given by name."""

    def decorate(function: Function) -> Function:
        names, hints = list(inspect.signature(function).parameters), functools.cache(get_type_hints)

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            check_arguments({**dict(zip(names, args, strict=False)), **kwargs}, hints(function), limits)
            return function(*args, **kwargs)

        return call  # type: ignore[return-value]

    return decorate


def named(cls: type[Class]) -> type[Class]:
    """Let the constructor of a class suggest the name that an unknown argument is most like."""
    construct, known = cls.__init__, list(inspect.signature(cls).parameters)

    @functools.wraps(construct)
    def __init__(self: Class, *args: Any, **kwargs: Any) -> None:
        for name in kwargs:
            if name not in known:
                near = get_close_matches(name, known, n=1)
                meant = f"did you mean {near[0]}?" if near else f"its settings are {', '.join(known)}."
                raise TypeError(f"{name} is not a setting of {cls.__name__}: {meant}")
        construct(self, *args, **kwargs)

    cls.__init__ = __init__  # type: ignore[assignment, method-assign]
    return cls


def check_arguments(given: Mapping[str, Any], hints: Mapping[str, Any], limits: Mapping[str, Limits]) -> None:
    """Refuse values that are not of the types in `hints`, or outside of `limits`; those of a list each for itself."""
    for name, value in given.items():
        hint = hints.get(name, Any)
        kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
        if not any(_fits(value, kind) for kind in kinds):
            *others, last = [word for kind in kinds for word in _words(kind)]
            allowed = f"{', '.join(others)} or {last}" if others else last
            wrong_choice = isinstance(value, str) and any(get_origin(kind) is Literal for kind in kinds)
            raise (ValueError if wrong_choice else TypeError)(f"{name} must be {allowed}, found {_shown(value)}.")
        if name in limits and value is not None:
            for number in _items(value) if isinstance(value, Iterable) else (value,):
                check_limits(name, number, limits[name])


def check_integer(name: str, value: Any, limits: Limits, why: str = "") -> None:
    """Refuse what is not a whole number within `limits`; `why` explains the upper one."""
    check_arguments({name: value}, {name: int}, {})
    check_limits(name, value, limits, why)


def check_limits(name: str, value: Any, limits: Limits, why: str = "") -> None:
    """Refuse a number outside of `limits`, NaN and infinity."""
    low, high = limits if isinstance(limits, tuple) else (limits, math.inf)
    if not low <= value <= high or math.isinf(value):
        allowed = f"at least {low}" if math.isinf(high) else f"from {low} to {high}"
        raise ValueError(f"{name} must be {allowed}{f' ({why})' if why else ''}, found {value}.")


def _fits(value: Any, kind: Any) -> bool:
    origin = get_origin(kind) or kind
    if origin is Literal:
        return isinstance(value, str) and value in get_args(kind)
    args = get_args(kind)
    if _holds_items(kind) and all(arg in KINDS or arg is Any for arg in args):
        fits = isinstance(value, KINDS[origin][1]) and not isinstance(value, str | bytes) and np.ndim(value) < 2
        fits = fits and (origin is not tuple or len(value) == len(args))
        keys_fit = not isinstance(value, Mapping) or all(_fits(key, args[0]) for key in value)
        return fits and keys_fit and (not args or all(_fits(item, args[-1]) for item in _items(value)))
    if origin in (int, float) and isinstance(value, bool | np.timedelta64):  # Python and numpy count them as integers
        return False
    return origin not in KINDS or origin is tuple or isinstance(value, KINDS[origin][1])


def _holds_items(kind: Any) -> bool:
    return (get_origin(kind) or kind) in (Sequence, Mapping, tuple)


def _items(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, Mapping) else value


def _words(kind: Any) -> list[str]:
    if get_origin(kind) is Literal:
        return [repr(choice) for choice in get_args(kind)]
    word = KINDS[get_origin(kind) or kind][0]
    items = [f" of {KINDS[item][0].partition(' ')[2]}s" for item in get_args(kind)[-1:] if item in KINDS]
    return [f"{word}{items[0]}" if items and _holds_items(kind) else word]


def _shown(value: Any) -> str:
    return reprlib.repr(value) + ("" if isinstance(value, str | NoneType) else f" of type {type(value).__name__}")


def as_seed(random_state: Any) -> int:
    """One integer from what scikit-learn and numpy users pass; drawing it is all that happens to a generator."""
    if random_state is None:
        return int(np.random.default_rng().integers(2**31))
    if isinstance(random_state, np.random.Generator):
        return int(random_state.integers(2**31))
    if isinstance(random_state, np.random.RandomState):
        return int(random_state.randint(2**31 - 1))
    check_integer("random_state", random_state, (0, 2**32 - 1), "a numpy seed")
    return int(random_state)


def warn(message: str) -> None:
    """Warn at the line of the user's code that called into the package."""
    frame, level = inspect.currentframe(), 1
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "scvcc":
        frame, level = frame.f_back, level + 1
    warnings.warn(message, UserWarning, stacklevel=level)
