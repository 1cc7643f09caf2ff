"""The figures of a report that follow from the executable program: computed at compilation, and again from a file.

An artifact's file holds no security level, no key size and no count of operations: the reader computes them, so that a
bill cannot understate its program's costs. Facts that only the compiler can know (errors, observations, the prices
behind predicted times) are stored, and the artifact's fingerprint covers them.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from heliograph.artifact.times import calls_by_layer, layer_times
from heliograph.ckks.chains import Chain
from heliograph.ckks.costs import CostTable
from heliograph.ckks.keys import EvaluationKey
from heliograph.ckks.noise import bootstrap_std, series_std
from heliograph.ckks.ring import Ring
from heliograph.ckks.security import max_log_pq
from heliograph.ckks.trigonometric import levels_deeper
from heliograph.execution.interface import batch_of
from heliograph.execution.key_use import key_use, reading_ms
from heliograph.execution.keys import program_keys
from heliograph.execution.loop import calls_table
from heliograph.execution.memory import memory_bytes, table_bytes
from heliograph.execution.prices import priced_ms, total_ms
from heliograph.execution.primitives import BOOTSTRAPS, KEY_SWITCHES, PLAIN_PRODUCTS, ROTATIONS
from heliograph.execution.protocol import Call
from heliograph.execution.walk import node_calls
from heliograph.ir import Node, Program
from heliograph.ir.bootstraps.asked import (
    REFRESHED,
    bootstrap_slots,
    bootstrapped,
    bootstraps,
    bootstraps_by_chain,
    observed_sizes,
    paired_slots,
    written_out,
)
from heliograph.ir.bootstraps.series import series_degree
from heliograph.ir.ops.spec import Context, Role, role_of
from heliograph.records import bounds_of, to_json
from heliograph.report.assumptions import assumed
from heliograph.report.figures import (
    Allocation,
    Bootstrapping,
    Figures,
    KeyLoading,
    KeyRow,
    LayerDegree,
    LayerImpact,
    LayerWork,
    LowerChain,
    OutputRange,
    Predicted,
    Stored,
)

# A server's time besides the homomorphic calls, fitted on the programs of benchmarks/bill.py: per message, and per byte of
# its ciphertexts in memory, for drawing one half from a seed and unpacking the other (0.25 to 0.5 ns in rings of 2^13 to
# 2^16).
_MESSAGE_MS, _READ_NS_PER_BYTE = 3.3, 0.5
STORED = frozenset(entry.name for entry in dataclasses.fields(Stored))
# Fields that a file leaves out if they are empty.
OPTIONAL = frozenset(entry.name for entry in dataclasses.fields(Stored) if bounds_of(entry).optional)


def stored(figures: Stored) -> dict[str, Any]:
    """The stored part of a report, as JSON values."""
    return {key: value for key, value in to_json(figures).items() if key in STORED}


def prices(costs: CostTable) -> dict[str, float]:
    """The prices of a cost table for a report, without the name of its machine."""
    return {key: value for key, value in dataclasses.asdict(costs).items() if key != "machine"}


def complete(program: Program, known: Stored) -> Figures:
    """All figures of an executable program: the stored ones in `known`, and those computed from the program."""
    ring, costs = program.ring, CostTable(known.costs, **known.cost_table)
    by_node = node_calls(program)
    chains = program.planned.chains
    calls: Counter[Call] = Counter()
    for found in by_node.values():
        calls.update(found)
    memory = memory_bytes(program, ring)
    # An upper bound if outputs have different scales.
    scheme_error = max(program.interface.scales, default=1.0) * known.scheme_error
    # `approximation_error` is from held-out samples, as for new inputs; no calibration sample may exceed the total
    # either.
    total_error = max(known.approximation_error, known.given_error or 0.0) + scheme_error
    largest = known.output_magnitude if known.largest_output is None else known.largest_output
    rotations = count(calls, *ROTATIONS)
    keys = program_keys(program)
    ranges = [entry.to_json() for entry in program.ranges]
    proved = sum(entry["source"] == "proved" for entry in ranges)
    predicted_ms, loading = total_ms(calls, program, costs), _key_loading(program)
    evaluate_ms = predicted_ms + _MESSAGE_MS + memory["inputs"] * _READ_NS_PER_BYTE * 1e-6
    evaluate_ms += 0.0 if loading is None else loading.ms
    figures = Figures(
        **{entry.name: getattr(known, entry.name) for entry in dataclasses.fields(Stored)},
        name=program.name,
        security_bits=ring.security_bits,
        insecure=ring.security_bits is None,
        secret_distribution=secret_distribution(ring),
        ring_dim=ring.ring_dim,
        slots=ring.slots,
        log_pq=ring.log_pq,
        max_log_pq=None if ring.security_bits is None else max_log_pq(ring.log_ring, ring.security_bits),
        first_mod_bits=ring.first_mod_bits,
        scale_bits=ring.scale_bits,
        special_primes=ring.special,
        digits=ring.digits,
        depth=_spent_levels(program),
        levels=ring.levels,
        rotations=rotations,
        rotation_keys=sum(key.kind == "rotation" for key in keys),
        rotation_key_bytes=ring.rotation_key_bytes,
        relinearization_key=program.planned.chains[0].relinearization_key,
        bootstraps=count(calls, *BOOTSTRAPS),
        bootstrapping=_bootstrapping(program, ring),
        lower_chains=tuple(_lower_chain(chain, keys, calls, number) for number, chain in enumerate(chains) if number),
        key_switches=count(calls, *KEY_SWITCHES),
        ciphertext_products=count(calls, "mul"),
        plaintext_products=count(calls, *PLAIN_PRODUCTS),
        operations={_call_text(call, chains): number for call, number in sorted(calls.items())},
        operations_by_kind=_by_kind(calls),
        evaluation_key_bytes=memory["evaluation_keys"],
        sent_key_bytes=memory["sent_keys"],
        keys_by_kind=_keys_by_kind(keys),
        key_folder=bool(memory["folder"]),
        key_loading=loading,
        ciphertext_bytes=memory["inputs"],
        sent_input_bytes=memory["sent_inputs"],
        output_bytes=memory["outputs"],
        server_peak_bytes=memory["server"],
        client_peak_bytes=memory["client"],
        predicted_ms=predicted_ms,
        work_by_layer=tuple(LayerWork(**dataclasses.asdict(row)) for row in calls_table(calls_by_layer(by_node))),
        predicted_ms_by_layer=layer_times(program, by_node, costs),
        degrees=_degrees(program, by_node, costs, known.allocation),
        predicted_max_abs_error=total_error,
        ranges=tuple(ranges),
        batch=batch_of(program),
        encodings={spec.name: str(spec.encoding) for spec in program.interface.inputs if spec.encoding is not None},
        output_ranges={
            spec.name: OutputRange(
                spec.low * (spec.scale or 1.0),
                spec.high * (spec.scale or 1.0),
                spec.range_source,
                spec.finish,
                spec.scale,
            )
            for spec in program.interface.outputs
            if spec.low is not None and spec.high is not None and spec.range_source is not None
        },
        flood=program.planned.flood,
        proved_share=proved / len(ranges) if ranges else 1.0,
        predicted=Predicted(
            keygen_s=sum(costs.key_ms(key.ring) for key in keys) / 1e3,
            encrypt_ms=sum(costs.encrypt_ms(ring, node.attrs["level"]) for node in program.inputs if node.type.secret),
            evaluate_ms=evaluate_ms,
            evaluate_sample_ms=evaluate_ms / batch_of(program) if batch_of(program) > 1 else None,
            first_ms=evaluate_ms + _encode_ms(calls, ring, costs),
            decrypt_ms=len(program.outputs) * costs.decrypt_ms(ring),
            server_peak_bytes=memory["server"],
            client_peak_bytes=memory["client"],
            evaluation_key_bytes=memory["evaluation_keys"],
            sent_key_bytes=memory["sent_keys"],
            ciphertext_bytes=memory["inputs"],
            sent_input_bytes=memory["sent_inputs"],
            ciphertext_sample_bytes=memory["inputs"] // batch_of(program) if batch_of(program) > 1 else None,
            max_abs_error=total_error,
            relative_error=_relative(total_error, largest),
            scheme_error=scheme_error,
            relative_scheme_error=_relative(scheme_error, largest),
        ),
        assumed=(),
    )
    return dataclasses.replace(figures, assumed=tuple(assumed(figures)))


def count(calls: Mapping[Call, int], *primitives: str) -> int:
    """The number of calls of these primitives, at any level."""
    return sum(number for call, number in calls.items() if call.primitive in primitives)


def _call_text(call: Call, chains: Sequence[Chain]) -> str:
    """A call's name in reports: `bootstrap@4/256`, or `chain17/bootstrap@4/256` in a lower chain."""
    text = f"{call.primitive}@{call.level}" + ("" if call.size == 2 else f"/{call.size}")
    return f"chain{chains[call.chain].ring.levels}/{text}" if call.chain else text


