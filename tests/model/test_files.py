"""Model files: round trips, atomic writing, and refusal of everything that is not a whole, valid file."""

import hashlib
import json
import os
import socket
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import torch
from sklearn.base import clone
from sklearn.datasets import make_blobs
from sklearn.exceptions import NotFittedError
from torch.utils import backend_registration

import scvcc
from scvcc import VCC
from scvcc._model import files as _files

GOLDEN = Path(__file__).parent / "data" / "model.safetensors"
X = make_blobs(60, n_features=5, centers=3, random_state=0)[0].astype(np.float32)
NEW = make_blobs(700, n_features=5, centers=3, random_state=1)[0].astype(np.float32)


@pytest.fixture(scope="module")
def model():
    torch.set_num_threads(1)
    return VCC(3, hidden=(6, 4), epochs=0, loss_weights={"boundary": 0.5}).fit(X)


@pytest.fixture
def file(model, tmp_path):
    path = tmp_path / "model.safetensors"
    model.save(path)
    return path


def assert_same(a, b):
    for name in ("embedding_", "labels_", "cluster_centers_", "proba_"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name), strict=True)
    for rows in (NEW, sp.csr_matrix(NEW), NEW[:1]):
        np.testing.assert_array_equal(a.transform(rows), b.transform(rows), strict=True)
        np.testing.assert_array_equal(a.predict(rows), b.predict(rows), strict=True)
        np.testing.assert_array_equal(a.predict_proba(rows), b.predict_proba(rows), strict=True)
        if b.sample_ is not None:
            np.testing.assert_array_equal(a.novelty(rows), b.novelty(rows), strict=True)
    assert (a.n_clusters_, a.n_features_in_, a.sharpness_) == (b.n_clusters_, b.n_features_in_, b.sharpness_)


def test_round_trip_is_exact(model, file):
    loaded = VCC.load(file)
    assert_same(model, loaded)
    assert loaded.get_params() == model.get_params()
    assert type(loaded.hidden) is tuple
    assert loaded.device_ == model.device_
    assert clone(loaded).get_params() == model.get_params()


def test_a_second_round_trip_gives_the_same_content(file, tmp_path):
    VCC.load(file).save(tmp_path / "again")
    (header, data), (again, data_again) = split(file.read_bytes()), split((tmp_path / "again").read_bytes())
    assert (header, data) == (again, data_again)


def test_a_loaded_model_can_be_fitted_again(model, file):
    again = VCC.load(file).fit(X)
    np.testing.assert_array_equal(again.labels_, model.labels_)


def test_random_state_of_the_caller_is_untouched(file):
    before = torch.get_rng_state()
    VCC.load(file)
    assert torch.equal(before, torch.get_rng_state())


def test_feature_names_and_extra(tmp_path):
    table = pd.DataFrame(X, columns=["a", "b", "é", "d d", "e"])
    model = VCC(3, hidden=(), epochs=0, random_state=np.random.default_rng(0)).fit(table)
    extra = {"names": np.array(["x", "ü", ""]), "A": np.eye(2, 3), "n": np.int64(3), "list": [1, "a", None]}
    model.save(tmp_path / "m", extra=extra)
    loaded = VCC.load(tmp_path / "m")
    assert loaded.feature_names_in_.tolist() == list(table)
    np.testing.assert_array_equal(loaded.transform(table), model.embedding_)
    with pytest.raises(ValueError, match="feature names"):
        loaded.transform(table[["b", "a", "é", "d d", "e"]])
    assert loaded.random_state is None  # a generator does not travel
    assert loaded.extra_["names"].tolist() == ["x", "ü", ""]
    np.testing.assert_array_equal(loaded.extra_["A"], np.eye(2, 3))
    assert (loaded.extra_["n"], loaded.extra_["list"]) == (3, [1, "a", None])


def test_extra_is_saved_again_and_forgotten_by_a_new_fit(model, tmp_path):
    model.save(tmp_path / "first", extra={"names": np.array(["x", "y"]), "n": 3})
    loaded = VCC.load(tmp_path / "first")
    loaded.save(tmp_path / "second")
    again = VCC.load(tmp_path / "second")
    assert (again.extra_["names"].tolist(), again.extra_["n"]) == (["x", "y"], 3)
    again.save(tmp_path / "third", extra={})
    assert VCC.load(tmp_path / "third").extra_ == {}
    assert not hasattr(again.fit(X), "extra_")


