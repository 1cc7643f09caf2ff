"""Bootstraps at 128 bits: ours against the model (of one value, of two, in lower parts of the chain), and OpenFHE's own."""

from __future__ import annotations

import heliograph as hg  # first: it sets OpenMP's waiting policy

import argparse
import functools
import json
import math
import secrets
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from harness import Run, benchmark, option
from heliograph.ckks import noise
from heliograph.ckks.costs import BUILT_IN
from heliograph.ckks.ring import Ring
from heliograph.compiler.planning.chains import bootstrapping_rings
from heliograph.compiler.pipeline import level_passes
from heliograph.execution.bootstrap_work import bootstrap_ms
from heliograph.execution.interface import pack_inputs
from heliograph.execution.keys import program_keys
from heliograph.execution.loop import execute
from heliograph.execution.memory import PLAINTEXT_CACHE_BYTES
from heliograph.ir import Builder, Program, Stage
from heliograph.ir.bootstraps.asked import paired_slots
from heliograph.ir.interface import Interface, TensorSpec
from heliograph.ir.maps.layout import Layout
from heliograph.passes.bootstraps.pair_bootstraps import PairBootstraps
from heliograph.runtime.client.cryptor.cryptor import Cryptor
from heliograph.runtime.native.backend import KeyTable, NativeEvaluator, place_of, tables_of
from heliograph.runtime.native.ciphertext import read_ciphertext, read_key
from heliograph.runtime.openfhe.context import library

DIGITS = 4


def program(ring: Ring, slots: int, count: int, lower: tuple[Ring, ...] = ()) -> Program:
    """Bootstraps of `count` inputs, two of which are paired; in a lower part of the chain, where there is one."""
    builder = Builder("bootstraps", Stage.PACKED)
    layout = Layout((slots,), ring.slots, slots)
    inputs = [builder.input(f"x{i}", slots=ring.slots, chunk=0) for i in range(count)]
    inputs_of, outputs = (tuple(TensorSpec(f"{letter}{i}", (slots,), layout) for i in range(count)) for letter in "xy")
    builder.interface = Interface(inputs_of, outputs)
    made = builder.finish({f"y{i}": builder.op("bootstrap", (x,), slots=slots) for i, x in enumerate(inputs)})
    return level_passes(PairBootstraps(ring).run(made), ring, hg.Options(), 0, lower)[-1].program


class Clock:
    """Seconds by the clock, and of all cores, since it was made."""

    def __init__(self) -> None:
        self._begun = time.perf_counter(), time.process_time()

    def read(self) -> tuple[float, float]:
        return time.perf_counter() - self._begun[0], time.process_time() - self._begun[1]


def timed(
    refresh: Callable[[np.ndarray], tuple[tuple[float, float], np.ndarray]], shape: tuple[int, ...], repeats: int
) -> dict[str, Any]:
    """Median and each of the seconds of `refresh`, and the deviation of its error in bits.

    `refresh` returns what it took (`Clock.read`) and what comes back.
    """
    took, errors = [], []
    for number in range(repeats):
        x = np.random.default_rng(number).uniform(-1, 1, shape)
        spent, found = refresh(x)
        took.append(spent)
        errors.append(found - x)
    return {
        "seconds": statistics.median(clock for clock, _ in took),
        "each_s": took,
        "error_bits": float(np.log2(np.std(errors))),
    }