def _lower_chain(chain: Chain, keys: Sequence[EvaluationKey], calls: Mapping[Call, int], number: int) -> LowerChain:
    """The report's row for a lower chain: the keys generated for it, and its bootstraps."""
    ring = chain.ring
    made = sum(key.ring == ring and key.kind in ("rotation", "relinearization") for key in keys)
    row = LowerChain(ring.levels, made, ring.rotation_key_bytes)
    if ring.bootstrap is None:
        return row
    inside = sum(found for call, found in calls.items() if call.primitive in BOOTSTRAPS and call.chain == number)
    return dataclasses.replace(row, bootstraps=inside, to_level=ring.bootstrap_level)


def _relative(error: float, magnitude: float) -> float | None:
    """The error as a share of the largest output; None if all outputs are zero."""
    return error / magnitude if magnitude > 0 else None


def _keys_by_kind(keys: Sequence[EvaluationKey]) -> tuple[KeyRow, ...]:
    """A row for each kind and size of evaluation key, with their number; together they cover all keys."""
    sizes = Counter((key.kind, key.bytes) for key in keys)
    return tuple(KeyRow(kind, number, size) for (kind, size), number in sizes.items())


def _by_kind(calls: Mapping[Call, int]) -> dict[str, int]:
    table: Counter[str] = Counter()
    for call, number in calls.items():
        table[call.primitive] += number
    return dict(sorted(table.items()))


