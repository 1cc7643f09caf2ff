"""Scattering features: against kymatio where it is installed, and by what the transform promises."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from scattering import normalised, scattering  # noqa: E402

from heliograph.errors import ProgramError  # noqa: E402


@pytest.mark.parametrize(("size", "scales"), [((28, 28), 2), ((32, 24), 3), ((16, 16), 1)])
def test_features_are_those_of_kymatio(size: tuple[int, int], scales: int) -> None:
    peer = pytest.importorskip("kymatio.torch", exc_type=ImportError)
    torch.manual_seed(0)
    images = torch.rand(5, *size)
    expected = peer.Scattering2D(J=scales, shape=size, L=8)(images)
    # kymatio's pi has four decimals.
    torch.testing.assert_close(scattering(images, scales), expected, rtol=0, atol=5e-5)


def test_shapes_and_independence_of_records() -> None:
    torch.manual_seed(0)
    images = torch.rand(40, 28, 28)
    found = scattering(images)
    assert found.shape == (40, 81, 7, 7)
    assert scattering(images[:0]).shape == (0, 81, 7, 7)
    torch.testing.assert_close(scattering(images[7:8]), found[7:8], rtol=0, atol=1e-6)
    scaled = normalised(found)
    grouped = scaled.view(40, 27, -1)
    torch.testing.assert_close(grouped.mean(2), torch.zeros(40, 27), rtol=0, atol=1e-4)
    torch.testing.assert_close(normalised(found[7:8]), scaled[7:8], rtol=0, atol=1e-3)


def test_wavelets_ignore_a_constant_and_moduli_a_sign() -> None:
    images = torch.rand(2, 28, 28)
    flat, base = scattering(images + 0.7), scattering(images)
    torch.testing.assert_close(flat[:, 0], base[:, 0] + 0.7, rtol=0, atol=1e-5)  # the average moves, nothing else
    torch.testing.assert_close(flat[:, 1:], base[:, 1:], rtol=0, atol=1e-5)
    torch.testing.assert_close(scattering(-images)[:, 1:], base[:, 1:], rtol=0, atol=1e-5)
    assert bool((base[:, 1:] > -1e-4).all())


def test_a_wave_excites_the_wavelet_along_it() -> None:
    rows = torch.arange(28.0)
    frequency = 0.75 * torch.pi  # of the finest wavelets
    wave = torch.cos(frequency * rows)[:, None].expand(28, 28)  # along the rows' index
    first = scattering(wave.unsqueeze(0))[0, 1:9].mean((1, 2))
    across = scattering(wave.T.unsqueeze(0))[0, 1:9].mean((1, 2))
    assert int(first.argmax()) == 3  # turn 0
    assert int(across.argmax()) == 7  # a quarter turn on


def test_sides_that_do_not_halve_are_refused() -> None:
    for shape in ((2, 30, 28), (2, 4, 4), (28, 28)):
        with pytest.raises(ProgramError, match="cannot be transformed"):
            scattering(torch.zeros(shape))
