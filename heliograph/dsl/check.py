"""Checks of a text before any value is known: names, places of statements, calls, recursion."""

from __future__ import annotations

from collections.abc import Iterator

from heliograph.dsl import ast
from heliograph.dsl.builtins import BUILTINS, SLOT_WORDS
from heliograph.dsl.calls import FOLDED
from heliograph.dsl.diagnostics import Diagnostics, Span, did_you_mean, shown
from heliograph.ir import Stage
from heliograph.ir.ops.table import OPS


def stage_of(module: ast.Module) -> Stage:
    """Packed where an input is `slots`, tensor otherwise."""
    slots = any(isinstance(s, ast.Input) and isinstance(s.type, ast.SlotsOf) for s in module.statements)
    return Stage.PACKED if slots else Stage.TENSOR


def callable_names(stage: Stage) -> set[str]:
    """Every name that can be called, other than the text's own functions."""
    ops = {name for name, spec in OPS.items() if stage in spec.stages and name != "input"}
    return ops | FOLDED | set(BUILTINS) | (set(SLOT_WORDS) if stage is Stage.PACKED else set())


def children(
    expression: ast.Expression | ast.Slice | ast.Keyword,
) -> Iterator[ast.Expression | ast.Slice | ast.Keyword]:
    """The expressions directly inside one."""
    if isinstance(expression, ast.ListOf):
        yield from expression.items
    elif isinstance(expression, ast.Negative):
        yield expression.operand
    elif isinstance(expression, ast.Binary):
        yield expression.left
        yield expression.right
    elif isinstance(expression, ast.Keyword):
        yield expression.value
    elif isinstance(expression, ast.Call):
        yield from expression.arguments
        yield from expression.keywords
    elif isinstance(expression, ast.Index):
        yield expression.base
        yield from expression.items
    elif isinstance(expression, ast.Slice):
        yield from (part for part in (expression.start, expression.stop, expression.step) if part is not None)


def walk(expression: ast.Expression | ast.Slice | ast.Keyword) -> Iterator[ast.Expression | ast.Slice | ast.Keyword]:
    """The expression and all expressions inside it."""
    stack: list[ast.Expression | ast.Slice | ast.Keyword] = [expression]
    while stack:
        item = stack.pop()
        yield item
        stack.extend(children(item))


def _type_expressions(kind: ast.TypeOf | None) -> tuple[ast.Expression, ...]:
    if isinstance(kind, ast.TensorOf):
        return kind.dims
    if isinstance(kind, ast.SlotsOf) and kind.count is not None:
        return (kind.count,)
    return ()


def expressions(statement: ast.Statement) -> Iterator[ast.Expression | ast.Keyword]:
    """The expressions of one statement, without its body's."""
    if isinstance(statement, ast.Input):
        yield from _type_expressions(statement.type)
        yield from (bound for bound in (statement.low, statement.high) if bound is not None)
    elif isinstance(statement, ast.Param):
        yield from _type_expressions(statement.type)
        if statement.value is not None:
            yield statement.value
    elif isinstance(statement, ast.Const):
        yield statement.value
    elif isinstance(statement, ast.Assign):
        yield statement.value
        yield from statement.annotation
    elif isinstance(statement, ast.Output):
        yield from (value for _, value in statement.items)
        yield from statement.annotation
    elif isinstance(statement, ast.Return):
        yield from statement.values
        yield from statement.annotation
    elif isinstance(statement, ast.For):
        yield statement.start
        yield statement.stop
        if statement.step is not None:
            yield statement.step


def check_module(module: ast.Module, report: Diagnostics) -> None:
    """Report errors in names, statements and calls; returns nothing."""
    checker = _Checker(module, report)
    checker.check_outline()
    checker.check_names()
    checker.check_recursion()


