"""Model files: safetensors with a JSON header and a SHA-256 over all of it. Nothing in a file is ever run.

A reader trusts nothing: names, types, sizes and shapes are checked on the header, before an array is read. The checksum
finds damage; it is not a signature: the checks limit what a malicious file can cost, not what it predicts.
"""

import io
import json
import math
import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields
from importlib.metadata import version
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np
import torch
from safetensors.numpy import save as format_tensors

from scvcc import __version__
from scvcc._clusters.novelty import Sample
from scvcc._clusters.tree import LeafRule, Tree
from scvcc._training.checkpoint import checksum, write_atomically
from scvcc._training.encoder import Encoder, early_width

FORMAT = 1  # raised when an older reader would go wrong
# bytes; 100 million cells take 2 GB, names of features are kept as a tensor
HEADER_LIMIT, FILE_LIMIT = 1 << 20, 1 << 32
OF_THE_MACHINE = ("checkpoint", "device", "n_jobs", "progress")  # parameters that say nothing about the model
DTYPES = {"F32": "float32", "F64": "float64", "I64": "int64", "U8": "uint8"}
MALFORMED = (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError)  # what reading may raise

Arrays: TypeAlias = dict[str, np.ndarray]
Shapes: TypeAlias = dict[str, tuple[tuple[int, ...], str]]  # shape and dtype by name


def save_model(model: Any, path: str | os.PathLike[str], extra: Mapping[str, Any] | None) -> None:
    """Write a fitted model, and what `extra` holds: arrays of numbers or strings, or anything JSON can say.

    Without `extra`, what the model was loaded with. The file is read back before it takes its place.
    """
    target = writable(path)
    encoder = {f"encoder.{name}": array for name, array in model.encoder_.arrays().items()}
    fitted = {"centers": model.cluster_centers_, "embedding": model.embedding_}
    fitted["labels"] = model.labels_.astype(np.int64)
    for name, parts in (("sample", model.sample_), ("tree", model.tree_), ("leaf_rule", model.leaf_rule_)):
        fitted |= {f"{name}.{part}": array for part, array in vars(parts).items()}
    extra = getattr(model, "extra_", {}) if extra is None else extra
    if not isinstance(extra, Mapping):
        raise TypeError(f"extra must be a dict of names and values, found {type(extra).__name__}.")
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
    raw = _format({**encoder, **fitted, **arrays}, meta)
    try:
        _restored(type(model), *_parse(io.BytesIO(raw), len(raw)), torch.device("cpu"))
    except MALFORMED as error:
        raise ValueError(f"The model or extra cannot be kept in a file: {_reason(error)}") from error
    write_atomically(target, raw)


