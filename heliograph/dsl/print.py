"""A tensor program as a text of the language, one statement for each node; `parse` gives an equal circuit back."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from heliograph.dsl.arithmetic import OPERATORS
from heliograph.dsl.format import format_text
from heliograph.dsl.tokens import MAX_WORD, RESERVED, STARTERS
from heliograph.errors import ProgramError, UnsupportedError
from heliograph.ir import ConstantName, Matrix, Node, Program, Stage, TensorType
from heliograph.ir.node import Array, Constant, constant_digest, live_nodes

# Constants with up to this many elements are written out, as long as their total stays below the second number.
_INLINE = 1024
_INLINE_TOTAL = 20_000

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z0-9_]+)*")
_OPERATORS = {op: operator for operator, op in OPERATORS.items()}
# Ops that accept a number in place of an operand.
_TAKES_NUMBERS = {*_OPERATORS, "maximum", "minimum", "where"} - {"matmul"}


def to_language(program: Program) -> str:
    """The text of a tensor program. Raises UnsupportedError if it has an op or constant that the language lacks.

    Small constants are written out. Larger ones are `given("name")`, and `parse(text, parameters=...)` takes them from
    the program's `constants`; `write_language` writes them to a file instead. Names of layers become names of
    variables; locations in the original source, and records, are not kept.
    """
    return _Printer(program, None).text()


def write_language(program: Program, folder: str | Path) -> Path:
    """Write `NAME.hg`, and `NAME.npz` for its larger constants, into the folder; returns the path of the former."""
    folder = Path(folder)
    stem = re.sub(r"[^A-Za-z0-9_-]+", "_", program.name)[:80] or "program"
    printer = _Printer(program, f"{stem}.npz")
    text = printer.text()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if printer.stored:
            arrays: dict[str, Any] = dict(printer.stored)
            np.savez(folder / f"{stem}.npz", **arrays)
        path = folder / f"{stem}.hg"
        path.write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        raise ProgramError("the program cannot be written", where=folder, why=error.strerror or "") from None
    return path


def _number(value: float) -> str:
    return repr(float(value))


def _nested(values: Any) -> str:
    if isinstance(values, list):
        return "[" + ", ".join(_nested(item) for item in values) + "]"
    return _number(values)


def _array_text(array: Array) -> str:
    text = _nested(array.tolist())
    return f"float32({text})" if array.dtype == np.float32 else text


@dataclass(slots=True)
class _Names:
    """Gives each value an unused name of the language."""

    taken: set[str]

    def take(self, wanted: str, fallback: str) -> str:
        name = re.sub(r"[^A-Za-z0-9_.]+", "_", wanted).strip(".")
        name = re.sub(r"\.\.+", ".", name)
        if name and not re.match(r"[A-Za-z_]", name):
            name = f"{fallback}_{name}"
        if not _IDENTIFIER.fullmatch(name) or name in RESERVED or len(name) > MAX_WORD - 20:
            name = fallback
        if name in STARTERS:
            # Allowed by the grammar, but hard to read.
            name = f"{name}_"
        unique, count = name, 1
        while unique in self.taken:
            count += 1
            unique = f"{name}_{count}"
        self.taken.add(unique)
        return unique


class _Printer:
    def __init__(self, program: Program, store: str | None) -> None:
        if program.stage is not Stage.TENSOR:
            raise UnsupportedError(
                f"a program of stage {program.stage.value} cannot be written in the language",
                where=program.name,
                hint="print(program) writes any stage as text of the intermediate representation",
            )
        self.program = program
        self.store = store
        self.stored: dict[str, Array] = {}
        self.names = _Names(set())
        self.values: dict[Node, str] = {}
        self.constants: dict[str, str] = {}
        self.inline_left = _INLINE_TOTAL
        self.users = program.users()

    def text(self) -> str:
        lines = [f"program {self._quoted(self.program.name)}", ""]
        # Inputs keep their names, so they choose first.
        for node in self.program.inputs:
            self.names.taken.add(str(node.attrs["name"]))
        lines += [self._input(node) for node in self.program.inputs]
        body = [line for node in self.program.nodes if (line := self._statement(node))]
        lines += ["", *(self._param(name, self.constants[name]) for name in self.constants), "", *body, ""]
        for name, node in zip(self.program.output_names, self.program.outputs, strict=True):
            value = self.values[node]
            lines.append(f"output {value}" if value == name else f"output {self._quoted(name)} = {value}")
        return format_text("\n".join(lines) + "\n", self.program.name)

    def _quoted(self, name: str) -> str:
        plain = _IDENTIFIER.fullmatch(name) and name not in RESERVED and len(name) <= MAX_WORD
        return name if plain else json.dumps(name)

    def _fail(self, node: Node, what: str, hint: str = "") -> UnsupportedError:
        return UnsupportedError(f"{what} cannot be written in the language", where=node.loc, hint=hint)

    def _input(self, node: Node) -> str:
        name = str(node.attrs["name"])
        if not _IDENTIFIER.fullmatch(name) or name in RESERVED or len(name) > MAX_WORD:
            raise self._fail(node, f"the input name {name!r}", "rename the argument of the model")
        assert isinstance(node.type, TensorType)
        extra = set(node.attrs) - {"name", "shape", "low", "high", "secret"}
        if extra:
            raise self._fail(node, f"input attribute {sorted(extra)[0]!r}")
        self.values[node] = name
        secrecy = "secret" if node.type.secret else "plain"
        if (output := self.program.interface.carried_inputs.get(name)) is not None:
            if output != name:
                raise self._fail(node, f"an input {name!r} that comes from an output {output!r}", "give both one name")
            secrecy = "carried"
        text = f"input {name}: {secrecy} tensor{list(node.type.shape)}"
        if "low" in node.attrs and "high" in node.attrs:
            text += f" in [{_number(node.attrs['low'])}, {_number(node.attrs['high'])}]"
        return text

    def _constant(self, name: str) -> str:
        """The name of the param that holds the constant."""
        if name not in self.constants:
            self.constants[name] = self.names.take(name, "c")
        return self.constants[name]

    def _param(self, name: str, variable: str) -> str:
        constant = self._dense(name)
        head = f"param {variable}: tensor{list(constant.shape)} = "
        if constant.size <= min(_INLINE, self.inline_left):
            self.inline_left -= constant.size
            return head + _array_text(constant)
        if self.store is None:
            return head + f"given({json.dumps(name)})"
        key = name if name not in ("file", "args", "kwds") and "/" not in name else variable
        self.stored[key] = constant
        return head + f"load({json.dumps(self.store)}, {json.dumps(key)})"

    def _dense(self, name: str) -> Array:
        constant: Constant = self.program.constants[name]
        if isinstance(constant, np.ndarray):
            return constant
        if isinstance(constant, Matrix) and constant.shape[0] * constant.shape[1] <= _INLINE_TOTAL:
            return np.asarray(constant.csr().toarray())
        raise UnsupportedError(
            f"constant @{name} cannot be written in the language",
            where=self.program.name,
            why="it is a large sparse matrix" if isinstance(constant, Matrix) else "its contents are not known",
        )

    def _attribute(self, node: Node, value: Any) -> str:
        if isinstance(value, ConstantName):
            return self._constant(str(value))
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, str):
            return json.dumps(value)
        if isinstance(value, tuple):
            return "[" + ", ".join(self._attribute(node, item) for item in value) + "]"
        if not isinstance(value, int | float):
            raise self._fail(node, f"an attribute of {node.op}")
        if isinstance(value, int) and abs(value) > 2**53:
            raise self._fail(node, f"the number {value}")
        return repr(value)

    def _inlined(self, node: Node) -> str | None:
        """The number of a scalar constant with one user, written where it is used; else None."""
        if node.op != "constant" or len(self.users[node]) != 1 or node in self.program.outputs:
            return None
        user = self.users[node][0]
        array = self.program.constants[str(node.attrs["value"])]
        if user.op not in _TAKES_NUMBERS or all(o.op == "constant" for o in user.inputs):
            return None
        if not isinstance(array, np.ndarray) or array.shape or array.dtype != np.float64:
            return None
        number = _number(array.item())
        return f"({number})" if number.startswith("-") else number

    def _statement(self, node: Node) -> str:
        if node.op == "input":
            return ""
        inlined = self._inlined(node)
        if inlined is not None:
            self.values[node] = inlined
            return ""
        expression = self._expression(node)
        name = self.names.take(node.loc.layer, node.op)
        self.values[node] = name
        return f"{name} = {expression}"

    def _expression(self, node: Node) -> str:
        operands = [self.values[operand] for operand in node.inputs]
        # Written as a call: as an operator, division by a number or of a number would be read back as an inverse.
        inverse = node.op == "div" and any(self._inlined(operand) is not None for operand in node.inputs)
        if node.op in _OPERATORS and not node.attrs and not inverse:
            return f"{operands[0]} {_OPERATORS[node.op]} {operands[1]}"
        if node.op == "neg":
            return f"-{operands[0]}"
        if node.op == "power" and node.attrs["exponent"] > 1:
            return f"{operands[0]} ** {node.attrs['exponent']}"
        attrs = [f"{key}={self._attribute(node, value)}" for key, value in node.attrs.items()]
        return f"{node.op}({', '.join([*operands, *attrs])})"


def circuit(program: Program) -> list[tuple[Any, ...]]:
    """The facts that define a program's circuit: ops, operands, types, attributes, contents of constants."""
    order = live_nodes(program.outputs, program.inputs)
    index = {node: i for i, node in enumerate(order)}

    def plain(value: Any) -> Any:
        if isinstance(value, ConstantName):
            return constant_digest(program.constants[str(value)])
        return tuple(plain(item) for item in value) if isinstance(value, tuple) else value

    rows: list[tuple[Any, ...]] = []
    for node in order:
        attrs: Mapping[str, Any] = node.attrs
        operands = tuple(index[operand] for operand in node.inputs)
        rows.append((node.op, operands, str(node.type), tuple((key, plain(attrs[key])) for key in sorted(attrs))))
    rows.append(tuple(index[output] for output in program.outputs))
    rows.append(program.output_names)
    rows.append(program.interface.carried)
    return rows


__all__ = ["circuit", "to_language", "write_language"]
