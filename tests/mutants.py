"""How many changes of the package the tests notice: `python tests/mutants.py --out FILE [--count 60]`.

A mutant is the package with one place changed: a comparison, a number, a sign, or a statement that is left out. For each,
the tests that are about its room run: those of the quick tier and, where none fails, the rest. A test that fails with the
mutant is run without it too; if it fails there, it is left out. Each mutant is one line of JSON in FILE; those that are
there are not made again, so that the script can be stopped and go on. At the end it prints how many mutants each tier
noticed, and the places of those that none did, some of which change nothing that matters.

It works in a copy, and takes a minute or more for each mutant.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeGuard

ROOT = Path(__file__).resolve().parents[1]
# Directories of tests, by the room that they are about.
ABOUT = {
    "approx": ("approx", "passes", "compiler"),
    "artifact": ("formats", "reports", "compiler", "runtime"),
    "certified": ("certified",),
    "ckks": ("execution", "passes", "compiler", "runtime"),
    "cli": ("cli", "dsl", "reports"),
    "compiler": ("compiler", "passes", "reports"),
    "dp": ("dp",),
    "dsl": ("dsl",),
    "execution": ("execution", "conformance", "compiler", "runtime"),
    "frontends": ("frontends", "reading"),
    "ir": ("ir", "dsl", "execution", "passes"),
    "passes": ("passes", "compiler"),
    "report": ("reports",),
    "runtime": ("runtime", "conformance", "formats", "execution", "systems"),
    "serving": ("serving",),
    "testing": ("conformance",),
    "tools": ("frontends", "reports", "cli"),
    "transfer": ("transfer",),
    # Files beside the rooms.
    "": ("cli", "systems", "execution", "passes", "runtime", "compiler"),
}
# Plots and texts: what is in them is looked at, not computed with.
LEFT_OUT = ("cli/approx_plot.py", "cli/sections.py", "cli/wording.py", "dp/training/report.py", "report/plots.py")
NOT_COPIED = shutil.ignore_patterns(".git", ".venv", ".*_cache", ".hypothesis", "site", "data")
COMPARISONS: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="), ast.NotEq: ("!=", "=="),
}  # fmt: skip
TIERS = {"quick": "not slow and not whole", "whole": "whole and not slow"}
# A module that more files of tests than this name is one that they only use.
MANY = 8
# Seconds for a test; for all tests of a mutant in a tier.
TEST_S, TIER_S = 200, 2400


@dataclass(frozen=True)
class Mutant:
    """A change of one file: the bytes from `begin` to `end` become `text`."""

    file: str
    line: int
    kind: str
    begin: int
    end: int
    text: str
    was: str

    def __str__(self) -> str:
        return f"heliograph/{self.file}:{self.line} {self.kind}: {self.was} -> {self.text}"


def mutants(path: Path) -> Iterator[Mutant]:
    """All changes of a file."""
    source, name = path.read_bytes(), path.relative_to(ROOT / "heliograph").as_posix()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def made(kind: str, line: int, begin: int, end: int, text: str) -> Mutant:
        return Mutant(name, line, kind, begin, end, text, source[begin:end].decode())

    def begin_of(node: ast.expr | ast.stmt) -> int:
        return starts[node.lineno - 1] + node.col_offset

    def end_of(node: ast.expr | ast.stmt) -> int:
        return starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)

    def between(left: ast.expr, right: ast.expr, sign: str) -> tuple[int, int] | None:
        found = re.search(re.escape(sign.encode()), source[end_of(left) : begin_of(right)])
        return None if found is None else (end_of(left) + found.start(), end_of(left) + found.end())

    for node in _computing(ast.parse(source)):
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in COMPARISONS:
            sign, other = COMPARISONS[type(node.ops[0])]
            if place := between(node.left, node.comparators[0], sign):
                yield made("comparison", node.lineno, *place, other)
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub) and not _is_text(node):
            sign, other = ("+", "-") if isinstance(node.op, ast.Add) else ("-", "+")
            if place := between(node.left, node.right, sign):
                yield made("sign", node.lineno, *place, other)
        elif isinstance(node, ast.Constant) and type(node.value) is int:
            yield made("number", node.lineno, begin_of(node), end_of(node), str(node.value + 1))
        elif _can_be_left_out(node):
            yield made("statement", node.lineno, begin_of(node), end_of(node), "pass")


def _computing(node: ast.AST) -> Iterator[ast.AST]:
    """Everything but annotations, f-strings, whose parts have no places of their own, and what only type checkers see."""
    yield node
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if (
                isinstance(child, ast.AST)
                and name not in ("annotation", "returns")
                and not isinstance(child, ast.JoinedStr)
                and not (isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test))
            ):
                yield from _computing(child)


def _can_be_left_out(node: ast.AST) -> TypeGuard[ast.stmt]:
    """Whether what is left can be run: names stay bound."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Call)
    if isinstance(node, ast.Assign):
        return isinstance(node.targets[0], ast.Attribute | ast.Subscript)
    return isinstance(node, ast.AugAssign | ast.Raise)


def _is_text(node: ast.BinOp) -> bool:
    def text(side: ast.expr) -> bool:
        return isinstance(side, ast.JoinedStr | ast.List | ast.Tuple | ast.ListComp) or (
            isinstance(side, ast.Constant) and isinstance(side.value, str | bytes)
        )

    return text(node.left) or text(node.right)


