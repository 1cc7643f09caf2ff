"""Random programs of the language: formatted twice, printed and read back, and compared with numpy."""

from dataclasses import dataclass

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from heliograph.dsl.format import WIDTH, format_text
from heliograph.dsl.parse import parse
from heliograph.dsl.print import circuit, to_language
from heliograph.interpret import interpret
from heliograph.ir.text import parse_program, programs_equal
from heliograph.ir.verify import verify

SHAPE = (2, 3)
SETTINGS = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@dataclass
class Written:
    """An expression and its value for the given inputs."""

    text: str
    value: np.ndarray


@st.composite
def numbers(draw: st.DrawFn) -> Written:
    value = draw(st.sampled_from([0, 1, 2, 7, 0.5, 2.25, 1e-3, 12]))
    return Written(repr(value), np.asarray(float(value)))


@st.composite
def arrays(draw: st.DrawFn) -> Written:
    shape = draw(st.sampled_from([(3,), (2, 1), (2, 3), (1, 3)]))
    entries = st.sampled_from([-1.5, -1.0, 0.0, 0.25, 2.0, 3.0])
    size = int(np.prod(shape))
    value = np.array(draw(st.lists(entries, min_size=size, max_size=size))).reshape(shape)
    return Written(str(value.tolist()), value)


@st.composite
def expressions(draw: st.DrawFn, names: dict[str, np.ndarray], depth: int = 3) -> Written:
    """An expression of shape SHAPE over the names, with numpy's value."""
    if depth == 0 or draw(st.integers(0, 5)) == 0:
        name = draw(st.sampled_from(sorted(names)))
        return Written(name, names[name])
    kind = draw(
        st.sampled_from(["binary", "known", "negative", "power", "call", "structure", "divide", "group", "decide"])
    )
    inner = draw(expressions(names, depth - 1))
    x = inner.value
    if kind == "binary":
        other = draw(expressions(names, depth - 1))
        operator = draw(st.sampled_from("+-*"))
        function = {"+": np.add, "-": np.subtract, "*": np.multiply}[operator]
        return Written(f"({inner.text}){operator}({other.text})", function(x, other.value))
    if kind == "known":
        other = draw(st.one_of(numbers(), arrays()))
        return Written(f"{other.text} * ({inner.text})", x * other.value)
    if kind == "negative":
        return Written(f"-({inner.text})", -x)
    if kind == "power":
        exponent = draw(st.integers(1, 3))
        return Written(f"({inner.text}) ** {exponent}", x**exponent)
    if kind == "divide":
        return Written(f"({inner.text})/4", x / 4)
    if kind == "group":
        return Written(f"(({inner.text}) + 1)", x + 1)
    if kind == "decide":
        other = draw(expressions(names, depth - 1))
        y = other.value
        # Halves of small numbers only, so that both ways of computing agree on which is larger.
        choice = draw(st.integers(0, 5))
        if choice == 0:
            return Written(f"({inner.text})>({other.text})+0.3", np.asarray(x > y + 0.3, dtype=float))
        if choice == 1:
            return Written(f"where(({inner.text}) <= 0.3,{other.text},{inner.text})", np.where(x <= 0.3, y, x))
        if choice == 2:
            return Written(f"maximum({inner.text},minimum({other.text},1))", np.maximum(x, np.minimum(y, 1)))
        if choice == 3:
            return Written(f"({inner.text})/(abs({other.text})+1)", x / (np.abs(y) + 1))
        if choice == 4:
            return Written(f"1/(1+({inner.text})**2) - max({inner.text}, axis=0)", 1 / (1 + x**2) - x.max(0))
        return Written(
            f"softmax({inner.text})",
            np.exp(x - x.max(-1, keepdims=True)) / np.exp(x - x.max(-1, keepdims=True)).sum(-1, keepdims=True),
        )
    if kind == "call":
        name, function = draw(
            st.sampled_from([("relu", lambda v: np.maximum(v, 0)), ("tanh", np.tanh), ("neg", np.negative)])
        )
        return Written(f"{name}({inner.text})", function(x))
    choice = draw(st.integers(0, 3))
    if choice == 0:
        return Written(f"permute(permute({inner.text}, [1,0]), axes = [1,0])", x)
    if choice == 1:
        return Written(f"concat(({inner.text})[0:1],({inner.text})[1:],axis=0)", x)
    if choice == 2:
        return Written(f"reshape(flatten({inner.text}), shape=[2, -1])", x)
    return Written(f"({inner.text})[::-1 * -1, 0:3]", x)


