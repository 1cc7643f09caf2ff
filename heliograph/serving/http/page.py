"""The operator's page: artifacts, workers, memory and the latest jobs, as one HTML text without scripts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from heliograph.serving.http.metrics import jobs_by_state
from heliograph.serving.site import Site

_ROWS = 100
_STYLE = """
body { font: 14px/1.4 system-ui, sans-serif; margin: 2em auto; max-width: 72em; padding: 0 1em; color: #222; }
table { border-collapse: collapse; margin: 0 0 2em; width: 100%; }
th, td { text-align: left; padding: .25em .8em .25em 0; border-bottom: 1px solid #ddd; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
progress { width: 8em; }
code { font-size: 12px; }
@media (max-width: 700px) {
  table, tbody, tr, td { display: block; }
  thead { display: none; }
  tr { border-bottom: 1px solid #ddd; padding: .5em 0; }
  td { border: 0; padding: .1em 0; display: flex; justify-content: space-between; gap: 1em; overflow-wrap: anywhere; }
  td::before { content: attr(data-name); font-weight: bold; flex: none; }
}
"""
# Names on the page are escaped; even if one were not, no script would run. The page cannot be framed and is never cached.
PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'",
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


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
    parts = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>",
        "<meta name='viewport' content='width=device-width'><title>Heliograph</title>",
        f"<meta http-equiv='refresh' content='5'><style>{_STYLE}</style></head><body><h1>Heliograph</h1>",
        f"<p id='summary'>{', '.join(f'{number} {state}' for state, number in states.items())}; "
        f"{site.pool.alive} of {site.settings.workers} workers live</p>",
        "<h2>Artifacts</h2>",
        _table(
            "artifacts",
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
                    escape(record.name),
                    f"<code>{record.artifact}</code>",
                    "none" if record.security_bits is None else f"{record.security_bits} bits",
                    _size(record.sent_key_bytes),
                    _size(record.sent_input_bytes),
                    _size(record.server_bytes) + ("" if record.fits else " (does not fit)"),
                    _size(record.worker_bytes),
                )
                for record in (served.record for served in site.catalog)
            ),
        ),
        "<h2>Workers</h2>",
        _table(
            "workers",
            ("worker", "machine", "process", "last seen between jobs", "key sets held", "memory by the bill"),
            (
                (
                    f"<code>{row['name']}</code>",
                    escape(row["place"]),
                    str(row["process"]),
                    f"{now - row['beat']:.0f} s ago",
                    str(row["servers"]),
                    _size(row["bytes"]),
                )
                for row in workers
            ),
        ),
        "<h2>Jobs</h2>",
        _table(
            "jobs",
            ("job", "tenant", "artifact", "state", "progress", "seconds"),
            (
                (
                    f"<code>{row['id']}</code>",
                    escape(row["tenant_name"]),
                    escape(names.get(row["artifact"], row["artifact"])),
                    row["state"],
                    f"<progress max='{max(row['total'], 1)}' value='{row['done']}'></progress>",
                    "" if row["started"] is None else f"{(row['ended'] or now) - row['started']:.2f}",
                )
                for row in jobs
            ),
        ),
        "</body></html>",
    ]
    return "\n".join(parts)


def _table(name: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of texts that are HTML already."""
    body = "\n".join(
        "<tr>"
        + "".join(f"<td data-name='{escape(n)}'>{cell}</td>" for n, cell in zip(heads, row, strict=True))
        + "</tr>"
        for row in rows
    )
    head = "".join(f"<th>{escape(text)}</th>" for text in heads)
    return f"<table id='{name}'><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table>"


def _size(size: int) -> str:
    unit, name = next(((unit, name) for unit, name in ((1e9, "GB"), (1e6, "MB")) if size >= unit), (1e3, "kB"))
    return f"{size / unit:.1f} {name}"
