"""What the language says about wrong texts: place, line, caret, what was expected, what to try."""

import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from heliograph.dsl.parse import parse
from heliograph.errors import LanguageError, ProgramError, UnsupportedError, UnsupportedLanguageError

HEAD = "program p\ninput x: secret tensor[2, 3] in [-1, 1]\n"
SLOTS = "program p\ninput x: secret slots[6] in [-1, 1]\n"

CASES = {
    "no_program": "",
    "no_header": "x = 3\n",
    "no_input": "program p\noutput 3\n",
    "no_output": HEAD,
    "late_header": "input x: secret tensor[1] in [0, 1]\nprogram p\noutput x\n",
    "two_programs": HEAD + "program q\noutput x\n",
    "names": HEAD + "weigth = [1, 2, 3]\ny = x * weight + zz\noutput Y\n",
    "twice": HEAD + "param x = [1]\nconst k = 1\nk = 2\nfn f(a) {\n  return a\n}\nfn f(b) {\n  return b\n}\noutput x\n",
    "before": HEAD + "y = x * w\nparam w = [1, 2, 3]\noutput y\n",
    "calls": HEAD
    + "fn f(a, b) {\n  return a + b\n}\ny = f(x)\nz = f(x, 1, 2)\nu = f(x, c=1)\nv = f(x, b=1, b=2)\noutput x\n",
    "ops": HEAD
    + "y = linear(x, wieght=[[1, 2, 3]])\nz = linear(x)\nw = neg()\nv = neg(x, 1, 2)\nu = sigmod(x)\noutput x\n",
    "kinds": HEAD
    + 'a = relu(x, degree="high")\nb = relu(x, degree=0)\nc = relu(x, low=1, high=0)\nd = relu(x, low=1)\n'
    + "e = reshape(x, shape=true)\ng = linear(x, weight=x)\nh = linear(x, weight=[[1, 2], [3]])\noutput x\n",
    "shapes": HEAD
    + "param w = [[1, 2], [3, 4]]\nparam v: tensor[3] = [1, 2]\na = x + w\nb = x @ w\nc = linear(x, weight=w)\n"
    + "d = x[2]\ne = x[0, 1, 2]\nf = x[0:0]\ng = reshape(x, [5])\nh = concat(x, w, axis=0)\noutput x\n",
    "functions": HEAD
    + "fn f(a: tensor[n, n]) -> tensor[n] {\n  return a\n}\nfn g(a: tensor[n]) -> tensor[n, n] {\n  return a\n}\n"
    + "fn h(a: int) {\n  b = zeros([a]) @ zeros([a + 1])\n  return x\n}\n"
    + "y = f(x)\nz = g(x[0])\nu = h(2)\nv = h(0.5)\noutput x\n",
    "recursion": HEAD
    + "fn f(a) {\n  return g(a)\n}\nfn g(a) {\n  b = f(a)\n  return b\n}\nfn h(a) {\n  return h(a)\n}\n"
    + "y = f(h(x))\noutput y\n",
    "places": HEAD
    + "return x\nfor i in 0..2 {\n  output x\n  const k = 1\n}\nfn f(a) {\n  return a\n  b = a\n}\n"
    + "fn g(a) {\n}\noutput x\n",
    "annotations": HEAD
    + "y = x * 2 with degree = 3\nz = relu(x) with degre = 3\nu = relu(x) with range = 3\n"
    + "v = relu(x) with method = 7\noutput x\n",
    "loops": HEAD
    + "for i in 0..x {\n}\nfor i in 0..5 by 0 {\n}\nfor i in 0..10**12 {\n}\nfor i in 0..0 {\n  y = x\n}\noutput y\n",
    "loop_not_run": HEAD + "for i in 0..0 {\n  y = x\n}\noutput y\n",
    "syntax": HEAD
    + "y = (x + 1\nz = x +\ninptu q: secret tensor[1]\nw = x $ 1\ns = 'abc'\nt = \"abc\nu = x ^ 2\nv = x; w = x\n"
    + "f(x) = 3\n= 4\nfor i in 0...3 {\n}\na = [1, 2))\n}\noutput x\n",
    "unclosed": HEAD + "fn f(a) {\n  return a\noutput x\n",
    "numbers": HEAD
    + "a = 1e999\nb = 99999999999999999999\nc = 2 ** 9999\nd = 1 / 0\ne = 5 % 0\nf = (-1) ** 0.5\ng = x ** -1\n"
    + "h = x ** 0.5\ni = x / 0\nk = 3 // [1]\noutput x\n",
    "comparisons": HEAD
    + 'a = 0 < x < 1\nb = x == 1\nc = x != [1, 2, 3]\nd = > x\ne = (x > 0) + "a" > 1\nf = x > [1, 2]\n'
    + "g = max(x, x)\nh = min(x, axis=2)\ni = clamp(x)\nj = sign(x, gap=0)\nk = x > 0 with gap = -1\n"
    + "l = argmax(x) with bits = 0\nm = x > 0 with degree = 7\nn = x / x with gap = 1\no = 1 / x with range = [1]\n"
    + "p = softmax(x, axes=0)\nq = where(x > 0, x)\nr = true / x\noutput x\n",
    "slots": SLOTS
    + "input z: secret slots[8] in [0, 1]\ninput t: secret tensor[6]\ninput u: secret slots[6]\na = x + [1, 2]\n"
    + "b = x @ x\nc = x[0]\nd = relu(x)\ne = rotate([1], 1)\nf = x / x\ng = rotate(x)\nh = x > 0\noutput a = x, b = 3\n",
    "division": SLOTS + "output y = x / x\n",
    "outputs": HEAD + "output x, x\noutput y = 3, z = [x, x]\n",
    "parameters": HEAD
    + 'param a\nparam b = load("missing.npz", "w")\nparam c = load("../up.npz", "w")\n'
    + 'param d = load("/etc/passwd", "w")\nparam e = load("w.txt", "w")\nparam f = load(3)\nparam g = given("h")\n'
    + "param h = x\nparam i: slots[3] = [1]\noutput x\n",
}


