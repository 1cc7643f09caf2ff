"""What every benchmark of this folder shares: how it is declared, run, recorded, skipped, and run in a process of its own.

    @benchmark(
        option("--images", type=int, default=100, help="encrypted test images"),
        columns={"seconds": "s"}, data=("mnist.npz",), memory_gb=2, minutes=3,
    )
    def digits(run: Run) -> None:
        for network in NETWORKS:
            run.row({"network": network}, lambda: {"seconds": measured(network)})

    if __name__ == "__main__":
        digits.main()

A row is recorded as soon as it is there: one line of JSON with its key, its values, the commit, the machine and the load
before. A row that is recorded for the same code and settings is not measured again. Records go to `build/benchmarks`, with
`--keep` to `benchmarks/records`, from which `python -m benchmarks tables` writes the tables of the documentation.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import hashlib
import importlib
import importlib.metadata
import importlib.util
import json
import multiprocessing
import os
import platform
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fetch

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
# What is kept between runs: records, trained weights, compiled artifacts.
BUILD = ROOT / "build" / "benchmarks"
RECORDS = HERE / "records"
# Above this load average other work slows a measurement.
BUSY = 0.5
_PACKAGES = ("heliograph", "numpy", "numba", "torch", "openfhe", "opacus", "dp-accounting", "prv-accountant", "ray")
# Of a printed table; one that is wider is printed as blocks.
_WIDTH = 150
# Options that say how to run, not what is measured.
_HARNESS = ("json", "keep", "again", "into")


class Skip(Exception):
    """The reason why a benchmark cannot run here."""


# ------------------------------------------------------------------------------------------- the machine and the code


def cpu_name() -> str:
    """The model of the processor."""
    path = Path("/proc/cpuinfo")
    for line in path.read_text().splitlines() if path.exists() else []:
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or "unknown processor"


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0))


def machine() -> dict[str, Any]:
    """The machine of a record."""
    return {"cpu": cpu_name(), "cores": cores(), "system": platform.system(), "python": platform.python_version()}


def versions() -> dict[str, str]:
    """The versions of the packages that figures depend on, where they are installed."""
    found = {}
    for name in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


@functools.cache
def commit() -> str:
    """The commit that is checked out, with `+changes` where files differ from it."""
    try:
        asked = {"cwd": ROOT, "capture_output": True, "text": True, "check": True}
        head = subprocess.run(["git", "rev-parse", "HEAD"], **asked).stdout.strip()  # type: ignore[call-overload]
        changed = subprocess.run(["git", "status", "--porcelain"], **asked).stdout  # type: ignore[call-overload]
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{head}+changes" if changed else head


@functools.cache
def code() -> str:
    """The first 16 digits of the SHA-256 of the sources of the package and of the benchmarks."""
    digest = hashlib.sha256()
    for folder in (ROOT / "heliograph", HERE):
        for path in sorted(folder.rglob("*.py")):
            digest.update(f"{path.relative_to(ROOT)}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


# ------------------------------------------------------------------------------------------- records


def plain(value: Any) -> Any:
    """What JSON cannot write: arrays and their numbers as Python's, paths as text."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} cannot be recorded")


class Records:
    """Entries in a file, one JSON object a line. A line that was not finished, of a run that was killed, is dropped."""

    def __init__(self, path: Path) -> None:
        self.path = path
        content = path.read_bytes() if path.exists() else b""
        self._length = content.rfind(b"\n") + 1
        self.entries: list[dict[str, Any]] = [json.loads(line) for line in content[: self._length].splitlines()]

    def add(self, entry: Mapping[str, Any]) -> None:
        """Append an entry; it is on the disk when this returns."""
        line = json.dumps(entry, default=plain, ensure_ascii=False).encode() + b"\n"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("r+b" if self.path.exists() else "xb") as file:
            file.truncate(self._length)
            file.seek(self._length)
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        self._length += len(line)
        self.entries.append(json.loads(line))

    def find(self, **wanted: Any) -> dict[str, Any] | None:
        """The newest entry with these fields."""
        for entry in reversed(self.entries):
            if all(entry.get(name) == value for name, value in wanted.items()):
                return entry
        return None


