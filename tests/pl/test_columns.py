"""Colors of categories."""

import matplotlib as mpl
import numpy as np
import pytest
import scanpy as sc
from matplotlib.colors import to_hex, to_rgb

from scvcc import pl
from scvcc.pl._columns import GREYS, PALETTE, default_palette


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


def test_palettes_by_name(clustered):
    def colors(palette):
        clustered.uns.pop("vcc_colors", None)
        pl.vcc(clustered, palette=palette, show=False)
        return list(clustered.uns["vcc_colors"])

    assert colors("tab10") == [to_hex(c) for c in mpl.colormaps["tab10"].colors[:4]]
    assert colors("default_20") == [to_hex(c) for c in sc.pl.palettes.default_20[:4]]
    assert colors("viridis") == [to_hex(mpl.colormaps["viridis"](x)) for x in (0, 1 / 3, 2 / 3, 1.0)]


def test_unassigned_cells_use_up_no_color(clustered):
    labels = clustered.obs["vcc"].astype(str).where(np.arange(240) >= 30, "z")
    clustered.obs["vcc"] = labels.replace("1", "unassigned").astype("category")
    pl.vcc(clustered, show=False)
    stored = dict(zip(clustered.obs["vcc"].cat.categories, clustered.uns["vcc_colors"], strict=True))
    assert stored == {
        "0": PALETTE[0],
        "2": PALETTE[1],
        "3": PALETTE[2],
        "unassigned": GREYS["unassigned"],
        "z": PALETTE[3],
    }