@pytest.mark.parametrize("name", CASES)
def test_golden(name: str, golden: Callable[[str, str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(LanguageError) as caught:
        parse(CASES[name])
    golden(f"{name}.txt", str(caught.value) + "\n")


def test_only_unsupported() -> None:
    with pytest.raises(UnsupportedError) as caught:
        parse(CASES["division"])
    assert isinstance(caught.value, UnsupportedLanguageError)
    assert "cannot be divided" in caught.value.what
    # Together with a plain error it is a plain error.
    with pytest.raises(LanguageError) as both:
        parse(CASES["division"] + "output z = zz\n")
    assert not isinstance(both.value, UnsupportedError)


def test_diagnostics_are_data_and_survive_pickling() -> None:
    with pytest.raises(LanguageError) as caught:
        parse(CASES["names"])
    error = pickle.loads(pickle.dumps(caught.value))
    assert str(error) == str(caught.value)
    assert [(d.line, d.column) for d in error.diagnostics] == [(4, 9), (4, 18), (5, 8)]
    assert error.where == "<text>:4:9"


def test_places_name_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    path = tmp_path / "models" / "bad.hg"
    path.write_text(HEAD + "output yy\n")
    with pytest.raises(LanguageError, match=r"^models/bad\.hg:3:8: there is no value called 'yy'"):
        parse("models/bad.hg")
    with pytest.raises(ProgramError, match=r"none\.hg cannot be read"):
        parse(tmp_path / "none.hg")
    with pytest.raises(ProgramError, match="this is not a file"):
        parse(tmp_path)


def test_tabs_and_long_lines_keep_the_caret_in_place() -> None:
    with pytest.raises(LanguageError) as caught:
        parse(HEAD + "y =\t\tx + " + "0 + " * 60 + "zz\noutput y\n")
    place, excerpt, caret, *_ = str(caught.value).splitlines()
    assert place.startswith("<text>:3:")
    assert "\t" not in excerpt
    assert excerpt[caret.index("^") :].startswith("zz")
    assert len(excerpt) < 120


def test_wrong_arguments_of_parse() -> None:
    with pytest.raises(ProgramError, match="parse takes text or a path"):
        parse(3)  # type: ignore[arg-type]
    with pytest.raises(LanguageError, match="not an array"):
        parse(HEAD + "param w\noutput x * w", parameters={"w": [[1], [2, 3]]})
    with pytest.raises(LanguageError, match="NaN"):
        parse(HEAD + "param w\noutput x * w", parameters={"w": np.array([np.nan])})
    with pytest.raises(LanguageError, match="real numbers"):
        parse(HEAD + "param w\noutput x * w", parameters={"w": np.array([1j])})
