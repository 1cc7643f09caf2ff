"""The compiled program on numpy: values with the error that CKKS would add, levels, scales, and every refusal.

It refuses what OpenFHE would refuse or answer with nonsense: a missing level, a missing rotation key, unequal scales, a
value too large for its modulus, a wrong number of parts.
"""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from heliograph.ckks import noise
from heliograph.ckks.chains import Chain, chain_at
from heliograph.errors import ProgramError, RangeError
from heliograph.execution.protocol import Call
from heliograph.ir import Array, Node, Program
from heliograph.ir.bootstraps import paired_slots
from heliograph.ir.diagonals import DiagonalMap
from heliograph.ir.slot_ops import SCALE_TOLERANCE, transform_diagonals
from heliograph.ir.transforms import BabySteps, share_babies, transform_terms


@dataclass(frozen=True, slots=True)
class SimulatedCiphertext:
    """Slots as decryption would give them, with the bookkeeping of a ciphertext."""

    slots: Array
    level: int
    log_scale: float
    parts: int = 2


class Simulator:
    """Evaluates nodes of one executable program on `SimulatedCiphertext`s.

    `noisy=False` leaves the error out: the result is then the exact meaning of the compiled program.
    """

    def __init__(self, program: Program, seed: int = 0, noisy: bool = True) -> None:
        self.program = program
        self.ring = program.ring
        self.noisy = noisy
        self.calls: Counter[Call] = Counter()
        self._random = np.random.default_rng(seed)
        self._bias = noise.switch_bias(self.ring, self._random) if noisy else np.zeros(self.ring.slots)
        self._chains = program.planned.chains
        self._keys = [frozenset(chain.rotation_keys) for chain in self._chains]
        rotations = [node for node in program.nodes if node.op == "rotate"]
        self._rotations = Counter(node.inputs[0] for node in rotations)
        self._first_rotation = {node.inputs[0]: node for node in reversed(rotations)}
        self._paired = paired_slots(program)
        self._paths = program.planned.rotation_paths
        # Which transform makes which rotations; worked out when the first is met, by any of the runs.
        self._babies: dict[tuple[Node, int], BabySteps] = {}
        log_primes = self.ring.log_primes
        self._log_q = [sum(log_primes[: level + 1]) for level in range(len(log_primes))]

    # ------------------------------------------------------------------------------------------ client's part

    def encrypt(self, vector: Array, level: int, log_scale: float) -> SimulatedCiphertext:
        """As encryption under the secret key."""
        std = math.hypot(noise.encryption_std(self.ring), noise.encoding_std(self.ring))
        return self._made(np.asarray(vector, dtype=np.float64), level, log_scale, 2, std, "encrypt")

    def encrypt_inputs(self, vectors: Mapping[Node, Array]) -> dict[Node, Any]:
        """What `execute` takes, from what `interpret.pack_inputs` gave: plain inputs stay as they are."""
        return {
            node: self.encrypt(vector[0], node.attrs["level"], node.attrs["log_scale"]) if node.type.secret else vector
            for node, vector in vectors.items()
        }

    def decrypt(self, ciphertext: SimulatedCiphertext) -> Array:
        """As OpenFHE decrypts, its own noise included; a RangeError where it would give up."""
        slots = np.real(ciphertext.slots)
        if self.noisy:
            imaginary = float(np.sqrt(np.mean(np.imag(ciphertext.slots) ** 2))) * 2.0**ciphertext.log_scale
            if noise.decryption_fails(self.ring, ciphertext.log_scale, imaginary):
                raise RangeError(
                    "the result could not be decrypted: its error is larger than its message",
                    hint="compile with a larger scale_bits or precision_bits",
                )
            std = noise.decryption_std(self.ring, imaginary) * 2.0**-ciphertext.log_scale
            slots = slots + self._random.normal(size=slots.shape) * std
        return np.asarray(slots)

    # ------------------------------------------------------------------------------------------ server's part

    def begin(self) -> Simulator:
        """A run with counts of its own; its errors go on in the same random sequence."""
        run = copy.copy(self)
        run.calls = Counter()
        return run

    def close(self) -> None:
        """Nothing to give back."""

    def describe(self, value: SimulatedCiphertext) -> tuple[int, int]:
        return value.level, value.parts

    def _made(
        self, slots: Array, level: int, log_scale: float, parts: int, std: float, what: object
    ) -> SimulatedCiphertext:
        """A ciphertext with fresh error added; refused where its values do not fit the modulus."""
        if self.noisy and std:
            slots = slots + self._gaussian(slots.shape) * (std * 2.0**-log_scale)
        size = float(np.abs(slots).max(initial=0.0))
        if not math.isfinite(size):
            raise RangeError(f"{what} gives NaN or infinity")
        # Half the modulus for the sign; the largest coefficient of a slot vector is at most its largest slot.
        if size > 0 and math.log2(size) + log_scale > self._log_q[level] - 1:
            raise RangeError(
                f"{what} gives a value of size {size:.3g}, too large for level {level}",
                why=f"scale 2^{log_scale:.1f} and modulus 2^{self._log_q[level]:.1f} leave room for "
                f"{2.0 ** (self._log_q[level] - 1 - log_scale):.3g}",
                hint="give calibration samples that reach the true range, or a larger first modulus",
            )
        return SimulatedCiphertext(slots, level, log_scale, parts)

    def evaluate(self, node: Node, operands: Sequence[SimulatedCiphertext]) -> SimulatedCiphertext:
        try:
            return self._evaluate(node, operands)
        except RangeError as error:
            raise RangeError(error.what, where=node.loc, why=error.why, hint=error.hint) from None

    def _evaluate(self, node: Node, operands: Sequence[SimulatedCiphertext]) -> SimulatedCiphertext:
        x, a, op = operands[0], node.attrs, node.op
        array = self.program.array
        if op in ("linear_transform", "rotate", "mul_plain", "mul_ct", "lincomb"):
            for operand in operands:
                self._needs(operand.parts == 2, node, "a ciphertext of two parts")
        if op in ("add_ct", "sub_ct"):
            y = operands[1]
            self._needs(x.level == y.level, node, "operands at one level")
            self._needs(abs(x.log_scale - y.log_scale) <= SCALE_TOLERANCE, node, "operands of one scale")
            self._count("add", x.level, max(x.parts, y.parts))
            slots = x.slots + y.slots if op == "add_ct" else x.slots - y.slots
            return self._made(slots, x.level, x.log_scale, max(x.parts, y.parts), 0.0, op)
        if op == "mul_ct":
            y = operands[1]
            self._needs(x.level == y.level, node, "operands at one level")
            self._count("mul", x.level, 2)
            with np.errstate(over="ignore", invalid="ignore"):
                product = x.slots * y.slots
            return self._made(product, x.level, x.log_scale + y.log_scale, 3, 0.0, op)
        if op == "lincomb":
            return self._combination(node, operands)
        if op == "linear_transform":
            return self._transform(node, operands)
        if op == "rotate":
            self._count_rotation(node, x.level)
            return self._rotate(x, a["amount"], node)
        if op == "mul_plain":
            self._count("mul_plain", x.level, 2)
            plain = self._plain(np.resize(array(a["value"]), x.slots.shape), a["plain_log_scale"])
            return self._made(x.slots * plain, x.level, x.log_scale + a["plain_log_scale"], 2, 0.0, op)
        if op == "add_plain":
            self._count("add_plain", x.level, x.parts)
            plain = self._plain(np.resize(array(a["value"]), x.slots.shape), x.log_scale)
            return self._made(x.slots + plain, x.level, x.log_scale, x.parts, 0.0, op)
        if op == "mul_pt":
            self._count("mul_pt", x.level, 2)
            plain = self._plain(np.asarray(operands[1])[0], a["plain_log_scale"])
            return self._made(x.slots * plain, x.level, x.log_scale + a["plain_log_scale"], 2, 0.0, op)
        if op == "add_pt":
            self._count("add_pt", x.level, x.parts)
            plain = self._plain(np.asarray(operands[1])[0], x.log_scale)
            return self._made(x.slots + plain, x.level, x.log_scale, x.parts, 0.0, op)
        if op == "add_scalar":
            self._count("add_plain", x.level, x.parts)
            return self._made(x.slots + a["value"], x.level, x.log_scale, x.parts, 0.0, op)
        if op == "mul_int":
            self._needs(a["factor"] != 0, node, "a factor that is not zero")
            # By doubling: one sum for each bit below the highest, and one for each further bit that is set.
            factor = abs(a["factor"])
            self.calls["add", x.level, x.parts] += factor.bit_length() + factor.bit_count() - 2
            return self._made(x.slots * a["factor"], x.level, x.log_scale, x.parts, 0.0, op)
        if op == "mul_i":
            self._count("mul_scalar", x.level, x.parts)
            return self._made(1j * x.slots, x.level, x.log_scale, x.parts, 0.0, op)
        if op == "negate":
            self._count("add", x.level, x.parts)
            return self._made(-x.slots, x.level, x.log_scale, x.parts, 0.0, op)
        if op == "rescale":
            self._needs(x.level >= 1, node, "a level to spend")
            self._count("rescale", x.level, x.parts)
            scale = x.log_scale - self.ring.log_primes[x.level]
            return self._made(x.slots, x.level - 1, scale, x.parts, noise.rescale_std(self.ring), op)
        if op == "level_drop":
            self._needs(x.level >= a["levels"], node, f"{a['levels']} levels to drop")
            return self._made(x.slots, x.level - a["levels"], x.log_scale, x.parts, 0.0, op)
        if op == "relinearize":
            self._needs(self._chain(x.level).relinearization_key, node, "a relinearization key")
            self._count("relinearize", x.level, 3)
            return self._switched(x.slots, x, op)
        if op == "bootstrap":
            return self._bootstrap(node, operands)
        if op == "conjugate":
            self._needs(x.parts == 2, node, "a ciphertext of two parts")
            self._count("conjugate", x.level, 2)
            return self._switched(np.conj(x.slots), x, op)
        if op in ("real_part", "imaginary_part"):
            return self._part(node, x)
        raise ProgramError(f"the simulator does not know {op}", where=node.loc)

    def _gaussian(self, shape: tuple[int, ...]) -> Array:
        """Complex noise whose real and imaginary parts have standard deviation one."""
        return np.asarray(self._random.normal(size=(*shape, 2)).view(np.complex128)[..., 0])

    def _needs(self, holds: bool, node: Node, what: str) -> None:
        if not holds:
            raise ProgramError(f"{node.op} needs {what}", where=node.loc)

    def _count(self, primitive: str, level: int, parts: int) -> None:
        self.calls[primitive, level, parts] += 1

    def _count_rotation(self, node: Node, level: int) -> None:
        """Rotations of one value share its decomposition, as in the backends."""
        source = node.inputs[0]
        if self._rotations[source] < 2:
            self._count("rotate", level, 2)
            return
        if self._first_rotation[source] is node:
            self._count("decompose", level, 2)
        self._count("rotate_hoisted", level, 2)

    def _plain(self, values: Array, log_scale: float) -> Array:
        """A plaintext as encoding leaves it."""
        if not self.noisy:
            return values
        std = noise.encoding_std(self.ring) * 2.0**-log_scale
        return np.asarray(values + self._gaussian(values.shape) * std)

    def _rotate(self, x: SimulatedCiphertext, amount: int, node: Node) -> SimulatedCiphertext:
        if amount % self.ring.slots == 0:
            return x
        self._needs_key(amount % self.ring.slots, x.level, node)
        return self._switched(np.roll(x.slots, -amount), x, "rotate")

    def _chain(self, level: int) -> Chain:
        """The part of the chain, and its keys, in which ciphertexts of that level are worked on."""
        return chain_at(self._chains, level)

    def _needs_key(self, amount: int, level: int, node: Node) -> None:
        held = amount in self._keys[self._chains.index(self._chain(level))]
        self._needs(held, node, f"a rotation key for {amount} at level {level}")

    def _switched(self, slots: Array, x: SimulatedCiphertext, what: str) -> SimulatedCiphertext:
        """Slots after a key switch of x."""
        biased = slots + self._bias * 2.0**-x.log_scale
        return self._made(biased, x.level, x.log_scale, 2, self._switch_std(x.level), what)

    def _switch_std(self, level: int) -> float:
        return noise.switch_std(self._chain(level).ring, level)

    def _bootstrap(self, node: Node, operands: Sequence[SimulatedCiphertext]) -> SimulatedCiphertext:
        """A fresh level for values that repeat over the slots and are small enough; others would come back as nonsense."""
        x, a, ring = operands[0], node.attrs, self.ring
        if ring.bootstrap is None:
            raise ProgramError("this ring does not bootstrap", where=node.loc)
        self._needs(x.parts == 2, node, "a ciphertext of two parts")
        self._needs(x.level == ring.bootstrap_input_level, node, f"an operand at level {ring.bootstrap_input_level}")
        self._needs(a["level"] <= ring.bootstrap_level, node, f"to return to level {ring.bootstrap_level} at most")
        slots = x.slots
        if len(operands) == 2:
            y = operands[1]
            self._needs(x.level == y.level and y.parts == 2, node, "operands at one level")
            self._needs(abs(x.log_scale - y.log_scale) <= SCALE_TOLERANCE, node, "operands of one scale")
            self._count("mul_scalar", x.level, 2)
            self._count("add", x.level, 2)
            slots = slots + 1j * y.slots
        copies = slots.reshape(-1, a["slots"])
        # To the library the value is what its scale makes of it.
        nominal = 2.0 ** (x.log_scale - ring.scale_bits)
        sizes = np.maximum(np.abs(copies.real), np.abs(copies.imag))
        largest = float(sizes.max(initial=0.0)) * nominal
        if largest > noise.BOOTSTRAP_LIMIT:
            # Those of a pair enter at half the size that they may have.
            planned = 1.0 / nominal / len(operands)
            raise RangeError(
                f"a value of size {largest / nominal:.4g} is bootstrapped, planned were {planned:.4g} at most",
                why="the modular reduction of bootstrapping is a polynomial too: beyond its range it gives nonsense",
                hint="give calibration samples like this input, or a larger Options.margin",
            )
        apart = float(np.abs(copies - copies[0]).max(initial=0.0)) * nominal
        self._needs(apart < noise.BOOTSTRAP_LIMIT / 64, node, f"slots that repeat with period {a['slots']}")
        paired = a["slots"] in self._paired
        self._count("bootstrap_pair" if paired else "bootstrap", x.level, a["slots"])
        mean = np.broadcast_to(copies.mean(axis=0), copies.shape).reshape(-1)
        if self.noisy:
            error = self._gaussian((a["slots"],))
            error = noise.bootstrap_std(ring) / nominal * (error if paired else error.real)
            cubes = (mean.real * nominal) ** 3 + 1j * (mean.imag * nominal) ** 3
            bend = noise.BOOTSTRAP_CUBIC * cubes / nominal if ring.bootstrap_iterations == 1 else 0.0
            mean = mean + np.tile(error, copies.shape[0]) - bend
        return self._made(mean, a["level"], x.log_scale, 2, 0.0, node.op)

    def _part(self, node: Node, x: SimulatedCiphertext) -> SimulatedCiphertext:
        """The sum with the conjugate, or the difference from it times the imaginary unit."""
        self._needs(x.parts == 2, node, "a ciphertext of two parts")
        self._count("conjugate", x.level, 2)
        self._count("add", x.level, 2)
        if node.op == "imaginary_part":
            self._count("mul_scalar", x.level, 2)
        slots = x.slots.real if node.op == "real_part" else x.slots.imag
        return self._switched(slots.astype(np.complex128), replace(x, log_scale=x.log_scale + 1.0), node.op)

    def _combination(self, node: Node, operands: Sequence[SimulatedCiphertext]) -> SimulatedCiphertext:
        a = node.attrs
        total = np.full(operands[0].slots.shape, a["constant"])
        scales = [x.log_scale + s for x, s in zip(operands, a["plain_log_scales"], strict=True)]
        self._needs(len({x.level for x in operands}) == 1, node, "operands at one level")
        self._needs(max(scales) - min(scales) <= SCALE_TOLERANCE, node, "terms of one scale")
        for x, weight, plain in zip(operands, a["weights"], a["plain_log_scales"], strict=True):
            self._count("mul_scalar", x.level, 2)
            # A scalar is rounded to a whole number at its scale, which is one number for all slots.
            error = self._random.uniform(-0.5, 0.5) * 2.0**-plain if self.noisy else 0.0
            total = total + x.slots * (weight + error)
        for _ in operands[1:]:
            self._count("accumulate", operands[0].level, 2)
        if a["constant"]:
            self._count("add_plain", operands[0].level, 2)
        return self._made(total, operands[0].level, scales[0], 2, 0.0, node.op)

    def _transform(self, node: Node, operands: Sequence[SimulatedCiphertext]) -> SimulatedCiphertext:
        """The transform as the backends evaluate it: hoisted baby steps, then giant steps."""
        a, slots, x = node.attrs, self.ring.slots, operands[0]
        for other in operands[1:]:
            self._needs(x.level == other.level, node, "operands at one level")
        scales = [value.log_scale + plain for value, plain in zip(operands, a["plain_log_scales"], strict=True)]
        self._needs(max(scales) - min(scales) <= SCALE_TOLERANCE, node, "terms of one scale")
        diagonals = self._diagonals(node)
        groups = transform_terms(diagonals, a["baby_steps"], a["giant_steps"])
        for position in range(len(operands)):
            self._count_babies(node, position, x.level)
        rotated: dict[tuple[int, int], Array] = {}
        for position, b in dict.fromkeys((position, b) for terms in groups.values() for position, b, _ in terms):
            value = operands[position]
            for step in self._paths.get(b, (b,) if b else ()):
                value = self._rotate(value, step, node)
            rotated[position, b] = value.slots
        scale = scales[0]
        total: Array = np.zeros(slots, dtype=np.complex128)
        # What the rounding of the plaintexts adds is Gaussian, and its variance adds up over the products.
        power: Array = np.zeros(slots)
        rounding = [noise.encoding_std(self.ring) * 2.0**-plain for plain in a["plain_log_scales"]]
        squares = {key: np.abs(value * rounding[key[0]]) ** 2 for key, value in rotated.items()} if self.noisy else {}
        switches = 0
        if not self.noisy:
            # Without errors the steps do not matter.
            total = self._exact(diagonals, operands)
        for number, (g, terms) in enumerate(groups.items()):
            if self.noisy:
                part, spread = np.zeros_like(total), np.zeros(slots)
                for position, b, offset in terms:
                    diagonal = diagonals[position].diagonal(offset, g + b)
                    part += rotated[position, b] * (np.roll(diagonal, g) if g else diagonal)
                    spread += squares[position, b]
                total += np.roll(part, -g)
                power += np.roll(spread, -g)
            self.calls["mul_plain", x.level, 2] += len(terms)
            self.calls["accumulate", x.level, 2] += len(terms) - 1 + int(number > 0)
            for step in self._paths.get(g, (g,) if g else ()):
                self._needs_key(step, x.level, node)
                self._count("rotate", x.level, 2)
                switches += 1
        if not groups:
            self._count("mul_plain", x.level, 2)
        if self.noisy:
            total = total + self._gaussian(total.shape) * np.sqrt(power)
            total = total + switches * self._bias * 2.0**-scale
        std = math.sqrt(switches) * self._switch_std(x.level)
        return self._made(total, x.level, scale, 2, std, node.op)

    def _exact(self, diagonals: Sequence[DiagonalMap], operands: Sequence[SimulatedCiphertext]) -> Array:
        return np.asarray(sum(d.apply(value.slots) for d, value in zip(diagonals, operands, strict=True)))

    def _diagonals(self, node: Node) -> list[DiagonalMap]:
        return transform_diagonals(node.attrs, self.program.matrix, self.ring.slots)

    def _count_babies(self, node: Node, position: int, level: int) -> None:
        if not self._babies:
            self._babies |= share_babies(self.program.nodes, self._diagonals, self._paths)
        steps = self._babies[node, position]
        if steps.decompose:
            self._count("decompose", level, 2)
        for b in steps.make:
            if b in self._paths:
                self.calls["rotate", level, 2] += len(self._paths[b])
            else:
                self._count("rotate_hoisted" if steps.hoisted else "rotate", level, 2)