def _encode_ms(calls: Mapping[Call, int], ring: Ring, costs: CostTable) -> float:
    """The time to encode every plaintext once, which the first run takes in addition."""
    return sum(
        number * costs.encode_ms(ring, call.level)
        for call, number in calls.items()
        if call.primitive in ("mul_plain", "summed_product", "wide_product", "add_plain")
    )


def _degrees(
    program: Program, calls: Mapping[Node, Mapping[Call, int]], costs: CostTable, allocation: Allocation | None
) -> tuple[LayerDegree, ...]:
    """A row for each entry of the table of ranges that is a single polynomial, in the table's order.

    Its milliseconds count the nodes at its place in the sources and the bootstraps that it reads. Time shared by
    several rows (two functions on one line without names, a bootstrap that both read) is divided among them.
    """
    chains = program.planned.chains
    read: dict[int, list[Node]] = {}
    for node in program.nodes:
        if node.attrs.get("range") is not None:
            read.setdefault(int(node.attrs["range"]), []).append(node)
    refreshed = {number: {found for node in nodes for found in _refreshed(node)} for number, nodes in read.items()}
    readers = Counter(node for found in refreshed.values() for node in found)
    ms = {
        node: sum(count * priced_ms(call, chains, costs) for call, count in found.items())
        for node, found in calls.items()
    }
    # The time of a whole written-out bootstrap is assigned to its last node.
    inside: set[Node] = set()
    for end in bootstraps(program):
        if end.op == REFRESHED:
            within = [node for node in written_out(program, end) if node in ms]
            inside.update(within)
            ms[end] = math.fsum(ms[node] for node in within)
    at_place: dict[tuple[str, str], float] = {}
    for node, own in ms.items():
        if node not in readers and (node not in inside or node.op == REFRESHED):
            place = (node.loc.layer, node.loc.short)
            at_place[place] = at_place.get(place, 0.0) + own
    sharing = Counter((entry.layer, entry.location) for entry in program.ranges)
    allocated: dict[tuple[str, str, str], list[LayerImpact]] = {}
    for row in allocation.layers if allocation is not None else ():
        allocated.setdefault((row.layer, row.location, row.function), []).append(row)
    rows = []
    for number, entry in enumerate(program.ranges):
        if entry.method == "composite" or len(entry.degrees or ()) > 1:
            continue
        place = (entry.layer, entry.location)
        refreshing = math.fsum(ms[node] / readers[node] for node in refreshed.get(number, ()))
        chain = next((getattr(node.type, "chain", 0) for node in read.get(number, ())), 0)
        known = allocated.get((*place, entry.function))
        impact = known.pop(0) if known else None
        rows.append(
            LayerDegree(
                layer=entry.layer,
                location=entry.location,
                function=entry.function,
                degree=entry.degree,
                rms_error=entry.rms_error,
                # Depth ceil(log2(degree + 1)), coefficients included (approx/evaluate.py), or a square.
                levels=1 if entry.frame is not None else entry.degree.bit_length(),
                chain=chains[chain].ring.levels,
                ms=at_place.get(place, 0.0) / sharing[place] + refreshing,
                impact=None if impact is None else impact.impact,
                share=None if impact is None else impact.share,
            )
        )
    return tuple(rows)


