"""Bounds on what a stranger's artifact may say, beyond the contract of its stage.

The verifier checks programs that our own passes made; this checks numbers that only an attacker or an accident would
write: sizes that would exhaust memory, scales that no chain has, tables that do not fit the program.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from heliograph.ckks.chains import chain_at, key_chains
from heliograph.ckks.ring import Ring
from heliograph.errors import HeliographError, WireError
from heliograph.ir import CipherType, Node, Program, TensorType
from heliograph.ir.layout import Layout
from heliograph.ir.slot_ops import transform_diagonals
from heliograph.texts import shown

MAX_NODES = 1 << 18
# Elements of one input or output, ciphertexts that hold them, and characters of a name.
MAX_ELEMENTS = 1 << 22
MAX_CIPHERTEXTS = 256
_MAX_NAME = 200
_MAX_TENSORS = 1024
# A product has at most the scales of two fresh values and a plaintext; nothing planned comes near.
_MAX_LOG_SCALE = 240.0
_MAX_SHIFTED_PAIRS = 1 << 26
# Entries of a matrix times the moved copies of its result.
_MAX_COPIED_ENTRIES = 1 << 28
_MAX_CHAINS = 8
# Evaluation keys in all, of the whole chain and its lower parts.
_MAX_KEYS = 1 << 16
# Positions of a program times keys that are read again and again: what finding out how often takes.
_MAX_KEY_READS = 1 << 23
_NOT_PLAIN = re.compile(r"[^\n\x20-\x7e]")
_CHAIN_FIELDS = {"level", "digits", "rotation_keys", "relinearization_key"}


def refuse(what: str) -> WireError:
    """The error for a field out of bounds."""
    return WireError(f"the artifact is not usable: {what}", hint="make it again with `heliograph compile`")


def whole(value: object, what: str, low: int, high: int) -> int:
    """The value as a whole number between the bounds, both included."""
    if type(value) is not int or not low <= value <= high:
        raise refuse(f"{what} is {_short(value)}, not a whole number from {low} to {high}")
    return value


def real(value: object, what: str, low: float = -1e30, high: float = 1e30) -> float:
    """The value as a finite number between the bounds."""
    if type(value) not in (int, float) or not low <= value <= high:  # type: ignore[operator]
        raise refuse(f"{what} is {_short(value)}, not a number from {low:g} to {high:g}")
    return float(value)  # type: ignore[arg-type]


def printable(value: object, what: str) -> str:
    """The value as a short text."""
    if not isinstance(value, str) or not 0 < len(value) <= _MAX_NAME or not value.isprintable():
        raise refuse(f"{what} is {_short(value)}, not a name")
    return value


def _short(value: object) -> str:
    return repr(value)[:60] if isinstance(value, (int, float, str, bool)) else type(value).__name__


def check_ring(value: object, *, secure: bool = True) -> Ring:
    """A ring from JSON; a WireError where it is none that we would make.

    `secure=False` leaves the security that it claims to the caller.
    """
    if not isinstance(value, Mapping):
        raise refuse("the ring is missing")
    security = value.get("security_bits")
    if security is not None and security != 128:
        raise refuse(f"security_bits is {_short(security)}, not 128 or null")
    ring = Ring(
        log_ring=whole(value.get("log_ring"), "log_ring", 10, 17),
        first_mod_bits=whole(value.get("first_mod_bits"), "first_mod_bits", 15, 60),
        scale_bits=whole(value.get("scale_bits"), "scale_bits", 15, 60),
        levels=whole(value.get("levels"), "levels", 1, 100),
        digits=whole(value.get("digits"), "digits", 1, 101),
        security_bits=None if security is None else 128,
        bootstrap=_check_budget(value.get("bootstrap")),
        bootstrap_iterations=whole(value.get("bootstrap_iterations", 1), "bootstrap_iterations", 1, 2),
    )
    if ring.bootstrap is None and ring.bootstrap_iterations > 1:
        raise refuse("the ring repeats bootstraps and has none")
    if set(value) != set(ring.to_json()) or not ring.legal:
        raise refuse("the ring has digits or primes that do not exist")
    if secure and not ring.secure:
        raise WireError(
            "the ring does not have the security that it claims",
            why=f"log2(PQ) is {ring.log_pq:.1f} at ring dimension {ring.ring_dim}",
        )
    return ring


def _check_budget(value: object) -> tuple[int, int] | None:
    """The levels of a bootstrap's two linear transforms."""
    if value is None:
        return None
    if not isinstance(value, Sequence) or len(value) != 2:
        raise refuse("the level budget of bootstrapping is malformed")
    return whole(value[0], "a level budget", 1, 8), whole(value[1], "a level budget", 1, 8)


