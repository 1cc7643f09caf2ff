"""The options of the compiler.

An option is one field of `Options`. The class's docstring describes it; its `About` has the allowed values, the flags
of the command line, and whether it goes into the bill. Checks, flags with their help (cli/options.py), refusals, the
bill's entry and the options with which `debug` compiles again follow from these.
"""

from __future__ import annotations

import functools
import inspect
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_type_hints

from heliograph.artifact.costs import default_costs, named_costs
from heliograph.ckks.costs import CostTable
from heliograph.errors import Argument, ProgramError, said
from heliograph.functions import METHODS
from heliograph.records import Bounds, Named, fits, wanted

# The lower bound of positive numbers.
_TINY = math.ulp(0.0)
_MAX_DEGREE = 511
# `precision_bits` of outputs that are not an argmax's.
USUAL_BITS = 10.0
# The title of the section with the flags that show the compiler's steps.
INSIDE = "The compiler's steps"
_DEGREES_NEEDED = "it must be a mapping from layer names to whole numbers, or a list of whole numbers"


@dataclass(frozen=True, slots=True)
class Flag:
    """The flag of an option on the command line.

    name: the text after the dashes, if it is not the option's name.
    metavar: the placeholder after the flag, if it is neither the option's type nor its choices.
    several: whether the flag may be repeated.
    bare: whether the flag takes no argument; the option's value is then `means`.
    read: converts the argument to the option's value; for a repeatable flag, the list of all arguments.
    help: the flag's help, if it is not the first sentence of the option's entry in the docstring of `Options`.
    """

    name: str = ""
    metavar: str | None = None
    several: bool = False
    bare: bool = False
    means: object = None
    read: Callable[[Any], Any] | None = None
    help: str = ""


@dataclass(frozen=True, slots=True)
class About(Bounds):
    """The allowed values of an option beside its type, its flags, and its place in the bill.

    None is allowed if it is the default.

    check: the reason why a value cannot be used, empty for a usable value; replaces the check of type and bounds.
    flag, also: the flags on the command line; `also` is an alternative to the first flag.
    told: whether the option goes into the bill, and so into the artifact's fingerprint: "always", "no", or "unless
        default" for options that are newer than some artifacts. Options that decide about polynomials must be told.
    section: the title of the section of a command's help that begins with this option.
    """

    check: Callable[[Any], str] | None = None
    flag: Flag = Flag()
    also: Flag | None = None
    told: Literal["always", "unless default", "no"] = "no"
    section: str = ""


def _option(default: object, low: float | None = None, **more: Any) -> Any:
    """A field with this default; `dict` stands for an empty mapping."""
    metadata = {"bounds": About(low, **more)}
    return (
        field(default_factory=dict, metadata=metadata) if default is dict else field(default=default, metadata=metadata)
    )


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
    """The degrees by layer from texts such as act1=7."""
    degrees = {}
    for text in texts:
        layer, _, degree = text.rpartition("=")
        if not layer or not degree.isdecimal() or len(degree) > 6:
            raise ProgramError(f"--degree-of {text!r} is not LAYER=DEGREE", hint="for example --degree-of act1=7")
        degrees[layer] = int(degree)
    return degrees


