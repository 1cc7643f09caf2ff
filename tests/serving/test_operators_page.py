"""What the operator's page says of times, memory and disk, from the queue alone; no worker runs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from runtime.support import toy_artifact

from heliograph.report.text import bytes_text
from heliograph.serving.http import page as operators
from heliograph.serving.http.metrics import text
from heliograph.serving.queue.endings import add_ending
from heliograph.serving.remote.records import DONE, FAILED
from heliograph.serving.site import Site, SiteSettings


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    toy_artifact().save(tmp_path / "m.helio")
    settings = SiteSettings([tmp_path / "m.helio"], tmp_path / "data", 2, memory_bytes=1 << 31, allow_insecure=True)
    made = Site(settings)
    made.tenants.add("first")
    yield made
    made.close()


def end(site: Site, *jobs: tuple[str, float]) -> None:
    with site.database.writing() as connection:
        (tenant,) = connection.execute("SELECT number FROM tenants WHERE name = 'first'").fetchone()
        for state, seconds in jobs:
            add_ending(connection, toy_artifact().fingerprint, tenant, state, seconds)


def said(site: Site) -> str:
    found = re.search(r"<h2>Time of jobs</h2>\s*(?:<h3>.*?</h3>)?<p>(.*?)</p>", operators.page(site), re.DOTALL)
    assert found is not None
    return found[1]


def test_an_empty_queue_is_said_in_words(site: Site) -> None:
    assert said(site) == "No job has ended yet."
    end(site, (FAILED, 0.0), (FAILED, 0.0))
    assert said(site) == "No job has ended with a result; 2 failed."
    end(site, (DONE, 0.2))
    assert said(site).startswith("1 with a result; half of them took to 250 ms, 95% (p95) to 250 ms;")


@pytest.mark.parametrize(
    ("slow", "half", "p95"),
    [(1, "to 50 ms", "to 50 ms"), (2, "to 50 ms", "over 10000 s"), (11, "over 10000 s", "over 10000 s")],
)
def test_the_95th_percentile_is_the_histograms(site: Site, slow: int, half: str, p95: str) -> None:
    """Of twenty jobs one may be slower; what is said is the upper end of its bucket."""
    end(site, *[(DONE, 0.03)] * (20 - slow), *[(DONE, 20_000.0)] * slow)
    assert f"half of them took {half}, 95% (p95) {p95};" in said(site)


def test_memory_and_disk_are_bars(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    with site.database.writing() as connection:
        for name, held in (("a", 300_000_000), ("b", 100_000_000)):
            connection.execute("INSERT INTO workers VALUES (?, 1, 'here', 0.0, ?, 1)", (name, held))
    disk = type("Usage", (), {"total": 1000 << 30, "used": 100 << 30, "free": 800 << 30})
    monkeypatch.setattr(operators.shutil, "disk_usage", lambda _: disk)
    shown = operators.page(site)
    bars = {
        name: (words, float(most), float(value))
        for name, words, most, value in re.findall(
            r"<p id='(\w+)'><label>(.*?)<meter min='0' max='(\d+)' value='(\d+)'", shown
        )
    }
    limit = site.worker_bytes * 2
    assert bars["memory"] == (
        f"Memory: 400.0 MB of the {bytes_text(limit)} of all workers, by the bills", limit, 400_000_000
    )  # fmt: skip
    # What is kept for the system's administrator is not free either.
    assert bars["disk"][1:] == (1000 << 30, 200 << 30)
    assert bars["disk"][0].endswith(f"0 B of it keys; {bytes_text(800 << 30)} are free")
    figures = dict(re.findall(r"^heliograph_(\w+) ([0-9.e+]+)$", text(site), re.MULTILINE))
    assert float(figures["servers_bytes"]) == 400_000_000
    assert float(figures["workers_limit_bytes"]) == limit
    assert float(figures["servers"]) == 2