@st.composite
def programs(draw: st.DrawFn) -> tuple[str, list[np.ndarray], list[np.ndarray]]:
    """A text, inputs, and the outputs that numpy gives."""
    values = st.sampled_from([-1.0, -0.5, 0.0, 0.25, 1.0])
    inputs = [np.array(draw(st.lists(values, min_size=6, max_size=6))).reshape(SHAPE) for _ in range(2)]
    names = {"x": inputs[0], "server.y": inputs[1]}
    lines = [
        "program   random # a comment",
        "input x:secret tensor[2,3] in [-1,1]",
        "",
        "",
        "input server.y : plain tensor [ 2 , 3 ]",
    ]
    if draw(st.booleans()):
        lines += [
            "# of the function",
            "fn twice( a : tensor[n,m] )->tensor[n,m]{",
            "b = a+a # inside",
            "",
            "return b",
            "}",
        ]
        name = draw(st.sampled_from(sorted(names)))
        lines.append(f"f = twice( {name} )")
        names["f"] = 2 * names[name]
    for count in range(draw(st.integers(1, 4))):
        expression = draw(expressions(dict(names)))
        name = draw(st.sampled_from(["a", "b.c", "a", f"v{count}"]))
        note = draw(st.sampled_from(["", " # note", "\n# alone\n", "\n\n\n"]))
        lines.append(f"{name} = {expression.text}{note}")
        names[name] = expression.value
    if draw(st.booleans()):
        turns = draw(st.integers(0, 3))
        lines += [f"for i in 0 .. {turns} {{ s = x*i", "x2 = s + 1 }"]
        if turns:
            names["s"] = names["x"] * (turns - 1)
            names["x2"] = names["s"] + 1
    last = draw(expressions(names))
    outputs = sorted(draw(st.sets(st.sampled_from(sorted(names)), max_size=2)))
    items = [*outputs, f'"the result" = {last.text}']
    lines.append("output " + ",".join(items))
    return "\n".join(lines), inputs, [*(names[name] for name in outputs), last.value]


@SETTINGS
@given(programs())
def test_random_programs(case: tuple[str, list[np.ndarray], list[np.ndarray]]) -> None:
    text, inputs, expected = case
    program = verify(parse(text))
    results = interpret(program, *inputs)
    results = results if isinstance(results, tuple) else (results,)
    for result, value in zip(results, expected, strict=True):
        assert result.shape == value.shape
        np.testing.assert_allclose(result, value, rtol=1e-9, atol=1e-9)

    formatted = format_text(text)
    assert format_text(formatted) == formatted
    assert circuit(parse(formatted)) == circuit(program)
    assert formatted.count("#") == text.count("#")
    # A line is longer than the width only where a statement has no bracket to open.
    assert all(len(line.split("#")[0].rstrip()) <= WIDTH + 20 for line in formatted.splitlines())

    printed = to_language(program)
    again = verify(parse(printed))
    assert circuit(again) == circuit(program)
    assert to_language(again) == to_language(parse(to_language(again)))

    assert programs_equal(parse_program(str(program), program.constants), program)


@st.composite
def layouts(draw: st.DrawFn) -> str:
    """Calls, lists and comments laid out at random."""
    depth = draw(st.integers(0, 3))

    def gap(inside: bool) -> str:
        return draw(st.sampled_from(["", " ", "  "] + (["\n", " # c\n", "\n # own\n", "\n\n"] if inside else [])))

    def value(level: int) -> str:
        kind = draw(st.integers(0, 4)) if level else draw(st.integers(0, 1))
        if kind == 0:
            return draw(st.sampled_from(["x", "some.longer_name", "1.5", "-x", '"a # b"', "true"]))
        if kind == 1:
            return f"x{gap(False)}+{gap(False)}-3" if draw(st.booleans()) else "x**2"
        items = [value(level - 1) for _ in range(draw(st.integers(0, 6)))]
        inner = f"{gap(True)},{gap(True)}".join(items)
        comma = "," if items and draw(st.booleans()) else ""
        if kind == 2:
            return f"[{gap(True)}{inner}{gap(True)}{comma}{gap(True)}]"
        if kind == 3:
            return f"call{gap(False)}({gap(True)}{inner}{comma}{gap(True)})"
        return f"call(x,{gap(True)}key{gap(True)}={gap(True)}{value(level - 1)})"

    lines = ["program layout", *(f"y = {value(depth)}{gap(False)}" for _ in range(draw(st.integers(1, 4)))), "output y"]
    return "\n".join(lines)


@SETTINGS
@given(layouts())
def test_random_layouts(text: str) -> None:
    formatted = format_text(text)
    assert format_text(formatted) == formatted
    assert formatted.count("#") == text.count("#")
