"""What bootstrapping prepares on the server: tables for each ring and number of slots, shared by all that use them.

A lower part of a chain that bootstraps is a ring of its own, in contexts of its own.

Bootstraps that keep imaginary parts have tables of their own, in a context of their own.

They are plaintexts over the extended basis, gigabytes of them at full size. OpenFHE keeps them with the context; they are
made before the first evaluation and dropped when the last server that needs them is gone.
"""

from __future__ import annotations

from typing import Any

from heliograph.ckks.bootstrap import bootstrap_factors
from heliograph.ckks.ring import Ring
from heliograph.errors import InternalError, RangeError
from heliograph.runtime.openfhe import registry
from heliograph.runtime.openfhe.context import bootstrap_context, pair_context, refusal
from heliograph.runtime.openfhe.template import moved, transferred

# The error left by the first iteration is scaled up by this many bits for the second. It is below 2**-16 for a value of
# size one. From ten bits on, the second iteration adds less than its own error floor.
_ERROR_BITS = 12
# The numbers of slots that are set up, with imaginary parts or without; and how many evaluators hold each ring's tables.
_ready: dict[Ring, set[tuple[int, bool]]] = {}
_holders: dict[Ring, int] = {}


def prepare(ring: Ring, slots: int, paired: bool = False) -> None:
    """Set up bootstraps of this many slots; what is there already costs nothing. Not inside an evaluation."""
    assert ring.bootstrap is not None
    if (slots, paired) in _ready.get(ring, ()):
        return
    with registry.changing():
        ready = _ready.setdefault(ring, set())
        if (slots, paired) not in ready:
            babies = [ring.bootstrap_babies] * 2
            # The last two arguments: with its tables, and with SlotsToCoeffs at the low end of the chain.
            _context(ring, paired).EvalBootstrapSetup(list(_spent(ring, slots)), babies, slots, 0, True, True)
            ready.add((slots, paired))


def _spent(ring: Ring, slots: int) -> tuple[int, int]:
    """The levels that the two transforms take: of few slots they have fewer factors than the ring has levels for them."""
    encode, decode = bootstrap_factors(ring, slots)
    return len(encode), len(decode)


def _context(ring: Ring, paired: bool) -> Any:
    return pair_context(ring) if paired else bootstrap_context(ring)


def hold(ring: Ring) -> None:
    """Count one that needs the tables of a ring, until it calls `let_go`."""
    with registry.changing():
        _holders[ring] = _holders.get(ring, 0) + 1


def let_go(ring: Ring) -> None:
    """Count one less; with the last one the tables are dropped, as soon as no evaluation runs. Never waits."""
    registry.when_idle(lambda: _drop(ring))


def _drop(ring: Ring) -> None:
    _holders[ring] = _holders.get(ring, 0) - 1
    if _holders[ring] <= 0:
        del _holders[ring]
        for paired in {paired for _, paired in _ready.pop(ring, ())}:
            _context(ring, paired).ClearBootstrapPrecom()


def bootstrap(ring: Ring, ciphertext: Any, slots: int, paired: bool = False) -> Any:
    """The refreshed ciphertext, in the ring's working context, of all its slots; the operand repeats with period `slots`.

    Both have two parts and the degree of a single scale; the operand stands at `bootstrap_input_level`, the result at
    `bootstrap_level`. The true scale stays what it is. Imaginary parts are kept where it is `paired`.
    """
    if (slots, paired) not in _ready.get(ring, ()):
        raise InternalError(f"bootstraps of {slots} slots were not prepared")
    context, tag = _context(ring, paired), str(ciphertext.GetKeyTag())
    if paired:
        operand = transferred(ciphertext, ring, ring.bootstrap_input_level, tag, pair_context)
    else:
        operand = ciphertext.Clone()
    operand.SetSlots(slots)
    try:
        if ring.bootstrap_iterations == 1:
            result = context.EvalBootstrapStCFirst(operand)
        else:
            # The result has the degree of a product, because the last step divides by the factor between the iterations.
            result = context.EvalBootstrapStCFirst(operand, ring.bootstrap_iterations, _ERROR_BITS)
            result = context.Rescale(result)
    except RuntimeError as error:
        raise RangeError("a bootstrap failed", why=refusal(error)) from None
    result.SetSlots(ring.slots)
    # What the transforms did not take; the plan counts what the ring has for them.
    left = ring.levels - result.GetLevel() - ring.bootstrap_level
    if left > 0:
        result = context.LevelReduce(result, None, left)
    return moved(result, ring, ring.bootstrap_level, tag) if paired else result
