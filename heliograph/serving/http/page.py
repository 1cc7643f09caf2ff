"""The operator's page: artifacts, tenants, workers, memory, disk and the latest jobs, as one HTML text without scripts."""

from __future__ import annotations

import itertools
import shutil
from html import escape

from heliograph.report.drawing import columns_svg
from heliograph.report.markup import Html, table
from heliograph.report.text import bytes_text, seconds_text
from heliograph.serving.http.metrics import (
    held_by_workers,
    held_on_disk,
    jobs_by_state,
    measured_over_predicted,
    predicted_by_artifact,
)
from heliograph.serving.queue.endings import LIMITS_S, Endings, endings
from heliograph.serving.remote.records import QUEUED, RUNNING
from heliograph.serving.site import Site

_ROWS = 100
_TENANTS = """
SELECT name,
  (SELECT COUNT(*) FROM jobs WHERE jobs.tenant = tenants.number AND state = :queued) AS waiting,
  (SELECT COUNT(*) FROM jobs WHERE jobs.tenant = tenants.number AND state = :running) AS running,
  (SELECT COALESCE(SUM(bytes), 0) FROM keysets WHERE keysets.tenant = tenants.number) AS bytes
FROM tenants ORDER BY number
"""
_STYLE = """
:root { color-scheme: light dark; --page: #fff; --ink: #222; --muted: #5c6b7a; --grid: #ddd; --predicted: #2c6fbb; }
@media (prefers-color-scheme: dark) {
  :root { --page: #12171d; --ink: #e4e9ee; --muted: #9aa8b7; --grid: #36424e; --predicted: #5b9be0; }
}
body { font: 14px/1.4 system-ui, sans-serif; margin: 2em auto; max-width: 72em; padding: 0 1em; color: var(--ink);
  background: var(--page); }
.chart svg { max-width: 100%; height: auto; }
table { border-collapse: collapse; margin: 0 0 2em; width: 100%; }
th, td { text-align: left; padding: .25em .8em .25em 0; border-bottom: 1px solid var(--grid); }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
progress { width: 8em; }
meter { display: block; width: 100%; height: 1.2em; }
code { font-size: 12px; }
@media (max-width: 700px) {
  table, tbody, tr, td { display: block; }
  thead { display: none; }
  tr { border-bottom: 1px solid var(--grid); padding: .5em 0; }
  td { border: 0; padding: .1em 0; display: flex; justify-content: space-between; gap: 1em; overflow-wrap: anywhere; }
  td::before { content: attr(data-name); font-weight: bold; flex: none; }
}
"""
# Names on the page are escaped, and even an unescaped one could run no script. The page cannot be framed and is never
# cached.
PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'",
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def _charts(ended: list[Endings], names: dict[str, str], ratios: dict[str, float]) -> list[str]:
    """For each artifact, how many of its jobs took how long, all tenants together."""
    parts = []
    for artifact in dict.fromkeys(each.artifact for each in ended):
        rows = [each for each in ended if each.artifact == artifact]
        done = [sum(column) for column in zip(*(each.done for each in rows), strict=True)]
        jobs, seconds = sum(done), sum(each.seconds for each in rows)
        if not jobs:
            continue
        first = next(bucket for bucket, count in enumerate(done) if count)
        last = max(bucket for bucket, count in enumerate(done) if count) + 1
        limits = [f"to {seconds_text(limit)}" for limit in LIMITS_S] + [f"over {seconds_text(LIMITS_S[-1])}"]
        under = list(itertools.accumulate(done))
        # The buckets of the histogram that hold the job in the middle, and the one that 95 of 100 are not slower than.
        half = next(bucket for bucket, count in enumerate(under) if 2 * count >= jobs)
        most = next(bucket for bucket, count in enumerate(under) if 20 * count >= 19 * jobs)
        said = f"{jobs} with a result; half of them took {limits[half]}, 95% (p95) {limits[most]}; with the reading of keys "
        said += f"that were not in memory, {seconds_text(seconds / jobs)} on average"
        if artifact in ratios:
            said += f", {ratios[artifact]:.2f} times the predicted time"
        bars = list(zip(limits, done, strict=True))[max(0, first - 1) : last + 1]
        parts.append(
            f"<h3>{escape(names.get(artifact, artifact))}</h3><p>{said}</p><div class='chart'>"
            f"{columns_svg(bars, 'jobs by seconds from claim to result')}</div>"
        )
    return parts


def _bar(name: str, used: int, limit: int, said: str) -> str:
    """What is used of something, in words and as a bar."""
    return (
        f"<p id='{name}'><label>{said}<meter min='0' max='{max(limit, 1)}' value='{used}' high='{0.9 * limit:.0f}'>"
        "</meter></label></p>"
    )


