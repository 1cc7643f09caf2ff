"""The harness of the benchmarks: records, what goes on after a stop, processes; and the tables that are made of records."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
import harness  # noqa: E402
import tables  # noqa: E402
from harness import Benchmark, Records, Run, Skip, benchmark, option  # noqa: E402


@pytest.fixture
def measured() -> list[str]:
    """The rows that were measured."""
    return []


@pytest.fixture
def example(measured: list[str]) -> Benchmark:
    """A benchmark of squares, which is stopped at the row that is named `stop`."""

    @benchmark(
        option("--rows", nargs="*", default=["a", "b"]),
        option("--factor", type=int, default=1),
        option("--minutes", type=float, default=1.0, selects=True),
        columns={"seconds": "s"},
    )
    def squares(run: Run) -> None:
        for name in run.options.rows:
            if name == "stop":
                raise KeyboardInterrupt

            def make(name: str = name) -> dict[str, Any]:
                measured.append(name)
                return {"seconds": 1.5 * run.options.factor, "detail": [1, 2]}

            run.row({"row": name}, make)

    return squares


def run(example: Benchmark, folder: Path, *words: str) -> None:
    with pytest.raises(SystemExit) as ended:
        example.main(["--into", str(folder), *words])
    assert ended.value.code == 0


def test_a_record_says_what_was_measured_and_where(
    example: Benchmark, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(example, tmp_path, "--json")
    found = json.loads(capsys.readouterr().out)
    assert found["benchmark"] == "test_benchmarks"
    assert [(row["row"], row["seconds"]) for row in found["rows"]] == [("a", 1.5), ("b", 1.5)]
    first, _ = Records(tmp_path / "test_benchmarks.jsonl").entries
    assert first["key"] == {"row": "a"}
    assert first["settings"] == {"factor": 1}
    assert first["values"] == {"seconds": 1.5, "detail": [1, 2]}
    assert set(first["machine"]) == {"cpu", "cores", "system", "python"}
    assert first["versions"]["numpy"]
    assert first["code"] == harness.code()
    assert first["commit"] == harness.commit()
    assert first["load_before"] >= 0
    assert time.strptime(first["time"], "%Y-%m-%dT%H:%M:%SZ")


def test_a_stopped_run_goes_on_with_the_same_code_and_settings(
    example: Benchmark, measured: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(KeyboardInterrupt):
        example.main(["--into", str(tmp_path), "--rows", "a", "stop", "b"])
    run(example, tmp_path, "--minutes", "5")
    assert measured == ["a", "b"]
    run(example, tmp_path, "--factor", "2", "--rows", "a")
    run(example, tmp_path, "--again", "--rows", "b")
    assert measured == ["a", "b", "a", "b"]
    monkeypatch.setattr(harness, "code", lambda: "another")
    run(example, tmp_path)
    assert measured == ["a", "b", "a", "b", "a", "b"]


def test_text_has_the_rows_with_their_units(
    example: Benchmark, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(example, tmp_path)
    printed = capsys.readouterr()
    machine, _, head, *rows = printed.out.splitlines()
    assert "load average" in machine
    assert head.split() == ["row", "seconds,", "s"]
    assert [row.split() for row in rows] == [["a", "1.5"], ["b", "1.5"]]
    assert "row a: seconds 1.5 s" in printed.err


def test_a_row_without_a_column_is_no_record(tmp_path: Path) -> None:
    @benchmark(columns={"seconds": "s", "bytes": "bytes"})
    def lacking(run: Run) -> None:
        run.row({}, lambda: {"seconds": 1})

    with pytest.raises(KeyError, match="has no bytes"):
        lacking.main(["--into", str(tmp_path)])
    assert not Records(tmp_path / "test_benchmarks.jsonl").entries


@pytest.mark.parametrize(
    ("needs", "reason"),
    [
        ({"data": ["mnist.npz"]}, "mnist.npz is not there; run python benchmarks/fetch.py mnist.npz"),
        ({"packages": ["no_such_package"]}, "no_such_package is not installed"),
        ({"memory_gb": 1e6}, "it takes 1e+06 GB of memory"),
    ],
)
def test_what_is_lacking_is_said_on_stderr(
    needs: dict[str, Any],
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("HELIOGRAPH_DATA", str(tmp_path))

    @benchmark(**needs)
    def never(run: Run) -> None:
        raise AssertionError

    # Only a promised object that is not there is a failure.
    for words, status in (([], 0), (["--json"], 1)):
        with pytest.raises(SystemExit) as ended:
            never.main(words)
        printed = capsys.readouterr()
        assert ended.value.code == status
        assert printed.out == ""
        assert printed.err.startswith("skipped: ")
        assert reason in printed.err


def test_a_reason_that_shows_later_skips_too(capsys: pytest.CaptureFixture[str]) -> None:
    @benchmark()
    def late(run: Run) -> None:
        raise Skip("there is no artifact")

    with pytest.raises(SystemExit) as ended:
        late.main([])
    assert ended.value.code == 0
    assert capsys.readouterr().err == "skipped: there is no artifact\n"


def test_a_line_that_was_not_finished_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "records.jsonl"
    records = Records(path)
    records.add({"image": 0, "scores": [0.1, -1e-300]})
    records.add({"image": 1, "scores": [1.0]})
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"image": 2, "sco')
    again = Records(path)
    assert again.entries == [{"image": 0, "scores": [0.1, -1e-300]}, {"image": 1, "scores": [1.0]}]
    again.add({"image": 1, "scores": [2.0]})
    assert path.read_bytes().startswith(whole)
    assert Records(path).find(image=1) == {"image": 1, "scores": [2.0]}
    assert Records(path).find(image=2) is None


# ------------------------------------------------------------------------------------------- processes


def test_a_process_apart_has_its_threads_and_says_its_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "apart_example.py").write_text(
        "import os\n\n\ndef told(numbers, path):\n"
        "    return {'pid': os.getpid(), 'threads': os.environ['OMP_NUM_THREADS'], 'sum': sum(numbers), 'path': path}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    found = harness.apart("apart_example:told", [1, 2], tmp_path, threads=3)
    assert found.pop("pid") != __import__("os").getpid()
    assert found == {"threads": "3", "sum": 3, "path": str(tmp_path)}


def endless() -> None:
    while True:
        pass


def test_limits_of_a_process() -> None:
    assert harness.limited(sum, [1, 2], seconds=5, memory_bytes=1 << 33) == (3, "")
    # By the clock: the limit of the processor is a second later.
    assert harness.limited(endless, seconds=0.2, memory_bytes=1 << 33, waiting=2) == (None, "not within 0.2 s")
    assert harness.limited(sys.exit, 3, seconds=5, memory_bytes=1 << 33) == (None, "the process ended with 3")


# ------------------------------------------------------------------------------------------- tables


@pytest.fixture
def pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a page, the form of its table, and records."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "records").mkdir()
    (tmp_path / "README.md").write_text("Nothing.\n")
    (tmp_path / "tables.md").write_text(
        "# Forms\n\n## one\n\ndocs/page.md: a row for each record of made with part=x\n\n"
        "| network | n | s | MB |\n|---|---|---|---|\n"
        "| {network~the same} | {n:,} | {seconds:.1f} / {floor:.1f} | {bytes/1e6:.0f} |\n\n"
        "## two\n\ndocs/page.md: a column for each record of made with part=y\n\n"
        "| | a | b |\n|---|---|---|\n| share | {share:.1%} |\n| time | {seconds:.2g} |\n"
    )
    records = Records(tmp_path / "records" / "made.jsonl")
    for key, values in (
        ({"network": "net", "n": 1}, {"seconds": 1.25, "floor": 1, "bytes": 2_000_000}),
        ({"network": "net", "n": 1000}, {"seconds": "2.50", "floor": 2}),
        ({"part": "y", "network": "a"}, {"share": 0.845, "seconds": 3}),
        ({"part": "y", "network": "b"}, {"share": 1.0}),
    ):
        records.add({"key": {"part": "x", **key}, "values": values, "source": "docs, earlier version"})
    (tmp_path / "docs" / "page.md").write_text(
        "# Page\n\n<!-- table one -->\n<!-- /table -->\n\nText.\n\n<!-- table two -->\nold\n<!-- /table -->\n"
    )
    for name, value in (("ROOT", tmp_path), ("RECORDS", tmp_path / "records"), ("FORMS", tmp_path / "tables.md")):
        monkeypatch.setattr(tables, name, value)
    assert tables.main(check=False) == 0
    return tmp_path


WRITTEN = """# Page

