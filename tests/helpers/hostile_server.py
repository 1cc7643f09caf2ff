"""A server that answers well but for one answer, which is altered: its client's calls end in an error of ours, or right."""

from __future__ import annotations

import copy
import functools
import hashlib
import json
import random
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import httpcore
from runtime.support import sample, toy_artifact

import heliograph as hg
from heliograph.errors import HeliographError
from heliograph.runtime.wire.keyfolder import KeyFolder
from heliograph.serving.remote.records import DONE, ArtifactRecord, JobRecord, KeysRecord

# More requests than any call makes, whatever it is answered.
MOST_REQUESTS = 60


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer as it goes out: JSON, or bytes."""

    body: bytes
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Good:
    """What a client has and what a good server answers it, each by the name of the request."""

    keys: hg.EvaluationKeys
    folder: KeyFolder
    encrypted: hg.EncryptedInput
    other: bytes
    answers: dict[str, Any]


@functools.cache
def good() -> Good:
    artifact = toy_artifact()
    client = hg.Client(artifact.public(), allow_insecure=True)
    keys, encrypted = client.evaluation_keys(), client.encrypt(sample())
    folder = client.write_evaluation_keys(Path(tempfile.mkdtemp()) / "keys")
    with hg.Server(artifact, keys, allow_insecure=True) as server:
        result, other = server.run(encrypted).to_bytes(), server.run(client.encrypt(sample(2))).to_bytes()
    names, print_, owner = sorted(keys.names()), artifact.fingerprint, client.id
    served = ArtifactRecord(print_, "mlp", None, 1024, len(names), 1, 1, 1, 1, 1, 1, 1, True, 1.0)
    job = JobRecord(encrypted.request, print_, owner, DONE, 5, 5, 1.0, 2.0, 3.0, len(result), None)
    error = {"kind": "RangeError", "what": "x", "where": "", "why": "y", "hint": "z"}
    return Good(
        keys,
        folder,
        encrypted,
        other,
        {
            "artifacts": [asdict(served)],
            "public": artifact.public().to_bytes(),
            "keys": asdict(KeysRecord(print_, owner, len(names), names[:1], 1, False, 1.0)),
            "key": asdict(KeysRecord(print_, owner, len(names), [], 1, True, 1.0)),
            "forget": None,
            "submit": asdict(job),
            "events": [asdict(job), {**asdict(job), "state": "running", "done": 1}],
            "job": asdict(job),
            "failed": {**asdict(job), "state": "failed", "error": error},
            "result": result,
            "delete": None,
            "refusal": {"error": error},
        },
    )


def request_name(method: str, path: str) -> str:
    """The name under which `Good.answers` has the answer to a request."""
    _, _, kind, *rest = path.split("/")
    if kind == "artifacts":
        return "public" if rest else "artifacts"
    if kind == "keys":
        return "forget" if method == "DELETE" else "key" if rest[2:] else "keys"
    if rest[1:]:
        return rest[1]
    return {"PUT": "submit", "DELETE": "delete"}.get(method, "job")


def answer_of(name: str, found: Any) -> Answer:
    """As the server sends it."""
    if isinstance(found, bytes):
        return Answer(found)
    if name == "events":
        return Answer(b"".join(b"data: " + json.dumps(each).encode() + b"\n\n" for each in found))
    if found is None:
        return Answer(b"", 204)
    return Answer(json.dumps(found).encode(), 422 if name == "refusal" else 200)


# ------------------------------------------------------------------------------------------------ altered answers

ODD: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**63, -(2**63), 2**70, -(2**70), 10**39, 0.5, 1e308, [], {}, [[]], [{}],
    "", "0", " ", "5", "queued", "running", "done", "failed", "0" * 32, "0" * 31, "?", "#", "%00", "\x00", "\r\nX: y",
    "../../../etc/passwd", "http://127.0.0.1:9/", "//127.0.0.1:9/x", "\x1b[2J\x1b]0;owned\x07", "\x9b2J", "\u202e",
    "\ud800", "é" * 5000, "a" * 100_000, {"error": None}, ["a"] * 3000, list(range(3000)),
    {str(i): i for i in range(3000)},
)  # fmt: skip
_TOKENS = (
    b"NaN", b"Infinity", b"1e999", b"-1e999", b"9" * 5000, b"1e-400", b"[" * 5000, b'{"a":' * 3000, b'"\\ud800"',
    b"\xff\xfe", b"\x00", b"[1,1,1,1]", b"//", b"'", b"\xef\xbb\xbf", b"-0", b"[" + b"0," * 300_000 + b"0]", b"\n",
    b"data: ", b"data: {}\n\n",
)  # fmt: skip
_HEADERS = (
    ("Content-Encoding", "gzip"), ("Content-Encoding", "identity, gzip"), ("Content-Encoding", "\xff"),
    ("Location", "http://127.0.0.1:9/"), ("Location", "http://[::1"), ("Location", "//\x80"),
    ("Location", "javascript:0"), ("Set-Cookie", "a=b; Domain=x; Path=/"), ("Set-Cookie", "a" * 5000),
    ("Content-Type", "text/html; charset=\xff"), ("Retry-After", "-1"), ("X", "y" * 50_000), ("Refresh", "0"),
)  # fmt: skip
_STATUSES = (
    100, 101, 199, 200, 201, 204, 206, 299, 300, 301, 302, 304, 307, 308, 400, 401, 403, 404, 409, 413, 422, 429, 500,
    502, 503, 504, 507, 599, 600, 999,
)  # fmt: skip


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    for key, item in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from _places(item, (*path, key))


def _altered_value(rng: random.Random, value: Any) -> Any:
    """JSON with one of its values replaced, removed, repeated or wrapped."""
    value = copy.deepcopy(value)
    path = rng.choice(list(_places(value)))
    if not path:
        return rng.choice(ODD)
    holder = value
    for step in path[:-1]:
        holder = holder[step]
    choice, last = rng.random(), path[-1]
    if choice < 0.6:
        holder[last] = rng.choice(ODD)
    elif choice < 0.7:
        del holder[last]
    elif choice < 0.8:
        holder[last] = [holder[last]] * rng.choice((1, 2, 3000))
    elif choice < 0.9 and type(holder[last]) is int:
        holder[last] += rng.choice((-1, 1, 1000, -(10**12), 10**12))
    else:
        holder[last] = {"a": holder[last]}
    return value


def _altered_bytes(rng: random.Random, data: bytes) -> bytes:
    """Bytes with some altered, left out, doubled or put in; half of the time a digest at the end fits again."""
    found = bytearray(data or b"null")
    for _ in range(rng.randint(1, 3)):
        place, choice = rng.randrange(len(found) + 1) % max(1, len(found)), rng.random()
        if choice < 0.4 and found:
            found[place] ^= 1 << rng.randrange(8)
        elif choice < 0.6:
            found[place:place] = rng.choice(_TOKENS)
        elif choice < 0.8:
            del found[place : place + rng.choice((1, 2, 10, 1000))]
        else:
            found[place:place] = found[place : place + rng.choice((1, 10, 1000))]
    if data[:8] == b"HELIOGR1" and rng.random() < 0.5 and len(found) > 32:
        found[-32:] = hashlib.sha256(found[:-32]).digest()
    return bytes(found)


def altered(rng: random.Random, name: str, found: Any) -> Answer:
    """An answer of which value, bytes, status or headers are altered."""
    answer, choice = answer_of(name, found), rng.random()
    if choice < 0.6 and not isinstance(found, bytes):
        made = answer_of(name, [_altered_value(rng, found[0])] if name == "events" else _altered_value(rng, found))
        answer = Answer(made.body, answer.status if found is not None else 200)
    elif choice < 0.85:
        answer = Answer(_altered_bytes(rng, answer.body), answer.status)
    elif choice < 0.9:
        answer = Answer(answer_of("", rng.choice(list(good().answers.values()))).body or good().other, answer.status)
    if rng.random() < 0.2:
        answer = Answer(answer.body, rng.choice(_STATUSES), answer.headers)
    if rng.random() < 0.1:
        answer = Answer(answer.body, answer.status, (rng.choice(_HEADERS),))
    return answer


# ------------------------------------------------------------------------------------------------ calls

Call = Callable[[hg.RemoteServer], object]


def calls() -> dict[str, tuple[Call, tuple[str, ...]]]:
    """The calls of a client, and the answers that each gets."""
    own = good()
    return {
        "public": (lambda remote: remote.public(), ("artifacts", "public")),
        "register": (lambda remote: remote.register(own.keys), ("keys", "key", "refusal")),
        "register folder": (lambda remote: remote.register(own.folder), ("keys", "key")),
        "forget": (lambda remote: remote.forget(own.keys), ("forget", "refusal")),
        "submit": (lambda remote: remote.submit(own.encrypted), ("submit", "refusal")),
        "result": (
            lambda remote: remote.result(own.encrypted.request),
            ("job", "failed", "result", "delete", "refusal"),
        ),
        "watched": (lambda remote: remote.result(own.encrypted.request, lambda *_: None), ("events", "job")),
    }


@dataclass(frozen=True, slots=True)
class Mutant:
    """One call, and the name of the answer that is altered in it."""

    call: str
    name: str
    answer: Answer


def make_mutant(rng: random.Random) -> Mutant:
    call = rng.choice(list(calls()))
    name = rng.choice(calls()[call][1])
    return Mutant(call, name, altered(rng, name, good().answers[name]))


class Answering:
    """The server: `mutant`'s answer where it is due, everywhere else the good one. It counts requests."""

    def __init__(self, mutant: Mutant) -> None:
        self._mutant, self.requests = mutant, 0

    def __call__(self, method: str, path: str, body: bytes, query: dict[str, str]) -> Answer:
        self.requests += 1
        assert self.requests <= MOST_REQUESTS, "a call asks without end"
        name, mutant = request_name(method, path), self._mutant
        due = {"refusal": {"keys", "forget", "submit", "job"}, "failed": {"job"}}.get(mutant.name, {mutant.name})
        return mutant.answer if name in due else answer_of(name, good().answers[name])


