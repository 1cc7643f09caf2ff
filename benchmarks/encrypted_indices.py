"""Search beyond scores of an index in the clear: an index whose vectors are encrypted too, and answers that the server
decides.

`--setting`: the small setting of the public suite's fetch-by-similarity, 50,000 vectors of 128 components. Half of them
and half of the queries are a random unit vector, the others one of 1,562 centres plus 0.3 times one; matches have a
cosine above 0.8.
"""

from __future__ import annotations

from common import hg  # first: it imports heliograph before torch

import statistics
import time
from typing import Any

import numpy as np
from harness import Run, apart, benchmark, option

from heliograph.tools.measure import peak_rss_bytes

_COMPONENTS, _SUITE, _THRESHOLD, _GAP = 128, 50_000, 0.8, 0.02
# Entries, answer and whether the vectors are encrypted.
_ROWS = {
    "suite": (_SUITE, "scores", True),
    "matches": (1_000, "matches", True),
    "nearest": (100, "top1", True),
    "clear-matches": (50_000, "matches", False),
    "clear-nearest": (100, "top1", False),
}


def data(entries: int, queries: int) -> tuple[np.ndarray, np.ndarray]:
    """The vectors of an index, and queries, all of length one."""
    random = np.random.default_rng(0)

    def directions(count: int) -> np.ndarray:
        drawn = random.normal(size=(count, _COMPONENTS))
        return drawn / np.linalg.norm(drawn, axis=1, keepdims=True)

    centres = directions(_SUITE // 32)

    def drawn(count: int, around: np.ndarray) -> np.ndarray:
        own = around[random.integers(len(around), size=count)] + 0.3 * directions(count)
        own /= np.linalg.norm(own, axis=1, keepdims=True)
        return np.where(np.arange(count)[:, np.newaxis] % 2 == 0, own, directions(count))

    rows = drawn(entries, centres)
    # Queries lie around centres that the index has entries near.
    return rows, drawn(queries, rows[::2])


def agreement(answer: str, found: np.ndarray, exact: np.ndarray) -> tuple[float, int]:
    """The share of right decisions of one query outside the gap, and how many entries the gap leaves open."""
    if answer == "top1":
        second, first = np.sort(exact)[-2:]
        return float(found.argmax() == exact.argmax()), int(first - second < _GAP)
    near = np.abs(exact - _THRESHOLD) < (_GAP if answer == "matches" else 1e-5)
    level = 0.5 if answer == "matches" else _THRESHOLD
    return float(((found > level) == (exact > _THRESHOLD))[~near].mean()), int(near.sum())


class _Seen:
    """A server that notes what passes and how long it takes."""

    server: Any
    asked: Any
    output: Any
    seconds, cpu_s = 0.0, 0.0

    def run(self, encrypted: Any) -> Any:
        begun, worked = time.perf_counter(), time.process_time()
        self.asked, self.output = encrypted, self.server.run(encrypted)
        self.seconds, self.cpu_s = time.perf_counter() - begun, time.process_time() - worked
        return self.output


def measured(name: str, queries: int) -> dict[str, Any]:
    entries, answer, encrypted = _ROWS[name]
    rows, asked = data(entries, queries)
    started = time.perf_counter()
    index = hg.search_index(
        rows, answer=answer, threshold=_THRESHOLD if answer == "matches" else None,
        gap=None if answer == "scores" else _GAP, encrypted=encrypted,
    )  # fmt: skip
    compiled = time.perf_counter()
    client = hg.Client(index.public())
    keys = client.evaluation_keys()
    keyed = time.perf_counter()
    kept = hg.encrypt_index(client, rows) if encrypted else None
    stored = time.perf_counter()
    exact = asked @ rows.T
    seconds, cpu_s, client_s, right, open_, error, sent, came = [], [], [], [], 0, 0.0, 0, 0
    seen = _Seen()
    with hg.Server(index, keys, kept=kept) as server:
        seen.server = server
        hg.search(seen, client, asked[0])  # encodes what is in the clear
        for query, scores in zip(asked, exact, strict=True):
            begun = time.perf_counter()
            hg.search(seen, client, query)
            ended = time.perf_counter()
            seconds.append(seen.seconds)
            cpu_s.append(seen.cpu_s)
            client_s.append(ended - begun - seen.seconds)
            values = client.decrypt(seen.output)
            found = np.concatenate(values if isinstance(values, tuple) else (values,))[:entries]
            share, near = agreement(answer, found, scores)
            right.append(share)
            open_ += near
            if answer == "scores":
                error = max(error, float(np.abs(found - scores).max()))
            sent, came = len(seen.asked.to_bytes()), len(seen.output.to_bytes())
        floor = server.floor()
        for _ in range(3):
            floor.sample()
    return {
        "entries": entries,
        "answer": answer,
        "vectors": "encrypted" if encrypted else "clear",
        "seconds": statistics.median(seconds),
        "cpu_s": statistics.median(cpu_s),
        "floor_s": floor.milliseconds() / 1e3,
        "predicted_s": index.report.figures.predicted.evaluate_ms / 1e3,
        "client_ms": 1e3 * statistics.median(client_s),
        "agreement": statistics.mean(right),
        "undecided": open_,
        "error": error if answer == "scores" else None,
        "index_bytes": None if kept is None else len(kept.to_bytes()),
        "sent_bytes": sent,
        "answer_bytes": came,
        "key_bytes": client.evaluation_key_bytes,
        "compile_s": compiled - started,
        "keygen_s": keyed - compiled,
        "encrypt_s": None if kept is None else stored - keyed,
        "peak_rss_bytes": peak_rss_bytes(),
        "ring_dim": index.ring.ring_dim,
        "levels": index.ring.levels,
    }


@benchmark(
    option("--setting", nargs="+", choices=list(_ROWS), default=list(_ROWS), help="which rows"),
    option("--queries", type=int, default=10, help="queries"),
    columns={
        "entries": "", "answer": "", "vectors": "", "seconds": "s", "cpu_s": "s", "floor_s": "s",
        "predicted_s": "s", "client_ms": "ms", "agreement": "", "undecided": "", "error": "",
        "index_bytes": "bytes", "sent_bytes": "bytes",
        "answer_bytes": "bytes", "key_bytes": "bytes", "compile_s": "s", "keygen_s": "s", "encrypt_s": "s",
        "peak_rss_bytes": "bytes", "ring_dim": "", "levels": "",
    },
    memory_gb=7,
    minutes=10,
)  # fmt: skip
def encrypted_indices(run: Run) -> None:
    for name in run.options.setting:
        run.row(
            {"setting": name, "queries": run.options.queries},
            lambda each=name: apart("encrypted_indices:measured", each, run.options.queries),
        )


if __name__ == "__main__":
    encrypted_indices.main()
