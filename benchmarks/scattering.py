"""Scattering features of small images: wavelets, moduli and averages without any learnt parameter.

For each image the transform of Mallat and Bruna (2013) with `scales` J and `angles` L up to second order: one average,
J L moduli of wavelets and L^2 J (J - 1) / 2 moduli of moduli, averaged (81 channels for J = 2, L = 8), each of size /
2^J per side (7x7 for 28x28). It looks at one image at a time and has no parameters, so that it is not a release and
costs no privacy: Tramer and Boneh (2021) train on it. Their normalisation by means and variances of the training set is
a release of its own and not offered; `normalised` looks at single images.

Filters and channels follow kymatio 0.3 (which does not import with scipy 1.17 and later): Morlet wavelets of width
0.8 * 2^j, frequency 3 pi / 4 / 2^j, slant 4 / L, on images padded by reflection.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from heliograph.errors import ProgramError

_BATCH = 16
"""Images at a time: the spectra of one batch then fit a core's cache."""


def scattering(images: Tensor, scales: int = 2, angles: int = 8) -> Tensor:
    """Features [N, channels, h, w] of images [N, H, W], square or not; float32, on the CPU.

    Sides must be multiples of 2^scales.
    """
    if images.dim() != 3 or min(images.shape[1:]) < 2 ** (scales + 1) or any(s % 2**scales for s in images.shape[1:]):
        raise ProgramError(
            f"images of shape {tuple(images.shape)} cannot be transformed",
            where="scattering",
            why=f"they must be [N, H, W] with sides that are multiples of {2**scales}, at least {2 ** (scales + 1)}",
            hint="pad the images with zeros",
        )
    bank = _bank(images.shape[1], images.shape[2], scales, angles)
    if not len(images):
        return torch.zeros(0, *bank.shape)
    return torch.cat([bank.features(part) for part in images.float().split(_BATCH)])


def normalised(features: Tensor, groups: int = 27) -> Tensor:
    """Each image's channels in `groups` groups, each shifted and scaled to mean 0 and variance 1.

    Group norm without parameters: it looks at one record, so that it costs no privacy. Tramer and Boneh use 27.
    """
    return torch.nn.functional.group_norm(features, groups)


class _Bank:
    """The filters for one size of image."""

    def __init__(self, height: int, width: int, scales: int, angles: int) -> None:
        self.scales, self.angles = scales, angles
        self.pad = 2**scales
        self.padded = (height + 2 * self.pad, width + 2 * self.pad)
        channels = 1 + scales * angles + angles**2 * scales * (scales - 1) // 2
        self.shape = (channels, height // self.pad, width // self.pad)
        self.wavelets: dict[tuple[int, int], Tensor] = {}
        for j in range(scales):
            full = np.stack([_morlet(self.padded, j, angle, angles) for angle in range(angles)])
            for at in range(j + 1):
                # Subsampling from `at` to j averages 4^(j - at) aliases; the division is done here.
                self.wavelets[j, at] = torch.from_numpy((_folded(full, at) / 4 ** (j - at)).astype(np.float32))
        # The average at each resolution: smooth, keep one sample in 2^(J - at), drop the padding; a matrix on each side.
        self.averages = [[torch.from_numpy(self._average(n, at)) for n in self.padded] for at in range(scales)]

    def _average(self, size: int, at: int) -> NDArray[np.float32]:
        sigma = 0.8 * 2 ** (self.scales - 1)
        places = np.arange(size)
        kernel = sum(np.exp(-((places + turn * size) ** 2) / (2 * sigma**2)) for turn in range(-2, 3))
        spectrum = np.fft.fft(kernel / (math.sqrt(2 * math.pi) * sigma)).real
        kernel = np.fft.ifft(_folded_line(spectrum, at)).real
        outputs = np.arange(1, size // self.pad - 1) * 2 ** (self.scales - at)
        small = size >> at
        return np.asarray(kernel[(outputs[:, None] - np.arange(small)) % small], dtype=np.float32)

    def _averaged(self, x: Tensor, at: int) -> Tensor:
        rows, columns = self.averages[at]
        return rows @ x @ columns.T

    def features(self, images: Tensor) -> Tensor:
        sides = (self.pad,) * 4
        x = torch.nn.functional.pad(images.unsqueeze(1), sides, mode="reflect")
        spectrum = torch.fft.fft2(x)
        out = [self._averaged(x, 0)]
        second: list[Tensor] = []
        for j in range(self.scales):
            first = _filtered(spectrum, self.wavelets[j, 0], j)
            out.append(self._averaged(first, j))
            if j + 1 == self.scales:
                continue
            spectra = torch.fft.fft2(first).unsqueeze(2)
            deeper = []
            for coarse in range(j + 1, self.scales):
                deeper.append(self._averaged(_filtered(spectra, self.wavelets[coarse, j], coarse - j), coarse))
            second.append(torch.cat(deeper, 2).flatten(1, 2))
        return torch.cat(out + second, 1)


@lru_cache(maxsize=4)
def _bank(height: int, width: int, scales: int, angles: int) -> _Bank:
    return _Bank(height, width, scales, angles)


def _filtered(spectrum: Tensor, wavelets: Tensor, times: int) -> Tensor:
    """The modulus of an image convolved with each wavelet, every 2^times-th sample of it."""
    # Multiply real numbers: torch would first make the wavelets complex.
    product = torch.view_as_real(spectrum) * wavelets.unsqueeze(-1)
    for axis in (-3, -2):
        for _ in range(times):  # subsampling folds the spectrum onto itself
            low, high = product.chunk(2, axis)
            product = low.add_(high)
    signal: Tensor = torch.fft.ifft2(torch.view_as_complex(product))
    return signal.abs()


def _folded_line(spectrum: NDArray[np.float64], times: int) -> NDArray[np.float64]:
    """A filter's spectrum for a signal subsampled to every 2^times-th sample: its low half-band, no aliases."""
    size = len(spectrum)
    keep = np.ones(size)
    start = size >> (times + 1)
    keep[start : start + int(size * (1 - 2.0**-times))] = 0
    return np.asarray((spectrum * keep).reshape(2**times, -1).sum(0))


def _folded(spectra: NDArray[np.float64], times: int) -> NDArray[np.float64]:
    rows = np.apply_along_axis(_folded_line, -1, spectra, times)
    return np.apply_along_axis(_folded_line, -2, rows, times)


def _morlet(size: tuple[int, int], scale: int, angle: int, angles: int) -> NDArray[np.float64]:
    """The spectrum of a Morlet wavelet, a wave under a Gaussian less the Gaussian's share that makes its mean zero."""
    sigma, slant = 0.8 * 2**scale, 4.0 / angles
    turn, frequency = (angles - angles // 2 - 1 - angle) * math.pi / angles, 0.75 * math.pi / 2**scale
    wave, envelope = np.zeros(size, complex), np.zeros(size)
    for down in range(-2, 3):
        for across in range(-2, 3):
            x, y = np.mgrid[down * size[0] : (down + 1) * size[0], across * size[1] : (across + 1) * size[1]]
            along = x * math.cos(turn) + y * math.sin(turn)
            beside = y * math.cos(turn) - x * math.sin(turn)
            gaussian = np.exp(-(along**2 + (slant * beside) ** 2) / (2 * sigma**2))
            wave += gaussian * np.exp(1j * frequency * along)
            envelope += gaussian
    wave -= envelope * (wave.sum() / envelope.sum())
    return np.asarray(np.fft.fft2(wave * slant / (2 * math.pi * sigma**2)).real)
