"""Extreme numbers, damaged records, large files, odd places: what docs/reliability.md promises beside the battery."""

import ast
import copy
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import scvcc
from scvcc import metrics, pl, pp, tl

ROOT = Path(__file__).parents[1]
QUICK = {"hidden": (8,), "epochs": 0}


@pytest.fixture(scope="module")
def points():
    rng = np.random.default_rng(0)
    return np.concatenate([rng.normal(m, 1, (60, 6)) for m in (0, 6)])


@pytest.mark.parametrize("unit", [1e-200, 1e200, 1e306])
def test_units_do_not_change_compactness(points, unit):
    labels = np.repeat([0, 1], 60)
    assert metrics.compactness(points * unit, labels) == pytest.approx(metrics.compactness(points, labels))


@pytest.mark.parametrize("unit", [1e-45, 1e-20, 1e20, 1e45, 1e300])
def test_fit_refuses_units_out_of_range(points, unit):
    with pytest.raises(ValueError, match=r"^X has values .*single precision: scale X"):
        scvcc.VCC(2, **QUICK).fit(points * unit)


def test_units_in_range_do_not_change_the_clusters(points):
    for unit in (1e-13, 1e13):
        labels = scvcc.VCC(2, random_state=0, **QUICK).fit_predict(points * unit)
        assert len(set(labels[:60])) == len(set(labels[60:])) == 1 and labels[0] != labels[-1]


def test_an_encoder_that_overflows_gives_an_error_and_no_nan(points):
    model = scvcc.VCC(2, **QUICK).fit(points)
    with torch.no_grad():
        next(model.encoder_.parameters()).mul_(1e6)
    for ask in (model.transform, model.predict, model.predict_proba, model.novelty):
        with pytest.raises(ValueError, match="X has"):
            ask(points * 1e37)


def test_progress_without_a_place_to_show_it(points, monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    assert scvcc.VCC(2, progress=True, **QUICK).fit(points).n_clusters_ == 2


@pytest.mark.parametrize("header", [0, 100, 50 * 10**6, 5 * 10**9, 10**12, 2**63])
def test_a_large_file_that_is_no_model_is_refused_without_reading_it(tmp_path, header):
    file = tmp_path / "large.safetensors"
    with file.open("wb") as out:
        out.write(header.to_bytes(8, "little") + b"{")
        out.truncate(7 * 10**9)  # sparse: no space is taken
    start = os.times()
    with pytest.raises(ValueError, match="7000000000 bytes with a header"):
        scvcc.VCC.load(file)
    assert os.times().user + os.times().system - start.user - start.system < 1


def test_a_cluster_size_that_no_two_clusters_can_have(points):
    with pytest.warns(UserWarning, match="min_cluster_size=61 is more than half of the 120 rows"):
        scvcc.VCC(2, min_cluster_size=61, **QUICK).fit(points)


@pytest.mark.parametrize("damage", ["params", "fields", "history", "random_state", "tree"])
def test_a_damaged_record_is_named(clustered, damage, untouched):
    record = copy.deepcopy(dict(clustered.uns["vcc"]))
    (record["params"] if damage == "random_state" else record).pop(damage)
    clustered.uns["vcc"] = record
    with untouched(clustered):
        if damage != "tree":
            with pytest.raises(ValueError, match=r"adata.uns\['vcc'\] is incomplete|no run named 'vcc'"):
                tl.stability(clustered, n_runs=1, progress=False)
        if damage in ("tree", "fields"):
            with pytest.raises(ValueError, match=r"adata.uns\['vcc'\] is incomplete|no tree named 'vcc'"):
                tl.cut(clustered, 2)


@pytest.mark.parametrize("part", ["cluster", "size", "merges", "link", "clusters"])
def test_a_damaged_tree_is_named(clustered, part):
    run = clustered.uns["vcc"]
    clustered.uns["vcc"] = {**run, "tree": {name: value for name, value in run["tree"].items() if name != part}}
    for ask in (lambda: tl.cut(clustered, 2), lambda: pl.tree(clustered)):
        with pytest.raises(ValueError, match=r"adata.uns\['vcc'\] is incomplete"):
            ask()


def test_labels_that_are_gone_are_named(clustered):
    clustered.obs["vcc"] = np.nan
    with pytest.raises(ValueError, match=r"adata.obs\['vcc'\] has no label left"):
        tl.stability(clustered, n_runs=1, progress=False)


def test_cells_that_a_metric_cannot_compare_are_named(blobs):
    blobs.X[3] = 1.0
    blobs.obs["batch"] = np.array(["a", "b"])[np.arange(240) % 2]
    for ask in (
        lambda: scvcc.VCC(2, metric="correlation", **QUICK).fit(blobs.X),
        lambda: tl.vcc(blobs, 2, metric="correlation", progress=False, **QUICK),
        lambda: pp.neighbors(blobs, "batch", metric="correlation"),
    ):
        with pytest.raises(ValueError, match="metric='correlation' gives no distance for some rows"):
            ask()


def test_too_many_neighbors_are_named(blobs):
    for ask in (
        lambda: scvcc.VCC(2, n_neighbors=10**6, **QUICK).fit(blobs.X),
        lambda: tl.vcc(blobs, 2, n_neighbors=10**6, progress=False),
    ):
        with pytest.raises(ValueError, match=r"n_neighbors=1000000 needs .*240"):
            ask()


PROGRAM = """
import socket, sys
def refuse(*arguments, **named):
    raise OSError("no network")
socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse
import numpy as np, scvcc
X = np.random.default_rng(0).normal(size=(120, 5))
X[:60] += 6
assert scvcc.VCC(2, hidden=(8,), epochs=0, progress=True).fit(X).n_clusters_ == 2
for name in ("metrics", "pl", "pp", "tl"):
    getattr(scvcc, name)
"""


@pytest.mark.slow
def test_a_fit_in_odd_places():
    """Own warnings as errors, no assertions, the plainest locale, no standard error, no network."""
    command = [sys.executable, "-O", "-W", "error", "-c", PROGRAM]
    command = ["sh", "-c", 'exec "$@" 2>&-', "sh", *command]
    done = subprocess.run(command, env={**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0"}, timeout=300, check=False)
    assert done.returncode == 0


@pytest.mark.parametrize("path", sorted((ROOT / "scvcc").rglob("*.py")), ids=lambda path: path.stem)
def test_no_code_is_run_from_data_and_no_network_is_used(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    called = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    assert not called & {"eval", "exec", "compile", "__import__"}
    imports = {a.name for node in ast.walk(tree) if isinstance(node, ast.Import) for a in node.names}
    imports |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    unsafe = (
        "pickle dill cloudpickle marshal shelve joblib.numpy_pickle socket ssl http urllib requests ftplib subprocess"
    )
    assert not {name for name in imports if name.split(".")[0] in unsafe.split() or name in unsafe.split()}
    loads = {
        ast.unparse(node.func)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    }
    assert not loads & {"torch.load", "torch.save", "joblib.load", "np.load", "os.system", "os.popen", "pd.read_pickle"}
