"""From the tree to a program: functions are inlined, loops unrolled, and every value becomes an array or a node."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from heliograph.dsl import ast
from heliograph.dsl.arithmetic import SlotArithmetic, TensorArithmetic
from heliograph.dsl.builtins import BUILTINS, SLOT_WORDS
from heliograph.dsl.calls import FOLDED, call_op, expand_range, is_tuned, make_constant
from heliograph.dsl.check import stage_of
from heliograph.dsl.diagnostics import Diagnostics, Fault, Poisoned, Source, Span, TooMany, did_you_mean, shown
from heliograph.dsl.functions import MAX_NESTING, inline
from heliograph.dsl.parameters import Loader
from heliograph.dsl.values import (
    MAX_ELEMENTS,
    POISON,
    Fixed,
    Frame,
    Items,
    List,
    Poison,
    Value,
    as_array,
    as_integer,
    as_number,
    fixed_binary,
    fixed_index,
    fixed_negative,
    holds_node,
    kind_of,
    make_list,
    shape_text,
)
from heliograph.dsl.walk import Annotation, Arithmetic
from heliograph.errors import ProgramError
from heliograph.ir import Builder, ConstantName, Node, Program, Stage, TensorType, shape_of
from heliograph.ir.interface import Interface, TensorSpec
from heliograph.ir.maps.layout import Layout
from heliograph.ir.node import next_power_of_two
from heliograph.ir.ops.table import OPS

# Limits for one text: expressions evaluated, nodes made, elements of fixed arrays computed.
MAX_STEPS = 200_000
MAX_NODES = 50_000
MAX_COMPUTED_TOTAL = 2**26
# A list is slower than an array by about this factor.
_LIST_COST = 10
MAX_SLOTS = 2**16


def lower_module(
    module: ast.Module, source: Source, report: Diagnostics, parameters: Mapping[str, Any]
) -> Program | None:
    """The program of a checked text; None after any error (which the report holds)."""
    lowerer = Lowerer(module, source, report, parameters)
    try:
        return lowerer.run()
    finally:
        lowerer.loader.close()


class Lowerer:
    """Walks the statements once, in order; an error ends its statement, and its names are then marked as bad."""

    def __init__(self, module: ast.Module, source: Source, report: Diagnostics, parameters: Mapping[str, Any]) -> None:
        self.module = module
        self.source = source
        self.report = report
        self.stage = stage_of(module)
        header = next((s for s in module.statements if isinstance(s, ast.Header)), None)
        self.builder = Builder(header.name if header else "program", self.stage)
        self.loader = Loader(source.folder, parameters)
        self.arithmetic: Arithmetic = TensorArithmetic(self)
        self.functions = module.functions()
        self.globals: dict[str, Value | Poison] = {}
        self.frame = Frame(None)
        self.annotations: list[Annotation] = []
        self.outputs: dict[str, Node] = {}
        self.slot_inputs: list[TensorSpec] = []
        self.carried: list[ast.Name] = []
        self.layout: Layout | None = None
        self.active: list[tuple[str, Span]] = []
        self.layer = ""
        self._used_layers: set[str] = set()
        self._labels: dict[str, int] = {}
        self._layer_counts: dict[str, int] = {}
        self._statement_counts: dict[str, int] = {}
        self._constants: dict[tuple[int, str], tuple[Fixed, ConstantName]] = {}
        self._steps = 0
        self._elements = 0
        self._nodes = 0
        self.nesting = 0

    def run(self) -> Program | None:
        self.run_block(self.module.statements)
        if self.report or not self.outputs:
            return None
        self._check_carried()
        if self.report:
            return None
        if self.layout is not None:
            outputs = tuple(TensorSpec(name, self.layout.shape, self.layout) for name in self.outputs)
            self.builder.interface = Interface(tuple(self.slot_inputs), outputs)
        elif self.carried:
            self.builder.interface = Interface(carried=tuple((name.name, name.name) for name in self.carried))
        try:
            return self.builder.finish(self.outputs)
        except ProgramError as error:
            self.report.add(Span(0, 1), error.what, expected=error.why, hint=error.hint)
            return None

    def _check_carried(self) -> None:
        """Check that each carried input is also an output of its shape, and that another output leaves the server."""
        for name in self.carried:
            made = self.outputs.get(name.name)
            value = self.frame.values[name.name]
            assert isinstance(value, Node)
            if made is None:
                self.report.add(
                    name.span,
                    f"nothing says what {shown(name.name)!r} is in the next run",
                    expected=f"output {name.name} = value",
                )
            elif shape_of(made) != shape_of(value) or not made.type.secret:
                self.report.add(
                    name.span,
                    f"{shown(name.name)!r} has shape {shape_of(value)}, and in the next run {shape_of(made)}"
                    if made.type.secret
                    else f"{shown(name.name)!r} is encrypted, and not in the next run",
                )
        if self.carried and len(self.outputs) == len(self.carried):
            self.report.add(
                self.carried[0].span,
                "every output is carried into the next run",
                expected="an output that the client may read",
                hint="output a sum of it, or what is to be watched",
            )

    # ------------------------------------------------------------------ nodes

    def emit(self, op: str, operands: Sequence[Node], span: Span, /, **attrs: Any) -> Node:
        """A node of the op, located at the span; a Fault there where the op refuses."""
        self._nodes += 1
        if self._nodes > MAX_NODES:
            self.report.add(
                span, f"the program has more than {MAX_NODES} operations", hint="run loops over fewer numbers"
            )
            raise TooMany
        spec = OPS[op]
        layer = self.layer
        if is_tuned(spec):
            layer = self._tuned_layer(op)
        try:
            node = self.builder.op(op, operands, self.source.location(span, layer), **attrs)
        except ProgramError as error:
            note = self.call_note()
            raise Fault(span, error.what, expected=error.why, hint=error.hint, note=note) from None
        except (ArithmeticError, ValueError, TypeError, IndexError, MemoryError) as error:
            raise Fault(
                span, f"{op} cannot be applied to these values", note=f"{error}"[:200], expected=spec.doc
            ) from None
        if isinstance(node.type, TensorType) and (node.type.size > MAX_ELEMENTS or 0 in node.type.shape):
            raise Fault(
                span,
                f"the result has shape {shape_text(node.type.shape)[:200]}",
                expected=f"1 to {MAX_ELEMENTS} elements",
            )
        return node

    def operand(self, value: Value, span: Span) -> Node:
        return self.arithmetic.operand(value, span)

    def constant(self, value: Value, span: Span, name: str) -> ConstantName:
        """The name under which the program keeps the value, in the form for the attribute `name` of an op."""
        if isinstance(value, Fixed):
            known = self._constants.get((id(value), name))
            if known is None:
                known = self._constants[id(value), name] = (value, make_constant(self, value, span, name))
            return known[1]
        self.charge(span, value)
        return make_constant(self, value, span, name)

    def store(self, value: Any, label: str) -> ConstantName:
        """The name of a constant of the program; repeated labels are numbered."""
        self._labels[label] = count = self._labels.get(label, 0) + 1
        return self.builder.constant(value, label if count == 1 else f"{label}.{count}")

    def charge(self, span: Span, *values: Value) -> None:
        """Count the elements of fixed values that are read or computed; TooMany when a text computes too much."""
        for value in values:
            if isinstance(value, Fixed):
                self._elements += value.array.size
            elif isinstance(value, List):
                self._elements += value.size * _LIST_COST
        if self._elements > MAX_COMPUTED_TOTAL:
            self.report.add(
                span,
                f"reading this program computes more than {MAX_COMPUTED_TOTAL} numbers",
                hint="compute large arrays outside and load() them",
            )
            raise TooMany

    def _tuned_layer(self, op: str) -> str:
        """The layer of an approximated op: the statement's, made unique."""
        candidate = self.layer
        while candidate in self._used_layers:
            base = f"{self.layer}.{op}"
            self._layer_counts[base] = count = self._layer_counts.get(base, 0) + 1
            candidate = base if count == 1 else f"{base}#{count}"
        self._used_layers.add(candidate)
        return candidate

    def _statement_layer(self, name: str) -> str:
        """The layer of one execution of an assignment: caller, variable, loop indices; `#2` for a repetition."""
        base = f"{self.frame.prefix}{name}{self.frame.loops}"
        self._statement_counts[base] = count = self._statement_counts.get(base, 0) + 1
        return base if count == 1 else f"{base}#{count}"

    def call_note(self) -> str:
        """The places of the calls that are being inlined."""
        if not self.active:
            return ""
        calls = [f"{shown(name)} at line {self.source.line_column(span.start)[0]}" for name, span in self.active]
        return "in the call of " + ", which is in the call of ".join(reversed(calls[-3:]))

    def _spend(self, span: Span, steps: int = 1) -> None:
        self._steps += steps
        if self._steps > MAX_STEPS:
            self.report.add(
                span,
                f"reading this program takes more than {MAX_STEPS} steps",
                hint="run loops over fewer numbers, or call fewer functions",
            )
            raise TooMany

    # ------------------------------------------------------------------ statements

    def run_block(self, statements: Sequence[ast.Statement]) -> bool:
        """Run the statements; returns whether all succeeded."""
        well = True
        for statement in statements:
            try:
                self._spend(statement.span)
                self._statement(statement)
            except Poisoned:
                well = False
                self._poison(statement)
            except Fault as fault:
                well = False
                if not fault.note:
                    fault.note = self.call_note()
                self.report.add_fault(fault)
                self._poison(statement)
        return well

    def _poison(self, statement: ast.Statement) -> None:
        names: Sequence[str] = ()
        if isinstance(statement, ast.Input | ast.Param | ast.Const):
            names = (statement.name.name,)
        elif isinstance(statement, ast.Assign):
            names = [target.name for target in statement.targets]
        elif isinstance(statement, ast.Broken):
            names = statement.names
        table = self.globals if isinstance(statement, ast.Param | ast.Const) else self.frame.values
        for name in names:
            table[name] = POISON

    def _statement(self, statement: ast.Statement) -> None:
        inside = self.frame.function is not None or self.frame.loops
        if inside and not isinstance(statement, ast.Assign | ast.For | ast.Broken):
            # The checker has already reported that it does not belong here.
            raise Poisoned
        if isinstance(statement, ast.Assign):
            self._assign(statement)
        elif isinstance(statement, ast.For):
            self._for(statement)
        elif isinstance(statement, ast.Input):
            self._input(statement)
        elif isinstance(statement, ast.Param):
            self._param(statement)
        elif isinstance(statement, ast.Const):
            value = self.evaluate(statement.value)
            if holds_node(value):
                raise Fault(statement.value.span, "a constant is known when the text is read", hint="leave out 'const'")
            self.globals[statement.name.name] = _named(value, statement.name.name)
        elif isinstance(statement, ast.Output):
            self._output(statement)
        elif isinstance(statement, ast.Broken):
            if self.frame.function is None or statement.names:
                self._poison(statement)
            # Its body may assign names that later statements read.
            for inner in statement.body:
                self._poison(inner)

    def _assign(self, statement: ast.Assign) -> None:
        outer, self.layer = self.layer, self._statement_layer(statement.targets[0].name)
        try:
            value = self.annotated(statement.value, statement.annotation)
        finally:
            self.layer = outer
        targets = statement.targets
        if len(targets) == 1:
            self.frame.values[targets[0].name] = _named(value, targets[0].name)
            return
        if not isinstance(value, List) or len(value) != len(targets):
            raise Fault(statement.span, f"{len(targets)} names for {kind_of(value)}", expected=f"{len(targets)} values")
        for target, item in zip(targets, value, strict=True):
            self.frame.values[target.name] = _named(item, target.name)

    def annotated(self, expression: ast.Expression, entries: tuple[ast.Keyword, ...]) -> Value:
        """The value with the statement's annotation in force; a Fault if the annotation applies to nothing."""
        if not entries:
            return self.evaluate(expression)
        by_name = {entry.name: entry for entry in entries}
        values = {entry.name: (self.evaluate(entry.value), entry.value.span) for entry in entries}
        expanded = expand_range(values)
        whole = {"low": by_name.get("range"), "high": by_name.get("range")}
        keywords = {name: by_name.get(name) or whole[name] for name in expanded}
        annotation = Annotation(
            {name: (value, keyword) for name, (value, _) in expanded.items() if (keyword := keywords[name])}
        )
        self.annotations.append(annotation)
        try:
            value = self.evaluate(expression)
        finally:
            self.annotations.pop()
        for name, (_, keyword) in annotation.entries.items():
            if name not in annotation.used:
                known = {"range"}.union(*(spec.attrs for spec in OPS.values() if is_tuned(spec)))
                hint = did_you_mean(keyword.name, known) if keyword.name not in known else ""
                raise Fault(keyword.span, f"nothing in this statement takes {shown(keyword.name)!r}", hint=hint)
        return value

    def _for(self, statement: ast.For) -> None:
        start = as_integer(self.evaluate(statement.start), statement.start.span, "the start of the loop")
        stop = as_integer(self.evaluate(statement.stop), statement.stop.span, "the end of the loop")
        step = 1
        if statement.step is not None:
            step = as_integer(self.evaluate(statement.step), statement.step.span, "the step of the loop")
            if not step:
                raise Fault(statement.step.span, "the step of the loop is zero")
        count = len(range(start, stop, step))
        if count > MAX_STEPS:
            raise Fault(
                statement.span,
                f"the loop runs {count} times",
                expected=f"a program of at most {MAX_STEPS} steps: loops are unrolled",
            )
        outer, name = self.frame.loops, statement.variable.name
        try:
            for number in range(start, stop, step):
                self._spend(statement.span)
                self.frame.loops = f"{outer}[{number}]"
                self.frame.values[name] = number
                if not self.run_block(statement.body):
                    # One iteration has already reported the errors.
                    break
        finally:
            self.frame.loops = outer

    def _input(self, statement: ast.Input) -> None:
        name = statement.name.name
        if (statement.low is None) != (statement.high is None):
            raise Fault(statement.span, "a range has two bounds", expected="in [low, high]")
        bounds: dict[str, float] = {}
        if statement.low is not None and statement.high is not None:
            for key, bound in (("low", statement.low), ("high", statement.high)):
                bounds[key] = as_number(self.evaluate(bound), bound.span, "a bound of the range")
            if bounds["low"] >= bounds["high"]:
                raise Fault(
                    statement.low.span.to(statement.high.span),
                    f"the range [{bounds['low']}, {bounds['high']}] is empty",
                    expected="low below high",
                )
        attrs: dict[str, Any] = dict(bounds)
        if not statement.secret:
            attrs["secret"] = False
        if statement.carried:
            self._carried(statement)
        if isinstance(statement.type, ast.NumberOf):
            raise Fault(
                statement.type.span,
                f"an input is not of type {statement.type.kind}",
                expected="tensor[...] or slots[n]",
            )
        if isinstance(statement.type, ast.SlotsOf):
            attrs.update(slots=self._slots_input(statement, statement.type, bounds), chunk=0)
        elif self.stage is Stage.PACKED:
            raise Fault(statement.type.span, "a tensor among slots", expected="all inputs slots[n], or all tensors")
        else:
            attrs["shape"] = self.dims(statement.type.dims)
        self.layer = name
        loc = self.source.location(statement.name.span, name)
        layout = self.layout
        if isinstance(statement.type, ast.SlotsOf) and not statement.secret and layout is not None:
            # The server's own vector stays a tensor until it meets a ciphertext.
            attrs = {**bounds, "secret": False, "shape": layout.shape}
            tensor = self.builder.input(name, loc, **attrs)
            self.frame.values[name] = self.builder.op("pack", (tensor,), loc, layout=layout)
        else:
            self.frame.values[name] = self.builder.input(name, loc, **attrs)
        self.layer = ""

    def _carried(self, statement: ast.Input) -> None:
        """Declare an input that comes from the previous run: the output of its name."""
        if isinstance(statement.type, ast.SlotsOf):
            raise Fault(statement.type.span, "slots are not carried from run to run", expected="carried tensor[...]")
        if statement.low is None:
            raise Fault(
                statement.span,
                f"the carried input {shown(statement.name.name)!r} has no range",
                expected="in [low, high]",
                hint="it is bootstrapped, and nothing else bounds it",
            )
        self.carried.append(statement.name)

    def _slots_input(self, statement: ast.Input, kind: ast.SlotsOf, bounds: dict[str, float]) -> int:
        """Check the count of an input's slots, record its layout; returns the slots of its ciphertext."""
        if kind.count is None:
            raise Fault(kind.span, "how many slots?", expected="slots[n]")
        size = as_integer(self.evaluate(kind.count), kind.count.span, "the number of slots")
        if not 1 <= size <= MAX_SLOTS:
            raise Fault(kind.count.span, f"{size} slots", expected=f"1 to {MAX_SLOTS}")
        if not bounds:
            raise Fault(statement.span, f"input {shown(statement.name.name)!r} has no range", expected="in [low, high]")
        if self.layout is not None and self.layout.shape != (size,):
            raise Fault(
                kind.count.span,
                f"this input has {size} slots, the one before {self.layout.size}",
                expected="one number of slots in a program",
            )
        slots = max(2, next_power_of_two(size))
        if self.layout is None:
            self.layout = Layout((size,), slots, slots)
            self.arithmetic = SlotArithmetic(self, size, slots)
        if not statement.secret:
            return slots
        self.slot_inputs.append(TensorSpec(statement.name.name, (size,), self.layout, bounds["low"], bounds["high"]))
        return slots

    def dims(self, dims: Sequence[ast.Expression]) -> tuple[int, ...]:
        shape = []
        for dim in dims:
            size = as_integer(self.evaluate(dim), dim.span, "a dimension")
            if size < 1:
                raise Fault(dim.span, f"a dimension is {size}", expected="1 or more")
            shape.append(size)
        if math.prod(shape) > MAX_ELEMENTS:
            raise Fault(
                dims[0].span.to(dims[-1].span),
                f"a tensor of {math.prod(shape):.3g} elements",
                expected=f"at most {MAX_ELEMENTS}",
            )
        return tuple(shape)

    def _param(self, statement: ast.Param) -> None:
        name = statement.name
        if statement.value is None:
            fixed = Fixed(self.loader.from_given(name.name, name.span), name.name)
        else:
            value = self.evaluate(statement.value)
            if holds_node(value):
                raise Fault(statement.value.span, "a param is known when the text is read", hint="leave out 'param'")
            label = value.name if isinstance(value, Fixed) and value.name else name.name
            fixed = Fixed(as_array(value, statement.value.span), label)
        if statement.type is not None:
            if not isinstance(statement.type, ast.TensorOf):
                raise Fault(statement.type.span, "a param is a tensor", expected="tensor[...]")
            wanted = self.dims(statement.type.dims)
            if fixed.array.shape != wanted:
                raise Fault(
                    name.span,
                    f"param {shown(name.name)} has shape {shape_text(fixed.array.shape)}",
                    expected=f"tensor{shape_text(wanted)}, as its type says",
                )
        if not fixed.array.size or fixed.array.size > MAX_ELEMENTS:
            raise Fault(
                name.span, f"param {shown(name.name)} has {fixed.array.size} elements", expected=f"1 to {MAX_ELEMENTS}"
            )
        self.globals[name.name] = fixed

    def _output(self, statement: ast.Output) -> None:
        for name, expression in statement.items:
            if name is not None:
                label, span = name.name, name.span
            elif isinstance(expression, ast.Name):
                label, span = expression.name, expression.span
            else:
                label, span = ("y", expression.span) if not self.outputs else (f"y{len(self.outputs)}", expression.span)
            if label in self.outputs:
                raise Fault(span, f"there are two outputs called {shown(label)!r}", hint="output NAME = value")
            self.layer = self._statement_layer(label) if not isinstance(expression, ast.Name) else label
            value = self.annotated(expression, statement.annotation)
            self.layer = ""
            if not isinstance(value, Node):
                raise Fault(expression.span, f"the output is {kind_of(value)}", expected="a value made from an input")
            self.outputs[label] = value

    # ------------------------------------------------------------------ expressions

    def evaluate(self, expression: ast.Expression) -> Value:
        """The value; a Fault or Poisoned if there is none."""
        if isinstance(expression, ast.Number | ast.Text | ast.Boolean):
            self._spend(expression.span)
            return expression.value
        if isinstance(expression, ast.Name):
            self._spend(expression.span)
            return self._lookup(expression)
        self._spend(expression.span)
        self.nesting += 1
        if self.nesting > MAX_NESTING:
            self.nesting -= 1
            raise Fault(expression.span, "calls and expressions nest too deeply", hint="give inner parts names")
        try:
            if isinstance(expression, ast.Call):
                return self._call(expression)
            if isinstance(expression, ast.Binary):
                left, right = self.evaluate(expression.left), self.evaluate(expression.right)
                return self._binary(expression, left, right)
            if isinstance(expression, ast.Negative):
                value = self.evaluate(expression.operand)
                if isinstance(value, Node):
                    return self.arithmetic.negative(value, expression.span)
                self.charge(expression.span, value)
                return fixed_negative(value, expression.span)
            if isinstance(expression, ast.ListOf):
                return make_list([self.evaluate(item) for item in expression.items], expression.span)
            return self._index(expression)
        finally:
            self.nesting -= 1

    def _binary(self, expression: ast.Binary, left: Value, right: Value) -> Value:
        if isinstance(left, Node) or isinstance(right, Node):
            return self.arithmetic.binary(expression.operator, left, right, expression.span)
        self.charge(expression.span, left, right)
        result = fixed_binary(expression.operator, left, right, expression.span)
        self.charge(expression.span, result)
        if expression.operator == "@" and isinstance(result, Fixed):
            self._elements += result.array.size * as_array(left, expression.span).shape[-1] // 16
        return result

    def _lookup(self, name: ast.Name) -> Value:
        value = self.frame.values.get(name.name)
        if value is None:
            value = self.globals.get(name.name)
        if value is None:
            if self.report:
                # The checker has already reported it, or it belongs to a statement that failed.
                raise Poisoned
            raise Fault(
                name.span,
                f"{shown(name.name)!r} has no value here",
                note="the loop that gives it a value did not run, or its definition comes later",
            )
        if isinstance(value, Poison):
            raise Poisoned
        return value

    def _index(self, expression: ast.Index) -> Value:
        base = self.evaluate(expression.base)
        items: Items = []
        for item in expression.items:
            if isinstance(item, ast.Slice):
                parts = [
                    None if part is None else as_integer(self.evaluate(part), part.span, "a bound of a slice")
                    for part in (item.start, item.stop, item.step)
                ]
                items.append((parts[0], parts[1], parts[2]))
            else:
                items.append(as_integer(self.evaluate(item), item.span, "an index"))
        if isinstance(base, Node):
            return self.arithmetic.index(base, items, expression.span)
        if isinstance(base, Fixed) or len(items) > 1:
            self.charge(expression.span, base)
        return fixed_index(base, items, expression.span)

    def _call(self, call: ast.Call) -> Value:
        name = call.name.name
        values: list[Value] = [self.evaluate(argument) for argument in call.arguments]
        if name in self.functions:
            return inline(self, call, self.functions[name], values)
        if self.stage is Stage.PACKED and name in SLOT_WORDS:
            return self._slot_word(call, SLOT_WORDS[name], values)
        spec = OPS.get(name)
        if spec is not None and (self.stage in spec.stages or name in FOLDED) and name != "input":
            return call_op(self, spec, call, values)
        if name in BUILTINS:
            self.charge(call.span, *values)
            value = BUILTINS[name](self, values, call)
            if name not in ("load", "given"):
                self.charge(call.span, value)
            return value
        raise Poisoned

    def _slot_word(self, call: ast.Call, operator: str, values: list[Value]) -> Value:
        count = 1 if call.name.name == "neg" else 2
        if len(values) != count or call.keywords:
            usage = f"{call.name.name}({', '.join(['a', 'b'][:count])})"
            raise Fault(call.span, f"{call.name.name} takes {count} values without names", expected=usage)
        if count == 1:
            value = values[0]
            return (
                self.arithmetic.negative(value, call.span)
                if isinstance(value, Node)
                else fixed_negative(value, call.span)
            )
        if not any(isinstance(value, Node) for value in values):
            self.charge(call.span, *values)
            return fixed_binary(operator, values[0], values[1], call.span)
        return self.arithmetic.binary(operator, values[0], values[1], call.span)


def _named(value: Value, name: str) -> Value:
    """The value, where a fixed array without a name takes its variable's."""
    return Fixed(value.array, name) if isinstance(value, Fixed) and not value.name else value