def load_model(cls: Any, path: str | os.PathLike[str], device: torch.device) -> Any:
    """Read a model; ValueError if the file is not, in every detail, what `save_model` writes."""
    _check_path(path)
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise ValueError(f"{os.fspath(path)!r} cannot be loaded: it is not a file.")
    with open(path, "rb") as file:
        try:
            return _restored(cls, *_parse(file, os.fstat(file.fileno()).st_size), device)
        except MALFORMED as error:
            raise ValueError(f"{os.fspath(path)!r} cannot be loaded: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, ValueError) else f"its content is malformed ({error!r:.200})"


def _check_path(path: Any) -> None:
    if not isinstance(path, str | os.PathLike) or "\0" in str(path) or not str(path):
        raise TypeError(f"path must name a file, found {path!r:.200} of type {type(path).__name__}.")


def writable(path: str | os.PathLike[str]) -> Path:
    """The file that `path` leads to, perhaps a new one; refuses what is not a file, or is read-only."""
    _check_path(path)
    target = Path(os.path.realpath(path))
    if not target.parent.is_dir():
        raise ValueError(f"{os.fspath(path)!r} must name a file in a directory that exists.")
    for place in (path, target):  # a link to a pipe has no real path
        with suppress(FileNotFoundError):
            mode = os.stat(place).st_mode
            if not stat.S_ISREG(mode):
                raise ValueError(f"{os.fspath(path)!r} exists and is not a file: choose another name.")
            if not mode & 0o222 or not os.access(place, os.W_OK):  # for root, access is always granted
                raise PermissionError(f"{os.fspath(path)!r} is read-only: choose another name, or make it writable.")
    return target


# --------------------------------------------------------------------------------------------------- the model


def _restored(cls: Any, arrays: Arrays, meta: dict[str, Any], device: torch.device) -> Any:
    layers, sharpness = meta["layers"], meta["sharpness"]
    _check_values(arrays, layers)
    if not isinstance(sharpness, float) or not 0 < sharpness < math.inf:
        raise ValueError(f"the sharpness must be a positive number, found {sharpness!r:.50}.")
    model = cls(**_params(cls, meta["params"]))
    encoder = Encoder.of(layers, {name.removeprefix("encoder."): array for name, array in arrays.items()})
    model.encoder_, model.device_ = encoder.to(device), str(meta["device"])
    model.embedding_, model.labels_ = arrays["embedding"], arrays["labels"]
    model.cluster_centers_, model.sharpness_ = arrays["centers"], sharpness
    model.n_clusters_, model.n_features_in_ = len(model.cluster_centers_), layers[0]
    for name, kind in (("sample", Sample), ("tree", Tree), ("leaf_rule", LeafRule)):
        setattr(model, f"{name}_", kind(**{field.name: arrays[f"{name}.{field.name}"] for field in fields(kind)}))
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


def _check_shapes(found: Shapes, layers: Any) -> None:
    """Compare names, types and shapes with what the sizes of the layers ask for."""
    if not isinstance(layers, list) or len(layers) < 2 or not all(type(size) is int and size > 0 for size in layers):
        raise ValueError(f"the sizes of the layers must be positive whole numbers, found {layers!r:.200}.")
    found = {name: kind for name, kind in found.items() if not name.removeprefix("text.").startswith("extra.")}
    (n, *_), (K, *_), (m, dim) = (found[name][0] for name in ("embedding", "centers", "sample.rows"))
    (n_leaves,) = found["tree.size"][0]
    expected: Shapes = {
        "encoder.center": ((layers[0],), "float32"),
        "encoder.scale": ((), "float32"),
        "centers": ((K, layers[-1]), "float64" if found["centers"][1] == "float64" else "float32"),
        "embedding": ((n, layers[-1]), "float32"),
        "labels": ((n,), "int64"),
        "sample.rows": ((m, dim), "float32"),
        "sample.projection": ((early_width(layers), dim), "float32"),
        "sample.middle": ((K,), "float32"),
        "sample.spread": ((K,), "float32"),
        "sample.scores": ((m,), "float32"),
        "sample.pooled": ((m,), "float32"),
        "tree.cluster": ((n_leaves,), "int64"),
        "tree.size": ((n_leaves,), "int64"),
        "tree.merges": ((n_leaves - 1, 2), "int64"),
        "tree.link": ((n_leaves - 1,), "float64"),
        "leaf_rule.weights": ((layers[1] if len(layers) > 2 else layers[0], n_leaves), "float32"),
        "leaf_rule.offset": ((n_leaves,), "float32"),
    }
    names = [*(f"hidden.{2 * i}" for i in range(len(layers) - 2)), "head"]
    for name, fan_in, fan_out in zip(names, layers, layers[1:], strict=False):
        expected[f"encoder.{name}.weight"] = (fan_out, fan_in), "float32"
        expected[f"encoder.{name}.bias"] = (fan_out,), "float32"
    if (text := "text.feature_names") in found:
        expected[text] = (math.prod(found[text][0]),), "uint8"
    if found != expected:
        wrong = sorted(name for name in {*found, *expected} if found.get(name) != expected.get(name))
        raise ValueError(f"arrays are missing, unknown, or of another type or shape: {', '.join(wrong)[:200]}.")


def _check_values(arrays: Arrays, layers: list[int]) -> None:
    """Look at what the arrays hold."""
    wrong = [name for name, array in arrays.items() if array.dtype.kind == "f" and not np.isfinite(array).all()]
    if wrong:
        raise ValueError(f"{', '.join(wrong)[:200]} holds NaN or infinite values.")
    labels, n, K = arrays["labels"], len(arrays["labels"]), len(arrays["centers"])
    if not K or not n or labels.min() < 0 or labels.max() >= K:
        raise ValueError(f"the labels of {n} rows do not fit {K} centers.")
    _check_tree(arrays["tree.cluster"], arrays["tree.merges"], K)
    if not arrays["encoder.scale"] > 0:
        raise ValueError("the scale of the encoder is not positive.")
    if "feature_names" in arrays and len(arrays["feature_names"]) != layers[0]:
        raise ValueError(f"it does not name {layers[0]} features.")
    known = [arrays["sample.scores"], arrays["sample.pooled"]]
    if (
        min(arrays["sample.rows"].shape) < 1
        or len(known[0]) < 2
        or any((np.diff(scores) < 0).any() for scores in known)
    ):
        raise ValueError("its sample of training rows has too few of them, or scores out of order.")
    if arrays["sample.spread"].min() <= 0:
        raise ValueError("its sample of training rows has clusters without a spread.")


def _check_tree(cluster: np.ndarray, merges: np.ndarray, K: int) -> None:
    """Every node is absorbed once, by an earlier one that is still there; and the fitted clusters are on the way."""
    kept, absorbed = merges.T
    is_complete = np.array_equal(np.sort(absorbed), np.arange(1, len(cluster))) and (kept >= 0).all()
    if is_complete and (kept < absorbed).all():
        ends = np.append(len(cluster), np.argsort(absorbed))  # the merge that a node ends with
        if (ends[kept] > np.arange(len(merges))).all() and K <= len(cluster):
            node = Tree(cluster, cluster, merges, kept).cut(K)
            if np.array_equal(node, cluster):
                return
    raise ValueError(f"its tree is not one, or does not pass through {K} clusters.")


# ------------------------------------------------------------------------------------------------ the container


def _format(arrays: Arrays, meta: dict[str, Any]) -> bytes:
    """Bytes of a file; strings become tensors of UTF-8, one NUL between two."""
    text_names = [name for name, array in arrays.items() if array.dtype.kind in "OUT"]
    tensors = {name: np.asarray(array, order="C") for name, array in arrays.items() if name not in text_names}
    for name, tensor in tensors.items():
        if tensor.dtype.name not in DTYPES.values():
            raise ValueError(f"{name} has dtype {tensor.dtype}: convert it to one of {', '.join(DTYPES.values())}.")
    tensors |= {f"text.{name}": _encoded(name, arrays[name]) for name in text_names}
    try:
        text = json.dumps(meta, allow_nan=False, default=_plain)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"extra must hold finite numbers, strings, lists and arrays: {error}.") from error
    raw = format_tensors(tensors, metadata={"scvcc": text, "sha256": checksum(tensors, text)})
    if int.from_bytes(raw[:8], "little") > HEADER_LIMIT or len(raw) > FILE_LIMIT:
        raise ValueError("The model is too large to save: the parameters or what extra holds exceed the limits.")
    return raw


