"""What both ways to plan on a chain share: packing, the simulation that ends a plan, and refusals in place of errors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import ParamSpec, TypeVar

from heliograph.ckks.ring import Ring
from heliograph.compiler.options import Options
from heliograph.compiler.pipeline import pack_passes
from heliograph.compiler.planning.plan import BITS_FINER, AmplifiedError, Plan, Refusal, Wanted, simulated
from heliograph.errors import PlanningError, RangeError
from heliograph.execution.prices import total_ms
from heliograph.ir import Program
from heliograph.passes.base import Trail
from heliograph.passes.levels.lower_polynomials import LowerPolynomials
from heliograph.passes.levels.plan_levels import DriftError, TooFewLevelsError, has_inexact_rotations
from heliograph.passes.packing.pair_samples import refuse_pairs

# If a plan is too coarse, the next one is finer by at least half a bit: chains that differ only in digits are not
# tried.
_FINER = 2.0**-0.5

_P = ParamSpec("_P")
_T = TypeVar("_T")


def tried(ring: Ring, make: Callable[_P, _T], *given: _P.args, **named: _P.kwargs) -> _T | Refusal:
    """What a step of planning returns, or why it refuses this chain."""
    try:
        return make(*given, **named)
    except TooFewLevelsError as few:
        return Refusal(few, levels=few.needed)
    except DriftError as drift:
        return Refusal(drift, drifts=True)
    except AmplifiedError as amplified:
        # Missing room is hardly ever the cause.
        error = PlanningError(f"{amplified.what} (scale of {ring.scale_bits} bits)")
        return Refusal(error, finer_bits=BITS_FINER, share=2.0**-BITS_FINER, room_bits=1)
    except RangeError as out_of_range:
        return Refusal(PlanningError(out_of_range.what, why=out_of_range.why), room_bits=3)
    except PlanningError as error:
        return Refusal(error)


def simulated_plan(trail: Trail, ring: Ring, options: Options, wanted: Wanted) -> Plan | Refusal:
    """The plan with an executable program, if its errors are small enough."""
    program = trail[-1].program
    found = tried(ring, simulated, program, wanted.inputs, wanted.refuses)

    def inexact() -> bool:
        return any(has_inexact_rotations(made) for name, made in trail if name == LowerPolynomials.name)

    if isinstance(found, Refusal):
        return replace(found, inexact=bool(found.finer_bits) and inexact())
    if wrong := wanted.refuses(found):
        error = PlanningError(f"{wrong} (scale of {ring.scale_bits} bits)")
        # Errors grow at most in proportion to the errors of bootstraps.
        share = min(_FINER, wanted.tolerance / found.error)
        return Refusal(error, finer_bits=1, inexact=inexact(), share=share, calls=found.trace.calls)
    price = total_ms(found.trace.calls, program, options.costs)
    return Plan(program, trail, ring, found.trace, price, found.error, wanted.magnitude)


def packed_program(program: Program, ring: Ring, options: Options, paired: bool) -> Trail:
    """The program on slots; a PlanningError if samples are to be paired and one of its operations does not allow it."""
    trail = pack_passes(program, ring, options)
    if paired:
        refuse_pairs(trail[-1].program)
    return trail


def wanted_fastest(program: Program, options: Options) -> bool:
    """Whether the fastest plan is wanted, however large; otherwise larger keys must save enough time.

    A program that carries values from run to run counts, because it runs again and again.
    """
    return options.objective is not None or options.allocate == "plan" or bool(program.interface.carried)
