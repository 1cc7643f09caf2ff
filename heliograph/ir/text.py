"""The text form of a program: one node a line, the same on every run, and it parses back to an equal program.

    heliograph-ir 2
    program "mlp" managed
    input "x" {shape = [3], layout = {shape = [3], slots = 8192, period = 4}, low = 0.0, high = 1.0}
    output "y" {shape = [3], layout = {shape = [3], slots = 8192, period = 4}}
    chain {ring = {log_ring = 14, ...}, rotation_keys = [1, 2], relinearization_key = true}
    chain {level = 2, digits = 1, rotation_keys = [1], relinearization_key = false}
    path 3 {steps = [1, 2]}
    server {flood = 0.25}
    range 0 {layer = "1", location = "mlp.py:12", function = "relu", low = -1.5, high = 1.5, ...}
    const @fc1.weight = f32[512x784] "9f86d0..."
    const @fc1.bias = f64[3] "ab12cd..." [0.5, -1.0, 2.0]
    %0 = input() {name = "x", slots = 8192} : slots<8192> loc("mlp.py", 12, 5, "fc1")
    return "y" = %0

Small constants carry their values. For large ones the text has kind, shape and digest, and `parse_program` takes their
contents from its `constants` argument, checked against the digest, or leaves them opaque. Records leave out the fields
that have their default (`records.py`); the first chain is the whole one, the others are lower parts of it.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from heliograph.ckks.chains import Chain, LowerPart
from heliograph.ckks.parameters import Parameters
from heliograph.errors import ProgramError
from heliograph.ir.constants import Constants
from heliograph.ir.interface import Interface, TensorSpec
from heliograph.ir.location import UNKNOWN, Location
from heliograph.ir.node import (
    Attr,
    Constant,
    ConstantName,
    Matrix,
    Node,
    OpaqueConstant,
    Stage,
    freeze_attrs,
)
from heliograph.ir.ops.spec import RECORDS
from heliograph.ir.program import Program
from heliograph.ir.ranges import RangeEntry
from heliograph.ir.types import CipherType, SlotsType, TensorType, Type
from heliograph.records import bounds, plain, record

_MATRICES = ("sparse", "kronecker", "placed")
_INLINE = 8  # constants up to this many elements are written out
_KINDS = {np.dtype(np.float64): "f64", np.dtype(np.float32): "f32"}
_DTYPES = {"f64": np.float64, "f32": np.float32}


def _quote(text: str) -> str:
    return json.dumps(text)


def _attr(value: Any) -> str:
    if isinstance(value, ConstantName):
        return f"@{_quote(str(value))}"
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _quote(value)
    if isinstance(value, tuple):
        return "[" + ", ".join(_attr(item) for item in value) + "]"
    if dataclasses.is_dataclass(value):
        return _fields(plain(value))
    return repr(value)


def _fields(values: Mapping[str, Any]) -> str:
    return "{" + ", ".join(f"{name} = {_attr(value)}" for name, value in values.items()) + "}"


def _constant(name: str, constants: Constants) -> str:
    constant, digest = constants[name], constants.digest(name)
    dims = "x".join(map(str, constant.shape))
    if isinstance(constant, OpaqueConstant | Matrix):
        kind = constant.kind
    else:
        kind = _KINDS[constant.dtype]
        if constant.size <= _INLINE:
            values = ", ".join(repr(float(v)) for v in constant.ravel())
            return f"const @{_quote(name)} = {kind}[{dims}] {_quote(digest)} [{values}]"
    return f"const @{_quote(name)} = {kind}[{dims}] {_quote(digest)}"


def print_node(node: Node, names: Mapping[Node, str]) -> str:
    """One line: `%2 = add(%0, %1) {attrs} : type loc(...)`."""
    operands = ", ".join(names[operand] for operand in node.inputs)
    line = f"{names[node]} = {node.op}({operands})"
    if node.attrs:
        line += " " + _fields(node.attrs)
    line += f" : {node.type}"
    if node.loc != UNKNOWN:
        loc = node.loc
        line += f" loc({_quote(loc.file)}, {loc.line}, {loc.column}, {_quote(loc.layer)})"
    return line


def print_program(program: Program) -> str:
    """The whole text; deterministic."""
    names = program.names()
    lines = ["heliograph-ir 2", f"program {_quote(program.name)} {program.stage.value}"]
    lines += _records(program)
    known = program.constants
    constants = known if isinstance(known, Constants) else Constants(known)
    lines += [_constant(name, constants) for name in sorted(constants)]
    lines += [print_node(node, names) for node in program.nodes]
    outputs = zip(program.output_names, program.outputs, strict=True)
    lines.append("return " + ", ".join(f"{_quote(name)} = {names[node]}" for name, node in outputs))
    return "\n".join(lines) + "\n"


def _records(program: Program) -> Iterator[str]:
    """The lines of interface, parameters and ranges."""
    for word, specs in (("input", program.interface.inputs), ("output", program.interface.outputs)):
        for spec in specs:
            yield f"{word} {_quote(spec.name)} {_fields(_without(plain(spec), 'name'))}"
    for output, name in program.interface.carried:
        yield f"carry {_quote(output)} {_fields({'input': name})}"
    parameters = program.parameters
    if parameters is not None:
        for number, chain in enumerate(parameters.chains):
            yield f"chain {_attr(LowerPart.of(chain) if number else chain)}"
        for amount, steps in parameters.rotation_paths.items():
            yield f"path {amount} {_fields({'steps': steps})}"
        settings = {name: getattr(parameters, name) for name in _SERVER if getattr(parameters, name) is not None}
        if settings:
            yield f"server {_fields(settings)}"
    for number, entry in enumerate(program.ranges):
        yield f"range {number} {_fields(plain(entry))}"


def _without(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key != name}


_PLACE = re.compile(r' loc\("(?:[^"\\\n]|\\.)*", -?[0-9]+, -?[0-9]+, ("(?:[^"\\\n]|\\.)*")\)$', re.MULTILINE)
_RANGE_PLACE = re.compile(
    r'^(range [0-9]+ \{layer = "(?:[^"\\\n]|\\.)*", location = )"(?:[^"\\\n]|\\.)*"', re.MULTILINE
)


def without_places(text: str) -> str:
    """The text of a program without files, lines and columns; layers stay. It is independent of the source's place."""
    text = _PLACE.sub(lambda found: "" if found[1] == '""' else f" loc({found[1]})", text)
    return _RANGE_PLACE.sub(r'\1""', text)


