"""Mutants of everything that is read from untrusted parties: how many were usable, how many refused, and how dearly.

The mutation fuzzers are those of the tests, run here for as many rounds as asked and written up: the language, the text of
the IR, artifacts (bytes, fields, program, plain ops put in, all run on the simulator and on OpenFHE), keys and messages;
and the attacks that know the structure of what they mutate, on programs that bootstrap, take several samples or add noise.
"""

from __future__ import annotations

import heliograph as hg  # first: it sets OpenMP's waiting policy

import random
import sys
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

from harness import ROOT, Run, benchmark, option
from heliograph.tools.measure import peak_rss_bytes

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


def fuzzed(name: str, make: Any, use: Any, rounds: int, seed: int) -> dict[str, Any]:
    """What became of a target's mutants."""
    tally = fuzz(make, use, _EACH.get(name, 20) * rounds, seed)
    return {
        "mutants": tally.mutants,
        "usable": tally.accepted,
        "refused": tally.refused,
        "longest_s": tally.seconds,
        "longest_message": tally.characters,
        "failures": tally.failures,
        "peak_rss_bytes": peak_rss_bytes(),
    }


@benchmark(
    option("--rounds", type=int, default=50, help="some seconds each, up to 100 mutants of a target"),
    option("--targets", default="", selects=True, help="only those whose names hold one of these, after commas"),
    option("--seed", type=int, default=0),
    columns={
        "mutants": "", "usable": "", "refused": "", "longest_s": "s of the processor", "longest_message": "characters",
        "failures": "", "peak_rss_bytes": "bytes",
    },
    packages=("openfhe",),
    minutes=15,
)  # fmt: skip
def reliability(run: Run) -> None:
    # Every ring here is a toy.
    warnings.simplefilter("ignore", hg.InsecureWarning)
    given = run.options
    words = given.targets.split(",")
    for name, make, use in [target for target in TARGETS if any(word in target[0] for word in words)]:
        found = run.row({"target": name}, partial(fuzzed, name, make, use, given.rounds, given.seed))
        run.failures += found["failures"]


if __name__ == "__main__":
    reliability.main()
