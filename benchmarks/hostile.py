"""Hostile requests to a server and hostile answers to its clients, as many as asked; what broke a promise.

The makers are those of the tests (hostile_requests.py and hostile_server.py in tests/helpers). Requests go to the
application in this process, with the token of another tenant than that of the job that is there; none may be answered by 500
and above, or with that job. Answers go to a client through the pool of connections in this process; each of its calls ends
right or in an error of ours, after a bounded number of requests and within ten seconds of processor time.
"""

from __future__ import annotations

import heliograph as hg  # first: it sets OpenMP's waiting policy

import sys
import tempfile
import time
import warnings
from functools import partial
from pathlib import Path
from typing import Any

from harness import ROOT, Run, benchmark, option
from heliograph.tools.measure import peak_rss_bytes

sys.path.insert(0, str(ROOT / "tests"))

from helpers.fuzzing import fuzz
from helpers.hostile_requests import Target
from helpers.hostile_server import attempt, good, make_mutant


def to_server(count: int, seed: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        target = Target(Path(folder))
        begun = time.monotonic()
        found = target.attack(count, seed)
        target.close()
    return {
        "messages": count,
        "wall_s": time.monotonic() - begun,
        "failures": found.failures,
        "peak_rss_bytes": peak_rss_bytes(),
        "statuses": dict(sorted(found.statuses.items())),
    }


def to_client(count: int, seed: int) -> dict[str, Any]:
    good()
    begun = time.monotonic()
    tally = fuzz(make_mutant, attempt, count, seed)
    return {
        "messages": count,
        "wall_s": time.monotonic() - begun,
        "failures": tally.failures,
        "peak_rss_bytes": peak_rss_bytes(),
        "right": tally.accepted,
        "refused": tally.refused,
        "longest_cpu_s": tally.seconds,
        "longest_error": tally.characters,
    }


@benchmark(
    option("--messages", type=int, default=20_000, help="half of them requests, half of them answers"),
    option("--seed", type=int, default=1),
    columns={"messages": "", "wall_s": "s", "failures": "", "peak_rss_bytes": "bytes"},
)
def hostile(run: Run) -> None:
    # Every ring here is a toy.
    warnings.simplefilter("ignore", hg.InsecureWarning)
    given = run.options
    answers = given.messages // 2
    for name, part in (
        ("requests to the server", partial(to_server, given.messages - answers, given.seed)),
        ("answers to the client", partial(to_client, answers, given.seed)),
    ):
        run.failures += run.row({"to": name}, part)["failures"]


if __name__ == "__main__":
    hostile.main()