_GRAMMAR = r"""
start: "heliograph-ir" INT "program" STRING NAME record* constant* node* "return" output ("," output)*
record: NAME (STRING | INT)? fields
constant: "const" "@" STRING "=" NAME "[" dims? "]" STRING values?
values: "[" [number ("," number)*] "]"
dims: DIMS | INT
node: VALUE "=" NAME "(" [VALUE ("," VALUE)*] ")" fields? ":" type loc?
fields: "{" [pair ("," pair)*] "}"
pair: NAME "=" attr
?attr: STRING -> string
     | "@" STRING -> name
     | number
     | "true" -> true
     | "false" -> false
     | "null" -> null
     | "[" [attr ("," attr)*] "]" -> tuple
     | fields
number: NUMBER | INT
type: "tensor" "<" (dims | "scalar") plain? ">" -> tensor
    | "slots" "<" INT plain? count? ">" -> slots
    | "cipher" "<" INT "," "level" INT "," "scale" number "," "parts" INT ("," "chain" INT)? count? ">" -> cipher
plain: "," "plain"
count: "," "count" INT
loc: "loc" "(" STRING "," INT "," INT "," STRING ")"
output: STRING "=" VALUE

VALUE: /%[0-9]+/
NAME: /[a-z_][a-z0-9_]*/
DIMS.2: /[0-9]+(x[0-9]+)+/
INT: /-?[0-9]+/
NUMBER.1: /-?([0-9]+\.[0-9]*([eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+|inf|nan)/
STRING: /"([^"\\\n]|\\.)*"/
%ignore /[ \t\r\n]+/
"""

_MAX_TEXT = 256 * 1024 * 1024


@functools.cache
def _parser() -> Any:
    import lark

    return lark.Lark(_GRAMMAR, parser="lalr", maybe_placeholders=False)


def _string(token: Any) -> str:
    try:
        return str(json.loads(token))
    except ValueError:
        raise ProgramError(f"line {token.line}: malformed string {str(token)[:40]}") from None


def _integer(token: Any, text: str = "") -> int:
    text = text or str(token)
    if len(text) > 40:
        raise ProgramError(f"line {token.line}: a whole number of {len(text)} digits is too large")
    return int(text)


def _number(token: Any) -> int | float:
    return _integer(token) if token.type == "INT" else float(token)


def _value(tree: Any) -> Any:
    """The Python value of an attr; fields become a dictionary."""
    kind = tree.data
    if kind == "string":
        return _string(tree.children[0])
    if kind == "name":
        return ConstantName(_string(tree.children[0]))
    if kind == "number":
        return _number(tree.children[0])
    if kind in ("true", "false"):
        return kind == "true"
    if kind == "null":
        return None
    if kind == "tuple":
        return tuple(_value(child) for child in tree.children)
    return _pairs(tree)


