"""Bounds on the contents of an untrusted artifact, beyond the contract of its stage.

The verifier checks programs from our own passes. The checks here are for numbers that only an attacker or an accident
would write: sizes that exhaust memory, scales that no chain has, tables that do not fit the program.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import ParamSpec, TypeVar

from heliograph import records
from heliograph.ckks.chains import Chain
from heliograph.ckks.fourier import transform
from heliograph.ckks.ring import Ring
from heliograph.errors import HeliographError, ProgramError, WireError
from heliograph.ir import CipherType, Node, Program, TensorType
from heliograph.ir.analysis.carried import carried_outputs, fits
from heliograph.ir.analysis.depth import MOST_WHOLE
from heliograph.ir.bootstraps.asked import raising_chains
from heliograph.ir.encoding import Encoding
from heliograph.ir.interface import Interface, TensorSpec
from heliograph.ir.labels import read_labels
from heliograph.ir.maps import layout as layouts
from heliograph.ir.maps.layout import MOST_ELEMENTS, MOST_STACKED, Layout
from heliograph.ir.maps.placed import PlacedMatrix
from heliograph.ir.ops.slots.bootstraps import fourier_factor
from heliograph.ir.ops.slots.transforms import transform_diagonals
from heliograph.ir.ranges import RangeEntry
from heliograph.texts import shown

MAX_NODES = 1 << 18
# The most ciphertexts of one input or output, and the most inputs or outputs.
MAX_CIPHERTEXTS = MOST_STACKED
MAX_TENSORS = 1024
# The scale of a product comes from at most two fresh values and a plaintext; no planned scale comes near this.
MAX_LOG_SCALE = 240.0
# The most bits by which the scale of a raised value may be reread, and the ops of written-out bootstraps.
_MOST_REREAD = 120.0
_WRITTEN_OUT = ("fourier_factor", "raise_modulus", "refreshed", "reread")
MAX_CHAINS = 8
# Evaluation keys in total, for the whole chain and its lower parts.
_MAX_KEYS = 1 << 16
# The most positions of a program times keys that are read repeatedly: the cost of counting the reads of each.
_MAX_KEY_READS = 1 << 23
_T = TypeVar("_T")
_P = ParamSpec("_P")
_NOT_PLAIN = re.compile(r"[^\n\x20-\x7e]")


def refuse(what: str) -> WireError:
    """The error for a field out of bounds."""
    return WireError(f"the artifact is not usable: {what}", hint="make it again with `heliograph compile`")


def _refusing(read: Callable[_P, _T]) -> Callable[_P, _T]:
    """The function, raising a WireError instead of a ProgramError."""

    @functools.wraps(read)
    def checked(*given: _P.args, **named: _P.kwargs) -> _T:
        try:
            return read(*given, **named)
        except ProgramError as error:
            raise refuse(error.what) from None

    return checked


# For untrusted values.
record, check = _refusing(records.record), _refusing(records.check)
whole, real, printable = _refusing(records.whole), _refusing(records.real), _refusing(records.printable)
check_shape, check_layout = _refusing(layouts.check_shape), _refusing(layouts.check_layout)


def check_ring(ring: Ring, *, secure: bool = True) -> Ring:
    """The ring; a WireError if it is out of our bounds.

    `secure=False` leaves the check of its claimed security to the caller.
    """
    check(ring, "its ring")
    whole(ring.log_ring, "log_ring of its ring", 10, 17)
    if ring.bootstrap_babies & (ring.bootstrap_babies - 1) or (ring.bootstrap_babies and 1 in (ring.bootstrap or (1,))):
        raise refuse(f"bootstrap_babies is {ring.bootstrap_babies}, which its bootstraps cannot have")
    if ring.chain_levels is not None or ring.of_bootstrapping or not ring.legal:
        raise refuse("the ring has digits or primes that do not exist")
    if secure and not ring.secure:
        raise WireError(
            "the ring does not have the security that it claims",
            why=ring.weakness,
        )
    return ring


def check_texts(value: object, what: str) -> None:
    """Raise a WireError if a text in these JSON values has characters that control a terminal."""
    stack = [value]
    while stack:
        found = stack.pop()
        if isinstance(found, str):
            if not found.isprintable():
                raise refuse(f"{what} has a text with control characters: {shown(found, 60)}")
        elif isinstance(found, Mapping):
            stack += (*found.keys(), *found.values())
        elif isinstance(found, (list, tuple)):
            stack += found


def check_stage_text(text: str, stage: str) -> None:
    """The same check for the text of a stage, where all but plain characters are escaped."""
    if _NOT_PLAIN.search(text):
        raise refuse(f"the text of its {stage} stage has characters that no text of a program has")


def check_spec(spec: TensorSpec, ring: Ring, direction: str) -> Layout:
    """The layout of an input or output; a WireError if its name, shape, layout or range is out of bounds."""
    check(spec, f"an {direction}")
    what = f"{direction} {spec.name!r}"
    layout = check_layout(spec.layout, ring.slots, what)
    if math.prod(check_shape(spec.shape, what)) != layout.size:
        raise refuse(f"the layout of {what} does not have its shape")
    if direction == "output" and layout.shift:
        raise refuse(f"{what} has a layout of inputs")
    if spec.low is not None and spec.high is not None and spec.low > spec.high:
        raise refuse(f"the range of {what} is empty")
    if spec.classes is not None and (direction != "input" or not spec.shape or spec.classes != spec.shape[-1]):
        raise refuse(f"{what} has another number of classes than places")
    named = None if spec.columns is None else len(set(spec.columns))
    own = spec.shape[-1:] if spec.encoding is None else (spec.encoding.width,)
    if named is not None and (named,) != own:
        raise refuse(f"{what} has another number of columns than places")
    if (spec.labels is not None or spec.unit is not None) and direction != "output":
        raise refuse(f"{what} has the classes or the unit of an output")
    if spec.labels is not None and read_labels(spec) is None:
        raise refuse(f"the classes of {what} are not labels of type {spec.labels}")
    if spec.encoding is not None:
        _check_encoding(spec.encoding, spec, direction, what)
    if (spec.finish is None) != (spec.finish_axis is None) or (spec.finish is not None and direction != "output"):
        raise refuse(f"{what} is finished in a way that is not understood")
    if spec.finish_axis is not None and spec.finish_axis >= len(spec.shape):
        raise refuse(f"{what} is finished in a way that is not understood")
    if spec.scale is not None and (direction != "output" or math.frexp(spec.scale)[0] != 0.5):
        raise refuse(f"the scale of {what} is not a power of two of an output")
    return layout


def _check_encoding(encoding: Encoding, spec: TensorSpec, direction: str, what: str) -> None:
    """Raise a WireError unless a client can make the input from a row of a table."""
    if direction != "input" or not encoding.consistent or spec.shape != (encoding.elements,):
        raise refuse(f"{what} is made of a table in a way that is not understood")


def check_interface(interface: Interface, ring: Ring) -> None:
    """Raise a WireError if an input or output is out of bounds, or they hold different numbers of samples."""
    for direction, specs in (("input", interface.inputs), ("output", interface.outputs)):
        if not 0 < len(specs) <= MAX_TENSORS:
            raise refuse(f"the list of {direction}s is malformed")
        for spec in specs:
            if check_spec(spec, ring, direction).batch != interface.batch:
                raise refuse("its layouts hold another number of samples")
        if len({spec.name for spec in specs}) != len(specs):
            raise refuse(f"two {direction}s have one name")
    names = {spec.name for spec in interface.inputs}, {spec.name for spec in interface.outputs}
    for output, name in interface.carried:
        if output not in names[1] or name not in names[0]:
            raise refuse("it carries something that is not an output into something that is not an input")


def check_rotations(amounts: Sequence[int], ring: Ring) -> None:
    """Raise a WireError unless these are distinct amounts of rotation."""
    if len(amounts) >= ring.slots:
        raise refuse("the list of rotation keys is malformed")
    for amount in amounts:
        whole(amount, "a rotation key", 1, ring.slots - 1)
    if len(set(amounts)) != len(amounts):
        raise refuse("a rotation key appears twice")


def check_chains(chains: Sequence[Chain], *, secure: bool = True) -> None:
    """Raise a WireError if the keys of the whole chain or its lower parts are out of bounds.

    `secure=False` leaves the check of the lower parts' security to the caller.
    """
    if len(chains) > MAX_CHAINS + 1:
        raise refuse("the list of lower chains is malformed")
    ring = chains[0].ring
    check_rotations(chains[0].rotation_keys, ring)
    above = ring.levels
    for chain in chains[1:]:
        level = whole(chain.ring.levels, "the level of a lower chain", 1, above - 1)
        if chain.ring.bootstrap is not None and chain.ring.bootstrap_level <= chain.ring.bootstrap_input_level:
            raise refuse(f"the lower chain of level {level} bootstraps, and returns no higher than it begins")
        if not chain.ring.legal or (secure and not chain.ring.secure):
            raise refuse(f"the lower chain of level {level} has digits that do not exist, or too little security")
        check_rotations(chain.rotation_keys, ring)
        above = level
    if sum(len(chain.rotation_keys) for chain in chains) > _MAX_KEYS:
        raise refuse(f"it has more than {_MAX_KEYS} keys")


def check_raising(given: Sequence[int], chains: Sequence[Chain]) -> None:
    """Raise a WireError unless these are indices, in order, of chains that bootstraps can raise the modulus to."""
    for number in given:
        if chains[whole(number, "the number of a chain", 0, len(chains) - 1)].ring.bootstrap is None:
            raise refuse(f"modulus is raised in chain {number}, which does not bootstrap")
    if list(given) != sorted(set(given)):
        raise refuse("the list of raising_chains is not in order")


def check_sizes(program: Program, ring: Ring) -> None:
    """Raise a WireError if inferring a node's type would already take unbounded memory or time.

    For programs that are not verified yet: types and attributes may be anything that the text format allows.
    """
    if len(program.nodes) > MAX_NODES:
        raise refuse(f"it has more than {MAX_NODES} nodes")
    for node in program.nodes:
        if isinstance(node.type, TensorType):
            check_shape(node.type.shape, f"a plain {node.op}")
        else:
            whole(node.type.slots, f"the slots of a {node.op}", ring.slots, ring.slots)
        for value in node.attrs.values():
            for item in value if isinstance(value, tuple) else (value,):
                if type(item) is int and abs(item) > MOST_ELEMENTS:
                    raise refuse(f"an attribute of a {node.op} is {records.short(item)}")


def check_program(program: Program) -> Ring:
    """The ring of a verified executable program; a WireError if its records or numbers are out of bounds."""
    parameters = program.planned
    ring, chains = check_ring(parameters.ring), parameters.chains
    printable(program.name, "the program's name")
    check_interface(program.interface, ring)
    check_chains(chains)
    keys = sum(len(chain.rotation_keys) for chain in chains)
    if parameters.resident_key_bytes is not None and keys * len(program.nodes) > _MAX_KEY_READS:
        raise refuse("it reads too many keys too often to tell how often")
    for node in program.nodes:
        if node.op in _WRITTEN_OUT and isinstance(node.type, CipherType):
            _check_written_out(node, chains[node.type.chain].ring, ring)
    check_raising(raising_chains(program), chains)
    _check_paths(parameters.rotation_paths, ring)
    _check_inputs(program)
    _check_ranges(program, ring)
    for node in program.nodes:
        check_texts((node.loc.file, node.loc.layer, *node.attrs.values()), f"a {node.op}")
        _check_node(node, program, ring)
    carried = carried_outputs(program)
    for name, node in zip(program.output_names, program.outputs, strict=True):
        assert isinstance(node.type, CipherType)
        if name not in carried and (node.type.level != 0 or node.type.parts != 2):
            raise refuse("an output is not a ciphertext of two parts at level 0")
        for source in carried.get(name, ()):
            if not fits(node.type, source.type):
                raise refuse(f"what it carries into input {source.attrs['name']!r} is not a ciphertext of its form")
    count = sum(spec.placed.ciphertexts for spec in program.interface.outputs)
    if count != len(program.outputs):
        raise refuse(f"its outputs take {count} ciphertexts, the program has {len(program.outputs)}")
    return ring


def _check_written_out(node: Node, ring: Ring, whole_ring: Ring) -> None:
    """Check an op of written-out bootstraps; factors must belong to the ring, because they take gigabytes."""
    a = node.attrs
    if node.op == "reread":
        real(a["bits"], "the bits by which a scale is read", -_MOST_REREAD, _MOST_REREAD)
        return
    if whole_ring.bootstrap is None:
        raise refuse(f"a {node.op} stands in a chain that does not bootstrap")
    whole(a["slots"], f"the slots of a {node.op}", 1, ring.slots)
    if node.op == "refreshed":
        whole(a.get("observed", 0), "the sizes that were observed", 0, 2)
    elif node.op == "fourier_factor":
        if fourier_factor(a) not in transform(whole_ring, a["slots"], a["inverse"])[0]:
            raise refuse("a fourier_factor is not one of its ring")
    elif ring.bootstrap is None or a["level"] != ring.levels:
        raise refuse(f"modulus is raised to level {a['level']}, which is not the top of a chain that bootstraps")


def _check_paths(paths: Mapping[int, Sequence[int]], ring: Ring) -> None:
    if len(paths) > ring.slots:
        raise refuse("the rotation paths are malformed")
    for amount, path in paths.items():
        if not path or not 0 < amount < ring.slots or max(path) >= ring.slots:
            raise refuse("the rotation paths are malformed")


def _check_inputs(program: Program) -> None:
    """Check that the input nodes are the chunks of the named inputs, each once."""
    expected = {(spec.name, chunk) for spec in program.interface.inputs for chunk in range(spec.placed.ciphertexts)}
    found = [(node.attrs["name"], node.attrs.get("chunk")) for node in program.inputs if node.type.secret]
    if set(found) != expected or len(found) != len(expected):
        raise refuse("its input nodes are not those of its list of inputs")
    for node in program.inputs:
        if not isinstance(node.type, CipherType):
            printable(node.attrs["name"], "the name of a plain input")
            if "shape" not in node.attrs or not isinstance(node.type, TensorType):
                raise refuse("a plain input is not a tensor")
            continue
        if (node.attrs.get("level"), node.attrs.get("log_scale")) != (node.type.level, node.type.log_scale):
            raise refuse("an input has another level or scale than its node says")


def check_range(entry: RangeEntry, what: str) -> None:
    """Raise a WireError if an entry has a gap without its source, or units without the smallest one."""
    if entry.gap is not None and entry.gap_source is None:
        raise refuse(f"gap_source of {what} is lacking")
    if entry.units is not None and entry.smallest_unit is None:
        raise refuse(f"smallest_unit of {what} is lacking")


def _check_ranges(program: Program, ring: Ring) -> None:
    """Check the table of polynomials' intervals, and the layouts of their inputs."""
    for entry in program.ranges:
        check_texts(list(entry.to_json().values()), "the range of a polynomial")
        if entry.unit_sizes is not None:
            raise refuse("the range of a polynomial has sizes of units")
        check_range(entry, "the range of a polynomial")
    for node in program.nodes:
        entries = [entry for entry in node.attrs.get("ranges", ()) if entry != -1]
        if "range" in node.attrs:
            entries.append(node.attrs["range"])
        for value in entries:
            number = whole(value, "the range of a polynomial", 0, len(program.ranges) - 1)
            check_layout(program.ranges[number].layout, ring.slots, "a polynomial's input")


