"""Scattering features against sums over pixels, and their way through the benchmark."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from benchmarks import data, one, report, run, scattering


def wavelet_in_space(side: int, scale: int, direction: int) -> np.ndarray:
    """The Morlet wavelet point by point, wrapped around a torus, its mean removed by its own envelope."""
    width, frequency, angle = 0.8 * 2**scale, 3 * np.pi / 4 / 2**scale, np.pi * direction / 8
    wave, envelope = np.zeros((side, side), complex), np.zeros((side, side))
    for down in range(-2 * side, 2 * side):
        for right in range(-2 * side, 2 * side):
            along = down * np.cos(angle) + right * np.sin(angle)
            across = right * np.cos(angle) - down * np.sin(angle)
            height = np.exp(-(along**2 + (across / 2) ** 2) / (2 * width**2)) / (4 * np.pi * width**2)
            envelope[down % side, right % side] += height
            wave[down % side, right % side] += height * np.exp(1j * frequency * along)
    return wave - wave.sum() / envelope.sum() * envelope


def convolved(image: np.ndarray, kernel: np.ndarray) -> np.ndarray:
    shifts = np.ndindex(kernel.shape)
    return sum(kernel[shift] * np.roll(image, shift, axis=(0, 1)) for shift in shifts)


@pytest.mark.parametrize(("scale", "direction"), [(0, 0), (0, 3), (1, 0), (1, 6)])
def test_spectrum_of_the_wavelet(scale: int, direction: int) -> None:
    expected = np.fft.fft2(wavelet_in_space(20, scale, direction))
    np.testing.assert_allclose(scattering.morlet(20, scale, direction), expected, atol=1e-5)
    assert abs(expected[0, 0]) < 1e-6


@pytest.fixture(scope="module")
def image() -> np.ndarray:
    return np.random.default_rng(0).random((12, 12), dtype=np.float32)


@pytest.mark.parametrize(
    ("path", "place"), [([], 0), ([(0, 2)], 3), ([(1, 5)], 14), ([(0, 3), (1, 1)], 1 + 16 + 3 * 8 + 1)]
)
def test_maps_are_moduli_of_convolutions_averaged(image: np.ndarray, path: list, place: int) -> None:
    expected = np.pad(image, 4, mode="reflect")
    for scale, direction in path:
        expected = abs(convolved(expected, wavelet_in_space(20, scale, direction)))
    distance = np.minimum(np.arange(20), 20 - np.arange(20))
    window = np.exp(-(distance[:, None] ** 2 + distance**2) / (2 * 1.6**2))
    expected = convolved(expected, window / window.sum())[4:-4:4, 4:-4:4]
    found = scattering.scattering(image[None])[0, place]
    np.testing.assert_allclose(found, expected, rtol=0.05)  # halved images are averaged at their own pixels


def test_a_constant_image_has_no_edges_and_a_shift_moves_the_maps(image: np.ndarray) -> None:
    maps = scattering.scattering(np.ones((1, 12, 12), dtype=np.float32))
    np.testing.assert_allclose(maps[0, 0], 1, rtol=1e-5)
    assert abs(maps[0, 1:]).max() < 1e-6
    wide = np.zeros((2, 44, 44), dtype=np.float32)
    wide[0, 16:28, 12:24] = wide[1, 16:28, 16:28] = image
    here, shifted = scattering.scattering(wide)
    np.testing.assert_allclose(shifted[..., 1:], here[..., :-1], atol=1e-4)


def test_scalings() -> None:
    X = np.random.default_rng(0).random((250, 64), dtype=np.float32)  # more than one block
    maps = {name: scattering.features(X, name).reshape(250, 81, 2, 2) for name in scattering.SCALINGS}
    np.testing.assert_allclose(maps["maps"].std(axis=(0, 2, 3)), 1, rtol=1e-4)
    np.testing.assert_allclose(maps["coefficients"].std(axis=0), 1, rtol=1e-4)
    assert maps["none"].std() == pytest.approx(1, rel=1e-4)
    blank = np.zeros((3, 64), dtype=np.float32)
    assert (scattering.features(blank) == 0).all()
    assert abs(scattering.features(blank + 1)[:, 4:]).max() < 1e-4  # rounding errors are not made large
    with pytest.raises(ValueError, match="found 63 pixels"):
        scattering.features(X[:, 1:])


def test_jobs_on_features_measure_the_features(monkeypatch) -> None:
    jobs = run.choose(run.parse(["features", "--sets", "usps"]))
    chosen = [job for job in jobs if job.variant == run.SCATTERING]
    assert [sum(job.method == name for job in chosen) for name in run.ON_FEATURES] == [3, 3, 5]
    assert len(jobs) - len(chosen) == 6  # the other two scalings

    X = np.random.default_rng(0).random((120, 64), dtype=np.float32)
    prepared, seen = data.Data(X, np.arange(120) % 2, data.IMAGES), []
    monkeypatch.setattr(one, "load", lambda *_: prepared)
    monkeypatch.setattr(one, "_warm_up", lambda *_: None)
    kmeans = one.METHODS["kmeans"].run

    def watched(given: data.Data, k: int, seed: int) -> np.ndarray:
        seen.append(given.X)
        return kmeans(given, k, seed)

    monkeypatch.setitem(one.METHODS, "kmeans", one.METHODS["kmeans"].__class__("k-means", watched))
    (row,) = one.measure(vars(chosen[0]) | {"data": ""})
    np.testing.assert_array_equal(seen[0], scattering.features(X))
    assert (row["k_given"], row["n"]) == (2, 120)
    assert chosen[0].variant == run.SCATTERING  # the job still knows what it was


def test_page_of_features() -> None:
    rows = [
        ("vcc", "usps", "", 0.5),
        ("vcc", "usps", '{"scattering": "maps"}', 0.75),
        ("kmeans", "usps", '{"scattering": "maps"}', 0.25),
        ("vcc", "usps", '{"scattering": "none"}', 0.125),
    ]
    runs = pd.DataFrame(rows, columns=["method", "set", "variant", "nmi"])
    runs = runs.assign(k_known=True, status="ok", acc=0, seed=0)
    lines = report.features_page(runs).splitlines()
    assert "| **VCC (scvcc), pixels** | 1 | – | 0.000 / 0.500 | – | – |" in lines
    assert "| **VCC (scvcc), scattering** | 1 | – | 0.000 / 0.750 | – | – |" in lines
    assert "| k-means, scattering | 1 | – | 0.000 / 0.250 | – | – |" in lines
    published = "0.982 / 0.969 | 0.981 / 0.969 | 0.665 / 0.703 | 0.983 / 0.971"
    assert f"| *VCC on VGG features, published* |  | {published} |" in lines
    assert "| **VCC (scvcc), one for each map** | 1 | – | 0.000 / 0.750 | – |" in lines
    assert "| **VCC (scvcc), none** | 1 | – | 0.000 / 0.125 | – |" in lines
