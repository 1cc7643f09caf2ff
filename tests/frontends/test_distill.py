"""Training of modules with polynomials: what is held, what fades, what is folded; runs that repeat, stop and go on."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from frontends import models
from support import inputs
from torch import nn

import heliograph as hg
from heliograph.errors import ProgramError, WireError
from heliograph.frontends.torch.training import distill as torch_distill
from heliograph.frontends.torch.training.distill import Training, _Run, distil, packed, reaches, unpacked, watched
from heliograph.frontends.torch.training.modules import ProgramModule, to_torch
from heliograph.frontends.torch.training.polynomial import held_polynomial, polynomial
from heliograph.interpret import interpret_batch
from heliograph.ir import Program
from heliograph.tools.refine import _moved

SAMPLES = torch.rand(96, 3, 8, 8, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def programs() -> tuple[Program, Program]:
    """A residual network with batch norms, and the same with polynomials of degree 3."""
    model = models.fill(models.ResNet())
    program = hg.trace(model, SAMPLES[:1], calibration=SAMPLES[:60])
    return program, hg.approximate(program, hg.Options(degree=3, margin=0.2))


def pair(programs: tuple[Program, Program]) -> tuple[ProgramModule, ProgramModule]:
    return to_torch(programs[1], train_coefficients=True), to_torch(programs[0])


@pytest.mark.parametrize("degree", [0, 1, 2, 7, 31])
def test_gradients_of_polynomials(degree: int) -> None:
    random = torch.Generator().manual_seed(degree)
    # Arguments of high degrees stay where those are of ordinary size.
    wide = 2.0 if degree < 10 else 1.0
    x = (0.75 + 1.25 * wide * (2 * torch.rand(2, 3, 4, generator=random).double() - 1)).transpose(0, 2).requires_grad_()
    series = torch.randn(degree + 1, generator=random, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, c: polynomial(x, c, -0.5, 2.0), (x, series))
    for outer in (1.0, 1.5 if degree < 10 else 1.01):
        assert torch.autograd.gradcheck(lambda x, c: held_polynomial(x, c, -0.5, 2.0, 0.9, outer), (x, series))  # noqa: B023
    # More than one part.
    many = (0.75 + 1.25 * wide * (2 * torch.rand(3, 70_001, generator=random).double() - 1)).requires_grad_()
    t = (2 * many.detach().numpy() - 1.5) / 2.5
    values = polynomial(many, series, -0.5, 2.0)
    expected = np.polynomial.chebyshev.chebval(t, series.detach().numpy())
    np.testing.assert_allclose(values.detach().numpy(), expected, rtol=1e-9, atol=1e-9 * np.abs(expected).max())
    (by_series,) = torch.autograd.grad(values.sum(), series)
    sums = np.polynomial.chebyshev.chebvander(t, degree).sum((0, 1))
    np.testing.assert_allclose(by_series.numpy(), sums, rtol=1e-8, atol=1e-8 * np.abs(sums).max())


def test_arguments_are_held_in_training_only() -> None:
    x = torch.tensor([[-3.0, -1.0, 0.2, 1.0, 4.0]], dtype=torch.float64)
    program = hg.trace(nn.Tanh().double(), x, calibration=np.linspace(-1, 1, 50)[:, None].repeat(5, 1))
    module = to_torch(hg.approximate(program, hg.Options(degree=5, margin=0.0)), dtype=torch.float64)
    (step,) = module.polynomials
    low, high = step.attrs["low"], step.attrs["high"]
    free = module(x)
    assert free.abs().max() > 10
    module.train()
    torch.testing.assert_close(module(x), module.eval()(x.clamp(low, high)))
    module.train()
    module(x)
    t = (2 * x - low - high) / (high - low)
    torch.testing.assert_close(module.range_penalty(), (t.abs() - 0.9).clamp_min(0).square().sum())
    torch.testing.assert_close(module.eval()(x), free)


def test_excesses_are_counted_by_sample() -> None:
    """Also where a sample is cut into no parts of its own: the sums and their gradients are each sample's."""
    random = torch.Generator().manual_seed(0)
    x = (3 * torch.randn(5, 3, 41, 67, generator=random)).double().requires_grad_()
    series = torch.tensor([0.2, 0.5, 0.3, -0.1], dtype=torch.float64)
    values, excess = held_polynomial(x, series, -1.0, 2.0, 0.9, 1.5)
    t = (2 * x - 1.0) / 3.0
    wanted = (t.abs() - 0.9).clamp_min(0).square().flatten(1).sum(1)
    torch.testing.assert_close(excess, wanted)
    weights = torch.tensor([1.0, 0.0, 2.0, -1.0, 0.5], dtype=torch.float64)
    (found,) = torch.autograd.grad((excess * weights).sum(), x, retain_graph=True)
    (expected,) = torch.autograd.grad((wanted * weights).sum(), x)
    torch.testing.assert_close(found, expected)
    held = t.detach().clamp(-1.5, 1.5)
    torch.testing.assert_close(values.detach(), polynomial(1.5 * held + 0.5, series, -1.0, 2.0))


