"""The operator's page: artifacts, workers, memory and the latest jobs, as one HTML text without scripts."""

from __future__ import annotations

from heliograph.report.markup import Html, table
from heliograph.report.text import bytes_text
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
# Names on the page are escaped, and even an unescaped one could run no script. The page cannot be framed and is never
# cached.
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
