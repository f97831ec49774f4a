"""Very Compact Clusters (VCC) for AnnData: a compact map and cluster labels from one trained encoder."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ._training import forks as _forks  # noqa: F401  watches for forks from now on

if TYPE_CHECKING:
    from . import metrics, pl, pp, tl
    from ._model.vcc import VCC

__version__ = "0.1.0"
__all__ = ["VCC", "metrics", "pl", "pp", "tl"]


# PEP 562: torch and scanpy take seconds to import, so each name is loaded when it is first used
def __getattr__(name: str) -> Any:
    if name == "VCC":
        value = import_module("._model.vcc", __name__).VCC
    elif name in __all__:
        value = import_module(f".{name}", __name__)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return ["__version__", *__all__]
