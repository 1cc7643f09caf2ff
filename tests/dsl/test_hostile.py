"""Texts that mean harm: each ends in a bounded time with bounded words, never with a traceback."""

import time
from pathlib import Path

import pytest

from heliograph.dsl.format import format_text
from heliograph.dsl.parse import parse
from heliograph.errors import HeliographError, InternalError, LanguageError, ProgramError

HEAD = "program p\ninput x: secret tensor[4] in [-1, 1]\n"
SLOTS = "program p\ninput x: secret slots[8] in [-1, 1]\n"


def functions(count: int, body: str) -> str:
    return "".join(f"fn f{i}(x) {{\n  return {body.format(i - 1)}\n}}\n" for i in range(1, count))


REFUSED = {
    "parentheses": HEAD + "y = " + "(" * 50_000 + "x" + ")" * 50_000 + "\noutput y\n",
    "unclosed": HEAD + "y = " + "[" * 100_000,
    "signs": HEAD + "y = " + "-" * 90_000 + "x\noutput y\n",
    "sum": HEAD + "y = " + "x+" * 45_000 + "x\noutput y\n",
    "power tower": HEAD + "y = " + "x**" * 45_000 + "2\noutput y\n",
    "blocks": HEAD + "for i in 0..1 {\n" * 16_000,
    "closing": HEAD + "}\n" * 90_000,
    "words": "a " * 500_000,
    "one word": "a" * 1_000_000,
    "long number": HEAD + "y = x * " + "9" * 900_000 + "\noutput y\n",
    "long exponent": HEAD + "y = x * 1e" + "9" * 900_000 + "\noutput y\n",
    "unknown bytes": "$" * 1_000_000,
    "nul": "\0" * 1_000_000,
    "not ascii": "é" * 500_000,
    "quotes": '"' * 1_000_000,
    "line ends": "\r" * 1_000_000,
    "many errors": HEAD + "y = zz + x\n" * 14_000 + "output y\n",
    "many names": HEAD + "".join(f"y{i} = yy{i}a + x\n" for i in range(14_000)) + "output y1\n",
    "literal": HEAD + "y = x * [" + "1," * 45_000 + "]\noutput y\n",
    "long loop": HEAD + "y = x\nfor i in 0..9007199254740992 {\n  y = y + x\n}\noutput y\n",
    "nested loops": HEAD + "for i in 0..1000 {\nfor j in 0..1000 {\nfor k in 0..1000 {\n}\n}\n}\noutput x\n",
    "unrolled": HEAD + "y = x\nfor i in 0..190000 {\n  y = y + x\n}\noutput y\n",
    "slots unrolled": SLOTS + "y = x\nfor i in 0..190000 {\n  y = y * x\n}\noutput y\n",
    "recursion": HEAD + "fn f(x) {\n  return f(x)\n}\ny = f(x)\noutput y\n",
    "ring of calls": HEAD + functions(7000, "f{}(x)") + "fn f0(x) {\n  return f6999(x)\n}\ny = f5(x)\noutput y\n",
    "chain of calls": HEAD + "fn f0(x) {\n  return x\n}\n" + functions(7000, "f{}(x)") + "y = f6999(x)\noutput y\n",
    "tree of calls": HEAD
    + "fn f0(x) {\n  return x + x\n}\n"
    + functions(24, "f{0}(x) + f{0}(x)")
    + "y = f23(x)\noutput y\n",
    "large power": HEAD + "y = x * 9**9**9**9\noutput y\n",
    "large exponent": HEAD + "y = x**1000000000\noutput y\n",
    "large input": "program p\ninput x: secret tensor[100000000, 100000000] in [-1, 1]\noutput x\n",
    "large slots": "program p\ninput x: secret slots[1000000000000] in [-1, 1]\noutput x\n",
    "large array": HEAD + "y = zeros([100000, 100000])\noutput x\n",
    "large product": HEAD + "y = zeros([2000, 2000]) @ zeros([2000, 2000])\noutput x\n",
    "large result": HEAD + "y = broadcast(x, shape=[1000000000, 1000000000, 4])\noutput y\n",
    "large padding": HEAD + "y = pad(x, before=[1000000000], after=[2])\noutput y\n",
    "growing list": HEAD + "a = [1, 2]\nfor i in 0..60 {\n  a = [a, a]\n}\ny = a * 2\noutput x\n",
    "growing array": HEAD + "a = ones([2])\nfor i in 0..60 {\n  a = concat([a, a], axis=0)\n}\noutput x\n",
    "much computed": HEAD + "a = ones([4000000])\nfor i in 0..10000 {\n  a = a * 2 - a\n}\noutput x\n",
    "lists computed": HEAD
    + "a = [1]\nfor i in 0..12 {\n  a = [a[0], a[0]]\n}\nb = [a, a, a, a]\n"
    + "for i in 0..60000 {\n  c = [b, b, b, b] * 2\n}\noutput x\n",
    "attributes": HEAD + "y = relu(x" + ", degree=3" * 22_000 + ")\noutput y\n",
    "parameters": HEAD
    + "fn f("
    + ", ".join(f"a{i}" for i in range(45_000))
    + ") {\n  return a1\n}\ny = f(x)\noutput y\n",
    "indices": HEAD + "y = x[" + ",".join("1" * 45_000) + "]\noutput y\n",
    "stride": HEAD + "y = conv(reshape(x, [1, 4]), weight=[[[1]]], stride=0)\noutput y\n",
    "groups": HEAD + "y = conv(reshape(x, [1, 4]), weight=[[[1]]], groups=0)\noutput y\n",
    "empty shape": HEAD + "y = reshape(x, [0, -1])\noutput y\n",
    "wrong bias": HEAD + "y = linear(x, weight=[[1, 2, 3, 4]], bias=[1, 2])\noutput y\n",
    "wrong variance": HEAD + "y = batch_norm(x, mean=[1, 2, 3, 4], variance=[1])\noutput y\n",
}
ACCEPTED = {
    "many lines": HEAD + "y = x + x\n" * 16_000 + "output y\n",
    "many constants": HEAD + "".join(f"y{i} = x*{i}.5\n" for i in range(8_000)) + "output y1\n",
    "deep enough": HEAD + "y = " + "(" * 59 + "x" + ")" * 59 + "\noutput y\n",
    "signs": HEAD + "y = " + "-" * 98 + "x\noutput y\n",
    "long comment": HEAD + "#" * 900_000 + "\noutput x\n",
    "long string": 'program "' + "a" * 900_000 + '"\n' + HEAD.split("\n", 1)[1] + "output x\n",
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    start = time.process_time()
    with pytest.raises(LanguageError) as caught:
        parse(REFUSED[name])
    assert time.process_time() - start < 10
    assert 20 < len(str(caught.value)) <= 20_000
    assert all(c.isprintable() or c == "\n" for c in str(caught.value))


@pytest.mark.parametrize("name", ACCEPTED)
def test_accepted(name: str) -> None:
    start = time.process_time()
    parse(ACCEPTED[name])
    assert time.process_time() - start < 10


@pytest.mark.parametrize("name", ["parameters", "literal", "many errors", "sum", "nested loops", "nul"])
def test_formatted_in_time(name: str) -> None:
    start = time.process_time()
    try:
        words = format_text(REFUSED[name])
        assert words.startswith("program p\n")
    except InternalError:
        raise
    except HeliographError as error:
        words = str(error)[:20_001]
    assert time.process_time() - start < 10
    assert len(words) <= 20_000 or name in ("parameters", "literal", "many errors")


@pytest.mark.parametrize("content", [b"x" * 10_000_000, bytes(10_000_000), b"# c\n" * 2_500_000])
def test_ten_megabytes(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "large.hg"
    path.write_bytes(content)
    start = time.process_time()
    with pytest.raises(ProgramError, match="more than 1048576 bytes"):
        parse(path)
    with pytest.raises(ProgramError, match="10000000 bytes"):
        parse(content.decode())
    assert time.process_time() - start < 10


def test_bytes_that_are_not_text(tmp_path: Path) -> None:
    path = tmp_path / "bytes.hg"
    path.write_bytes(b"program p\n# caf\xe9\n" + bytes(range(128, 256)))
    with pytest.raises(LanguageError, match=r"bytes\.hg:2:6: byte 0xe9 is not UTF-8"):
        parse(path)
    path.write_bytes(b"\xef\xbb\xbf" + HEAD.encode().replace(b"\n", b"\r\n") + b"output x\r\n")
    assert parse(path).name == "p"


def test_a_device_is_not_read() -> None:
    with pytest.raises(ProgramError, match="this is not a file"):
        parse(Path("/dev/zero"))
