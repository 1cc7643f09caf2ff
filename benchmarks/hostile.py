"""Hostile requests to a server and hostile answers to its clients, as many as asked; what broke a promise.

The makers are those of the tests (hostile_requests.py and hostile_server.py in tests/helpers). Requests go to the
application in this process, with the token of another tenant than that of the job that is there; none may be answered by 500
and above, or with that job. Answers go to a client through the pool of connections in this process; each of its calls ends
right or in an error of ours, after a bounded number of requests and within ten seconds of processor time.
"""

from __future__ import annotations

from common import ROOT, machine, peak_rss_bytes  # first: it imports heliograph

import argparse
import json
import os
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

from heliograph.errors import InsecureWarning

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
        "right": tally.accepted,
        "refused": tally.refused,
        "longest_cpu_s": tally.seconds,
        "longest_error": tally.characters,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=20_000, help="half of them requests, half of them answers")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print one JSON object only")
    options = parser.parse_args()
    # Every ring here is a toy.
    warnings.simplefilter("ignore", InsecureWarning)
    answers = options.messages // 2
    rows = {
        "requests to the server": to_server(options.messages - answers, options.seed),
        "answers to the client": to_client(answers, options.seed),
    }
    if not options.json:
        print(f"{machine()}; load average {os.getloadavg()[0]:.1f}; seed {options.seed}\n")
        for name, row in rows.items():
            print(f"{name}: {row['messages']} in {row['wall_s']:.0f} s, {row['messages'] / row['wall_s']:.0f} a second; "
                  f"{len(row['failures'])} broke a promise")  # fmt: skip
            for text in row["failures"][:10]:
                print(f"    {text}")
        return
    print(json.dumps({"machine": machine(), "seed": options.seed, "peak_rss_bytes": peak_rss_bytes(), "rows": rows}))


if __name__ == "__main__":
    main()