def _encoded(name: str, strings: np.ndarray) -> np.ndarray:
    text = "\0".join(map(str, strings.ravel()))
    if strings.ndim != 1 or not len(strings) or text.count("\0") != len(strings) - 1:
        raise ValueError(f"{name} must be a list of strings without NUL characters.")
    return np.frombuffer(text.encode(errors="replace"), np.uint8)


def _plain(value: Any) -> Any:
    """What JSON lacks: numpy numbers, and mappings other than dict."""
    if isinstance(value, np.generic):
        return value.item()
    if hasattr(value, "items"):
        return dict(value)
    raise TypeError(f"extra: a model file cannot hold a {type(value).__name__}: use numbers, strings, lists or arrays.")


def _parse(file: BinaryIO, size: int) -> tuple[Arrays, dict[str, Any]]:
    """Arrays and description; no array is read unless the header is that of a model that fits into the file."""
    header_size = int.from_bytes(file.read(8), "little")
    if not 10 <= size <= FILE_LIMIT or not 2 <= header_size <= min(size - 8, HEADER_LIMIT):
        raise ValueError(f"{size} bytes with a header of {header_size} are not a model file, or only part of one.")
    header = _json(file.read(header_size))
    stored = header.pop("__metadata__")
    if set(stored) != {"scvcc", "sha256"}:
        raise ValueError("it is a safetensors file, but not a model saved by scvcc.")
    meta = _json(stored["scvcc"])
    if meta["format"] != FORMAT:
        raise ValueError(
            f"its format is {meta['format']!r:.50}, and scvcc {__version__} reads format {FORMAT}: "
            "update scvcc if the file comes from a newer version."
        )
    shapes = _shapes(header, size - 8 - header_size)
    _check_shapes(shapes, meta["layers"])
    tensors = {name: _next_array(file, *kind) for name, kind in shapes.items()}
    if checksum(tensors, stored["scvcc"]) != stored["sha256"]:
        raise ValueError("its content does not match its checksum: the file is damaged. Copy or save it again.")
    return {name.removeprefix("text."): _decoded(name, tensor) for name, tensor in tensors.items()}, meta


def _shapes(header: dict[str, Any], n_bytes: int) -> Shapes:
    """Shapes and types in the order of the file, where the arrays lie one after another without a gap."""
    shapes: Shapes = {}
    end = 0
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        if entry["dtype"] not in DTYPES:
            raise ValueError(f"it has arrays of an unknown type, {entry['dtype']!r:.100}.")
        shape, dtype = tuple(entry["shape"]), DTYPES[entry["dtype"]]
        if not all(type(length) is int and length >= 0 for length in shape):
            raise ValueError(f"{name[:100]} has the shape {shape!r:.100}.")
        start, end = end, end + math.prod(shape) * np.dtype(dtype).itemsize
        if entry["data_offsets"] != [start, end]:
            raise ValueError(f"{name[:100]} is not where its shape and the arrays before it say.")
        shapes[name] = shape, dtype
    if end != n_bytes:
        raise ValueError(f"its arrays have {end} bytes, and the file holds {n_bytes}: it is damaged.")
    return shapes


def _next_array(file: BinaryIO, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    array = np.empty(shape, np.dtype(dtype).newbyteorder("<"))
    file.readinto(array.reshape(-1).view(np.uint8))  # type: ignore[attr-defined]
    return array


def _json(text: bytes | str) -> dict[str, Any]:
    def refuse(constant: str) -> None:
        raise ValueError(f"it holds the number {constant}.")

    value = json.loads(text, parse_constant=refuse)
    if not isinstance(value, dict):
        raise ValueError("its header is not a JSON object.")
    return value


def _decoded(name: str, tensor: np.ndarray) -> np.ndarray:
    return np.array(tensor.tobytes().decode().split("\0"), dtype=object) if name.startswith("text.") else tensor
