"""Serves the application on an address, with uvicorn."""

from __future__ import annotations

import importlib.util
import ipaddress
import json
import socket
import subprocess
import sys
import threading
from dataclasses import dataclass, replace

import uvicorn

from heliograph.artifact.costs import has_own_costs
from heliograph.errors import HeliographError, ProgramError, SecurityError
from heliograph.runtime.backend import OPENFHE
from heliograph.serving.connections import Connection, Connections, Listener, connections_for
from heliograph.serving.http.app import make_app
from heliograph.serving.logs import log, log_to_stderr
from heliograph.serving.site import Site, SiteSettings

_GRACE_S = 5
# A rotation is measured in seconds, or in minutes where kernels are compiled first.
_PACE_S = 600
_DEFAULT_PORT = 8100


@dataclass(frozen=True, slots=True)
class Listening:
    """A server's address and certificate. `plain_http` allows addresses other than loopback without a certificate."""

    address: str = f"127.0.0.1:{_DEFAULT_PORT}"
    certificate: str | None = None
    private_key: str | None = None
    plain_http: bool = False


def serve(settings: SiteSettings, listening: Listening) -> None:
    """Serve until the process gets SIGTERM or SIGINT.

    Raises SecurityError for an address that others reach without TLS, because tokens would be sent in the clear;
    HeliographError if the address cannot be used.
    """
    host, port = _parsed(listening.address)
    if (listening.certificate is None) != (listening.private_key is None):
        raise ProgramError("a certificate and its private key go together", hint="give --tls-cert and --tls-key")
    if listening.certificate is None and not listening.plain_http and not is_loopback(host):
        raise SecurityError(
            f"{host} can be reached by others, and without TLS they can read tokens",
            where="serve",
            hint="give --tls-cert and --tls-key; behind a proxy that has TLS give --plain-http",
        )
    log_to_stderr()
    limits = replace(settings.limits, connections=connections_for(settings.limits.connections))
    site = Site(replace(settings, limits=limits))
    config = uvicorn.Config(
        make_app(site),
        # Our listener works with asyncio's own loop.
        loop="asyncio",
        http=Connection,
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=_GRACE_S,
        ssl_certfile=listening.certificate,
        ssl_keyfile=listening.private_key,
    )
    tls = listening.certificate is not None
    with _bound(host, port, site.connections, tls) as listener:
        log(
            "listening",
            address=f"{host}:{listener.getsockname()[1]}",
            tls=tls,
            connections=limits.connections,
        )
        if settings.backend != OPENFHE and importlib.util.find_spec("numba") and not has_own_costs():
            threading.Thread(target=_log_pace, daemon=True).start()
        try:
            uvicorn.Server(config).run(sockets=[listener])
        except OSError as error:
            raise HeliographError("the certificate cannot be used", why=error.strerror or str(error)) from None


def _log_pace() -> None:
    """Log a warning if the built-in prices do not fit this machine. Another process measures, so that the kernels' memory
    is not this one's.
    """
    command = [sys.executable, "-m", "heliograph.runtime.native.pace"]
    try:
        done = subprocess.run(command, capture_output=True, check=True, timeout=_PACE_S)
        found = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        log("prices", text=f"no rotation could be measured: {type(error).__name__}")
        return
    if not found.pop("fits"):
        log("prices", text="they do not fit this machine: `heliograph doctor --calibrate` measures it", **found)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _parsed(address: str) -> tuple[str, int]:
    host, colon, port = address.rpartition(":")
    if not colon:
        host, port = address, str(_DEFAULT_PORT)
    host = host.strip("[]")
    if not port.isdecimal() or int(port) > 65535 or not host:
        raise ProgramError(f"{address!r} is not an address", where="--listen", hint="as 127.0.0.1:8100 or [::1]:8100")
    return host, int(port)


def _bound(host: str, port: int, connections: Connections, tls: bool) -> Listener:
    try:
        family, _, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = Listener(family, connections, tls=tls)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(place)
    except OSError as error:
        raise HeliographError(
            f"{host}:{port} cannot be listened on", why=error.strerror or str(error), hint="choose another address"
        ) from None
    return listener