def test_settings_of_the_machine_stay_behind(model, tmp_path):
    other = VCC.load(GOLDEN)
    other.set_params(n_jobs=7, progress=True, device="cuda:3").save(tmp_path / "m")
    loaded = VCC.load(tmp_path / "m", device="cpu")
    assert (loaded.n_jobs, loaded.progress, loaded.device) == (None, False, "auto")


def test_golden_file():
    model = VCC.load(GOLDEN)
    stored = model.extra_
    assert model.get_params()["min_cluster_size"] == 7
    np.testing.assert_allclose(model.transform(stored["rows"]), stored["map"], rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(model.predict(stored["rows"]), stored["labels"])
    np.testing.assert_allclose(model.predict_proba(stored["rows"]), stored["proba"], atol=1e-4)
    np.testing.assert_array_equal(model.predict(stored["rows"], n_clusters=6), stored["finer"])
    np.testing.assert_allclose(model.novelty(stored["rows"]), stored["novelty"], atol=1 / 50)
    assert stored["names"].tolist() == ["first", "zweite", "troisième"]
    assert stored["note"] == "golden"


def test_sample_that_lies(file):
    header, data = split(file.read_bytes())
    meta, (start, stop) = meta_of(header), header["sample.scores"]["data_offsets"]
    backwards = np.frombuffer(data[start:stop], np.float32)[::-1].tobytes()
    assert_refused(file, signed(header, data[:start] + backwards + data[stop:], meta), "scores out of order")
    start, stop = header["sample.spread"]["data_offsets"]
    none = np.zeros((stop - start) // 4, np.float32).tobytes()
    assert_refused(file, signed(header, data[:start] + none + data[stop:], meta), "without a spread")
    parts = ("sample.rows", "sample.scores", "sample.pooled")
    short = {name: {**header[name], "shape": [1, *header[name]["shape"][1:]]} for name in parts}
    assert_refused(file, signed({**header, **short}, data, meta))


def test_what_cannot_be_saved(model, tmp_path):
    path = tmp_path / "m"
    with pytest.raises(NotFittedError):
        VCC().save(path)
    with pytest.raises(TypeError, match="cannot hold a set"):
        model.save(path, extra={"a": {1, 2}})
    with pytest.raises(ValueError, match="extra.a has dtype complex128"):
        model.save(path, extra={"a": np.ones(2, complex)})
    with pytest.raises(ValueError, match="NUL"):
        model.save(path, extra={"a": np.array(["x\0y"], dtype=object)})
    for nan in ({"a": [np.nan]}, {"a": {"b": np.float32("inf")}}, {"a": np.array([0, np.nan])}):
        with pytest.raises(ValueError, match="extra.*(finite|NaN)"):
            model.save(path, extra=nan)
    with pytest.raises(ValueError, match="extra.a must be a list of strings"):
        model.save(path, extra={"a": np.array("text")})
    with pytest.raises(TypeError, match="extra must be a dict or None, found 3 of type int"):
        model.save(path, extra=3)
    with pytest.raises(ValueError, match="too large"):
        model.save(path, extra={"a": "x" * _files.HEADER_LIMIT})
    with pytest.raises(ValueError, match="nowhere/m' must name a file in a directory that exists"):
        model.save(tmp_path / "nowhere" / "m")
    assert not list(tmp_path.iterdir())


# -------------------------------------------------------------------------------------------------------- writing


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_failed_write_leaves_the_old_file(model, file, monkeypatch, step):
    before = file.read_bytes()

    def fail(*args):
        raise OSError("no space left")

    monkeypatch.setattr(os, step, fail)
    with pytest.raises(OSError, match="no space"):
        model.save(file, extra={"new": 1})
    assert file.read_bytes() == before
    assert list(file.parent.iterdir()) == [file]


def test_the_content_is_on_the_disk_before_the_name(model, file, monkeypatch):
    calls = []
    for name in ("fsync", "replace"):
        original = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *a, name=name, original=original: (calls.append(name), original(*a))[1])
    model.save(file)
    assert calls[:2] == ["fsync", "replace"]


def test_a_link_is_followed_and_the_umask_obeyed(model, tmp_path):
    (tmp_path / "there").mkdir()
    link, target = tmp_path / "link", tmp_path / "there" / "m"
    link.symlink_to(target)
    before = os.umask(0o027)
    try:
        model.save(link)
    finally:
        os.umask(before)
    assert link.is_symlink() and target.is_file()
    assert target.stat().st_mode & 0o777 == 0o640


def test_mode_and_owner_of_the_file_replaced_are_kept(model, file):
    file.chmod(0o640)
    if os.getuid() == 0:
        os.chown(file, 1234, 2345)
    before = file.stat()
    model.save(file, extra={"new": 1})
    after = file.stat()
    assert (after.st_mode, after.st_uid, after.st_gid) == (before.st_mode, before.st_uid, before.st_gid)
    assert VCC.load(file).extra_ == {"new": 1}


def special(kind, folder):
    """Something that is there and is not a file that may be replaced."""
    path = folder / "special"
    if kind == "device":
        return Path(os.devnull)
    if kind == "folder":
        path.mkdir()
    if "pipe" in kind:
        os.mkfifo(path)
    if kind == "socket":
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(path))
    if kind == "read-only":
        path.write_bytes(b"mine")
        path.chmod(0o444)
    if kind.startswith("link"):
        (folder / "link").symlink_to(os.devnull if "device" in kind else path)
        return folder / "link"
    return path


