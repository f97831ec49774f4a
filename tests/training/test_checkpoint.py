"""A fit that is ended and goes on from its checkpoint gives, to the last bit, what it gives without an interruption."""

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import anndata as ad
import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.datasets import make_blobs

import scvcc
from scvcc._training import checkpoint as _checkpoint
from scvcc._training.checkpoint import Checkpoint

ROOT = Path(__file__).parents[2]
X = make_blobs(200, 6, centers=4, cluster_std=3, random_state=0)[0].astype(np.float32)
CASES = {
    "compact": {"n_clusters": 4, "hidden": (16, 8), "batch_size": 8},
    "estimated": {"hidden": (16,), "batch_size": 8, "epochs": 3, "merge_unsupported": True, "latent_dim": 3},
    "paper": {"n_clusters": 4, "hidden": (16,), "objective": "paper", "epochs": 3},
}


class Ended(BaseException):
    """Stands for the end of the process."""


def fitted(case, path=None, **others):
    with np.errstate(all="ignore"):
        return scvcc.VCC(**CASES[case], keep_stages=True, checkpoint=path, **others).fit(X)


def arrays(model):
    parts = (model.sample_, model.tree_, model.leaf_rule_, model.support_)
    found = {f"{type(part).__name__}.{name}": a for part in parts for name, a in vars(part).items()}
    own = {
        name: getattr(model, f"{name}_") for name in ("embedding", "labels", "cluster_centers", "leaves", "sharpness")
    }
    return (
        found | own | model.encoder_.arrays() | model.history_ | {f"at {name}": a for name, a in model.stages_.items()}
    )


def assert_same(a, b):
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_array_equal(a[name], b[name], err_msg=name)


@pytest.fixture
def ended_after(monkeypatch):
    """End the process, as it were, after so many writes of the file; returns how many there are."""
    original = _checkpoint.write_atomically
    monkeypatch.setattr(_checkpoint, "SHARE", 1e9)  # write at every occasion

    def set_end(end=None):
        written = []

        def write(*args):
            original(*args)
            written.append(args)
            if len(written) == end:
                raise Ended

        monkeypatch.setattr(_checkpoint, "write_atomically", write)
        return written

    return set_end


