"""Compares a program's layers on one sample (original, with polynomials, encrypted) and finds where they deviate.

For the client only: it generates its own key and decrypts values that a server must never see.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from heliograph.artifact.artifact import Artifact
from heliograph.compiler.options import Options
from heliograph.compiler.pipeline import fused_program
from heliograph.compiler.places import portable
from heliograph.compiler.reporting.held_out import observe
from heliograph.errors import HeliographError, ProgramError, RangeError
from heliograph.execution.interface import batch_of, pack_inputs
from heliograph.execution.loop import execute
from heliograph.execution.ranges import SLACK, polynomial_inputs, range_layout
from heliograph.execution.simulator import Simulator
from heliograph.files import Bytes
from heliograph.interpret import run_nodes
from heliograph.ir import Array, CipherType, Node, Program, Stage, shape_of
from heliograph.ir.maps.layout import Layout
from heliograph.ir.ranges import RangeEntry
from heliograph.runtime.server.server import Server, require_server
from heliograph.runtime.wire.messages import EncryptedInput, object_name


@dataclass(frozen=True, slots=True)
class LayerValues:
    """The values at one place: the input of an activation, or an output.

    `original`: the traced network's values (None without the program).
    `polynomial`: the compiled program's exact values.
    `decrypted`: the ciphertext's values (None if it cannot be decrypted).

    All are in the network's own units if the program was given; otherwise inputs of polynomials are in units of their
    interval.
    """

    layer: str
    location: str
    kind: str
    original: Array | None
    polynomial: Array
    decrypted: Array | None
    scale: float
    outside: float | None = None
    failure: str = ""

    @property
    def approximation_error(self) -> float | None:
        """The largest distance between the original and the polynomial values."""
        return None if self.original is None else _distance(self.original, self.polynomial)

    @property
    def encryption_error(self) -> float | None:
        """The largest distance between the polynomial and the decrypted values; None if nothing was decrypted."""
        return None if self.decrypted is None else _distance(self.polynomial, self.decrypted)


@dataclass(frozen=True, slots=True)
class DebugReport:
    """Layers in program order; `first_deviation` is the first layer with an error above `tolerance` times its size."""

    layers: Sequence[LayerValues]
    tolerance: float
    notes: Sequence[str] = field(default_factory=tuple)

    def deviates(self, layer: LayerValues) -> str:
        """The reason why a layer counts as deviating; an empty text if it does not."""
        if layer.failure:
            return layer.failure
        if layer.outside is not None and layer.outside > 1.0 + SLACK:
            return f"the polynomial's input reaches {layer.outside:.4g} times its interval"
        limit = self.tolerance * max(layer.scale, 1e-12)
        if layer.encryption_error is not None and layer.encryption_error > limit:
            return f"encryption is off by {layer.encryption_error:.3g} (values reach {layer.scale:.3g})"
        if layer.approximation_error is not None and layer.approximation_error > limit:
            return (
                f"the polynomials before it are off by {layer.approximation_error:.3g} (values reach {layer.scale:.3g})"
            )
        return ""

    @property
    def first_deviation(self) -> LayerValues | None:
        return next((layer for layer in self.layers if self.deviates(layer)), None)

    def __str__(self) -> str:
        names = [f"{layer.layer} ({layer.location})" for layer in self.layers]
        width = max([len(name) for name in names], default=0)
        lines = [f"{'':<{width}}  {'kind':<10}  {'size':>9}  {'polynomial':>11}  {'encryption':>11}"]
        for name, layer in zip(names, self.layers, strict=True):
            lines.append(
                f"{name:<{width}}  {layer.kind:<10}  {layer.scale:>9.3g}  {_cell(layer.approximation_error):>11}  "
                f"{_cell(layer.encryption_error):>11}"
            )
        first = self.first_deviation
        if first is None:
            lines.append(f"no layer deviates by more than {self.tolerance:g} of its size")
        else:
            lines.append(f"first deviation: {first.layer} ({first.location}): {self.deviates(first)}")
        return "\n".join([*lines, *self.notes])


def _cell(error: float | None) -> str:
    return "-" if error is None else f"{error:.2g}"


def _distance(a: Array, b: Array) -> float:
    distance = np.abs(a - b)
    return float(distance.max(initial=0.0)) if np.isfinite(distance).all() else float("inf")


def debug(
    artifact: Artifact, *samples: Any, program: Program | None = None, tolerance: float = 0.05, encrypted: bool = True
) -> DebugReport:
    """Values of every layer for one sample: original, polynomial and decrypted, and the first layer that deviates.

    `program` is the result of `trace` or `parse`; without it there are no original values. Intermediate ciphertexts are
    decrypted with a key that is generated here and discarded: another client's values are never decrypted.
    `encrypted=False` leaves encryption out. A layer deviates if a value left the interval of its polynomial, or if an
    error is above `tolerance` times its largest value.
    """
    executable = artifact.program
    if program is not None:
        # Layers are matched by their locations, which an artifact stores in portable form.
        program, _ = portable(program)
    if batch_of(executable) > 1:
        raise ProgramError(
            "an artifact for several samples at once cannot be looked into",
            hint="compile the same program without Options.batch: its layers hold the same values",
        )
    points = polynomial_inputs(executable)
    exact, failures = _simulated(executable, samples, points)
    decrypted = _decrypted(artifact, samples, points, failures) if encrypted else {}
    originals, sizes = _originals(artifact, program, samples) if program is not None else ({}, {})
    layers, notes = [], []
    for node in executable.nodes:
        if node not in points or points[node][1]:
            continue
        entry, _ = points[node]
        # The ciphertexts of one value, in order.
        parts = sorted((other for other in points if points[other][0] == entry), key=points.__getitem__)
        known = executable.ranges[entry]
        layout = range_layout(executable, entry)
        middle, half = (known.low + known.high) / 2, (known.high - known.low) / 2
        unit: Array | float = half
        if known.units is not None:
            # With units, each unit's interval is [-size, size]; without the program, the sizes are unknown.
            middle, unit = 0.0, sizes[entry].reshape(layout.shape) if entry in sizes else 1.0
        elif program is None:
            middle, unit = 0.0, 1.0
        layers.append(
            _layer(
                known.layer or known.function,
                known.location,
                "activation",
                originals.get(entry),
                _tensor([exact.get(part) for part in parts], layout, middle, unit, known),
                _tensor([decrypted.get(part) for part in parts], layout, middle, unit, known),
                next((failures[part] for part in parts if part in failures), ""),
                [known.placed(exact[part]) for part in parts if part in exact],
                layout,
            )
        )
    position = 0
    for number, spec in enumerate(executable.interface.outputs):
        layout = spec.placed
        nodes = executable.outputs[position : position + layout.ciphertexts]
        position += layout.ciphertexts
        loc = nodes[0].loc
        vectors = [[table.get(node) for node in nodes] for table in (exact, decrypted)]
        plain, clear = (
            None
            if any(v is None for v in found)
            else layout.unpack([v for v in found if v is not None]).reshape(spec.shape)
            for found in vectors
        )
        layers.append(
            _layer(spec.name, loc.short, "output", originals.get(-1 - number), plain, clear, failures.get(nodes[0], ""))
        )
    if any(node not in exact for node in executable.outputs):
        notes.append("there are no outputs: a value outgrows its modulus on the way")
    if program is None:
        notes.append("no original values: pass program=, what trace or parse gave")
    return DebugReport([layer for layer in layers if layer is not None], tolerance, tuple(notes))


def _layer(
    layer: str,
    location: str,
    kind: str,
    original: Array | None,
    polynomial: Array | None,
    decrypted: Array | None,
    failure: str,
    slots: Sequence[Array] = (),
    layout: Layout | None = None,
) -> LayerValues | None:
    if polynomial is None:
        return None
    reference = polynomial if original is None else original.reshape(polynomial.shape)
    outside = None
    if slots and layout is not None:
        outside = max(float(np.abs(layout.in_all_copies(part, i)).max(initial=0.0)) for i, part in enumerate(slots))
    size = float(np.abs(reference).max(initial=0.0))
    kept = None if original is None else reference
    return LayerValues(layer, location, kind, kept, polynomial, decrypted, size, outside, failure)


def _tensor(
    slots: Sequence[Array | None], layout: Layout, middle: float, unit: Array | float, known: RangeEntry
) -> Array | None:
    found = [known.placed(part) for part in slots if part is not None]
    return np.asarray(middle + unit * layout.unpack(found)) if len(found) == len(slots) else None


def _simulated(
    program: Program, samples: Sequence[Any], points: Iterable[Node]
) -> tuple[dict[Node, Array], dict[Node, str]]:
    """The compiled program's exact values at the points and outputs, as long as they stay finite."""
    simulator = Simulator(program, noisy=False)
    wanted = {*points, *program.outputs}
    seen: dict[Node, Array] = {}
    inputs = simulator.encrypt_inputs(pack_inputs(program, samples))

    def observe(node: Node, value: Any) -> None:
        if node in wanted:
            seen[node] = np.real(value.slots)

    failures: dict[Node, str] = {}
    try:
        execute(program, simulator, inputs, observe=observe)
    except RangeError as error:
        # The layers before the overflow show where it comes from.
        last = next((node for node in reversed(program.nodes) if node in seen), None)
        if last is not None:
            failures[last] = f"after it a value outgrows its modulus: {error.what}"
    return seen, failures


