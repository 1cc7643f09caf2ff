"""The figures of a server as text for Prometheus (exposition format 0.0.4)."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence

from heliograph.serving.queue.endings import LIMITS_S, Endings, endings
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


def _labels(**values: str) -> str:
    """Labels as the format writes them: backslashes, quotes and line ends escaped."""
    escaped = (
        (name, value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")) for name, value in values.items()
    )
    return "{" + ",".join(f'{name}="{value}"' for name, value in escaped) + "}"


def predicted_by_artifact(site: Site) -> dict[str, float]:
    """The predicted milliseconds of an evaluation, by artifact, where there is a prediction."""
    records = (served.record for served in site.catalog)
    return {record.artifact: record.predicted_ms for record in records if record.predicted_ms is not None}


def measured_over_predicted(ended: Sequence[Endings], predicted_ms: Mapping[str, float]) -> dict[str, float]:
    """By artifact, the mean seconds of the jobs that ended with a result over the predicted ones.

    A job's seconds also hold the loading of keys that were not in memory.
    """
    done: dict[str, tuple[int, float]] = {}
    for each in ended:
        jobs, seconds = done.get(each.artifact, (0, 0.0))
        done[each.artifact] = (jobs + sum(each.done), seconds + each.seconds)
    return {
        artifact: 1e3 * seconds / jobs / predicted_ms[artifact]
        for artifact, (jobs, seconds) in done.items()
        if jobs and predicted_ms.get(artifact)
    }


def held_by_workers(site: Site) -> tuple[int, int, int]:
    """The key sets that workers hold, the bytes that these take by the bills, and the bytes that all workers may take."""
    servers, held = (
        site.database.reading()
        .execute("SELECT COALESCE(SUM(servers), 0), COALESCE(SUM(bytes), 0) FROM workers")
        .fetchone()
    )
    return servers, held, site.worker_bytes * site.settings.workers


def held_on_disk(site: Site) -> tuple[int, int]:
    """The key sets on the disk, and their bytes."""
    number, size = site.database.reading().execute("SELECT COUNT(*), COALESCE(SUM(bytes), 0) FROM keysets").fetchone()
    return number, size


def text(site: Site) -> str:
    """All figures."""
    lines: list[str] = []
    names = {served.record.artifact: served.record.name for served in site.catalog}

    def of(artifact: str, **more: str) -> dict[str, str]:
        return {"artifact": artifact, "name": names.get(artifact, ""), **more}

    def say(name: str, kind: str, help: str, values: dict[str, float]) -> None:
        lines.extend((f"# HELP heliograph_{name} {help}", f"# TYPE heliograph_{name} {kind}"))
        lines.extend(f"heliograph_{name}{labels} {value:.10g}" for labels, value in values.items())

    reading = site.database.reading()
    counted = {row["name"]: row["value"] for row in reading.execute("SELECT name, value FROM counters").fetchall()}
    for name, help in _COUNTERS.items():
        say(f"{name}_total", "counter", help, {"": counted.get(name, 0)})
    ended = endings(reading)
    durations: dict[str, float] = {}
    for each in ended:
        labels, under = of(each.artifact, tenant=each.tenant), 0
        for limit, jobs in zip((*LIMITS_S, None), each.done, strict=True):
            under += jobs
            upper = "+Inf" if limit is None else f"{limit:g}"
            durations["_bucket" + _labels(**labels, le=upper)] = under
        durations["_sum" + _labels(**labels)] = each.seconds
        durations["_count" + _labels(**labels)] = under
    help = "Seconds from claim to result of the jobs that ended with one, by artifact and tenant."
    say("job_duration_seconds", "histogram", help, durations)
    failures = {_labels(**of(each.artifact, tenant=each.tenant)): float(each.failed) for each in ended}
    say("job_failures_total", "counter", "Jobs that ended with an error, by artifact and tenant.", failures)
    predicted = predicted_by_artifact(site)
    seconds = {_labels(**of(artifact)): ms / 1e3 for artifact, ms in predicted.items()}
    say("predicted_seconds", "gauge", "Seconds of an evaluation as the artifact predicts them.", seconds)
    ratios = {_labels(**of(name)): ratio for name, ratio in measured_over_predicted(ended, predicted).items()}
    help = "Mean seconds of the jobs that ended with a result over the predicted ones."
    say("measured_over_predicted", "gauge", help, ratios)
    states = {f'{{state="{state}"}}': float(number) for state, number in jobs_by_state(site).items()}
    say("jobs", "gauge", "Jobs that are kept, by state.", states)
    (deaths,) = reading.execute("SELECT COALESCE(SUM(deaths), 0) FROM jobs").fetchone()
    say("job_deaths", "gauge", "Workers that died over the jobs that are kept.", {"": deaths})
    say("workers", "gauge", "Workers that live.", {"": site.pool.alive})
    servers, held, limit = held_by_workers(site)
    say("servers", "gauge", "Key sets that workers hold in memory.", {"": servers})
    say("servers_bytes", "gauge", "What they take by the bills.", {"": held})
    say("workers_limit_bytes", "gauge", "What all workers may take.", {"": limit})
    say("connections", "gauge", "Connections that are open.", {"": len(site.connections)})
    say("uploads_bytes", "gauge", "Bytes of uploads that are on their way.", {"": site.uploads.announced_bytes()})
    number, size = held_on_disk(site)
    say("keysets", "gauge", "Key sets on the disk.", {"": number})
    say("keysets_bytes", "gauge", "Bytes of key sets on the disk.", {"": size})
    say("disk_free_bytes", "gauge", "Free bytes on the disk.", {"": shutil.disk_usage(site.places.root).free})
    return "\n".join(lines) + "\n"
