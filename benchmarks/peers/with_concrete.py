"""Concrete ML (TFHE): the networks as modules of torch, quantised after training by its own compiler."""

from __future__ import annotations

import math

import numpy as np
import torch
from concrete.ml.torch.compile import compile_torch_model
from job import Missing, evaluate, main, tell, timed
from squares import filled

# Of inputs, weights and activations: with more the squares' tables do not fit into the integers that it has.
BITS = {"dot": 8, "perceptron": 6, "lenet": 5}


def network(name: str, layers: list[torch.nn.Module], given: dict[str, np.ndarray]) -> None:
    calibration = given["calibration"].astype(np.float32)
    module, seconds = timed(
        lambda: compile_torch_model(filled(layers, given), calibration, n_bits=BITS[name], rounding_threshold_bits=6)
    )
    circuit = module.fhe_circuit
    tell(
        "made", compile_s=seconds.clock, secrets=[], bits=circuit.graph.maximum_integer_bit_width(),
        bootstraps=circuit.programmable_bootstrap_count, claimed_bits=int(circuit.configuration.security_level.value),
        log2_p_error=math.log2(circuit.p_error), setting=f"{BITS[name]} bits",
    )  # fmt: skip
    _, seconds = timed(circuit.keygen, True)
    tell(
        "keys",
        keys_s=seconds.clock,
        keys_cpu_s=seconds.cores,
        key_bytes=len(circuit.client.evaluation_keys.serialize()),
    )
    evaluate(
        given["samples"].astype(np.float32)[:, None],
        lambda sample: circuit.encrypt(module.quantize_input(sample)),
        circuit.run,
        lambda answer: module.dequantize_output(circuit.decrypt(answer)),
        lambda sent: len(sent.serialize()),
    )


def dot(given: dict[str, np.ndarray]) -> None:
    network("dot", [torch.nn.Linear(1024, 1, bias=False)], given)


def perceptron(given: dict[str, np.ndarray]) -> None:
    network("perceptron", [torch.nn.Linear(784, 128), torch.nn.Linear(128, 10)], given)


def lenet(given: dict[str, np.ndarray]) -> None:
    convolutions = [torch.nn.Conv2d(*sizes, 5, stride=2, padding=2) for sizes in ((1, 32), (32, 64))]
    network("lenet", [*convolutions, torch.nn.Linear(3136, 512), torch.nn.Linear(512, 10)], given)


def bootstrap(_: dict[str, np.ndarray]) -> None:
    raise Missing("TFHE: each of its bootstraps refreshes one small integer, not a vector")


if __name__ == "__main__":
    main({"dot": dot, "perceptron": perceptron, "lenet": lenet, "bootstrap-15": bootstrap, "bootstrap-16": bootstrap})
