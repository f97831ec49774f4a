from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from scvcc._model.checks import check_arguments, check_integer, validated


@pytest.mark.parametrize(
    ("hint", "good", "bad", "allowed"),
    [
        (int, [3, np.int8(3)], [True, np.True_, 3.0, "3", np.array(3), np.timedelta64(3)], "an integer"),
        (float, [3, 0.5, np.float32(0.5)], [True, 1j, "0.5", None, np.timedelta64(3)], "a number"),
        (bool, [True, np.False_], [0, 1, None, "yes"], "True or False"),
        (str, ["a", "", np.str_("a")], [["a"], {"a": 1}, {"a"}, np.array(["a"]), b"a", 1, None], "a string"),
        (str | None, ["a", None], [["a"], 1], "a string or None"),
        (Literal["a", "b"] | None, ["a", None], [1, ["a"], np.array(["a", "b"])], "'a', 'b' or None"),
        (Sequence[int], [(), [1, 2], np.array([1])], [1, "12", {1, 2}, {1: 2}, [1, 0.5]], "a list of integers"),
        (str | Sequence[str], ["a", ["a"]], [{"a": 1}, ["a", 1]], "a string or a list of strings"),
        (
            Mapping[str, float] | None,
            [{}, {"a": 1}],
            [[1], "a", {"a": "b"}, {1: 1}, {"a": True}],
            "a dict of numbers or None",
        ),
        (
            tuple[int, int],
            [(0, 1), [0, 1], np.array([0, 1])],
            [(0,), (0, 1, 2), (0, 1.0), (True, 1), 1, {0, 1}],
            "a pair of integers",
        ),
        (str | Path, ["a", Path("a"), 3], [], ""),  # what has no words is left to the function
    ],
    ids=str,
)
def test_a_type_in_a_signature_is_what_is_accepted(hint, good, bad, allowed):
    for value in good:
        check_arguments({"x": value}, {"x": hint}, {})
    for value in bad:
        with pytest.raises(TypeError, match=f"^x must be {allowed}, found "):
            check_arguments({"x": value}, {"x": hint}, {})


def test_a_wrong_choice_is_a_wrong_value():
    with pytest.raises(ValueError, match="^x must be 'a' or 'b', found 'c'.$"):
        check_arguments({"x": "c"}, {"x": Literal["a", "b"]}, {})


@pytest.mark.parametrize("value", [-1, 1.5, float("nan"), float("inf"), np.float32(2)])
def test_limits(value):
    with pytest.raises(ValueError, match="^x must be from 0 to 1, found"):
        check_arguments({"x": value}, {}, {"x": (0, 1)})
    check_arguments({"x": None, "y": 0, "z": [1, 2]}, {}, {"x": (0, 1), "y": (0, 1), "z": 1})
    with pytest.raises(ValueError, match="^z must be at least 1, found 0"):
        check_arguments({"z": [1, 0]}, {}, {"z": 1})


def test_the_upper_limit_is_explained():
    with pytest.raises(ValueError, match=r"k must be from 2 to 9 \(there are 9 rows\), found 10"):
        check_integer("k", 10, (2, 9), "there are 9 rows")


def test_functions_are_checked_by_position_and_by_name():
    @validated(n=1)
    def f(a: str, n: int = 3, **rest: Any) -> str:
        """Text."""
        return a * n

    assert f("a") == "aaa" and f("a", n=1, other=5) == "a" and f.__doc__ == "Text."
    for call in (lambda: f(1), lambda: f(a=1)):
        with pytest.raises(TypeError, match="a must be a string, found 1 of type int"):
            call()
    with pytest.raises(ValueError, match="n must be at least 1, found 0"):
        f("a", 0)
    with pytest.raises(TypeError, match=r"f\(\) missing 1 required positional argument: 'a'"):
        f()