SPECIAL = ["device", "folder", "pipe", "socket", "read-only", "link to a pipe", "link to a device"]


@pytest.mark.parametrize("kind", SPECIAL)
def test_what_is_not_a_file_of_ours_is_never_replaced(model, tmp_path, kind, monkeypatch):
    path = special(kind, tmp_path)
    before, names = path.lstat(), sorted(tmp_path.iterdir())
    monkeypatch.setattr(_files, "_format", None)  # nothing is computed
    with pytest.raises((ValueError, PermissionError), match="read-only" if kind == "read-only" else "not a file"):
        model.save(path)
    after = path.lstat()
    assert (after.st_mode, after.st_ino) == (before.st_mode, before.st_ino)
    assert sorted(tmp_path.iterdir()) == names


@pytest.mark.parametrize("kind", SPECIAL)
def test_vcc_refuses_such_a_target_before_it_computes(blobs, tmp_path, kind, monkeypatch, untouched):
    path = special(kind, tmp_path)
    monkeypatch.setattr(scvcc.VCC, "fit", None)
    with untouched(blobs), pytest.raises((ValueError, PermissionError), match=str(path)):
        scvcc.tl.vcc(blobs, 4, save_to=path)


@pytest.mark.parametrize("path", [True, 1, None, 2.5, b"m", "", "a\0b", ["m"]])
def test_a_path_is_a_path(model, path):
    for function in (model.save, VCC.load):
        with pytest.raises(TypeError, match="path must (be a string or a path|name a file), found"):
            function(path)
    os.fstat(1)  # file descriptors are not paths: 1 is still open


@pytest.mark.skipif(
    not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"), reason="torch is too old"
)
def test_loads_on_the_cpu_what_was_on_another_device(model, tmp_path):
    """The pretend device of `standin` needs its own process."""
    script = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
from standin import standin_device, StandIn
from scvcc import VCC
model = VCC.load({str(GOLDEN)!r})
with standin_device():
    model.encoder_.to("standin:0")
    assert isinstance(next(model.encoder_.parameters()).data, StandIn)
    model.device_ = "standin:0"
    model.save({str(tmp_path / "m")!r})
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=300)
    loaded, original = VCC.load(tmp_path / "m", device="cpu"), VCC.load(GOLDEN, device="cpu")
    assert loaded.device_ == "standin:0"
    np.testing.assert_array_equal(loaded.transform(NEW), original.transform(NEW))


def test_device_is_checked(file):
    with pytest.raises(ValueError, match="device='toaster' cannot be used"):
        VCC.load(file, device="toaster")


# -------------------------------------------------------------------------------------------------------- reading


def split(raw):
    """Header and data of a file."""
    size = int.from_bytes(raw[:8], "little")
    return json.loads(raw[8 : 8 + size]), raw[8 + size :]


def join(header, data):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def signed(header, data, meta):
    """A file with other metadata or tensors and the checksum that belongs to them."""
    digest = hashlib.sha256((text := meta if isinstance(meta, str) else json.dumps(meta)).encode())
    for name in sorted(set(header) - {"__metadata__"}):
        entry = header[name]
        digest.update(json.dumps([name, _files.DTYPES[entry["dtype"]], entry["shape"]]).encode())
        digest.update(data[slice(*entry["data_offsets"])])
    return join({**header, "__metadata__": {"scvcc": text, "sha256": digest.hexdigest()}}, data)


