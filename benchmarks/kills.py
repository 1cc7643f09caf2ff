"""kill -9 at random moments of keygen, of a batch and of a compile: what was accepted afterwards, and what was left behind.

The scenarios are those of the tests (`tests/helpers/kills.py`), run here for as many kills as asked and written up.
"""

from __future__ import annotations

import heliograph as hg  # first: it sets OpenMP's waiting policy

import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

from harness import ROOT, Run, benchmark, option

sys.path.insert(0, str(ROOT / "tests"))

from helpers.kills import SCENARIOS, kill


def killed(make: Any, kills: int, seed: int) -> dict[str, Any]:
    """What became of a scenario's kills."""
    with tempfile.TemporaryDirectory() as folder:
        tally = kill(make(Path(folder)), kills, seed)
    return {"kills": tally.kills, "ended": tally.ended, "begun_over": tally.begun_over, "wrong": tally.wrong}


@benchmark(
    option("--kills", type=int, default=25, help="of each scenario"),
    option("--scenarios", default="", selects=True, help="only those whose name holds this word"),
    option("--seed", type=int, default=1),
    columns={"kills": "", "ended": "before the kill", "begun_over": "", "wrong": ""},
    minutes=10,
)
def kills(run: Run) -> None:
    # Every ring here is a toy.
    warnings.simplefilter("ignore", hg.InsecureWarning)
    for name, make in SCENARIOS.items():
        if run.options.scenarios in name:
            found = run.row(
                {"scenario": name},
                lambda make=make: killed(make, run.options.kills, run.options.seed),  # type: ignore[misc]
            )
            run.failures += found["wrong"]


if __name__ == "__main__":
    kills.main()
