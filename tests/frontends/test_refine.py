"""Refined networks: low degrees keep the classes, the loop of allocations, checkpoints, what `compile` makes of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

import heliograph as hg
from heliograph.compiler.pipeline import front_passes
from heliograph.errors import ProgramError
from heliograph.frontends.torch.training.distill import Judge, Training, reaches
from heliograph.interpret import interpret_batch
from heliograph.ir import Builder, Program, Stage
from heliograph.tools.refine import refine

DIGITS = (load_digits().images[:, None] / 16).astype(np.float32)
TRAIN, TEST = DIGITS[:1200], DIGITS[1200:]
LABELS = torch.from_numpy(load_digits().target)
PAGE = Path(__file__).resolve().parents[2] / "docs" / "refinement.md"


@pytest.fixture(scope="module")
def program() -> Program:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(128, 32), nn.ReLU(), nn.Linear(32, 10),
    )  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(60):
        optimizer.zero_grad()
        F.cross_entropy(model(torch.from_numpy(TRAIN[:800])), LABELS[:800]).backward()
        optimizer.step()
    return hg.trace(model.eval(), torch.from_numpy(TRAIN[:1]), calibration=TRAIN[:300], name="digits")


def classes(program: Program, samples: Any = TEST) -> Any:
    return interpret_batch(program, samples)[0].argmax(1)


@pytest.mark.parametrize("degree", [1, 2])
def test_low_degrees_keep_the_classes(program: Program, degree: int) -> None:
    low = hg.approximate(program, hg.Options(degree=degree))
    refined = refine(program, TRAIN, degrees=degree, epochs=6)
    assert refined.degrees == {"2": degree, "4": degree, "7": degree}
    wanted = classes(program)
    before, after = ((classes(each) == wanted).mean() for each in (low, refined.program))
    print(before, after, refined.before, refined.agreement)
    assert after > (0.88, 0.95)[degree - 1]
    assert after > before + (0.3, 0.01)[degree - 1]
    assert refined.agreement > refined.before
    assert refined.samples_apart == 150
    assert refined.program.comparison is not None
    assert refined.program.comparison.samples == 64
    assert refined.program.comparison.difference <= 1e-4
    (only,) = refined.rounds
    assert (only.kept, only.predicted_ms, len(only.epochs)) == (True, None, 6)
    # Names, places, samples and the input's name and range are the traced program's.
    assert refined.program.inputs == program.inputs
    assert refined.program.calibration is program.calibration
    # The module and the program are the same network, and so is what compile makes of it.
    with torch.no_grad():
        ours = refined.module(torch.from_numpy(TEST)).numpy()
    np.testing.assert_allclose(interpret_batch(refined.program, TEST)[0], ours, atol=1e-3)
    made = front_passes(refined.program, hg.Options())[-1].program
    assert [(entry.method, entry.degree) for entry in made.ranges] == [("given", degree)] * 3
    np.testing.assert_array_equal(classes(made), ours.argmax(1))


def test_degrees_by_layer_and_the_compiled_artifact(program: Program) -> None:
    refined = refine(program, torch.from_numpy(TRAIN), degrees={"2": 3, "7": 2}, epochs=2)
    # At most those: 15 levels off to 7, and 3 to a square, where that does nothing.
    assert (refined.degrees["2"] in (2, 3), refined.degrees["4"] in (7, 15), refined.degrees["7"]) == (True, True, 2)
    artifact = hg.compile(refined.program, hg.Options(security_bits=None))
    with torch.no_grad():
        ours = refined.module(torch.from_numpy(TEST[:4])).argmax(1)
    found = [np.asarray(hg.simulate(artifact, sample)).argmax() for sample in TEST[:4]]
    assert found == ours.tolist()


@dataclass(frozen=True)
class Stub:
    degrees: Mapping[str, int]
    predicted_ms: float
    loss: float = 0.0


def test_degrees_that_do_nothing_go(program: Program) -> None:
    """With polynomials that are nearly the float network's, some of the levels are for nothing; with lines none is."""
    kept = refine(program, TRAIN, degrees=1, epochs=1)
    assert (kept.degrees, kept.agreement) == (dict.fromkeys(("2", "4", "7"), 1), kept.rounds[0].agreement)
    spared = refine(program, TRAIN, degrees=31, epochs=1, training=Training(rate=1e-9, fade=0.0))
    (only,) = spared.rounds
    assert set(only.degrees.values()) == {31}
    assert set(spared.degrees.values()) <= {31, 15}
    assert min(spared.degrees.values()) == 15
    # What is said of the agreement is of the network that comes out.
    assert spared.agreement >= only.agreement
    apart = TRAIN[7::8]
    assert spared.agreement == (classes(spared.program, apart) == classes(program, apart)).mean()


