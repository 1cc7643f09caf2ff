"""Orion v2 (PyPI: orion-v2-compiler, -lattigo, -evaluator) on Lattigo: its own modules, compiler, client and evaluator.

Secrets have 192 coefficients that are not 0, as in all of its examples. Chains are those of its examples for networks of
the same depth (examples/models/mlp.py and lenet.py), cut to the levels that are needed, in the smallest ring that the
table for such secrets allows.
"""

from __future__ import annotations

import math
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import orion_compiler.nn as on
import torch
from job import evaluate, main, secret, tell, timed
from lattigo.ckks import Encoder, Parameters
from lattigo.rlwe import BootstrapParams, Ciphertext, Decryptor, Encryptor, KeyGenerator, MemEvaluationKeySet
from orion_compiler import CKKSParams, Compiler
from orion_evaluator import Evaluator, Model

WEIGHT = 192
# What Lattigo's bootstrap takes of a chain by default (v6, bootstrapping.ParametersLiteral): three levels of 39 bits, eight
# of 60, four of 56. With the primes of examples/models/resnet.py this makes the 1,764 bits that it names.
CIRCUIT = [39] * 3 + [60] * 8 + [56] * 4
SPARSE_WEIGHT = 32
# Special primes of bootstraps, of 61 bits as in its examples, which have eight at N = 2^16.
SPECIAL = 5


class Network(on.Module):
    """Layers with squares between them."""

    def __init__(self, *layers: Any) -> None:
        super().__init__()
        self.count = len(layers)
        for number, layer in enumerate(layers):
            setattr(self, f"layer{number}", layer)
            if number:
                setattr(self, f"square{number}", on.Quad())
        self.flatten = on.Flatten()
        self.flat = next(number for number, layer in enumerate(layers) if isinstance(layer, on.Linear))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for number in range(self.count):
            if number:
                x = getattr(self, f"square{number}")(x)
            if number == self.flat:
                x = self.flatten(x)
            x = getattr(self, f"layer{number}")(x)
        return x


