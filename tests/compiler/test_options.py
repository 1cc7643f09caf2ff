"""An option in one place: checks, flags, the bill's entry and what debug compiles again follow from its field."""

from __future__ import annotations

import json
import pickle
from dataclasses import fields, replace
from typing import Any

import click
import pytest
from click.testing import CliRunner

import heliograph as hg
from heliograph.ckks.costs import BUILT_IN
from heliograph.cli.options import chosen_options, compiler_options
from heliograph.compiler.options import ABOUT, Options, texts
from heliograph.errors import ProgramError

# What stands on the command line, and what comes out, for every option that has a flag.
FLAGS: dict[str, tuple[str, object]] = {
    "security_bits": ("--insecure", None),
    "degree": ("--degree 7", 7),
    "degrees": ("--degree-of a=3 --degree-of b.c=7", {"a": 3, "b.c": 7}),
    "target_error": ("--target-error 0.01", 0.01),
    "method": ("--method interpolation", "interpolation"),
    "spread": ("--spread 2", 2.0),
    "margin": ("--margin 0", 0.0),
    "correct": ("--correct", True),
    "samples_apart": ("--samples-apart 16", 16),
    "precision_bits": ("--precision-bits 12.5", 12.5),
    "gap_error": ("--gap-error 0.2", 0.2),
    "key_bytes": ("--key-bytes 1000", 1000),
    "memory_bytes": ("--memory-bytes 2000", 2000),
    "flood": ("--flood 1e-6", 1e-6),
    "batch": ("--batch 4", 4),
    "objective": ("--objective throughput", "throughput"),
    "chains": ("--chains 1", 1),
    "errors": ("--error-of act1=0.001", {"act1": 0.001}),
    "allocate": ("--allocate plan", "plan"),
    "accuracy_loss": ("--accuracy-loss 0.01", 0.01),
    "bootstrap": ("--no-bootstrap", False),
    "bootstrap_activations": ("--no-bootstrap-activations", False),
    "log_ring": ("--log-ring 11", 11),
    "scale_bits": ("--scale-bits 40", 40),
    "costs": ("--costs built-in", BUILT_IN),
    "dump_ir": ("--dump-ir there", "there"),
}


def given(words: str) -> Options:
    found: list[Options] = []

    @click.command()
    @compiler_options
    def command(**flags: Any) -> None:
        found.append(chosen_options(flags))

    CliRunner().invoke(command, words.split(), catch_exceptions=False, standalone_mode=False)
    return found[0]


def test_every_option_says_what_it_is() -> None:
    for entry in fields(Options):
        assert entry.metadata["bounds"] is ABOUT[entry.name]
    assert list(texts()) == [entry.name for entry in fields(Options)]


def test_the_help_of_a_flag_is_the_first_sentence_of_its_option() -> None:
    @click.command()
    @compiler_options
    def command(**flags: Any) -> None: ...

    helps = {option.name: option.help for option in command.params if isinstance(option, click.Option)}
    assert helps["precision_bits"] == "Bits of precision that the outputs must keep under encryption (default: 10)."
    assert helps["degrees"] == "Degree of one layer. Repeatable."
    assert all(str(text).endswith(".") and len(str(text)) > 20 for text in helps.values())


def test_every_flag_has_a_case() -> None:
    assert set(FLAGS) == set(ABOUT)


def test_an_option_may_have_a_second_flag() -> None:
    assert given("--degrees 7,15,7") == Options(degrees=(7, 15, 7))
    assert [name for name, about in ABOUT.items() if about.also is not None] == ["degrees"]
    with pytest.raises(ProgramError, match="--degree-of and --degrees are both given"):
        given("--degrees 7 --degree-of a=3")


def test_without_flags_the_options_are_the_defaults() -> None:
    assert given("") == Options()


@pytest.mark.parametrize("name", FLAGS)
def test_a_flag_sets_its_option_and_no_other(name: str) -> None:
    words, value = FLAGS[name]
    options = given(words)
    assert getattr(options, name) == value
    assert type(getattr(options, name)) is type(value)
    assert options == Options(**{name: value})