def check_texts(value: object, what: str) -> None:
    """Raise a WireError where any text in these JSON values could do more to a terminal than be read."""
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
    """The same of the text of a stage, in which everything but plain characters is escaped."""
    if _NOT_PLAIN.search(text):
        raise refuse(f"the text of its {stage} stage has characters that no text of a program has")


def check_layout(value: object, slots: int, what: str) -> Layout:
    """A layout from JSON that fits the slots and costs little to compute with."""
    if not isinstance(value, Mapping) or set(value) - {"stride"} != {
        "shape",
        "slots",
        "period",
        "shift",
        "gap",
        "width",
        "block",
        "run",
    }:
        raise refuse(f"the layout of {what} is malformed")
    shape = check_shape(value["shape"], what)
    whole(value["slots"], f"the slots of {what}", slots, slots)
    layout = Layout(
        shape,
        slots,
        period=whole(value["period"], f"the period of {what}", 1, slots),
        shift=whole(value["shift"], f"the shift of {what}", 0, slots - 1),
        gap=whole(value["gap"], f"the gap of {what}", 1, slots),
        width=whole(value["width"], f"the row width of {what}", 0, MAX_ELEMENTS),
        block=whole(value["block"], f"the block of {what}", 0, MAX_ELEMENTS),
        run=whole(value["run"], f"the run of {what}", 0, slots),
        stride=whole(value.get("stride", 1), f"the stride of {what}", 1, slots),
    )
    if slots % layout.stride or slots // layout.stride % layout.period:
        raise refuse(f"the period of {what} does not divide the slots")
    channels, rows, columns = layout.channels_rows_columns
    width = layout.width or columns * layout.gap
    block = layout.block or rows * layout.gap * width
    groups = -(-channels // layout.gap**2)
    last = (groups - 1) * block + layout.gap * rows * width + layout.gap * columns
    if last > MAX_CIPHERTEXTS * slots or layout.ciphertexts > MAX_CIPHERTEXTS:
        raise refuse(f"{what} would take more than {MAX_CIPHERTEXTS} ciphertexts")
    return layout


def check_shape(value: object, what: str) -> tuple[int, ...]:
    """A shape from JSON, of bounded size."""
    if not isinstance(value, Sequence) or isinstance(value, str) or len(value) > 8:
        raise refuse(f"the shape of {what} is malformed")
    shape = tuple(whole(n, f"a dimension of {what}", 1, MAX_ELEMENTS) for n in value)
    if math.prod(shape) > MAX_ELEMENTS:
        raise refuse(f"{what} has more than {MAX_ELEMENTS} elements")
    return shape


def check_interface(specs: object, ring: Ring, direction: str) -> None:
    """The list of inputs or outputs: names, shapes, layouts, ranges, and with `levels` and `log_scales` theirs too."""
    if not isinstance(specs, Sequence) or isinstance(specs, str) or not 0 < len(specs) <= _MAX_TENSORS:
        raise refuse(f"the list of {direction}s is malformed")
    names = set()
    for spec in specs:
        if not isinstance(spec, Mapping):
            raise refuse(f"an {direction} is malformed")
        what = f"{direction} {printable(spec.get('name'), f'the name of an {direction}')!r}"
        names.add(spec["name"])
        layout = check_layout(spec.get("layout"), ring.slots, what)
        if math.prod(check_shape(spec.get("shape"), what)) != layout.size:
            raise refuse(f"the layout of {what} does not have its shape")
        if direction == "output" and layout.shift:
            raise refuse(f"{what} has a shifted layout")
        bounds = [real(spec[key], f"the range of {what}") for key in ("low", "high") if spec.get(key) is not None]
        if len(bounds) == 2 and bounds[0] > bounds[1]:
            raise refuse(f"the range of {what} is empty")
        if spec.get("range_source") not in (None, "proved", "observed"):
            raise refuse(f"the range of {what} has an unknown source")
        for key, highest in (("levels", ring.levels), ("log_scales", None)):
            values = spec.get(key)
            if values is None:
                continue
            if not isinstance(values, Sequence) or len(values) != layout.ciphertexts:
                raise refuse(f"the {key} of {what} do not fit its ciphertexts")
            for value in values:
                if highest is None:
                    real(value, f"a scale of {what}", 1.0, _MAX_LOG_SCALE)
                else:
                    whole(value, f"a level of {what}", 0, highest)
    if len(names) != len(specs):
        raise refuse(f"two {direction}s have one name")


def check_rotations(value: object, ring: Ring) -> tuple[int, ...]:
    """The amounts that have keys."""
    if not isinstance(value, Sequence) or isinstance(value, str) or len(value) >= ring.slots:
        raise refuse("the list of rotation keys is malformed")
    amounts = tuple(whole(amount, "a rotation key", 1, ring.slots - 1) for amount in value)
    if len(set(amounts)) != len(amounts):
        raise refuse("a rotation key stands twice")
    return amounts


def check_keys(fields: Mapping[str, Any], ring: Ring, *, secure: bool = True) -> None:
    """The keys of the whole chain, of its lower parts, and of bootstraps, from metadata or a public artifact.

    `secure=False` leaves the security of the lower parts to the caller.
    """
    check_rotations(fields.get("rotation_keys"), ring)
    if type(fields.get("relinearization_key")) is not bool:
        raise refuse("relinearization_key is malformed")
    chains = fields.get("chains", ())
    if not isinstance(chains, Sequence) or isinstance(chains, str) or len(chains) > _MAX_CHAINS:
        raise refuse("the list of lower chains is malformed")
    above = ring.levels
    for chain in chains:
        if not isinstance(chain, Mapping) or set(chain) != _CHAIN_FIELDS:
            raise refuse("a lower chain is malformed")
        level = whole(chain["level"], "the level of a lower chain", 1, above - 1)
        lower = ring.lower(level, whole(chain["digits"], "the digits of a lower chain", 1, level + 1))
        if not lower.legal or (secure and not lower.secure):
            raise refuse(f"the lower chain of level {level} has digits that do not exist, or too little security")
        check_rotations(chain["rotation_keys"], ring)
        if type(chain["relinearization_key"]) is not bool:
            raise refuse("the relinearization_key of a lower chain is malformed")
        above = level
    if len(fields["rotation_keys"]) + sum(len(chain["rotation_keys"]) for chain in chains) > _MAX_KEYS:
        raise refuse(f"it has more than {_MAX_KEYS} keys")
    slot_counts = fields.get("bootstrap_slots", ())
    if not isinstance(slot_counts, Sequence) or isinstance(slot_counts, str) or len(slot_counts) > ring.log_ring:
        raise refuse("the list of bootstrap_slots is malformed")
    if slot_counts and ring.bootstrap is None:
        raise refuse("it bootstraps on a ring that does not")
    for slots in slot_counts:
        if ring.slots % whole(slots, "the slots of a bootstrap", 1, ring.slots):
            raise refuse(f"a bootstrap has {slots} slots, which does not divide {ring.slots}")
    if list(slot_counts) != sorted(set(slot_counts)):
        raise refuse("the list of bootstrap_slots is not in order")
    paired = fields.get("paired_slots", ())
    if not isinstance(paired, Sequence) or isinstance(paired, str) or len(paired) > len(slot_counts):
        raise refuse("the list of paired_slots is malformed")
    counts = [whole(slots, "the slots of a pair of bootstraps", 1, ring.slots) for slots in paired]
    if counts != [slots for slots in slot_counts if slots in counts]:
        raise refuse("the list of paired_slots is no part of that of bootstrap_slots")


def check_sizes(program: Program, ring: Ring) -> None:
    """Raise a WireError where working out a node's type would already take room or time without bound.

    For programs that are not verified yet: types and attributes may be anything that the text format knows.
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
                if type(item) is int and abs(item) > MAX_ELEMENTS:
                    raise refuse(f"an attribute of a {node.op} is {_short(item)}")
        if node.op == "linear_transform" and node.attrs.get("in_shift"):
            # A shifted layout is worked out in a table of all pairs of places.
            periods = [whole(node.attrs.get(key), key, 1, ring.slots) for key in ("in_period", "out_period")]
            if math.prod(periods) > _MAX_SHIFTED_PAIRS:
                raise refuse("the shifted layout of a linear_transform is too large")


def check_program(program: Program) -> Ring:
    """The ring of a verified executable program; a WireError where its metadata or numbers are out of bounds."""
    metadata = program.metadata
    ring = check_ring(metadata.get("ring"))
    printable(program.name, "the program's name")
    primes = metadata.get("log_primes")
    if not isinstance(primes, Sequence) or len(primes) != len(ring.log_primes):
        raise refuse("its primes are not those of its ring")
    if any(abs(real(a, "a prime") - b) > 1e-9 for a, b in zip(primes, ring.log_primes, strict=True)):
        raise refuse("its primes are not those of its ring")
    check_interface(metadata.get("inputs"), ring, "input")
    check_interface(metadata.get("outputs"), ring, "output")
    batch = whole(metadata.get("batch", 1), "the number of samples at once", 1, ring.slots)
    if any(spec["layout"].get("stride", 1) != batch for key in ("inputs", "outputs") for spec in metadata[key]):
        raise refuse("its layouts hold another number of samples")
    check_keys(metadata, ring)
    if metadata.get("resident_key_bytes") is not None:
        whole(metadata["resident_key_bytes"], "resident_key_bytes", 1, 1 << 50)
    chains = key_chains(metadata)
    if metadata.get("resident_key_bytes") is not None:
        keys = sum(len(chain.rotation_keys) for chain in chains)
        if keys * len(program.nodes) > _MAX_KEY_READS:
            raise refuse("it reads too many keys too often to tell how often")
    for node in program.nodes:
        if not isinstance(node.type, CipherType):
            continue
        if node.op == "relinearize" and not chain_at(chains, node.type.level).relinearization_key:
            raise refuse("it relinearizes and has no key for it")
        if node.op == "bootstrap":
            _check_bootstrap(node, metadata, ring)
    if metadata.get("flood") is not None:
        real(metadata["flood"], "the flooding noise", 0.0, 1e30)
    _check_paths(metadata.get("rotation_paths"), ring)
    _check_last_uses(metadata.get("last_uses"), program)
    _check_inputs(program, metadata)
    _check_ranges(program, metadata, ring)
    for node in program.nodes:
        check_texts((node.loc.file, node.loc.layer, *node.attrs.values()), f"a {node.op}")
        _check_node(node, program, ring)
    for node in program.outputs:
        assert isinstance(node.type, CipherType)
        if node.type.level != 0 or node.type.parts != 2:
            raise refuse("an output is not a ciphertext of two parts at level 0")
    count = sum(Layout.from_json(spec["layout"]).ciphertexts for spec in metadata["outputs"])
    if count != len(program.outputs):
        raise refuse(f"its outputs take {count} ciphertexts, the program has {len(program.outputs)}")
    return ring


def _check_bootstrap(node: Node, metadata: Mapping[str, Any], ring: Ring) -> None:
    if node.attrs["slots"] not in metadata.get("bootstrap_slots", ()):
        raise refuse("it bootstraps a number of slots that it does not declare")
    if len(node.inputs) == 2 and node.attrs["slots"] not in metadata.get("paired_slots", ()):
        raise refuse("it bootstraps two values at once, and does not declare that it keeps imaginary parts")
    operand, made = node.inputs[0].type, node.type
    assert isinstance(operand, CipherType)
    assert isinstance(made, CipherType)
    whole(operand.level, "the level of a bootstrap's operand", ring.bootstrap_input_level, ring.bootstrap_input_level)
    whole(made.level, "the level that a bootstrap returns to", 0, ring.bootstrap_level)


def _check_paths(value: object, ring: Ring) -> None:
    if not isinstance(value, Mapping) or len(value) > ring.slots:
        raise refuse("the rotation paths are malformed")
    for amount, path in value.items():
        if not amount.isdecimal() or len(amount) > 6 or not isinstance(path, Sequence) or not 0 < len(path) <= 64:
            raise refuse("the rotation paths are malformed")
        for step in path:
            whole(step, "a step of a rotation path", 1, ring.slots - 1)


def _check_last_uses(value: object, program: Program) -> None:
    """Each value is freed once, not before its last reader, and never an output."""
    if not isinstance(value, Sequence) or len(value) != len(program.nodes):
        raise refuse("the table of last uses does not fit the program")
    index = {node: i for i, node in enumerate(program.nodes)}
    last = dict.fromkeys(range(len(program.nodes)), -1)
    for i, node in enumerate(program.nodes):
        for operand in node.inputs:
            last[index[operand]] = i
    for output in program.outputs:
        last[index[output]] = len(program.nodes)
    for i, freed in enumerate(value):
        if not isinstance(freed, Sequence) or isinstance(freed, str):
            raise refuse("the table of last uses is malformed")
        for number in freed:
            if last[whole(number, "a last use", 0, len(program.nodes) - 1)] > i:
                raise refuse(f"the table of last uses frees %{number} before its last use")


def _check_inputs(program: Program, metadata: Mapping[str, Any]) -> None:
    """The input nodes are the chunks of the named inputs, each once."""
    expected = {
        (spec["name"], chunk)
        for spec in metadata["inputs"]
        for chunk in range(Layout.from_json(spec["layout"]).ciphertexts)
    }
    found = [(node.attrs["name"], node.attrs.get("chunk")) for node in program.inputs if node.type.secret]
    if set(found) != expected or len(found) != len(expected):
        raise refuse("its input nodes are not those of its list of inputs")
    for node in program.inputs:
        if not isinstance(node.type, CipherType):
            printable(node.attrs["name"], "the name of a plain input")
            if "shape" not in node.attrs or not isinstance(node.type, TensorType):
                raise refuse("a plain input is no tensor")
            continue
        if (node.attrs.get("level"), node.attrs.get("log_scale")) != (node.type.level, node.type.log_scale):
            raise refuse("an input has another level or scale than its node says")


def _check_ranges(program: Program, metadata: Mapping[str, Any], ring: Ring) -> None:
    """The table of polynomials' intervals, and the layouts of their inputs."""
    ranges, layouts = metadata.get("ranges", []), metadata.get("range_layouts", {})
    if not isinstance(ranges, Sequence) or isinstance(ranges, str) or not isinstance(layouts, Mapping):
        raise refuse("the ranges of its polynomials are malformed")
    for entry in ranges:
        if not isinstance(entry, Mapping):
            raise refuse("the range of a polynomial is malformed")
        for key in ("layer", "location", "function", "source"):
            if not isinstance(entry.get(key), str) or len(entry[key]) > 4096:
                raise refuse(f"the {key} of a polynomial's range is malformed")
        for key in ("low", "high"):
            real(entry.get(key), f"the {key} end of a polynomial's range")
    for node in program.nodes:
        entries = [entry for entry in node.attrs.get("ranges", ()) if entry != -1]
        if "range" in node.attrs:
            entries.append(node.attrs["range"])
        for value in entries:
            entry = whole(value, "the range of a polynomial", 0, len(ranges) - 1)
            check_layout(layouts.get(str(entry)), ring.slots, "a polynomial's input")
    for name, possible in metadata.get("output_ranges", {}).items():
        if set(possible) != {"low", "high", "range_source"}:
            raise refuse(f"the range of output {_short(name)} is malformed")


def _check_node(node: Node, program: Program, ring: Ring) -> None:
    kind, a, what = node.type, node.attrs, f"of a {node.op}"
    if not kind.secret:
        return  # artifact/plain_bounds.py bounds what numpy computes
    if not isinstance(kind, CipherType):
        raise refuse(f"the value {what} is not a ciphertext")
    whole(kind.slots, f"the slots {what}", ring.slots, ring.slots)
    whole(kind.level, f"the level {what}", 0, ring.levels)
    whole(kind.parts, f"the parts {what}", 2, 3)
    real(kind.log_scale, f"the scale {what}", 1.0, _MAX_LOG_SCALE)
    for key in ("plain_log_scale", "value", "constant", "low", "high"):
        if isinstance(a.get(key), (int, float)):
            bounds = (0.0, _MAX_LOG_SCALE) if key == "plain_log_scale" else (-1e30, 1e30)
            real(a[key], f"{key} {what}", *bounds)
    for weight in a.get("weights", ()):
        real(weight, f"a weight {what}")
    for scale in a.get("plain_log_scales", ()):
        real(scale, f"a plaintext's scale {what}", 0.0, _MAX_LOG_SCALE)
    if "factor" in a:
        whole(a["factor"], f"the factor {what}", -(1 << 20), 1 << 20)
        if a["factor"] == 0:
            raise refuse("a ciphertext is multiplied by zero")
    if node.op == "linear_transform":
        for key in ("baby_steps", "giant_steps"):
            if len(a[key]) > ring.slots:
                raise refuse(f"{key} {what} are more than the slots")
            for step in a[key]:
                whole(step, f"a rotation {what}", -ring.slots, ring.slots)
        for name in a["matrices"]:
            program.matrix(name)
        for key in ("in_period", "out_period"):
            whole(a[key], f"{key} {what}", 1, ring.slots)
        whole(a["in_shift"], f"the shift {what}", 0, ring.slots)
        whole(a.get("stride", 1), f"the stride {what}", 1, ring.slots)
    elif node.op in ("mul_plain", "add_plain"):
        if not 0 < program.array(a["value"]).size <= ring.slots:
            raise refuse(f"the plaintext {what} does not fit the slots")
    elif node.op == "rotate":
        whole(a["amount"], f"the amount {what}", -ring.slots, ring.slots)


def check_transforms(program: Program, ring: Ring) -> None:
    """Raise a WireError unless every linear transform can be evaluated: its steps reach all diagonals of its matrix.

    This opens the matrices; the server does it, who opens them anyway.
    """
    for node in program.nodes:
        if node.op != "linear_transform":
            continue
        a = node.attrs
        entries = sum(program.matrix(name).data.size for name in a["matrices"])
        if entries * a.get("out_copies", 1) > _MAX_COPIED_ENTRIES:
            raise refuse(f"the copies of a linear transform at {node.loc} have too many entries")
        try:
            good = True
            for diagonals in transform_diagonals(a, program.matrix, ring.slots):
                reached = {(g + b) % diagonals.modulus for g in a["giant_steps"] for b in a["baby_steps"]}
                good &= reached.issuperset(offset % diagonals.modulus for offset in diagonals.offsets)
        except (HeliographError, IndexError, ValueError):
            good = False
        if not good:
            raise refuse(f"the steps of a linear transform at {node.loc} do not reach every diagonal")