def _pairs(tree: Any) -> dict[str, Any]:
    """The names and values of fields, each name once."""
    made: dict[str, Any] = {}
    for pair in tree.children:
        name = str(pair.children[0])
        if name in made:
            raise ProgramError(f"line {pair.children[0].line}: {name} appears twice")
        made[name] = _value(pair.children[1])
    return made


def _dims(tree: Any) -> tuple[int, ...]:
    token = tree.children[0]
    return tuple(_integer(token, part) for part in str(token).split("x"))


def _type(tree: Any) -> Type:
    children = list(tree.children)
    count = 1
    if children and getattr(children[-1], "data", "") == "count":
        count = _integer(children.pop().children[0])
    secret = not (children and getattr(children[-1], "data", "") == "plain")
    if not secret:
        children.pop()
    if tree.data == "tensor":
        return TensorType(_dims(children[0]) if children else (), secret)
    if tree.data == "slots":
        return SlotsType(_integer(children[0]), secret, count)
    slots, level, scale, parts, *chain = children
    numbers = _integer(slots), _integer(level), float(_number(scale.children[0])), _integer(parts)
    return CipherType(*numbers, _integer(chain[0]) if chain else 0, count)


@dataclass(frozen=True, slots=True)
class _Path:
    steps: tuple[int, ...] = dataclasses.field(metadata=bounds(1, most=64))


@dataclass(frozen=True, slots=True)
class _Carry:
    input: str


@dataclass(frozen=True, slots=True)
class _Server:
    """The fields of `Parameters` that are neither chains nor paths."""

    flood: float | None = dataclasses.field(default=None, metadata=bounds(0.0))
    resident_key_bytes: int | None = dataclasses.field(default=None, metadata=bounds(1, 1 << 50))


_SERVER = tuple(field.name for field in dataclasses.fields(_Server))


class Records:
    """Reads the lines of a program's interface, parameters and ranges, one by one."""

    def __init__(self) -> None:
        self.specs: dict[str, list[TensorSpec]] = {"input": [], "output": []}
        self.carried: list[tuple[str, str]] = []
        self.chains: list[Chain] = []
        self.paths: dict[int, tuple[int, ...]] = {}
        self.server: _Server | None = None
        self.ranges: list[RangeEntry] = []

    def read(self, tree: Any) -> None:
        """Read one line; a ProgramError if it is of no known kind."""
        word, *label, fields = tree.children
        values, what = _pairs(fields), f"line {word.line}: a record {word}"
        if word in self.specs:
            (name,) = self._labels(label, "STRING", what)
            self.specs[word].append(record(TensorSpec, {**values, "name": _string(name)}, what))
        elif word == "carry":
            (name,) = self._labels(label, "STRING", what)
            self.carried.append((_string(name), record(_Carry, values, what).input))
        elif word == "chain" and not self.chains:
            self.chains.append(record(Chain, values, what))
        elif word == "chain":
            self.chains.append(record(LowerPart, values, what).under(self.chains[0].ring))
        elif word == "path":
            (amount,) = self._labels(label, "INT", what)
            self.paths[_integer(amount)] = record(_Path, values, what).steps
        elif word == "server" and self.server is None:
            self.server = record(_Server, values, what)
        elif word == "range":
            (number,) = self._labels(label, "INT", what)
            if _integer(number) != len(self.ranges):
                raise ProgramError(f"{what}: its number is {number}, not {len(self.ranges)}")
            self.ranges.append(record(RangeEntry, values, what))
        else:
            raise ProgramError(f"{what} is not known here")

    @staticmethod
    def _labels(found: list[Any], kind: str, what: str) -> list[Any]:
        if len(found) != 1 or found[0].type != kind:
            raise ProgramError(f"{what} lacks its {'name' if kind == 'STRING' else 'number'}")
        return found

    def made(self) -> dict[str, Any]:
        """The records as arguments of `Program`."""
        if not self.chains and (self.paths or self.server):
            raise ProgramError("the text has rotation paths or settings of the server, and no chain")
        parameters = None
        if self.chains:
            server = self.server or _Server()
            parameters = Parameters(tuple(self.chains), self.paths, **{name: getattr(server, name) for name in _SERVER})
        interface = Interface(tuple(self.specs["input"]), tuple(self.specs["output"]), tuple(self.carried))
        return {"interface": interface, "parameters": parameters, "ranges": tuple(self.ranges)}


