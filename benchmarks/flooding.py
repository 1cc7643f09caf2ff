"""One client that floods a server, as a process of its own: `flooding.py KIND PORT TOKEN SECONDS CONNECTIONS ARTIFACT`.

It prints a line when it begins, and at its end a JSON object: answers by status, and connections that were lost. Each
connection asks again as soon as it is answered. Only the standard library: it starts at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import resource
import sys
from collections import Counter

KINDS = ("no token", "unknown job", "begin key sets", "list jobs", "wait", "idle", "unread")
_REST_S = 0.2


def _hex(*parts: object) -> str:
    return hashlib.sha256("/".join(map(str, parts)).encode()).hexdigest()


def request(kind: str, token: str, artifact: str, connection: int, number: int) -> bytes:
    """The next request on a connection."""
    method, path = {
        "no token": ("GET", "/v1/jobs"),
        "unknown job": ("GET", f"/v1/jobs/{'0' * 32}"),
        "begin key sets": ("PUT", f"/v1/keys/{artifact}/{_hex(connection, number)[:32]}"),
        "list jobs": ("GET", "/v1/jobs"),
        "wait": ("GET", f"/v1/jobs/{connection + 1:032x}?wait=30"),
        "unread": ("GET", "/openapi.json"),
    }[kind]
    known = "" if kind in ("no token", "unread") else f"Authorization: Bearer {token}\r\n"
    return f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n{known}\r\n".encode()


async def _answered(reader: asyncio.StreamReader) -> str:
    """The status of an answer, which is read whole."""
    head = await reader.readuntil(b"\r\n\r\n")
    size = next((line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), b":0")
    await reader.readexactly(int(size.split(b":")[1]))
    return head.split(b" ", 2)[1].decode()


async def _one(kind: str, port: int, token: str, artifact: str, connection: int, seen: Counter[str]) -> None:
    number = 0
    while True:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 24)
            with contextlib.closing(writer):
                if kind == "unread":
                    writer.transport.pause_reading()
                    writer.write(400 * request(kind, token, artifact, connection, 0))
                    # A socket that the server closed fails at the next write.
                    while not writer.is_closing():
                        await asyncio.sleep(1)
                        writer.write(b"\r\n")
                    raise ConnectionResetError
                while True:
                    if kind == "idle":
                        await reader.readexactly(1)
                    writer.write(request(kind, token, artifact, connection, number))
                    number += 1
                    seen[await _answered(reader)] += 1
        except (OSError, asyncio.IncompleteReadError):
            seen["lost connections"] += 1
            await asyncio.sleep(_REST_S)


async def _all(kind: str, port: int, token: str, seconds: float, connections: int, artifact: str) -> Counter[str]:
    seen: Counter[str] = Counter()
    print("ready", flush=True)
    with contextlib.suppress(asyncio.TimeoutError):
        each = (_one(kind, port, token, artifact, number, seen) for number in range(connections))
        await asyncio.wait_for(asyncio.gather(*each), seconds)
    return seen


def main() -> None:
    kind, port, token, seconds, connections, artifact = sys.argv[1:]
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 1 << 14), hard))
    found = asyncio.run(_all(kind, int(port), token, float(seconds), int(connections), artifact))
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