class Power(on.Module):
    """The eighth power by three squares: on a chain of two levels one of them needs a bootstrap before it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = on.Quad(), on.Quad(), on.Quad()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.third(self.second(self.first(x)))


def filled(layers: list[Any], given: dict[str, np.ndarray]) -> Network:
    for number, layer in enumerate(layers):
        layer.weight.data = torch.from_numpy(given[f"w{number}"]).float()
        if layer.bias is not None:
            layer.bias.data = torch.from_numpy(given[f"b{number}"]).float()
    return Network(*layers).eval()


def evaluated(
    module: Any,
    chain: dict[str, Any],
    calibration: np.ndarray,
    samples: np.ndarray,
    count: int,
    expected: bool = False,
    **more: Any,
) -> None:
    """Compile, make keys, and evaluate the samples."""

    def compiled() -> bytes:
        compiler = Compiler(module, CKKSParams(**chain))
        # One sample: it takes the first dimension of a tensor for a part of the input.
        compiler.fit(torch.from_numpy(calibration[:1]).float())
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "network.orion")
            compiler.compile_to_file(str(path))
            return path.read_bytes()

    data, seconds = timed(compiled)
    model = Model.load(data)
    described, manifest, level = model.client_params()
    boot, log_ring = manifest.get("boot_logp") or [], chain["logn"]
    bits = sum(chain["logq"]) + (sum(CIRCUIT) + sum(boot) if boot else sum(chain["logp"]))
    sparse = [secret(log_ring, chain["logq"][0] + boot[0], SPARSE_WEIGHT)] if boot else []
    if expected and not manifest.get("bootstrap_slots"):
        raise RuntimeError("its compiler placed no bootstrap")
    tell("made", compile_s=seconds.clock, secrets=[secret(log_ring, bits, WEIGHT), *sparse])
    parameters = Parameters.from_dict(described)

    def keys() -> tuple[Any, Any, bytes, bytes | None]:
        maker = KeyGenerator(parameters)
        key = maker.gen_secret_key()
        public = maker.gen_public_key(key)
        relin = maker.gen_relin_key(key) if manifest["needs_rlk"] else None
        turning = [maker.gen_galois_key(key, int(element)) for element in manifest["galois_elements"]]
        sent, refreshing = MemEvaluationKeySet(rlk=relin, galois_keys=turning).marshal_binary(), None
        for each in turning:
            each.close()
        if slots := manifest.get("bootstrap_slots"):
            with BootstrapParams(
                parameters, logn=manifest["btp_logn"], logp=boot, h=WEIGHT, log_slots=int(math.log2(min(slots)))
            ) as literal:
                held, made = literal.gen_eval_keys(key)
                refreshing = made.marshal_binary()
                held.close()
                made.close()
        return key, public, sent, refreshing

    (key, public, sent, refreshing), seconds = timed(keys)
    tell("keys", keys_s=seconds.clock, keys_cpu_s=seconds.cores, key_bytes=len(sent) + len(refreshing or b""))
    encoder, encryptor, decryptor = Encoder(parameters), Encryptor(parameters, public), Decryptor(parameters, key)
    evaluator = Evaluator(described, sent, btp_keys_bytes=refreshing)
    del sent, refreshing
    slots, scale = parameters.max_slots(), parameters.default_scale()

    def encrypt(sample: np.ndarray) -> bytes:
        values = sample.astype(float).ravel().tolist()
        return encryptor.encrypt_new(
            encoder.encode(values + [0.0] * (slots - len(values)), level, scale)
        ).marshal_binary()

    def decrypt(answer: bytes) -> np.ndarray:
        return np.array(encoder.decode(decryptor.decrypt_new(Ciphertext.unmarshal_binary(answer)), slots)[:count])

    evaluate(samples, encrypt, lambda one: evaluator.forward(model, [one])[0], decrypt, len, **more)


def chain(log_ring: int, levels: int) -> dict[str, Any]:
    """The primes of its examples on MNIST, for so many levels."""
    return {
        "logn": log_ring, "logq": [29, *[26] * levels], "logp": [29, 29], "log_default_scale": 26, "h": WEIGHT,
        "ring_type": "conjugate_invariant",
    }  # fmt: skip


def dot(given: dict[str, np.ndarray]) -> None:
    module = filled([on.Linear(1024, 1, bias=False)], given)
    evaluated(module, chain(12, 1) | {"logp": [29]}, given["calibration"], given["samples"], 1)


def perceptron(given: dict[str, np.ndarray]) -> None:
    module = filled([on.Linear(784, 128), on.Linear(128, 10)], given)
    evaluated(module, chain(13, 3), given["calibration"], given["samples"], 10)


def lenet(given: dict[str, np.ndarray]) -> None:
    sizes = ((1, 32), (32, 64))
    convolutions = [on.Conv2d(*each, kernel_size=5, padding=2, stride=2) for each in sizes]
    module = filled([*convolutions, on.Linear(3136, 512), on.Linear(512, 10)], given)
    evaluated(module, chain(14, 7), given["calibration"], given["samples"], 10)


def bootstrap(log_ring: int) -> None:
    """Three squares with a bootstrap of all slots between them; there is no bootstrap by itself."""
    rng = np.random.default_rng(0)
    samples = rng.uniform(-1, 1, (4, 1 << (log_ring - 1)))
    levels = 2
    primes = {
        "logn": log_ring, "logq": [55, *[40] * levels], "logp": [61, 61], "log_default_scale": 40, "h": WEIGHT,
        "ring_type": "standard", "boot_logp": [61] * SPECIAL,
    }  # fmt: skip
    evaluated(
        Power(), primes, samples, samples, samples.shape[1], exact=lambda x: x**8, expected=True, levels_left=levels,
        setting="with three squares, 40 bits a level",
    )  # fmt: skip


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
