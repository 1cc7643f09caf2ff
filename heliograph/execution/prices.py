"""What the calls of an execution cost by a table of prices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from heliograph.ckks.chains import Chain, chain_at
from heliograph.ckks.costs import CostTable
from heliograph.ckks.ring import Ring
from heliograph.execution.protocol import BOOTSTRAPS, IN_WHOLE_CHAIN, Call
from heliograph.ir import Program


def call_ms(call: Call, ring: Ring, costs: CostTable) -> float:
    """The price of one homomorphic call."""
    primitive, level, parts = call
    if primitive in BOOTSTRAPS:
        # The third number is that of its slots.
        return costs.bootstrap_ms(ring, parts, paired=primitive == "bootstrap_pair")
    if primitive in ("rotate", "conjugate"):
        return costs.rotate_ms(ring, level)
    if primitive == "rotate_hoisted":
        return costs.rotate_ms(ring, level, hoisted=True)
    if primitive == "decompose":
        return costs.decompose_ms(ring, level + 1)
    if primitive == "relinearize":
        return costs.relinearize_ms(ring, level)
    if primitive == "rescale":
        return costs.rescale_ms(ring, level, parts)
    if primitive == "mul":
        return costs.mul_ms(ring, level)
    if primitive in ("mul_plain", "mul_scalar"):
        return costs.mul_plain_ms(ring, level, parts)
    if primitive == "mul_pt":
        # Its plaintext is encoded anew in every run.
        return costs.mul_plain_ms(ring, level, parts) + costs.encode_ms(ring, level)
    if primitive == "add_pt":
        return costs.add_ms(ring, level, parts) + costs.encode_ms(ring, level)
    return costs.add_ms(ring, level, parts)


def priced_ms(call: Call, chains: Sequence[Chain], costs: CostTable) -> float:
    """The price of one homomorphic call of a compiled program, in the part of its chain where the call happens."""
    # A bootstrap leaves the lower part of the chain that its operand is in, and so do the parts of what it gave.
    chain = chains[0] if call[0] in IN_WHOLE_CHAIN else chain_at(chains, call[1])
    return call_ms(call, chain.ring, costs)


def total_ms(calls: Mapping[Call, int], program: Program, costs: CostTable) -> float:
    """The price of many calls of a compiled program: a prediction from a cost table."""
    chains = program.planned.chains
    return sum(count * priced_ms(call, chains, costs) for call, count in calls.items())
