"""The figures of a server as text for Prometheus (exposition format 0.0.4)."""

from __future__ import annotations

import shutil

from heliograph.serving.remote.records import DONE, FAILED, QUEUED, RUNNING
from heliograph.serving.site import Site

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_COUNTERS = {
    "jobs_accepted": "Jobs that were accepted.",
    "jobs_done": "Jobs that ended with a result.",
    "jobs_failed": "Jobs that ended with an error.",
    "job_seconds": "Seconds from claim to result of the jobs that ended with one.",
    "keys_taken": "Evaluation keys that were taken from uploads.",
}


def jobs_by_state(site: Site) -> dict[str, int]:
    """The number of jobs in each state."""
    rows = site.database.reading().execute("SELECT state, COUNT(*) AS n FROM jobs GROUP BY state").fetchall()
    return dict.fromkeys((QUEUED, RUNNING, DONE, FAILED), 0) | {row["state"]: row["n"] for row in rows}


def text(site: Site) -> str:
    """All figures."""
    lines: list[str] = []

    def say(name: str, kind: str, help: str, values: dict[str, float]) -> None:
        lines.extend((f"# HELP heliograph_{name} {help}", f"# TYPE heliograph_{name} {kind}"))
        lines.extend(f"heliograph_{name}{labels} {value:.10g}" for labels, value in values.items())

    reading = site.database.reading()
    counted = {row["name"]: row["value"] for row in reading.execute("SELECT name, value FROM counters").fetchall()}
    for name, help in _COUNTERS.items():
        say(f"{name}_total", "counter", help, {"": counted.get(name, 0)})
    states = {f'{{state="{state}"}}': float(number) for state, number in jobs_by_state(site).items()}
    say("jobs", "gauge", "Jobs that are kept, by state.", states)
    (deaths,) = reading.execute("SELECT COALESCE(SUM(deaths), 0) FROM jobs").fetchone()
    say("job_deaths", "gauge", "Workers that died over the jobs that are kept.", {"": deaths})
    say("workers", "gauge", "Workers that live.", {"": site.pool.alive})
    (servers, held) = reading.execute(
        "SELECT COALESCE(SUM(servers), 0), COALESCE(SUM(bytes), 0) FROM workers"
    ).fetchone()
    say("servers", "gauge", "Key sets that workers hold in memory.", {"": servers})
    say("servers_bytes", "gauge", "What they take by the bills.", {"": held})
    say("workers_limit_bytes", "gauge", "What all workers may take.", {"": site.worker_bytes * site.settings.workers})
    say("connections", "gauge", "Connections that are open.", {"": len(site.connections)})
    say("uploads_bytes", "gauge", "Bytes of uploads that are on their way.", {"": site.uploads.announced_bytes()})
    number, size = reading.execute("SELECT COUNT(*), COALESCE(SUM(bytes), 0) FROM keysets").fetchone()
    say("keysets", "gauge", "Key sets on the disk.", {"": number})
    say("keysets_bytes", "gauge", "Bytes of key sets on the disk.", {"": size})
    say("disk_free_bytes", "gauge", "Free bytes on the disk.", {"": shutil.disk_usage(site.places.root).free})
    return "\n".join(lines) + "\n"
