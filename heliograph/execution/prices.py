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
    return PRIMITIVES[call.primitive].price(costs, ring, call.level, call.size)


def priced_ms(call: Call, chains: Sequence[Chain], costs: CostTable) -> float:
    """The price of one homomorphic call of a compiled program, in the part of its chain where the call happens."""
    return call_ms(call, chain_of(call, chains).ring, costs)


def chain_of(call: Call, chains: Sequence[Chain]) -> Chain:
    """The chain in which a call happens: the one that it names, where its level does not say it."""
    return chains[call.chain] if PRIMITIVES[call.primitive].own_chain else chain_at(chains, call.level)


def total_ms(calls: Mapping[Call, int], program: Program, costs: CostTable) -> float:
    """The price of many calls of a compiled program: a prediction from a cost table."""
    chains = program.planned.chains
    return sum(count * priced_ms(call, chains, costs) for call, count in calls.items())
