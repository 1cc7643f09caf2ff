"""An encrypted training on the simulator: the same programs, with the noise of CKKS, without keys."""

from __future__ import annotations

from typing import Any

import numpy as np

from heliograph.artifact.artifact import Artifact
from heliograph.execution.interface import pack_inputs, unpack_outputs
from heliograph.execution.loop import execute
from heliograph.execution.simulator import Simulator
from heliograph.ir import Array, Node, Program
from heliograph.ir.analysis.carried import carried_on, only
from heliograph.transfer.clear import State, check_weights
from heliograph.transfer.data import TransferData
from heliograph.transfer.layers import Layers, Seen
from heliograph.transfer.settings import TransferSettings, momentum


class SimulatedRun:
    """A training on simulated ciphertexts. Carried values keep every slot with its error, as real ciphertexts do."""

    def __init__(self, artifact: Artifact, data: TransferData, settings: TransferSettings, seed: int = 0) -> None:
        self._data, self._settings, self._seed = data, settings, seed
        self._batches, self._held = data.batches(settings), data.validation(settings)
        self._layers = Layers.of(data, settings)
        held = {"held_logits"}
        every = {spec.name for spec in artifact.program.interface.outputs}
        self._train, self._look = only(artifact.program, every - held), only(artifact.program, held)
        start = self._layers.start(settings.seed)
        self._carried: dict[Node, Any] = {}
        self.done = 0
        self.logits: Array = np.zeros((data.classes, settings.batch))
        self.weights: Array = start
        self.ahead: Array = start
        self.best: Array = start

    def step(self) -> Seen:
        x, y = self._batches[self.done % len(self._batches)]
        values = {"x": x, "y": y, "rate": self._settings.rate, "momentum": momentum(self.done)}
        results, simulator = self._ran(self._train, values)
        found = self._unpacked(self._train, results, simulator)
        self.logits = found["logits"] * self._settings.logit_range
        self._carried = carried_on(self._train, results)
        self.weights, self.ahead = (
            self._layers.joined([found[pair[part]] for pair in self._layers.carried]) * self._settings.weight_range
            for part in (0, 1)
        )
        self.done += 1
        hidden = np.abs(found.get("hidden", np.zeros(1))).max() * self._settings.hidden_range
        return Seen(float(np.abs(self.logits).max()), float(hidden))

    def validate(self) -> Array:
        found = []
        for held in self._held:
            results, simulator = self._ran(self._look, {"held": held})
            found.append(self._unpacked(self._look, results, simulator)["held_logits"])
        return self._data.held_logits(found) * self._settings.logit_range

    def keep(self) -> None:
        check_weights(self.state, self._settings)
        self.best = self.weights

    @property
    def state(self) -> State:
        return State(self.done, self.weights, self.ahead)

    @staticmethod
    def _unpacked(program: Program, results: list[Any], simulator: Simulator) -> dict[str, Array]:
        """The outputs by their names."""
        outputs = unpack_outputs(program, [simulator.decrypt(result) for result in results])
        return dict(zip((spec.name for spec in program.interface.outputs), outputs, strict=True))

    def _ran(self, program: Program, values: dict[str, Any]) -> tuple[list[Any], Simulator]:
        first = self._layers.matrices(self._layers.start(self._settings.seed) / self._settings.weight_range)
        carried = zip(self._layers.carried, first, strict=True)
        values = values | {name: matrix for pair, matrix in carried for name in pair}
        names = dict.fromkeys(node.attrs["name"] for node in program.inputs)
        vectors = pack_inputs(program, [values[name] for name in names])
        simulator = Simulator(program, seed=self._seed + self.done)
        inputs = simulator.encrypt_inputs(vectors)
        inputs |= {node: value for node, value in self._carried.items() if node in inputs}
        return execute(program, simulator, inputs)[0], simulator
