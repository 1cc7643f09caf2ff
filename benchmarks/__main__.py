"""The benchmarks: what there is, runs of them, and the tables of the documentation.

    python -m benchmarks list
    python -m benchmarks run NAME [options of the benchmark]
    python -m benchmarks all [--minutes M]
    python -m benchmarks tables [--check]

`all` runs each benchmark in a process of its own, skips those that lack something, and ends with 1 where one failed.
`tables` writes the tables between markers in the documentation from the records; `--check` only compares, and ends with 1
where one differs, or a figure has neither a record nor a source.
"""

from __future__ import annotations

import argparse
import importlib
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import fetch
import tables
from harness import Benchmark


def names() -> list[str]:
    """The files of this folder that declare a benchmark."""
    return [path.stem for path in sorted(HERE.glob("*.py")) if "\n@benchmark(" in path.read_text()]


def loaded(name: str) -> tuple[Benchmark | None, str]:
    """A benchmark and why it cannot run here, if it cannot; it is None where its file cannot be loaded."""
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        return None, f"skipped: {error.name} is not installed"
    except Exception as error:  # the others are to run all the same
        return None, f"failed: {type(error).__name__}: {error}"
    found = next(value for value in vars(module).values() if isinstance(value, Benchmark) and value.name == name)
    missing = found.missing()
    return found, missing and f"skipped: {missing}"


def listed() -> Iterator[tuple[str, Benchmark | None, str]]:
    for name in names():
        yield name, *loaded(name)


def show() -> int:
    print(f"{'name':<22}{'minutes':>8}{'GB':>6}  what it measures")
    for name, found, reason in listed():
        about = found.description.strip().splitlines()[0] if found else ""
        minutes, memory = (f"{found.minutes:g}", f"{found.memory_gb:g}") if found else ("", "")
        print(f"{name:<22}{minutes:>8}{memory:>6}  {about}" + (f"\n{'':<38}{reason}" if reason else ""))
    return 0


def run_all(most_minutes: float | None) -> int:
    """Run each benchmark as `make bench` does: 1 where one failed."""
    fetch.main(["--check"])
    ended: list[tuple[str, str]] = []
    for name, found, reason in listed():
        if found and not reason and most_minutes is not None and found.minutes > most_minutes:
            reason = f"skipped: it takes about {found.minutes:g} minutes"
        if reason or found is None:
            ended.append((name, reason))
            continue
        for words in found.runs:
            title = " ".join((name, *words))
            print(f"== {title}", flush=True)
            status = subprocess.run([sys.executable, str(HERE / f"{name}.py"), *words]).returncode
            ended.append((title, f"failed: it ended with {status}" if status else "done"))
    print()
    for title, how in ended:
        print(f"{title:<40} {how}")
    return int(any(how.startswith("failed") for _, how in ended))


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="the benchmarks, what they take, and what they lack here")
    run = commands.add_parser("run", help="run one", add_help=False)
    run.add_argument("name", choices=names())
    run.add_argument("words", nargs=argparse.REMAINDER)
    every = commands.add_parser("all", help="run all that can run here")
    every.add_argument("--minutes", type=float, help="skip those that take longer")
    written = commands.add_parser("tables", help="write the tables of the documentation from the records")
    written.add_argument(
        "--check", action="store_true", help="write nothing; 1 where a table is not as the records have it"
    )
    given = parser.parse_args(words)
    if given.command == "list":
        return show()
    if given.command == "all":
        return run_all(given.minutes)
    if given.command == "tables":
        return tables.main(given.check)
    found, reason = loaded(given.name)
    if found is None:
        print(reason, file=sys.stderr)
        return int(reason.startswith("failed"))
    found.main(given.words)
    return 0


if __name__ == "__main__":
    sys.exit(main())
