"""Quality floors on real data; labels only score. Each floor is a few hundredths below what five seeds reached."""

import pytest

from benchmarks.data import SETS, data_folder, load
from scvcc import VCC, metrics

FLOORS = {"scmixology": 0.86, "zheng": 0.71, "baron": 0.85, "covid": 0.67, "usps": 0.88, "mnist_test": 0.85}


@pytest.mark.data
@pytest.mark.parametrize("name", FLOORS)
def test_agreement_with_known_labels(name):
    if not (data_folder() / SETS[name].file).exists():
        pytest.skip(f"{SETS[name].file} is not in $SCVCC_DATA")
    data = load(name, data_folder())
    model = VCC(data.n_classes, n_jobs=1).fit(data.X)
    assert metrics.nmi(data.y, model.labels_) > FLOORS[name]
    assert model.n_clusters_ == data.n_classes
