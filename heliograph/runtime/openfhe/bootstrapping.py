"""What bootstrapping prepares on the server: tables for each ring and number of slots, shared by all that use them.

They are plaintexts over the extended basis, gigabytes of them at full size. OpenFHE keeps them with the context; they are
made before the first evaluation and dropped when the last server that needs them is gone.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from heliograph.errors import InternalError, RangeError
from heliograph.runtime.openfhe import registry
from heliograph.runtime.openfhe.context import bootstrap_context
from heliograph.target import Ring

# What a first iteration leaves over is made larger by so many bits for the second: it is below 2**-16 of a value of size
# one, and the second adds less than its own floor from ten bits on.
_ERROR_BITS = 12
# Which numbers of slots are set up, and how many evaluators hold them.
_ready: dict[Ring, set[int]] = {}
_holders: dict[Ring, int] = {}


def prepare(ring: Ring, slot_counts: Iterable[int]) -> None:
    """Set up bootstraps of these numbers of slots; those that are there already cost nothing. Not inside an evaluation."""
    assert ring.bootstrap is not None
    with registry.changing():
        ready = _ready.setdefault(ring, set())
        for slots in sorted(set(slot_counts) - ready):
            # The last two: with its tables, and with SlotsToCoeffs at the low end of the chain.
            bootstrap_context(ring).EvalBootstrapSetup(list(ring.bootstrap), [0, 0], slots, 0, True, True)
            ready.add(slots)


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
        if _ready.pop(ring, None):
            bootstrap_context(ring).ClearBootstrapPrecom()


def bootstrap(ring: Ring, ciphertext: Any, slots: int) -> Any:
    """The refreshed ciphertext, in the ring's working context, of all its slots; the operand repeats with period `slots`.

    Both have two parts and the degree of a single scale; the operand stands at `bootstrap_input_level` or above, the result
    at `bootstrap_level`. The true scale stays what it is.
    """
    if slots not in _ready.get(ring, ()):
        raise InternalError(f"bootstraps of {slots} slots were not prepared")
    operand = ciphertext.Clone()
    operand.SetSlots(slots)
    try:
        if ring.bootstrap_iterations == 1:
            result = bootstrap_context(ring).EvalBootstrapStCFirst(operand)
        else:
            # It comes back with the degree of a product: the last step divides by the factor between the iterations.
            result = bootstrap_context(ring).EvalBootstrapStCFirst(operand, ring.bootstrap_iterations, _ERROR_BITS)
            result = bootstrap_context(ring).Rescale(result)
    except RuntimeError as error:
        raise RangeError("a bootstrap failed", why=str(error).splitlines()[-1][-200:]) from None
    result.SetSlots(ring.slots)
    return result
