"""Processes made by fork, for real, in a program of its own with a limit on its time."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import multiprocessing
import anndata, numpy as np, scvcc, torch

X = np.random.default_rng(0).normal(size=(300, 5)).astype(np.float32)
X[:150] += 6
adata = anndata.AnnData(X)
new = lambda: scvcc.VCC(2, n_jobs=2, hidden=(16,), epochs=1, random_state=0)

def run():
    try:
        return TASK()
    except RuntimeError as error:
        return str(error)

def child(task):
    global TASK
    TASK = task
    with multiprocessing.get_context("fork").Pool(1) as pool:
        return pool.apply_async(run).get(60)

# the parent used the threads of torch alone: a child does what it likes
torch.set_num_threads(2)
A = torch.rand(1000, 1000)
(A @ A).sin().sum()
labels = child(lambda: new().fit(X).labels_)

# it used those of numba too: a child works with a model that is there, and says how to fit another one
model = new().fit(X)
assert (labels == model.labels_).all()
assert (child(lambda: model.predict(X)) == labels).all()
assert np.allclose(child(lambda: model.predict_proba(X)), model.predict_proba(X))
assert np.allclose(child(lambda: model.novelty(X)), model.novelty(X))
for task in (
    lambda: new().fit(X),
    lambda: (model.predict(X), new().fit(X)),
    lambda: scvcc.tl.vcc(adata, 2, use_rep="X", progress=False),
    lambda: scvcc.tl.suggest_n_clusters(adata, use_rep="X", progress=False),
):
    assert "'spawn'" in child(task)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_child_works_or_says_what_to_do():
    environment = {**os.environ, "OMP_NUM_THREADS": "2", "NUMBA_NUM_THREADS": "2"}
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


SERVED = """
import multiprocessing
from scvcc._training.forks import is_forked

if __name__ == "__main__":
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["scvcc"])
    with context.Pool(1) as pool:
        assert not pool.apply_async(is_forked).get(60)
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.apply_async(is_forked).get(60)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_children_of_a_server_that_only_imported_keep_their_threads(tmp_path):
    (tmp_path / "served.py").write_text(SERVED)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, str(tmp_path / "served.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