def test_intervals_hold_the_samples_where_degrees_went(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another polynomial moves what comes after it: the intervals are those of the network that comes out."""
    # Whatever it does to the network, each level that can go goes.
    monkeypatch.setattr(Judge, "look", lambda judge: (1.0, -1.0, 1.0))
    refined = refine(program, TRAIN, degrees=7, epochs=1, training=Training(rate=1e-9, fade=0.0))
    assert max(refined.degrees.values()) == 3
    for reach in reaches(refined.module, [torch.from_numpy(TRAIN)]):
        # Room of 0.6 / d of the width on both sides, or a little less where clipped.
        assert max(-reach.low, reach.high) < 1.0
        assert reach.high - reach.low == pytest.approx(2 / (1 + 2 * 0.6 / 3), rel=0.02)
    hg.compile(refined.program, hg.Options(security_bits=None))


def curve(*degrees: int) -> Any:
    return lambda program, options: [Stub(dict.fromkeys(("2", "4", "7"), degree), 10.0 * degree) for degree in degrees]


def test_rounds_of_cheaper_allocations(program: Program) -> None:
    asked: list[Program] = []

    def allocate(network: Program, options: hg.Options) -> Any:
        asked.append(network)
        return curve(7, 6, 3, 2)(network, options)

    refined = refine(program, TRAIN, allocate=allocate, epochs=2, rounds=5, accuracy_loss=1.0)
    # 6 is not cheap enough beside 7.
    assert [max(each.degrees.values()) for each in refined.rounds] == [7, 3, 2]
    assert [each.predicted_ms for each in refined.rounds] == [70, 30, 20]
    assert refined.degrees == {"2": 2, "4": 2, "7": 2}
    # The allocation is asked about the network as it is: the original with the weights trained so far.
    assert [[node.op for node in each.nodes] for each in asked] == [[node.op for node in program.nodes]] * 4
    first, second = (each.array(each.nodes[1].attrs["weight"]) for each in asked[:2])
    assert not np.array_equal(first, second)
    assert (classes(asked[2]) == classes(program)).mean() > 0.8


def test_a_round_that_changes_too_much_is_undone(program: Program) -> None:
    training = Training(batch=1000, rate=1e-9, fade=0.0)
    refined = refine(program, TRAIN, allocate=curve(9, 1), epochs=1, rounds=5, accuracy_loss=0.05, training=training)
    assert [each.kept for each in refined.rounds] == [True, False]
    assert set(refined.rounds[0].degrees.values()) == {9}
    assert set(refined.degrees.values()) <= {9, 7}
    assert refined.agreement >= refined.rounds[0].agreement > refined.rounds[1].agreement
    assert (classes(refined.program) == classes(program)).mean() > 0.9


def test_a_killed_run_goes_on(program: Program, tmp_path: Path) -> None:
    path = tmp_path / "run.checkpoint"

    def run(kill_at: tuple[str, int] | None = None, checkpoint: Path | None = path, **given: Any) -> hg.Program:
        def progress(stage: str, done: int, total: int) -> None:
            if (stage, done) == kill_at:
                raise RuntimeError("killed")

        settings = {"epochs": 3, "rounds": 2, "accuracy_loss": 1.0, "allocate": curve(7, 3)} | given
        return refine(program, TRAIN, progress=progress, checkpoint=checkpoint, **settings).program

    expected = run(checkpoint=None)
    for place in (("round 1", 16), ("round 2", 1), ("round 2", 20)):
        with pytest.raises(RuntimeError, match="killed"):
            run(place)
        assert path.exists()
    with pytest.raises(ProgramError, match="of another run"):
        run(epochs=4)
    with pytest.raises(ProgramError, match="of another run"):
        run(augment=lambda batch: batch)
    assert str(run()) == str(expected)
    assert not path.exists()


def test_ctrl_c(program: Program, tmp_path: Path) -> None:
    path = tmp_path / "run.checkpoint"

    def run(stop_at: int = 0) -> Any:
        def progress(stage: str, done: int, total: int) -> None:
            if (stage, done) == ("round 2", stop_at):
                raise KeyboardInterrupt

        return refine(
            program, TRAIN, allocate=curve(7, 5, 3, 2), epochs=2, progress=progress, accuracy_loss=1.0, checkpoint=path
        )

    stopped = run(12)
    assert stopped.interrupted
    assert [len(each.epochs) for each in stopped.rounds] == [2, 1]
    gone_on = run()
    assert not gone_on.interrupted
    assert [len(each.epochs) for each in gone_on.rounds] == [2, 2, 2, 2]
    assert gone_on.rounds[1].epochs[0] == stopped.rounds[1].epochs[0]


def test_samples_of_several_inputs_are_given_in_order_or_by_name() -> None:
    class Two(nn.Module):
        def forward(self, x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
            return F.gelu(x) + z

    torch.manual_seed(0)
    x, z = torch.randn(48, 4), torch.rand(48, 4)
    two = hg.trace(Two().eval(), calibration={"z": z, "x": x})
    ordered, named = (refine(two, given, degrees=3, epochs=1) for given in ((x, z), {"z": z, "x": x}))
    assert named.agreement == ordered.agreement
    assert all(map(torch.equal, named.module.state_dict().values(), ordered.module.state_dict().values()))


def test_refusals(program: Program) -> None:
    linear = hg.trace(nn.Linear(4, 2), torch.zeros(1, 4), input_range=(-1, 1))
    for call, text in (
        (lambda: refine(program, TRAIN[:, 0], degrees=3), "expected"),
        (lambda: refine(program, TRAIN[:5], degrees=3), "5 samples cannot be refined with"),
        (lambda: refine(program, (TRAIN, TRAIN), degrees=3), "2 arrays of samples were given for 1 inputs"),
        (lambda: refine(program, {"x": TRAIN, "z": TRAIN}, degrees=3), "samples are given for 'x', 'z'"),
        (lambda: hg.Training(price="0.1"), "price='0.1' cannot be used"),  # type: ignore[arg-type]
        (lambda: hg.Training(classes="no"), "classes='no' cannot be used"),  # type: ignore[arg-type]
        (lambda: refine(program, np.full_like(TRAIN, np.nan), degrees=3), "hold NaN"),
        (lambda: refine(program, TRAIN, degrees={"3": 2}), "no layer with a polynomial is called '3'"),
        (lambda: refine(program, TRAIN, degrees=0), "degrees lie between 1 and"),
        (lambda: refine(program, TRAIN, rounds=0), "rounds=0"),
        (lambda: refine(program, TRAIN, allocate=curve()), "no allocation of degrees was found"),
        (lambda: refine(linear, np.zeros((50, 4)), degrees=3), "nothing to refine"),
        (lambda: refine(nn.Linear(4, 2), TRAIN), "takes a program"),  # type: ignore[arg-type]
    ):
        with pytest.raises(ProgramError, match=re.escape(text)):
            call()  # type: ignore[no-untyped-call]


def test_the_page_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 2
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for block in blocks:
        exec(block, names)
    assert names["refined"].agreement > 0.95
    assert isinstance(names["artifact"], hg.Artifact)


def test_allocations_are_the_compilers_where_none_are_given(program: Program) -> None:
    refined = refine(program, TRAIN, hg.Options(security_bits=None, margin=0.2), epochs=1, rounds=2, accuracy_loss=1.0)
    assert 1 <= len(refined.rounds) <= 2
    times = [each.predicted_ms for each in refined.rounds]
    assert all(ms is not None for ms in times)
    if len(times) == 2:
        assert times[1] <= 0.8 * times[0]
    assert set(refined.degrees) == {"2", "4", "7"}


class Attention(nn.Module):
    """Digits of eight rows as tokens: one layer of attention with wide scores, a layer norm, a GELU."""

    def __init__(self) -> None:
        super().__init__()
        self.mixed, self.norm = nn.Linear(8, 24), nn.LayerNorm(8)
        self.up, self.down, self.head = nn.Linear(8, 16), nn.Linear(16, 8), nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.mixed(x).chunk(3, -1)
        x = self.norm(x + torch.softmax(4.0 * q @ k.transpose(-1, -2), -1) @ v)
        return self.head((x + self.down(F.gelu(self.up(x)))).flatten(1))


@pytest.fixture(scope="module")
def attention() -> Program:
    torch.manual_seed(0)
    model = Attention()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(150):
        optimizer.zero_grad()
        F.cross_entropy(model(torch.from_numpy(TRAIN[:800, 0])), LABELS[:800]).backward()
        optimizer.step()
    return hg.trace(model.eval(), torch.from_numpy(TRAIN[:1, 0]), calibration=TRAIN[:300, 0])


def test_ranges_of_softmax_and_layer_norms_become_narrow(attention: Program) -> None:
    rows = TRAIN[:, 0]
    found = {
        price: refine(attention, rows, degrees=7, epochs=6, training=Training(price=price, rate=3e-3))
        for price in (0.0, 1.0)
    }
    before, after = found[1.0].rounds[0].range_levels
    print(found[0.0].rounds[0].range_levels, before, after, found[0.0].agreement, found[1.0].agreement)
    assert found[0.0].rounds[0].range_levels[0] == before
    assert after <= before - 3
    assert after <= found[0.0].rounds[0].range_levels[1] - 3
    assert found[1.0].agreement > 0.95
    kept = [
        node.op for node in found[1.0].program.nodes if node.op in ("softmax", "layer_norm", "poly", "softmax_rows")
    ]
    assert kept == ["softmax", "layer_norm", "poly"]
    wanted = interpret_batch(attention, TEST[:, 0])[0].argmax(1)
    assert (interpret_batch(found[1.0].program, TEST[:, 0])[0].argmax(1) == wanted).mean() > 0.93
    levels = {
        price: hg.compile(each.program, hg.Options(security_bits=None)).report.to_dict()["levels"]
        for price, each in found.items()
    }
    assert levels[1.0] <= levels[0.0] - 3


def test_outputs_that_are_numbers(attention: Program) -> None:
    rows = TRAIN[:400, 0]
    made = refine(attention, rows, degrees=7, epochs=1, training=Training(classes=False))
    # The explained share of the variance, not a share of 50 samples.
    assert 0.8 < made.before < 1.0
    assert made.before * made.samples_apart % 1 > 1e-6
    summed = Builder("sum", Stage.TENSOR)
    x = summed.input("x", shape=(8, 8), low=-1.0, high=1.0)
    one = summed.finish({"y": summed.op("sum", (summed.op("gelu", (x,)),), axes=(0, 1), keepdims=False)})
    with pytest.raises(ProgramError, match="no class scores"):
        refine(one, rows, degrees=3, epochs=1, training=Training(classes=True))
    with pytest.raises(ProgramError, match="a weight is at least 0"):
        Training(price=-1.0)
