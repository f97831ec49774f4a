"""What is on a plot: points, names, colors. Pixels are looked at by people."""

import anndata as ad
import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure

from scvcc import pl
from scvcc.pl._columns import GREYS, PALETTE, default_palette
from scvcc.pl._training import pair_similarities


def points(ax):
    """Number of points in all scatters of the axes."""
    return [len(c.get_offsets()) for c in ax.collections]


def names(ax):
    return [t.get_text() for t in ax.texts]


def legend_names(legend):
    return [t.get_text() for t in legend.get_texts()]


# -------------------------------------------------------------------------------------------------------- the map


def test_map_shows_every_cell_in_the_color_of_its_cluster(clustered):
    ax = pl.vcc(clustered, show=False)
    (scatter,) = ax.collections
    places = {
        tuple(np.float32(p)): to_hex(c) for p, c in zip(scatter.get_offsets(), scatter.get_facecolors(), strict=True)
    }
    colors = dict(zip(clustered.obs["vcc"].cat.categories, clustered.uns["vcc_colors"], strict=True))
    assert len(scatter.get_offsets()) == 240
    for place, label in zip(clustered.obsm["X_vcc"], clustered.obs["vcc"], strict=True):
        assert places[tuple(place)] == colors[label]
    assert names(ax) == ["0", "1", "2", "3"]
    assert (ax.get_xlabel(), ax.get_ylabel(), ax.get_title()) == ("VCC1", "VCC2", "vcc")


def test_names_stand_at_their_clusters(clustered):
    ax = pl.vcc(clustered, show=False)
    for text in ax.texts:
        cells = clustered.obsm["X_vcc"][(clustered.obs["vcc"] == text.get_text()).to_numpy()]
        low, high = cells.min(axis=0), cells.max(axis=0)
        assert ((low <= text.xy) & (text.xy <= high)).all()


def test_names_do_not_cover_each_other(clustered):
    clustered.obs["vcc"] = clustered.obs["vcc"].cat.rename_categories(lambda c: f"a rather long name {c}")
    for loc in ("on data", "beside"):
        fig = pl.vcc(clustered, legend_loc=loc, return_fig=True)
        fig.draw_without_rendering()
        boxes = [t.get_window_extent() for t in fig.axes[0].texts]
        assert len(boxes) == 4
        assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])


def test_the_name_of_a_scattered_category_is_where_most_of_it_is(clustered):
    H = np.zeros((240, 2), np.float32)
    H[:100], H[100:130], H[130:] = (0, 0), (10, 10), (10, -10)
    clustered.obsm["X_vcc"] = H
    clustered.obs["group"] = pd.Categorical(np.where(np.arange(240) < 130, "two places", "other"))
    ax = pl.vcc(clustered, "group", show=False)
    assert next(t.xy for t in ax.texts if t.get_text() == "two places") == pytest.approx((0, 0), abs=1e-4)


def test_right_margin_and_no_legend(clustered):
    ax = pl.vcc(clustered, legend_loc="right margin", show=False)
    assert legend_names(ax.get_legend()) == ["0", "1", "2", "3"]
    assert names(ax) == []
    ax = pl.vcc(clustered, legend_loc="none", show=False)
    assert ax.get_legend() is None and names(ax) == []


def test_several_colors_make_a_grid(clustered):
    axes = pl.vcc(clustered, ["vcc", "truth", "gene3", "vcc_confidence"], ncols=3, show=False)
    assert [ax.get_title() for ax in axes] == ["vcc", "truth", "gene3", "vcc_confidence"]
    rows = {round(ax.get_position().y0, 2) for ax in axes}
    assert len(rows) == 2
    values = axes[2].collections[-1].get_array()
    assert np.array_equal(np.sort(clustered[:, "gene3"].X.ravel()), values)  # high values are drawn last
    titles = pl.vcc(clustered, ["vcc", "truth"], title=["A", "B"], show=False)
    assert [ax.get_title() for ax in titles] == ["A", "B"]