def _read_degree_list(text: str) -> tuple[int, ...]:
    """The degrees from a text such as 7,15,7."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and len(part) <= 6 for part in parts):
        raise ProgramError(f"--degrees {text!r} is not a list of degrees", hint="for example --degrees 7,15,7")
    return tuple(map(int, parts))


def _refuses_errors(value: object) -> str:
    needed = "it must be the largest error of each ReLU, a positive number, by its layer's name"
    if not isinstance(value, Mapping) or not all(isinstance(layer, str) for layer in value):
        return needed
    numbers = (
        isinstance(e, (int, float)) and not isinstance(e, bool) and _TINY <= e < math.inf for e in value.values()
    )
    return "" if all(numbers) else needed


def _read_errors(texts: Sequence[str]) -> dict[str, float]:
    """The errors by layer from texts such as act1=0.001."""
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


def _refuses_folder(value: object) -> str:
    return "" if value is None or isinstance(value, (str, Path)) else "it must be the name of a folder"


def _read_batch(text: str) -> int | str:
    """The number, or the text itself for `_refuses_batch` to check."""
    return int(text) if text.isdecimal() else text


@dataclass(frozen=True, slots=True)
class Options(metaclass=Named):
    """Compiler options; every one has a default.

    degree: Polynomial degree of every activation (default: 15, or 31 or 63 where the samples need it). By default it is
        higher if the margin that the samples need or the error of the outputs requires it; a smooth function takes a lower
        one whose error encryption hides.
    degrees: Degrees of single layers by name, which override `degree`, or a list with one for each activation in program
        order.
    allocate: Choose a degree for each layer: 'plan' for the least predicted time in total, 'paper' as OLA does. With "plan"
        the whole plan, bootstraps included, is fastest; "paper" works with a separate cost for each layer. Degrees given
        for single layers are kept.
    accuracy_loss: With an allocation: the share of calibration samples whose class may change (default: 0.005).
    target_error: Instead of a degree: the largest approximation error of each activation on its range.
    errors: The largest errors of single ReLUs, by layer name. These become compositions of polynomials if that takes
        fewer levels than one polynomial (`allocate` does this where one polynomial is not enough).
    method: How to fit polynomials (default: gaussian with calibration samples, minimax without). Gaussian weights the fit
        with one normal density, or with one for each unit if the margin is chosen automatically.
    spread: Widen the distribution that polynomials are fitted to by this factor (default: 1). The gaussian method's density
        is this many times as wide as the samples showed (OLA's r). Above 1, the polynomial is better in the tails and worse
        in the middle.
    margin: Widen observed ranges on each side by this share of their width (default: chosen from the samples). By default
        it follows the tails of the samples at each layer and the depth, and a degree that is not given is chosen with it.
    correct: Correct each linear map behind polynomials by a factor and an offset for each unit (default: no). They are those
        with which its values, on the calibration samples, are nearest to the exact network's in least squares. Corrected
        maps are no more work, but with bootstraps a second plan is made for them, which may be another one.
    samples_apart: Calibration samples held out to estimate how often new inputs leave a range (default: at most 1024).
        They are every other sample: 1,024 bound the rate by 0.3 %, 4,096 by 0.07 %.
    precision_bits: Bits of precision that the outputs must keep under encryption (default: 10). The error of encryption is
        at most 2**-precision_bits of the largest output (of 1 if that is larger than 1). For the one-hot vector of an
        argmax, the default is two more than its `bits`: its polynomials' error is about twice as large.
    gap_error: Largest error of a difference that an argmax compares, as a share of its gap (default: 0.1). It is what
        encryption may add, on the samples that errors are simulated on. The polynomials resolve the gap less three times
        this share, so that the gap holds under encryption and on other samples.
    flood: Standard deviation of the noise that the server adds to its outputs (default: none). It is added to every slot,
        from the system's secure generator, and hides what decisions (argmax, comparisons) still reveal about the values
        that they compared.
    batch: Number of samples packed into each ciphertext (default: 1). A power of two of them are evaluated at once, side by
        side in the same ciphertexts. With as many as a ciphertext has slots, or "max", each element of a tensor is a
        separate ciphertext, and linear maps are sums of ciphertexts, without rotations and their keys, if the program allows
        it (otherwise "max" is as many as fit side by side). Inputs and outputs have a leading axis of samples, and the bill
        gives time and bytes per sample.
    objective: Choose the batch size: for the fastest answer, or for the least time per sample. "latency" or "throughput"
        plans one sample, several, and "max", instead of a given batch.
    key_bytes: Limit the size of all evaluation keys together, in bytes; a tight limit costs time (composed rotations).
    memory_bytes: Limit the server's predicted peak memory, in bytes.
    costs: Cost table to plan and predict with: a file written by `heliograph doctor --calibrate`, or built-in (default: the
        table of this machine, if there is one).
    bootstrap: Allow or forbid bootstrapping (default: bootstrap only if no ring is large enough without it).
    bootstrap_activations: Whether bootstraps compute the activations that follow them where that is faster (default: yes).
        They do so by trigonometric polynomials of half the degree, in two levels less.
    chains: Bootstrap in at most this many moduli chains (default: up to 3, where the time saved is worth the keys). They are
        the whole one and lower parts of it, each with its own keys.
    log_ring: Fix the ring dimension at 2 to this power (default: chosen).
    scale_bits: Fix the bits of the scale (default: chosen).
    security_bits: 128, or None for no security at all (for tests: the report says INSECURE).
    dump_ir: Write the program after each pass to this folder.
    """

    degree: int | None = _option(None, 1, high=_MAX_DEGREE, told="always", section="Polynomials")
    degrees: Mapping[str, int] | Sequence[int] = _option(
        dict,
        check=_refuses_degrees,
        flag=Flag(
            "degree-of", metavar="LAYER=D", several=True, read=_read_degrees, help="Degree of one layer. Repeatable."
        ),
        also=Flag(metavar="D,D,...", read=_read_degree_list, help="Degrees of all activations, in program order."),
        told="always",
    )
    # The next two options are not told; the degrees chosen by them are.
    allocate: str | None = _option(None, choices=("plan", "paper"))
    accuracy_loss: float = _option(0.005, 0, high=1)
    target_error: float | None = _option(None, _TINY, told="always")
    errors: Mapping[str, float] = _option(
        dict,
        check=_refuses_errors,
        flag=Flag(
            "error-of",
            metavar="LAYER=E",
            several=True,
            read=_read_errors,
            help="Largest error of one ReLU. Repeatable.",
        ),
        told="unless default",
    )
    method: str | None = _option(None, choices=tuple(METHODS), told="always")
    spread: float = _option(1.0, 0.1, high=100, told="always")
    margin: float | None = _option(None, 0, high=10, told="always")
    correct: bool = _option(False, told="unless default")
    samples_apart: int = _option(1024, 1, high=1 << 20, told="unless default")
    precision_bits: float | None = _option(None, 0, high=40, told="always", section="Precision of encryption")
    gap_error: float = _option(0.1, 0, high=0.3, flag=Flag(metavar="SHARE"), told="unless default")
    flood: float | None = _option(None, _TINY, flag=Flag(metavar="STD"))
    batch: int | str = _option(
        1, check=_refuses_batch, flag=Flag(metavar="N|max", read=_read_batch), section="Speed and size"
    )
    objective: str | None = _option(None, choices=("latency", "throughput"))
    key_bytes: int | None = _option(None, 1)
    memory_bytes: int | None = _option(None, 1)
    costs: CostTable = field(
        default_factory=default_costs,
        metadata={"bounds": About(flag=Flag(metavar="FILE|built-in", read=named_costs))},
    )
    bootstrap: bool | None = _option(None, section="Bootstrapping")
    bootstrap_activations: bool = _option(True, told="unless default")
    chains: int | None = _option(None, 1, high=8)
    log_ring: int | None = _option(None, 10, high=17, section="Parameters of the ring")
    scale_bits: int | None = _option(None, 20, high=59)
    security_bits: int | None = _option(
        128,
        choices=(128,),
        flag=Flag("insecure", bare=True, means=None, help="No security at all: for tests only."),
    )
    dump_ir: str | Path | None = field(
        default=None, metadata={"bounds": About(check=_refuses_folder, flag=Flag(metavar="DIR"), section=INSIDE)}
    )

    def __post_init__(self) -> None:
        hints = option_types()
        for name, about in ABOUT.items():
            value = getattr(self, name)
            if about.check is not None:
                why = about.check(value)
            else:
                why = "" if fits(hints[name], value, about) else f"it must be {wanted(hints[name], about)}"
            if why:
                raise self._refused(name, why)
        if self.degree is not None and self.target_error is not None:
            raise self._refused(
                "target_error",
                said("{degree} is given too, and one of them decides; {degrees} can name single layers beside it"),
            )
        if self.allocate is not None and (self.degree is not None or self.target_error is not None):
            raise self._refused("allocate", said("{degree} or {target_error} is given too, and one of them decides"))

    def _refused(self, name: str, why: str) -> ProgramError:
        given = Argument(name, repr(getattr(self, name)))
        return ProgramError(said(given, " cannot be used"), where=f"Options.{name}", why=why)

    def bits(self, usual: float = USUAL_BITS) -> float:
        """`precision_bits` if given, or else the usual bits."""
        return usual if self.precision_bits is None else self.precision_bits

    def told(self) -> dict[str, Any]:
        """The options in the bill, as JSON values."""
        found = {}
        for name, about in ABOUT.items():
            value = getattr(self, name)
            if about.told == "always" or (about.told == "unless default" and value != _DEFAULTS[name]):
                found[name] = dict(value) if isinstance(value, Mapping) else value
        return found

    @staticmethod
    def of_bill(told: Mapping[str, Any]) -> Options:
        """The options in a bill, which give the same polynomials again. Raises ProgramError for unknown ones."""
        unknown = sorted(str(name) for name in told if name not in ABOUT or ABOUT[name].told == "no")
        if unknown:
            raise ProgramError(
                f"the artifact was compiled with the option {unknown[0][:60]!r}, which is not known here",
                hint="use the version of Heliograph that compiled it",
            )
        return Options(**told)


@functools.cache
def option_types() -> Mapping[str, Any]:
    """The type of each option."""
    return get_type_hints(Options)


def texts() -> dict[str, str]:
    """Each option's entry in the docstring of `Options`, by name; empty if Python runs without docstrings."""
    entries = re.findall(r"^(\w+): (.*(?:\n {4}.*)*)", inspect.cleandoc(Options.__doc__ or ""), re.MULTILINE)
    return {name: re.sub(r"\s+", " ", text) for name, text in entries}


ABOUT: Mapping[str, About] = {entry.name: entry.metadata["bounds"] for entry in fields(Options)}
_DEFAULTS: Mapping[str, object] = {
    entry.name: {} if entry.default_factory is dict else entry.default for entry in fields(Options)
}
