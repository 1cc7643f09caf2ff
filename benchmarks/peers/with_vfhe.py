"""vfhe's CKKS in Python. Matrices are multiplied by diagonals, with a key for each rotation at the level that needs it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from diagonals import Plan, planned, spread
from job import Missing, evaluate, main, secret, tell, timed
from vfhe import fhe
from vfhe.arith import ComplexPolynomial, Ring
from vfhe.engine import ffi
from vfhe.mlwe.mlwe import MLWE

# Of the first and the special prime, of a level, and of scales.
FIRST_BITS, SCALE_BITS = 49, 40
WEIGHT = 1024


class Context:
    """A chain of so many levels with one special prime, and a secret of 1,024 coefficients that are not 0."""

    def __init__(self, log_ring: int, levels: int) -> None:
        sizes = [FIRST_BITS, *[SCALE_BITS] * levels, FIRST_BITS]
        ring = Ring(1 << log_ring, sum(sizes), split_degree=1, prime_size=sizes)
        self.scheme = fhe.CKKS_Scheme(ring, scaling_factor=2.0**SCALE_BITS, special_primes=1)
        self.slots = 1 << (log_ring - 1)
        self.secrets = [secret(log_ring, sum(map(math.log2, ring.primes)), WEIGHT)]
        self.key: Any = None
        self.turning: dict[tuple[int, int], Any] = {}

    def keys(self, rotations: set[tuple[int, int]], squares: tuple[int, ...]) -> None:
        """Make keys for (amount, level) of rotations and for the levels of squares."""
        scheme, order = self.scheme, 2 * self.scheme.N

        def work() -> None:
            key = self.key = scheme.key_gen_sparse(WEIGHT, 3.2)
            levels = range(len(scheme.rings))
            scheme.rlk = [scheme.gen_rlk(key, key, level) if level in squares else None for level in levels]
            for amount, level in sorted(rotations):
                self.turning[amount, level] = scheme.gen_ksk_automorphism(key, key, pow(5, amount, order), level)

        _, seconds = timed(work)
        # Keys have no form in bytes here: two residues of eight bytes for each coefficient and prime, for each prime again.
        used = [*squares, *(level for _, level in rotations)]
        tell(
            "keys",
            keys_s=seconds.clock,
            keys_cpu_s=seconds.cores,
            key_bytes=sum(16 * scheme.N * scheme.special_rings[level].ell ** 2 for level in used),
        )

    def encode(self, values: np.ndarray, level: int = 0, scale: float = 2.0**SCALE_BITS) -> Any:
        """As `CKKS_Scheme.encode`, which is for the top level and its own scale only."""
        ring = self.scheme.rings[level]
        polynomial = ComplexPolynomial(self.scheme.complex_ring)
        polynomial.from_array(values.astype(complex).tolist())
        polynomial.IFFT()
        polynomial *= scale
        made = polynomial.round_to_RNS_cpp(ring)
        ffi.cast("RNS_Polynomial", made.obj).rns_mask = ring.mask
        return made

    def encrypt(self, values: np.ndarray, period: int) -> Any:
        return self.scheme.encrypt(self.encode(spread(values, period, self.slots)), self.key)

    def decrypted(self, answer: Any, count: int) -> np.ndarray:
        opened = self.scheme.decode(self.scheme.decrypt(answer, self.key), answer.delta)
        return np.array([value.real for value in opened[:count]])

    def size(self, sent: Any) -> int:
        return 16 * self.scheme.N * int(sent.ring.ell)

    def turned(self, x: Any, amount: int) -> Any:
        return self.scheme.rotate(x, amount, self.turning[amount, x.lvl]) if amount else x

    def folded(self, x: Any, amounts: tuple[int, ...]) -> Any:
        for amount in amounts:
            x = x + self.turned(x, amount)
        return x

    def scaled(self, x: Any, plain: Any) -> Any:
        """A product that is not rescaled, at the scale of both factors."""
        product = MLWE.__mul__(x, plain)
        product.delta = x.delta * 2.0**SCALE_BITS
        return product

    def encoded(self, plan: Plan, level: int) -> list[list[Any]]:
        """The diagonals of a plan, in all slots."""
        times = self.slots // plan.period
        return [[self.encode(np.tile(each, times), level) for each in vectors] for _, vectors in plan.giants]

    def product(self, plan: Plan, diagonals: list[list[Any]], x: Any) -> Any:
        """The matrix of a plan times an encrypted vector, rescaled."""
        turned = [self.turned(x, step) for step in range(plan.baby)]
        total: Any = 0
        for (amount, _), row in zip(plan.giants, diagonals, strict=True):
            part: Any = 0
            for each, diagonal in zip(turned, row, strict=True):
                part = self.scaled(each, diagonal) + part
            total = self.turned(part, amount) + total
        return self.folded(self.scheme.rescale(total), plan.folds)


def uses(plan: Plan, level: int) -> set[tuple[int, int]]:
    """The rotations of a product at a level; it is folded a level further down."""
    steps = {*range(1, plan.baby), *(amount for amount, _ in plan.giants if amount)}
    return {(amount, level) for amount in steps} | {(amount, level + 1) for amount in plan.folds}


def dot(given: dict[str, np.ndarray]) -> None:
    weights = given["w0"].ravel()
    amounts = tuple(len(weights) >> shift for shift in range(1, len(weights).bit_length()))

    def work() -> Any:
        context = Context(13, 1)
        return context, context.encode(spread(weights, len(weights), context.slots))

    (context, plain), seconds = timed(work)
    tell("made", compile_s=seconds.clock, secrets=context.secrets)
    context.keys({(amount, 1) for amount in amounts}, ())
    evaluate(
        given["samples"],
        lambda sample: context.encrypt(sample, len(weights)),
        lambda sent: context.folded(context.scheme.rescale(context.scaled(sent, plain)), amounts),
        lambda answer: context.decrypted(answer, 1),
        context.size,
    )


def perceptron(given: dict[str, np.ndarray]) -> None:
    first, second = planned(given["w0"]), planned(given["w1"])

    def work() -> Any:
        context = Context(14, 3)
        return context, context.encoded(first, 0), context.encoded(second, 2)

    (context, diagonals, last), seconds = timed(work)
    tell("made", compile_s=seconds.clock, secrets=context.secrets)
    context.keys(uses(first, 0) | uses(second, 2), (1,))

    def biased(x: Any, bias: np.ndarray, plan: Plan) -> Any:
        """The sum with a bias, into the part `b`: `MLWE.__add__` with a polynomial does not decrypt to it in 0.0.3."""
        x.to_NTT()
        total = x.get_b_poly() + context.encode(spread(bias, plan.result, context.slots), x.lvl, x.delta)
        context.scheme.ring.lib.polynomial_copy_RNS_polynomial(x.obj_b(), total.obj)
        return x

    def run(sent: Any) -> Any:
        hidden = biased(context.product(first, diagonals, sent), given["b0"], first)
        return biased(context.product(second, last, hidden * hidden), given["b1"], second)

    evaluate(
        given["samples"].reshape(len(given["samples"]), -1),
        lambda sample: context.encrypt(sample, first.period),
        run,
        lambda answer: context.decrypted(answer, 10),
        context.size,
    )


def lacking(what: str) -> Any:
    """A job for what has no name in the library."""

    def job(_: dict[str, np.ndarray]) -> None:
        if not any(what in name.lower() for name in [*dir(fhe), *dir(fhe.CKKS_Scheme)]):
            raise Missing(f"its CKKS has no {what}")
        raise Missing(f"has a {what} that this job does not use")

    return job


if __name__ == "__main__":
    missing = {"lenet": "convolution", "bootstrap-15": "bootstrap", "bootstrap-16": "bootstrap"}
    main({"dot": dot, "perceptron": perceptron, **{task: lacking(what) for task, what in missing.items()}})