def test_bounds_give_way_and_go_back(programs: tuple[Program, Program]) -> None:
    """At first arguments are held to the interval, at the end only where the polynomial is large; then not at all."""
    student, teacher = pair(programs)
    run = _Run(student, teacher, [SAMPLES], [SAMPLES[:16]], Training(), (), None)
    found = []
    for done in (0.0, 0.4, 0.55, 0.7, 1.0):
        run.set_polynomials(done)
        found.append((student.polynomials[0].inner, student.polynomials[0].outer))
    assert found[0] == found[1] == (0.9, 1.0)
    assert found[1] < found[2] < found[3]
    assert found[3] == pytest.approx(found[4])
    # Degree 3: T_3 is 4 and 26 there.
    inner, outer = found[4]
    assert 4 * inner**3 - 3 * inner == pytest.approx(4.0)
    assert 4 * outer**3 - 3 * outer == pytest.approx(26.0)
    run.still()
    assert (student.polynomials[0].inner, student.polynomials[0].outer) == (0.9, 1.0)


def test_a_state_with_samples_that_diverge_is_worse(
    programs: tuple[Program, Program], monkeypatch: pytest.MonkeyPatch
) -> None:
    student, teacher = pair(programs)
    run = _Run(student, teacher, [SAMPLES], [SAMPLES[:16]], Training(), (), None)
    fine = run.look()
    assert fine[0] == fine[2]
    outputs = torch_distill._outputs

    def diverging(module: Any, given: Any, places: Any = ()) -> Any:
        found, kept = outputs(module, given, places)
        if module is student:
            found[0] = found[0].clone()
            found[0][0], found[0][1] = torch.nan, 1e9
        return found, kept

    monkeypatch.setattr(torch_distill, "_outputs", diverging)
    score, loss, agreement = run.look()
    assert score == pytest.approx(agreement - 10 * 2 / 16)
    assert loss == -np.inf


def test_a_state_with_arguments_far_out_is_worse(programs: tuple[Program, Program]) -> None:
    """Outputs may still be of ordinary size where a value has left its interval by far: compile refuses such a sample."""
    student, teacher = pair(programs)
    apart = SAMPLES[:16].clone()
    run = _Run(student, teacher, [SAMPLES], [apart], Training(), (), None)
    fine = run.look()
    with watched(student.eval()) as reached:
        student(apart)
        least = float(reached().min())
    for step in student.polynomials:
        middle, half = (step.attrs["low"] + step.attrs["high"]) / 2, (step.attrs["high"] - step.attrs["low"]) / 2
        # The same polynomials on intervals so narrow that all samples are out of one of them.
        step.attrs["low"], step.attrs["high"] = (middle + sign * half * least / 5 for sign in (-1, 1))
        old = step.coefficients.detach().double().numpy()
        step.coefficients.data = torch.from_numpy(_moved(old, -least / 5, least / 5)).float()
    score, loss, agreement = run.look()
    assert agreement == fine[2]
    assert loss == pytest.approx(fine[1], abs=1e-3)
    assert score == pytest.approx(agreement - 10)


def test_a_training_sample_that_diverges_counts_against_a_state(programs: tuple[Program, Program]) -> None:
    """Though none of the samples kept apart does: here one of the training samples is a thousand times as bright."""
    samples = SAMPLES.clone()
    samples[5] = 1000 * samples[5]
    student, teacher = pair(programs)
    run = _Run(student, teacher, [samples], [SAMPLES[:16]], Training(batch=10), (), None)
    apart = run.look()
    score, loss, agreement = run.among_all(apart)
    assert (loss, agreement) == apart[1:]
    assert score == pytest.approx(apart[0] - 10 / 16)
    fine = _Run(student, teacher, [SAMPLES], [SAMPLES[:16]], Training(batch=10), (), None)
    assert fine.among_all(fine.look()) == fine.look()


