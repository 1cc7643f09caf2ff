"""The text form at every stage, what the parser refuses, and the verifier's rules one by one."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heliograph.ckks.ring import Ring
from heliograph.compiler.options import Options
from heliograph.compiler.pipeline import back_passes, front_passes
from heliograph.errors import ProgramError, VerifyError
from heliograph.ir import Builder, CipherType, Node, OpaqueConstant, Program, SlotsType, Stage, TensorType
from heliograph.ir.text import parse_program, print_program, programs_equal
from heliograph.ir.verify import verify

RING = Ring(10, 60, 40, 5, 2, None)


@functools.cache
def stages() -> dict[str, Program]:
    random = np.random.default_rng(0)
    builder = Builder('net "quoted" é', Stage.TENSOR)
    x = builder.input("x", shape=(12,), low=-1.0, high=1e-7)
    h = builder.op("linear", (x,), weight=builder.constant(random.normal(size=(9, 12)).astype(np.float32), "w"))
    h = builder.op("gelu", (h,), degree=3)
    y = builder.op("add", (h, builder.op("mul", (h, h))))
    program = builder.finish({"y": y, "h": h})
    front = front_passes(program, Options())
    return {"tensor": program, **dict(front), **dict(back_passes(front[-1].program, RING, Options()))}


NAMES = ["tensor", "simplify", "fuse-linear", "approximate", "fold-scaling", "pack"]
NAMES += ["lower-polynomials", "plan-levels", "select-keys", "schedule"]


@pytest.mark.parametrize("name", NAMES)
def test_text_parses_back(name: str) -> None:
    program = stages()[name]
    text = print_program(program)
    parsed = parse_program(text, program.constants)
    assert print_program(parsed) == text
    assert programs_equal(parsed, program)
    assert parsed.stage is program.stage
    verify(parsed)
    for key, constant in program.constants.items():
        assert type(parsed.constants[key]) is type(constant)


@pytest.mark.parametrize("name", NAMES)
def test_text_without_contents_keeps_shapes(name: str) -> None:
    program = stages()[name]
    text = print_program(program)
    parsed = parse_program(text)
    assert print_program(parsed) == text
    assert any(isinstance(c, OpaqueConstant) for c in parsed.constants.values())
    verify(parsed)


def test_another_constant_is_refused() -> None:
    program = stages()["tensor"]
    changed = {name: np.asarray(value) + np.float32(1) for name, value in program.constants.items()}
    with pytest.raises(ProgramError, match="digest"):
        parse_program(print_program(program), changed)


SMALL = """heliograph-ir 2
program "p" tensor
output "y" {shape = [2], low = -2.5, high = null}
const @"k" = f64[2] "%s" [0.5, -1.0]
%%0 = input() {name = "x", shape = [2]} : tensor<2>
%%1 = constant() {value = @"k"} : tensor<2, plain>
%%2 = add(%%0, %%1) : tensor<2> loc("m.py", 3, 4, "l")
return "y" = %%2
"""


def small() -> str:
    from heliograph.ir.node import constant_digest

    return SMALL % constant_digest(np.array([0.5, -1.0]))


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("heliograph-ir 2", "heliograph-ir 1", "version"),
        ("tensor\n", "tensors\n", "stage"),
        ("add(%0, %1)", "add(%0, %9)", "before it is defined"),
        ("%2 = add", "%1 = add", "defined twice"),
        ("[0.5, -1.0]", "[0.5]", "do not fill"),
        ("[0.5, -1.0]", "[0.5, -2.0]", "digest"),
        ("f64[2]", "f16[2]", "unknown kind"),
        ('name = "x"', 'name = "x", name = "y"', "twice"),
        ("return", "", "not the text"),
        ('return "y" = %2', "return", "line 8"),
        ('"m.py"', '"m\\q.py"', "malformed string"),
        ("[2]} :", "[" + "9" * 50 + "]} :", "digits"),
        ("{shape = [2", "{shape = [2" + ", [" * 3000 + "]" * 3000, ""),
    ],
)
def test_malformed_text_is_refused(old: str, new: str, words: str) -> None:
    text = small()
    parse_program(text)
    assert old in text
    with pytest.raises(ProgramError, match=words):
        parse_program(text.replace(old, new, 1))


@given(
    edits=st.lists(
        st.tuples(
            st.integers(0, 2000), st.integers(0, 12), st.text(alphabet='%@"[]{}()=:,<>x01-.e\\ \nadtrueinf', max_size=6)
        ),
        min_size=1,
        max_size=4,
    ),
    name=st.sampled_from(["small", "tensor", "pack", "schedule"]),
)
@settings(max_examples=250, deadline=None, derandomize=True)
def test_any_text_parses_or_is_refused(edits: list[tuple[int, int, str]], name: str) -> None:
    """Whatever the text, parsing and verifying end with a program or with one of our errors."""
    text = small() if name == "small" else print_program(stages()[name])
    for at, drop, put in edits:
        at %= len(text)
        text = text[:at] + put + text[at + drop :]
    try:
        program = parse_program(text)
        verify(program)
    except (ProgramError, VerifyError):
        return
    again = print_program(program)
    assert print_program(parse_program(again)) == again


# ------------------------------------------------------------------------------------------ verifier


def swap(program: Program, node: Node, new: Node, **changes: Any) -> Program:
    """The program with one node replaced, in its readers too."""
    table = {node: new}
    nodes = []
    for n in program.nodes:
        made = table.get(n) or replace(n, inputs=tuple(table.get(i, i) for i in n.inputs))
        table[n] = made if made.inputs != n.inputs or n in table else n
        nodes.append(table[n])
    return replace(
        program,
        nodes=tuple(nodes),
        inputs=tuple(table[n] for n in program.inputs),
        outputs=tuple(table[n] for n in program.outputs),
        **changes,
    )


def find(program: Program, op: str) -> Node:
    return next(node for node in program.nodes if node.op == op)


def retyped(op: str, **changes: Any) -> Callable[[Program], Program]:
    def change(program: Program) -> Program:
        node = find(program, op)
        return swap(program, node, replace(node, type=replace(node.type, **changes)))  # type: ignore[type-var]

    return change


def with_attrs(op: str, **attrs: Any) -> Callable[[Program], Program]:
    def change(program: Program) -> Program:
        node = find(program, op)
        return swap(program, node, replace(node, attrs={**node.attrs, **attrs}))

    return change


def whole_chain(**entries: Any) -> Callable[[Program], Program]:
    """Another ring, or other keys, of the whole chain."""

    def change(program: Program) -> Program:
        first, *rest = program.planned.chains
        return replace(program, parameters=replace(program.planned, chains=(replace(first, **entries), *rest)))

    return change


def foreign_operand(program: Program) -> Program:
    node = find(program, "add")
    outside = Node("neg", (), {}, node.inputs[0].type)
    return swap(program, node, replace(node, inputs=(outside, node.inputs[1])))


BREAKS: list[tuple[str, str, Callable[[Program], Program], str]] = [
    ("order", "tensor", lambda p: replace(p, nodes=p.nodes[::-1]), "operands come first"),
    ("foreign operand", "tensor", foreign_operand, "operands come first"),
    ("twice", "tensor", lambda p: replace(p, nodes=(*p.nodes, p.nodes[0])), "one place per node"),
    ("type", "tensor", retyped("add", shape=(3, 3)), "types are inferred"),
    ("secret", "tensor", retyped("add", secret=False), "types are inferred"),
    ("attribute", "tensor", with_attrs("linear", extra=1), "no attribute 'extra'"),
    ("constant", "tensor", lambda p: replace(p, constants={}), "there is no constant"),
    ("stage", "tensor", lambda p: replace(p, stage=Stage.POLYNOMIAL), "does not exist at the polynomial stage"),
    ("slots in tensors", "tensor", lambda p: replace(p, stage=Stage.PACKED), "packed"),
    (
        "foreign output",
        "tensor",
        lambda p: replace(p, outputs=(Node("neg", (), {}, TensorType((1,))),) * 2),
        "outputs are",
    ),
    ("output names", "tensor", lambda p: replace(p, output_names=("y",)), "2 outputs, 1 names"),
    ("one output name", "tensor", lambda p: replace(p, output_names=("y", "y")), "two outputs have one name"),
    ("no output", "tensor", lambda p: replace(p, outputs=(), output_names=()), "no output"),
    ("inputs", "tensor", lambda p: replace(p, inputs=()), "list of inputs"),
    ("infinite", "tensor", lambda p: replace(p, constants={k: v * np.inf for k, v in p.constants.items()}), "NaN"),
    ("unleveled", "plan-levels", lambda p: retyped_input(p, SlotsType(512)), "types"),
    ("level", "plan-levels", retyped("rescale", level=1), "types are inferred"),
    ("scale", "plan-levels", retyped("rescale", log_scale=41.0), "types are inferred"),
    ("parts", "plan-levels", retyped("relinearize", parts=3), "types are inferred"),
    (
        "unplanned scale",
        "plan-levels",
        lambda p: without_attr(p, "linear_transform", "plain_log_scales"),
        "not planned",
    ),
    ("other chain", "plan-levels", lambda p: whole_chain(ring=replace(p.ring, scale_bits=36))(p), "types are inferred"),
    (
        "short chain",
        "plan-levels",
        lambda p: whole_chain(ring=replace(p.ring, levels=1))(p),
        "levels are those of the chain",
    ),
    (
        "missing key",
        "schedule",
        lambda p: whole_chain(rotation_keys=p.planned.chains[0].rotation_keys[1:])(p),
        "has a key",
    ),
    ("no relinearization key", "schedule", whole_chain(relinearization_key=False), "relinearization key"),
    ("wrong path", "schedule", lambda p: paths(whole_chain(rotation_keys=(1,))(p), p), "has a key"),
    ("no parameters", "schedule", lambda p: replace(p, parameters=None), "a chain of 0 primes"),
]


def paths(changed: Program, program: Program) -> Program:
    """With a path for each amount that leads somewhere else."""
    wrong = {amount: (1,) for amount in program.planned.chains[0].rotation_keys if amount != 1}
    return replace(changed, parameters=replace(changed.planned, rotation_paths=wrong))


def retyped_input(program: Program, kind: Any) -> Program:
    node = program.inputs[0]
    return swap(program, node, replace(node, type=kind))


def without_attr(program: Program, op: str, name: str) -> Program:
    node = find(program, op)
    return swap(program, node, replace(node, attrs={k: v for k, v in node.attrs.items() if k != name}))


@pytest.mark.parametrize(("stage", "change", "words"), [b[1:] for b in BREAKS], ids=[b[0] for b in BREAKS])
def test_each_break_of_the_contract_is_caught(stage: str, change: Callable[[Program], Program], words: str) -> None:
    program = stages()[stage]
    verify(program)
    broken = change(program)
    with pytest.raises(VerifyError) as caught:
        verify(broken, after="a-pass")
    assert words in str(caught.value)
    assert "after a-pass" in str(caught.value)


def test_managed_types_are_ciphertexts() -> None:
    assert all(isinstance(node.type, CipherType) for node in stages()["schedule"].nodes)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("server {floood = 1.0}", "'floood'; perhaps 'flood' was meant"),
        ('input "x" {shape = [4], lwo = -1.0}', "'lwo'; perhaps 'low' was meant"),
        ('output "y" {shape = [4], rang_source = "proved"}', "perhaps 'range_source' was meant"),
        ("chain {ring = {log_ring = 14, digit = 2}}", "perhaps 'digits' was meant"),
        ('range 0 {layer = "a", max_eror = 1.0}', "perhaps 'max_error' was meant"),
    ],
)
def test_a_misspelt_name_in_a_record_is_refused(line: str, said: str) -> None:
    body = '%0 = input() {name = "x", shape = [4]} : tensor<4>\nreturn "y" = %0\n'
    text = f'heliograph-ir 2\nprogram "t" tensor\n{line}\n{body}'
    with pytest.raises(ProgramError, match=said):
        parse_program(text)
