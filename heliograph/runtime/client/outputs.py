"""The client's checks of decrypted numbers, and the noise that is added before they are shared."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from heliograph.ckks.sharing import SHARE_MARGIN, flooding_std, sharing_cost_bits
from heliograph.errors import ProgramError, RangeError, SecurityError, said
from heliograph.ir import Array
from heliograph.ir.interface import TensorSpec
from heliograph.runtime.noise import secure_normal

# The estimate of the error may exceed the prediction by this much; more is a sign of an overflow.
ESTIMATE_SLACK_BITS = 10.0


def check_output(spec: TensorSpec, tensor: Array, estimated_error: float, scheme_error: float) -> None:
    """Raise a RangeError if a decrypted output shows that a value overflowed on the way.

    Signs are NaN or infinity, a value outside the range that the output can have (`low` and `high` of its public
    specification), and an error, estimated from the imaginary parts, far above `scheme_error`. The error text leaves
    out the values: they are the client's secret, and errors end up in logs.
    """
    name = spec.name
    hint = "simulate the artifact on this input with check_ranges=True to see which layer's interval was left"
    if not np.isfinite(tensor).all():
        raise RangeError(f"output {name!r} holds NaN or infinity: a value overflowed on the way", hint=hint)
    low, high = spec.low, spec.high
    if low is not None and high is not None:
        slack = 16.0 * scheme_error + 1e-3 * (high - low)
        bad = np.flatnonzero((tensor < low - slack) | (tensor > high + slack))
        if bad.size:
            index = tuple(int(i) for i in np.unravel_index(bad[0], tensor.shape)) if tensor.shape else ()
            proved, scale = spec.range_source == "proved", spec.scale or 1.0
            raise RangeError(
                f"output {name!r} has a value at index {list(index)} "
                + ("that no input in its range can give" if proved else "far beyond all that calibration showed"),
                why=f"it lies within [{scale * low:.6g}, {scale * high:.6g}] "
                + (
                    "as long as every polynomial's input stays in its interval"
                    if proved
                    else "on the samples, with room"
                )
                + ": a value overflowed on the way",
                hint=hint,
            )
    if estimated_error > scheme_error * 2.0**ESTIMATE_SLACK_BITS:
        raise RangeError(
            f"output {name!r} has an error of more than {2.0**ESTIMATE_SLACK_BITS:.0f} times the one expected, "
            f"{scheme_error:.2g}",
            why="it is estimated from the imaginary parts, which a sound result leaves empty: a value overflowed",
            hint=hint,
        )


def check_carried(spec: TensorSpec, tensor: Array) -> None:
    """Raise a RangeError if a value carried from run to run left its declared range."""
    low, high = spec.low, spec.high
    inside = np.isfinite(tensor)
    if low is not None and high is not None:
        slack = 1e-3 * (high - low)
        inside &= (tensor >= low - slack) & (tensor <= high + slack)
    bad = np.flatnonzero(~inside)
    if bad.size:
        index = tuple(int(i) for i in np.unravel_index(bad[0], tensor.shape)) if tensor.shape else ()
        raise RangeError(
            f"carried value {spec.name!r} left its range at index {list(index)}",
            why=f"it was declared to stay within {[low, high]}: a bootstrap gives nonsense for larger ones",
            hint="go back to a round before, and compile the program with a wider range",
        )


def check_sharing(
    name: str, values: int, scheme_error: float, estimated_error: float, predicted: Mapping[str, Any]
) -> None:
    """Raise an error unless an output can be shared with noise. `values` is the number of values shared together.

    The size of the noise depends on public data alone. The error estimated from this ciphertext depends on the key, so
    it must not affect the noise; if it exceeds the error that the noise is meant to hide, nothing is shared.
    """
    if estimated_error > SHARE_MARGIN * scheme_error:
        raise SecurityError(
            f"output {name!r} cannot be shared: its error is larger than the noise assumes",
            why=f"that is {SHARE_MARGIN:.0f} times {scheme_error:.2g}, what the artifact and the ring let expect",
            hint="the error depends on the inputs; use them as they are, but do not pass this result on",
        )
    std = flooding_std(scheme_error, values)
    magnitude = max(float(predicted["output_magnitude"]), 1e-300)
    if std > magnitude / 2:
        needed = math.ceil(math.log2(std) - math.log2(magnitude) + float(predicted.get("precision_bits", 10.0)) + 8)
        raise ProgramError(
            f"output {name!r} cannot be shared: the noise that hides the key would be {std:.2g}, its values reach "
            f"{magnitude:.2g}",
            why=f"sharing costs {sharing_cost_bits(values):.1f} bits, and the error of encryption is {scheme_error:.2g}",
            hint=said(f"compile with {{precision_bits}} of about {min(needed, 40)}, so that there are bits to spend"),
        )


def flood(tensor: Array, scheme_error: float, values: int) -> Array:
    """The tensor with Gaussian noise from the system's secure generator, rounded to a sixteenth of its deviation.

    See ckks/sharing.py for its size and purpose.
    """
    std = flooding_std(scheme_error, values)
    grid = 2.0 ** (math.floor(math.log2(std)) - 4)
    noised = tensor + std * secure_normal(tensor.size).reshape(tensor.shape)
    return np.asarray(np.round(noised / grid) * grid)
