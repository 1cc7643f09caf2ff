"""`heliograph serve` and `heliograph token`: artifacts behind an address."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

import click

from heliograph.cli.output import emit, insecure_option, output_options, plaintexts_option, remark
from heliograph.cli.sections import SectionedCommand
from heliograph.errors import ProgramError
from heliograph.serving.queue.settings import Limits

if TYPE_CHECKING:
    from heliograph.serving.queue.tenants import Entry

_LIMITS = Limits()

_DATA = click.option(
    "--data",
    default="heliograph-serve",
    show_default=True,
    metavar="DIR",
    help="Folder of the queue, keys, inputs and results; it outlives the server.",
)


@click.command(
    "serve",
    cls=SectionedCommand,
    sections={
        "The service": (
            "data",
            "plain",
            "kept",
            "workers",
            "engine",
            "memory_bytes",
            "backend",
            "plaintexts",
            "insecure",
        ),
        "Network": ("listen", "tls_cert", "tls_key", "plain_http"),
        "Browsers": ("origins", "demo"),
        "Limits": ("tenant_bytes", "keys_days", "result_days", "connections", "address_connections"),
    },
)
@click.argument("artifacts", metavar="ARTIFACT...", nargs=-1, required=True)
@click.option(
    "--listen",
    default="127.0.0.1:8100",
    show_default=True,
    metavar="HOST:PORT",
    help="Address and port; port 0 takes a free one.",
)
@_DATA
@click.option(
    "--workers", type=click.IntRange(1, 256), default=1, show_default=True, help="Number of evaluating processes."
)
@click.option(
    "--engine",
    type=click.Choice(["local", "ray"]),
    default="local",
    show_default=True,
    help="Processes of this machine, or a Ray cluster (RAY_ADDRESS).",
)
@click.option(
    "--memory-bytes",
    type=click.IntRange(1),
    default=None,
    help="Memory for all workers together (default: 4/5 of what is free).",
)
@click.option(
    "--plain",
    "plain",
    multiple=True,
    metavar="NAME=FILE",
    help="Values of the unencrypted inputs of artifact NAME. Repeatable.",
)
@click.option(
    "--kept",
    "kept",
    multiple=True,
    metavar="NAME=FILE",
    help="Encrypted inputs of artifact NAME that stay here, such as an encrypted index. Repeatable.",
)
@click.option(
    "--backend",
    type=click.Choice(["native", "openfhe"]),
    default=None,
    help="Run on Heliograph's own kernels or on OpenFHE (default: native if numba is installed).",
)
@plaintexts_option
@click.option("--tls-cert", default=None, metavar="FILE", help="The server's certificate chain (PEM).")
@click.option("--tls-key", default=None, metavar="FILE", help="The private key of the certificate (PEM).")
@click.option("--plain-http", is_flag=True, help="Listen without TLS on a public address, behind a proxy that has TLS.")
@click.option(
    "--origin",
    "origins",
    multiple=True,
    metavar="ORIGIN",
    help="Let pages of this origin, such as https://pages.example.org, use the server. Repeatable.",
)
@click.option(
    "--demo",
    default=None,
    metavar="DIR",
    help="Serve the example page of clients/js, the folder DIR, at /demo/: draw a digit, or fill in a row.",
)
@click.option(
    "--tenant-bytes",
    type=click.IntRange(1),
    default=None,
    help=f"Disk space for each token (default: {_LIMITS.tenant_bytes >> 30} GiB).",
)
@click.option(
    "--keys-days",
    type=click.FloatRange(0.001),
    default=None,
    help=f"Delete keys that no job has used for this many days (default: {_LIMITS.keys_s / 86_400:.0f}).",
)
@click.option(
    "--result-days",
    type=click.FloatRange(0.001),
    default=None,
    help=f"Delete results that nobody has fetched after this many days (default: {_LIMITS.result_s / 86_400:.0f}).",
)
@click.option(
    "--connections",
    type=click.IntRange(1),
    default=None,
    help=f"Connections at once, where the limit of open files allows it (default: {_LIMITS.connections}).",
)
@click.option(
    "--address-connections",
    type=click.IntRange(1),
    default=None,
    help=f"Of these from one address; a proxy is one (default: {_LIMITS.address_connections}).",
)
@insecure_option
def serve_command(
    artifacts: tuple[str, ...],
    listen: str,
    data: str,
    workers: int,
    engine: str,
    memory_bytes: int | None,
    plain: tuple[str, ...],
    kept: tuple[str, ...],
    backend: str | None,
    plaintexts: str | None,
    tls_cert: str | None,
    tls_key: str | None,
    plain_http: bool,
    origins: tuple[str, ...],
    demo: str | None,
    tenant_bytes: int | None,
    keys_days: float | None,
    result_days: float | None,
    connections: int | None,
    address_connections: int | None,
    insecure: bool,
) -> None:
    """Serve artifacts over HTTP to clients that have a token (`heliograph token`). Logs are JSON lines on stderr."""
    if sys.platform == "win32":
        raise ProgramError(
            "servers run on Linux and macOS",
            where="heliograph serve",
            why="they map keys and files in ways that Windows does not have",
            hint="run it in WSL or a container; clients run on Windows too",
        )
    from heliograph.serving.queue.settings import Limits
    from heliograph.serving.run import Listening, serve
    from heliograph.serving.site import SiteSettings

    for flag, texts in (("--plain", plain), ("--kept", kept)):
        if strange := [each for each in texts if "=" not in each]:
            raise click.BadParameter(f"{strange[0]!r} is not NAME=FILE", param_hint=flag)
    given = {
        "tenant_bytes": tenant_bytes,
        "keys_s": None if keys_days is None else keys_days * 86_400,
        "result_s": None if result_days is None else result_days * 86_400,
        "connections": connections,
        "address_connections": address_connections,
    }
    settings = SiteSettings(
        artifacts=artifacts,
        root=Path(data),
        workers=workers,
        engine=engine,
        memory_bytes=memory_bytes,
        plain=dict(each.split("=", 1) for each in plain),
        kept=dict(each.split("=", 1) for each in kept),
        backend=backend,
        plaintexts=None if plaintexts is None else Path(plaintexts),
        allow_insecure=insecure,
        origins=origins,
        demo=None if demo is None else Path(demo),
        limits=Limits(**{name: value for name, value in given.items() if value is not None}),  # type: ignore[arg-type]
    )
    serve(settings, Listening(listen, tls_cert, tls_key, plain_http))


@click.command("token")
@click.argument("name", required=False)
@_DATA
@click.option("--operator", is_flag=True, help="The token also opens the status page and /metrics.")
@click.option("--expires", type=click.FloatRange(1e-6), default=None, metavar="DAYS", help="The token ends after DAYS.")
@click.option("--rotate", is_flag=True, help="Replace the token of NAME; its keys and jobs stay.")
@click.option("--revoke", is_flag=True, help="Revoke the token of NAME.")
@click.option("--list", "listed", is_flag=True, help="List all names, with the dates of their tokens.")
@output_options
def token_command(
    name: str | None,
    data: str,
    operator: bool,
    expires: float | None,
    rotate: bool,
    revoke: bool,
    listed: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Create a token for the client NAME of a server. It is printed once; only its SHA-256 is kept."""
    from dataclasses import asdict

    from heliograph.serving.queue.database import Database
    from heliograph.serving.queue.settings import Places
    from heliograph.serving.queue.tenants import Tenants

    if listed == (name is not None) or rotate + revoke + listed > 1:
        raise click.UsageError("give NAME, with --rotate or --revoke where it is known, or --list alone")
    places, lasts_s = Places(Path(data)), None if expires is None else expires * 86_400
    if not places.database.exists():
        if revoke or rotate or listed:
            raise ProgramError(f"{data} is not the folder of a server", hint="give the --data of `heliograph serve`")
        remark(f"{data} is a new folder: the token is for a server that is started with --data {data}", quiet)
    places.make()
    tenants = Tenants(Database(places.database))
    if listed:
        entries = tenants.entries()
        emit(_listed(entries), {"tenants": [asdict(entry) for entry in entries]}, as_json=as_json, quiet=quiet)
        return
    assert name is not None
    if revoke:
        tenants.revoke(name)
        emit(f"{name}: revoked", {"tenant": name, "revoked": True}, as_json=as_json, quiet=quiet)
        return
    token = tenants.rotate(name, lasts_s=lasts_s) if rotate else tenants.add(name, operator=operator, lasts_s=lasts_s)
    values = {"tenant": name, "token": token} if rotate else {"tenant": name, "operator": operator, "token": token}
    emit(token, values, as_json=as_json, quiet=quiet)


def _listed(entries: Sequence[Entry]) -> str:
    """A line for each tenant: its name, its kind, and until when its token holds."""
    width = max((len(entry.name) for entry in entries), default=0)
    now, lines = time.time(), []
    for entry in entries:
        until = "no end"
        if entry.expires is not None:
            until = f"{'until' if entry.expires > now else 'ended'} {_date(entry.expires)}"
        kind = "operator" if entry.operator else "client"
        lines.append(f"{entry.name:<{width}}  {kind:<8}  since {_date(entry.created)}  {until}")
    return "\n".join(lines) or "there are no tokens"


def _date(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
