"""What all plots share: what they return, what they leave alone, and how they refuse bad input."""

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.figure import Figure

from scvcc import pl


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
        lambda adata, **arguments: pl.composition(adata, "truth", **arguments),
    ],
)
def test_no_global_state_is_changed(clustered, draw, untouched):
    pl.vcc(clustered, ["vcc", "truth"], show=False)  # stores the colors
    np.random.seed(7)  # noqa: NPY002
    before, random = dict(mpl.rcParams), np.random.get_state()  # noqa: NPY002
    with untouched(clustered):
        assert isinstance(draw(clustered, return_fig=True), Figure)
    assert dict(mpl.rcParams) == before
    np.testing.assert_equal(np.random.get_state(), random)  # noqa: NPY002


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda a: pl.vcc(a, key="none"), "adata.obsm has no 'X_none': run scvcc.tl.vcc"),
        (lambda a: pl.vcc(a, "none"), "color='none' is neither a column of adata.obs nor the name of a variable"),
        (lambda a: pl.vcc(a, []), "at least one color"),
        (lambda a: pl.vcc(a, dimensions=(0, 2)), r"dimensions=\(0, 2\), but the map 'vcc' has 2"),
        (lambda a: pl.vcc(a, legend_loc="top"), "legend_loc must be"),
        (lambda a: pl.vcc(a, palette={"0": "red"}), "palette has no color for '1', '2', '3'"),
        (lambda a: pl.vcc(a, palette=[]), r"palette=\[\] has no colors: give a list"),
        (lambda a: pl.vcc(a, "gene1", use_raw=True), "use_raw=True, but adata.raw is None"),
        (lambda a: pl.vcc(a, ["vcc", "truth"], ax=plt.figure().add_subplot()), "there are 2 panels to draw"),
        (lambda a: pl.history(a, key="none"), "adata.uns has no 'none': run scvcc.tl.vcc"),
        (lambda a: pl.stages(a, key="none"), "adata.uns has no 'none': run scvcc.tl.vcc"),
        (lambda a: pl.similarity(a, key="none"), "run scvcc.tl.vcc"),
        (lambda a: pl.confusion(a, "none"), "adata.obs has no 'none': groupby must name one of its columns"),
        (lambda a: pl.confusion(a, "truth", normalize="all"), "normalize must be"),
        (lambda a: pl.composition(a, "none"), "adata.obs has no 'none': by must name one of its columns"),
        (lambda a: pl.composition(a, "truth", key="none"), "adata.obs has no 'none': run scvcc.tl.vcc"),
        (lambda a: pl.vcc(a, dimensions=(0.0, 1)), r"dimensions must be a pair of integers, found \(0.0, 1\)"),
        (lambda a: pl.vcc(a, dimensions=1), "dimensions must be a pair of integers, found 1"),
        (lambda a: pl.stages(a, dimensions=(0, -1)), r"dimensions=\(0, -1\).*give two integers"),
        (lambda a: pl.vcc(a, size=-1), "size must be at least 0, found -1"),
        (lambda a: pl.vcc(a, size="large"), "size must be a number or None, found .large."),
        (lambda a: pl.stages(a, size=-1), "size must be at least 0, found -1"),
        (lambda a: pl.stability(a, size=float("nan")), "size must be at least 0, found nan"),
        (lambda a: pl.n_clusters(a, runners_up=-1), "runners_up must be at least 0, found -1"),
        (lambda a: pl.n_clusters(a, runners_up=1.5), "runners_up must be an integer, found 1.5"),
        (lambda a: pl.vcc(a, ncols=0), "ncols must be at least 1, found 0"),
        (lambda a: pl.vcc(a, "gene1", layer="none"), "adata.layers has no 'none': layer must be one of"),
        (lambda a: pl.vcc(a, palette="tab1"), "palette='tab1' has no colors: give a list"),
        (
            lambda a: pl.vcc(a, palette=5),
            "palette must be a string, a list of strings, a dict of strings or None, found 5",
        ),
        (lambda a: pl.vcc(a, palette=["red", "no color"]), "palette has no color for '1', '3' that matplotlib knows"),
        (lambda a: pl.vcc(a, ax="axes"), "ax must be one Axes for one panel.*ax is 'axes'"),
        (lambda a: pl.confusion(a, "truth", ax=plt.subplots(2)[1]), "ax must be one Axes for one panel"),
    ],
)
def test_bad_arguments_are_named(clustered, untouched, draw, message):
    with untouched(clustered), pytest.raises((TypeError, ValueError), match=message):
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
        (
            with_a_single_cell,
            lambda a: pl.similarity(a, clusters=("0", "one")),
            r"\('0', 'one'\) must be two of '0', '1', '2', '3', those with 2 or more cells",
        ),
        (
            without_places,
            lambda a: pl.similarity(a, clusters=("3", "0")),
            r"\('3', '0'\) must be two of '0', '1', '2', those with 2 or more cells",
        ),
        (without_common_cells, lambda a: pl.confusion(a, "truth"), "No cell has a value in both"),
        (None, lambda a: pl.vcc(a, ["vcc", "truth"], title=["A"]), "2 colors and 1 titles"),
        (
            None,
            lambda a: pl.vcc(a, confidence="size"),
            "confidence must be .alpha., .color. or None, found .size.",
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


@pytest.mark.parametrize("name", pl.__all__)
def test_what_is_no_anndata_is_named(clustered, name):
    arguments = ("truth",) if name in ("confusion", "composition") else ()
    with pytest.raises(TypeError, match="adata must be an AnnData, found ndarray"):
        getattr(pl, name)(clustered.X, *arguments)


def test_dir_lists_the_plots_and_nothing_else():
    assert dir(pl) == sorted(pl.__all__)
    assert {"vcc", "support"} <= set(dir(pl))
