"""Names on a map: at their cells, in the frame, never over each other."""

import numpy as np
import pandas as pd
import pytest

from scvcc import pl
from scvcc.pl import _names


def names(ax):
    return [t.get_text() for t in ax.texts]


def legend_names(legend):
    return [t.get_text() for t in legend.get_texts()]


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


@pytest.fixture
def crowded(clustered):
    """The same cells in 40 clusters, neighbors on the map."""
    order = np.lexsort(clustered.obsm["X_vcc"].T)
    codes = np.empty(240, int)
    codes[order] = np.arange(240) // 6
    clustered.obs["vcc"] = pd.Categorical.from_codes(codes, [str(i) for i in range(40)])
    return clustered


@pytest.mark.parametrize("legend_loc", ["on data", "beside"])
@pytest.mark.parametrize(("prefix", "least", "most"), [("", 35, 40), ("a rather long name ", 8, 39), ("x" * 80, 0, 0)])
def test_names_of_many_clusters_are_on_the_map_or_in_the_legend(crowded, legend_loc, prefix, least, most):
    crowded.obs["vcc"] = crowded.obs["vcc"].cat.rename_categories(lambda c: prefix + c)
    fig = pl.vcc(crowded, legend_loc=legend_loc, return_fig=True)
    fig.draw_without_rendering()
    ax = fig.axes[0]
    boxes, frame = [t.get_window_extent() for t in ax.texts], ax.get_window_extent()
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])
    assert all(frame.x0 <= b.x0 and b.x1 <= frame.x1 and frame.y0 <= b.y0 and b.y1 <= frame.y1 for b in boxes)
    listed = legend_names(ax.get_legend()) if ax.get_legend() else []
    assert sorted([*names(ax), *listed]) == sorted(crowded.obs["vcc"].cat.categories)
    assert least <= len(names(ax)) <= most


def test_large_clusters_choose_their_place_first(clustered):
    clustered.obsm["X_vcc"] = np.zeros((240, 2))
    labels = np.where(np.arange(240) < 200, "z" * 30, np.char.add("y" * 25, (np.arange(240) % 20).astype(str)))
    clustered.obs["vcc"] = pd.Categorical(labels)
    ax = pl.vcc(clustered, show=False)
    assert names(ax)[0] == "z" * 30
    assert len(legend_names(ax.get_legend())) > 0


def test_a_name_that_would_hide_its_cluster_stands_next_to_it(clustered):
    small = (clustered.obs["vcc"] == "3").to_numpy()
    clustered.obsm["X_vcc"][small] = clustered.obsm["X_vcc"][small].mean(axis=0)
    fig = pl.vcc(clustered, return_fig=True)
    fig.draw_without_rendering()
    ax = fig.axes[0]
    place = ax.transData.transform(clustered.obsm["X_vcc"][small][0])
    box = next(t for t in ax.texts if t.get_text() == "3").get_window_extent()
    assert not box.contains(*place)


def test_a_category_in_two_places_is_named_where_most_of_it_is():
    points = np.concatenate([np.random.default_rng(0).uniform(1, 4, (30, 2)), np.full((20, 2), 100.0)])
    assert (_names._densest(points, 5.0) == points[:30]).all()
