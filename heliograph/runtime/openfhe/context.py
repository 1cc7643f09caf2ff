"""OpenFHE contexts for our rings, and checks that they match the plan."""

from __future__ import annotations

import functools
import json
import math
import re
import warnings
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any

from heliograph.ckks.ring import Ring
from heliograph.errors import InternalError, MissingPackageError, SecurityError
from heliograph.openmp import OPENMP_WAS_LOADED
from heliograph.runtime.process import note_use, require_own_process


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
        raise MissingPackageError(
            "OpenFHE is not installed or does not load",
            why=str(error),
            hint="take the native backend; or pip install 'heliograph[openfhe]' on Linux on x86-64, with CPython 3.10 ("
            "glibc 2.35 or newer) or 3.12 (glibc 2.39 or newer)",
        ) from None
    return openfhe  # type: ignore[no-any-return]


def refusal(error: RuntimeError) -> str:
    """OpenFHE's error message, without the folders of its build."""
    return re.sub(r"/\S*/", "", (str(error).splitlines() or [""])[-1])[-200:]


@functools.lru_cache(maxsize=16)
def make_context(ring: Ring) -> Any:
    """The crypto context of a ring; its primes are checked by us before it is used.

    Security is checked elsewhere, when a party accepts an artifact (runtime/security.py): an owner must still be able
    to use keys on a ring that an older table allowed. OpenFHE refuses rings that its own table forbids.
    """
    if not ring.legal:
        raise InternalError(f"{ring} has digits or primes that do not exist")
    context = _own_context(ring)
    _check_primes(context, ring)
    return context


def _own_context(ring: Ring) -> Any:
    """A context of the ring, of the whole chain or of a lower part."""
    return _whole_context(ring) if ring.chain_levels is None else lower_context(_whole_ring(ring), ring)


def _whole_context(ring: Ring) -> Any:
    context = _generated(ring)
    return _edited(context, functools.partial(_with_specials, ring=ring)) if ring.short_specials else context


def _generated(ring: Ring) -> Any:
    """The context as OpenFHE generates it, with its own special primes."""
    openfhe = library()
    require_own_process("making an OpenFHE context")
    note_use()
    if ring.short_specials and not ring.secure:
        raise _too_much(ring)
    parameters = openfhe.CCParamsCKKSRNS()
    parameters.SetSecretKeyDist(openfhe.UNIFORM_TERNARY)
    # OpenFHE judges a chain by its own special primes. With shorter ones only our check applies, with a stricter table.
    unchecked = ring.security_bits is None or ring.short_specials
    parameters.SetSecurityLevel(openfhe.HEStd_NotSet if unchecked else openfhe.HEStd_128_classic)
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
        if not ring.secure:
            raise _too_much(ring) from None
        raise InternalError(f"OpenFHE refuses {ring}", why=str(error).splitlines()[-1]) from None
    for feature in (openfhe.PKE, openfhe.KEYSWITCH, openfhe.LEVELEDSHE, openfhe.ADVANCEDSHE):
        context.Enable(feature)
    return context


def _too_much(ring: Ring) -> SecurityError:
    return SecurityError(
        f"log2(PQ) = {ring.log_pq:.1f} is too much for ring dimension {ring.ring_dim} at {ring.security_bits} bits"
    )


def _with_specials(parameters: dict[str, Any], ring: Ring) -> None:
    """Set the size of the special primes to the ring's; OpenFHE finds the primes when it reads the context."""
    if "ab" not in parameters:
        raise KeyError("ab")
    parameters["ab"] = ring.special_bits


def _whole_ring(ring: Ring) -> Ring:
    """A ring with the whole chain, of which `ring` is the lower part; the digits do not matter."""
    assert ring.chain_levels is not None
    made = replace(ring, levels=ring.chain_levels, chain_levels=None, security_bits=None)
    return next(whole for whole in (replace(made, digits=digits) for digits in (3, 4, 2, 1)) if whole.legal)


def lower_context(whole: Ring, ring: Ring) -> Any:
    """The context of the lower part `ring` of the chain of `whole`.

    OpenFHE would choose new primes for a shorter chain. So the description of the long chain is cut: the list of its
    primes, their product, the depth, the digits. OpenFHE finds special primes for the rest when it reads it.
    """

    def cut(parameters: dict[str, Any]) -> None:
        chain = parameters["value0"]["value0"]["elp"]["ptr_wrapper"]["data"]
        del chain["p"][ring.towers :]
        product = math.prod(ring.primes)
        words = [product >> shift & (1 << 64) - 1 for shift in range(0, product.bit_length(), 64)]
        chain["value0"]["cm"].update(v=words, m=product.bit_length())
        if "muld" not in parameters["value0"] or "dnum" not in parameters:
            raise KeyError("muld or dnum")
        parameters["value0"]["muld"] = ring.levels
        parameters["dnum"] = ring.digits
        _with_specials(parameters, ring)

    return _edited(_generated(whole), cut)


def _edited(context: Any, edit: Callable[[dict[str, Any]], None]) -> Any:
    """A copy of a context whose parameters were changed by `edit`."""
    openfhe = library()
    description = json.loads(openfhe.Serialize(context, openfhe.JSON))
    try:
        edit(description["value0"]["ptr_wrapper"]["data"]["cc"]["ptr_wrapper"]["data"]["value0"])
    except (KeyError, TypeError) as error:
        raise InternalError(
            "OpenFHE describes its contexts in an unknown form",
            why=f"there is no {error}",
            hint="this version of OpenFHE is not supported; see constraints.txt for the one that is",
        ) from None
    return openfhe.DeserializeCryptoContextString(json.dumps(description), openfhe.JSON)


def _check_primes(context: Any, ring: Ring) -> None:
    """Compare the ring's primes, on which the plan's scales rest, with the primes in OpenFHE's own description."""
    text = library().Serialize(context, library().JSON)
    text = text.decode() if isinstance(text, bytes) else text
    # The element parameters list each prime of Q as a separate modulus ("cm" with one word), in order.
    found = [int(word) for word in re.findall(r'"cm":\s*\{[^{}]*?"v":\s*(\d+)', text)]
    if tuple(found[: len(ring.primes)]) != ring.primes:
        raise InternalError(
            "OpenFHE chose another modulus chain than the one planned",
            why=f"planned {[round(math.log2(q), 4) for q in ring.primes]}",
            hint="this version of OpenFHE is not supported; see constraints.txt for the one that is",
        )
