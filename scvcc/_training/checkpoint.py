"""Progress of a long fit, in a file from which the same fit resumes after its process has ended."""

import hashlib
import json
import logging
import os
import secrets
import shutil
import time
from collections.abc import Mapping
from contextlib import suppress
from glob import escape
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import scipy.sparse as sp
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as format_tensors

from scvcc._training.ranks import from_first, rank

logger = logging.getLogger(__name__)

SHARE = 0.05  # of the time of a fit that is spent on writing, about; a state that comes sooner is passed over

Arrays: TypeAlias = dict[str, np.ndarray]


class Checkpoint:
    """Arrays of the stages behind and of the one under way; without a path, nothing is kept.

    The file is safetensors with a checksum. Under torchrun the first process reads and writes it.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path, self._due = path, 0.0
        self._facts: dict[str, Any] = {}
        self._found, self._arrays = ({}, {}) if path is None else from_first(lambda: _read(path))

    def match(self, **facts: Any) -> None:
        """Refuse to go on from a fit of something else: `facts` are arrays, sparse matrices, or what JSON can say."""
        if self.path is None:
            return
        self._facts = from_first(lambda: json.loads(json.dumps(facts, default=_digest)))
        others = [name for name, fact in self._facts.items() if self._found and self._found.get(name) != fact]
        if others:
            raise ValueError(
                f"checkpoint={str(self.path)!r} belongs to a fit with another {' and another '.join(others)}. To resume "
                "it, give the same data and settings; to start over, delete that file or name another one."
            )

    def kept(self, stage: str) -> Arrays:
        """The arrays of a stage by name; none if the fit has not come so far."""
        return {name.partition("/")[2]: a for name, a in self._arrays.items() if name.partition("/")[0] == stage}

    def keep(self, **stages: Arrays) -> None:
        """Take these in place of what was kept of these stages, and write the file if it is time."""
        self._arrays = {name: a for name, a in self._arrays.items() if name.partition("/")[0] not in stages}
        for stage, arrays in stages.items():
            self._arrays |= {f"{stage}/{name}": np.array(a, order="C") for name, a in arrays.items()}
        start = time.monotonic()
        if self.path is None or rank() != 0 or start < self._due:
            return
        facts = json.dumps(self._facts)
        stored = {"scvcc_checkpoint": facts, "sha256": checksum(self._arrays, facts)}
        try:
            write_atomically(self.path, format_tensors(self._arrays, metadata=stored))
        except OSError as error:  # a full disk does not cost the fit
            logger.warning("checkpoint=%r could not be written; the fit continues: %s", str(self.path), error)
        self._due = time.monotonic() + (time.monotonic() - start) / SHARE

    def remove(self) -> None:
        """The fit is done: delete the file, and what a process that was killed while writing has left."""
        if self.path is not None and rank() == 0:
            for file in (self.path, *self.path.parent.glob(f".{escape(self.path.name)}.*.part")):
                file.unlink(missing_ok=True)


def _read(path: Path) -> tuple[dict[str, Any], Arrays]:
    """Facts and arrays; none if there is no file yet."""
    if not path.exists():
        return {}, {}
    try:
        with safe_open(path, "np") as file:
            stored, arrays = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}
        if stored["sha256"] == checksum(arrays, stored["scvcc_checkpoint"]):
            return json.loads(stored["scvcc_checkpoint"]), arrays
    except (SafetensorError, TypeError, KeyError, ValueError):
        pass
    raise ValueError(
        f"checkpoint={str(path)!r} exists and is not a checkpoint, or is a damaged one. It is left as it is: delete it, or "
        "name another file."
    )


def as_bytes(value: Any) -> np.ndarray:
    """What JSON can say, as an array."""
    return np.frombuffer(json.dumps(value).encode(), np.uint8)


def from_bytes(array: np.ndarray) -> Any:
    """The value that `as_bytes` was given."""
    return json.loads(array.tobytes())


def _digest(value: Any) -> Any:
    """What stands for a matrix, or a number of numpy's, among the facts."""
    if isinstance(value, np.generic):
        return value.item()
    parts = (
        {name: getattr(value, name) for name in ("data", "indices", "indptr")} if sp.issparse(value) else {"": value}
    )
    return checksum({name: np.ascontiguousarray(part) for name, part in parts.items()}, str(value.shape))


def checksum(arrays: Mapping[str, np.ndarray], text: str) -> str:
    """SHA-256 of a text, and of the names, types, shapes and values of arrays."""
    digest = hashlib.sha256(text.encode())
    for name in sorted(arrays):
        digest.update(json.dumps([name, arrays[name].dtype.name, arrays[name].shape]).encode())
        digest.update(arrays[name].data)
    return digest.hexdigest()


def write_atomically(path: Path, raw: bytes) -> None:
    """Write a file completely or not at all; an old one stays until the new one, with its mode and owner, is on the disk."""
    part = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    try:
        with open(part, "xb") as file:
            with suppress(FileNotFoundError):
                _like(path, part)
            file.write(raw)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
    if hasattr(os, "O_DIRECTORY"):  # the new name is only safe once the directory is
        directory = os.open(path.parent, os.O_DIRECTORY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def _like(old: Path, new: Path) -> None:
    """Give a file the owner, as far as that is allowed, and the mode of another."""
    if hasattr(os, "chown"):
        with suppress(PermissionError):
            os.chown(new, old.stat().st_uid, old.stat().st_gid)
    shutil.copymode(old, new)
