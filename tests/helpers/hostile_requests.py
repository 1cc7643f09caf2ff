"""Requests that no client of ours would send, and a server's application that is called with them in this process."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from runtime.support import sample, toy_artifact

import heliograph as hg
from heliograph.artifact.container import digest_of
from heliograph.runtime.wire.keyfolder import key_parts
from heliograph.serving.http.app import make_app
from heliograph.serving.site import Site, SiteSettings

ODD = [
    *(
        "",
        " ",
        "0",
        "-1",
        "1e309",
        "99999999999999999999999",
        "%00",
        "%0d%0aSet-Cookie:%20a=b",
        "..",
        "../../etc/passwd",
    ),
    *(
        "%2e%2e%2f",
        "'",
        '"',
        "' OR 1=1 --",
        "{}",
        "[]",
        "null",
        "%ff%fe",
        "é",
        "𝔘",
        "a" * 5000,
        "0" * 31,
        "0" * 33,
        "g" * 32,
    ),
    *(
        "rotation/5",
        "relinearization",
        "rotation-5",
        "/",
        "//",
        "?",
        "#",
        "&",
        "=",
        "true",
        "0x10",
        "１２",
        "1_0",
        "+1",
    ),
]


def hostile_request(chance: random.Random, artifact: str, client: str, job: str, digest: str) -> tuple[str, str, bytes]:
    """Method, target and body of one request: a sound one with some of its parts altered, dropped or doubled."""
    paths = [
        "/", "/metrics", "/health", "/openapi.json", "/v1/artifacts", "/v1/artifacts/{a}/public",
        "/v1/keys/{a}/{c}", "/v1/keys/{a}/{c}/rotation/1",
        "/v1/keys/{a}/{c}/{d}", "/v1/jobs", "/v1/jobs/{j}", "/v1/jobs/{j}/events", "/v1/jobs/{j}/result",
    ]  # fmt: skip
    known = {"a": artifact, "c": client, "j": job, "d": digest}
    if chance.random() < 0.6:
        known[chance.choice(list(known))] = chance.choice(ODD)
    path = chance.choice(paths)
    for name, value in known.items():
        path = path.replace(f"{{{name}}}", value)
    query = {
        "digest": digest, "artifact": artifact, "client": client, "before": "1-" + job, "wait": "0",
    }  # fmt: skip
    pairs = [(name, value) for name, value in query.items() if chance.random() < 0.6]
    for _ in range(chance.randrange(3)):
        pairs.insert(chance.randrange(len(pairs) + 1), (chance.choice([*query, *ODD]), chance.choice(ODD)))
    text = "&".join(f"{name}={value}" for name, value in pairs)
    method = chance.choice(["GET", "GET", "PUT", "PUT", "POST", "DELETE", "PATCH", "HEAD", "OPTIONS", "TRACE", "FOO"])
    return method, f"{path}?{text}", chance.randbytes(chance.choice([0, 0, 1, 10, 11, 5000]))


@dataclass(slots=True)
class Answers:
    """What a server answered: how often each status, and what broke a promise."""

    statuses: Counter[int] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)


class Target:
    """A server whose workers are not started, with a job of one tenant; the application is called without a network."""

    def __init__(self, folder: Path) -> None:
        path = folder / "mlp.helio"
        toy_artifact().save(path)
        self.site = Site(SiteSettings([path], folder / "data", memory_bytes=1 << 31, allow_insecure=True))
        self._app = make_app(self.site)
        owner, self._stranger = self.site.tenants.add("owner"), self.site.tenants.add("stranger")
        client = hg.Client(toy_artifact(), allow_insecure=True)
        keys, encrypted = client.evaluation_keys(), client.encrypt(sample())
        self._artifact, self._client, self._job = toy_artifact().fingerprint, client.id, encrypted.request
        data = encrypted.to_bytes()
        self._digest = digest_of(data)
        base = f"/v1/keys/{self._artifact}/{self._client}"

        async def prepare() -> None:
            assert (await self._call("PUT", base, b"", owner))[0] == 200
            for name in keys.names():
                sent = b"".join(key_parts(self._artifact, self._client, name, keys.blob(name)))
                assert (await self._call("PUT", f"{base}/{name}", sent, owner))[0] == 200
            query = f"artifact={self._artifact}&client={self._client}&digest={self._digest}"
            assert (await self._call("PUT", f"/v1/jobs/{self._job}?{query}", data, owner))[0] < 300

        asyncio.run(prepare())

    async def _call(self, method: str, target: str, body: bytes, token: str) -> tuple[int, bytes]:
        """Status and body of the answer to one request, whose target may hold anything."""
        raw, _, query = target.encode("utf-8", "surrogateescape").partition(b"?")
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
            "path": unquote(raw.decode("latin-1")), "raw_path": raw, "query_string": query, "root_path": "",
            "headers": [(b"authorization", f"Bearer {token}".encode()), (b"content-length", b"%d" % len(body))],
            "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 2), "state": {},
        }  # fmt: skip
        parts: list[dict[str, Any]] = [{"type": "http.request", "body": body, "more_body": False}]
        said: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return parts.pop() if parts else {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            said.append(message)

        await self._app(scope, receive, send)
        return int(said[0]["status"]), b"".join(message.get("body", b"") for message in said[1:])

    def attack(self, count: int, seed: int) -> Answers:
        """Send this many hostile requests with the token of another tenant than that of the job."""
        found, chance = Answers(), random.Random(seed)

        async def all_of_them() -> None:
            for number in range(count):
                method, target, body = hostile_request(chance, self._artifact, self._client, self._job, self._digest)
                what = f"request {number} of seed {seed}: {method} {target[:200]}"
                try:
                    status, answer = await self._call(method, target, body, self._stranger)
                except Exception as error:
                    found.failures.append(f"{what}: {type(error).__name__}: {str(error)[:300]}")
                    continue
                found.statuses[status] += 1
                # No worker lives, which is what /health says.
                if status >= 500 and not target.startswith("/health"):
                    found.failures.append(f"{what}: {status} {answer[:300]!r}")
                elif status == 200 and f"/v1/jobs/{self._job}" in target:
                    found.failures.append(f"{what}: another tenant's job")
                elif status >= 400 and not target.startswith("/health") and "error" not in json.loads(answer or b"{}"):
                    found.failures.append(f"{what}: no error in {answer[:300]!r}")

        asyncio.run(all_of_them())
        return found

    def close(self) -> None:
        self.site.close()
