"""Model files: safetensors with a JSON header and a SHA-256 over all of it. Nothing in a file is ever run.

A reader trusts nothing: sizes are checked before memory is taken, names, types and shapes before arrays are used. The
checksum finds damage; it is no signature, so a file made to mislead is bounded in what it can cost, not in what it
predicts.
"""

import hashlib
import json
import math
import os
import secrets
import stat
from collections.abc import Mapping
from dataclasses import fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import load as parse_tensors
from safetensors.numpy import save as format_tensors

from scvcc import __version__
from scvcc._clusters.novelty import Sample
from scvcc._training.encoder import Encoder

FORMAT = 1  # raised when an older reader would go wrong
HEADER_LIMIT, FILE_LIMIT = 1 << 20, 1 << 33  # bytes; names of features are kept as a tensor
OF_THE_MACHINE = ("device", "n_jobs", "progress")  # parameters that say nothing about the model
DTYPES = {"F32": "float32", "F64": "float64", "I64": "int64", "U8": "uint8"}

Arrays = dict[str, np.ndarray]


def save_model(model: Any, path: str | os.PathLike[str], extra: Mapping[str, Any] | None) -> None:
    """Write a fitted model, and what `extra` holds: arrays of numbers or strings, or anything JSON can say.

    Without `extra`, what the model was loaded with.
    """
    encoder = {f"encoder.{name}": value.detach().cpu().numpy() for name, value in model.encoder_.state_dict().items()}
    fitted = {"centers": model.cluster_centers_, "embedding": model.embedding_}
    fitted["labels"] = model.labels_.astype(np.int64)
    fitted |= {f"sample.{part}": array for part, array in vars(model.sample_).items()}
    extra = dict(getattr(model, "extra_", {}) if extra is None else extra)
    arrays = {f"extra.{name}": value for name, value in extra.items() if isinstance(value, np.ndarray)}
    if hasattr(model, "feature_names_in_"):
        arrays["feature_names"] = model.feature_names_in_
    params = {name: value for name, value in model.get_params().items() if name not in OF_THE_MACHINE}
    params["random_state"] = params["random_state"] if isinstance(params["random_state"], int | np.integer) else None
    params["hidden"] = list(params["hidden"])
    meta = {
        "format": FORMAT,
        "versions": {"scvcc": __version__, **{name: version(name) for name in ("torch", "numpy", "safetensors")}},
        "params": params,
        "layers": model.encoder_.sizes,
        "sharpness": float(model.sharpness_),
        "device": model.device_,
        "extra": {name: value for name, value in extra.items() if not isinstance(value, np.ndarray)},
    }
    write_atomically(Path(os.path.realpath(path)), _format({**encoder, **fitted, **arrays}, meta))


def load_model(cls: Any, path: str | os.PathLike[str], device: torch.device) -> Any:
    """Read a model; ValueError if the file is not, in every detail, what `save_model` writes."""
    try:
        arrays, meta = _parse(_read(path))
        return _restored(cls, arrays, meta, device)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError, SafetensorError) as error:
        reason = str(error) if isinstance(error, ValueError) else f"its content is malformed ({error!r:.200})"
        raise ValueError(f"{os.fspath(path)!r} cannot be loaded: {reason}") from error


# --------------------------------------------------------------------------------------------------- the model


def _restored(cls: Any, arrays: Arrays, meta: dict[str, Any], device: torch.device) -> Any:
    layers, sharpness = meta["layers"], meta["sharpness"]
    _check_arrays(arrays, layers)
    if not isinstance(sharpness, float) or not 0 < sharpness < math.inf:
        raise ValueError(f"the sharpness must be a positive number, found {sharpness!r:.50}.")
    model = cls(**_params(cls, meta["params"]))
    encoder = Encoder(layers[0], layers[1:-1], layers[-1], torch.Generator())
    encoder.load_state_dict({name: torch.from_numpy(arrays[f"encoder.{name}"]) for name in encoder.state_dict()})
    model.encoder_, model.device_ = encoder.to(device), str(meta["device"])
    model.embedding_, model.labels_ = arrays["embedding"], arrays["labels"]
    model.cluster_centers_, model.sharpness_ = arrays["centers"], sharpness
    model.n_clusters_, model.n_features_in_ = len(model.cluster_centers_), layers[0]
    model.sample_ = Sample(**{field.name: arrays[f"sample.{field.name}"] for field in fields(Sample)})
    if "feature_names" in arrays:
        model.feature_names_in_ = arrays["feature_names"]
    kept = {name.removeprefix("extra."): value for name, value in arrays.items() if name.startswith("extra.")}
    model.extra_ = {**dict(meta["extra"]), **kept}
    return model