<!-- table one -->
| network | n | s | MB |
|---|---|---|---|
| net | 1 | 1.2 / 1.0 | 2 |
| the same | 1,000 | 2.50 / 2.0 | |
<!-- /table -->

Text.

<!-- table two -->
| | a | b |
|---|---|---|
| share | 84.5 % | 100.0 % |
| time | 3 | |
<!-- /table -->
"""


def test_tables_are_written_from_the_newest_records(pages: Path) -> None:
    page = pages / "docs" / "page.md"
    assert page.read_text() == WRITTEN
    newer = Records(pages / "records" / "made.jsonl")
    newer.add({"key": {"part": "x", "network": "net", "n": 1}, "values": {"seconds": 0.5}})
    assert tables.main(check=True) == 1
    assert page.read_text() == WRITTEN
    assert tables.main(check=False) == 0
    assert page.read_text() == WRITTEN.replace("1.2 / 1.0", "0.5 / 1.0")


def test_a_changed_figure_is_an_error(pages: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tables.main(check=True) == 0
    page = pages / "docs" / "page.md"
    for old, new in (("2.50", "2.40"), ("| time | 3 | |\n", ""), ("<!-- table two -->", "<!-- table three -->")):
        page.write_text(WRITTEN.replace(old, new))
        capsys.readouterr()
        assert tables.main(check=True) == 1
        assert "docs/page.md" in capsys.readouterr().err
    page.write_text(WRITTEN)
    assert tables.main(check=True) == 0


def test_a_table_of_figures_needs_a_marker(pages: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = "\n| what | s | share |\n|---|---|---|\n| x | 1.5 | 12 % |\n| y | 2.5 | 3 |\n"
    page = pages / "docs" / "page.md"
    page.write_text(WRITTEN + more)
    assert tables.main(check=True) == 1
    assert "docs/page.md:19: a table of figures without a marker" in capsys.readouterr().err
    page.write_text(WRITTEN + more.replace("\n| what", "\n<!-- figures: published -->\n| what"))
    assert tables.main(check=True) == 0
    # A form whose table is in no page.
    page.write_text(WRITTEN.partition("<!-- table two -->")[0])
    assert tables.main(check=True) == 1
    assert "the table two is nowhere" in capsys.readouterr().err


def test_a_claim_names_its_record_or_its_source(pages: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = pages / "docs" / "page.md"

    def said(paragraph: str) -> str:
        page.write_text(WRITTEN.replace("Text.", paragraph, 1))
        status = tables.main(check=True)
        told = capsys.readouterr().err
        assert bool(told) == bool(status)
        return told

    named = '<!-- records: made {"network": "net", "n": 1} -->\n'
    assert "docs/page.md:10: no record and no source is named for '3 s'" in said("Text of 3 s.")
    # 1.25 s and 2,000,000 bytes: rounded, and in another unit.
    assert said(named + "It takes 1.2 s and 2 MB\nin `3 s` of code.") == ""
    assert "'1.3 s'" in said(named + "It takes 1.3 s.")
    # Of another key, of a text, of a share.
    assert "'1.2 s'" in said(named.replace("1}", "1000}") + "It takes 1.2 s.")
    assert said(named.replace("1}", "1000}") + "It takes 2.50 s.") == ""
    assert said('<!-- records: made {"network": "a"} -->\nRight: 84.5 %.') == ""
    assert "'50 s'" in said(named.replace("1}", "1000}") + "It takes 50 s.")
    # A comment is for the paragraph after it alone.
    assert "'1.2 s'" in said(named + "Text.\n\nIt takes 1.2 s.")
    assert said(named + "<!-- figures: 7 s: a paper, table 2 -->\nIt takes 1.2 s, theirs 7 s.") == ""
    assert "'8 s'" in said(named + "<!-- figures: 7 s: a paper, table 2 -->\nIt takes 8 s.")


def test_a_row_of_the_comparison_is_published_or_recorded(pages: Path) -> None:
    row = {"key": {"system": "ours"}, "values": {"seconds": "1.2; 2.50", "threads": 99}}
    assert len(tables.compared([row])) == 2
    assert tables.compared([{**row, "records": [["made", {"network": "net"}]]}]) == []
    assert len(tables.compared([{**row, "records": [["made", {"network": "net", "n": 1}]]}])) == 1
    published = {"key": {"system": "theirs"}, "source": "published", "values": {"seconds": 7}}
    assert len(tables.compared([published])) == 1
    assert tables.compared([{**published, "values": {"seconds": 7, "source": "a paper, table 2"}}]) == []


def test_peers_secrets_are_judged_by_the_table_for_their_kind() -> None:
    import peers

    def judged(log_ring: int, log_q: float, weight: int | None) -> bool:
        return peers.judged({"log_ring": log_ring, "log_q": log_q, "weight": weight})[0]

    assert judged(16, 1747, None)
    assert not judged(16, 1748, None)
    assert judged(16, 1481, 192)
    assert not judged(16, 1515, 192)
    # A weight between two of the table is judged by the smaller one.
    assert not judged(16, 1500, 255)
    dense, sparse = ({"log_ring": 15, "log_q": bits, "weight": weight} for bits, weight in ((860, None), (170, 32)))
    assert peers.security([dense])["security"] == "dense: 860 of 868"
    found = peers.security([dense, sparse])
    assert not found["secure"]
    assert found["security"] == "**below 128**: dense: 860 of 868; h = 32: 170 of 164"


def test_plans_by_diagonals_multiply() -> None:
    sys.path.insert(0, str(harness.HERE / "peers"))
    import diagonals

    rng = np.random.default_rng(0)
    for rows, columns in ((10, 128), (100, 100), (3, 5), (1, 8)):
        weights, x = rng.normal(size=(rows, columns)), rng.normal(size=columns)
        plan = diagonals.planned(weights)
        slots = diagonals.spread(x, plan.period, 2 * plan.period)
        turned = [np.roll(slots, -step) for step in range(plan.baby)]
        total = sum(
            np.roll(sum(each * np.tile(vector, 2) for each, vector in zip(turned, vectors, strict=True)), -amount)
            for amount, vectors in plan.giants
        )
        for amount in plan.folds:
            total = total + np.roll(total, -amount)
        np.testing.assert_allclose(total[:rows], weights @ x, atol=1e-12)
        used = {*range(1, plan.baby), *plan.folds, *(amount for amount, _ in plan.giants)} - {0}
        assert plan.rotations == used


def test_a_peers_job_that_takes_too_much_is_a_row(tmp_path: Path) -> None:
    import peers

    def watched(code: str, minutes: float = 1, memory_gb: float = 1) -> dict[str, object]:
        return peers.watched([sys.executable, "-c", code], os.environ, minutes, memory_gb)

    stage = json.dumps({"stage": "keys", "values": {"keys_s": 2}})
    told = f"print({stage!r}, flush=True)\n"
    late = watched(told + "import time; time.sleep(60)", minutes=0.02)
    assert late["keys_s"] == 2
    assert "minutes; it had told `keys`" in str(late["failed"])
    assert "GB after `keys`" in str(
        watched(told + "x = b'1' * 400_000_000; import time; time.sleep(60)", memory_gb=0.2)["failed"]
    )
    assert watched(told + "raise SystemExit('no such key')")["failed"] == "ended with 1 after `keys`: no such key"
    assert watched(told.replace('"keys"', '"done"'))["failed"] is None


def test_records_may_be_left_out(pages: Path) -> None:
    page = pages / "docs" / "page.md"
    forms = pages / "tables.md"
    forms.write_text(forms.read_text().replace("with part=x", "with part=x, n!=1"))
    assert tables.main(check=False) == 0
    assert "| net | 1,000 | 2.50 / 2.0 | |" in page.read_text()
    assert "| net | 1 |" not in page.read_text()


def test_the_documentation_is_as_the_records_have_it() -> None:
    assert tables.problems() == []


def test_every_page_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A figure that comes from nowhere is found, whatever the page."""
    texts = tables.pages()
    assert {"README.md", "docs/tutorial.md", "docs/security.md", "docs/wire.md"} <= set(texts)
    claimed = {page: f"{text}\n\nIt takes 98.765 s.\n" for page, text in texts.items()}
    monkeypatch.setattr(tables, "pages", lambda: claimed)
    found = tables.problems()
    assert len(found) == len(texts)
    assert all("no record and no source is named for '98.765 s'" in each for each in found)


