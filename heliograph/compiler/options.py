"""What a user may ask of the compiler.

An option is one field of `Options`, with an `About` that says what it may be, what the command line calls it and whether the
bill tells it. Checks, flags (cli/options.py), the bill's entry and what `debug` compiles again follow from these.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from heliograph.artifact.costs import default_costs, named_costs
from heliograph.ckks.costs import CostTable
from heliograph.errors import ProgramError
from heliograph.functions import METHODS

# Bounds for values that must be positive and finite.
_TINY, _HUGE = math.ulp(0.0), sys.float_info.max
_MAX_DEGREE = 511
_DEGREES_NEEDED = "it must be a mapping from layer names to whole numbers, or a list of whole numbers"
_KINDS: Mapping[type, str] = {int: "it must be a whole number", float: "it must be a number", str: "it must be a text"}


@dataclass(frozen=True, slots=True)
class Flag:
    """How the command line asks for an option: --its-name, unless there is another `name`.

    What stands behind the flag is of the option's kind, one of its choices or, where it has neither, a text. `means` is the
    option's value where nothing stands behind the flag. `read` makes the option's value of what was given: of a text, or,
    where the flag may stand several times, of all texts.
    """

    help: str
    name: str = ""
    metavar: str | None = None
    several: bool = False
    bare: bool = False
    means: object = None
    read: Callable[[Any], Any] | None = None


@dataclass(frozen=True, slots=True)
class About:
    """What an option may be, and who else is to know of it. None is allowed where it is the default or a choice.

    kind: int, float (whole numbers too) or str; numbers lie between `low` and `high`, both included.
    choices: the values there are.
    check: says in words why a value cannot be used; an empty text where it can.
    why: the reason in the error for a value that is out of bounds, or not one of the choices.
    flag, also: the flags on the command line; `also` if there are two, only one of which may be given.
    told: whether the bill (and with it the artifact's fingerprint) has it: "always", or "unless default" for options that
        artifacts made before the option came were compiled without. What decides about polynomials has to be told.
    """

    why: str = ""
    kind: type | None = None
    low: float = -math.inf
    high: float = math.inf
    choices: tuple[object, ...] = ()
    check: Callable[[Any], str] | None = None
    flag: Flag | None = None
    also: Flag | None = None
    told: Literal["always", "unless default", "no"] = "no"

    def refuses(self, value: Any, default: object) -> str:
        """Why the value cannot be used, in words; an empty text where it can."""
        if self.check is not None:
            return self.check(value)
        if value is None and (default is None or None in self.choices):
            return ""
        if self.kind is not None:
            taken = (int, float) if self.kind is float else self.kind
            if isinstance(value, bool) or not isinstance(value, taken):
                return _KINDS[self.kind]
        if self.choices:
            # Where 1 is a choice, True does not count as 1.
            meant = not isinstance(value, bool) or any(isinstance(choice, bool) for choice in self.choices)
            return "" if meant and value in self.choices else self.why
        if self.kind in (int, float) and not self.low <= value <= self.high:
            return self.why
        return ""


def _option(default: object, about: About) -> Any:
    return field(default=default, metadata={"about": about})


def _refuses_degrees(value: object) -> str:
    if isinstance(value, Mapping):
        given = tuple(value.values())
    elif isinstance(value, Sequence) and not isinstance(value, str):
        given = tuple(value)
    else:
        return _DEGREES_NEEDED
    if any(isinstance(degree, bool) or not isinstance(degree, int) for degree in given):
        return _DEGREES_NEEDED
    if isinstance(value, Mapping) and not all(isinstance(layer, str) for layer in value):
        return _DEGREES_NEEDED
    return "" if all(1 <= degree <= _MAX_DEGREE for degree in given) else f"degrees lie between 1 and {_MAX_DEGREE}"


def _read_degrees(texts: Sequence[str]) -> dict[str, int]:
    """The degrees by layer of texts as act1=7."""
    degrees = {}
    for text in texts:
        layer, _, degree = text.rpartition("=")
        if not layer or not degree.isdecimal() or len(degree) > 6:
            raise ProgramError(f"--degree-of {text!r} is not LAYER=DEGREE", hint="for example --degree-of act1=7")
        degrees[layer] = int(degree)
    return degrees


def _read_degree_list(text: str) -> tuple[int, ...]:
    """The degrees of a text as 7,15,7."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and len(part) <= 6 for part in parts):
        raise ProgramError(f"--degrees {text!r} is not a list of degrees", hint="for example --degrees 7,15,7")
    return tuple(map(int, parts))


def _refuses_errors(value: object) -> str:
    needed = "it must be the largest error of each ReLU, a positive number, by its layer's name"
    if not isinstance(value, Mapping) or not all(isinstance(layer, str) for layer in value):
        return needed
    numbers = (isinstance(e, (int, float)) and not isinstance(e, bool) and _TINY <= e <= _HUGE for e in value.values())
    return "" if all(numbers) else needed


def _read_errors(texts: Sequence[str]) -> dict[str, float]:
    """The errors by layer of texts as act1=0.001."""
    errors = {}
    for text in texts:
        layer, _, error = text.rpartition("=")
        try:
            errors[layer] = float(error)
        except ValueError:
            layer = ""
        if not layer:
            raise ProgramError(f"--error-of {text!r} is not LAYER=ERROR", hint="for example --error-of act1=0.001")
    return errors


def _refuses_batch(value: object) -> str:
    whole = isinstance(value, int) and not isinstance(value, bool) and 0 < value <= 1 << 16 and value.bit_count() == 1
    return "" if value == "max" or whole else 'it must be a power of two, or "max"'


def _read_batch(text: str) -> int | str:
    """A number where it is one; what else it may be `_refuses_batch` says."""
    return int(text) if text.isdecimal() else text


@dataclass(frozen=True, slots=True)
class Options:
    """Compiler options; every one has a default.

    security_bits: 128, or None for no security at all (for tests: the report says INSECURE).
    degree, degrees: polynomial degree of all activations; or of single layers by name, which override it, or a list
        with one for each activation in program order. By default 15, or 31 or 63 if the margin that the samples need
        or the error of the outputs requires it; a smooth function takes a lower one whose error encryption hides.
    allocate: "plan" chooses the degree of each layer so that the whole plan, bootstraps included, is fastest; "paper"
        works like OLA, with a separate cost for each layer. Degrees given for single layers are kept.
    accuracy_loss: the share of calibration samples whose class an allocation may change.
    target_error: instead of a degree: the largest approximation error of each activation on its range.
    errors: the largest errors of single ReLUs, by layer name. These become compositions of polynomials if that takes
        fewer levels than one polynomial (`allocate` does this where one polynomial is not enough).
    method: "minimax", "gaussian" or "interpolation"; by default gaussian with calibration samples, else minimax.
        Gaussian weights the fit with one normal density, or with one for each unit if the margin is chosen
        automatically.
    spread: the gaussian method's density is this many times as wide as the samples showed (OLA's r). Above 1, the
        polynomial is better in the tails and worse in the middle.
    margin: how far an observed range is widened on each side, as a share of its width. By default it follows the tails
        of the samples at each layer and the depth, and a degree that is not given is chosen with it.
    samples_apart: at most this many calibration samples (every other one) are held out to bound how often unseen inputs
        leave an interval: 1,024 bound it by 0.3 %, 4,096 by 0.07 %.
    precision_bits: the error of encryption is at most 2**-precision_bits of the largest output (of 1 if that is larger
        than 1).
    gap_error: the largest error that encryption may add to a difference that an argmax compares, as a share of its gap,
        on the samples that errors are simulated on. Without it only the errors of outputs count, which show nothing of
        ties.
    key_bytes: bound on all evaluation keys together; a tight one costs time (composed rotations).
    memory_bytes: bound on the server's predicted peak memory.
    flood: standard deviation of noise that the server adds to every slot of its outputs, from the system's secure
        generator. It hides what decisions (argmax, comparisons) still reveal about the values that they compared.
    bootstrap: True or False; by default values are bootstrapped only if no ring is large enough without it.
    bootstrap_activations: bootstraps may compute the activations that follow them, by trigonometric polynomials of half
        the degree, in two levels less.
    chains: the largest number of moduli chains in which values are bootstrapped: the whole one and lower parts of it,
        each with its own keys. By default up to 3, if the time saved is worth the keys.
    batch: this many samples (a power of two) are evaluated at once, side by side in the same ciphertexts. With as many
        as a ciphertext has slots, or "max", each element of a tensor is a separate ciphertext, and linear maps are sums
        of ciphertexts, without rotations and their keys, if the program allows it (otherwise "max" is as many as fit
        side by side). Inputs and outputs have a leading axis of samples, and the bill gives time and bytes per sample.
    objective: instead of a batch: "latency" or "throughput" plans one sample, several, and "max", and takes the plan
        with the fastest answer, or with the least time per sample.
    log_ring, scale_bits, digits: fix a parameter that is otherwise chosen.
    costs: the cost table: the one measured on this machine (`heliograph doctor --calibrate`) or the built-in one.
    dump_ir: a folder to which the program is written after each pass.
    """

    security_bits: int | None = _option(
        128,
        About(
            "128 bits are planned for, or None for none",
            choices=(128, None),
            flag=Flag("No security at all: for tests only.", name="insecure", bare=True, means=None),
        ),
    )
    degree: int | None = _option(
        None,
        About(
            f"degrees lie between 1 and {_MAX_DEGREE}",
            kind=int,
            low=1,
            high=_MAX_DEGREE,
            flag=Flag("Polynomial degree of every activation (default: 15, or 31 or 63 where the samples need it)."),
            told="always",
        ),
    )
    degrees: Mapping[str, int] | Sequence[int] = field(
        default_factory=dict,
        metadata={
            "about": About(
                check=_refuses_degrees,
                flag=Flag(
                    "Degree of one layer. Repeatable.",
                    "degree-of",
                    metavar="LAYER=D",
                    several=True,
                    read=_read_degrees,
                ),
                also=Flag("Degrees of all activations, in program order.", metavar="D,D,...", read=_read_degree_list),
                told="always",
            )
        },
    )
    # The next two options are not told; the degrees chosen by them are.
    allocate: str | None = _option(
        None,
        About(
            'the modes are "plan" and "paper"',
            kind=str,
            choices=("plan", "paper"),
            flag=Flag(
                "Choose a degree for each layer: 'plan' for the least predicted time in total, 'paper' as OLA does."
            ),
        ),
    )
    accuracy_loss: float = _option(
        0.005,
        About(
            "a share between 0 and 1",
            kind=float,
            low=0,
            high=1,
            flag=Flag("With --allocate: the share of samples whose class may change (default: 0.005)."),
        ),
    )
    target_error: float | None = _option(
        None,
        About(
            "an error is a positive number",
            kind=float,
            low=_TINY,
            high=_HUGE,
            flag=Flag("Instead of a degree: the largest error of each polynomial on its range."),
            told="always",
        ),
    )
    errors: Mapping[str, float] = field(
        default_factory=dict,
        metadata={
            "about": About(
                check=_refuses_errors,
                flag=Flag(
                    "Largest error of one ReLU. Repeatable.",
                    "error-of",
                    metavar="LAYER=E",
                    several=True,
                    read=_read_errors,
                ),
                told="unless default",
            )
        },
    )
    method: str | None = _option(
        None,
        About(
            f"the methods are {', '.join(METHODS)}",
            kind=str,
            choices=tuple(METHODS),
            flag=Flag("How to fit polynomials (default: gaussian with calibration samples, minimax without)."),
            told="always",
        ),
    )
    spread: float = _option(
        1.0,
        About(
            "a factor between 0.1 and 100",
            kind=float,
            low=0.1,
            high=100,
            flag=Flag("Widen the distribution that polynomials are fitted to by this factor (default: 1)."),
            told="always",
        ),
    )
    margin: float | None = _option(
        None,
        About(
            "it must be a share of the width between 0 and 10",
            kind=float,
            low=0,
            high=10,
            flag=Flag("Widen observed ranges by this share of their width (default: chosen from the samples)."),
            told="always",
        ),
    )
    samples_apart: int = _option(
        1024,
        About(
            "a number of samples from 1 to 1048576",
            kind=int,
            low=1,
            high=1 << 20,
            flag=Flag(
                "Calibration samples held out to estimate how often new inputs leave a range (default: at most 1024)."
            ),
            told="unless default",
        ),
    )
    precision_bits: float = _option(
        10.0,
        About(
            "between 0 and 40",
            kind=float,
            low=0,
            high=40,
            flag=Flag("Bits of precision that the outputs must keep under encryption (default: 10)."),
            told="always",
        ),
    )
    gap_error: float | None = _option(
        None,
        About(
            "a share of a gap, above 0 and at most 1",
            kind=float,
            low=_TINY,
            high=1.0,
            flag=Flag("Largest error of a difference that an argmax compares, as a share of its gap.", metavar="SHARE"),
            told="unless default",
        ),
    )
    key_bytes: int | None = _option(
        None,
        About(
            "a number of bytes above 0",
            kind=int,
            low=1,
            flag=Flag("Limit the size of the evaluation keys, in bytes; a tight limit costs time."),
        ),
    )
    memory_bytes: int | None = _option(
        None,
        About(
            "a number of bytes above 0",
            kind=int,
            low=1,
            flag=Flag("Limit the server's predicted memory, in bytes."),
        ),
    )
    flood: float | None = _option(
        None,
        About(
            "a standard deviation is a positive number",
            kind=float,
            low=_TINY,
            high=_HUGE,
            flag=Flag(
                "Standard deviation of the noise that the server adds to its outputs (default: none).", metavar="STD"
            ),
        ),
    )
    chains: int | None = _option(
        None,
        About(
            "a number of chains from 1 to 8",
            kind=int,
            low=1,
            high=8,
            flag=Flag(
                "Bootstrap in at most this many moduli chains (default: up to 3, where the time saved is worth the keys)."
            ),
        ),
    )
    batch: int | str = _option(
        1,
        About(
            check=_refuses_batch,
            flag=Flag("Number of samples packed into each ciphertext (default: 1).", metavar="N|max", read=_read_batch),
        ),
    )
    objective: str | None = _option(
        None,
        About(
            '"latency", "throughput" or None',
            choices=("latency", "throughput", None),
            flag=Flag("Choose the batch size: for the fastest answer, or for the least time per sample."),
        ),
    )
    bootstrap: bool | None = _option(
        None,
        About(
            "it must be True, False or None",
            choices=(True, False, None),
            flag=Flag("Allow or forbid bootstrapping (default: bootstrap only if no ring is large enough without it)."),
        ),
    )
    bootstrap_activations: bool = _option(
        True,
        About(
            "it must be True or False",
            choices=(True, False),
            flag=Flag(
                "Whether bootstraps compute the activations that follow them where that is faster (default: yes)."
            ),
            told="unless default",
        ),
    )
    log_ring: int | None = _option(
        None,
        About(
            "rings have dimension 2^10 to 2^17",
            kind=int,
            low=10,
            high=17,
            flag=Flag("Fix the ring dimension at 2 to this power (default: chosen)."),
        ),
    )
    scale_bits: int | None = _option(
        None,
        About(
            "scales have 20 to 59 bits",
            kind=int,
            low=20,
            high=59,
            flag=Flag("Fix the bits of the scale (default: chosen)."),
        ),
    )
    digits: int | None = _option(
        None,
        About(
            "at least one digit",
            kind=int,
            low=1,
            flag=Flag("Fix the number of key-switching digits (default: chosen)."),
        ),
    )
    costs: CostTable = field(
        default_factory=default_costs,
        metadata={
            "about": About(
                flag=Flag(
                    "Cost table to plan and predict with: a file written by `heliograph doctor --calibrate`, or built-in "
                    "(default: the table of this machine, if there is one).",
                    metavar="FILE|built-in",
                    read=named_costs,
                )
            )
        },
    )
    dump_ir: str | Path | None = field(
        default=None,
        metadata={"about": About(flag=Flag("Write the program after each pass to this folder.", metavar="DIR"))},
    )

    def __post_init__(self) -> None:
        for name, about in ABOUT.items():
            why = about.refuses(getattr(self, name), _DEFAULTS.get(name))
            if why:
                raise self._refused(name, why)
        if self.degree is not None and self.target_error is not None:
            raise self._refused(
                "target_error", "degree is given too, and one of them decides; degrees can name single layers beside it"
            )
        if self.allocate is not None and (self.degree is not None or self.target_error is not None):
            raise self._refused("allocate", "degree or target_error is given too, and one of them decides")

    def _refused(self, name: str, why: str) -> ProgramError:
        return ProgramError(f"{name}={getattr(self, name)!r} cannot be used", where=f"Options.{name}", why=why)

    def told(self) -> dict[str, Any]:
        """What the bill says of the options, as JSON values."""
        found = {}
        for name, about in ABOUT.items():
            value = getattr(self, name)
            if about.told == "always" or (about.told == "unless default" and value != _DEFAULTS.get(name)):
                found[name] = dict(value) if isinstance(value, Mapping) else value
        return found

    @staticmethod
    def of_bill(told: Mapping[str, Any]) -> Options:
        """The options that a bill tells of: with them the same polynomials come out. A ProgramError for others."""
        unknown = sorted(str(name) for name in told if name not in ABOUT or ABOUT[name].told == "no")
        if unknown:
            raise ProgramError(
                f"the artifact was compiled with the option {unknown[0][:60]!r}, which is not known here",
                hint="use the version of Heliograph that compiled it",
            )
        return Options(**told)


ABOUT: Mapping[str, About] = {entry.name: entry.metadata["about"] for entry in fields(Options)}
_DEFAULTS: Mapping[str, object] = {
    entry.name: {} if entry.default_factory is dict else entry.default for entry in fields(Options)
}