def _params(cls: Any, params: dict[str, Any]) -> dict[str, Any]:
    unknown = set(params) - set(cls().get_params()) | set(OF_THE_MACHINE) & set(params)
    if unknown:
        raise ValueError(f"it has unknown parameters, {sorted(unknown)!r:.200}.")
    return {**params, "hidden": tuple(params["hidden"])}


def _check_arrays(arrays: Arrays, layers: Any) -> None:
    """Compare names, types and shapes with what the sizes of the layers ask for, and look at the values."""
    if not isinstance(layers, list) or len(layers) < 2 or not all(type(size) is int and size > 0 for size in layers):
        raise ValueError(f"the sizes of the layers must be positive whole numbers, found {layers!r:.200}.")
    n, K, (m, dim) = len(arrays["embedding"]), len(arrays["centers"]), arrays["sample.rows"].shape
    expected: dict[str, tuple[tuple[int, ...], str]] = {
        "encoder.center": ((layers[0],), "float32"),
        "encoder.scale": ((), "float32"),
        "centers": ((K, layers[-1]), arrays["centers"].dtype.name),
        "embedding": ((n, layers[-1]), "float32"),
        "labels": ((n,), "int64"),
        "sample.rows": ((m, dim), "float32"),
        "sample.distances": ((m,), "float32"),
        "sample.projection": ((layers[-2], dim), "float32"),
    }
    names = [*(f"hidden.{2 * i}" for i in range(len(layers) - 2)), "head"]
    for name, fan_in, fan_out in zip(names, layers, layers[1:], strict=False):
        expected[f"encoder.{name}.weight"] = (fan_out, fan_in), "float32"
        expected[f"encoder.{name}.bias"] = (fan_out,), "float32"
    if "feature_names" in arrays:
        expected["feature_names"] = (layers[0],), "object"
    found = {name: (a.shape, a.dtype.name) for name, a in arrays.items() if not name.startswith("extra.")}
    if found != expected:
        wrong = sorted(name for name in {*found, *expected} if found.get(name) != expected.get(name))
        raise ValueError(f"arrays are missing, unknown, or of another type or shape: {', '.join(wrong)[:200]}.")
    if not all(np.isfinite(a).all() for a in arrays.values() if a.dtype.kind == "f"):
        raise ValueError("it holds NaN or infinite values.")
    labels = arrays["labels"]
    if arrays["centers"].dtype.kind != "f" or not K or not n or labels.min() < 0 or labels.max() >= K:
        raise ValueError(f"the labels of {n} rows do not fit {K} centers.")
    if not arrays["encoder.scale"] > 0:
        raise ValueError("the scale of the encoder is not positive.")
    distances = arrays["sample.distances"]
    if m < 2 or not dim or distances[0] < 0 or (np.diff(distances) < 0).any():
        raise ValueError("its sample of training rows has too few of them, or distances out of order.")


# ------------------------------------------------------------------------------------------------ the container