def test_variables_come_from_raw_or_a_layer(clustered):
    clustered.raw = clustered
    clustered.layers["double"] = 2 * clustered.X
    clustered.X = clustered.X * 0
    expected = np.sort(clustered.raw[:, "gene3"].X.ravel())
    values = {
        name: np.asarray(pl.vcc(clustered, "gene3", show=False, **arguments).collections[-1].get_array())
        for name, arguments in (("raw", {}), ("layer", {"layer": "double"}), ("X", {"use_raw": False}))
    }
    assert np.array_equal(values["raw"], expected)
    assert np.array_equal(values["layer"], 2 * expected)
    assert not values["X"].any()


def test_confidence_as_alpha_and_as_color(clustered):
    ax = pl.vcc(clustered, confidence="alpha", show=False)
    alpha = ax.collections[0].get_alpha()
    order = np.random.default_rng(0).permutation(240)
    confidence = clustered.obs["vcc_confidence"].to_numpy()[order]
    assert np.array_equal(np.argsort(alpha, kind="stable"), np.argsort(confidence, kind="stable"))
    ax = pl.vcc(clustered, confidence="color", show=False)
    assert ax.get_title() == "vcc_confidence"
    assert np.array_equal(ax.collections[-1].get_array(), np.sort(clustered.obs["vcc_confidence"]))


def test_colors_are_stored_kept_and_refreshed(clustered):
    clustered.uns["vcc_colors"] = ["#112233", "#223344", "#334455", "#445566"]
    ax = pl.vcc(clustered, show=False)
    assert {to_hex(c) for c in ax.collections[0].get_facecolors()} == set(clustered.uns["vcc_colors"])
    clustered.uns["vcc_colors"] = ["#112233"]  # of a run with fewer clusters
    pl.vcc(clustered, show=False)
    assert list(clustered.uns["vcc_colors"]) == PALETTE[:4]
    palette = {"0": "red", "1": "blue", "2": "black", "3": "white"}
    ax = pl.vcc(clustered, palette=palette, show=False)
    assert {to_hex(c) for c in ax.collections[0].get_facecolors()} == {to_hex(c) for c in palette.values()}
    assert list(clustered.uns["vcc_colors"]) == PALETTE[:4]  # a palette is for one plot
    del clustered.uns["vcc_colors"]
    pl.vcc(clustered, palette=["red", "blue"], show=False)
    assert list(clustered.uns["vcc_colors"]) == ["#ff0000", "#0000ff"] * 2


def test_missing_values_are_gray(clustered):
    clustered.obs["some"] = clustered.obs["vcc"].where(clustered.obs["vcc"] != "2")
    ax = pl.vcc(clustered, "some", show=False)
    shown = [to_hex(c) for c in ax.collections[0].get_facecolors()]
    assert shown.count(GREYS["NA"]) == (clustered.obs["vcc"] == "2").sum()
    clustered.obs["number"] = np.where(np.arange(240) < 40, np.nan, 1.0)
    assert points(pl.vcc(clustered, "number", show=False)) == [40, 200]


def test_columns_of_other_types(clustered):
    clustered.obs["flag"] = np.arange(240) % 2 == 0
    clustered.obs["word"] = np.where(np.arange(240) % 2 == 0, "b10", "b9")
    assert names(pl.vcc(clustered, "flag", show=False)) == ["False", "True"]
    assert names(pl.vcc(clustered, "word", show=False)) == ["b9", "b10"]


def test_cells_without_a_place_are_left_out(clustered):
    clustered.obsm["X_vcc"][:100] = np.nan  # as after restrict_to
    assert points(pl.vcc(clustered, show=False)) == [140]
    assert points(pl.vcc(clustered, "gene3", legend_loc="beside", show=False))[-1] == 140


def test_other_dimensions_and_keys(clustered):
    clustered.obsm["X_deep"] = np.arange(720.0).reshape(240, 3)
    clustered.obs["deep"] = clustered.obs["vcc"]
    ax = pl.vcc(clustered, key="deep", dimensions=(2, 0), show=False)
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("deep 3", "deep 1")
    offsets = np.asarray(ax.collections[0].get_offsets())
    assert np.array_equal(np.sort(offsets[:, 0]), clustered.obsm["X_deep"][:, 2])


