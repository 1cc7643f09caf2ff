"""The figures of the report, computed from a plan."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from heliograph.bootstrap_keys import bootstrap_table_bytes
from heliograph.chains import key_chains
from heliograph.compiler.key_use import key_use
from heliograph.compiler.memory import PLAINTEXT_CACHE_BYTES, memory_bytes
from heliograph.compiler.options import Options
from heliograph.compiler.plan import Plan, priced_ms
from heliograph.compiler.savings import critical_depth, savings
from heliograph.compiler.unseen import Observation
from heliograph.evaluation_keys import evaluation_keys
from heliograph.execution.backend import BOOTSTRAPS, ROTATIONS, Call, calls_table
from heliograph.execution.noise import bootstrap_std
from heliograph.interpret import batch_of, interpret_many
from heliograph.ir import Array, CipherType, Node, Program, SparseMatrix, Stage
from heliograph.passes.approximate import degrees_by_layer
from heliograph.passes.depth import node_depth, program_depth
from heliograph.passes.intervals import Interval, hull, program_intervals
from heliograph.passes.slot_intervals import slot_intervals
from heliograph.target import Ring, max_log_pq

# What a node that spends a level is called in the report.
_WORDS = {
    "affine": "linear map",
    "mul": "product",
    "mul_ct": "product",
    "mul_plain": "product with a plaintext",
    "mul_pt": "product with a plaintext",
}
# Where nothing proves the outputs' range: this many times the largest size seen is still taken for possible.
_OUTPUT_ROOM = 4.0
# A proved range can be very wide, for it follows from the images of all polynomials at once: where so many times the largest
# output that the samples gave is narrower by another factor, that stands for it, and what lies beyond is no result.
_PROVED_ROOM, _MUCH_NARROWER = 8.0, 4.0
_ENOUGH_SAMPLES = 32
# Compilation, fitted on the programs of benchmarks/bill.py: seconds for anything, per simulated slot of a plaintext
# product or key switch, and per entry of a matrix.
_COMPILE_BASE_S = 0.02
_COMPILE_SLOT_NS = 190.0
_COMPILE_ENTRY_NS = 750.0
# Variants are compiled for the report only where the linear maps have at most so many entries.
_MOST_ENTRIES_TO_VARY = 4_000_000
# The two special primes of the key to the sparse secret, beside the first prime (measured: docs/security.md).
SPARSE_KEY_BITS = 66
# What a server takes beside the homomorphic calls, fitted on the same programs: for a message, and for a byte of it.
_MESSAGE_MS, _READ_NS_PER_BYTE = 3.3, 4.5


def count(calls: Mapping[Call, int], *primitives: str) -> int:
    """How many calls were of these primitives, at any level."""
    table: Counter[str] = Counter()
    for (primitive, _, _), number in calls.items():
        table[primitive] += number
    return sum(table[primitive] for primitive in primitives)


def with_output_ranges(program: Program, outputs: Sequence[Array], calibrated: int = 0) -> Program:
    """The polynomial (or slot) program with the range that each output can have, as `output_ranges` in its metadata.

    It is proved from the images of the polynomials and the declared input ranges, provided that every polynomial's input
    stays in its interval; where nothing bounds an output, or only a very wide range is proved and there are enough
    calibration samples (`calibrated` of them), it is what the samples showed, with room. `outputs` are those of the network.
    """
    if program.stage is Stage.PACKED:
        bounds = slot_intervals(program)
        whole = {
            name: {**_ends(hull(bounds[node])), "range_source": "proved"}
            for name, node in zip(program.output_names, program.outputs, strict=True)
        }
        return replace(program, metadata={**program.metadata, "output_ranges": whole})
    images = {}
    for node in program.nodes:
        if node.op == "poly":
            series = np.polynomial.chebyshev.chebval(
                np.cos(np.linspace(0.0, math.pi, 4001)), program.array(node.attrs["coefficients"])
            )
            degree = len(program.array(node.attrs["coefficients"])) - 1
            slack = degree * math.pi / 8000 * float(np.abs(series).max()) * 1.01
            images[node] = Interval(float(series.min()) - slack, float(series.max()) + slack)
    proved = program_intervals(program, images)
    ranges = {}
    for name, node, seen in zip(program.output_names, program.outputs, outputs, strict=True):
        if node in proved:
            ranges[name] = {**_ends(proved[node]), "range_source": "proved"}
            reach = _PROVED_ROOM * float(np.abs(seen).max(initial=0.0))
            if calibrated >= _ENOUGH_SAMPLES and 0 < reach * _MUCH_NARROWER < proved[node].magnitude:
                ranges[name] = {"low": -reach, "high": reach, "range_source": "observed"}
        else:
            reach = _OUTPUT_ROOM * max(float(np.abs(seen).max(initial=0.0)), 1e-9)
            ranges[name] = {"low": -reach, "high": reach, "range_source": "observed"}
    return replace(program, metadata={**program.metadata, "output_ranges": ranges})


# Outputs may leave their range by so many standard deviations of the flooding noise.
_FLOOD_ROOM = 10.0


def flooded(program: Program, std: float) -> Program:
    """The program with the noise that the server is to add in its metadata, and output ranges that leave room for it."""
    ranges = {
        name: {**entry, "low": entry["low"] - _FLOOD_ROOM * std, "high": entry["high"] + _FLOOD_ROOM * std}
        for name, entry in program.metadata["output_ranges"].items()
    }
    return replace(program, metadata={**program.metadata, "output_ranges": ranges, "flood": std})


def _ends(interval: Interval) -> dict[str, float]:
    return {"low": interval.low, "high": interval.high}


def bill(
    source: Program,
    fused: Program,
    polynomial: Program,
    plan: Plan,
    options: Options,
    observation: Observation,
    samples: Sequence[Array],
) -> dict[str, Any]:
    """Everything that the report says, as JSON values; `samples` have a leading sample axis.

    Where calibration could keep samples apart `samples` are these, and the error of the polynomials is that of a program
    whose ranges were set without them.
    """
    ring, program, calls, costs = plan.ring, plan.program, plan.trace.calls, options.costs
    memory = memory_bytes(program, ring)
    exact = interpret_many(source, samples)
    unseen = observation.unseen
    # Held-out samples say what the polynomials do to unseen inputs, in the program whose ranges they had no part in.
    measured = observation.trial or polynomial
    approximate = interpret_many(measured, samples)
    approximation = max(float(np.abs(a - b).max(initial=0.0)) for a, b in zip(exact, approximate, strict=True))
    total_error = approximation + plan.scheme_error
    rotations = count(calls, *ROTATIONS)
    keys = evaluation_keys(key_chains(program.metadata), program.metadata.get("bootstrap_slots", ()))
    rotation_keys = [key for key in keys if key.kind == "rotation"]
    ranges = program.metadata.get("ranges", [])
    proved = sum(entry["source"] == "proved" for entry in ranges)
    sample_count = int(samples[0].shape[0]) if samples else 0
    reading = _MESSAGE_MS + memory["inputs"] * _READ_NS_PER_BYTE * 1e-6
    times = {
        "compile_s": _compile_seconds(program, ring, calls),
        "keygen_s": sum(costs.key_ms(key.ring) for key in keys) / 1e3,
        "evaluate_ms": plan.predicted_ms + reading + plan.loading_ms,
        "first_ms": plan.predicted_ms + reading + plan.loading_ms + _encode_ms(calls, ring, options),
        "encrypt_ms": sum(costs.encrypt_ms(ring, node.attrs["level"]) for node in program.inputs if node.type.secret),
        "decrypt_ms": len(program.outputs) * costs.decrypt_ms(ring),
    }
    if batch_of(program) > 1:
        times["evaluate_sample_ms"] = times["evaluate_ms"] / batch_of(program)
    values: dict[str, Any] = {
        "name": program.name,
        "security_bits": ring.security_bits,
        "insecure": ring.security_bits is None,
        "secret_distribution": secret_distribution(ring),
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
        "rotation_keys": len(rotation_keys),
        "rotation_key_bytes": ring.rotation_key_bytes,
        "relinearization_key": program.metadata["relinearization_key"],
        "bootstraps": count(calls, *BOOTSTRAPS),
        "bootstrapping": _bootstrapping(program, ring),
        "lower_chains": [
            {"level": chain.ring.levels, "keys": chain.keys, "key_bytes": chain.ring.rotation_key_bytes}
            for chain in key_chains(program.metadata)[1:]
        ],
        "unbounded_ms": plan.unbounded_ms,
        "key_switches": rotations + count(calls, "relinearize"),
        "ciphertext_products": count(calls, "mul"),
        "plaintext_products": count(calls, "mul_plain", "mul_scalar", "mul_pt"),
        "operations": {
            f"{primitive}@{level}" + ("" if parts == 2 else f"/{parts}"): number
            for (primitive, level, parts), number in sorted(calls.items())
        },
        "operations_by_kind": _by_kind(calls),
        "evaluation_key_bytes": memory["evaluation_keys"],
        "key_folder": bool(memory["folder"]),
        "key_loading": _key_loading(plan),
        "ciphertext_bytes": memory["inputs"],
        "output_bytes": memory["outputs"],
        "server_peak_bytes": memory["server"],
        "client_peak_bytes": memory["client"],
        "predicted_ms": plan.predicted_ms,
        "work_by_layer": [dataclasses.asdict(row) for row in calls_table(plan.trace.calls_by_layer)],
        "predicted_ms_by_layer": _by_layer(program, options),
        "costs": costs.machine,
        "scheme_error": plan.scheme_error,
        "approximation_error": approximation,
        "predicted_max_abs_error": total_error,
        "error_samples": sample_count,
        "unseen": unseen.to_dict() if any(entry["source"] == "observed" for entry in ranges) else None,
        "output_magnitude": plan.output_magnitude,
        "ranges": ranges,
        "batch": batch_of(program),
        "output_ranges": program.metadata.get("output_ranges", {}),
        "flood": options.flood,
        "proved_share": proved / len(ranges) if ranges else 1.0,
        "predicted": {
            **times,
            "server_peak_bytes": memory["server"],
            "client_peak_bytes": memory["client"],
            "evaluation_key_bytes": memory["evaluation_keys"],
            "ciphertext_bytes": memory["inputs"],
            "max_abs_error": total_error,
            "error_bits": _bits(total_error),
            "scheme_error": plan.scheme_error,
            "scheme_error_bits": _bits(plan.scheme_error),
        },
        "depth_by_line": _depth_by_line(polynomial),
        # What the author of a slot program wrote is what runs: there is nothing for us to lower.
        "savings": []
        if source.stage is Stage.PACKED or not _worth_varying(fused)
        else savings(fused, measured, options, observation.partly or observation.observed, samples, exact),
        "options": {
            "degree": options.degree,
            "degrees": dict(degrees_by_layer(fused, options.degrees)),
            "target_error": options.target_error,
            "method": options.method,
            "spread": options.spread,
            "margin": options.margin,
            "precision_bits": options.precision_bits,
        },
    }
    values["assumed"] = _assumed(values, bool(source.calibration), observation.trial is not None)
    return values


def _bits(error: float) -> float | None:
    """How many bits after the point are right."""
    return -math.log2(error) if error > 0 else None


def _by_kind(calls: Mapping[Call, int]) -> dict[str, int]:
    table: Counter[str] = Counter()
    for (primitive, _, _), number in calls.items():
        table[primitive] += number
    return dict(sorted(table.items()))


def _encode_ms(calls: Mapping[Call, int], ring: Ring, options: Options) -> float:
    """Encoding every plaintext once: what the first run pays on top."""
    return sum(
        number * options.costs.encode_ms(ring, level)
        for (primitive, level, _), number in calls.items()
        if primitive in ("mul_plain", "add_plain")
    )


def _compile_seconds(program: Program, ring: Ring, calls: Mapping[Call, int]) -> float:
    products = count(calls, "mul_plain", "mul_scalar", "rotate", "rotate_hoisted", "relinearize", "rescale")
    entries = sum(int(getattr(c, "data", np.zeros(0)).size) for c in program.constants.values() if hasattr(c, "indptr"))
    return _COMPILE_BASE_S + 1e-9 * (products * ring.slots * _COMPILE_SLOT_NS + entries * _COMPILE_ENTRY_NS)


def node_calls(program: Program) -> dict[Node, Counter[Call]]:
    """The homomorphic calls of each node of an executable program, as the simulator counts them."""
    from heliograph.execution.simulator import SimulatedCiphertext, Simulator

    simulator = Simulator(program, noisy=False)
    table: dict[Node, Counter[Call]] = {}
    zeros = np.zeros(simulator.ring.slots)
    for node in program.nodes:
        if node.op == "input" or not node.type.secret:
            continue
        simulator.calls.clear()
        operands: list[Any] = []
        for operand in node.inputs:
            if not isinstance(operand.type, CipherType):
                operands.append(zeros[np.newaxis])
                continue
            operands.append(SimulatedCiphertext(zeros, operand.type.level, operand.type.log_scale, operand.type.parts))
        simulator.evaluate(node, operands)
        table[node] = Counter(simulator.calls)
    return table


def _by_layer(program: Program, options: Options) -> dict[str, float]:
    """Predicted milliseconds of each layer, in program order."""
    chains = key_chains(program.metadata)
    table: dict[str, float] = {}
    for node, calls in node_calls(program).items():
        layer = node.loc.layer or node.op
        table[layer] = table.get(layer, 0.0) + sum(
            n * priced_ms(call, chains, options.costs) for call, n in calls.items()
        )
    return table


def _depth_by_line(polynomial: Program) -> list[dict[str, Any]]:
    """Who spends the levels, along one longest path: an entry per node that spends some, inputs first."""
    _, path = critical_depth(polynomial)
    entries = []
    for node in path:
        spent = node_depth(polynomial, node)
        if not spent:
            continue
        what = _WORDS.get(node.op, node.op)
        if node.op == "poly":
            what = f"polynomial of degree {len(polynomial.array(node.attrs['coefficients'])) - 1}"
        entries.append({"levels": spent, "what": what, "layer": node.loc.layer, "location": node.loc.short})
    return entries


def _bootstrapping(program: Program, ring: Ring) -> dict[str, Any] | None:
    """What the report says of bootstraps, None where there are none."""
    slot_counts = program.metadata.get("bootstrap_slots", ())
    if not slot_counts:
        return None
    return {
        "slots": list(slot_counts),
        "paired_slots": list(program.metadata.get("paired_slots", ())),
        "from": ring.bootstrap_input_level,
        "to": ring.bootstrap_level,
        "table_bytes": sum(bootstrap_table_bytes(ring, slots) for slots in slot_counts),
        "deviation": bootstrap_std(ring),
        "iterations": ring.bootstrap_iterations,
        "observed": program.metadata.get("observed_bootstraps", 0),
    }


def _key_loading(plan: Plan) -> dict[str, Any] | None:
    """What the report says of keys that are read again in every run, None where all of them stay."""
    resident = plan.program.metadata.get("resident_key_bytes")
    if resident is None:
        return None
    loads, loaded = key_use(plan.program).loads(resident)
    return {"resident_bytes": resident, "loads": loads, "loaded_bytes": loaded, "ms": plan.loading_ms}


def secret_distribution(ring: Ring) -> str:
    """How the secret key is drawn, in words."""
    if ring.bootstrap is None:
        return "uniform ternary"
    return "uniform ternary; bootstraps begin under a sparse one of Hamming weight 32 (encapsulated)"


def _worth_varying(program: Program) -> bool:
    """Whether variants of the program are compiled for the report: each takes as long as the program itself."""
    entries = sum(constant.data.size for constant in program.constants.values() if isinstance(constant, SparseMatrix))
    return entries <= _MOST_ENTRIES_TO_VARY


def _unseen_text(unseen: Mapping[str, Any]) -> str:
    """How often unseen inputs leave, as far as the samples tell."""
    if not unseen["apart"]:
        return (
            f"Unseen inputs: of {unseen['setting']} calibration sample{'s' * (unseen['setting'] != 1)} none could be kept "
            "apart, and nothing is known of how often another input leaves."
        )
    text = (
        f"Unseen inputs: with the ranges set on {unseen['setting']} of the samples, {unseen['left']} of the other "
        f"{unseen['apart']} left an interval. Inputs like the samples leave at a rate of at most "
        f"{unseen['rate_bound']:.2g} ({unseen['confidence']:.0%} confidence)"
    )
    worst = unseen["worst"]
    if worst is not None and worst["left"]:
        text += f"; {worst['layer']} was left by {worst['left']}, at most {worst['rate_bound']:.2g}"
    elif worst is not None:
        text += f"; {worst['layer']} was reached furthest, to {worst['largest']:.2f} of its interval"
    return text + ". More samples tighten the bound; inputs unlike them are not covered by it."


def _assumed(values: Mapping[str, Any], calibrated: bool, apart: bool) -> list[str]:
    """What the figures rest on, one sentence each."""
    lines = []
    if values["security_bits"] is None:
        lines.append("No security: the parameters were chosen without the security table, for tests.")
    else:
        lines.append(
            f"Security: log PQ is at most {values['max_log_pq']} for ring dimension {values['ring_dim']}, as the "
            "Homomorphic Encryption Standard's table has it for a uniform ternary secret, errors of standard deviation "
            "3.19 and classical attacks."
        )
    if values["bootstrapping"] is not None:
        lines.append(
            "Bootstraps: each begins under a sparse secret of Hamming weight 32 (Bossuat, Troncoso-Pastoriza and Hubaux, "
            f"2022). One key is under it, at a modulus of {values['first_mod_bits'] + SPARSE_KEY_BITS} bits; that it is "
            "not the weakest part is assumed, not checked by us. The secret itself is uniform ternary: the table holds "
            "for it."
        )
        if values["bootstrapping"]["observed"]:
            lines.append(
                f"The sizes of {values['bootstrapping']['observed']} bootstrapped values rest on observation (widened by "
                "twice the margin): another input may leave them, and the result is then nonsense."
            )
    ranges = values["ranges"]
    seen = [entry for entry in ranges if entry["source"] == "observed"]
    declared = [entry for entry in ranges if entry["source"] == "declared"]
    if seen:
        margins = sorted(entry["margin"] for entry in seen)
        widened = f"{margins[0]:.0%}" + (
            f" to {margins[-1]:.0%}" if f"{margins[0]:.0%}" != f"{margins[-1]:.0%}" else ""
        )
        lines.append(
            f"{len(seen)} of {len(ranges)} polynomial inputs rest on observation ({max(e['samples'] for e in seen)} "
            f"samples, widened by {widened}): another input may leave the interval, and the result is then nonsense."
        )
        lines.append(_unseen_text(values["unseen"]))
    if declared:
        lines.append(f"{len(declared)} of {len(ranges)} polynomial inputs rest on a range that the program declares.")
    decisions = [entry for entry in ranges if entry.get("gap") is not None]
    for entry in decisions:
        lines.append(
            f"{entry['layer'] or entry['function']}: differences below {entry['gap']:.3g} ({entry['gap_source']}) are not "
            "told apart; there the result lies between the two."
        )
    if values["flood"] is not None:
        line = f"The server adds noise of deviation {values['flood']:.3g} to the outputs."
        if decisions:
            soft = max(entry["max_error"] for entry in decisions)
            hidden = math.log2(values["flood"] / soft)
            line += (
                f" Outside the gap decisions differ from their limit by at most {soft:.2g}, {hidden:.1f} bits below it."
            )
        lines.append(line)
    kind = "random inputs from the declared ranges"
    if calibrated:
        kind = "samples kept apart" if apart else "calibration samples"
    lines.append(
        f"Errors: those of the polynomials were seen on {values['error_samples']} {kind}, that of encryption was "
        "simulated with OpenFHE's noise on two of them; neither is a bound."
    )
    lines.append(
        f"Times: costs {values['costs']}, a quiet machine; plaintexts are encoded in the first run and kept, "
        "those beyond the server's bound in every run, by a thread beside the evaluation."
    )
    in_folder = "in a folder and are made, written and read one by one (Client.write_evaluation_keys)"
    lines.append(
        f"Memory: processes without torch; the server keeps at most {PLAINTEXT_CACHE_BYTES >> 20} MiB of encoded "
        f"plaintexts; keys come to it {in_folder if values['key_folder'] else 'as a file'}."
    )
    return lines