def meta_of(header):
    return json.loads(header["__metadata__"]["scvcc"])


def assert_refused(path, raw, match="cannot be loaded"):
    path.write_bytes(raw)
    with pytest.raises(ValueError, match=match) as caught:
        VCC.load(path)
    assert len(str(caught.value)) < 1000


def test_the_forged_checksum_of_these_tests_is_right(model, file):
    header, data = split(file.read_bytes())
    file.write_bytes(signed(header, data, meta_of(header)))
    assert_same(model, VCC.load(file))


def test_not_a_file(tmp_path):
    with pytest.raises(ValueError, match="not a file"):
        VCC.load(tmp_path)
    with pytest.raises(FileNotFoundError):
        VCC.load(tmp_path / "nothing")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="not a file"):
        VCC.load(tmp_path / "pipe")


@pytest.mark.parametrize("raw", [b"", b"\0" * 8, b"\0" * 100, b"\x80\x04K\x01.", b"\xff" * 100, b"PK\3\4" * 100])
def test_other_files(tmp_path, raw):
    assert_refused(tmp_path / "m", raw)


def test_sizes_are_checked_before_anything_is_read(tmp_path, monkeypatch):
    path, limit = tmp_path / "m", _files.HEADER_LIMIT
    assert_refused(path, (limit + 1).to_bytes(8, "little") + b" " * 2 * limit, "not a model file")
    monkeypatch.setattr(_files, "FILE_LIMIT", 1000)
    assert_refused(path, (500).to_bytes(8, "little") + b" " * 1000, "not a model file")


