"""OpenFHE by its Python wheel. It has no networks: matrices are multiplied by diagonals, with hoisted baby steps."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import bootstraps
import numpy as np
import openfhe
from diagonals import Plan, planned, spread
from job import BOOTSTRAPS, Missing, evaluate, main, refreshed, secret, tell, timed

FIRST_BITS, SCALE_BITS = 45, 33


class Context:
    """CKKS keys and a chain of so many levels; OpenFHE chooses the smallest ring with 128 bits by its own table."""

    def __init__(self, levels: int, period: int) -> None:
        parameters = openfhe.CCParamsCKKSRNS()
        parameters.SetMultiplicativeDepth(levels)
        parameters.SetScalingTechnique(openfhe.FIXEDMANUAL)
        parameters.SetFirstModSize(FIRST_BITS)
        parameters.SetScalingModSize(SCALE_BITS)
        parameters.SetNumLargeDigits(levels + 1)
        parameters.SetBatchSize(period)
        parameters.SetSecurityLevel(openfhe.HEStd_128_classic)
        self.cc = openfhe.GenCryptoContext(parameters)
        for feature in (openfhe.PKE, openfhe.KEYSWITCH, openfhe.LEVELEDSHE, openfhe.ADVANCEDSHE):
            self.cc.Enable(feature)
        self.period = period
        self.log_ring = self.cc.GetRingDimension().bit_length() - 1
        self.pair: Any = None

    def encode(self, values: np.ndarray, level: int = 0) -> Any:
        return self.cc.MakeCKKSPackedPlaintext(list(map(float, values)), 1, level, None, self.period)

    def made(self, seconds: float) -> None:
        tell("made", compile_s=seconds, secrets=[secret(self.log_ring, bootstraps.log_pq(self.cc))])

    def keys(self, rotations: set[int], sums: bool, squares: bool) -> None:
        """Make keys and tell what they take; `sums` are those of EvalInnerProduct."""

        def work() -> None:
            self.pair = self.cc.KeyGen()
            if squares:
                self.cc.EvalMultKeyGen(self.pair.secretKey)
            if rotations:
                self.cc.EvalRotateKeyGen(self.pair.secretKey, sorted(rotations))
            if sums:
                self.cc.EvalSumKeyGen(self.pair.secretKey)

        _, seconds = timed(work)
        name, total = self.pair.secretKey.GetKeyTag(), 0
        kinds = {
            "SerializeEvalAutomorphismKey": bool(rotations),
            "SerializeEvalMultKey": squares,
            "SerializeEvalSumKey": sums,
        }
        with tempfile.TemporaryDirectory() as folder:
            for kind, there in kinds.items():
                if there:
                    file = Path(folder, kind)
                    assert getattr(self.cc, kind)(str(file), openfhe.BINARY, name)
                    total += file.stat().st_size
        tell("keys", keys_s=seconds.clock, keys_cpu_s=seconds.cores, key_bytes=total)

    def encrypt(self, values: np.ndarray) -> Any:
        return self.cc.Encrypt(self.pair.publicKey, self.encode(spread(values, self.period, self.period)))

    def decrypted(self, answer: Any, count: int) -> np.ndarray:
        opened = self.cc.Decrypt(answer, self.pair.secretKey)
        opened.SetLength(count)
        return np.array(opened.GetRealPackedValue()[:count])

    @staticmethod
    def size(sent: Any) -> int:
        return len(openfhe.Serialize(sent, openfhe.BINARY))

    def encoded(self, plan: Plan, level: int) -> list[list[Any]]:
        """The diagonals of a plan, in all slots, at a level counted from the top."""
        times = self.period // plan.period
        return [[self.encode(np.tile(each, times), level) for each in vectors] for _, vectors in plan.giants]

    def product(self, plan: Plan, diagonals: list[list[Any]], x: Any) -> Any:
        """The matrix of a plan times an encrypted vector, rescaled."""
        cc, order = self.cc, 2 * self.cc.GetRingDimension()
        hoisted = cc.EvalFastRotationPrecompute(x)
        turned = [x] + [cc.EvalFastRotation(x, step, order, hoisted) for step in range(1, plan.baby)]
        total = None
        for (amount, _), row in zip(plan.giants, diagonals, strict=True):
            part = cc.EvalMult(turned[0], row[0])
            for each, diagonal in zip(turned[1:], row[1:], strict=True):
                cc.EvalAddInPlace(part, cc.EvalMult(each, diagonal))
            part = cc.EvalRotate(part, amount) if amount else part
            total = part if total is None else cc.EvalAdd(total, part)
        total = cc.Rescale(total)
        for amount in plan.folds:
            total = cc.EvalAdd(total, cc.EvalRotate(total, amount))
        return total


def dot(given: dict[str, np.ndarray]) -> None:
    weights = given["w0"].ravel()
    (context, plain), seconds = timed(lambda: ((made := Context(1, len(weights))), made.encode(weights)))
    context.made(seconds.clock)
    context.keys(set(), sums=True, squares=False)
    evaluate(
        given["samples"],
        context.encrypt,
        lambda sent: context.cc.EvalInnerProduct(sent, plain, len(weights)),
        lambda answer: context.decrypted(answer, 1),
        context.size,
    )


def perceptron(given: dict[str, np.ndarray]) -> None:
    plans = [planned(given["w0"]), planned(given["w1"])]

    def work() -> Any:
        context = Context(3, plans[0].period)
        biases = [
            context.encode(spread(given[name], plan.result, context.period), level)
            for name, plan, level in zip(("b0", "b1"), plans, (1, 3), strict=True)
        ]
        return context, [context.encoded(plan, level) for plan, level in zip(plans, (0, 2), strict=True)], biases

    (context, diagonals, biases), seconds = timed(work)
    context.made(seconds.clock)
    context.keys(plans[0].rotations | plans[1].rotations, sums=False, squares=True)

    def run(sent: Any) -> Any:
        hidden = context.cc.EvalAdd(context.product(plans[0], diagonals[0], sent), biases[0])
        squared = context.cc.Rescale(context.cc.EvalSquare(hidden))
        return context.cc.EvalAdd(context.product(plans[1], diagonals[1], squared), biases[1])

    samples = given["samples"].reshape(len(given["samples"]), -1)
    evaluate(samples, context.encrypt, run, lambda answer: context.decrypted(answer, 10), context.size)


def lenet(given: dict[str, np.ndarray]) -> None:
    if not any("conv" in name.lower() for name in dir(openfhe.CryptoContext)):
        raise Missing("has no convolutions, and no compiler that lays them out")
    raise Missing("has convolutions that this job does not use")


# For each ring dimension: bits of a level and digits, the most bits for which the wheel finds 128 bits (`BOOTSTRAPS`).
CHAINS = {15: (46, 8), 16: (55, 4)}


def bootstrap(log_ring: int) -> None:
    """One bootstrap of all slots with a sparse encapsulated secret, as `bootstraps.py` sets it up."""
    (budget, left), (bits, digits) = BOOTSTRAPS[log_ring], CHAINS[log_ring]
    found = bootstraps.theirs(
        argparse.Namespace(
            dense=False, budget=budget, levels_left=left, insecure=False, log_ring=log_ring, scaling="FIXEDMANUAL",
            scale_bits=bits, digits=digits, repeats=5,
        ),
        1 << (log_ring - 1),
    )  # fmt: skip
    tell("made", secrets=[secret(log_ring, found["log_pq"])], setting=f"{bits} bits a level, {digits} digits")
    refreshed(found)


if __name__ == "__main__":
    main(
        {
            "dot": dot,
            "perceptron": perceptron,
            "lenet": lenet,
            "bootstrap-15": lambda _: bootstrap(15),
            "bootstrap-16": lambda _: bootstrap(16),
        }
    )