def test_every_record_of_a_page_says_where_it_is_from() -> None:
    paths = list(harness.RECORDS.glob("*.jsonl"))
    assert len(paths) > 20
    for path in paths:
        for entry in Records(path).entries:
            assert entry["benchmark"] == path.stem
            assert "commit" in entry or entry["source"] in ("docs, earlier version", "published"), path.name


# ------------------------------------------------------------------------------------------- the commands


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`python -m benchmarks` on a folder with three small benchmarks."""
    import importlib.util

    for name, line in (("good", "run.row({}, dict)"), ("bad", "raise ValueError"), ("last", "run.row({}, dict)")):
        needs = 'packages=["no_such_package"]' if name == "good" else ""
        (tmp_path / f"toy_{name}.py").write_text(
            f'"""Toy {name}."""\n\nfrom harness import Run, benchmark\n\n\n@benchmark({needs})\n'
            f"def toy(run: Run) -> None:\n    {line}\n\n\nif __name__ == '__main__':\n    toy.main()\n"
        )
    for name in ("harness.py", "fetch.py", "data.md"):
        shutil.copy(ROOT / "benchmarks" / name, tmp_path / name)
    spec = importlib.util.spec_from_file_location("benchmarks_main", ROOT / "benchmarks" / "__main__.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "HERE", tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return module


def test_one_that_fails_does_not_stop_the_others(commands: Any, capfd: pytest.CaptureFixture[str]) -> None:
    assert commands.main(["all"]) == 1
    ended = dict(line.split(maxsplit=1) for line in capfd.readouterr().out.splitlines()[-3:])
    assert ended == {
        "toy_bad": "failed: it ended with 1",
        "toy_good": "skipped: no_such_package is not installed",
        "toy_last": "done",
    }


def test_the_list_says_what_is_lacking(commands: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.main(["list"]) == 0
    printed = capsys.readouterr().out
    assert "Toy good." in printed
    assert "skipped: no_such_package is not installed" in printed


def test_every_benchmark_can_be_loaded() -> None:
    """What it lacks to run is another matter; its imports are those of this version."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "list"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "resnets" in done.stdout
    assert "failed:" not in done.stdout, done.stdout
