"""Texts of the IR that no program prints: the reader or the verifier refuses each in words."""

import time

import pytest

from heliograph.errors import HeliographError
from heliograph.ir.text import parse_program, print_program
from heliograph.ir.verify import verify

TENSOR = 'heliograph-ir 2\nprogram "p" tensor\n'
MANAGED = 'heliograph-ir 2\nprogram "p" managed\n'
INPUT = '%0 = input() {name = "x", shape = [4]} : tensor<4>\n'
RETURN = 'return "y" = %0\n'
LONG = "9" * 5000
RING = "{log_ring = 14, first_mod_bits = 42, scale_bits = 34, levels = 6, digits = 2}"

REFUSED = {
    "empty": "",
    "deep attribute": TENSOR + "%0 = input() {a = " + "[" * 50_000 + "]" * 50_000 + "} : tensor<4>\n" + RETURN,
    "deep record": TENSOR + "chain {a = " + "[" * 50_000 + "]" * 50_000 + "}\n" + INPUT + RETURN,
    "a record that nobody knows": TENSOR + "chian {}\n" + INPUT + RETURN,
    "a record without its name": TENSOR + "input {shape = [4]}\n" + INPUT + RETURN,
    "a ring of numbers": TENSOR + "chain {ring = [1, 2]}\n" + INPUT + RETURN,
    "a huge ring": TENSOR + f"chain {{ring = {RING.replace('14', '60')}}}\n" + INPUT + RETURN,
    "a ring of many levels": TENSOR
    + f"chain {{ring = {RING.replace('levels = 6', 'levels = 1000000')}}}\n"
    + INPUT
    + RETURN,
    "keys are a number": TENSOR + f"chain {{ring = {RING}, rotation_keys = 3}}\n" + INPUT + RETURN,
    "keys are words": TENSOR + f'chain {{ring = {RING}, rotation_keys = ["a"]}}\n' + INPUT + RETURN,
    "a lower chain of no level": TENSOR + f"chain {{ring = {RING}}}\nchain {{digits = 1}}\n" + INPUT + RETURN,
    "a path and no chain": TENSOR + "path 3 {steps = [1, 2]}\n" + INPUT + RETURN,
    "a range out of order": TENSOR + "range 1 {}\n" + INPUT + RETURN,
    "a range of text": TENSOR + 'range 0 {layer = "a", low = "b"}\n' + INPUT + RETURN,
    "a field twice": TENSOR + "chain {level = 1, level = 2}\n" + INPUT + RETURN,
    "long dimensions": TENSOR + f"%0 = input() : tensor<{LONG}x{LONG}>\n" + RETURN,
    "long dimension": TENSOR + f"%0 = input() : tensor<{LONG}>\n" + RETURN,
    "long slots": TENSOR + f"%0 = input() : slots<{LONG}>\n" + RETURN,
    "long level": MANAGED + f"%0 = input() : cipher<4, level {LONG}, scale 1.0, parts 2>\n" + RETURN,
    "long line number": TENSOR + f'%0 = input() : tensor<4> loc("a", {LONG}, 1, "b")\n' + RETURN,
    "long version": f'heliograph-ir {LONG}\nprogram "p" tensor\n' + INPUT + RETURN,
    "long constant": TENSOR + f'const @"c" = f64[{LONG}] "aa" [1.0]\n' + INPUT + RETURN,
    "wrong digest": TENSOR + 'const @"c" = f32[1] "aa" [1e300]\n' + INPUT + RETURN,
    "input without shape": TENSOR + '%0 = input() {name = "x"} : tensor<4>\n' + RETURN,
    "unknown escape": TENSOR + '%0 = input() {name = "\\q"} : tensor<4>\n' + RETURN,
    "unknown op": TENSOR + "%0 = nothing() : tensor<4>\n" + RETURN,
    "unknown value": TENSOR + INPUT + 'return "y" = %1\n',
    "defined twice": TENSOR + INPUT + INPUT + RETURN,
    "period zero": 'heliograph-ir 2\nprogram "p" packed\nconst @"c" = sparse[0x0] "aa"\n'
    '%0 = input() {name = "x", slots = 4} : slots<4>\n'
    '%1 = linear_transform(%0) {matrix = @"c", geometry = {slots = 4, in_period = 0, out_period = 0}, baby_steps = [], '
    "giant_steps = []} : slots<4>\n" + RETURN,
    "windows that do not fit": TENSOR + 'const @"c" = f64[1] "aa"\n' + INPUT + '%1 = conv(%0) {weight = @"c", '
    "stride = [0], padding = [], dilation = [1, 2], groups = 0} : tensor<4>\n" + RETURN,
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    start = time.process_time()
    with pytest.raises(HeliographError) as caught:
        verify(parse_program(REFUSED[name]))
    assert time.process_time() - start < 10
    assert len(str(caught.value)) <= 20_000


def test_a_scalar_constant_keeps_its_shape() -> None:
    from heliograph.dsl.parse import parse

    program = parse("program p\ninput x: secret tensor[] in [0, 1]\noutput y = x * 2.5\n")
    text = print_program(program)
    assert 'f64[] "' in text
    assert ": tensor<scalar, plain>" in text
    again = parse_program(text)
    assert print_program(verify(again)) == text
    assert again.array("c").shape == ()
