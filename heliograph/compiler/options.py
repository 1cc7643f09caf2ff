"""What a user may ask of the compiler."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from heliograph.approx.fit import METHODS
from heliograph.artifact.costs import default_costs
from heliograph.ckks.costs import CostTable
from heliograph.errors import ProgramError


@dataclass(frozen=True, slots=True)
class Options:
    """Compiler options; every default can be left alone.

    security_bits: 128, or None for no security at all (tests: the report says INSECURE).
    degree, degrees: polynomial degree of all activations, or of single layers by name (they win), or a list with one for
        each activation in program order. By default 15, or 31 or 63 where the margin that samples ask for takes it.
    target_error: instead of a degree: the largest approximation error of each activation on its range.
    method: "minimax", "gaussian" or "interpolation"; by default gaussian with calibration samples, else minimax. Gaussian
        weighs with one normal, and with one for each unit where the margin is chosen.
    spread: method gaussian weighs with a normal density this many times as wide as what the samples showed (OLA's r): above
        1 the polynomial is better in the tails and worse in the middle.
    margin: by how much an observed range is widened on each side, as a share of its width. By default it follows the tails
        that the samples show at each layer and the depth, and a degree that is not given is chosen with it.
    precision_bits: the encryption's own error is at most 2**-precision_bits of the largest output (at most of 1).
    key_bytes: bound on all evaluation keys together; a tight one costs time (composed rotations).
    memory_bytes: bound on the server's predicted peak memory.
    flood: standard deviation of noise that the server adds to every slot of its outputs, from the system's secure generator;
        it hides what decisions (argmax, comparisons) leave of the values they were made on.
    bootstrap: True or False; by default values are bootstrapped only where no ring carries the program without.
    bootstrap_iterations: 1, or 2 for bootstraps that are repeated on what the first left over: several bits finer, for
        twice the time and a level; by default 2 where 1 is too coarse for precision_bits.
    batch: so many samples (a power of two) are evaluated at once, side by side in the same ciphertexts, or "max" for as
        many as fit; inputs and outputs then have a leading axis of samples, and the bill says the time of each.
    log_ring, scale_bits, digits: fix a parameter instead of having it chosen.
    costs: the prices of primitives: those measured on this machine (`heliograph doctor --calibrate`) or the built-in ones.
    dump_ir: a folder that gets the program after each pass.
    """

    security_bits: int | None = 128
    degree: int | None = None
    degrees: Mapping[str, int] | Sequence[int] = field(default_factory=dict)
    target_error: float | None = None
    method: str | None = None
    spread: float = 1.0
    margin: float | None = None
    precision_bits: float = 10.0
    key_bytes: int | None = None
    memory_bytes: int | None = None
    flood: float | None = None
    batch: int | str = 1
    bootstrap: bool | None = None
    bootstrap_iterations: int | None = None
    log_ring: int | None = None
    scale_bits: int | None = None
    digits: int | None = None
    costs: CostTable = field(default_factory=default_costs)
    dump_ir: str | Path | None = None

    def __post_init__(self) -> None:
        def refuse(name: str, why: str) -> None:
            raise ProgramError(f"{name}={getattr(self, name)!r} cannot be used", where=f"Options.{name}", why=why)

        kinds: tuple[tuple[str, type | tuple[type, ...]], ...] = (
            ("degree", int),
            ("target_error", (int, float)),
            ("method", str),
            ("spread", (int, float)),
            ("margin", (int, float)),
            ("precision_bits", (int, float)),
            ("key_bytes", int),
            ("memory_bytes", int),
            ("flood", (int, float)),
            ("log_ring", int),
            ("scale_bits", int),
            ("digits", int),
        )
        for name, kind in kinds:
            value = getattr(self, name)
            required = name in ("spread", "precision_bits")
            if (value is None and required) or (
                value is not None and (isinstance(value, bool) or not isinstance(value, kind))
            ):
                refuse(name, "a whole number" if kind is int else "a text" if kind is str else "a number")
        named = isinstance(self.degrees, Mapping)
        listed = isinstance(self.degrees, Sequence) and not isinstance(self.degrees, str)
        given = self.given_degrees if named or listed else ()
        if not (named or listed) or any(isinstance(degree, bool) or not isinstance(degree, int) for degree in given):
            refuse("degrees", "a mapping from layer names to whole numbers, or a list of whole numbers")
        if isinstance(self.degrees, Mapping) and not all(isinstance(layer, str) for layer in self.degrees):
            refuse("degrees", "a mapping from layer names to whole numbers, or a list of whole numbers")
        if self.degree is not None and self.target_error is not None:
            refuse(
                "target_error", "degree is given too, and one of them decides; degrees can name single layers beside it"
            )
        if self.bootstrap not in (None, True, False):
            refuse("bootstrap", "True, False or None")
        if self.bootstrap_iterations not in (None, 1, 2) or isinstance(self.bootstrap_iterations, bool):
            refuse("bootstrap_iterations", "1, 2 or None")
        if self.security_bits not in (128, None):
            refuse("security_bits", "128 bits are planned for, or None for none")
        if self.degree is not None and not 1 <= self.degree <= 511:
            refuse("degree", "degrees lie between 1 and 511")
        if any(not 1 <= degree <= 511 for degree in given):
            refuse("degrees", "degrees lie between 1 and 511")
        if self.target_error is not None and not (self.target_error > 0 and math.isfinite(self.target_error)):
            refuse("target_error", "an error is a positive number")
        if self.method is not None and self.method not in METHODS:
            refuse("method", f"the methods are {', '.join(METHODS)}")
        if not 0.1 <= self.spread <= 100:
            refuse("spread", "a factor between 0.1 and 100")
        if self.margin is not None and not 0 <= self.margin <= 10:
            refuse("margin", "a share of the width between 0 and 10")
        if not 0 <= self.precision_bits <= 40:
            refuse("precision_bits", "between 0 and 40")
        if self.key_bytes is not None and self.key_bytes <= 0:
            refuse("key_bytes", "a number of bytes above 0")
        if self.memory_bytes is not None and self.memory_bytes <= 0:
            refuse("memory_bytes", "a number of bytes above 0")
        if self.flood is not None and not (self.flood > 0 and math.isfinite(self.flood)):
            refuse("flood", "a standard deviation is a positive number")
        whole = isinstance(self.batch, int) and not isinstance(self.batch, bool)
        if not (self.batch == "max" or (whole and 0 < int(self.batch) <= 1 << 16 and int(self.batch).bit_count() == 1)):
            refuse("batch", 'a power of two, or "max"')
        if self.log_ring is not None and not 10 <= self.log_ring <= 17:
            refuse("log_ring", "rings have dimension 2^10 to 2^17")
        if self.scale_bits is not None and not 20 <= self.scale_bits <= 59:
            refuse("scale_bits", "scales have 20 to 59 bits")
        if self.digits is not None and self.digits < 1:
            refuse("digits", "at least one digit")

    @property
    def given_degrees(self) -> tuple[int, ...]:
        """The numbers in `degrees`."""
        return tuple(self.degrees.values() if isinstance(self.degrees, Mapping) else self.degrees)
