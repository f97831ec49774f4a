"""Plots of clusters: how many, how stable, what they are made of, how they match known groups."""

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex

from scvcc import pl
from scvcc.pl._columns import GREYS, default_palette


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


# ----------------------------------------------------------------------------------------------------- composition


def bars(ax):
    """Length and color of the parts of each bar, by the name of its row."""
    rows = {round(tick, 3): t.get_text() for tick, t in zip(ax.get_yticks(), ax.get_yticklabels(), strict=True)}
    parts = {}
    for patch in ax.patches:
        row = rows[round(patch.get_y() + patch.get_height() / 2, 3)]
        parts.setdefault(row, []).append((patch.get_x(), patch.get_width(), to_hex(patch.get_facecolor())))
    return parts


def samples(clustered, n=2):
    clustered.obs["sample"] = pd.Categorical([f"s{i}" for i in np.random.default_rng(0).integers(n, size=240)])
    return pd.crosstab(clustered.obs["vcc"].astype(str), clustered.obs["sample"].astype(str))


@pytest.mark.parametrize("normalize", [True, False])
def test_composition(clustered, normalize):
    table = samples(clustered)
    left, right = pl.composition(clustered, "sample", normalize=normalize, show=False)
    for ax, counts, name in ((left, table, "sample"), (right, table.T, "vcc")):
        found, sizes = bars(ax), counts.sum(axis=1)
        colors = dict(zip(clustered.obs[name].cat.categories, clustered.uns[f"{name}_colors"], strict=True))
        heading = ["all cells  (240)"] if normalize else []
        assert list(found) == [*heading, *(f"{row}  ({n})" for row, n in sizes.items())]
        shown = counts.div(sizes, axis=0) if normalize else counts
        for row, size in sizes.items():
            starts, lengths, tints = zip(*found[f"{row}  ({size})"], strict=True)
            assert lengths == pytest.approx(shown.loc[row].to_numpy())
            assert starts == pytest.approx(np.cumsum([0, *lengths[:-1]]))
            assert list(tints) == [colors[part] for part in counts.columns]
        if normalize:
            assert [part[1] for part in found["all cells  (240)"]] == pytest.approx(counts.sum().to_numpy() / 240)
        assert legend_names(ax.get_legend()) == list(counts.columns)
    assert left.get_yticks()[0] < left.get_yticks()[-1] and left.yaxis_inverted()  # in order from the top
    assert (left.get_title(), right.get_title()) == ("vcc by sample", "sample by vcc")


def test_composition_leaves_out_and_counts_cells_without_a_value(clustered):
    samples(clustered)
    assert pl.composition(clustered, "sample", return_fig=True).get_suptitle() == ""
    clustered.obs["sample"] = clustered.obs["sample"].where(np.arange(240) >= 10)
    clustered.obs["vcc"] = clustered.obs["vcc"].where(np.arange(240) < 220)
    fig = pl.composition(clustered, "sample", return_fig=True)
    assert fig.get_suptitle() == "30 cells without a value left out"
    assert next(iter(bars(fig.axes[0]))) == "all cells  (210)"


def test_composition_of_many_samples(clustered):
    samples(clustered, n=30)
    fig = pl.composition(clustered, "sample", return_fig=True)
    fig.draw_without_rendering()
    left, right = fig.axes
    legend = left.get_legend()
    assert len(legend.get_texts()) == 30
    assert len({round(t.get_window_extent().x0) for t in legend.get_texts()}) == 2  # columns
    assert legend.get_window_extent().x1 < min(t.get_window_extent().x0 for t in right.get_yticklabels())
    assert len({to_hex(h.get_color()) for h in legend.legend_handles}) == 30
    heights = {round(p.get_window_extent().height, 2) for ax in fig.axes for p in ax.patches}
    assert len(heights) == 1  # 5 bars are as thick as 31
    assert heights.pop() > 9 * fig.dpi / 72  # and leave room for a name


def test_composition_of_other_columns(clustered):
    clustered.obs["flag"] = np.arange(240) % 2 == 0
    clustered.obs["word"] = pd.Categorical(["one"] * 240, categories=["none", "one"])
    left, _ = pl.composition(clustered, "flag", show=False)
    assert legend_names(left.get_legend()) == ["False", "True"]
    left, right = pl.composition(clustered, "word", show=False)
    assert legend_names(left.get_legend()) == ["one"]  # a category without cells is not drawn
    assert list(bars(right)) == ["all cells  (240)", "one  (240)"]
    left, right = pl.composition(clustered, "vcc", show=False)
    assert list(bars(left)) == list(bars(right))
    clustered.obs["number"] = np.arange(240) % 3
    with pytest.raises(ValueError, match=r"adata.obs\['number'\] holds numbers: use .astype\('category'\)"):
        pl.composition(clustered, "number")


def test_composition_of_cells_with_one_name_and_unassigned_ones(clustered):
    samples(clustered)
    labels = clustered.obs["vcc"].astype(str).where(np.arange(240) >= 30, "unassigned")
    clustered.obs["vcc"] = labels.astype("category")
    clustered.uns["vcc_colors"] = ["#ff0000"] * 5
    clustered.obs_names = ["cell"] * 240
    left, right = pl.composition(clustered, "sample", palette=["red", "blue"], show=False)
    assert list(bars(left))[-1] == "unassigned  (30)"
    assert [parts[-1][2] for parts in bars(right).values()] == [GREYS["unassigned"]] * 3
    assert {part[2] for part in bars(left)["all cells  (240)"]} == {"#ff0000", "#0000ff"}
