"""OpenFHE contexts for our rings, and the checks that OpenFHE made what was planned."""

from __future__ import annotations

import functools
import math
import re
import warnings
from types import ModuleType
from typing import Any

from heliograph import OPENMP_WAS_LOADED
from heliograph.errors import HeliographError, InternalError, SecurityError
from heliograph.target import Ring


@functools.cache
def library() -> ModuleType:
    """The `openfhe` module, with a warning where its OpenMP threads will spin while they wait."""
    if OPENMP_WAS_LOADED:
        warnings.warn(
            "torch was imported before heliograph, so OpenMP's threads spin while they wait: homomorphic operations are "
            "several times slower whenever another process is busy. Import heliograph first, or set the environment "
            "variable OMP_WAIT_POLICY=passive.",
            RuntimeWarning,
            stacklevel=2,
        )
    try:
        import openfhe
    except ImportError as error:
        raise HeliographError(
            "OpenFHE is not installed or does not load",
            why=str(error),
            hint="pip install 'heliograph[run]' with CPython 3.10 (glibc 2.35 or newer) or 3.12 (glibc 2.39 or newer)",
        ) from None
    return openfhe  # type: ignore[no-any-return]


@functools.lru_cache(maxsize=8)
def make_context(ring: Ring) -> Any:
    """The crypto context of a ring; its primes and its security are checked by us before it is used."""
    openfhe = library()
    if not ring.legal:
        raise InternalError(f"{ring} has digits or primes that do not exist")
    if not ring.secure:
        raise SecurityError(
            f"log2(PQ) = {ring.log_pq:.1f} is too much for ring dimension {ring.ring_dim} at {ring.security_bits} bits"
        )
    parameters = openfhe.CCParamsCKKSRNS()
    parameters.SetSecretKeyDist(openfhe.UNIFORM_TERNARY)
    parameters.SetSecurityLevel(openfhe.HEStd_NotSet if ring.security_bits is None else openfhe.HEStd_128_classic)
    parameters.SetRingDim(ring.ring_dim)
    parameters.SetBatchSize(ring.slots)
    parameters.SetMultiplicativeDepth(ring.levels)
    parameters.SetScalingModSize(ring.scale_bits)
    parameters.SetFirstModSize(ring.first_mod_bits)
    parameters.SetScalingTechnique(openfhe.FIXEDMANUAL)
    parameters.SetKeySwitchTechnique(openfhe.HYBRID)
    parameters.SetNumLargeDigits(ring.digits)
    try:
        context = openfhe.GenCryptoContext(parameters)
    except RuntimeError as error:
        raise InternalError(f"OpenFHE refuses {ring}", why=str(error).splitlines()[-1]) from None
    for feature in (openfhe.PKE, openfhe.KEYSWITCH, openfhe.LEVELEDSHE, openfhe.ADVANCEDSHE):
        context.Enable(feature)
    _check_primes(context, ring)
    return context


def _check_primes(context: Any, ring: Ring) -> None:
    """The plan's scales rest on the primes; compare them with those that OpenFHE chose, from its own description."""
    text = library().Serialize(context, library().JSON)
    text = text.decode() if isinstance(text, bytes) else text
    # The element parameters list each prime of Q as a modulus of its own ("cm" with one word), in order.
    found = [int(word) for word in re.findall(r'"cm":\s*\{[^{}]*?"v":\s*(\d+)', text)]
    if tuple(found[: len(ring.primes)]) != ring.primes:
        raise InternalError(
            "OpenFHE chose another modulus chain than the one planned",
            why=f"planned {[round(math.log2(q), 4) for q in ring.primes]}",
            hint="this version of OpenFHE is not supported; see constraints.txt for the one that is",
        )
