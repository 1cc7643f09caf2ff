"""Plan on one ring without bootstraps: chains are tried in the order of their prices."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from heliograph.ckks.costs import CostTable
from heliograph.ckks.ring import Ring
from heliograph.compiler.options import Options
from heliograph.compiler.pipeline import back_passes, pair_samples_passes
from heliograph.compiler.planning.chain_plans import packed_program, simulated_plan, tried
from heliograph.compiler.planning.chains import candidates
from heliograph.compiler.planning.plan import Plan, Refusal, Wanted, least_ms, run_ms, tells
from heliograph.compiler.planning.residency import within
from heliograph.errors import PlanningError, said
from heliograph.execution.memory import least_server_bytes
from heliograph.execution.prices import call_ms
from heliograph.execution.protocol import Call
from heliograph.ir import Program
from heliograph.ir.analysis.depth import program_depth

# No chain gets more room than this for values that leave their ranges.
_MOST_ROOM = 30


def may_be_apart(options: Options, log_ring: int) -> bool:
    """Whether each element of a tensor may have a ciphertext of its own on this ring.

    If it turns out that elements share ciphertexts, the chain that is too short is refused, and says so.
    """
    return options.batch in ("max", 1 << (log_ring - 1))


def plan_unbootstrapped(log_ring: int, program: Program, options: Options, wanted: Wanted) -> Plan | Refusal:
    """The plan without bootstraps on one ring."""
    levels = max(1, program_depth(program, may_be_apart(options, log_ring)))
    headroom, least_scale = wanted.headroom, 0
    failed: Refusal | None = None
    drifted: Refusal | None = None
    rings = candidates(log_ring, levels, headroom, options)
    while rings:
        ring = rings.pop(0)
        if ring.scale_bits < least_scale:
            continue
        found = _unbootstrapped(ring, program, options, wanted)
        if (
            isinstance(found, Plan)
            or found.final
            or (not found.finer_bits and found.room_bits and headroom >= _MOST_ROOM)
        ):
            return found
        if found.drifts:
            # Primes of another size drift differently. Rings that differ only in keys would drift alike.
            drifted = drifted or found
            rings = [other for other in rings if other.scale_bits != ring.scale_bits]
            continue
        if found.finer_bits:
            least_scale = ring.scale_bits + found.finer_bits
        if not found.levels:
            failed = found
        if found.calls is not None:
            # The levels of the work are now known.
            calls = found.calls
            rings.sort(key=lambda other: _priced_on(calls, other, options.costs))
            continue
        levels, headroom = found.levels or levels, headroom + found.room_bits
        rings = candidates(log_ring, levels, headroom, options)
    return failed or drifted or Refusal(PlanningError(f"it needs {levels} levels"), levels=levels)


def _unbootstrapped(ring: Ring, program: Program, options: Options, wanted: Wanted) -> Plan | Refusal:
    """The plan without bootstraps on one chain.

    In a larger ring with a chain for a deep program, every operation and key is several times larger. So the time is
    compared with the one to beat before a program is packed, and before it is simulated.
    """
    batch = options.batch if isinstance(options.batch, int) else 1
    if wanted.faster_than < math.inf and wanted.faster_than < least_ms(program, ring, options.costs, batch):
        return wanted.too_slow()
    tells(ring)
    packed = tried(ring, packed_program, program, ring, options, wanted.paired)
    if isinstance(packed, Refusal):
        return packed
    if wanted.paired:
        packed = (*packed, *pair_samples_passes(packed[-1].program))
    # If the error comes from rotations, exact ones are cheaper than a finer scale.
    for exact in (False, True):
        trail = tried(ring, back_passes, program, ring, options, packed=packed, exact_rotations=exact)
        if isinstance(trail, Refusal):
            return trail
        if wanted.faster_than < math.inf and wanted.faster_than < run_ms(trail[-1].program, options.costs):
            return wanted.too_slow()
        found = simulated_plan(trail, ring, options, wanted)
        if isinstance(found, Plan):
            return _resident(found, options)
        if not found.inexact:
            break
    return found


def _resident(plan: Plan, options: Options) -> Plan | Refusal:
    """The plan within the bound on memory."""
    if options.memory_bytes is None:
        return plan
    fitting = within(plan.program, plan.ring, options.memory_bytes)
    if fitting is None:
        least = least_server_bytes(plan.program, plan.ring)
        return Refusal(
            PlanningError(
                said(f"the server would need {least} bytes, {{memory_bytes}} allows {options.memory_bytes}"),
                where="Options.memory_bytes",
                why="that is with keys that are read anew in every run",
                hint=said("set {key_bytes} lower (slower, fewer keys), or allow more"),
            )
        )
    program, loading = fitting
    # Without the memory bound, all keys would stay in memory.
    unbounded_ms = plan.predicted_ms if loading else None
    return replace(plan, program=program, loading_ms=loading, unbounded_ms=unbounded_ms)


def _priced_on(calls: Mapping[Call, int], ring: Ring, costs: CostTable) -> float:
    """The milliseconds of these calls on another ring with as many levels."""
    return sum(number * call_ms(call, ring, costs) for call, number in calls.items())