def _check_node(node: Node, program: Program, ring: Ring) -> None:
    kind, a, what = node.type, node.attrs, f"of a {node.op}"
    if not kind.secret:
        return  # artifact/plain_bounds.py bounds what numpy computes
    if not isinstance(kind, CipherType):
        raise refuse(f"the value {what} is not a ciphertext")
    whole(kind.slots, f"the slots {what}", ring.slots, ring.slots)
    whole(kind.level, f"the level {what}", 0, ring.levels)
    whole(kind.parts, f"the parts {what}", 2, 3)
    whole(kind.chain, f"the chain {what}", 0, len(program.planned.chains) - 1)
    real(kind.log_scale, f"the scale {what}", 1.0, MAX_LOG_SCALE)
    for key in ("plain_log_scale", "value", "constant", "low", "high"):
        if isinstance(a.get(key), (int, float)):
            bounds = (0.0, MAX_LOG_SCALE) if key == "plain_log_scale" else (-1e30, 1e30)
            real(a[key], f"{key} {what}", *bounds)
    for weight in a.get("weights", ()):
        real(weight, f"a weight {what}")
    for scale in a.get("plain_log_scales", ()):
        real(scale, f"a plaintext's scale {what}", 0.0, MAX_LOG_SCALE)
    if "factor" in a:
        whole(a["factor"], f"the factor {what}", -MOST_WHOLE, MOST_WHOLE)
        if a["factor"] == 0:
            raise refuse("a ciphertext is multiplied by zero")
    if "amount" in a:
        whole(a["amount"], f"the amount {what}", -ring.slots, ring.slots)
    if node.op == "linear_transform":
        for key in ("baby_steps", "giant_steps"):
            if len(a[key]) > ring.slots:
                raise refuse(f"{key} {what} are more than the slots")
            for step in a[key]:
                whole(step, f"a rotation {what}", -ring.slots, ring.slots)
        for name in a["matrices"]:
            program.linear_map(name)
    elif node.op in ("mul_plain", "add_plain") and not 0 < program.array(a["value"]).size <= ring.slots:
        raise refuse(f"the plaintext {what} does not fit the slots")


def check_transforms(program: Program, ring: Ring) -> None:
    """Raise a WireError unless every linear transform can be evaluated: its steps reach all diagonals of its matrix.

    This opens the matrices, so only the server does it, which opens them anyway.
    """
    for node in program.nodes:
        if node.op != "linear_transform":
            continue
        a = node.attrs
        matrices = [program.linear_map(name) for name in a["matrices"]]
        if any(each.operand.slots != ring.slots for each in matrices if isinstance(each, PlacedMatrix)):
            raise refuse(f"a matrix of a linear transform at {node.loc} is for another ring")
        try:
            good = True
            for diagonals in transform_diagonals(a, program.linear_map):
                reached = {(g + b) % diagonals.modulus for g in a["giant_steps"] for b in a["baby_steps"]}
                good &= reached.issuperset(offset % diagonals.modulus for offset in diagonals.offsets)
        except (HeliographError, IndexError, ValueError):
            good = False
        if not good:
            raise refuse(f"the steps of a linear transform at {node.loc} do not reach every diagonal")
