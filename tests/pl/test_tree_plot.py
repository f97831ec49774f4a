import anndata as ad
import matplotlib.pyplot as plt
import numpy as np
import pytest
from sklearn.datasets import make_blobs

import scvcc
from scvcc._anndata.tree import stored_tree
from scvcc._clusters.tree import Tree
from scvcc.pl._tree import SUPPORTED, UNSUPPORTED, _layout


@pytest.fixture(scope="module")
def adata():
    X, kind = make_blobs(300, n_features=6, centers=5, random_state=0)
    adata = ad.AnnData(X.astype(np.float32), obs={"kind": kind.astype(str)})
    scvcc.tl.vcc(adata, 4, use_rep="X", hidden=(16,), epochs=0, progress=False)
    scvcc.tl.cut(adata, 7, support=True)
    return adata


def test_branches_of_a_small_tree():
    tree = Tree(np.array([0, 0, 1]), np.ones(3, int), np.array([[0, 1], [0, 2]]), np.zeros(2))
    branches, splits = _layout(tree, 3)
    found = {tuple(sorted(b.leaves.tolist())): (b.start, b.end, b.y) for b in branches}
    assert found == {
        (0,): (2.5, 3.5, 0),
        (1,): (2.5, 3.5, 1),
        (0, 1): (1.5, 2.5, 0.5),
        (2,): (1.5, 3.5, 2),
        (0, 1, 2): (0.5, 1.5, 1.25),
    }
    assert splits == [(0, 2.5, [0, 1]), (1, 1.5, [0.5, 2])]


@pytest.mark.parametrize("shown", [1, 4, 12])
def test_a_line_crosses_as_many_branches_as_clusters(shown, adata):
    branches, _ = _layout(stored_tree(adata, "vcc").tree, shown)
    for n in range(1, shown + 1):
        assert sum(b.start < n < b.end for b in branches) == n
    assert sorted(b.y for b in branches if b.end > shown) == list(range(shown))


def test_picture(adata):
    fig = scvcc.pl.tree(adata, 7, n_leaves=9, return_fig=True)
    (axis,) = fig.axes
    labels = [label.get_text() for label in axis.get_yticklabels()]
    assert len(labels) == 9
    assert sum(int(label.split("(")[1][:-1]) for label in labels) == 300
    p = adata.uns["vcc"]["tree"]["p"][-8:]
    dots = {
        tuple(np.round(c.get_facecolor()[0], 2)): len(c.get_offsets())
        for c in axis.collections
        if len(c.get_offsets()) and c.get_label()[0] != "_"
    }
    assert sorted(dots.values()) == sorted([int((p < 0.05).sum()), int((p >= 0.05).sum())])
    assert SUPPORTED != UNSUPPORTED
    assert {line.get_xdata()[0] for line in axis.lines} >= {4, 7}
    plt.close(fig)


def test_make_up_and_axes_of_ones_own(adata):
    _, axis = plt.subplots()
    assert scvcc.pl.tree(adata, color="kind", ax=axis) is axis
    assert {"0", "1", "2", "3", "4"} <= {text.get_text() for text in axis.get_legend().get_texts()}
    plt.close("all")
    adata.obs["number"] = np.arange(300.0)
    with pytest.raises(ValueError, match="color='number' holds numbers"):
        scvcc.pl.tree(adata, color="number")
    with pytest.raises(ValueError, match="n_leaves must be from 4"):
        scvcc.pl.tree(adata, n_leaves=3)
