"""Several processes under torchrun: the result of one, and an end to all where one of them ends."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import make_blobs
from sklearn.metrics import adjusted_rand_score

from scvcc import VCC
from scvcc._training.ranks import check_same, from_first, gathered, own_slice

ROOT = Path(__file__).parents[2]
SCRIPT = """
import os, sys
import numpy as np, torch
from sklearn.datasets import make_blobs
from scvcc import VCC
from scvcc._training import fitting, ranks

rank = int(os.environ["RANK"])
X = make_blobs({n}, 10, centers=4, cluster_std=3, random_state=0)[0].astype(np.float32)
fitting.has_fast_bfloat16 = lambda device: False
{before}
model = VCC({settings})
model.fit({X})
model.save("model")
np.savez(f"{{rank}}.npz", labels=model.labels_, H=model.embedding_, graph=model.graph_.data, **model.history_)
"""
SETTINGS = {
    "compact": "4, hidden=(16,), batch_size=50",
    "paper": "4, hidden=(16,), objective='paper', epochs=3",
    "sketch": "4, hidden=(16,), max_train_cells=150, random_state=None",
}


def launch(folder, n=301, before="", settings=SETTINGS["compact"], X="X"):
    (folder / "fit.py").write_text(SCRIPT.format(n=n, before=before, settings=settings, X=X))
    arguments = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "fit.py"]
    return subprocess.Popen(
        [sys.executable, *arguments],
        cwd=folder,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    )


def ended(process, seconds=120):
    _, errors = process.communicate(timeout=seconds)
    return process.returncode, errors


def same_as_alone(folder, monkeypatch, settings, n=301):
    monkeypatch.setattr("scvcc._training.fitting.has_fast_bfloat16", lambda device: False)
    X = make_blobs(n, 10, centers=4, cluster_std=3, random_state=0)[0].astype(np.float32)
    alone = eval(f"VCC({settings})").fit(X)
    first, second = (np.load(folder / f"{rank}.npz") for rank in range(2))
    for name in first.files:
        np.testing.assert_array_equal(first[name], second[name], err_msg=name)
    assert adjusted_rand_score(alone.labels_, first["labels"]) == 1
    for name in ("boundary", "contraction", "expansion", "clustering", "anchor", "total"):
        np.testing.assert_allclose(first[name], alone.history_[name], atol=1e-5, err_msg=name)
    np.testing.assert_array_equal(VCC.load(folder / "model").predict(X), first["labels"])


def test_two_processes_train_the_model_of_one(tmp_path, monkeypatch):
    assert ended(launch(tmp_path))[0] == 0
    same_as_alone(tmp_path, monkeypatch, SETTINGS["compact"])


@pytest.mark.slow
def test_the_objective_of_the_paper(tmp_path, monkeypatch):
    assert ended(launch(tmp_path, settings=SETTINGS["paper"]))[0] == 0
    same_as_alone(tmp_path, monkeypatch, SETTINGS["paper"])


@pytest.mark.slow
def test_a_seed_that_is_drawn_is_that_of_all(tmp_path):
    assert ended(launch(tmp_path, settings=SETTINGS["sketch"]))[0] == 0
    first, second = (np.load(tmp_path / f"{rank}.npz") for rank in range(2))
    np.testing.assert_array_equal(first["H"], second["H"])


@pytest.mark.slow
def test_twenty_launches_end_cleanly(tmp_path):
    for _ in range(20):
        code, errors = ended(launch(tmp_path))
        assert code == 0 and "Error" not in errors and "Warning" not in errors, errors


@pytest.mark.slow
@pytest.mark.parametrize("killed", [0, 1])
def test_a_killed_process_ends_the_others(tmp_path, killed):
    """By hand, without torchrun, which would end the others itself."""
    (tmp_path / "fit.py").write_text(SCRIPT.format(n=4000, before="", settings="4, epochs=200", X="X"))
    store = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29731", "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "test"}
    processes = [
        subprocess.Popen(
            [sys.executable, "fit.py"],
            cwd=tmp_path,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "RANK": str(rank), **store},
        )
        for rank in range(2)
    ]
    time.sleep(30)
    assert processes[0].poll() is None and processes[1].poll() is None
    processes[killed].send_signal(signal.SIGKILL)
    code, errors = ended(processes[1 - killed], 30)
    processes[killed].communicate()
    assert code == 1 and "Another process of this training has ended" in errors


@pytest.mark.slow
def test_errors_reach_all(tmp_path):
    code, errors = ended(launch(tmp_path, X="X[: 300 + rank]"))
    assert code == 1 and "with the same settings" in errors
    code, errors = ended(launch(tmp_path, settings="4, n_neighbors=400"))
    assert code == 1 and errors.count("needs at least 400 rows") >= 2


@pytest.mark.slow
@pytest.mark.parametrize("ends", [2, 6])
def test_a_killed_training_goes_on_from_its_checkpoint(tmp_path, ends):
    """The first process ends without a word after so many writes; the second launch gives what one without an end gives."""
    assert ended(launch(tmp_path))[0] == 0
    whole = [dict(np.load(tmp_path / f"{rank}.npz")) for rank in range(2)]
    count = f"""
from scvcc._training import checkpoint
checkpoint.SHARE, original, writes = 1e9, checkpoint.write_atomically, []
def write(*args):
    original(*args)
    writes.append(args)
    if len(writes) == {ends}:
        os._exit(1)
checkpoint.write_atomically = write
"""
    settings = SETTINGS["compact"] + ", checkpoint='fit'"
    assert ended(launch(tmp_path, settings=settings, before=count))[0] == 1
    assert (tmp_path / "fit").exists()
    assert ended(launch(tmp_path, settings=settings))[0] == 0
    assert not (tmp_path / "fit").exists()
    for rank in range(2):
        again = np.load(tmp_path / f"{rank}.npz")
        for name, values in whole[rank].items():
            np.testing.assert_array_equal(again[name], values, err_msg=name)


def test_alone_nothing_changes():
    H = torch.zeros(5, 2, requires_grad=True)
    assert gathered(H, 5) is H
    assert own_slice(5) == slice(0, 5)
    assert from_first(lambda: 3) == 3
    check_same((5, 2))
    with pytest.raises(ZeroDivisionError):
        from_first(lambda: 1 / 0)


def test_slices_cover_all_rows(monkeypatch):
    for n in range(9):
        parts = []
        for rank in range(3):
            monkeypatch.setattr("scvcc._training.ranks._together", lambda: True)
            monkeypatch.setattr("torch.distributed.get_rank", lambda rank=rank: rank)
            monkeypatch.setattr("torch.distributed.get_world_size", lambda: 3)
            parts.append(np.arange(n)[own_slice(n)])
        np.testing.assert_array_equal(np.concatenate(parts), np.arange(n))
