"""What is on the map of a result. Pixels are looked at by people."""

import anndata as ad
import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex

from scvcc import pl
from scvcc.pl._columns import GREYS


def points(ax):
    """Number of points in all scatters of the axes."""
    return [len(c.get_offsets()) for c in ax.collections]


def names(ax):
    return [t.get_text() for t in ax.texts]


def legend_names(legend):
    return [t.get_text() for t in legend.get_texts()]


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


def test_missing_values_are_gray(clustered):
    clustered.obs["some"] = clustered.obs["vcc"].where(clustered.obs["vcc"] != "2")
    ax = pl.vcc(clustered, "some", show=False)
    behind = ax.collections[0]
    assert [to_hex(c) for c in behind.get_facecolors()] == [GREYS["NA"]]
    expected = clustered.obsm["X_vcc"][(clustered.obs["vcc"] == "2").to_numpy()]
    assert np.array_equal(np.asarray(behind.get_offsets()), expected)
    clustered.obs["number"] = np.where(np.arange(240) < 40, np.nan, 1.0)
    ax = pl.vcc(clustered, "number", show=False)
    assert points(ax) == [40, 200]
    assert legend_names(ax.get_legend()) == ["NA"]


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


@pytest.fixture
def mapped(clustered):
    """A result with unassigned cells, as `tl.map_query` leaves it."""
    labels = clustered.obs["vcc"].astype(str).where(np.arange(240) >= 30, "unassigned")
    clustered.obs["vcc"] = pd.Categorical(labels, categories=["0", "1", "2", "3", "unassigned"])
    clustered.uns["vcc_colors"] = np.array(["#112233", "#223344", "#334455", "#445566", "#ff0000"])
    return clustered


@pytest.mark.parametrize("palette", [None, "tab10", ["red", "blue"], dict.fromkeys("0123", "red")])
def test_unassigned_cells_are_grey_behind_the_others_and_only_in_the_legend(mapped, palette):
    for legend_loc, on_map, listed in (("on data", "0123", []), ("right margin", "", ["0", "1", "2", "3"])):
        ax = pl.vcc(mapped, legend_loc=legend_loc, palette=palette, show=False)
        behind, front = ax.collections  # drawn in this order
        assert np.array_equal(np.asarray(behind.get_offsets()), mapped.obsm["X_vcc"][:30])
        assert [to_hex(c) for c in behind.get_facecolors()] == [GREYS["unassigned"]]
        assert GREYS["unassigned"] not in {to_hex(c) for c in front.get_facecolors()}
        assert len(front.get_offsets()) == 210
        assert sorted(names(ax)) == list(on_map)
        assert legend_names(ax.get_legend()) == [*listed, "unassigned"]


def test_a_category_without_cells_is_not_in_the_legend_of_grey_cells(mapped):
    mapped.obs["vcc"] = mapped.obs["vcc"].where(mapped.obs["vcc"] != "unassigned", "0")
    assert pl.vcc(mapped, show=False).get_legend() is None
    assert legend_names(pl.vcc(mapped, legend_loc="right margin", show=False).get_legend()) == ["0", "1", "2", "3"]


def test_missing_values_are_in_the_legend(mapped):
    mapped.obs["some"] = mapped.obs["vcc"].where(np.arange(240) < 200)
    ax = pl.vcc(mapped, "some", show=False)
    assert points(ax) == [40, 30, 170]  # from behind: missing, unassigned, clusters
    assert legend_names(ax.get_legend()) == ["unassigned", "NA"]
    assert [to_hex(h.get_color()) for h in ax.get_legend().legend_handles] == [GREYS["unassigned"], GREYS["NA"]]
    ax = pl.vcc(mapped, "some", legend_loc="right margin", show=False)
    assert legend_names(ax.get_legend())[-2:] == ["unassigned", "NA"]
    mapped.obsm["X_vcc"][200:] = np.nan  # what is missing is not on the map
    mapped.obsm["X_vcc"][:5] = np.nan
    ax = pl.vcc(mapped, "some", show=False)
    assert points(ax) == [25, 170]
    assert legend_names(ax.get_legend()) == ["unassigned"]


def test_numbers_have_a_bar_and_a_legend_of_missing_values_only(clustered):
    clustered.obs["number"] = np.where(np.arange(240) < 40, np.nan, 1.0)
    fig = pl.vcc(clustered, "number", legend_loc="right margin", return_fig=True)
    assert legend_names(fig.axes[0].get_legend()) == ["NA"]
    assert len(fig.axes) == 2
    clustered.obs["number"] = 1.0
    assert pl.vcc(clustered, "number", show=False).get_legend() is None


@pytest.mark.parametrize(("key", "expected"), [("vcc", "VCC2"), ("v30", "v30 2"), ("vcc_R", "vcc_R 2")])
def test_axes_are_named_after_the_result(clustered, key, expected):
    clustered.obs[key], clustered.obsm[f"X_{key}"] = clustered.obs["vcc"], clustered.obsm["X_vcc"]
    clustered.obs[f"{key}_stability"] = 0.5
    clusters = pd.DataFrame({"n_cells": [60] * 4, "stability": 0.5}, index=["0", "1", "2", "3"])
    clustered.uns[f"{key}_stability"] = {"clusters": clusters, "runs": np.full((2, 4), 0.5)}
    assert pl.vcc(clustered, key=key, show=False).get_ylabel() == expected
    assert pl.stability(clustered, key=key, show=False)[0].get_ylabel() == expected


@pytest.mark.parametrize("legend_loc", ["on data", "right margin"])
def test_a_legend_widens_the_figure_and_not_the_map(mapped, legend_loc):
    mapped.obs["truth"] = mapped.obs["vcc"].cat.rename_categories({"0": "a rather long name"})
    sizes = []
    for loc in ("none", legend_loc):
        fig = pl.vcc(mapped, ["truth", "vcc"], legend_loc=loc, return_fig=True)
        fig.draw_without_rendering()
        frames = [ax.get_window_extent() for ax in fig.axes]
        sizes.append([(frame.width, *np.ptp(ax.viewLim, axis=0)) for ax, frame in zip(fig.axes, frames, strict=True)])
    assert fig.axes[0].get_legend().get_window_extent().x1 < frames[1].x0
    assert np.ravel(sizes[1]) == pytest.approx(np.ravel(sizes[0]), rel=0.06)
