"""From a program to an artifact."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from heliograph.compiler.artifact import Artifact
from heliograph.compiler.options import Options
from heliograph.compiler.pipeline import dumper, front_passes
from heliograph.compiler.planner import Plan, make_plan, memory_bytes, sample_inputs
from heliograph.compiler.report import Report
from heliograph.errors import ProgramError
from heliograph.execution.backend import Call
from heliograph.interpret import interpret_batch
from heliograph.ir import Program, Stage
from heliograph.ir.verify import verify
from heliograph.passes.pack import program_depth
from heliograph.target import max_log_pq

_ERROR_SAMPLES = 64


def compile(program: Program, options: Options | None = None) -> Artifact:
    """The artifact of a tensor program: polynomials, packing, levels, keys and order decided, and the bill.

    Raises ProgramError (PlanningError where no parameters do) with the layer and its line. The same program and options
    give the same artifact, byte for byte.
    """
    options = options or Options()
    if program.stage is not Stage.TENSOR:
        raise ProgramError(
            f"compile takes a program at stage tensor, not {program.stage.value}", hint="pass what trace or parse gave"
        )
    begun = time.perf_counter()
    verify(program)
    dump = dumper(options.dump_ir)
    stages = {"tensor": str(program)}

    def watch(name: str, made: Program) -> None:
        dump(name, made)
        stages[made.stage.value] = str(made)

    polynomial = front_passes(program, options, watch)
    stages["tensor"] = str(program)
    plan = make_plan(polynomial, options, watch)
    stages.pop("executable", None)
    report = Report(_report(program, polynomial, plan, options))
    return Artifact(plan.program, report, stages, time.perf_counter() - begun)


def count(calls: Mapping[Call, int], *primitives: str) -> int:
    """How many calls were of these primitives, at any level."""
    table: Counter[str] = Counter()
    for (primitive, _, _), number in calls.items():
        table[primitive] += number
    return sum(table[primitive] for primitive in primitives)


def _report(source: Program, polynomial: Program, plan: Plan, options: Options) -> dict[str, Any]:
    ring, program, calls = plan.ring, plan.program, plan.calls
    memory = memory_bytes(program, ring)
    samples = sample_inputs(source, _ERROR_SAMPLES)
    exact = interpret_batch(source, *samples)
    approximate = interpret_batch(polynomial, *samples)
    approximation = max(float(np.abs(a - b).max(initial=0.0)) for a, b in zip(exact, approximate, strict=True))
    rotations = count(calls, "rotate", "rotate_hoisted")
    return {
        "name": program.name,
        "security_bits": ring.security_bits,
        "insecure": ring.security_bits is None,
        "secret_distribution": "uniform ternary",
        "ring_dim": ring.ring_dim,
        "slots": ring.slots,
        "log_pq": ring.log_pq,
        "max_log_pq": None if ring.security_bits is None else max_log_pq(ring.log_ring, ring.security_bits),
        "first_mod_bits": ring.first_mod_bits,
        "scale_bits": ring.scale_bits,
        "special_primes": ring.special,
        "digits": ring.digits,
        "depth": program_depth(polynomial),
        "levels": ring.levels,
        "rotations": rotations,
        "rotation_keys": len(program.metadata["rotation_keys"]),
        "key_switches": rotations + count(calls, "relinearize"),
        "ciphertext_products": count(calls, "mul"),
        "plaintext_products": count(calls, "mul_plain", "mul_scalar"),
        "operations": {
            f"{primitive}@{level}" + ("" if parts == 2 else f"/{parts}"): number
            for (primitive, level, parts), number in sorted(calls.items())
        },
        "evaluation_key_bytes": memory["evaluation_keys"],
        "ciphertext_bytes": memory["inputs"],
        "output_bytes": memory["outputs"],
        "server_peak_bytes": memory["server"],
        "client_peak_bytes": memory["client"],
        "predicted_ms": plan.predicted_ms,
        "costs": options.costs.machine,
        "scheme_error": plan.scheme_error,
        "approximation_error": approximation,
        "predicted_max_abs_error": approximation + plan.scheme_error,
        "error_samples": int(samples[0].shape[0]) if samples else 0,
        "output_magnitude": plan.output_magnitude,
        "ranges": program.metadata.get("ranges", []),
    }