def remote_of(url: str, **more: Any) -> hg.RemoteServer:
    """A client that does not wait."""
    return hg.RemoteServer(url, "token", patience_s=0.0, job_s=0.0, **more)


def attempt(mutant: Mutant) -> int:
    """Run the call of a mutant in this process: the length of the error, 0 where there is none.

    An AssertionError for an answer that is not right, or words that a terminal would obey.
    """
    with remote_of("http://127.0.0.1:9") as remote:
        remote._transport._client._transport._pool = _Pool(Answering(mutant))  # type: ignore[attr-defined]
        return outcome(mutant, remote)


def outcome(mutant: Mutant, remote: hg.RemoteServer) -> int:
    """The length of the error that the call of a mutant ends with."""
    try:
        found = calls()[mutant.call][0](remote)
    except HeliographError as error:
        text = str(error)
        assert text.replace("\n", "").isprintable(), text[:300]
        return len(text)
    if isinstance(found, hg.PublicArtifact):
        assert found.fingerprint == toy_artifact().fingerprint
    if mutant.call == "submit":
        assert found == good().encrypted.request
    return 0


class _Pool:
    """In place of connections: the server is called."""

    def __init__(self, server: Answering) -> None:
        self._server = server

    def handle_request(self, request: httpcore.Request) -> httpcore.Response:
        path, _, query = request.url.target.decode().partition("?")
        body = b"".join(request.stream)  # type: ignore[arg-type]
        answer = self._server(request.method.decode(), path, body, dict(parse_qsl(query)))
        headers = [(name.encode(), value.encode("latin-1")) for name, value in answer.headers]
        middle = len(answer.body) // 3
        blocks = (answer.body[:middle], answer.body[middle:])
        return httpcore.Response(answer.status, headers=headers, content=filter(None, blocks))

    def close(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


# ------------------------------------------------------------------------------------------------ altered frames


_FIRST_LINES = (
    b"", b"HTTP/9.9 200 OK", b"HTTP/1.1 999 X", b"HTTP/1.1 000 X", b"HTTP/1.1 2000 X", b"HTTP/1.1 -1 X", b"SSH-2.0-OpenSSH",
    b"HTTP/1.1 200 \xff\x1b[2J", b"HTTP/1.1 101 Switching", b"HTTP/1.1 200 " + b"y" * 200_000, b"HTTP/1.0 200 OK",
    b"HTTP/1.1 204 No",
)  # fmt: skip


def altered_frame(rng: random.Random) -> bytes:
    """An answer as it is on the line, with its head altered."""
    answer = answer_of("artifacts", good().answers["artifacts"])
    head = [b"HTTP/1.1 200 OK", b"Content-Length: %d" % len(answer.body), b"Content-Type: application/json"]
    body, choice = answer.body, rng.random()
    if choice < 0.25:
        head[0] = rng.choice(_FIRST_LINES)
    elif choice < 0.5:
        length = (b"-5", b"0", b"1", b"99999999999999999999", b"x", b"1, 2", b"", b"9" * 5000, b"1\x00", b"+10", b"1e3")
        head[1] = b"Content-Length: " + rng.choice(length)
    elif choice < 0.75:
        head[1] = rng.choice(
            (b"Transfer-Encoding: chunked", b"Transfer-Encoding: gzip, chunked", b"Transfer-Encoding: x")
        )
        sizes = (b"%x" % len(body), b"ffffffffffffffff", b"-1", b"0", b"zz", b"1" * 100_000, b"%x;ext=1" % len(body))
        body = (
            rng.choice(sizes)
            + b"\r\n"
            + body
            + b"\r\n"
            + rng.choice((b"0\r\n\r\n", b"0\r\nX: y\r\n\r\n", b"", b"\x00"))
        )
    else:
        more = (
            b"\x1b[2J: x",
            b"X: " + b"y" * 200_000,
            b": x",
            b" folded",
            b"X\x00: y",
            b"Content-Encoding: gzip",
            b"Connection: upgrade",
        )
        head[2:] = [rng.choice(more)] * rng.choice((1, 2, 50))
    frame = b"\r\n".join(head) + b"\r\n\r\n" + body
    return _altered_bytes(rng, frame) if rng.random() < 0.3 else frame
