"""Run an executable program on a backend with fresh keys; the same words for the simulator and for OpenFHE."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from heliograph.execution.backend import Call, execute
from heliograph.execution.simulator import Simulator
from heliograph.interpret import pack_inputs, unpack_outputs
from heliograph.ir import Array, Node, Program
from heliograph.target import Ring


@dataclass(slots=True)
class Session:
    """One backend with one secret key: `encrypt(vector, level, log_scale)`, `decrypt(value, log_scale)`, `evaluator`."""

    evaluator: Any
    encrypt: Callable[[Array, int, float], Any]
    decrypt: Callable[[Any, float], Array]


def simulator(program: Program, seed: int = 0, noisy: bool = True) -> Session:
    made = Simulator(program, seed=seed, noisy=noisy)
    return Session(made, made.encrypt, lambda value, log_scale: made.decrypt(value))


def openfhe(program: Program, seed: int = 0, without: Sequence[int] = ()) -> Session:
    """OpenFHE with the program's own rotation keys, less those in `without`; OpenFHE tells clients apart by key tag."""
    pytest.importorskip("openfhe")
    from heliograph.runtime.openfhe import serial
    from heliograph.runtime.openfhe.cryptor import OpenFHECryptor
    from heliograph.runtime.openfhe.evaluator import OpenFHEEvaluator

    ring = Ring.from_json(program.metadata["ring"])
    cryptor = OpenFHECryptor(ring)
    amounts = [amount for amount in program.metadata["rotation_keys"] if amount not in without]
    rotation = {amount: cryptor.rotation_key(amount) for amount in amounts}
    relinearization = cryptor.relinearization_key() if program.metadata["relinearization_key"] else None
    serial.install_keys(ring, cryptor.tag, rotation, relinearization)
    return Session(OpenFHEEvaluator(program), cryptor.encrypt, cryptor.decrypt)


BACKENDS: dict[str, Callable[..., Session]] = {"simulator": simulator, "openfhe": openfhe}


def run(
    program: Program,
    samples: Sequence[Any],
    session: Session,
    observe: Callable[[Node, Any], None] | None = None,
) -> tuple[list[Array], Counter[Call]]:
    """The decrypted output tensors and the calls of one evaluation."""
    inputs = {
        node: session.encrypt(vector[0], node.attrs["level"], node.attrs["log_scale"]) if node.type.secret else vector
        for node, vector in pack_inputs(program, samples).items()
    }
    results, trace = execute(program, session.evaluator, inputs, observe=observe)
    vectors = [
        session.decrypt(result, node.type.log_scale)  # type: ignore[union-attr]
        for result, node in zip(results, program.outputs, strict=True)
    ]
    return [np.asarray(out) for out in unpack_outputs(program, vectors)], trace.calls


def largest_difference(left: Sequence[Array], right: Sequence[Array]) -> float:
    """Over all tensors; shapes must agree."""
    worst = 0.0
    for a, b in zip(left, right, strict=True):
        assert a.shape == b.shape
        worst = max(worst, float(np.abs(a - b).max(initial=0.0)))
    return worst
