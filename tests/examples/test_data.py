"""What benchmarks/data.md says of the data is true of the files, and it names all that are read."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "benchmarks/data.md").read_text()
SUMS = {name: digest for digest, name in re.findall(r"^([0-9a-f]{64})  (\S+)$", TEXT, re.MULTILINE)}


@pytest.mark.parametrize("name", SUMS)
def test_the_sum_of_a_file_is_the_one_that_is_written(name: str, data: Callable[[str], Path]) -> None:
    assert hashlib.sha256(data(name).read_bytes()).hexdigest() == SUMS[name]


def test_every_file_that_is_read_has_a_source() -> None:
    files = [*(ROOT / "benchmarks").glob("*.py"), *(ROOT / "tests").rglob("*.py"), *(ROOT / "examples").glob("*.py")]
    known = r"(?:mnist|fashion_mnist|cifar10_\w+|adult|imdb_\w+|snips_\w+)\.npz"
    read = {name for file in files for name in re.findall(known, file.read_text())}
    assert len(read) >= 5
    assert read <= set(SUMS)
    for name in SUMS:
        assert f"`{name}`" in TEXT.partition("SHA-256")[0], f"{name} has no source"
