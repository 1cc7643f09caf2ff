"""Compositions to and from other libraries, and certificates that are checked."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from helpers import commands

from heliograph.dp.accounting import epsilon_at
from heliograph.dp.accounting.certificate import certificate, check
from heliograph.dp.accounting.exchange import dp_accounting_event, read_history, to_event, to_opacus
from heliograph.dp.batches import AllocatedGaussian, FixedSizeGaussian, TruncatedGaussian, WithReplacementGaussian
from heliograph.dp.composition import Composition
from heliograph.dp.concentrated import Zcdp
from heliograph.dp.mechanisms import (
    Approximate,
    DiscreteGaussian,
    DiscreteLaplace,
    Gaussian,
    Laplace,
    Mechanism,
    MixtureGaussian,
    RandomizedResponse,
    SampledGaussian,
    SampledLaplace,
)
from heliograph.errors import ProgramError, UnsupportedError, WireError

MECHANISMS: list[Mechanism] = [
    Gaussian(1.5),
    Laplace(0.25),
    SampledGaussian(0.01, 1.0),
    SampledLaplace(0.5, 0.5),
    DiscreteLaplace(0.5, 2),
    Approximate(0.1, 1e-6),
    TruncatedGaussian(0.01, 1.0, 765, 60_000),
    FixedSizeGaussian(600, 60_000, 1.0),
    WithReplacementGaussian(600, 60_000, 1.0),
    DiscreteGaussian(3.0),
    MixtureGaussian(1.5, (0.0, 1.0, 2.0), (0.9, 0.07, 0.03)),
    Zcdp(0.1, 0.01),
]


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda mechanism: mechanism.name)
def test_events_there_and_back(mechanism: Mechanism) -> None:
    composition = mechanism * 7 + Gaussian(30.0)
    event = json.loads(json.dumps(to_event(composition)))
    assert read_history(event) == composition
    assert event["class_name"] == "ComposedDpEvent" or mechanism == Gaussian(30.0)


def test_randomized_response_by_its_noise() -> None:
    (found, count), *_ = read_history(to_event(RandomizedResponse(0.7, 5))).items
    assert count == 1
    assert isinstance(found, RandomizedResponse)
    assert found.epsilon == pytest.approx(0.7, rel=1e-12)
    # By the definition: with probability p a uniform draw of k.
    p, k = 0.4, 4
    read = read_history({"class_name": "RandomizedResponseDpEvent", "noise_parameter": p, "num_buckets": k})
    import math

    assert read.items[0][0].arguments()["epsilon"] == pytest.approx(math.log((1 - p + p / k) / (p / k)))


def test_histories_there_and_back() -> None:
    composition = SampledGaussian(0.01, 1.0) * 1000 + Gaussian(5.0) * 3
    assert to_opacus(composition) == [(1.0, 0.01, 1000), (5.0, 1.0, 3)]
    assert read_history(to_opacus(composition)) == composition
    with pytest.raises(UnsupportedError, match="no laplace"):
        to_opacus(Laplace(1.0))
    with pytest.raises(UnsupportedError, match="no event"):
        to_event(AllocatedGaussian(10, 1.0))
    assert to_event(Composition()) == {"class_name": "NoOpDpEvent"}


def test_events_that_are_gaussians() -> None:
    """Trees, and several Gaussians on one sample, are one Gaussian of their precisions."""
    gaussian = {"class_name": "GaussianDpEvent", "noise_multiplier": 2.0}
    tree = {"class_name": "SingleEpochTreeAggregationDpEvent", "noise_multiplier": 4.0, "step_counts": [5, 16]}
    # The sixteenth step ends the path to the root: sums of 1, 2, 4, 8 and 16 steps.
    assert read_history(tree).items[0][0].arguments()["noise_multiplier"] == pytest.approx(4 / 5**0.5)
    together = {"class_name": "SelfComposedDpEvent", "event": gaussian, "count": 4}
    sampled = {"class_name": "PoissonSampledDpEvent", "sampling_probability": 0.1, "event": together}
    (found, count), *_ = read_history(sampled).items
    assert (count, found.arguments()) == (1, {"p": 0.1, "noise_multiplier": pytest.approx(1.0)})
    assert found.arguments()["noise_multiplier"] <= 1.0
    both = {
        "class_name": "ComposedDpEvent",
        "events": [gaussian, {"class_name": "LaplaceDpEvent", "noise_multiplier": 1}],
    }
    for wrong in (
        sampled | {"event": both},
        tree | {"step_counts": [0]},
        {"class_name": "DiscreteGaussianDpEvent", "sigma": 3.0, "sensitivity": 2.0},
        {"class_name": "RepeatAndSelectDpEvent", "event": gaussian, "mean": 2.0, "shape": 1.0},
    ):
        with pytest.raises(WireError):
            read_history(wrong)


def test_exchanged_and_mixed_records_against_dp_accounting() -> None:
    pytest.importorskip("dp_accounting")
    import dp_accounting
    from dp_accounting.pld import pld_privacy_accountant

    steps = SampledGaussian(0.01, 1.0) * 1000
    replace = pld_privacy_accountant.PLDAccountant(dp_accounting.NeighboringRelation.REPLACE_ONE)
    replace.compose(dp_accounting_event(steps))
    found = epsilon_at(steps, 1e-5, neighboring="replace")
    assert found.lower - 1e-3 <= replace.get_epsilon(1e-5) <= found.upper + 5e-3
    mixed = pld_privacy_accountant.PLDAccountant()
    mixture = MixtureGaussian(1.5, (0.0, 1.0, 2.0), (0.9, 0.07, 0.03)) * 50
    mixed.compose(dp_accounting_event(mixture))
    found = epsilon_at(mixture, 1e-5)
    assert found.lower - 1e-3 <= mixed.get_epsilon(1e-5) <= found.upper + 5e-3


def test_objects_of_dp_accounting() -> None:
    pytest.importorskip("dp_accounting")
    from dp_accounting.pld import pld_privacy_accountant

    composition = SampledGaussian(0.01, 1.0) * 1000 + Laplace(0.1) * 5
    event = dp_accounting_event(composition)
    assert read_history(event) == composition
    accountant = pld_privacy_accountant.PLDAccountant()
    accountant.compose(event)
    found = epsilon_at(composition, 1e-5)
    # Its estimate is from above, on a mesh of 1e-4.
    assert found.lower - 1e-3 <= accountant.get_epsilon(1e-5) <= found.upper + 5e-3
    cut = pld_privacy_accountant.PLDAccountant()
    truncated = TruncatedGaussian(0.01, 1.0, 765, 60_000)
    cut.compose(dp_accounting_event(truncated * 1000))
    assert cut.get_epsilon(1e-5) >= epsilon_at(truncated * 1000, 1e-5).lower - 1e-3


@pytest.mark.parametrize(
    "composition",
    [
        SampledGaussian(0.01, 1.0) * 1000,
        SampledGaussian(0.01, 1.0) * 100 + Laplace(0.1) * 5,
        Gaussian(2.0) * 3,
        Approximate(0.1, 1e-6) * 20,
        TruncatedGaussian(0.01, 1.0, 765, 60_000) * 1000,
        FixedSizeGaussian(600, 60_000, 2.0) * 10,
    ],
    ids=lambda composition: composition.items[0][0].name,
)
def test_certificates_hold_and_false_ones_do_not(composition: Composition) -> None:
    value = json.loads(json.dumps(certificate(composition, 1e-5)))
    found = check(value)
    assert found.holds, found.problems
    assert found.claims == 4
    assert value["pairs"]["above"]
    for name in ("add", "remove"):
        for end, factor in ((0, 1.03), (1, 0.97)):
            wrong: dict[str, Any] = copy.deepcopy(value)
            if wrong["directions"][name][end] == "inf":
                wrong["directions"][name] = [0.1, 0.2]
            else:
                wrong["directions"][name][end] *= factor
            verdict = check(wrong)
            assert not verdict.holds
            assert verdict.problems[0].startswith(name)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("event", {"class_name": "GaussianDpEvent", "noise_multiplier": 100.0}),
        ("event", None),
        ("pairs", {"above": [{"pair": "gaussian(noise_multiplier=100.0)", "count": 1}], "below": []}),
        ("definition", "Neighbours are equal."),
    ],
)
def test_what_a_certificate_says_besides_its_claims_is_checked(key: str, value: object) -> None:
    right = json.loads(json.dumps(certificate(Gaussian(2.0) * 3, 1e-5)))
    assert check(right).holds
    assert f"{key} is not that of the expression" in check(right | {key: value}).problems
    assert not check({name: each for name, each in right.items() if name != key}).holds


def test_certificates_name_the_relation_that_their_numbers_are_for() -> None:
    value = certificate(RandomizedResponse(0.5), 1e-5)
    assert value["neighboring_relation"] == "replace"
    assert check(value).holds
    assert not check(value | {"neighboring_relation": "add_remove"}).holds


def test_infinity_is_no_lower_bound_of_a_large_epsilon() -> None:
    # Delta at 1e5 is above 1e-5 here, and epsilon at 1e-5 is finite: about 5e5.
    value = certificate(Gaussian(1e-3), 1e-5)
    assert check(value).holds
    false = value | {"directions": {name: ["inf", "inf"] for name in ("add", "remove")}}
    assert not check(false).holds
    endless = certificate(Approximate(0.1, 1e-3), 1e-5)
    assert endless["directions"]["add"] == ["inf", "inf"]
    assert check(endless).holds


def test_certificates_of_other_relations() -> None:
    value = certificate(FixedSizeGaussian(600, 60_000, 2.0) * 10, 1e-5, neighboring="replace")
    assert check(value).holds
    assert value["pairs"]["above"] != value["pairs"]["below"]
    # A claim for replaced records is not one for records added.
    value["neighboring_relation"] = "add_remove"
    value["directions"]["add"] = value["directions"]["remove"]
    assert not check(value).holds


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"format": "other"}, "not a certificate"),
        ({"version": 9}, "version"),
        ({"delta": 2}, "needs an expression"),
        ({"expression": 3}, "needs an expression"),
        ({"neighboring_relation": "none"}, "not known"),
        ({"directions": {"add": [0, 1]}}, "both directions"),
        ({"directions": {"add": [0], "remove": [0, 1]}}, "lower, upper"),
        ({"directions": {"add": [0, "x"], "remove": [0, 1]}}, "not a number"),
        ({"expression": "gaussian(noise_multiplier=0)"}, "out of range"),
    ],
)
def test_what_is_no_certificate_is_refused(change: dict[str, Any], match: str) -> None:
    value = certificate(Gaussian(2.0), 1e-5) | change
    with pytest.raises((WireError, ProgramError), match=match):
        check(value)


def test_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "certificate.json"
    expression = "sampled_gaussian(p=0.01, noise_multiplier=1.0) * 100"
    code, _, err = commands.run(capsys, "dp", "epsilon", expression, "--delta", "1e-5", "--certificate", str(path))
    assert code == 0, err
    code, printed, _ = commands.run(capsys, "dp", "verify", str(path))
    assert code == 0
    assert "they stand" in printed
    value = json.loads(path.read_text())
    value["directions"]["remove"][1] *= 0.9
    path.write_text(json.dumps(value))
    code, printed, _ = commands.run(capsys, "dp", "verify", str(path), "--json")
    assert code == 1
    assert json.loads(printed)["problems"]
