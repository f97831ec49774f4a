"""Plots of clusters: how many, how stable, what they are made of, how they match known groups."""

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex

from scvcc import pl
from scvcc.pl._columns import default_palette


def names(ax):
    return [t.get_text() for t in ax.texts]


def legend_names(legend):
    return [t.get_text() for t in legend.get_texts()]


def test_confusion(clustered):
    ax = pl.confusion(clustered, "truth", show=False)
    table = pd.crosstab(clustered.obs["truth"], clustered.obs["vcc"])
    columns = [t.get_text() for t in ax.get_xticklabels()]
    rows = [t.get_text() for t in ax.get_yticklabels()]
    assert rows == ["0", "1", "2", "3"] and sorted(columns) == ["0", "1", "2", "3"]
    shown = np.asarray(ax.images[0].get_array())
    assert shown == pytest.approx((table.loc[rows, columns].T / table.sum(axis=1)).T.to_numpy())
    assert np.array_equal(shown.argmax(axis=1), range(4))  # agreement is on the diagonal
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("vcc", "truth")
    assert "NMI" in ax.get_title()
    counts = np.asarray(pl.confusion(clustered, "truth", normalize=None, show=False).images[0].get_array())
    assert counts.sum() == 240
    clusters = np.asarray(pl.confusion(clustered, "truth", normalize="clusters", show=False).images[0].get_array())
    assert clusters.sum(axis=0) == pytest.approx(np.ones(4))


def test_confusion_of_cells_with_one_name(clustered):
    expected = np.asarray(pl.confusion(clustered, "truth", show=False).images[0].get_array())
    clustered.obs_names = ["cell"] * 240
    assert np.array_equal(pl.confusion(clustered, "truth", show=False).images[0].get_array(), expected)


def test_confusion_leaves_out_cells_without_a_group(clustered):
    clustered.obs["truth"] = clustered.obs["truth"].where(np.arange(240) >= 100)
    counts = pl.confusion(clustered, "truth", normalize=None, show=False).images[0].get_array()
    assert counts.sum() == 140


def table_of_counts():
    return pd.DataFrame(
        {
            "n_clusters": [2, 3, 4, 5],
            "score": [0.5, 0.8, 0.7, 0.9],
            "cut": [0.1, 0.2, 0.25, 0.3],
            "smallest": [90, 50, 20, 2],
            "largest": [0.6, 0.5, 0.4, 0.4],
            "eligible": [True, True, True, False],
            "suggested": [False, True, False, False],
        }
    )


def test_numbers_of_clusters(clustered):
    table = table_of_counts()
    record = {"table": table, "suggested": 3, "params": {"min_cluster_size": 10}}
    clustered.uns["vcc_n_clusters"] = record
    axes = pl.n_clusters(clustered, runners_up=1, show=False)
    assert [ax.get_ylabel().split("\n")[0] for ax in axes] == ["score", "weight between", "cells in the"]
    for ax, column in zip(axes, ("score", "cut", "smallest"), strict=True):
        drawn = set(map(tuple, ax.collections[0].get_offsets().tolist()))
        assert drawn == set(zip(table["n_clusters"], table[column], strict=True))
        assert [line.get_xdata()[0] for line in ax.lines if len(set(line.get_xdata())) == 1] == [3]
        assert [to_hex(c) == to_hex("0.8") for c in ax.collections[0].get_facecolors()] == [False, False, False, True]
    assert axes[0].collections[1].get_offsets().tolist() == [[3, 0.8]]
    assert axes[0].collections[2].get_offsets().tolist() == [[4, 0.7]]  # 5 scores higher but has too small a cluster
    assert legend_names(axes[0].get_legend()) == ["suggested: 3", "next best: 4"]
    record["table"] = table.assign(reproducibility=0.5)
    assert len(pl.n_clusters(clustered, return_fig=True).axes) == 4
    with pytest.raises(ValueError, match="no 'b_n_clusters': run scvcc.tl.suggest_n_clusters"):
        pl.n_clusters(clustered, key="b")


def test_stability(clustered):
    with pytest.raises(ValueError, match="adata.uns has no 'vcc_stability': run scvcc.tl.stability"):
        pl.stability(clustered)
    runs = np.array([[0.9, 0.2, 0.6, 1.0], [0.8, 0.4, 0.7, np.nan]])
    index = pd.Index(["0", "1", "2", "3"], name="vcc")
    means = np.nanmean(runs, axis=0)
    clusters = pd.DataFrame({"n_cells": [100, 60, 50, 30], "stability": means, "worst": 0.0}, index=index)
    clustered.obs["vcc_stability"] = np.linspace(0, 0.5, 240)
    clustered.uns["vcc_stability"] = {"clusters": clusters, "runs": runs, "params": {}}
    left, right = pl.stability(clustered, show=False)
    cells = left.collections[-1]
    assert cells.get_clim() == (0, 1)  # comparable between data sets
    assert sorted(cells.get_array()) == pytest.approx(np.linspace(0, 0.5, 240))
    assert names(left) == ["0", "1", "2", "3"]
    rows = [t.get_text() for t in right.get_yticklabels()]
    assert rows == ["1  (60)", "2  (50)", "0  (100)", "3  (30)"]  # the steadiest on top
    dots = [c for c in right.collections if len(c.get_offsets())]
    assert [c.get_offsets()[0, 0] for c in dots] == [0.2, 0.6, 0.9, 1.0]
    colors = dict(zip(index, default_palette(4), strict=True))
    assert [to_hex(c.get_facecolor()[0]) for c in dots] == [colors[name] for name in ("1", "2", "0", "3")]
    assert [line.get_xdata()[0] for line in right.lines] == pytest.approx(means[[1, 2, 0, 3]])


def test_confusion_says_how_many_cells_it_leaves_out(clustered):
    assert "left out" not in pl.confusion(clustered, "truth", show=False).get_title()
    clustered.obs["truth"] = clustered.obs["truth"].where(np.arange(240) >= 100)
    clustered.obs["vcc"] = clustered.obs["vcc"].where(np.arange(240) < 235)
    title = pl.confusion(clustered, "truth", show=False).get_title()
    assert title.split("\n")[1] == "105 cells without a value left out"


def test_confusion_puts_unassigned_cells_last(clustered):
    labels = clustered.obs["vcc"].astype(str).where(clustered.obs["truth"] != "0", "unassigned")
    clustered.obs["vcc"] = labels.astype("category")
    ax = pl.confusion(clustered, "truth", show=False)
    assert [t.get_text() for t in ax.get_xticklabels()][-1] == "unassigned"
