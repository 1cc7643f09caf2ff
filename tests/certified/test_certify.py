"""Certified answers on ciphertexts of a toy ring: as in the clear, withdrawn where a range is left, in every file."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.blobs import Blobs, make_blobs
from numpy.typing import NDArray
from scipy import stats
from torch import nn

import heliograph as hg
from heliograph.artifact.container import Container, pack
from heliograph.artifact.public import VERSION
from heliograph.certified.bounds import rates
from heliograph.certified.certify import exact_network
from heliograph.certified.clear import Smoothed, by_votes
from heliograph.certified.sampling import Sampler
from heliograph.certified.smooth import Range
from heliograph.certified.train import Square, perceptron, train
from heliograph.errors import ProgramError, RangeError, WireError
from heliograph.execution.interface import pack_inputs, unpack_outputs, with_drawn
from heliograph.execution.loop import execute
from heliograph.execution.simulator import Simulator
from heliograph.interpret import interpret
from heliograph.ir import Builder, Stage
from heliograph.passes.polynomials.approximate import Approximate
from heliograph.runtime.noise import secure_draw

Array = NDArray[np.float64]


def drawn(artifact: hg.Artifact, rng: np.random.Generator, size: float = 1.0) -> dict[str, Array]:
    return {name: size * rng.standard_normal(shape) for name, (_, shape) in artifact.drawn_inputs.items()}


def test_encrypted_answers_are_those_in_the_clear(
    artifact: hg.Artifact, network: hg.Program, certificate: hg.Certificate, blobs: Blobs
) -> None:
    clear, rng = Smoothed(network, certificate), np.random.default_rng(1)
    client = hg.Client(artifact.public(), allow_insecure=True)
    # Where two blobs meet votes are few: answers that abstain.
    middle = (blobs.inputs[blobs.labels == 0].mean(axis=0) + blobs.inputs[blobs.labels == 1].mean(axis=0)) / 2
    inputs = [*blobs.inputs[1900:1908], middle]
    certified = []
    with hg.Server(artifact, client.evaluation_keys(), allow_insecure=True) as server:
        for x in inputs:
            noise = drawn(artifact, rng)
            encrypted = client.encrypt(x)
            answer = client.answer(server.run(encrypted, plain=noise), of=encrypted)
            expected = clear.with_noise(x, noise)
            assert (answer.label, answer.votes, answer.certified) == (
                expected.label,
                expected.votes,
                expected.certified,
            )
            certified.append(answer.certified)
            assert answer.radius == (certificate.radius if answer.certified else 0.0)
        fresh = client.answer(server.run(client.encrypt(inputs[0])))
    assert any(certified)
    assert not certified[-1]
    # The server's own noise is the system's, so a copy more may vote otherwise: then there is no answer, and never another.
    assert fresh.label in (None, blobs.labels[1900])


def test_the_report_says_what_is_certified_and_what_that_rests_on(
    artifact: hg.Artifact, certificate: hg.Certificate
) -> None:
    found = artifact.report.figures.certificate
    assert found is not None
    assert found.xi == pytest.approx(found.alpha + found.beta_range + found.beta_difference)
    assert found.held_out == 200
    assert found.beta_range >= stats.beta.ppf(0.95, 1, 200) * 0.999
    assert found.gap + 2 * found.error <= found.difference
    assert found.target == certificate.target
    text = artifact.report.full()
    assert f"an l2 radius of {certificate.radius:.3g} where 12 of 12 votes agree" in " ".join(text.split())
    assert "Certificate: logits of a noisy copy are at most" in " ".join(text.split())
    assert artifact.report.figures.flood == 1 / 16


def test_the_certificate_is_in_every_file_and_in_the_fingerprint(artifact: hg.Artifact, tmp_path: Path) -> None:
    artifact.save(tmp_path / "blobs.helio")
    read = hg.Artifact.load(tmp_path / "blobs.helio")
    assert read.fingerprint == artifact.fingerprint
    assert read.public().certificate == artifact.public().certificate
    artifact.public().save(tmp_path / "public.helio")
    assert hg.PublicArtifact.load(tmp_path / "public.helio").certificate == artifact.public().certificate
    client = hg.Client(artifact.public(), allow_insecure=True)
    client.save(tmp_path / "key")
    assert hg.Client.load(tmp_path / "key", allow_insecure=True).public.certificate == artifact.public().certificate
    known = artifact.public().certificate
    assert known is not None
    other = replace(artifact.public(), certificate=replace(known, radius=1.0))
    assert other.fingerprint != artifact.fingerprint


def test_nothing_but_the_answer_leaves_the_server(artifact: hg.Artifact, blobs: Blobs) -> None:
    """Slots without a result depend on no input, and those of the other classes hold hardly anything of their votes."""
    # That no other slot depends on an input is proved in every compilation (CleanSlots); here the slots are looked at.
    program, rng = artifact.program, np.random.default_rng(8)
    used = program.interface.outputs[0].placed.used(0)
    assert used.sum() < used.size / 4
    known = artifact.public().certificate
    assert known is not None
    soft = max(entry.max_error for entry in program.ranges if entry.gap is not None)
    left = soft * max(known.target, known.n - known.target)
    assert left < 1 / 16, "below the server's noise"
    for x in blobs.inputs[1900:1906]:
        simulator = Simulator(program, noisy=False)
        packed = pack_inputs(program, with_drawn(program, [x], rng))
        (output,), _ = execute(program, simulator, simulator.encrypt_inputs(packed))
        slots = np.real(simulator.decrypt(output))
        assert np.abs(slots[~used]).max() < 1e-9
        (values,) = unpack_outputs(program, [slots])
        others = np.delete(values, int(np.abs(values).argmax()))
        # What the report says: the proved distance of a vote from 0, times the votes.
        assert np.abs(others).max() < left


def test_a_broken_range_withdraws_the_answer(
    artifact: hg.Artifact, network: hg.Program, certificate: hg.Certificate, blobs: Blobs
) -> None:
    clear, rng = Smoothed(network, certificate), np.random.default_rng(2)
    withdrawn = 0
    for size in (4.0, 16.0, 64.0):
        for x in blobs.inputs[1900:1905]:
            noise = drawn(artifact, rng, size)
            try:
                answer = hg.read_answer(artifact, hg.simulate(artifact, x, *noise.values()))
            except RangeError:
                withdrawn += 1
                continue
            withdrawn += bool(answer.withdrawn)
            if answer.certified:
                assert (answer.label, answer.votes) == ((found := clear.with_noise(x, noise)).label, found.votes)
    assert withdrawn > 5


def test_answers_are_read_with_care(artifact: hg.Artifact) -> None:
    target, n = 12, 12
    read = lambda *values: hg.read_answer(artifact, np.array(values, dtype=float))  # noqa: E731
    assert read(0.0, 1.04, -0.03).certified
    assert read(0.0, 1.04, -0.03).votes == target
    assert not read(-3.02, 0.0, 0.1).certified
    assert (read(-3.02, 0.0, 0.1).label, read(-3.02, 0.0, 0.1).votes) == (0, 8)
    undecided = read(0.01, 0.02, -0.03)
    assert (undecided.label, undecided.votes, undecided.certified) == (None, target - 1, False)
    assert "not a single class" in read(1.0, -4.0, 0.0).withdrawn
    assert "not a single class" in read(0.5, 0.0, 0.0).withdrawn
    assert f"{n + 1} of {n} votes" in read(2.0, 0.0, 0.0).withdrawn
    assert "-3 of 12 votes" in read(0.0, -14.0, 0.0).withdrawn
    assert "overflowed" in read(math.nan, 0.0, 0.0).withdrawn
    assert all(not read(*bad).certified for bad in [(1e30, 0, 0), (math.inf, 0, 0), (1, 1, 1)])
    with pytest.raises(ProgramError, match="one number for each class"):
        hg.read_answer(artifact, np.zeros((2, 3)))


def test_radii_of_votes_are_those_of_cohen(artifact: hg.Artifact) -> None:
    known = artifact.public().certificate
    assert known is not None
    known = replace(known, n=100, target=80, alpha=0.001, zeta=0.01, deviation=0.5, radius=0.3)
    answer = hg.Answer(1, 99, True, known)
    share = stats.beta.ppf(0.001, 99, 2)
    assert answer.widest_radius == pytest.approx(0.5 * stats.norm.ppf(share - 0.01))
    assert hg.Answer(1, 100, True, known).widest_radius == pytest.approx(0.5 * stats.norm.ppf(0.001**0.01 - 0.01))
    assert hg.Answer(1, 70, False, known).widest_radius == 0.0
    assert replace(answer, certificate=replace(known, kind="l1")).widest_radius == pytest.approx(share - 0.01 - 0.5)


def test_artifacts_without_a_certificate_have_no_answers(network: hg.Program) -> None:
    plain = hg.compile(network, hg.Options(security_bits=None, log_ring=11))
    with pytest.raises(ProgramError, match="certifies nothing"):
        hg.read_answer(plain, np.zeros(3))


def test_noise_is_drawn_anew_for_each_request(artifact: hg.Artifact) -> None:
    client = hg.Client(artifact.public(), allow_insecure=True)
    with hg.Server(artifact, client.evaluation_keys(), allow_insecure=True) as server:
        first, second = (server.plain_inputs({}) for _ in range(2))
        assert set(artifact.drawn_inputs) == {"noise", "guess noise"}
        assert artifact.plain_inputs == ()
        for node in first:
            assert first[node].shape == (1, *artifact.drawn_inputs[node.attrs["name"]][1])
            assert not np.array_equal(first[node], second[node])
        with pytest.raises(ProgramError, match="plain inputs are"):
            server.plain_inputs({"noises": np.zeros(3)})


@pytest.mark.parametrize(("distribution", "cdf"), [("normal", stats.norm.cdf), ("uniform", stats.uniform(-1, 2).cdf)])
def test_secure_draws_have_their_distribution(distribution: str, cdf: object) -> None:
    values = secure_draw(distribution, (200, 500))
    assert values.shape == (200, 500)
    # A false alarm once in a million runs.
    assert stats.kstest(values.ravel(), cdf).pvalue > 1e-6
    assert abs(np.corrcoef(values[:, 0], values[:, 1])[0, 1]) < 0.4


def test_too_near_inputs_and_left_ranges_are_counted(
    network: hg.Program, certificate: hg.Certificate, blobs: Blobs
) -> None:
    exact = exact_network(network)
    held_out = blobs.inputs[1700:1760]

    def found(limits: Range) -> tuple[int, int]:
        made = rates(Sampler(exact, exact, certificate, np.random.default_rng(3)), limits, held_out)
        assert made.beta_range == pytest.approx(
            stats.beta.ppf(0.95, made.left + 1, 60 - made.left) if made.left < 60 else 1
        )
        return made.left, made.near

    assert found(Range(1e6, 1e-9)) == (0, 0)
    assert found(Range(1e-3, 1e-9)) == (60, 0)
    assert found(Range(1e6, 1e6)) == (0, 60)


def test_noise_behind_the_first_map_has_the_same_distribution(
    network: hg.Program, certificate: hg.Certificate, blobs: Blobs
) -> None:
    exact = exact_network(network)
    behind = Sampler(exact, exact, certificate, np.random.default_rng(4))
    through = Sampler(exact, exact, certificate, np.random.default_rng(5))
    assert behind._behind is not None
    through._behind, through.programs = None, (exact,)
    for x in blobs.inputs[1900:1903]:
        a, b = behind(x, 4000).exact, through(x, 4000).exact
        for column in range(3):
            assert stats.ks_2samp(a[:, column], b[:, column]).pvalue > 1e-6


def test_wrong_certificates_are_rarer_than_the_bound_says() -> None:
    """On a problem with known truth: votes fall with a probability just below the one that certifies.

    A linear classifier w x + b under normal noise votes for its class with probability Phi(margin / sigma): the smoothed
    classifier's true radius is the margin. At a margin a little below the certificate's radius each certificate is wrong.
    """
    certificate = hg.Certificate("l2", sigma=0.5, tau=0.76, zeta=0.0, n=128, n0=32, alpha=0.01)
    model = nn.Linear(1, 2)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0], [-1.0]]))
        model.bias.zero_()
    program = hg.trace(model, torch.zeros(1, 1), input_range=(-1.0, 1.0), name="line")
    smoothed = Smoothed(program, certificate, seed=7)
    runs = 10_000
    x = np.array([certificate.radius * 0.999])
    wrong = sum(smoothed(x, by_votes).certified for _ in range(runs))
    # A false alarm with probability 1e-6 where the rate is the whole of alpha.
    assert wrong <= stats.binom.isf(1e-6, runs, certificate.alpha)
    # The test is no stricter than it has to be: just at the threshold its rate is the p-value of the target.
    expected = stats.binom.sf(certificate.target - 1, certificate.n, certificate.threshold)
    assert wrong >= stats.binom.ppf(1e-6, runs, 0.9 * expected)


@pytest.mark.parametrize(("classes", "gap", "columns"), [(2, 1e-3, 64), (3, 1e-2, 16), (10, 5e-5, 8), (10, 5e-5, 256)])
def test_a_vote_between_two_classes_is_never_more_than_one(classes: int, gap: float, columns: int) -> None:
    """Inside the gap a vote is divided: no class gets more than one, and none gets less than nothing, but for rounding."""
    builder = Builder("votes", Stage.TENSOR)
    x = builder.input("x", shape=(classes, columns))
    vote = builder.op("argmax_rows", (x,), gap=gap, spread=1.0, count=256)
    program = Approximate().run(builder.finish([vote]))
    rng, error = np.random.default_rng(9), program.ranges[0].max_error
    for nearness in (0.0, 0.1, 0.5, 1.0, 3.0, 1 / gap):
        values = rng.uniform(0.0, 0.9 / nearness if nearness > 1e3 else 0.3, (classes, columns))
        values[0], values[1] = 0.5, 0.5 + gap * nearness * rng.uniform(-1.0, 1.0, columns)
        values[1] = np.clip(values[1], 0.0, 1.0)
        found = interpret(program, values)
        assert found.min() > -error
        assert found.max() < 1.0 + error
        # Beyond the gap it is whose it should be.
        clear = np.sort(values, axis=0)[-1] - np.sort(values, axis=0)[-2] >= gap
        wanted = values.argmax(axis=0)[clear]
        np.testing.assert_allclose(found[wanted, np.flatnonzero(clear)], 1.0, atol=error)


def test_the_traced_network_is_certified_where_that_is_asked_for() -> None:
    """Copies that the polynomials classify differently count against it: rough ones are refused, fine ones are not."""
    certificate = hg.Certificate("l2", sigma=0.1, tau=0.7, n=12, n0=4, alpha=0.05, zeta=0.02)
    blobs = make_blobs(900, seed=1)
    torch.manual_seed(0)
    model = train(relu(), blobs.inputs[:600], blobs.labels[:600], certificate, epochs=10, batch=64)
    program = hg.trace(model, torch.zeros(1, 8), input_range=(0.0, 1.0), calibration=blobs.inputs[:300])
    options = hg.Options(security_bits=None, log_ring=11, degree=2)
    with pytest.raises(ProgramError, match="classified differently by the polynomials"):
        hg.certify(program, certificate, held_out=blobs.inputs[600:700], of="network", options=options)
    with pytest.raises(ProgramError, match="nothing is certified of 'weights'"):
        hg.certify(program, certificate, of="weights")  # type: ignore[arg-type]
    finer = replace(options, degree=31)
    made = hg.certify(program, certificate, held_out=blobs.inputs[600:700], of="network", options=finer)
    known = made.public().certificate
    assert known is not None
    assert known.difference > 0


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "l3"},
        {"kind": "l2\x1b[2J"},
        {"distribution": "cauchy"},
        {"radius": math.nan},
        {"radius": -1.0},
        {"n": 0},
        {"n": 12.5},
        {"target": 13},
        {"tau": 1.5},
        {"xi": "small"},
        {"more": 1},
    ],
)
def test_a_strangers_certificate_is_checked(artifact: hg.Artifact, change: dict[str, object]) -> None:
    public = artifact.public()
    fields = public._fields()
    fields["certificate"] = {**fields["certificate"], **change}
    if any(isinstance(value, float) and math.isnan(value) for value in change.values()):
        with pytest.raises(ValueError, match="JSON"):
            pack(Container("public artifact", VERSION, fields))
        return
    with pytest.raises(WireError, match=r"certificate|control characters"):
        hg.PublicArtifact.from_bytes(pack(Container("public artifact", VERSION, fields)))


def relu() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3))


def deep() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 5), Square(5), nn.Linear(5, 5), Square(5), nn.Linear(5, 3))


@pytest.mark.parametrize(
    ("make", "classes", "certificate"),
    [
        (relu, 3, hg.Certificate("l2", sigma=0.1, tau=0.7, n=12, n0=4, alpha=0.05, zeta=0.02)),
        (deep, 3, hg.Certificate("l1", eta=0.2, tau=0.7, n=12, n0=4, alpha=0.05, zeta=0.02)),
        (lambda: perceptron(8, 4, 2), 2, hg.Certificate("fair", theta=[0.1] * 8, tau=0.75, n=20, n0=4, alpha=0.05)),
    ],
    ids=["relu", "deep", "fair"],
)
def test_other_networks_and_noises_answer_as_in_the_clear(
    make: Callable[[], nn.Module], classes: int, certificate: hg.Certificate
) -> None:
    blobs = make_blobs(900, classes=classes, seed=1)
    torch.manual_seed(0)
    model = train(make(), blobs.inputs[:600], blobs.labels[:600], certificate, epochs=10, batch=64)
    program = hg.trace(model, torch.zeros(1, 8), input_range=(0.0, 1.0), calibration=blobs.inputs[:300])
    options = hg.Options(security_bits=None, log_ring=11, degree=7)
    made = hg.certify(program, certificate, held_out=blobs.inputs[600:700], options=options)
    clear, rng = Smoothed(program, certificate), np.random.default_rng(2)
    client = hg.Client(made.public(), allow_insecure=True)
    decided = []
    with hg.Server(made, client.evaluation_keys(), allow_insecure=True) as server:
        for x in blobs.inputs[700:706]:
            noise = drawn(made, rng)
            if certificate.kind == "l1":
                noise = {name: rng.uniform(-1.0, 1.0, values.shape) for name, values in noise.items()}
            answer = client.answer(server.run(client.encrypt(x), plain=noise))
            expected = clear.with_noise(x, noise)
            assert answer.certified == expected.certified
            if answer.certified:
                assert answer.label == expected.label
            decided.append(answer.certified)
    assert any(decided)