def drawn(count: int, seed: int, under: str = "") -> list[Mutant]:
    """As many of each kind as of the others, at places that are drawn from all files whose names begin with `under`."""
    kinds: dict[str, list[Mutant]] = {"comparison": [], "number": [], "sign": [], "statement": []}
    for path in sorted((ROOT / "heliograph").rglob("*.py")):
        name = path.relative_to(ROOT / "heliograph").as_posix()
        if name.startswith(under) and name not in LEFT_OUT:
            for mutant in mutants(path):
                kinds[mutant.kind].append(mutant)
    rng = random.Random(seed)
    for each in kinds.values():
        rng.shuffle(each)
    return [mutant for four in zip(*kinds.values(), strict=False) for mutant in four][:count]


class Copy:
    """The project in a folder of its own, whole but for one mutant at a time."""

    def __init__(self, folder: Path, workers: str) -> None:
        self.root, self.workers = folder / "project", workers
        shutil.copytree(ROOT, self.root, ignore=NOT_COPIED, symlinks=True)
        # Tests that fail without a mutant.
        self.broken: list[str] = []

    def put(self, mutant: Mutant) -> None:
        path = self.root / "heliograph" / mutant.file
        source = path.read_bytes()
        path.write_bytes(source[: mutant.begin] + mutant.text.encode() + source[mutant.end :])
        self._forget_kernels(mutant)

    def restore(self, mutant: Mutant) -> None:
        name = Path("heliograph") / mutant.file
        shutil.copy2(ROOT / name, self.root / name)
        self._forget_kernels(mutant)

    def _forget_kernels(self, mutant: Mutant) -> None:
        """numba keeps kernels by their own file, but not by the files of those that they call."""
        if mutant.file.startswith("runtime/"):
            for path in (self.root / "heliograph").rglob("*.nb[ic]"):
                path.unlink()

    def failed(self, tier: str, tests: list[str]) -> str:
        """The first test that fails because of what is in the copy, or why they did not end; an empty text otherwise."""
        left_out = [f"--deselect={name}" for name in self.broken]
        code, output = self._run("-x", "-m", TIERS[tier], *left_out, *tests)
        if code in (0, 5):
            return ""
        if code < 0:
            return "they did not end"
        found = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", output, re.MULTILINE)
        return found[1] if found else "they did not run: " + output[-300:]

    def passes(self, test: str) -> bool:
        return "::" not in test or self._run("-m", "not slow", test)[0] in (0, 5)

    def _run(self, *arguments: str) -> tuple[int, str]:
        """The exit status, negative where time was up, and what was printed."""
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", self.workers]
        command += ["--timeout", str(TEST_S), *arguments]
        environment = {**os.environ, "PYTHONPATH": str(self.root), "OMP_NUM_THREADS": "1"}
        child = subprocess.Popen(
            command,
            cwd=self.root,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            output, _ = child.communicate(timeout=TIER_S)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.communicate()
            return -1, ""
        return child.returncode, output


def tests_of(mutant: Mutant) -> list[str]:
    """Files of tests: those that name the mutant's module, unless most do, and then the others that are about its room."""
    room = mutant.file.partition("/")[0] if "/" in mutant.file else ""
    module = "heliograph." + mutant.file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    everything = sorted((ROOT / "tests").rglob("test_*.py"))
    about = [path for path in everything if path.parent.name in ABOUT[room]]
    naming = [path for path in everything if re.search(rf"\b{re.escape(module)}\b", path.read_text())]
    if len(naming) > MANY:
        naming = [path for path in naming if path in about]
    return [str(path.relative_to(ROOT)) for path in dict.fromkeys([*naming, *about])]


def judge(copy: Copy, mutant: Mutant) -> dict[str, object]:
    """What becomes of the tests with the mutant: the tier that notices it, if any, and the test that does."""
    began = time.monotonic()
    tier, noticed_by = "", ""
    for tier in TIERS:
        while True:
            copy.put(mutant)
            noticed_by = copy.failed(tier, tests_of(mutant))
            copy.restore(mutant)
            if not noticed_by or copy.passes(noticed_by):
                break
            copy.broken.append(noticed_by)
        if noticed_by:
            break
    return {
        **asdict(mutant),
        "tier": tier if noticed_by else "",
        "by": noticed_by,
        "seconds": round(time.monotonic() - began),
        "broken": list(copy.broken),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="where the results are, one line each")
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--under", default="", help="only files that begin with this, such as dsl/")
    parser.add_argument("--workers", default="auto", help="processes of tests at a time")
    parser.add_argument("--list", action="store_true", help="print the mutants and do nothing")
    given = parser.parse_args()
    chosen = drawn(given.count, given.seed, given.under)
    if given.list:
        print(*chosen, sep="\n")
        return
    lines = given.out.read_text().splitlines() if given.out.exists() else []
    known = {(line["file"], line["begin"], line["text"]): line for line in map(json.loads, lines)}
    with tempfile.TemporaryDirectory() as folder:
        copy = Copy(Path(folder), given.workers)
        for mutant in chosen:
            what = mutant.file, mutant.begin, mutant.text
            if what not in known:
                known[what] = judge(copy, mutant)
                with given.out.open("a") as file:
                    file.write(json.dumps(known[what]) + "\n")
                print(f"{known[what]['tier'] or 'not noticed':12} {mutant}", flush=True)
    results = [known[mutant.file, mutant.begin, mutant.text] for mutant in chosen]
    tiers = Counter(str(result["tier"]) for result in results)
    print(f"{len(results)} mutants: {tiers['quick']} noticed by the quick tier, {tiers['whole']} more by the whole one")
    for mutant, result in zip(chosen, results, strict=True):
        if not result["tier"]:
            print(f"not noticed: {mutant}")
    for name in sorted({str(name) for result in results for name in result["broken"]}):
        print(f"fails without a mutant: {name}")


if __name__ == "__main__":
    main()