def _decrypted(
    artifact: Artifact, samples: Sequence[Any], points: Iterable[Node], failures: dict[Node, str]
) -> dict[Node, Array]:
    """The decrypted slots at the points and outputs of a real encrypted run, under a fresh key."""
    from heliograph.runtime.client.client import Client

    program = artifact.program
    # Nothing leaves this process, and the key is discarded: nothing is lost without security.
    client = Client(artifact.public(), allow_insecure=True)
    cryptor = client._cryptor
    wanted = {*points, *program.outputs}
    seen: dict[Node, Array] = {}
    # Client.encrypt is not used: it refuses values out of range, which may be the very problem to find.
    packed = pack_inputs(program, samples)
    blobs: dict[str, Bytes] = {
        object_name(node.attrs["name"], node.attrs["chunk"]): cryptor.encrypted_bytes(
            vector[0], node.attrs["level"], node.attrs["log_scale"]
        )
        for node, vector in packed.items()
        if node.type.secret
    }

    def observe(node: Node, value: Any) -> None:
        if node not in wanted:
            return
        assert isinstance(node.type, CipherType)
        try:
            seen[node], _ = cryptor.decrypted(server.evaluator.residues(value), node.type.log_scale)
        except RangeError:
            failures.setdefault(node, "it cannot be decrypted: its error is larger than its message")

    try:
        require_server(artifact)
        with Server(artifact, client.evaluation_keys(), allow_insecure=True) as server, server.evaluating():
            plain = {node.attrs["name"]: value[0] for node, value in packed.items() if not node.type.secret}
            inputs = server.inputs(EncryptedInput(artifact.fingerprint, client.id, blobs), plain)
            execute(program, server.evaluator, inputs, observe=observe)
    except HeliographError as error:
        raise ProgramError("the encrypted run stopped", why=error.what, where=error.where) from None
    return seen