# ------------------------------------------------------------------------------------------- benchmarks


def option(*names: str, selects: bool = False, **how: Any) -> tuple[tuple[str, ...], bool, dict[str, Any]]:
    """An option of a benchmark, as `argparse` takes it; `selects` where it chooses rows but does not change them."""
    return names, selects, how


BACKENDS = ("native", "openfhe")
BACKEND = option("--backend", choices=BACKENDS, default=BACKENDS[0], help="whose primitives are run")
FOLDER = option("--folder", type=Path, default=BUILD, help="where weights and artifacts are kept")


def threads_option(of: str = "of OpenMP, and cores of what is measured") -> Any:
    return option("--threads", type=int, default=cores(), help=f"{of} (default: all)")


@dataclass(frozen=True)
class Benchmark:
    """A script of this folder that measures."""

    name: str
    description: str
    work: Callable[[Run], None]
    options: tuple[Any, ...]
    columns: Mapping[str, str]
    """The unit of each column that a row must have; "" for numbers without one."""
    data: tuple[str, ...]
    """The files that it reads (data.md)."""
    packages: tuple[str, ...]
    memory_gb: float
    minutes: float
    """What it takes on two cores, roughly."""
    runs: tuple[tuple[str, ...], ...]
    """The options of each run of `make bench`."""

    def missing(self) -> str:
        """Why it cannot run here; empty where it can."""
        for name in self.data:
            if not (fetch.folder() / name).exists():
                return absent(name)
        for package in self.packages:
            if importlib.util.find_spec(package) is None:
                return f"{package} is not installed"
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
        return f"it takes {self.memory_gb:g} GB of memory; {total:.0f} are here" if total < self.memory_gb else ""

    def parser(self) -> argparse.ArgumentParser:
        made = argparse.ArgumentParser(
            prog=self.name, description=self.description, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        for names, _, how in self.options:
            made.add_argument(*names, **how)
        made.add_argument("--json", action="store_true", help="print one JSON object only")
        made.add_argument("--keep", action="store_true", help="record in benchmarks/records, for the documentation")
        made.add_argument("--again", action="store_true", help="measure rows again that are recorded")
        made.add_argument("--into", type=Path, default=BUILD / "records", help="the folder of records without --keep")
        return made

    def main(self, words: Sequence[str] | None = None) -> None:
        """Run, print the rows, and end the process: 0, or 1 where `--json` promised an object and there is none."""
        options = self.parser().parse_args(words)
        run = Run(self, options)
        try:
            if reason := self.missing():
                raise Skip(reason)
            self.work(run)
        except Skip as reason:
            print(f"skipped: {reason}", file=sys.stderr, flush=True)
            sys.exit(1 if options.json else 0)
        run.show()
        sys.exit("; ".join(run.failures) or 0)


def benchmark(
    *options: Any,
    columns: Mapping[str, str] | None = None,
    data: Sequence[str] = (),
    packages: Sequence[str] = (),
    memory_gb: float = 1,
    minutes: float = 1,
    runs: Sequence[Sequence[str]] = ((),),
) -> Callable[[Callable[[Run], None]], Benchmark]:
    """Make a function of a run the benchmark of its file."""

    def made(work: Callable[[Run], None]) -> Benchmark:
        name = Path(work.__code__.co_filename).stem
        description = work.__globals__.get("__doc__") or ""
        return Benchmark(
            name, description, work, options, columns or {}, tuple(data), tuple(packages), memory_gb, minutes,
            tuple(map(tuple, runs)),
        )  # fmt: skip

    return made


@dataclass
class Run:
    """One run of a benchmark."""

    benchmark: Benchmark
    options: argparse.Namespace
    rows: list[dict[str, Any]] = field(default_factory=list)
    """The records of this run: measured, or found."""
    failures: list[str] = field(default_factory=list)
    """What makes the run's exit status that of a failure."""

    def __post_init__(self) -> None:
        folder = RECORDS if self.options.keep else self.options.into
        self.records = Records(folder / f"{self.benchmark.name}.jsonl")

    def settings(self) -> dict[str, Any]:
        """The options that change rows: those that are no lists, no paths, and do not select."""
        selecting = {
            how.get("dest", names[0].lstrip("-").replace("-", "_"))
            for names, selects, how in self.benchmark.options
            if selects or how.get("type") is Path or "nargs" in how
        }
        given = vars(self.options)
        return {name: given[name] for name in given if name not in {*selecting, *_HARNESS}}

    def say(self, *words: object) -> None:
        """Tell of progress, on stderr."""
        print(*words, file=sys.stderr, flush=True)

    def found(self, key: Mapping[str, Any]) -> dict[str, Any] | None:
        """The record of a row that the present code measured with these settings; None with `--again`."""
        if self.options.again:
            return None
        wanted = json.loads(json.dumps({"key": key, "settings": self.settings()}, default=plain))
        return self.records.find(code=code(), **wanted)

    def row(self, key: Mapping[str, Any], make: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
        """The values of a row: recorded ones, or those that `make` measures, which are recorded."""
        record = self.found(key)
        if record is None:
            load, begun = os.getloadavg()[0], time.perf_counter()
            record = self._record(key, make(), load, begun)
        else:
            self.say(f"recorded on {record['time']}: {text_of(record['key'])}")
        self.rows.append(record)
        self.say(f"{text_of(record['key'])}: {text_of(self._shown(record), self.benchmark.columns)}")
        return dict(record["values"])

    def derived(self, key: Mapping[str, Any], values: Mapping[str, Any]) -> None:
        """A row that follows from others; it is recorded where it is another than before."""
        record = self.found(key)
        if record is None or record["values"] != json.loads(json.dumps(values, default=plain)):
            record = self._record(key, values, os.getloadavg()[0], time.perf_counter())
        self.rows.append(record)

    def _record(self, key: Mapping[str, Any], values: Mapping[str, Any], load: float, begun: float) -> dict[str, Any]:
        if lacking := [name for name in self.benchmark.columns if name not in values]:
            raise KeyError(f"{self.benchmark.name}: the row {dict(key)} has no {', '.join(lacking)}")
        self.records.add(
            {
                "benchmark": self.benchmark.name,
                "key": key,
                "settings": self.settings(),
                "values": values,
                "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                "seconds": round(time.perf_counter() - begun, 2),
                "load_before": round(load, 2),
                "commit": commit(),
                "code": code(),
                "machine": machine(),
                "versions": versions(),
            }
        )
        return self.records.entries[-1]

    def _shown(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """The values that are printed: the columns, or where none are declared all values that are no lists or mappings."""
        values = record["values"]
        return {
            name: values[name]
            for name in self.benchmark.columns or values
            if self.benchmark.columns or not isinstance(values[name], (dict, list))
        }

    def show(self) -> None:
        """Print the rows: a table where it fits, else a block for each; or one JSON object."""
        if self.options.json:
            rows = [{**row["key"], **row["values"], "load_before": row["load_before"]} for row in self.rows]
            found = {"benchmark": self.benchmark.name, "machine": machine(), "versions": versions(), "commit": commit()}
            print(json.dumps({**found, "settings": self.settings(), "rows": rows}, default=plain))
            return
        loads = [row["load_before"] for row in self.rows] or [os.getloadavg()[0]]
        busy = ", a busy machine" if max(loads) > BUSY else ""
        print(f"{cpu_name()}, {cores()} cores, Python {platform.python_version()}; load average {min(loads):.2f} to "
              f"{max(loads):.2f}{busy}")  # fmt: skip
        tables: dict[tuple[str, ...], list[list[str]]] = {}
        for row in self.rows:
            values = self._shown(row)
            head = (*row["key"], *(heading(name, self.benchmark.columns.get(name, "")) for name in values))
            tables.setdefault(head, []).append([shown(value) for value in (*row["key"].values(), *values.values())])
        for head, table in tables.items():
            print()
            widths = [max(map(len, cells)) for cells in zip(head, *table, strict=True)]
            if sum(widths) + 2 * len(widths) <= _WIDTH:
                for cells in (head, *table):
                    print("  ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True)).rstrip())
                continue
            for cells in table:
                for name, cell in zip(head, cells, strict=True):
                    print(f"{name:<{max(map(len, head))}}  {cell}")
                print()


def heading(name: str, unit: str) -> str:
    return f"{name}, {unit}" if unit else name


def shown(value: Any) -> str:
    """A value in few characters."""
    if isinstance(value, float):
        return f"{value:.4g}"
    return "-" if value is None else str(value)


def text_of(values: Mapping[str, Any], units: Mapping[str, str] | None = None) -> str:
    """Values in one line."""
    return ", ".join(f"{name} {shown(value)} {(units or {}).get(name, '')}".rstrip() for name, value in values.items())


def absent(name: str) -> str:
    """The reason that a missing data file is."""
    how = f"run python benchmarks/fetch.py {name}" if name in fetch.SOURCES else fetch.NOT_MADE.get(name, "")
    path = fetch.folder() / name
    return f"{path} is not there; {how} (benchmarks/data.md), or set HELIOGRAPH_DATA to the folder with {name}"


# ------------------------------------------------------------------------------------------- other processes


def peak() -> int:
    """The most memory that this process has held, in bytes, since `fresh_peak` (Linux)."""
    return 1024 * int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])


def fresh_peak() -> int:
    """Forget the peak so far (Linux), and give what is held now, in bytes."""
    Path("/proc/self/clear_refs").write_text("5")
    return peak()


def apart(function: str, *given: Any, threads: int | None = None) -> Any:
    """What the function `module:name` returns in a fresh process, where the peak of memory is its own.

    It imports that module alone, from where this process would. Arguments and result go through JSON. `threads` are those of
    OpenMP and numba.
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    if threads is not None:
        environment |= {"OMP_NUM_THREADS": str(threads), "NUMBA_NUM_THREADS": str(threads)}
    with tempfile.TemporaryDirectory() as folder:
        asked, answer = Path(folder, "asked.json"), Path(folder, "answer.json")
        asked.write_text(json.dumps(given, default=plain))
        command = [sys.executable, str(HERE / "harness.py"), function, str(asked), str(answer)]
        subprocess.run(command, env=environment, stdout=sys.stderr, check=True)
        return json.loads(answer.read_text())


def _apart(function: str, asked: str, answer: str) -> None:
    module, _, name = function.partition(":")
    result = getattr(importlib.import_module(module), name)(*json.loads(Path(asked).read_text()))
    Path(answer).write_text(json.dumps(result, default=plain))


def limited(
    function: Callable[..., Any], *given: Any, seconds: float, memory_bytes: int, waiting: float = 6.0
) -> tuple[Any, str]:
    """(what a function returns in a forked process, ""), or (None, why the process ended without).

    The process may take so many seconds of the processor, `waiting` times as many by the clock, and so much memory. Its
    limit of memory is an error where it is met, which the function may answer.
    """
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_limited, args=(there, function, given, seconds, memory_bytes))
    process.start()
    there.close()
    late = f"not within {seconds:g} s"
    try:
        found = (here.recv(), "") if here.poll(waiting * seconds) else (None, late)
    except EOFError:
        process.join()
        found = (None, late if process.exitcode == -signal.SIGXCPU else f"the process ended with {process.exitcode}")
    process.kill()
    process.join()
    return found


def _limited(there: Any, function: Callable[..., Any], given: tuple[Any, ...], seconds: float, memory: int) -> None:
    used = time.process_time() + seconds + 1
    resource.setrlimit(resource.RLIMIT_CPU, (int(used), int(used) + 1))
    resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    there.send(function(*given))


if __name__ == "__main__":
    _apart(*sys.argv[1:])
