"""Products of two encrypted matrices: ours against DiagABT and DiagATB (HETAL), ColMajor and RowMajor (Crockett, 2020).

    python benchmarks/products.py
    python benchmarks/products.py --sizes 128,128,4

For (a, b, c) the products A B^T of (a, b) with (c, b), and A^T B of (a, c) with (a, b), at 128 bits. Each way is compiled as
a program of its own, and all run in one process, one after the other; the first run, which encodes plaintexts, is not timed.
Counts are those of the compiled programs: products with plaintexts, products of ciphertexts, rotations, conjugations. The
published ways (published_products.py) have to take what was published.
"""

from __future__ import annotations

import heliograph as hg  # first: it sets OpenMP's waiting policy  # isort: skip

import statistics
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest import mock

import numpy as np

from harness import Run, benchmark, option
from published_products import COUNTS, PUBLISHED, Published

from heliograph.execution.walk import node_calls
from heliograph.passes.packing.products import choose_products, copy_operands
from heliograph.passes.packing.products.matrix_products import MatrixProduct

SIZES = ((128, 128, 4), (256, 256, 8), (512, 769, 4))
REPEATS = 3


@contextmanager
def only(way: Published | None, big: int) -> Iterator[list[MatrixProduct]]:
    """Products are lowered by this way, or by the cheapest of ours; those that were are in the list then."""
    taken: list[MatrixProduct] = []
    every, choose = choose_products.ways, choose_products.choose_products

    def filtered(*given: Any) -> list[MatrixProduct]:
        return [way.product()] if way else [own for own in every(*given) if own.big == big]

    def recorded(*given: Any) -> dict[Any, MatrixProduct]:
        found = choose(*given)
        taken.extend(found.values())
        return found

    with (
        mock.patch.object(choose_products, "ways", filtered),
        mock.patch.object(copy_operands, "choose_products", recorded),
    ):
        yield taken


def program(kind: str, left: tuple[int, ...], right: tuple[int, ...]) -> hg.Program:
    a, b = ("a", "permute(b, axes=[1, 0])") if kind == "abt" else ("permute(a, axes=[1, 0])", "b")
    return hg.parse(
        f"program product\ninput a: secret tensor{list(left)} in [-1, 1]\n"
        f"input b: secret tensor{list(right)} in [-1, 1]\noutput {a} @ {b}\n"
    )


def counts(artifact: hg.Artifact) -> dict[str, int]:
    found: Counter[str] = Counter()
    for calls in node_calls(artifact.program).values():
        for call, number in calls.items():
            found[call.primitive] += number
    return {
        "plain_products": found["mul_plain"] + found["summed_product"],
        "products": found["mul"],
        "rotations": found["rotate"] + found["rotate_hoisted"],
        "conjugations": found["conjugate"],
    }


def measured(kind: str, sizes: tuple[int, int, int], way: Published | None, options: hg.Options) -> dict[str, Any]:
    a, b, c = sizes
    left, right = ((a, b), (c, b)) if kind == "abt" else ((a, c), (a, b))
    rng = np.random.default_rng(0)
    x, y = rng.uniform(-1, 1, left), rng.uniform(-1, 1, right)
    if way and kind == "atb" and way.copied_columns > c:
        # The client makes the copies.
        x = np.tile(np.pad(x, ((0, 0), (0, way.room - c))), (1, way.copied_columns // way.room))
    with only(way, 0 if kind == "abt" else 1) as taken:
        artifact = hg.compile(program(kind, x.shape, right), options)
    client = hg.Client(artifact.public())
    seconds = []
    with hg.Server(artifact, client.evaluation_keys()) as server:
        sent = client.encrypt(x, y)
        answer = server.run(sent)
        for _ in range(REPEATS):
            begun = time.perf_counter()
            answer = server.run(sent)
            seconds.append(time.perf_counter() - begun)
    error = float(np.abs(client.decrypt(answer) - (x @ y.T if kind == "abt" else x.T @ y)).max())
    figures, found = artifact.report.figures, counts(artifact)
    if way and (published := COUNTS.get(sizes, {}).get(way.way)) and artifact.ring.slots == 1 << 15:
        assert tuple(found.values())[:3] == published, f"{way.way} takes {found}, published are {published}"
    return {
        "way": taken[-1].how.way,
        "ring_dim": artifact.ring.ring_dim,
        "levels": artifact.ring.levels,
        "log_pq": artifact.ring.log_pq,
        "security_bits": artifact.ring.security_bits,
        **found,
        "key_bytes": sum(key.bytes for key in artifact.evaluation_keys),
        "predicted_seconds": figures.predicted_ms / 1e3,
        "seconds": statistics.median(seconds),
        "max_error": error,
        "predicted_error": figures.predicted_max_abs_error,
        "error_over_predicted": error / figures.predicted_max_abs_error,
    }


@benchmark(
    option("--sizes", nargs="*", default=[",".join(map(str, each)) for each in SIZES], help="a,b,c"),
    option("--log-ring", type=int, default=16, help="16 has the slots of the published counts"),
    columns={
        "way": "", "plain_products": "", "products": "", "rotations": "", "seconds": "s", "predicted_seconds": "s",
        "max_error": "", "error_over_predicted": "",
    },
    memory_gb=6,
    minutes=8,
)  # fmt: skip
def products(run: Run) -> None:
    given = run.options
    for text in given.sizes:
        a, b, c = map(int, text.split(","))
        for kind, published in PUBLISHED.items():
            for each in (None, *published):
                way = each and each((1 << given.log_ring) // 2, c, a, b)
                key = {"sizes": text, "kind": kind, "ways": "ours" if each is None else each.way}
                run.row(key, partial(measured, kind, (a, b, c), way, hg.Options(log_ring=given.log_ring)))


if __name__ == "__main__":
    products.main()