def log_pq(context: Any) -> float:
    """The bits of the largest modulus of an OpenFHE context: of its chain, and of the special primes of its digits."""
    text = library().Serialize(context, library().JSON)
    cc = json.loads(text)["value0"]["ptr_wrapper"]["data"]["cc"]["ptr_wrapper"]["data"]["value0"]
    chain = cc["value0"]["value0"]["elp"]["ptr_wrapper"]["data"]["p"]
    bits = [math.log2(prime["ptr_wrapper"]["data"]["value0"]["cm"]["v"]) for prime in chain]
    towers = -(-len(bits) // cc["dnum"])
    largest = max(sum(bits[start : start + towers]) for start in range(0, len(bits), towers))
    return sum(bits) + math.ceil(largest / cc["ab"]) * float(cc["ab"])


def ours(ring: Ring, slots: int, count: int, repeats: int, lower: tuple[Ring, ...]) -> dict[str, Any]:
    """Bootstraps of one value or of two at once, as programs on our kernels."""
    made, cryptor, table = program(ring, slots, count, lower), Cryptor(ring), KeyTable()
    assert paired_slots(made) == ((slots,) if count > 1 else ())
    keys, making = program_keys(made), Clock()
    for key in keys:
        table[place_of(key)] = read_key(cryptor.evaluation_key_bytes(key), key, cryptor.tag)
    keys_s, keys_cpu_s = making.read()
    evaluator = NativeEvaluator(made, tables_of(made), table, {}, PLAINTEXT_CACHE_BYTES)
    evaluator.prepare()

    def refresh(x: np.ndarray) -> tuple[tuple[float, float], np.ndarray]:
        inputs: dict[Any, Any] = {}
        for node, vector in pack_inputs(made, list(x)).items():
            level = node.attrs["level"]
            data = cryptor.encrypted_bytes(vector[0], level, node.attrs["log_scale"])
            inputs[node] = read_ciphertext(data, ring, level, cryptor.tag, "it")
        clock = Clock()
        outputs, _ = execute(made, evaluator, inputs)
        took = clock.read()
        clear = [
            cryptor.decrypted(evaluator.residues(output), node.type.log_scale)[0]  # type: ignore[union-attr]
            for output, node in zip(outputs, made.outputs, strict=True)
        ]
        return took, np.array(clear)[:, :slots]

    here = lower[0] if lower else ring
    figures = timed(refresh, (count, slots), repeats)
    return {
        "ring_dim": ring.ring_dim, "log_pq": here.log_pq, "scale_bits": ring.scale_bits,
        **figures, "keys_s": keys_s, "keys_cpu_s": keys_cpu_s,
        "error_bits_predicted": float(np.log2(noise.bootstrap_std(here))),
        "seconds_predicted": bootstrap_ms(here, slots, BUILT_IN, paired=count > 1) / 1e3,
        "levels_left": here.bootstrap_level - here.bootstrap_input_level, "keys": len(keys),
        "key_bytes": sum(key.bytes for key in keys),
    }  # fmt: skip


def theirs(given: argparse.Namespace, slots: int) -> dict[str, Any]:
    """OpenFHE's own bootstrap, in a context of its own, as its examples set it up."""
    openfhe, tag = library(), secrets.token_hex(16)
    kind = openfhe.UNIFORM_TERNARY if given.dense else openfhe.SPARSE_ENCAPSULATED
    parameters, budget = openfhe.CCParamsCKKSRNS(), list(given.budget)
    depth = given.levels_left + openfhe.CryptoContext.GetBootstrapDepth(budget, kind)
    parameters.SetSecretKeyDist(kind)
    parameters.SetSecurityLevel(openfhe.HEStd_NotSet if given.insecure else openfhe.HEStd_128_classic)
    parameters.SetRingDim(1 << given.log_ring)
    parameters.SetScalingTechnique(getattr(openfhe, given.scaling))
    parameters.SetScalingModSize(given.scale_bits)
    # Its bootstrap wants the first prime at most 8 bits above the others.
    parameters.SetFirstModSize(min(60, given.scale_bits + 8))
    parameters.SetNumLargeDigits(given.digits)
    parameters.SetMultiplicativeDepth(depth)
    context = openfhe.GenCryptoContext(parameters)
    for feature in ("PKE", "KEYSWITCH", "LEVELEDSHE", "ADVANCEDSHE", "FHE"):
        context.Enable(getattr(openfhe, feature))
    modulus = log_pq(context)
    context.EvalBootstrapSetup(budget, [0, 0], slots)
    making = Clock()
    pair = context.KeyGen()
    context.EvalMultKeyGen(pair.secretKey)
    context.EvalBootstrapKeyGen(pair.secretKey, slots)
    keys_s, keys_cpu_s = making.read()
    left: list[int] = []

    def refresh(x: np.ndarray) -> tuple[tuple[float, float], np.ndarray]:
        plain = context.MakeCKKSPackedPlaintext(x, 1, depth - 1, None, slots)
        encrypted = context.Encrypt(pair.publicKey, plain)
        clock = Clock()
        fresh = context.EvalBootstrap(encrypted)
        took = clock.read()
        left.append(depth - fresh.GetLevel() - (fresh.GetNoiseScaleDeg() - 1))
        found = context.Decrypt(fresh, pair.secretKey)
        found.SetLength(slots)
        return took, np.array(found.GetRealPackedValue())

    figures = timed(refresh, (slots,), given.repeats)
    name = pair.secretKey.GetKeyTag()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / tag
        assert context.SerializeEvalAutomorphismKey(str(file), openfhe.BINARY, name)
        size = file.stat().st_size
        assert context.SerializeEvalMultKey(str(file), openfhe.BINARY, name)
        size += file.stat().st_size
    count = len(context.GetExistingEvalAutomorphismKeyIndices(name)) + 1
    context.ClearStaticMapsAndVectors()
    return {
        "ring_dim": 1 << given.log_ring, "log_pq": modulus, "levels": depth, "scale_bits": given.scale_bits,
        **figures, "keys_s": keys_s, "keys_cpu_s": keys_cpu_s, "levels_left": min(left),
        "keys": count, "key_bytes": size,
    }  # fmt: skip


@benchmark(
    option("--log-ring", type=int, default=16),
    option("--log-slots", type=int, nargs="+", default=[15, 14]),
    option("--budget", type=int, nargs=2, default=(3, 3), help="levels of the two transforms"),
    option("--insecure", action="store_true", help="a small ring, for trying the script out"),
    option("--repeats", type=int, default=3),
    option("--shorter", type=int, nargs="+", default=[], help="also in lower parts of this many levels less"),
    option("--scale-bits", type=int, default=55, help="of OpenFHE's chain"),
    option("--levels-left", type=int, default=6, help="after OpenFHE's bootstrap"),
    option("--digits", type=int, default=DIGITS, help="of OpenFHE's keys"),
    option("--scaling", choices=("FIXEDMANUAL", "FLEXIBLEAUTO"), default="FIXEDMANUAL"),
    option("--dense", action="store_true", help="OpenFHE's without a sparse secret"),
    columns={
        "seconds": "s", "error_bits": "bits", "ring_dim": "", "scale_bits": "", "levels_left": "", "keys": "",
        "key_bytes": "bytes",
    },
    packages=("openfhe",),
    memory_gb=14,
    minutes=8,
)  # fmt: skip
def bootstraps(run: Run) -> None:
    given = run.options
    rings = bootstrapping_rings(given.log_ring, hg.Options(security_bits=None if given.insecure else 128))
    # As the ResNets have it: of the chains of few digits, whose keys are small, the longest.
    possible = (ring for ring in rings if ring.bootstrap == tuple(given.budget) and ring.digits <= DIGITS)
    ring = max(possible, key=lambda ring: ring.levels)
    for slots in (1 << log for log in given.log_slots):
        parts: list[tuple[Ring, ...]] = [()]
        for levels in given.shorter:
            made = (ring.lower(ring.levels - levels, digits, bootstraps=True) for digits in range(1, DIGITS + 1))
            parts.append((next(part for part in made if part.legal and part.secure),))
        budget = list(given.budget)
        for lower in parts:
            levels = (lower[0] if lower else ring).levels
            for count in (1, 2):
                key = {"whose": "ours", "slots": slots, "levels": levels, "values": count, "budget": budget}
                run.row(key, functools.partial(ours, ring, slots, count, given.repeats, lower))
        key = {"whose": "OpenFHE", "slots": slots, "levels": "", "values": 1, "budget": budget}
        run.row(key, functools.partial(theirs, given, slots))


if __name__ == "__main__":
    bootstraps.main()