def test_the_best_state_is_one_without_samples_that_diverge(
    programs: tuple[Program, Program], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state after the first epoch agrees best, but a training sample diverges in it."""
    student, teacher = pair(programs)
    epochs = []
    monkeypatch.setattr(_Run, "look", lambda run: (epochs.append(1), (0.5 if len(epochs) == 2 else 0.4, 0.0, 0.4))[1])
    monkeypatch.setattr(_Run, "reached", lambda run: torch.tensor([np.inf if len(epochs) == 2 else 1.0, 1.0]))
    training = Training(epochs=1, batch=8, rate=1e-3)
    before = {key: tensor.clone() for key, tensor in student.state_dict().items()}
    state = distil(student, teacher, [SAMPLES], [SAMPLES[:16]], training).state
    assert all(torch.equal(state[key], before[key]) for key in before)


def test_samples_that_go_beyond_the_bounds_are_part_of_every_batch(
    programs: tuple[Program, Program], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 96 samples one is far brighter: with batches of 8 it has a place in each when bounds have given way."""
    samples = SAMPLES.clone()
    samples[5] = 60 * samples[5]
    student, teacher = pair(programs)
    seen = []
    step = _Run.step

    def watching(run: _Run, number: int, given: Any) -> float:
        seen.append(any(torch.equal(each, samples[5]) for each in given[0]))
        return step(run, number, given)

    monkeypatch.setattr(_Run, "step", watching)
    training = Training(epochs=10, batch=8, rate=1e-6, penalty=1e-6)
    distil(student, teacher, [samples], [SAMPLES[:16]], training)
    assert sum(seen[:96]) == 8
    assert all(seen[96:])


def test_a_fold_of_norms_changes_neither_values_nor_gradients(programs: tuple[Program, Program]) -> None:
    module = to_torch(programs[0], dtype=torch.float64)
    x = inputs([(3, 8, 8)], 4)[0].double()
    found = []
    for folds in (False, True):
        module.folds_norms = folds
        module.zero_grad()
        y = module(x)
        y.square().sum().backward()
        found.append([y, *(parameter.grad for parameter in module.parameters())])
    for left, right in zip(*found, strict=True):
        torch.testing.assert_close(left, right)


def test_equal_coefficients_are_trained_apart() -> None:
    x = torch.rand(40, 6) * 2 - 1

    class Twice(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.tanh(x) + torch.tanh(-x).flip(1)

    low = hg.approximate(hg.trace(Twice(), x[:1], input_range=(-1, 1)), hg.Options(degree=3))
    assert len({str(node.attrs["coefficients"]) for node in low.nodes if node.op == "poly"}) == 1
    first, second = to_torch(low, train_coefficients=True).polynomials
    assert first.coefficients is not second.coefficients


def test_a_module_is_written_into_its_program(programs: tuple[Program, Program]) -> None:
    module = to_torch(programs[1], train_coefficients=True)
    same = module.written(programs[1])
    assert [str(node.op) for node in same.nodes] == [str(node.op) for node in programs[1].nodes]
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += 0.01 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
        expected = module(SAMPLES[:10])
    written = module.written(programs[1])
    np.testing.assert_allclose(interpret_batch(written, SAMPLES[:10].numpy())[0], expected, rtol=1e-4)
    assert written.calibration is programs[1].calibration
    assert [node.loc for node in written.nodes] == [node.loc for node in programs[1].nodes]


def test_the_same_seed_gives_the_same_state_also_after_a_stop(programs: tuple[Program, Program]) -> None:
    training = Training(epochs=3, batch=16, seed=5)

    def augment(batch: torch.Tensor) -> torch.Tensor:
        return batch + 0.01 * torch.randn(batch.shape)

    states: list[dict[str, Any]] = []
    whole = distil(
        *pair(programs), [SAMPLES[:80]], [SAMPLES[80:]], training, augment=augment,
        checkpoint=lambda state: states.append(unpacked(packed(state), "here")),
    )  # fmt: skip
    assert len(states) == len(whole.epochs) == 3
    before = torch.get_rng_state()
    again = distil(*pair(programs), [SAMPLES[:80]], [SAMPLES[80:]], training, augment=augment, resume=states[0])
    assert torch.equal(before, torch.get_rng_state())
    assert [each.loss for each in again.epochs] == [each.loss for each in whole.epochs]
    for name, value in whole.state.items():
        assert torch.equal(value, again.state[name])
    other = distil(*pair(programs), [SAMPLES[:80]], [SAMPLES[80:]], Training(epochs=3, batch=16), augment=augment)
    assert [each.loss for each in other.epochs] != [each.loss for each in whole.epochs]


def test_ctrl_c_keeps_the_best_so_far(programs: tuple[Program, Program]) -> None:
    student, teacher = pair(programs)

    def stop(step: int, steps: int) -> None:
        if step == 8:
            raise KeyboardInterrupt

    done = distil(student, teacher, [SAMPLES[:80]], [SAMPLES[80:]], Training(epochs=9, batch=16), progress=stop)
    assert done.interrupted
    assert len(done.epochs) == 1
    assert not student.training
    for name, value in student.state_dict().items():
        assert torch.equal(value, done.state[name])


def test_what_fades_is_gone_at_the_end(programs: tuple[Program, Program]) -> None:
    student, teacher = pair(programs)
    seen = []

    def watch(step: int, steps: int) -> None:
        seen.append([None if each.fading is None else float(each.fading[-1]) for each in student.polynomials])

    fading = [torch.tensor([0.0] * 9 + [0.1])] * 5
    distil(
        student, teacher, [SAMPLES[:80]], [SAMPLES[80:]], Training(epochs=2, batch=16, fade=0.5), fading=fading,
        progress=watch,
    )  # fmt: skip
    first = [row[0] for row in seen]
    assert first[:5] == pytest.approx([0.1, 0.08, 0.06, 0.04, 0.02])
    assert first[5:] == [None] * 5
    assert all(each.fading is None for each in student.polynomials)
    assert not student.folds_norms


def test_norms_follow_the_teacher(programs: tuple[Program, Program]) -> None:
    """Of the same network they stay; of another one, means and variances behind them become the teacher's."""
    random = torch.Generator().manual_seed(2)
    for same in (True, False):
        student, teacher = to_torch(programs[0]), to_torch(programs[0])
        before = copy.deepcopy(student.state_dict())
        if not same:
            with torch.no_grad():
                student.norms[0].weight[0] *= -1
                for name, parameter in student.named_parameters():
                    if "conv" in name:
                        parameter += 0.2 * torch.randn(parameter.shape, generator=random)
        run = _Run(student, teacher, [SAMPLES[:80]], [SAMPLES[80:]], Training(), [], None)
        for _ in range(30):
            run.follow_norms([SAMPLES[:80]])
        if same:
            for name, value in before.items():
                torch.testing.assert_close(student.state_dict()[name], value, rtol=1e-2, atol=1e-2)
        places = [student.places[norm.layer, norm.op] for norm in student.norms]
        with torch.no_grad():
            ours, theirs = (module.eval().kept([SAMPLES[:80]], places)[1] for module in (student, teacher))
        for left, right in zip(ours, theirs, strict=True):
            torch.testing.assert_close(left.mean((0, 2, 3)), right.mean((0, 2, 3)), rtol=1e-3, atol=1e-3)
            torch.testing.assert_close(left.var((0, 2, 3)), right.var((0, 2, 3)), rtol=1e-2, atol=1e-3)


def test_a_loss_that_is_no_number_is_an_error(programs: tuple[Program, Program]) -> None:
    student, teacher = pair(programs)
    with torch.no_grad():
        next(student.parameters()).fill_(torch.nan)
    with pytest.raises(ProgramError, match="the loss is no longer a number in step 1 of 5") as caught:
        distil(student, teacher, [SAMPLES[:80]], [SAMPLES[80:]], Training(epochs=1, batch=16))
    assert "smaller rate" in caught.value.hint


def test_outputs_that_are_no_classes() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
    x = torch.rand(300, 4) * 4 - 2
    program = hg.trace(model, x[:1], calibration=x)
    low = hg.approximate(program, hg.Options(degree=2, margin=0.5, method="minimax"))
    student, teacher = to_torch(low, train_coefficients=True), copy.deepcopy(model)
    done = distil(student, teacher, [x[:240]], [x[240:]], Training(epochs=20, batch=40, rate=0.01))
    assert done.agreement > done.before
    assert done.agreement > 0.9


def test_where_arguments_lie(programs: tuple[Program, Program]) -> None:
    student, _ = pair(programs)
    for reach in reaches(student, [SAMPLES[:60]], batch=7):
        assert -1 <= reach.low < reach.mean < reach.high <= 1
        assert 0 < reach.deviation < 1
    wild = [100 * SAMPLES[:8]]
    assert max(reach.high for reach in reaches(student, wild)) > 1e6 * max(
        reach.high for reach in reaches(student, wild, held=True)
    )


def test_refusals() -> None:
    for given in ({"epochs": 0}, {"batch": True}, {"rate": 0.0}, {"temperature": float("nan")}, {"fade": 1.5}):
        with pytest.raises(ProgramError, match="cannot be used"):
            Training(**given)  # type: ignore[arg-type]
    whole = packed({"a": torch.ones(100)})
    damaged = bytearray(whole)
    damaged[len(whole) // 2] ^= 1
    for data in (b"", b"PK\x03\x04", whole[:-40], bytes(damaged)):
        with pytest.raises(WireError, match="checkpoint cannot be read"):
            unpacked(data, "x.checkpoint")
