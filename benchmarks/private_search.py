"""Encrypted search: time of a query, bytes, and whether the ten best hits are those of the clear.

Vectors are sentence embeddings (SNIPS utterances by all-MiniLM-L6-v2, 384 components) and, beyond those, random unit
vectors around them. Queries are embeddings of other sentences.
"""

from __future__ import annotations

from common import data, hg  # first: it imports heliograph before torch

import statistics
import time
from typing import Any

import numpy as np
from harness import Run, benchmark, option

from heliograph.tools.measure import peak_rss_bytes


def embeddings() -> tuple[np.ndarray, np.ndarray]:
    """The sentences of an index, and other ones that ask."""
    with np.load(data("snips_minilm_l6_features.npz"), allow_pickle=False) as file:
        return file["x_train"].astype(np.float64), file["x_test"].astype(np.float64)


def grown(rows: np.ndarray, count: int) -> np.ndarray:
    """The first rows, or all of them and random ones around them."""
    if count <= len(rows):
        return rows[:count]
    random = np.random.default_rng(0)
    near = rows[random.integers(len(rows), size=count - len(rows))]
    return np.concatenate([rows, near + random.normal(scale=0.02, size=near.shape)])


def measured(entries: int, queries: int) -> dict[str, Any]:
    rows, asked = embeddings()
    rows, asked = grown(rows, entries), asked[:queries]
    begun = time.perf_counter()
    index = hg.search_index(rows)
    compiled = time.perf_counter() - begun
    client = hg.Client(index.public())
    keys = client.evaluation_keys()
    exact = (
        asked @ (rows / np.linalg.norm(rows, axis=1, keepdims=True)).T / np.linalg.norm(asked, axis=1, keepdims=True)
    )
    seconds, client_s, same, error, sent, came = [], [], 0, 0.0, 0, 0
    with hg.Server(index, keys) as server:
        server.run(client.encrypt(asked[0] / np.linalg.norm(asked[0])))  # encodes the vectors
        for query, scores in zip(asked, exact, strict=True):
            begun = time.perf_counter()
            encrypted = client.encrypt(query / np.linalg.norm(query))
            went = time.perf_counter()
            output = server.run(encrypted)
            back = time.perf_counter()
            found = np.asarray(client.decrypt(output))
            ended = time.perf_counter()
            seconds.append(back - went)
            client_s.append(went - begun + ended - back)
            same += len(set(np.argsort(-found)[:10]) & set(np.argsort(-scores)[:10]))
            error = max(error, float(np.abs(found - scores).max()))
            sent, came = len(encrypted.to_bytes()), len(output.to_bytes())
        floor = server.floor()
        for _ in range(5):
            floor.sample()
    return {
        "seconds": statistics.median(seconds),
        "floor_s": floor.milliseconds() / 1e3,
        "client_ms": 1e3 * statistics.median(client_s),
        "agreement": same / (10 * len(asked)),
        "error": error,
        "sent_bytes": sent,
        "answer_bytes": came,
        "key_bytes": client.evaluation_key_bytes,
        "compile_s": compiled,
        "peak_rss_bytes": peak_rss_bytes(),
        "ring_dim": index.ring.ring_dim,
    }


@benchmark(
    option("--entries", type=int, nargs="+", default=[10_000, 100_000], help="vectors in the index"),
    option("--queries", type=int, default=20, help="queries"),
    columns={
        "seconds": "s", "floor_s": "s", "client_ms": "ms", "agreement": "", "error": "", "sent_bytes": "bytes",
        "answer_bytes": "bytes", "key_bytes": "bytes", "compile_s": "s", "peak_rss_bytes": "bytes", "ring_dim": "",
    },
    data=("snips_minilm_l6_features.npz",),
    memory_gb=7,
    minutes=5,
)  # fmt: skip
def private_search(run: Run) -> None:
    for entries in run.options.entries:
        run.row(
            {"entries": entries, "queries": run.options.queries}, lambda n=entries: measured(n, run.options.queries)
        )


if __name__ == "__main__":
    private_search.main()