def test_frame_and_size(clustered):
    ax = pl.vcc(clustered, frameon=False, size=7, show=False)
    assert not ax.axison
    assert ax.collections[0].get_sizes().tolist() == [7]


def test_many_points_are_small_and_rasterized():
    n = 20_000
    rng = np.random.default_rng(0)
    obs = pd.DataFrame({"vcc": pd.Categorical(rng.integers(3, size=n).astype(str))}, index=[str(i) for i in range(n)])
    adata = ad.AnnData(obs=obs, obsm={"X_vcc": rng.normal(size=(n, 2)).astype(np.float32)})
    (scatter,) = pl.vcc(adata, show=False).collections
    assert scatter.get_rasterized()
    assert scatter.get_sizes()[0] < 2


# ------------------------------------------------------------------------------------------------ what is returned


def test_axes_figure_or_nothing(clustered, monkeypatch):
    shown = []
    monkeypatch.setattr(plt, "show", lambda: shown.append(1))
    assert pl.vcc(clustered) is None and len(shown) == 1
    assert isinstance(pl.vcc(clustered, return_fig=True), Figure) and len(shown) == 1
    fig, ax = plt.subplots()
    before = plt.get_fignums()
    assert pl.vcc(clustered, ax=ax) is ax and len(shown) == 1
    assert plt.get_fignums() == before
    assert pl.vcc(clustered, ax=ax, show=True) is None and len(shown) == 2
    assert isinstance(pl.vcc(clustered, ["vcc"], show=False), list)


@pytest.mark.parametrize(
    "draw",
    [
        pl.vcc,
        pl.history,
        pl.stages,
        pl.similarity,
        lambda adata, **arguments: pl.confusion(adata, "truth", **arguments),
    ],
)
def test_no_global_state_is_changed(clustered, draw, untouched):
    pl.vcc(clustered, show=False)  # stores the colors
    np.random.seed(7)  # noqa: NPY002
    before, random = dict(mpl.rcParams), np.random.get_state()  # noqa: NPY002
    with untouched(clustered):
        assert isinstance(draw(clustered, return_fig=True), Figure)
    assert dict(mpl.rcParams) == before
    np.testing.assert_equal(np.random.get_state(), random)  # noqa: NPY002


# ------------------------------------------------------------------------------------------------- the other plots


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
    within, _, between = pair_similarities(clustered.X, labels, (0, 1), 0)
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
    labels = clustered.obs["vcc"].cat.codes.to_numpy()
    gap = []
    for space in (clustered.X, clustered.obsm["X_vcc"]):
        first, second, between = pair_similarities(space, labels, (0, 1), 0)
        gap.append(min(first.mean(), second.mean()) - between.mean())
    assert gap[1] > gap[0] > 0


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


# ---------------------------------------------------------------------------------------------------------- colors


def seen_with_deficiency(color, kind):
    """Simulate color vision deficiency (Machado et al. 2009, full severity) and return CIE Lab."""
    matrices = {
        "normal": np.eye(3),
        "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
        "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    }
    rgb = np.array(to_rgb(color))
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    linear = np.clip(np.array(matrices[kind]) @ linear, 0, 1)
    xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]) @ linear
    f = np.cbrt(np.maximum(xyz / [0.95047, 1, 1.08883], 1e-6))
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def closest(colors, kind):
    lab = np.array([seen_with_deficiency(color, kind) for color in colors])
    return (np.linalg.norm(lab[:, None] - lab, axis=-1) + 1e9 * np.eye(len(lab))).min()


@pytest.mark.parametrize(("kind", "least"), [("normal", 20), ("deutan", 12), ("protan", 12)])
def test_the_palette_can_be_told_apart(kind, least):
    """The bounds are a little below what the palette reaches; matplotlib's tab20 reaches 17, 3 and 1."""
    assert closest(PALETTE, kind) > least
    assert closest([*PALETTE, "white"], kind) > least
    if kind != "normal":
        assert closest(PALETTE, kind) > 4 * closest(mpl.colormaps["tab20"].colors, kind)


