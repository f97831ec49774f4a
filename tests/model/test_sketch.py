import anndata as ad
import h5py
import numpy as np
import pytest
import scipy.sparse as sp

from scvcc._model import rows as _rows
from scvcc._model import sketch as _sketch
from scvcc._model.sketch import sketch


@pytest.fixture(scope="module")
def X():
    """A tight group of 1,900 rows and a wide one of 100."""
    rng = np.random.default_rng(0)
    tight, wide = rng.normal(0, 0.1, size=(1900, 30)), rng.normal(8, 1, size=(100, 30))
    return np.concatenate([tight, wide]).astype(np.float32)


def test_rows_are_different_ascending_and_from_the_seed(X):
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    a, b, c = sketch(X, 300, seed=1), sketch(X, 300, seed=1), sketch(X, 300, seed=2)
    assert len(a) == 300
    assert (np.diff(a) > 0).all()
    assert 0 <= a[0] and a[-1] < 2000
    np.testing.assert_array_equal(a, b)
    assert not np.array_equal(a, c)
    np.testing.assert_array_equal(before, np.random.get_state()[1])  # noqa: NPY002


def test_sparse_regions_are_drawn_more_often(X):
    counts = [(sketch(X, 200, seed=seed) >= 1900).sum() for seed in range(5)]
    assert min(counts) > 2 * 10  # 100 of 2,000 rows: 10 of 200 by chance
    assert max(counts) < 100  # but they do not take over


def test_draws_follow_the_weights():
    rng = np.random.default_rng(0)
    weights = np.array([1.0, 2.0, 3.0, 4.0])
    first = np.bincount([_sketch._draw(weights, 1, rng)[0] for _ in range(4000)], minlength=4) / 4000
    np.testing.assert_allclose(first, weights / 10, atol=0.025)
    pairs = [tuple(_sketch._draw(weights, 2, rng)) for _ in range(4000)]
    expected = 0.4 * 0.3 / 0.6 + 0.3 * 0.4 / 0.7  # rows 2 and 3, in either order
    assert pairs.count((2, 3)) / 4000 == pytest.approx(expected, abs=0.025)
    np.testing.assert_array_equal(_sketch._draw(weights, 9, rng), np.arange(4))


def test_cosine_ignores_the_length_of_rows(X):
    scale = 2.0 ** np.random.default_rng(0).integers(-3, 4, size=(len(X), 1))  # exact in binary
    np.testing.assert_array_equal(
        sketch(X, 100, metric="cosine", seed=0), sketch(X * scale, 100, metric="cosine", seed=0)
    )
    assert not np.array_equal(sketch(X, 100, seed=0), sketch(X * scale, 100, seed=0))


@pytest.mark.parametrize("columns", [1, 2, 3, 30])
@pytest.mark.parametrize("convert", [np.asarray, sp.csr_matrix])
def test_any_number_of_columns(X, columns, convert):
    assert len(sketch(convert(X[:, :columns]), 50, seed=0)) == 50


def test_constant_rows():
    assert len(sketch(np.ones((400, 25), np.float32), 50, seed=0)) == 50


def test_rows_on_disk_give_the_same_sketch(X, tmp_path, monkeypatch):
    monkeypatch.setattr(_rows, "_rows_at_a_time", lambda X: 512)  # 512 rows at a time
    with h5py.File(tmp_path / "rows.h5", "w") as file:
        stored = file.create_dataset("X", data=X)
        np.testing.assert_array_equal(sketch(stored, 300, seed=0), sketch(X, 300, seed=0))
    thresholded = sp.csr_matrix(np.where(X > 0, X, 0))
    ad.AnnData(thresholded).write_h5ad(tmp_path / "rows.h5ad")
    backed = ad.read_h5ad(tmp_path / "rows.h5ad", backed="r")
    np.testing.assert_array_equal(sketch(backed.X, 300, seed=0), sketch(thresholded, 300, seed=0))
    backed.file.close()


def test_every_row_is_checked(X, monkeypatch):
    monkeypatch.setattr(_rows, "_rows_at_a_time", lambda X: 512)
    seen = []
    monkeypatch.setattr(_sketch, "checked", lambda rows: seen.append(len(rows)) or rows)
    sketch(X, 300, seed=0)
    assert seen == [2000, 512, 512, 512, 464]  # the sample, then all


def test_groups_are_drawn_by_the_root_of_their_size():
    X = np.repeat(np.array([[0.0, 0.0], [5.0, 5.0]], dtype=np.float32), [9000, 1000], axis=0)
    few = np.mean([(sketch(X, 200, seed=seed) >= 9000).mean() for seed in range(10)])
    assert few == pytest.approx(0.25, abs=0.04)  # 30 to 10


def test_a_small_batch_is_in_the_sketch():
    X = np.random.default_rng(0).normal(size=(5000, 4)).astype(np.float32)
    batch = (np.arange(5000) < 60).astype(int)
    assert (sketch(X, 400, seed=0, batch=batch) < 60).sum() == 60
