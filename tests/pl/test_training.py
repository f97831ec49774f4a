"""Plots of training."""

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

from scvcc import pl
from scvcc.pl._training import pair_similarities


def points(ax):
    """Number of points in all scatters of the axes."""
    return [len(c.get_offsets()) for c in ax.collections]


def legend_names(legend):
    return [t.get_text() for t in legend.get_texts()]


def test_history(clustered):
    losses, beta, change = pl.history(clustered, show=False)
    record = clustered.uns["vcc"]["history"]
    assert legend_names(losses.get_legend()) == [
        "boundary",
        "contraction",
        "expansion",
        "clustering",
        "anchor",
        "total",
    ]
    drawn = np.concatenate([line.get_ydata() for line in beta.lines if len(line.get_xdata()) > 2])
    assert np.array_equal(drawn, record["beta"][np.isfinite(record["beta"])])
    stages = list(dict.fromkeys(record["stage"]))
    ticks = [t.get_text().split("\n")[0] for t in change.get_xticklabels()]
    assert ticks == stages
    borders = [
        line.get_xdata()[0] for line in losses.lines if len(set(line.get_xdata())) == 1 and line.get_zorder() == 0
    ]
    assert borders == list(range(1, len(stages)))


def test_stages(clustered):
    axes = pl.stages(clustered, show=False)
    assert [ax.get_title() for ax in axes] == ["start", "placed", "coordinates", "final"]
    assert all(points(ax) == [240] for ax in axes)
    order = np.random.default_rng(0).permutation(240)
    for ax, name in ((axes[0], "X_vcc_start"), (axes[-1], "X_vcc")):
        assert np.asarray(ax.collections[0].get_offsets()) == pytest.approx(clustered.obsm[name][order])
    assert legend_names(axes[-1].get_legend()) == ["0", "1", "2", "3"]


def test_stages_have_to_be_kept(clustered):
    del clustered.uns["vcc"]["stages"]
    with pytest.raises(ValueError, match="keep_stages=True"):
        pl.stages(clustered)


def test_similarity_of_the_two_nearest_clusters(clustered):
    axes = pl.similarity(clustered, show=False)
    centers = pd.DataFrame(clustered.obsm["X_vcc"]).groupby(clustered.obs["vcc"].to_numpy()).mean()
    d = np.linalg.norm(centers.to_numpy()[:, None] - centers.to_numpy(), axis=-1) + 1e9 * np.eye(4)
    i, j = sorted(np.unravel_index(d.argmin(), d.shape))
    assert legend_names(axes[1].get_legend()) == [f"within {i}", f"within {j}", "between"]
    assert [ax.get_title() for ax in axes] == ["before: X", "after: map"]


def test_similarities_follow_their_definition(clustered):
    labels = clustered.obs["vcc"].cat.codes.to_numpy()
    clusters = [np.flatnonzero(labels == code) for code in (0, 1)]
    within, _, between = pair_similarities(clustered.X, *clusters, np.arange(240), 0)
    D = np.linalg.norm(clustered.X[:, None] - clustered.X[None], axis=-1)
    scale = D.sum() / (240 * 239)
    expected = np.exp(-D[labels == 0][:, labels == 1] / scale)
    assert between.mean() == pytest.approx(expected.mean(), rel=0.02)
    assert ((0 < within) & (within < 1)).all()  # no cell is compared with itself


def test_similarity_of_named_clusters(clustered):
    axes = pl.similarity(clustered, clusters=("2", "0"), show=False)
    assert legend_names(axes[1].get_legend()) == ["within 2", "within 0", "between"]
    with pytest.raises(ValueError, match=r"clusters=\('2', '9'\) must be two of '0', '1', '2', '3'"):
        pl.similarity(clustered, clusters=("2", "9"))


def test_clusters_separate_in_training(clustered):
    clusters = [np.flatnonzero(clustered.obs["vcc"] == name) for name in ("0", "1")]
    gap = []
    for space in (clustered.X, clustered.obsm["X_vcc"]):
        first, second, between = pair_similarities(space, *clusters, np.arange(240), 0)
        gap.append(min(first.mean(), second.mean()) - between.mean())
    assert gap[1] > gap[0] > 0


def test_history_says_why_the_total_rises(clustered):
    losses, beta, _ = pl.history(clustered, show=False)
    assert losses.get_title(loc="left") == "The total contains the clustering loss times β, so it rises while β rises."
    assert beta.get_ylabel().startswith("β, weight of")


def test_similarities_of_sparse_rows(clustered):
    clusters = [np.arange(0, 50), np.arange(50, 120)]
    dense = pair_similarities(clustered.X, *clusters, np.arange(240), 3)
    sparse = pair_similarities(sp.csr_matrix(clustered.X), *clusters, np.arange(240), 3)
    assert np.concatenate(sparse) == pytest.approx(np.concatenate(dense), rel=1e-5)


def test_similarity_needs_two_different_clusters(clustered):
    with pytest.raises(ValueError, match="must be two of"):
        pl.similarity(clustered, clusters=("0", "0"))