@pytest.mark.parametrize("case", CASES)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_fit_goes_on_with_the_same_bits(tmp_path, ended_after, case):
    file = tmp_path / "fit"
    whole = arrays(fitted(case))
    written = ended_after()
    assert_same(arrays(fitted(case, file)), whole)
    n = len(written)
    assert n >= 3 and os.listdir(tmp_path) == []
    for end in sorted({1, 3, n // 2, n - 1}):
        ended_after(end)
        with pytest.raises(Ended):
            fitted(case, file)
        written = ended_after()
        assert_same(arrays(fitted(case, file)), whole)
        assert len(written) == n - end, "stages behind were computed again"
        assert os.listdir(tmp_path) == []


def begun(path, ended_after, **others):
    """Leave a checkpoint of the case "compact"."""
    ended_after(5)
    with pytest.raises(Ended):
        fitted("compact", path, **others)
    return path.read_bytes()


@pytest.mark.parametrize(
    ("others", "named"),
    [
        ({"n_clusters": 5}, "another n_clusters."),
        ({"random_state": 1}, "another random_state."),
        ({"hidden": (16,), "learning_rate": 0.1}, "another hidden and another learning_rate."),
        ({"n_neighbors": 9}, "another graph."),
        ({"objective": "paper"}, "another objective and another weights."),
    ],
)
def test_a_checkpoint_of_other_settings_is_refused(tmp_path, ended_after, others, named):
    file = tmp_path / "fit"
    before = begun(file, ended_after)
    with pytest.raises(ValueError, match=rf"^checkpoint='.*fit' belongs to a fit with {named} To resume"):
        scvcc.VCC(**{**CASES["compact"], **others}, checkpoint=file).fit(X)
    assert file.read_bytes() == before


def test_a_checkpoint_of_other_data_is_refused(tmp_path, ended_after, monkeypatch):
    file = tmp_path / "fit"
    before = begun(file, ended_after)
    model = scvcc.VCC(**CASES["compact"], checkpoint=str(file))
    moved = X.copy()
    moved[7, 3] = np.nextafter(moved[7, 3], np.float32(9))
    for other, named in (
        (moved, "another X"),
        (X[::-1], "another X and another graph"),
        (X.astype(np.float64), "another X"),
    ):
        with pytest.raises(ValueError, match=named):
            model.fit(other)
    with pytest.raises(ValueError, match="another batch"):
        model.fit(X, graph=fitted("compact").graph_, graph_mode="connectivity", batch=np.arange(200) % 2)
    monkeypatch.setattr("scvcc._training.recipe.__version__", "0")
    with pytest.raises(ValueError, match="another version of scvcc"):
        model.fit(X)
    assert file.read_bytes() == before


def test_sparse_rows_and_numbers_of_numpy(tmp_path, ended_after):
    file, kept = tmp_path / "fit", sp.csr_matrix(np.maximum(X, 0))
    settings = {"hidden": (16,), "batch_size": 8, "n_neighbors": 8}
    whole = scvcc.VCC(4, **settings).fit(kept)
    ended_after(4)
    with pytest.raises(Ended):
        scvcc.VCC(4, checkpoint=file, **settings).fit(kept)
    ended_after()
    other = kept.copy()
    other.data[0] += 1e-3
    with pytest.raises(ValueError, match="another X"):
        scvcc.VCC(4, checkpoint=file, **settings).fit(other, graph=whole.graph_, graph_mode="connectivity")
    again = scvcc.VCC(np.int64(4), checkpoint=file, **settings).fit(kept)
    np.testing.assert_array_equal(again.embedding_, whole.embedding_)


def test_what_is_no_checkpoint_is_refused_and_left(tmp_path, ended_after, untouched, monkeypatch):
    file = tmp_path / "fit"
    whole = begun(file, ended_after)
    flipped = bytearray(whole)
    flipped[-100] ^= 1
    fitted("compact").save(tmp_path / "model")
    model = (tmp_path / "model").read_bytes()
    for found in (b"", b"my notes", whole[:-1], whole[:100], bytes(flipped), whole + b"a", model):
        file.write_bytes(found)
        with pytest.raises(ValueError, match="exists and is not a checkpoint, or is a damaged one"):
            fitted("compact", file)
        assert file.read_bytes() == found
    adata = ad.AnnData(X.copy())
    monkeypatch.setattr("scvcc.tl._vcc.find_inputs", None)  # refused before anything is computed
    with pytest.raises(ValueError, match="is not a checkpoint"), untouched(adata):
        scvcc.tl.vcc(adata, 4, progress=False, checkpoint=file)
    with pytest.raises(ValueError, match="not a file"):
        fitted("compact", tmp_path)
    with pytest.raises(TypeError, match="checkpoint must be"):
        fitted("compact", 3)


def test_a_full_disk_does_not_cost_the_fit(tmp_path, monkeypatch, caplog):
    def full(*_):
        raise OSError("no space left")

    monkeypatch.setattr(_checkpoint, "write_atomically", full)
    with caplog.at_level(logging.WARNING, logger="scvcc"):
        model = fitted("compact", tmp_path / "fit")
    assert_same(arrays(model), arrays(fitted("compact")))
    assert "fit' could not be written; the fit continues: no space left" in caplog.text


def test_writing_takes_a_twentieth_of_the_time(tmp_path, monkeypatch):
    now, written = [0.0], []

    def write(*_):
        written.append(now[0])
        now[0] += 2  # seconds

    monkeypatch.setattr(_checkpoint, "write_atomically", write)
    monkeypatch.setattr(_checkpoint.time, "monotonic", lambda: now[0])
    checkpoint = Checkpoint(tmp_path / "fit")
    checkpoint.match(seed=0)
    while now[0] < 400:
        checkpoint.keep(encoder={"step": np.array(int(now[0]))})
        now[0] += 1
    assert 9 <= len(written) <= 11 and min(np.diff(written)) >= 40


def test_the_same_from_an_adata(tmp_path, ended_after, neighbors, same, everything):
    file, whole = tmp_path / "fit", neighbors.copy()
    settings = {"hidden": (16,), "progress": False}
    scvcc.tl.vcc(whole, 4, **settings)
    adata = neighbors
    ended_after(6)
    with pytest.raises(Ended):
        scvcc.tl.vcc(adata, 4, checkpoint=file, **settings)
    assert "vcc" not in adata.obs and file.exists()
    ended_after()
    scvcc.tl.vcc(adata, 4, checkpoint=file, **settings)
    assert not file.exists() and "checkpoint" not in adata.uns["vcc"]["params"]
    assert same(everything(adata), everything(whole))


KILLS = """
import hashlib, json, os, signal, sys, time
from pathlib import Path
import numpy as np
from sklearn.datasets import make_blobs
import scvcc

X = make_blobs(1500, 20, centers=8, cluster_std=5, random_state=0)[0].astype(np.float32)

def started(checkpoint):
    pid = os.fork()  # nothing was computed here before, so that the child can
    if pid == 0:
        try:
            model = scvcc.VCC(8, checkpoint=checkpoint, {settings}).fit(X)
            found = model.labels_, model.embedding_, model.cluster_centers_, model.leaves_, model.history_["total"]
            arrays = [*found, *model.encoder_.arrays().values()]
            Path("digest").write_text(hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest())
        finally:
            os._exit(0)
    return pid

def result(pid):
    os.waitpid(pid, 0)
    found = Path("digest").read_text()
    Path("digest").unlink()
    return found

begin = time.monotonic()
whole = result(started(None))
seconds = time.monotonic() - begin
rng, outcomes = np.random.default_rng(), []
while len(outcomes) < {kills}:
    moment = rng.uniform(0.6, 1.1) * seconds  # before that, it starts, and has nothing to lose
    pid = started("fit")
    time.sleep(moment)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    if Path("digest").exists():
        Path("digest").unlink()
        seconds *= 0.8  # it was done: the machine is quicker now
        continue
    had = Path("fit").exists()
    same = result(started("fit")) == whole
    left = [name for name in os.listdir() if "fit" in name]
    outcomes.append({{"seconds": round(moment, 2), "of": round(seconds, 2), "had": had, "same": same, "left": left}})
print(json.dumps(outcomes))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "kills"), [("hidden=(64, 64), batch_size=8", 20), ("hidden=(64,), objective='paper', epochs=10", 5)]
)
def test_kills_at_random_moments(tmp_path, settings, kills):
    done = subprocess.run(
        [sys.executable, "-c", KILLS.format(settings=settings, kills=kills)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    outcomes = json.loads(done.stdout)
    assert len(outcomes) == kills
    sys.stdout.write(done.stdout)
    assert all(outcome["same"] and not outcome["left"] for outcome in outcomes), outcomes
    assert sum(outcome["had"] for outcome in outcomes) >= kills / 4, "most of them had nothing to go on from"
