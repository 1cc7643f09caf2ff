"""kill -9 at random moments of keygen, of a batch and of a compile: what was accepted afterwards, and what was left behind.

The scenarios are those of the tests (`tests/helpers/kills.py`), run here for as many kills as asked and written up.
"""

from __future__ import annotations

from common import ROOT, machine  # first: it imports heliograph

import argparse
import json
import os
import sys
import tempfile
import time
import warnings
from pathlib import Path

from heliograph.errors import InsecureWarning

sys.path.insert(0, str(ROOT / "tests"))

from helpers.kills import SCENARIOS, kill


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=25, help="of each scenario")
    parser.add_argument("--scenarios", default="", help="only those whose name holds this word")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print one JSON object only")
    options = parser.parse_args()
    # Every ring here is a toy.
    warnings.simplefilter("ignore", InsecureWarning)
    rows = []
    if not options.json:
        print(f"{machine()}; load average {os.getloadavg()[0]:.1f}; seed {options.seed}\n")
        print(f"{'scenario':<22}{'kills':>7}{'ended before':>14}{'begun over':>12}{'wrong':>7}{'wall, s':>9}")
    for name, make in [item for item in SCENARIOS.items() if options.scenarios in item[0]]:
        begun = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            tally = kill(make(Path(folder)), options.kills, options.seed)
        wall = time.monotonic() - begun
        rows.append(
            {
                "scenario": name,
                "kills": tally.kills,
                "ended": tally.ended,
                "begun_over": tally.begun_over,
                "wrong": tally.wrong,
                "wall_s": wall,
            }
        )
        if not options.json:
            print(
                f"{name:<22}{tally.kills:>7}{tally.ended:>14}{tally.begun_over:>12}{len(tally.wrong):>7}{wall:>9.0f}",
                flush=True,
            )
            for text in tally.wrong[:5]:
                print(f"    {text}")
    print(json.dumps({"machine": machine(), "seed": options.seed, "scenarios": rows}))


if __name__ == "__main__":
    main()
