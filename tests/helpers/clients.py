"""A client where numba is not installed."""

from __future__ import annotations

import pytest

from heliograph.runtime.client.cryptor import cryptor, randomness
from heliograph.runtime.client.cryptor.arithmetic import NumpyArithmetic
from heliograph.runtime.wire import expansion, packed


def without_kernels(patch: pytest.MonkeyPatch) -> None:
    """Nothing of a client is compiled from here on: arithmetic, packing, streams and samplers are numpy's."""
    patch.setattr(cryptor, "arithmetic", NumpyArithmetic)
    for module in (packed, expansion, randomness):
        patch.setattr(module, "kernels", lambda: None)
