"""Mutants of everything that is read from untrusted parties: how many were usable, how many refused, and how dearly.

The mutation fuzzers are those of the tests, run here for as many rounds as asked and written up: the language, the text of
the IR, artifacts (bytes, fields, program, plain ops put in, all run on the simulator and on OpenFHE), keys and messages;
and the attacks that know the structure of what they mutate, on programs that bootstrap, take several samples or add noise.
"""

from __future__ import annotations

from common import ROOT, machine  # first: it imports heliograph

import argparse
import json
import os
import random
import resource
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

from heliograph.errors import InsecureWarning

sys.path.insert(0, str(ROOT / "tests"))

from dsl.test_fuzz import IR_SEEDS, SEEDS, mutant_of, try_compiled, try_ir, try_language
from helpers import attacks
from helpers.fuzzing import fuzz
from helpers.hostile_artifacts import MUTATIONS, run_artifact
from helpers.hostile_messages import attempt, forged

# Mutants for one unit of --rounds: about a second of a core for each target.
_EACH = {
    "language": 100, "compiler": 40, "text of the IR": 100, "artifact: bytes": 40, "artifact: plain ops": 10,
    "message: keys": 30,
    "message: inputs": 80, "message: outputs": 80, "container headers": 80, "public artifacts": 100,
    "programs: records": 30, "programs: text": 40, "programs: bytes": 60, "programs: report": 6, "key files": 30,
    "key folders": 1, "keys with bootstraps": 1, "messages, bootstrapped": 4, ".npy and .npz": 60,
}  # fmt: skip
# (name, maker of mutants, what is done with one)
Target = tuple[str, Callable[[random.Random], Any], Callable[[Any], int]]
TARGETS: list[Target] = [
    ("language", mutant_of(SEEDS), try_language),
    ("compiler", mutant_of(SEEDS), try_compiled),
    ("text of the IR", mutant_of(IR_SEEDS), try_ir),
    *[(f"artifact: {kind}", make, partial(run_artifact, server=True)) for kind, make in MUTATIONS.items()],
    *[(f"message: {kind}", forged(kind), attempt(kind)) for kind in ("keys", "inputs", "outputs")],
    *[(name, make, attacks.attempt(name)) for name, (make, _) in attacks.ATTACKS.items()],
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=50, help="some seconds each, up to 100 mutants of a target")
    parser.add_argument("--targets", default="", help="only those whose names hold one of these, after commas")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print one JSON object only")
    options = parser.parse_args()
    # Every ring here is a toy.
    warnings.simplefilter("ignore", InsecureWarning)
    rows: list[dict[str, Any]] = []
    if not options.json:
        print(f"{machine()}; load average {os.getloadavg()[0]:.1f}; seed {options.seed}\n")
        print(
            f"{'target':<24}{'mutants':>9}{'usable':>9}{'refused':>9}{'longest, s':>12}{'longest text':>14}{'failures':>10}"
        )
    words = options.targets.split(",")
    for name, make, use in [target for target in TARGETS if any(word in target[0] for word in words)]:
        begun = time.monotonic()
        tally = fuzz(make, use, _EACH.get(name, 20) * options.rounds, options.seed)
        rows.append(
            {
                "target": name,
                "mutants": tally.mutants,
                "usable": tally.accepted,
                "refused": tally.refused,
                "longest_s": tally.seconds,
                "longest_message": tally.characters,
                "failures": tally.failures,
                "wall_s": time.monotonic() - begun,
            }
        )
        if not options.json:
            print(
                f"{name:<24}{tally.mutants:>9}{tally.accepted:>9}{tally.refused:>9}{tally.seconds:>12.2f}"
                f"{tally.characters:>14}{len(tally.failures):>10}",
                flush=True,
            )
            for failure in tally.failures[:5]:
                print(f"    {failure}")
    if not options.json and len(rows) > 1:
        total = {key: sum(row[key] for row in rows) for key in ("mutants", "usable", "refused")}
        print(f"{'all':<24}{total['mutants']:>9}{total['usable']:>9}{total['refused']:>9}")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    if not options.json:
        print(f"\npeak memory of the process {peak / 1e6:.0f} MB\n")
    print(json.dumps({"machine": machine(), "seed": options.seed, "peak_rss_bytes": peak, "targets": rows}))


if __name__ == "__main__":
    main()
