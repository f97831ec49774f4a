"""Placement of tensors, with a pretend device in its own process: its registration cannot be undone."""

import subprocess
import sys
from pathlib import Path

import pytest

SETUP = """
import sys
sys.path.insert(0, {tests!r})
import numpy as np, scipy.sparse as sp, torch
from standin import standin_device, StandIn
from sklearn.datasets import make_blobs
from scvcc import VCC
from scvcc._training import fitting, recipe

for module in (fitting, recipe):
    module.encoder_steps = lambda n, n_clusters, settings: 20  # every operation passes through Python here
"""
SCRIPT = """
with standin_device():
    try:
        torch.ones(2, device="standin:0") + torch.ones(2)
    except RuntimeError as error:
        assert "one call" in str(error)
    else:
        raise SystemExit("the stand-in device lets devices mix")

X = make_blobs(150, n_features=5, centers=3, random_state=0)[0].astype(np.float32)
X = {convert}(X)
for objective in ("compact", "paper"):
    settings = dict(n_clusters=3, hidden=(16,), objective=objective, epochs=2)
    with standin_device():
        model = VCC(**settings, device="standin:0").fit(X)
        assert isinstance(next(model.encoder_.parameters()).data, StandIn), "the encoder is not on the device"
        moved = model.embedding_, model.labels_, model.transform(X), model.predict_proba(X)
    assert all(type(result) is np.ndarray for result in moved)
    assert model.device_ == "standin:0"
    reference = VCC(**settings, device="cpu").fit(X)
    np.testing.assert_allclose(moved[0], reference.embedding_, atol=0.1)
    np.testing.assert_array_equal(moved[1], reference.labels_)
    np.testing.assert_array_equal(moved[2], moved[0])

settings = dict(n_clusters=3, hidden=(16,), epochs=0, max_train_cells=100)
with standin_device():
    model = VCC(**settings, device="standin:0").fit(X)
    assert type(model.embedding_) is np.ndarray and len(model.embedding_) == 150
    np.testing.assert_array_equal(model.predict(X), model.labels_)
np.testing.assert_array_equal(model.labels_, VCC(**settings, device="cpu").fit(X).labels_)
print("placed")
"""
PIPELINE = """
import anndata as ad, scanpy as sc, scvcc

X = make_blobs(160, n_features=6, centers=4, cluster_std=2.0, random_state=1)[0].astype(np.float32)
X = {convert}(X)
device, folder, written = "standin:0", {folder!r}, []
cells = ad.AnnData(X[:120].copy())
sc.pp.neighbors(cells, n_neighbors=10, use_rep="X")
cells.obs["batch"] = list("ab" * 60)

def pipeline(device):
    done, new = cells.copy(), ad.AnnData(X[120:].copy())
    file = folder + "/" + device.partition(":")[0]
    scvcc.tl.vcc(done, 3, device=device, hidden=(16, 8), epochs=2, keep_stages=True, use_rep="X", progress=False, save_to=file)
    scvcc.tl.cut(done, 4, key_added="cut")
    scvcc.tl.test_clusters(done, "vcc")
    scvcc.tl.stability(done, n_runs=1, progress=False)
    model = scvcc.VCC.load(file, device=device)
    scvcc.tl.map_query(new, model)
    more = model.novelty(X), model.predict(X, 2), model.predict_proba(X, 4)
    return done, new, more, model

with standin_device():
    *there, model = pipeline(device)
    assert isinstance(next(model.encoder_.parameters()).data, StandIn), "the loaded encoder is not on the device"
*here, _ = pipeline("cpu")
for one, other in zip(there[:2], here[:2]):
    assert list(one.obs) == list(other.obs) and list(one.obsm) == list(other.obsm) and list(one.uns) == list(other.uns)
    for name in one.obs:
        a, b = one.obs[name], other.obs[name]
        if a.dtype.kind == "f":
            np.testing.assert_allclose(a, b, atol=0.05, err_msg=name)
        else:
            assert (a.astype(str) == b.astype(str)).mean() > 0.98, name
    for name in one.obsm:
        np.testing.assert_allclose(one.obsm[name], other.obsm[name], atol=0.1, err_msg=name)
runs = [adata.uns["vcc"] for adata in (there[0], here[0])]
assert runs[0]["device"] == device and runs[1]["device"] == "cpu"
np.testing.assert_allclose(*(run["support"]["pairs"]["p"] for run in runs), atol=1e-6)
for a, b in zip(there[2], here[2]):
    assert type(a) is np.ndarray
    np.testing.assert_allclose(a, b, atol=0.05)

class Ended(BaseException):
    pass

from scvcc._training import checkpoint
original, checkpoint.SHARE = checkpoint.write_atomically, 1e9
settings = dict(n_clusters=3, hidden=(16,), epochs=2, batch_size=40)
for objective in ("compact", "paper"):
    def write(*args):
        original(*args)
        written.append(args)
        if len(written) == 2 + 6 * (objective == "compact"):
            raise Ended
    with standin_device():
        whole = VCC(**settings, objective=objective, device=device).fit(X)
        checkpoint.write_atomically = write
        try:
            VCC(**settings, objective=objective, device=device, checkpoint=folder + "/fit").fit(X)
        except Ended:
            checkpoint.write_atomically = original
            again = VCC(**settings, objective=objective, device=device, checkpoint=folder + "/fit").fit(X)
    np.testing.assert_array_equal(whole.embedding_, again.embedding_)
    written.clear()
print("placed")
"""


@pytest.mark.parametrize("convert", ["np.asarray", "sp.csr_matrix"])
@pytest.mark.parametrize(
    "script",
    [pytest.param(SCRIPT, id="estimator"), pytest.param(PIPELINE, id="pipeline", marks=pytest.mark.slow)],
)
def test_every_tensor_is_on_the_device(tmp_path, script, convert):
    script = (SETUP + script).format(tests=str(Path(__file__).parent), convert=convert, folder=str(tmp_path))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout.strip().endswith("placed"), done.stderr[-3000:]
