"""Matrices on a GPU are copied to the host at the border; classes of the same shape as cupy's stand in for it."""

import anndata as ad
import numpy as np
import pytest
import scipy.sparse as sp

import scvcc
from scvcc import VCC


class OnGPU:
    """Like cupy's arrays and sparse matrices: numpy cannot read it, `get` copies it to the host."""

    __module__ = "cupy"

    def __init__(self, host):
        self.host, self.shape, self.dtype, self.ndim = host, host.shape, host.dtype, host.ndim

    def __array__(self, *args, **kwargs):
        raise TypeError("Implicit conversion to a NumPy array is not allowed.")

    def __getitem__(self, index):
        return OnGPU(self.host[index])

    def __len__(self):
        return len(self.host)

    def get(self):
        return self.host


class SparseOnGPU(OnGPU):
    __module__ = "cupyx.scipy.sparse._csr"


@pytest.mark.parametrize("form", [OnGPU, SparseOnGPU])
def test_an_estimator(neighbors, form):
    X = neighbors.X if form is OnGPU else sp.csr_matrix(neighbors.X)
    graph = neighbors.obsp["distances"]
    here = VCC(4, hidden=(16,), epochs=0).fit(X, graph=graph)
    there = VCC(4, hidden=(16,), epochs=0).fit(form(X), graph=SparseOnGPU(graph))
    np.testing.assert_array_equal(there.embedding_, here.embedding_)
    for method in ("transform", "predict", "predict_proba", "novelty"):
        np.testing.assert_array_equal(getattr(there, method)(form(X)), getattr(here, method)(X))


def test_an_anndata(neighbors, quick, monkeypatch):
    expected = scvcc.tl.vcc(neighbors, 4, copy=True, **quick)
    where = {"X": neighbors.X, **neighbors.obsp}
    for owner, name in ((ad.AnnData, "X"), (type(neighbors.obsp), "__getitem__")):
        monkeypatch.setattr(owner, name, _moved(getattr(owner, name), where))
    scvcc.tl.vcc(neighbors, 4, **quick)
    monkeypatch.undo()
    np.testing.assert_array_equal(neighbors.obsm["X_vcc"], expected.obsm["X_vcc"])


def _moved(attribute, where):
    """What reads a matrix of an AnnData, so that it finds the matrix on the GPU: anndata itself would ask for cupy."""
    if isinstance(attribute, property):
        return property(lambda self: OnGPU(attribute.fget(self)), attribute.fset)
    return lambda self, key: SparseOnGPU(attribute(self, key)) if key in where else attribute(self, key)