class _Checker:
    def __init__(self, module: ast.Module, report: Diagnostics) -> None:
        self.module = module
        self.report = report
        self.stage = stage_of(module)
        self.functions = module.functions()
        self.broken_functions = {
            name for s in module.statements if isinstance(s, ast.Broken) and s.kind == "FN" for name in s.names
        }
        self.known_calls = callable_names(self.stage)
        # Constants and parameters are visible inside functions; inputs and variables are not.
        self.fixed: dict[str, Span] = {}

    def _line(self, span: Span) -> int:
        return self.report.source.line_column(span.start)[0]

    # ------------------------------------------------------------------ outline

    def check_outline(self) -> None:
        statements = self.module.statements
        headers = [s for s in statements if isinstance(s, ast.Header)]
        broken = {s.kind for s in statements if isinstance(s, ast.Broken)}
        if not headers and "PROGRAM" not in broken:
            self.report.add(
                statements[0].span if statements else Span(0, 0),
                "this text has no program",
                expected="'program NAME' as the first statement",
            )
        elif headers and not isinstance(statements[0], ast.Header | ast.Broken):
            self.report.add(headers[0].span, "'program' is not the first statement", hint="move it to the top")
        for header in headers[1:]:
            self.report.add(
                header.span, "a text holds one program", note=f"the first is at line {self._line(headers[0].span)}"
            )
        if headers:
            place = headers[0].span
            name = shown(headers[0].name)
            if not any(isinstance(s, ast.Input) for s in statements) and "INPUT" not in broken:
                self.report.add(place, f"program {name} has no input", expected="'input NAME: secret tensor[...]'")
            elif not any(isinstance(s, ast.Output) for s in statements) and "OUTPUT" not in broken:
                self.report.add(place, f"program {name} has no output", expected="'output NAME'")
        self._places(statements, "top")
        for function in self.functions.values():
            self._places(function.body, "fn")
            last = function.body[-1] if function.body else None
            if not isinstance(last, ast.Return | ast.Broken):
                self.report.add(
                    function.span,
                    f"fn {shown(function.name.name)} returns nothing",
                    expected="'return VALUE' as its last statement",
                )

    def _places(self, statements: list[ast.Statement], where: str) -> None:
        """Report statements in places where they are not allowed; `where` is top, fn or for."""
        for position, statement in enumerate(statements):
            inside = {"fn": "inside a function", "for": "inside a loop"}.get(where, "")
            if isinstance(statement, ast.For):
                self._places(statement.body, "for")
            elif isinstance(statement, ast.Return):
                if where != "fn":
                    self.report.add(
                        statement.span,
                        "'return' outside a function",
                        hint="use 'output' for a result of the program" if where == "top" else "return after the loop",
                    )
                elif position != len(statements) - 1:
                    self.report.add(statement.span, "'return' is not the last statement of its function")
            elif inside and not isinstance(statement, ast.Assign | ast.Broken):
                word = type(statement).__name__.lower()
                word = {"header": "program", "function": "fn"}.get(word, word)
                self.report.add(statement.span, f"'{word}' {inside}", hint="move it to the top level")

    # ------------------------------------------------------------------ names

    def check_names(self) -> None:
        defined: dict[str, tuple[str, Span]] = {}
        for statement in self.module.statements:
            if isinstance(statement, ast.Param | ast.Const):
                self.fixed.setdefault(statement.name.name, statement.span)
            elif isinstance(statement, ast.Broken) and statement.kind in ("PARAM", "CONST"):
                self.fixed.update(dict.fromkeys(statement.names, statement.span))
        seen: dict[str, Span] = {}
        for statement in self.module.statements:
            if isinstance(statement, ast.Function):
                name = statement.name.name
                if name in seen:
                    self.report.add(
                        statement.name.span,
                        f"fn {shown(name)} is defined twice",
                        note=f"first at line {self._line(seen[name])}",
                    )
                seen.setdefault(name, statement.span)
                self._function(statement)
        self._block(self.module.statements, defined, self.fixed)

    def _define(self, name: ast.Name, kind: str, defined: dict[str, tuple[str, Span]]) -> None:
        """Define a name; variables may be defined again, everything else only once."""
        known = defined.get(name.name)
        if known is not None and (kind, known[0]) != ("variable", "variable"):
            self.report.add(
                name.span,
                f"{shown(name.name)!r} is {known[0]} already",
                note=f"defined at line {self._line(known[1])}",
                hint="choose another name",
            )
            return
        defined.setdefault(name.name, (kind, name.span))

    def _function(self, function: ast.Function) -> None:
        defined: dict[str, tuple[str, Span]] = {}
        for parameter in function.parameters:
            self._define(parameter.name, "a parameter of this function", defined)
        for parameter in function.parameters:
            for dim in _type_expressions(parameter.type):
                if isinstance(dim, ast.Name) and dim.name not in self.fixed:
                    defined.setdefault(dim.name, ("a shape variable", dim.span))
                else:
                    self._expression(dim, defined, function)
        for dim in _type_expressions(function.result):
            self._expression(dim, defined, function)
        self._block(function.body, defined, {}, function)

    def _block(
        self,
        statements: list[ast.Statement],
        defined: dict[str, tuple[str, Span]],
        later: dict[str, Span],
        function: ast.Function | None = None,
    ) -> None:
        for statement in statements:
            for expression in expressions(statement):
                self._expression(expression, defined, function, later)
            if isinstance(statement, ast.Input):
                self._define(statement.name, "an input", defined)
            elif isinstance(statement, ast.Param):
                self._define(statement.name, "a parameter", defined)
            elif isinstance(statement, ast.Const):
                self._define(statement.name, "a constant", defined)
            elif isinstance(statement, ast.Assign):
                for target in statement.targets:
                    self._define(target, "variable", defined)
            elif isinstance(statement, ast.For):
                outer = defined.get(statement.variable.name)
                if outer is not None and outer[0] != "a loop variable":
                    self._define(statement.variable, "a loop variable", defined)
                defined.setdefault(statement.variable.name, ("a loop variable", statement.variable.span))
                self._block(statement.body, defined, later, function)
            elif isinstance(statement, ast.Broken):
                for name in statement.names:
                    defined.setdefault(name, ("variable", statement.span))
                self._block(statement.body, defined, later, function)

    def _expression(
        self,
        expression: ast.Expression | ast.Keyword,
        defined: dict[str, tuple[str, Span]],
        function: ast.Function | None,
        later: dict[str, Span] | None = None,
    ) -> None:
        for item in walk(expression):
            if isinstance(item, ast.Call):
                self._call(item)
            elif isinstance(item, ast.Name) and item.name not in defined:
                self._unknown(item, defined, function, later or {})

    def _unknown(
        self,
        name: ast.Name,
        defined: dict[str, tuple[str, Span]],
        function: ast.Function | None,
        later: dict[str, Span],
    ) -> None:
        if function is not None and name.name in self.fixed:
            return
        if name.name in later:
            self.report.add(
                name.span,
                f"{shown(name.name)!r} is used before it is defined",
                note=f"it is defined at line {self._line(later[name.name])}",
            )
            return
        hint = did_you_mean(name.name, [*defined, *(self.fixed if function is not None else ())])
        note = ""
        if function is not None and self._top_defines(name.name):
            note = "a function sees its own parameters, constants and param values only"
            hint = "pass it as an argument"
        elif not hint and (name.name in self.known_calls or name.name in self.functions):
            hint = f"call it: {name.name}(...)"
        self.report.add(name.span, f"there is no value called {shown(name.name)!r}", note=note, hint=hint)

    def _top_defines(self, name: str) -> bool:
        for statement in self.module.statements:
            if isinstance(statement, ast.Input) and statement.name.name == name:
                return True
            if isinstance(statement, ast.Assign) and any(target.name == name for target in statement.targets):
                return True
        return False

    def _call(self, call: ast.Call) -> None:
        name = call.name.name
        seen: set[str] = set()
        for keyword in call.keywords:
            if keyword.name in seen:
                self.report.add(keyword.span, f"{shown(keyword.name)!r} is given twice")
            seen.add(keyword.name)
        if name in self.functions:
            self._own_call(call, self.functions[name])
        elif name in self.broken_functions or name in BUILTINS:
            return
        elif name in self.known_calls:
            spec = OPS.get(name)
            if spec is None:
                return
            extra = ("range",) if "low" in spec.attrs and "high" in spec.attrs else ()
            known = [*spec.attrs, *extra]
            for keyword in call.keywords:
                if keyword.name not in known:
                    self.report.add(
                        keyword.span,
                        f"{name} has no attribute {shown(keyword.name)!r}",
                        expected=f"one of {', '.join(known)}" if known else "no attribute",
                        hint=did_you_mean(keyword.name, known),
                    )
        elif name in OPS or name in SLOT_WORDS:
            kind = "tensors" if self.stage is Stage.TENSOR else "slots"
            self.report.add(
                call.name.span,
                f"there is no {shown(name)!r} in a program on {kind}",
                note="it works on slots" if self.stage is Stage.TENSOR else "it works on tensors",
                hint=did_you_mean(name, self.known_calls - {name}),
            )
        else:
            self.report.add(
                call.name.span,
                f"there is no function or op called {shown(name)!r}",
                hint=did_you_mean(name, self.known_calls | set(self.functions)),
            )

    def _own_call(self, call: ast.Call, function: ast.Function) -> None:
        names = [parameter.name.name for parameter in function.parameters]
        signature = f"{function.name.name}({', '.join(names)})"
        given = names[: len(call.arguments)]
        if len(call.arguments) > len(names):
            self.report.add(
                call.span,
                f"fn {shown(function.name.name)} takes {len(names)} values, not {len(call.arguments)}",
                expected=signature,
            )
            return
        for keyword in call.keywords:
            if keyword.name not in names:
                self.report.add(
                    keyword.span,
                    f"fn {shown(function.name.name)} has no parameter {shown(keyword.name)!r}",
                    expected=signature,
                    hint=did_you_mean(keyword.name, names),
                )
            elif keyword.name in given:
                self.report.add(keyword.span, f"{shown(keyword.name)!r} is given twice", expected=signature)
            given.append(keyword.name)
        missing = [name for name in names if name not in given]
        if missing:
            self.report.add(
                call.span,
                f"fn {shown(function.name.name)} needs {', '.join(map(shown, missing[:8]))}",
                expected=signature,
            )

    # ------------------------------------------------------------------ recursion

    def check_recursion(self) -> None:
        """Report each call that closes a cycle of calls."""
        calls: dict[str, list[ast.Call]] = {}
        for name, function in self.functions.items():
            found: list[ast.Call] = []
            stack = list(function.body)
            while stack:
                statement = stack.pop()
                if isinstance(statement, ast.For | ast.Broken):
                    stack.extend(statement.body)
                for expression in expressions(statement):
                    found += [item for item in walk(expression) if isinstance(item, ast.Call)]
            found = [call for call in found if call.name.name in self.functions]
            calls[name] = sorted(found, key=lambda call: call.span.start)
        done: set[str] = set()
        for root in calls:
            path: dict[str, None] = {}  # in order, with a quick membership test
            todo: list[tuple[str, Iterator[ast.Call]]] = []
            if root not in done:
                path, todo = {root: None}, [(root, iter(calls[root]))]
            while todo:
                name, remaining = todo[-1]
                call = next(remaining, None)
                if call is None:
                    todo.pop()
                    del path[name]
                    done.add(name)
                elif call.name.name in path:
                    order = list(path)
                    cycle = [*order[order.index(call.name.name) :], call.name.name]
                    shortened = cycle if len(cycle) < 8 else [*cycle[:4], "...", *cycle[-3:]]
                    self.report.add(
                        call.name.span,
                        f"fn {shown(call.name.name)} calls itself: {' -> '.join(map(shown, shortened))}",
                        note="functions are copied to where they are called",
                        hint="use 'for i in 0..n { ... }'",
                    )
                elif call.name.name not in done:
                    path[call.name.name] = None
                    todo.append((call.name.name, iter(calls[call.name.name])))