def _refreshed(node: Node) -> list[Node]:
    """The bootstraps whose results are read by this node, a polynomial's first."""
    found = []
    for value in node.inputs:
        while (
            value.op != REFRESHED
            and len(value.inputs) == 1
            and role_of(value) in (Role.LEVEL, Role.PART, Role.TRANSPARENT)
        ):
            (value,) = value.inputs
        if value.op == REFRESHED:
            found.append(value)
    return found


def _bootstrapping(program: Program, ring: Ring) -> Bootstrapping | None:
    """The report's figures of the bootstraps in a run; None if there are none."""
    slot_counts = bootstrap_slots(program)
    if not slot_counts:
        return None
    degrees = [series_degree(node, Context(program.constants)) for node in bootstraps(program)]
    return Bootstrapping(
        slots=tuple(slot_counts),
        paired_slots=paired_slots(program),
        from_level=ring.bootstrap_input_level,
        to_level=max(
            chain.ring.bootstrap_level
            for chain, found in zip(program.planned.chains, bootstraps_by_chain(program), strict=True)
            if found
        )
        - min(map(levels_deeper, degrees)),
        table_bytes=table_bytes(program),
        deviation=series_std(ring) if all(degrees) else bootstrap_std(ring),
        observed=observed_sizes(program),
        activations=sum(map(bool, degrees)) or None,
    )


def _key_loading(program: Program) -> KeyLoading | None:
    """The report's figures of keys that are read again in every run; None if all keys stay in memory."""
    resident = program.planned.resident_key_bytes
    if resident is None:
        return None
    loads, loaded = key_use(program).loads(resident)
    return KeyLoading(resident, loads, loaded, reading_ms(loads, loaded))


def _spent_levels(program: Program) -> int:
    """The most levels spent by rescales on a path from an input to an output, without those inside bootstraps."""
    spent: dict[Node, int] = {}
    for node in program.nodes:
        before = max((spent[operand] for operand in bootstrapped(node)), default=0)
        spent[node] = before + int(node.op == "rescale")
    return max((spent[node] for node in program.outputs), default=0)


def secret_distribution(ring: Ring) -> str:
    """The distribution of the secret key, in words."""
    if ring.bootstrap is None:
        return "uniform ternary"
    return "uniform ternary; bootstraps begin under a sparse one of Hamming weight 32 (encapsulated)"
