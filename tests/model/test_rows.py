import anndata as ad
import numpy as np
import pytest
import scipy.sparse as sp
import torch

from scvcc._model import rows as _rows


@pytest.fixture
def X():
    return np.random.default_rng(0).normal(3, 2, size=(1300, 6)).astype(np.float32)


@pytest.fixture
def on_disk(X, tmp_path):
    """The same rows as arrays, sparse, mapped into memory, and in files."""
    whole = np.round(np.abs(X)).astype(np.int16)
    np.save(tmp_path / "rows.npy", whole)
    stored = {"array": whole, "csr": sp.csr_matrix(whole), "memmap": np.load(tmp_path / "rows.npy", mmap_mode="r")}
    for name, values in (("dense", whole.astype(np.float32)), ("sparse", sp.csr_matrix(whole.astype(np.float32)))):
        ad.AnnData(values).write_h5ad(tmp_path / f"{name}.h5ad")
        stored[f"backed {name}"] = ad.read_h5ad(tmp_path / f"{name}.h5ad", backed="r").X
    return whole, stored


def dense(rows):
    return rows.toarray() if sp.issparse(rows) else np.asarray(rows)


def test_rows_are_taken_and_passed_on_in_blocks(on_disk, monkeypatch):
    whole, stored = on_disk
    monkeypatch.setattr(_rows, "_rows_at_a_time", lambda X: 512)  # 512 of the 1,300 rows at a time
    chosen = np.array([0, 1, 511, 512, 1299])
    for name, rows in stored.items():
        assert _rows.has_row_blocks(rows), name
        found = _rows.over_blocks(lambda part: np.insert(dense(part), 0, part.shape[0], axis=1), rows)
        np.testing.assert_array_equal(found[:, 1:], whole, err_msg=name)
        assert found[:, 0].tolist() == [512] * 1024 + [276] * 276, name
        for index in (chosen, chosen[:1], np.arange(1300)):
            np.testing.assert_array_equal(dense(_rows.take_rows(rows, index)), whole[index], err_msg=name)


def test_blocks_are_larger_where_rows_are_short():
    sizes = []
    _rows.over_blocks(lambda part: sizes.append(len(part)) or part[:, 0], np.zeros((40_000, 2), np.float32))
    assert sizes == [32_768, 7_232]


@pytest.mark.parametrize("rows", [[[1.0]], sp.csc_matrix((3, 3)), np.zeros(3), np.array([["a"]]), torch.zeros(3, 2)])
def test_what_is_not_read_in_blocks(rows):
    assert not _rows.has_row_blocks(rows)