def _room(site: Site) -> list[str]:
    """Memory and disk as bars."""
    _, held, limit = held_by_workers(site)
    _, keys = held_on_disk(site)
    disk = shutil.disk_usage(site.places.root)
    taken = disk.total - disk.free
    return [
        _bar(
            "memory", held, limit, f"Memory: {bytes_text(held)} of the {bytes_text(limit)} of all workers, by the bills"
        ),
        _bar(
            "disk",
            taken,
            disk.total,
            f"Disk: {bytes_text(taken)} of {bytes_text(disk.total)}, {bytes_text(keys)} of it keys; "
            f"{bytes_text(disk.free)} are free",
        ),
    ]


def _unended(ended: list[Endings]) -> str:
    """What is said in place of charts."""
    failed = sum(each.failed for each in ended)
    return f"<p>No job has ended with a result; {failed} failed.</p>" if failed else "<p>No job has ended yet.</p>"


def page(site: Site) -> str:
    """The page. Names of artifacts and tenants are escaped; it has no data, keys or tokens."""
    now = site.database.clock.now()
    reading = site.database.reading()
    workers = reading.execute("SELECT * FROM workers ORDER BY name").fetchall()
    jobs = reading.execute(
        "SELECT jobs.*, tenants.name AS tenant_name FROM jobs JOIN tenants ON tenants.number = jobs.tenant"
        f" ORDER BY jobs.number DESC LIMIT {_ROWS}"
    ).fetchall()
    names = {served.record.artifact: served.record.name for served in site.catalog}
    states = jobs_by_state(site)
    ended = endings(reading)
    tenants = reading.execute(_TENANTS, {"queued": QUEUED, "running": RUNNING}).fetchall()
    charts = _charts(ended, names, measured_over_predicted(ended, predicted_by_artifact(site)))
    parts = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>",
        "<meta name='viewport' content='width=device-width'><title>Heliograph</title>",
        f"<meta http-equiv='refresh' content='5'><style>{_STYLE}</style></head><body><h1>Heliograph</h1>",
        f"<p id='summary'>{', '.join(f'{number} {state}' for state, number in states.items())}; "
        f"{site.pool.alive} of {site.settings.workers} workers live</p>",
        *_room(site),
        "<h2>Artifacts</h2>",
        table(
            (
                "name",
                "fingerprint",
                "security",
                "keys as sent",
                "input as sent",
                "a client's server",
                "a worker may have",
            ),
            (
                (
                    record.name,
                    Html(f"<code>{record.artifact}</code>"),
                    "none" if record.security_bits is None else f"{record.security_bits} bits",
                    bytes_text(record.sent_key_bytes),
                    bytes_text(record.sent_input_bytes),
                    bytes_text(record.server_bytes) + ("" if record.fits else " (does not fit)"),
                    bytes_text(record.worker_bytes),
                )
                for record in (served.record for served in site.catalog)
            ),
            "artifacts",
        ),
        "<h2>Time of jobs</h2>",
        *(charts or [_unended(ended)]),
        "<h2>Tenants</h2>",
        table(
            ("tenant", "waiting", "running", "with a result", "failed", "keys on the disk"),
            (
                (
                    row["name"],
                    str(row["waiting"]),
                    str(row["running"]),
                    str(sum(sum(each.done) for each in ended if each.tenant == row["name"])),
                    str(sum(each.failed for each in ended if each.tenant == row["name"])),
                    bytes_text(row["bytes"]),
                )
                for row in tenants
            ),
            "tenants",
        ),
        "<h2>Workers</h2>",
        table(
            ("worker", "machine", "process", "last seen between jobs", "key sets held", "memory by the bill"),
            (
                (
                    Html(f"<code>{row['name']}</code>"),
                    row["place"],
                    str(row["process"]),
                    f"{now - row['beat']:.0f} s ago",
                    str(row["servers"]),
                    bytes_text(row["bytes"]),
                )
                for row in workers
            ),
            "workers",
        ),
        "<h2>Jobs</h2>",
        table(
            ("job", "tenant", "artifact", "state", "progress", "seconds"),
            (
                (
                    Html(f"<code>{row['id']}</code>"),
                    row["tenant_name"],
                    names.get(row["artifact"], row["artifact"]),
                    row["state"],
                    Html(f"<progress max='{max(row['total'], 1)}' value='{row['done']}'></progress>"),
                    "" if row["started"] is None else f"{(row['ended'] or now) - row['started']:.2f}",
                )
                for row in jobs
            ),
            "jobs",
        ),
        "</body></html>",
    ]
    return "\n".join(parts)