def test_other_spellings_of_flags() -> None:
    assert given("--bootstrap").bootstrap is True
    assert given("--batch max").batch == "max"
    with pytest.raises(ProgramError, match=r"batch='several' cannot be used"):
        given("--batch several")
    with pytest.raises(ProgramError, match="--degree-of 'act' is not LAYER=DEGREE"):
        given("--degree-of act")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"degree": "7"}, "it must be a whole number from 1 to 511"),
        ({"degree": 512}, "it must be a whole number from 1 to 511"),
        ({"degrees": [3, 0]}, "degrees lie between 1 and 511"),
        ({"degrees": "37"}, "it must be a mapping from layer names to whole numbers, or a list of whole numbers"),
        ({"spread": None}, "it must be a number from 0.1 to 100"),
        ({"target_error": float("inf")}, "it must be a positive number"),
        ({"target_error": 10**400}, "it must be a positive number"),
        ({"method": 3}, 'it must be "minimax", "gaussian", "interpolation" or None'),
        ({"method": "remez"}, 'it must be "minimax", "gaussian", "interpolation" or None'),
        ({"margin": float("nan")}, "it must be a number from 0 to 10"),
        ({"flood": 0}, "it must be a positive number"),
        ({"gap_error": 2}, "it must be a number from 0 to 0.3"),
        ({"key_bytes": 0}, "it must be a whole number of at least 1"),
        ({"batch": True}, 'it must be a power of two, or "max"'),
        ({"bootstrap": "yes"}, "it must be True, False or None"),
        ({"security_bits": 192}, "it must be 128 or None"),
        (
            {"degree": 3, "target_error": 0.1},
            "degree is given too, and one of them decides; degrees can name single layers beside it",
        ),
    ],
)
def test_the_words_of_a_refusal(options: dict[str, Any], why: str) -> None:
    with pytest.raises(ProgramError) as caught:
        Options(**options)
    *_, name = options
    assert (caught.value.where, caught.value.why) == (f"Options.{name}", why)
    assert caught.value.what == f"{name}={options[name]!r} cannot be used"


# ------------------------------------------------------------------------------------------ the bill


def test_the_bill_tells_what_it_always_told() -> None:
    """A name more here is another fingerprint for every program: a new option is told where it is not the default."""
    always = [name for name, about in ABOUT.items() if about.told == "always"]
    assert always == ["degree", "degrees", "target_error", "method", "spread", "margin", "precision_bits"]
    assert list(Options().told()) == always


def test_what_the_bill_tells_gives_the_options_again() -> None:
    options = Options(degrees={"act": 7}, degree=3, method="minimax", spread=2.0, margin=0.3, precision_bits=12)
    assert Options.of_bill(json.loads(json.dumps(options.told()))) == options
    assert Options.of_bill({}) == Options()


@pytest.mark.parametrize("told", [{"degree": "7"}, {"margin": -1}, {"wings": 2}, {"costs": None}, {"dump_ir": "/"}])
def test_what_a_stranger_tells_is_checked(told: dict[str, Any]) -> None:
    with pytest.raises(ProgramError):
        Options.of_bill(told)


def test_a_misspelt_option_names_the_nearest() -> None:
    with pytest.raises(ProgramError, match=r"there is no option 'degre'.*(?s:.)*did you mean degree"):
        Options(degre=7)  # type: ignore[call-arg]
    with pytest.raises(ProgramError, match="there is no option 'xyzzy'"):
        Options(xyzzy=7)  # type: ignore[call-arg]
    with pytest.raises(ProgramError, match=r"Training: there is no option 'prise'(?s:.)*did you mean price"):
        hg.Training(prise=1)
    assert replace(Options(), degree=3).degree == 3
    assert pickle.loads(pickle.dumps(Options(degree=4))) == Options(degree=4)
