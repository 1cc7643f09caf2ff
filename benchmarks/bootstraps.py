"""Bootstraps at 128 bits against the model: of one value, of two at once, in two iterations, in lower parts of the chain."""

from __future__ import annotations

from heliograph.ir.interface import Interface
from heliograph.ir.interface import TensorSpec
from heliograph.ir.bootstraps import paired_slots

import heliograph as hg  # first: it sets OpenMP's waiting policy

import argparse
import json
import os
import secrets
import statistics
import time

import numpy as np

from common import machine
from heliograph.compiler.bootstrap_rings import Bootstraps, bootstrapping_rings
from heliograph.compiler.pipeline import level_passes
from heliograph.execution.keys import program_keys
from heliograph.ckks import noise
from heliograph.execution.loop import execute
from heliograph.execution.interface import pack_inputs
from heliograph.ir import Builder, Node, Program, Stage
from heliograph.ir.layout import Layout
from heliograph.passes.pair_bootstraps import PairBootstraps
from heliograph.runtime.openfhe import bootstrapping, registry, serial
from heliograph.runtime.openfhe.cryptor import OpenFHECryptor
from heliograph.runtime.openfhe.evaluator import OpenFHEEvaluator
from heliograph.runtime.openfhe.tags import chain_tag
from heliograph.ckks.costs import BUILT_IN
from heliograph.ckks.ring import Ring

SCALE_BITS, BUDGET, DIGITS = 55, (3, 3), 4


def program(ring: Ring, slots: int, count: int, lower: tuple[Ring, ...] = ()) -> Program:
    """Bootstraps of `count` inputs, two of which are paired; in a lower part of the chain, where there is one."""
    builder = Builder("bootstraps", Stage.PACKED)
    layout = Layout((slots,), ring.slots, slots)
    inputs = [builder.input(f"x{i}", slots=ring.slots, chunk=0) for i in range(count)]
    inputs_of, outputs = (tuple(TensorSpec(f"{letter}{i}", (slots,), layout) for i in range(count)) for letter in "xy")
    builder.interface = Interface(inputs_of, outputs)
    made = builder.finish({f"y{i}": builder.op("bootstrap", (x,), slots=slots) for i, x in enumerate(inputs)})
    return level_passes(PairBootstraps(ring).run(made), ring, hg.Options(), 0, lower)[-1].program


def measure(ring: Ring, slots: int, repeats: int, lower: tuple[Ring, ...] = ()) -> dict[str, object]:
    """Side by side on one key: a bootstrap of one value, and one of two, in the whole chain or in its lower part."""
    cryptor, tag = OpenFHECryptor(ring), secrets.token_hex(16)
    programs = {count: program(ring, slots, count, lower) for count in (1, 2)}
    assert paired_slots(programs[2]) == (slots,)
    here = lower[0] if lower else ring
    bootstrapping.hold(here)
    try:
        return timed(here, slots, repeats, cryptor, programs, tag)
    finally:
        for chain in programs[1].planned.chains:
            registry.release(chain_tag(tag, ring, chain.ring))
        bootstrapping.let_go(here)


def timed(
    ring: Ring, slots: int, repeats: int, cryptor: OpenFHECryptor, programs: dict[int, Program], tag: str
) -> dict[str, object]:
    evaluators = {count: OpenFHEEvaluator(made, tag) for count, made in programs.items()}
    for key in program_keys(programs[1]):
        serial.install_key(key, cryptor.evaluation_key(key), chain_tag(tag, cryptor.ring, key.ring))
    seconds: dict[int, list[float]] = {1: [], 2: []}
    deviation: dict[int, list[float]] = {1: [], 2: []}
    for number in range(repeats):
        for count, made in programs.items():
            evaluator = evaluators[count]
            evaluator.prepare()
            samples = list(np.random.default_rng(number).uniform(-1, 1, (count, slots)))

            def adopted(node: Node, vector: np.ndarray, evaluator: OpenFHEEvaluator = evaluator) -> object:
                level = node.attrs["level"]
                return evaluator.adopt(cryptor.encrypt(vector, level, node.attrs["log_scale"]), level)

            inputs = {node: adopted(node, vector[0]) for node, vector in pack_inputs(made, samples).items()}
            begun = time.perf_counter()
            outputs, _ = execute(made, evaluator, inputs)
            seconds[count].append(time.perf_counter() - begun)
            for output, node, x in zip(outputs, made.outputs, samples, strict=True):
                scale = node.type.log_scale  # type: ignore[union-attr]
                clear = cryptor.decrypt(evaluator.released(output, scale, cryptor.tag), scale)
                deviation[count].append(float(np.std(clear[:slots] - x)))
    one, two = (statistics.median(seconds[count]) for count in (1, 2))
    return {
        "ring_dim": ring.ring_dim, "levels": ring.levels, "log_pq": ring.log_pq, "slots": slots,
        "iterations": ring.bootstrap_iterations, "seconds_one": one, "seconds_two": two,
        "two_over_one": two / one,
        "predicted_one": BUILT_IN.bootstrap_ms(ring, slots) / 1e3,
        "predicted_two": BUILT_IN.bootstrap_ms(ring, slots, paired=True) / 1e3,
        "log2_deviation_one": float(np.log2(np.median(deviation[1]))),
        "log2_deviation_two": float(np.log2(np.median(deviation[2]))),
        "log2_deviation_predicted": float(np.log2(noise.bootstrap_std(ring))),
        "load_average": os.getloadavg()[0],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--log-ring", type=int, default=16)
    parser.add_argument("--log-slots", type=int, nargs="+", default=[15, 14])
    parser.add_argument("--iterations", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--insecure", action="store_true", help="a small ring, for trying the script out")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--shorter", type=int, nargs="+", default=[], help="also in lower parts of this many levels less"
    )
    options = parser.parse_args()
    print(machine(), flush=True)
    chosen = hg.Options(security_bits=None if options.insecure else 128)
    for iterations in options.iterations:
        rings = bootstrapping_rings(options.log_ring, Bootstraps("openfhe", SCALE_BITS, iterations), chosen)
        # As the ResNets have it: of the chains of few digits, whose keys are small, the longest.
        possible = (ring for ring in rings if ring.bootstrap == BUDGET and ring.digits <= DIGITS)
        ring = max(possible, key=lambda ring: ring.levels)
        for log_slots in options.log_slots:
            print(json.dumps(measure(ring, 1 << log_slots, options.repeats)), flush=True)
            for levels in options.shorter:
                parts = (ring.lower(ring.levels - levels, digits, bootstraps=True) for digits in range(1, DIGITS + 1))
                lower = next(part for part in parts if part.legal and part.secure)
                print(json.dumps(measure(ring, 1 << log_slots, options.repeats, (lower,))), flush=True)


if __name__ == "__main__":
    main()
