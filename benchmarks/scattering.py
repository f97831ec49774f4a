"""Wavelet scattering of images: features from fixed filters, without training and without labels.

Bruna & Mallat (2013): an image is filtered by Morlet wavelets, moduli are taken, and what is left is averaged over
windows of 4 pixels. The second order filters the moduli of the finer wavelets once more by the coarser ones. With two
scales and eight directions that makes 1 + 16 + 64 = 81 small maps an image.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from scipy.fft import fft2, fftfreq, ifft2

SCALES, DIRECTIONS = 2, 8
WINDOW = 2**SCALES  # pixels a side that a feature averages over
WIDTH, FREQUENCY = 0.8, 3 * np.pi / 4  # of the finest wavelet: the usual choice (Andreux et al. 2020, Kymatio)
SLANT = 4 / DIRECTIONS  # a wavelet is longer along its crests, by the inverse
BLOCK = 100  # images at a time

# Axes (images, maps, down, right) over which one standard deviation is taken. By maps: the orders, which differ fifty-fold in
# size, then count alike, and places where images hardly ever differ are not blown up, as they are if each has its own.
SCALINGS = {"maps": (0, 2, 3), "coefficients": (0,), "none": (0, 1, 2, 3)}
SMALLEST = 1e-5  # of the largest standard deviation: rounding errors of maps that are constant stay small


def features(X: np.ndarray, scaling: str = "maps") -> np.ndarray:
    """Scattering of square images, one a row: the 81 maps side by side, divided by standard deviations."""
    side = int(np.sqrt(X.shape[1]))
    if side * side != X.shape[1] or side % WINDOW:
        raise ValueError(
            f"Scattering needs square images with a side that {WINDOW} divides, found {X.shape[1]} pixels."
        )
    images = X.reshape(-1, side, side).astype(np.float32)
    maps = np.concatenate([scattering(images[start : start + BLOCK]) for start in range(0, len(images), BLOCK)])
    spread = maps.std(axis=SCALINGS[scaling], keepdims=True)
    maps /= np.where(spread > SMALLEST * spread.max(), spread, 1)
    return maps.reshape(len(maps), -1)


def scattering(images: np.ndarray) -> np.ndarray:
    """Maps (n, 81, side / 4, side / 4): the averaged image, the first order from fine to coarse, the second order."""
    # the border is mirrored, so that the circular filters do not carry the right edge to the left one
    padded = np.pad(images, ((0, 0), (WINDOW, WINDOW), (WINDOW, WINDOW)), mode="reflect")
    spectrum = fft2(padded)
    zeroth, first, second = [_averaged(spectrum, 0)], [], []
    for scale in range(SCALES):
        for direction in range(DIRECTIONS):
            modulus = _modulus(spectrum, scale, direction, 0)
            first.append(_averaged(modulus, scale))
            for coarser in range(scale + 1, SCALES):
                for other in range(DIRECTIONS):
                    second.append(_averaged(_modulus(modulus, coarser, other, scale), coarser))
    return np.stack(zeroth + first + second, axis=1)


def _modulus(spectrum: np.ndarray, scale: int, direction: int, halvings: int) -> np.ndarray:
    """Spectrum of the modulus of the wavelet transform, at every 2**scale-th pixel of the image.

    The image behind `spectrum` was halved `halvings` times already, so that a wavelet is that much smaller on its grid.
    """
    wavelet = morlet(spectrum.shape[-1], scale - halvings, direction)
    return fft2(np.abs(ifft2(_every(spectrum * wavelet, 2 ** (scale - halvings)))))


def _averaged(spectrum: np.ndarray, halvings: int) -> np.ndarray:
    """The map averaged by a Gaussian, at every fourth pixel of the image, without the mirrored border."""
    window = gaussian(spectrum.shape[-1], WIDTH * 2 ** (SCALES - 1 - halvings), 0, 1, 0)
    averaged = ifft2(_every(spectrum * window, 2 ** (SCALES - halvings))).real
    return averaged[:, 1:-1, 1:-1]


def _every(spectrum: np.ndarray, step: int) -> np.ndarray:
    """Spectrum of every `step`-th pixel: the frequencies that can no longer be told apart are averaged."""
    n, side = spectrum.shape[0], spectrum.shape[-1] // step
    return spectrum.reshape(n, step, side, step, side).mean(axis=(1, 3))


@cache
def morlet(side: int, scale: int, direction: int) -> np.ndarray:
    """Spectrum of a Morlet wavelet: a wave under a Gaussian, less that Gaussian, so that a constant image gives 0."""
    width, frequency, angle = WIDTH * 2**scale, FREQUENCY / 2**scale, np.pi * direction / DIRECTIONS
    wave, envelope = gaussian(side, width, angle, SLANT, frequency), gaussian(side, width, angle, SLANT, 0)
    return wave - wave[0, 0] / envelope[0, 0] * envelope


@cache
def gaussian(side: int, width: float, angle: float, slant: float, frequency: float) -> np.ndarray:
    """Spectrum of a Gaussian of sum 1 times a wave of `frequency` in the direction of `angle`, on a `side`² torus."""
    turns = 2 * np.pi * (fftfreq(side)[:, None] + np.arange(-2, 3))  # (side, 5): each frequency and its aliases
    down, right = turns[:, None, :, None], turns[None, :, None, :]
    along = down * np.cos(angle) + right * np.sin(angle) - frequency
    across = right * np.cos(angle) - down * np.sin(angle)
    return np.exp(-(width**2) / 2 * (along**2 + (across / slant) ** 2)).sum(axis=(2, 3)).astype(np.float32)