@pytest.mark.parametrize("gigabytes", [3, 7])
def test_large_files_that_are_no_model_cost_nothing(file, gigabytes):
    """Holes take no place on the disk; every header here is well-formed."""
    header, data = split(file.read_bytes())
    size = gigabytes * 10**9
    zeros = {"dtype": "F32", "shape": [size // 4], "data_offsets": [0, size]}
    shifted = {**header["embedding"], "shape": [size // 8, 2], "data_offsets": [0, size]}
    for entries in ({"w": zeros, "__metadata__": {"format": "pt"}}, {"w": zeros}, {**header, "embedding": shifted}):
        text = json.dumps(entries).encode()
        file.write_bytes(len(text).to_bytes(8, "little") + text)
        os.truncate(file, 8 + len(text) + size)
        tracemalloc.start()
        start = time.perf_counter()
        with pytest.raises(ValueError, match="cannot be loaded"):
            VCC.load(file)
        assert time.perf_counter() - start < 1
        assert tracemalloc.get_traced_memory()[1] < 2**22
        tracemalloc.stop()


def test_newer_format(file):
    header, data = split(file.read_bytes())
    assert_refused(file, signed(header, data, {**meta_of(header), "format": 3}), "update scvcc")


def test_other_safetensors_files(file):
    header, data = split(file.read_bytes())
    assert_refused(file, join({**header, "__metadata__": {"format": "pt"}}, data), "not a model saved by scvcc")
    del header["__metadata__"]
    assert_refused(file, join(header, data))


def test_swapped_tensors(file):
    header, data = split(file.read_bytes())
    names = "encoder.hidden.0.bias", "encoder.center"  # of different sizes
    a, b = (header[name] for name in names)
    assert_refused(file, join({**header, names[0]: b, names[1]: a}, data), "another type or shape")
    forged = signed({**header, names[0]: b, names[1]: a}, data, meta_of(header))
    assert_refused(file, forged, "another type or shape: encoder.center, encoder.hidden.0.bias")


def test_a_changed_value(file):
    raw = bytearray(file.read_bytes())
    raw[-1] ^= 1
    assert_refused(file, bytes(raw), "checksum")


@pytest.mark.parametrize(
    "change",
    [
        {"layers": [5, 6, 4, 3]},
        {"layers": [10**15, 6, 4, 2]},
        {"layers": [5, 2]},
        {"layers": []},
        {"layers": None},
        {"layers": [5, 6, 4, 2.0]},
        {"sharpness": -1.0},
        {"sharpness": 1e999},
        {"sharpness": "much"},
        {"params": {"n_clusters": 3, "colour": 1, "hidden": []}},
        {"params": {"n_jobs": 10**9, "hidden": []}},
        {"params": 3},
        {"params": {}},
        {"extra": 7},
        {"format": "1"},
    ],
    ids=str,
)
def test_metadata_that_lies(file, change):
    header, data = split(file.read_bytes())
    text = json.dumps({**meta_of(header), **change}).replace("Infinity", "1e999")
    assert_refused(file, signed(header, data, text))


@pytest.mark.parametrize(
    "name",
    [
        "embedding",
        "labels",
        "centers",
        "encoder.head.weight",
        "encoder.scale",
        "sample.rows",
        "sample.scores",
        "sample.pooled",
        "sample.middle",
        "sample.spread",
        "sample.projection",
    ],
)
def test_arrays_that_lie(file, name):
    header, data = split(file.read_bytes())
    meta, entry = meta_of(header), header[name]
    without = {key: value for key, value in header.items() if key != name}
    assert_refused(file, signed(without, data, meta))
    assert_refused(file, signed({**without, "other": entry}, data, meta))
    assert_refused(file, signed({**header, name: {**entry, "shape": [1, *entry["shape"]]}}, data, meta))
    size = entry["data_offsets"][1] - entry["data_offsets"][0]
    assert_refused(file, signed({**header, name: {**entry, "dtype": "U8", "shape": [size]}}, data, meta))
    start = entry["data_offsets"][0]
    broken = data[:start] + b"\xff" * size + data[start + size :]  # NaN, or label −1
    assert_refused(file, signed(header, broken, meta), "NaN|labels of")


@pytest.mark.parametrize(
    "bomb",
    [
        "[" * 500_000,
        '{"a":' * 100_000,
        '{"format": ' + "9" * 500_000 + "}",
        '{"format": NaN}',
        '{"format": 1e999}',
        "1",
    ],
    ids=["lists", "objects", "digits", "nan", "inf", "number"],
)
def test_json_bombs(file, bomb):
    header, data = split(file.read_bytes())
    assert_refused(file, join(bomb.encode(), data))
    assert_refused(file, join({**header, "__metadata__": {"scvcc": bomb, "sha256": ""}}, data))
    assert_refused(file, signed(header, data, '{"extra": ' + bomb + "}"))


HOSTILE = (
    0,
    -1,
    2**31,
    2**63,
    2**64,
    10**30,
    0.5,
    "x",
    None,
    [],
    {},
    [[]],
    [2**62, 4],
    [0] * 100,
    "../../etc",
    "F8_E4M3",
)


def mutated(raw, other, rng):
    """One of many ways to spoil a file; the names of files inside a file do not exist, so nothing can point outside."""
    kind, at = rng.integers(8), int(rng.integers(len(raw)))
    data = bytearray(raw)
    if kind == 0:
        return raw[:at]
    if kind == 1:
        data[at] ^= 1 << int(rng.integers(8))
    elif kind == 2:
        data[at : at + 8] = rng.bytes(8)
    elif kind == 3:
        data[at:at] = rng.bytes(int(rng.integers(1, 20)))
    elif kind == 4:
        del data[at : at + int(rng.integers(1, 20))]
    elif kind == 5:
        data[:8] = int(rng.integers(2 ** int(rng.integers(1, 64)))).to_bytes(8, "little")
    elif kind == 6:
        return raw[:at] + other[at:]
    else:
        return with_hostile_header(raw, rng)
    return bytes(data)


def with_hostile_header(raw, rng):
    """Replace one value of the header, or swap two entries."""
    header, data = split(raw)
    names = list(header)
    first, second = (names[i] for i in rng.choice(len(names), 2, replace=False))
    if rng.random() < 0.3:
        header[first], header[second] = header[second], header[first]
    else:
        field = rng.choice(list(header[first]))
        header[first][field] = HOSTILE[rng.integers(len(HOSTILE))]
    return join(header, data)


def test_a_thousand_mutated_files(model, file):
    raw, rng = file.read_bytes(), np.random.default_rng(0)
    VCC(3, hidden=(6, 4), epochs=0, random_state=1).fit(X).save(file)
    other = file.read_bytes()
    accepted = 0
    for _ in range(1000):
        file.write_bytes(mutated(raw, other, rng))
        try:
            loaded = VCC.load(file)
        except ValueError as error:
            assert str(error).startswith(repr(str(file)))
            continue
        accepted += 1
        assert_same(model, loaded)
    assert accepted < 50
