"""An encrypted training on the simulator: the same programs, with the noise of CKKS, without keys."""

from __future__ import annotations

from typing import Any

import numpy as np

from heliograph.artifact.artifact import Artifact
from heliograph.execution.interface import pack_inputs, unpack_outputs
from heliograph.execution.loop import execute
from heliograph.execution.simulator import Simulator
from heliograph.ir import Array, Node, Program
from heliograph.ir.carried import carried_on, only
from heliograph.transfer.clear import State
from heliograph.transfer.data import TransferData
from heliograph.transfer.settings import TransferSettings, momentum

TRAINED, HELD = ("logits", "w", "v"), ("held_logits",)


class SimulatedRun:
    """A training that computes what decryption would give. What is carried is carried as ciphertexts are: every slot, with
    its error."""

    def __init__(self, artifact: Artifact, data: TransferData, settings: TransferSettings, seed: int = 0) -> None:
        self._data, self._settings, self._seed = data, settings, seed
        self._batches, self._held = data.batches(settings), data.validation(settings)
        self._train, self._look = (only(artifact.program, set(names)) for names in (TRAINED, HELD))
        self._zeros: Array = np.zeros(data.weights_shape)
        self._carried: dict[Node, Any] = {}
        self.done = 0
        self.logits: Array = np.zeros((data.classes, settings.batch))
        self.weights: Array = self._zeros
        self.ahead: Array = self._zeros
        self.best: Array = self._zeros

    def step(self) -> float:
        x, y = self._batches[self.done % len(self._batches)]
        values = {"x": x, "y": y, "rate": self._settings.rate, "momentum": momentum(self.done)}
        results, simulator = self._ran(self._train, values)
        logits, weights, ahead = unpack_outputs(self._train, [simulator.decrypt(result) for result in results])
        self.logits = logits * self._settings.logit_range
        self._carried = carried_on(self._train, results)
        self.weights, self.ahead = (each * self._settings.weight_range for each in (weights, ahead))
        self.done += 1
        return float(np.abs(self.logits).max())

    def validate(self) -> Array:
        found = []
        for held in self._held:
            results, simulator = self._ran(self._look, {"held": held})
            found += unpack_outputs(self._look, [simulator.decrypt(result) for result in results])
        return self._data.held_logits(found) * self._settings.logit_range

    def keep(self) -> None:
        self.best = self.weights

    @property
    def state(self) -> State:
        return State(self.done, self.weights, self.ahead)

    def _ran(self, program: Program, values: dict[str, Any]) -> tuple[list[Any], Simulator]:
        names = dict.fromkeys(node.attrs["name"] for node in program.inputs)
        vectors = pack_inputs(program, [values.get(name, self._zeros) for name in names])
        simulator = Simulator(program, seed=self._seed + self.done)
        inputs = simulator.encrypt_inputs(vectors)
        inputs |= {node: value for node, value in self._carried.items() if node in inputs}
        return execute(program, simulator, inputs)[0], simulator
