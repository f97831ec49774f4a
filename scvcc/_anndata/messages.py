"""What the user is told: messages to the logger "scvcc" and to scanpy's log, and lists of names in errors."""

import logging
from datetime import datetime
from typing import Any

import scanpy as sc

log = logging.getLogger("scvcc")


def info(message: str, *, time: datetime | None = None) -> datetime:
    """Say what is done, at level INFO: scanpy shows it from `sc.settings.verbosity = 2` on, with the time passed."""
    log.info("%s", message)
    return sc.logging.info(message, time=time)


def hint(message: str) -> None:
    """Say what else could be done, as scanpy's hints do, from `sc.settings.verbosity = 3` on."""
    log.debug("%s", message)
    sc.logging.hint(message)


def listed(keys: Any, most: int = 12) -> str:
    """Names for an error message, "nothing" where there are none."""
    names = [repr(str(key)) for key in keys if key is not None]
    return ", ".join([*names[:most], *(["…"] if len(names) > most else [])]) or "nothing"