def _format(arrays: Arrays, meta: dict[str, Any]) -> bytes:
    """Bytes of a file; strings become tensors of UTF-8, one NUL between two."""
    text_names = [name for name, array in arrays.items() if array.dtype.kind in "OUT"]
    tensors = {name: np.asarray(array, order="C") for name, array in arrays.items() if name not in text_names}
    for name, tensor in tensors.items():
        if tensor.dtype.name not in DTYPES.values():
            raise ValueError(f"{name} has dtype {tensor.dtype}: convert it to one of {', '.join(DTYPES.values())}.")
    tensors |= {f"text.{name}": _encoded(name, arrays[name]) for name in text_names}
    text = json.dumps(meta, allow_nan=False, default=_plain)
    raw = format_tensors(tensors, metadata={"scvcc": text, "sha256": _checksum(tensors, text)})
    if int.from_bytes(raw[:8], "little") > HEADER_LIMIT or len(raw) > FILE_LIMIT:
        raise ValueError("The model is too large to save: the parameters or what extra holds exceed the limits.")
    return raw


def _encoded(name: str, strings: np.ndarray) -> np.ndarray:
    text = "\0".join(map(str, strings))
    if strings.ndim != 1 or not len(strings) or text.count("\0") != len(strings) - 1:
        raise ValueError(f"{name} must be a list of strings without NUL characters.")
    return np.frombuffer(text.encode(), np.uint8)


def _plain(value: Any) -> Any:
    """What JSON lacks: numbers of numpy, mappings that are no dict."""
    if isinstance(value, np.generic):
        return value.item()
    if hasattr(value, "items"):
        return dict(value)
    raise TypeError(f"A model file cannot hold a {type(value).__name__}: use numbers, strings, lists or arrays.")


def _checksum(tensors: Arrays, text: str) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        digest.update(json.dumps([name, tensors[name].dtype.name, tensors[name].shape]).encode())
        digest.update(tensors[name].data)
    return digest.hexdigest()


def _read(path: str | os.PathLike[str]) -> bytes:
    """The whole file, after a look at its kind, its size and the size of its header."""
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise ValueError("it is not a file.")
    with open(path, "rb") as file:
        size, start = os.fstat(file.fileno()).st_size, file.read(8)
        header = int.from_bytes(start, "little")
        if not 10 <= size <= FILE_LIMIT or not 2 <= header <= min(size - 8, HEADER_LIMIT):
            raise ValueError(f"{size} bytes with a header of {header} are no model file, or only a part of one.")
        return start + file.read(size - 8)


def _parse(raw: bytes) -> tuple[Arrays, dict[str, Any]]:
    header = _json(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    kinds = {entry["dtype"] for name, entry in header.items() if name != "__metadata__"}
    if not kinds <= set(DTYPES):
        raise ValueError(f"it has arrays of an unknown type, {sorted(map(str, kinds - set(DTYPES)))!r:.100}.")
    stored = header["__metadata__"]
    if set(stored) != {"scvcc", "sha256"}:
        raise ValueError("it is a safetensors file, but not a model saved by scvcc.")
    meta = _json(stored["scvcc"])
    if meta["format"] != FORMAT:
        raise ValueError(
            f"its format is {meta['format']!r:.50}, and scvcc {__version__} reads format {FORMAT}: "
            "update scvcc if the file comes from a newer version."
        )
    tensors = parse_tensors(raw)
    if _checksum(tensors, stored["scvcc"]) != stored["sha256"]:
        raise ValueError("its content does not match its checksum: the file is damaged. Copy or save it again.")
    return {name.removeprefix("text."): _decoded(name, tensor) for name, tensor in tensors.items()}, meta


def _json(text: bytes | str) -> dict[str, Any]:
    def refuse(constant: str) -> None:
        raise ValueError(f"it holds the number {constant}.")

    value = json.loads(text, parse_constant=refuse)
    if not isinstance(value, dict):
        raise ValueError("its header is not a JSON object.")
    return value


def _decoded(name: str, tensor: np.ndarray) -> np.ndarray:
    return np.array(tensor.tobytes().decode().split("\0"), dtype=object) if name.startswith("text.") else tensor


def write_atomically(path: Path, raw: bytes) -> None:
    """Write a file completely or not at all; an old one stays as it is until the new one is on the disk."""
    part = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    try:
        with open(part, "xb") as file:
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