def test_more_categories_than_colors():
    colors = default_palette(70)
    assert colors[:24] == PALETTE
    assert len(set(colors)) == 70


# ------------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda a: pl.vcc(a, key="none"), "adata.obsm has no 'X_none': run scvcc.tl.vcc"),
        (lambda a: pl.vcc(a, "none"), "color='none' is neither a column of adata.obs nor the name of a variable"),
        (lambda a: pl.vcc(a, []), "at least one color"),
        (lambda a: pl.vcc(a, dimensions=(0, 2)), r"dimensions=\(0, 2\), but the map 'vcc' has 2"),
        (lambda a: pl.vcc(a, legend_loc="top"), "legend_loc must be"),
        (lambda a: pl.vcc(a, palette={"0": "red"}), "palette has no color for '1', '2', '3'"),
        (lambda a: pl.vcc(a, palette=[]), "palette is empty"),
        (lambda a: pl.vcc(a, "gene1", use_raw=True), "use_raw=True, but adata.raw is None"),
        (lambda a: pl.vcc(a, ["vcc", "truth"], ax=plt.figure().add_subplot()), "there are 2 panels to draw"),
        (lambda a: pl.history(a, key="none"), "adata.uns has no 'none': run scvcc.tl.vcc"),
        (lambda a: pl.stages(a, key="none"), "adata.uns has no 'none': run scvcc.tl.vcc"),
        (lambda a: pl.similarity(a, key="none"), "run scvcc.tl.vcc"),
        (lambda a: pl.confusion(a, "none"), "adata.obs has no 'none': groupby must name one of its columns"),
        (lambda a: pl.confusion(a, "truth", normalize="all"), "normalize must be"),
    ],
)
def test_bad_arguments_are_named(clustered, untouched, draw, message):
    with untouched(clustered), pytest.raises(ValueError, match=message):
        draw(clustered)


def with_one_dimension(adata):
    adata.obsm["X_vcc"] = adata.obsm["X_vcc"][:, :1]


def with_a_single_cell(adata):
    adata.obs["vcc"] = adata.obs["vcc"].cat.add_categories(["one"])
    adata.obs.loc[adata.obs_names[0], "vcc"] = "one"


def without_places(adata):
    adata.obsm["X_vcc"][(adata.obs["vcc"] == "3").to_numpy()] = np.nan


def without_common_cells(adata):
    adata.obs["truth"] = adata.obs["truth"].where(np.arange(240) < 100)
    adata.obs["vcc"] = adata.obs["vcc"].where(np.arange(240) >= 100)


@pytest.mark.parametrize(
    ("spoil", "draw", "message"),
    [
        (with_one_dimension, pl.vcc, "'vcc' has a single dimension.*latent_dim=2"),
        (with_one_dimension, pl.stages, "'vcc' has a single dimension.*latent_dim=2"),
        (with_a_single_cell, lambda a: pl.similarity(a, clusters=("0", "one")), "'one' has 1 cells on the map"),
        (without_places, lambda a: pl.similarity(a, clusters=("3", "0")), "'3' has 0 cells on the map"),
        (without_common_cells, lambda a: pl.confusion(a, "truth"), "No cell has a value in both"),
        (None, lambda a: pl.vcc(a, ["vcc", "truth"], title=["A"]), "title has 1 entries for 2 colors"),
        (
            None,
            lambda a: pl.vcc(a, confidence="size"),
            "confidence must be one of 'alpha', 'color', None, found 'size'",
        ),
        (None, lambda a: pl.vcc(a, legend_loc="top"), "legend_loc must be"),
    ],
)
def test_what_cannot_be_drawn_is_named_before_a_figure_is_made(clustered, spoil, draw, message):
    if spoil is not None:
        spoil(clustered)
    with pytest.raises(ValueError, match=message):
        draw(clustered)
    assert plt.get_fignums() == []


# ------------------------------------------------------------------------------ number of clusters, and stability


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
