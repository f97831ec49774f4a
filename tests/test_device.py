"""Placement of tensors, with a pretend device in its own process: its registration cannot be undone."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import sys
sys.path.insert(0, {tests!r})
import numpy as np, scipy.sparse as sp, torch
from standin import standin_device, StandIn
from sklearn.datasets import make_blobs
from scvcc import VCC
from scvcc._training import fitting, recipe

for module in (fitting, recipe):
    module.encoder_steps = lambda n, n_clusters, settings: 20  # every operation passes through Python here

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


@pytest.mark.parametrize("convert", ["np.asarray", "sp.csr_matrix"])
def test_every_tensor_is_on_the_device(convert):
    script = SCRIPT.format(tests=str(Path(__file__).parent), convert=convert)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout.strip().endswith("placed"), done.stderr[-3000:]
