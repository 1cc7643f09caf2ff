"""What a compilation shows of its passes: every program that they made, once, in order, of the plan that was taken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

import heliograph as hg
from heliograph.compiler import driver, pipeline
from heliograph.compiler.driver import compile
from heliograph.compiler.options import Options
from heliograph.compiler.reporting import bill
from heliograph.errors import PlanningError
from heliograph.interpret import interpret, interpret_many
from heliograph.ir import Array, Program, Stage
from heliograph.passes.base import run
from heliograph.passes.levels.plan_levels import PlanLevels
from heliograph.passes.polynomials.approximate import Approximate
from heliograph.passes.tensors.simplify import Simplify

SOURCE = "program p\ninput x: tensor[4] in [-1, 1]\ny = relu(x * 0.5 + 0.25)\noutput y\n"
TOY = Options(security_bits=None, degree=3, log_ring=11)
FRONT = ["simplify", "expand", "fuse-linear", "approximate", "fold-scaling"]
BACK = ["pack", "lower-polynomials", "plan-levels", "select-keys", "place-chains", "schedule"]


def shown(options: Options, source: str = SOURCE) -> tuple[hg.Artifact, list[tuple[str, Program]]]:
    steps: list[tuple[str, Program]] = []
    made = compile(hg.parse(source), options, watch=lambda name, program: steps.append((name, program)))
    names = [name for name, _ in steps]
    # `--explain` knows each of them, in this order.
    assert names == [name for name in pipeline.PASSES if name in names]
    return made, steps


def test_a_sequence_of_passes_returns_its_trail() -> None:
    program = hg.parse(SOURCE)
    trail = run((Simplify(), Simplify()), program)
    assert [(step.name, step.program.stage) for step in trail] == [("simplify", Stage.TENSOR)] * 2
    name, made = trail[-1]
    assert (name, made) == ("simplify", trail[-1].program)
    assert run((), program) == ()


def test_the_watch_sees_every_step_of_the_plan_that_was_taken() -> None:
    made, steps = shown(TOY)
    assert [name for name, _ in steps] == FRONT + BACK
    assert steps[-1][1] is made.program
    # What was kept of each stage is the last that was shown of it.
    last = {program.stage.value: str(program) for _, program in steps}
    kept = {name: last[name] for name in ("polynomial", "packed", "managed")}
    assert made.stages == {"tensor": str(hg.parse(SOURCE)), **kept}


def test_plans_that_fail_are_not_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []
    honest = PlanLevels.run

    def counting(self: PlanLevels, program: Program) -> Program:
        tried.append(self.ring.scale_bits)
        return honest(self, program)

    monkeypatch.setattr(PlanLevels, "run", counting)
    _, steps = shown(replace(TOY, log_ring=None, security_bits=128, precision_bits=25))
    assert len(tried) > 1
    assert [name for name, _ in steps] == FRONT + BACK


def test_bootstraps_are_steps_of_the_trail() -> None:
    deep = SOURCE.replace("output", "for k in 1..7 {\n  y = relu(y * 0.5 + 0.1)\n}\noutput")
    _, steps = shown(replace(TOY, log_ring=12, degree=15, bootstrap=True, precision_bits=5), deep)
    names = [name for name, _ in steps]
    assert names[:6] == [*FRONT, "pack"]
    assert names[6] == "place-bootstraps"
    # Our own bootstraps are written out between levels and keys.
    assert names[-6:] == [*BACK[1:3], "lower-bootstraps", *BACK[3:]]


def test_a_compilation_that_fails_shows_the_parts_that_were_done() -> None:
    steps: list[str] = []
    with pytest.raises(PlanningError):
        compile(hg.parse(SOURCE), replace(TOY, memory_bytes=1), watch=lambda name, program: steps.append(name))
    assert steps == FRONT


def test_pairs_are_no_step_where_there_are_none() -> None:
    program = hg.parse("program p\ninput x: slots[8] in [-1, 1]\ny = x * x\noutput y\n")
    ring = compile(program, Options(security_bits=None, log_ring=11)).ring
    (step,) = pipeline.pack_passes(program, ring, TOY)
    assert step.name == "fit-slots"
    assert pipeline.pair_passes(step.program, ring, TOY) == ()


SLOTS = "program p\ninput x: slots[8] in [-1, 1]\ny = x * x + rotate(x, 1) * 0.5\noutput y\n"


def calibrated(count: int) -> Program:
    random = np.random.default_rng(0)
    return replace(hg.parse(SOURCE), calibration=(random.uniform(-1, 1, size=(count, 4)),))


@pytest.mark.parametrize(
    ("program", "times"), [(hg.parse(SLOTS), 1), (hg.parse(SOURCE), 3), (calibrated(1), 2), (calibrated(64), 2)]
)
def test_samples_run_once_through_each_program(program: Program, times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program as written, with its maps fused, and with polynomials; a program on slots is all three.

    Calibration has run the one with fused maps.
    """
    seen: list[tuple[Program, bytes]] = []

    def counting(made: Program, samples: Sequence[Array]) -> list[Array]:
        seen.append((made, np.concatenate([part.ravel() for part in samples]).tobytes()))
        return interpret_many(made, samples)

    for place in (driver, bill):
        monkeypatch.setattr(place, "interpret_many", counting)
    made = compile(program, TOY)
    assert made.report.values["error_samples"] > 0
    assert len(seen) == times
    assert len({(tuple(map(id, one.nodes)), given) for one, given in seen}) == times


@pytest.mark.parametrize(("options", "times"), [(TOY, 2), (replace(TOY, margin=0.1), 2)])
def test_activations_are_approximated_for_the_trial_and_for_the_program_and_no_more(
    options: Options, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[Program] = []
    monkeypatch.setattr(driver, "bill", lambda *arguments: (_ for _ in ()).throw(InterruptedError))  # not its variants
    honest = Approximate.table
    monkeypatch.setattr(Approximate, "table", lambda self, fused: runs.append(fused) or honest(self, fused))
    with pytest.raises(InterruptedError):
        compile(calibrated(400), options)
    assert len(runs) == times


def test_packed_samples_run_together_as_they_do_alone() -> None:
    program = hg.parse(SLOTS)
    samples: Array = np.random.default_rng(1).uniform(-1, 1, size=(5, 8))
    (together,) = interpret_many(program, [samples])
    np.testing.assert_array_equal(together, [interpret(program, sample) for sample in samples])
    constant = hg.parse("program p\ninput x: slots[8] in [-1, 1]\ny = x * 0.0\noutput y\n")
    assert interpret_many(constant, [samples])[0].shape == (5, 8)