def _read_constant(tree: Any, given: Mapping[str, Constant] | None, table: Constants) -> None:
    """Add the constant of one line to the table."""
    children = list(tree.children)
    name, kind = _string(children.pop(0)), str(children.pop(0))
    shape: tuple[int, ...] = ()
    if getattr(children[0], "data", "") == "dims":
        shape = _dims(children.pop(0))
    digest = _string(children.pop(0))
    if kind not in _MATRICES and kind not in _DTYPES:
        raise ProgramError(f"constant @{name}: unknown kind {kind}")
    if name in table:
        raise ProgramError(f"constant @{name} is defined twice")
    if children:
        numbers = [float(_number(number.children[0])) for number in children[0].children]
        if kind in _MATRICES or len(numbers) != math.prod(shape):
            raise ProgramError(f"constant @{name}: {len(numbers)} values do not fill shape {shape}")
        with np.errstate(over="ignore"):
            table.put(name, np.array(numbers, dtype=_DTYPES[kind]).reshape(shape))
    elif given is not None and name in given:
        table.put(name, given[name])
    else:
        table.put(name, OpaqueConstant(kind, shape, digest))
    if table.digest(name) != digest:
        raise ProgramError(f"constant @{name} does not have the digest that the text gives", hint="one was changed")


def parse_program(text: str, constants: Mapping[str, Constant] | None = None) -> Program:
    """The program of this text; a ProgramError with the line number if it is malformed.

    Types are taken as written; `verify` checks them. `constants` holds the contents of constants that are not inline.
    """
    import lark

    if len(text) > _MAX_TEXT:
        raise ProgramError(f"the text has {len(text)} characters; at most {_MAX_TEXT} are read")
    try:
        tree = _parser().parse(text)
    except lark.exceptions.UnexpectedInput as error:
        line, column = getattr(error, "line", 0), getattr(error, "column", 0)
        raise ProgramError(
            f"line {line}, column {column}: this is not the text of a program",
            why=error.get_context(text, 30).strip()[:200] if line and line > 0 else "the text ends too early",
        ) from None
    try:
        return _build(tree, constants)
    except RecursionError:
        raise ProgramError("the text nests too deeply") from None


def _build(tree: Any, given: Mapping[str, Constant] | None) -> Program:
    children = list(tree.children)
    version, name, stage = children.pop(0), _string(children.pop(0)), str(children.pop(0))
    if str(version) != "2":
        raise ProgramError(f"the text is of version {version}; this reader knows version 2")
    if stage not in {s.value for s in Stage}:
        raise ProgramError(f"unknown stage {stage}")
    records = Records()
    table = Constants()
    nodes: dict[str, Node] = {}
    outputs: list[Node] = []
    output_names: list[str] = []

    def lookup(token: Any) -> Node:
        if str(token) not in nodes:
            raise ProgramError(f"line {token.line}: {token} is used before it is defined")
        return nodes[str(token)]

    for child in children:
        if child.data == "record":
            records.read(child)
        elif child.data == "constant":
            _read_constant(child, given, table)
        elif child.data == "output":
            output_names.append(_string(child.children[0]))
            outputs.append(lookup(child.children[1]))
        else:
            _read_node(child, nodes, lookup)
    order = tuple(nodes.values())
    inputs = tuple(node for node in order if node.op == "input")
    return Program(name, Stage(stage), inputs, order, tuple(outputs), tuple(output_names), table, **records.made())


def _read_node(tree: Any, nodes: dict[str, Node], lookup: Any) -> None:
    import lark

    target, op, *rest = tree.children
    operands: list[Node] = []
    attrs: dict[str, Attr] = {}
    loc, kind = UNKNOWN, None
    for part in rest:
        if isinstance(part, lark.Token):
            operands.append(lookup(part))
        elif part.data == "fields":
            attrs = _pairs(part)
            for name in RECORDS.keys() & attrs.keys():
                attrs[name] = record(RECORDS[name], attrs[name], f"the {name} of the {op} in line {target.line}")
        elif part.data == "loc":
            file, line, column, layer = part.children
            loc = Location(_string(file), _integer(line), _integer(column), _string(layer))
        else:
            kind = _type(part)
    assert kind is not None
    if str(target) in nodes:
        raise ProgramError(f"line {target.line}: {target} is defined twice")
    nodes[str(target)] = Node(str(op), tuple(operands), freeze_attrs(attrs), kind, loc)


def programs_equal(left: Program, right: Program) -> bool:
    """Whether two programs are the same node for node, constants and records included."""
    return print_program(left) == print_program(right)


__all__ = ["parse_program", "print_node", "print_program", "programs_equal", "without_places"]
