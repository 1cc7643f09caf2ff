"""What the calls of an execution cost by a table of prices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from heliograph.ckks.chains import Chain, chain_at
from heliograph.ckks.costs import CostTable
from heliograph.ckks.ring import Ring
from heliograph.execution.primitives import PRIMITIVES
from heliograph.execution.protocol import Call
from heliograph.ir import Program


def call_ms(call: Call, ring: Ring, costs: CostTable) -> float:
    """The price of one homomorphic call."""
    primitive, level, size = call
    return PRIMITIVES[primitive].price(costs, ring, level, size)


def priced_ms(call: Call, chains: Sequence[Chain], costs: CostTable) -> float:
    """The price of one homomorphic call of a compiled program, in the part of its chain where the call happens."""
    # A bootstrap leaves the lower part of the chain that its operand is in, and so do the parts of what it gave.
    chain = chains[0] if PRIMITIVES[call[0]].whole_chain else chain_at(chains, call[1])
    return call_ms(call, chain.ring, costs)


def total_ms(calls: Mapping[Call, int], program: Program, costs: CostTable) -> float:
    """The price of many calls of a compiled program: a prediction from a cost table."""
    chains = program.planned.chains
    return sum(count * priced_ms(call, chains, costs) for call, count in calls.items())