def _originals(
    artifact: Artifact, program: Program, samples: Sequence[Any]
) -> tuple[dict[int, Array], dict[int, Array]]:
    """The traced network's values at the inputs of activations (by range entry) and outputs (-1, -2, ...), and the unit
    sizes of entries that have them.
    """
    if program.stage is not Stage.TENSOR:
        return _slot_originals(artifact, program, samples), {}
    options = Options.of_bill(artifact.report.figures.options)
    fused = fused_program(program, options)
    approximated = observe(fused, options).known.frame
    ranges = artifact.program.ranges
    if [(e.layer, e.location) for e in approximated.ranges] != [(e.layer, e.location) for e in ranges]:
        raise _another_program()
    values: dict[Node, Array] = {}
    inputs = {}
    for node, sample in zip(fused.inputs, samples, strict=True):
        inputs[node] = np.asarray(sample, dtype=np.float64).reshape(1, *shape_of(node))
    run_nodes(fused, inputs, values.__setitem__)
    originals: dict[int, Array] = {}
    entry = 0
    for node in fused.nodes:
        # Entries are in the order of the activations. Activations that turned out to be the identity have no entry; entries
        # of compositions do not belong to an activation, as their inputs are not values of the network.
        place = (node.loc.layer, node.loc.short, node.op)
        names = [(known.layer, known.location, known.function) for known in ranges[entry:]]
        if node.type.secret and place in names:
            entry += names.index(place)
            originals[entry] = values[node.inputs[0]][0]
            entry += 1
    for number, node in enumerate(fused.outputs):
        originals[-1 - number] = values[node][0]
    sizes = {i: np.array(e.unit_sizes) for i, e in enumerate(approximated.ranges) if e.unit_sizes is not None}
    return originals, sizes


def _slot_originals(artifact: Artifact, program: Program, samples: Sequence[Any]) -> dict[int, Array]:
    """The original values for a program on slots, whose polynomials are written by its author."""
    values: dict[Node, Array] = {}
    inputs = pack_inputs(program, samples)
    run_nodes(program, inputs, values.__setitem__)
    ranges = artifact.program.ranges
    polynomials = [node for node in program.nodes if node.op == "poly"]
    places = [(node.loc.layer, node.loc.short) for node in polynomials]
    if places != [(known.layer, known.location) for known in ranges]:
        raise _another_program()
    originals = {entry: values[node.inputs[0]][0] for entry, node in enumerate(polynomials)}
    return originals | {-1 - number: values[node][0] for number, node in enumerate(program.outputs)}


def _another_program() -> ProgramError:
    return ProgramError(
        "this program is not the one that the artifact was compiled from",
        hint="pass program= what trace or parse gave for this very artifact",
    )
