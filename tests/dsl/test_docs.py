"""Every fenced example of docs/language.md (and the programs of docs/transfer.md) runs, and says what it claims to say."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from heliograph.dsl.format import format_text
from heliograph.dsl.parse import parse
from heliograph.errors import LanguageError
from heliograph.interpret import interpret
from heliograph.ir.text import parse_program, print_program
from heliograph.ir.verify import verify

PAGE = Path(__file__).resolve().parents[2] / "docs" / "language.md"
BLOCKS = re.findall(r"^```([a-z-]+)\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
TRAINING = re.findall(r"^```hg\n(.*?)^```", (PAGE.parent / "transfer.md").read_text(), re.MULTILINE | re.DOTALL)
PROGRAMS = [*(text for kind, text in BLOCKS if kind == "hg"), *TRAINING]
IR_TEXTS = [text for kind, text in BLOCKS if kind == "ir"]
ERRORS = [
    (text, BLOCKS[i + 1][1])
    for i, (kind, text) in enumerate(BLOCKS)
    if kind == "hg-error" and BLOCKS[i + 1][0] == "text"
]
PARAMETERS = {"c": np.array([2.0, 3.0]), "layer.0.weight": np.array([3.0, 6.0])}


def _pairs(text: str) -> dict[str, object]:
    """`x = [1], y = 2` as a dictionary."""
    names = list(re.finditer(r"(?:^|, )(\w+) = ", text))
    ends = [*(match.start() for match in names[1:]), len(text)]
    return {match[1]: json.loads(text[match.end() : end]) for match, end in zip(names, ends, strict=True)}


def test_the_page_has_examples() -> None:
    assert len(PROGRAMS) >= 14
    assert len(ERRORS) == 2
    assert len(IR_TEXTS) == 3


@pytest.mark.parametrize("text", PROGRAMS, ids=lambda text: text.split()[1])
def test_programs(text: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "weights.npz", **{"layer.bias": np.array([10.0, 20.0])})
    path = tmp_path / "example.hg"
    path.write_text(text)
    program = verify(parse(path, parameters=PARAMETERS))
    claim = re.search(r"# given (.*): (\w+ = .*)", text)
    assert claim is not None
    given, expected = _pairs(claim[1]), _pairs(claim[2])
    names = [str(node.attrs["name"]) for node in program.inputs]
    assert set(given) == set(names)
    results = interpret(program, *(given[name] for name in names))
    results = results if isinstance(results, tuple) else (results,)
    assert list(expected) == list(program.output_names)
    for result, value in zip(results, expected.values(), strict=True):
        np.testing.assert_allclose(result, value, atol=1e-12)
    assert format_text(text) == text


@pytest.mark.parametrize(("text", "message"), ERRORS)
def test_errors(text: str, message: str) -> None:
    with pytest.raises(LanguageError) as caught:
        parse(text)
    assert str(caught.value) + "\n" == message


@pytest.mark.parametrize("text", IR_TEXTS)
def test_ir(text: str) -> None:
    program = verify(parse_program(text))
    assert print_program(program) == text
