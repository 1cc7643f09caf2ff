"""Run an artifact on the simulator: levels, scales and CKKS's error, without keys."""

from __future__ import annotations

from typing import Any

from heliograph.compiler.artifact import Artifact
from heliograph.execution.backend import execute
from heliograph.execution.simulator import Simulator
from heliograph.interpret import pack_inputs, unpack_outputs


def simulate(artifact: Artifact, *samples: Any, seed: int = 0, noisy: bool = True) -> Any:
    """What decryption would give for one sample (one array per input, no batch axis).

    The error is drawn at random with `seed`; `noisy=False` leaves it out.
    """
    program = artifact.program
    simulator = Simulator(program, seed=seed, noisy=noisy)
    encrypted = {
        node: simulator.encrypt(vector[0], node.attrs["level"], node.attrs["log_scale"])
        for node, vector in pack_inputs(program, samples).items()
    }
    results, _ = execute(program, simulator, encrypted)
    outputs = unpack_outputs(program, [simulator.decrypt(result) for result in results])
    return outputs[0] if len(outputs) == 1 else tuple(outputs)
