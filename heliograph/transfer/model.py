"""A trained model that nobody decrypts, as an ordinary artifact: encrypted samples and encrypted weights in, logits out.

The artifact is the part of a training step that classifies. It is on the step's ring, so it can use the training's
ciphertexts directly. It has its own evaluation keys, far fewer, and neither the state nor the bootstraps of the
training. Any server runs it, including `heliograph serve`.
"""

from __future__ import annotations

from dataclasses import replace

from heliograph.artifact.artifact import Artifact
from heliograph.artifact.figures import complete
from heliograph.ckks.costs import CostTable
from heliograph.ir import Builder, Node, Program, Stage
from heliograph.ir.analysis.carried import only
from heliograph.passes.base import run
from heliograph.passes.levels.place_chains import PlaceChains
from heliograph.passes.levels.schedule import Schedule
from heliograph.passes.levels.select_keys import SelectKeys
from heliograph.report.text import Report
from heliograph.runtime.wire.messages import CarriedValues, EncryptedInput, object_name

_LOGITS = "held_logits"


class EncryptedModel:
    """The encrypted weights of a training, with the artifact that classifies by them.

    `step`: the training's artifact (`compile_step`).
    `weights`: the carried values of one of its rounds (`Trainer.model`).

    Raises WireError if they belong to another training.
    """

    def __init__(self, step: Artifact, weights: CarriedValues) -> None:
        weights.check(step.fingerprint)
        self.artifact = model_artifact(step)
        self._weights = weights
        nodes = self.artifact.program.inputs
        names = [object_name(node.attrs["name"], node.attrs["chunk"]) for node in nodes]
        self._own = [name for name in names if name in weights.names()]

    def inputs(self, question: EncryptedInput) -> EncryptedInput:
        """The inputs for a server of the artifact: encrypted samples (`Client.encrypt_some(held=...)`) and the weights.

        Raises WireError if the samples belong to another client than the weights, or to another artifact.
        """
        question.check(self.artifact.fingerprint, self._weights.client)
        return replace(question, blobs=dict(question.blobs) | {name: self._weights.blob(name) for name in self._own})


def model_artifact(step: Artifact) -> Artifact:
    """The artifact that classifies by a model trained with `step` (`compile_step`).

    Its inputs are `held`, samples as columns with a one below each, and the weights: `w`, and `hidden_w` for a hidden
    layer. Its output, `held_logits`, is divided by the settings' `logit_range`. Its report's predicted errors are taken
    from the step, of which it is a part.
    """
    program = only(step.program, {_LOGITS})
    read = {node.attrs["name"] for node in program.inputs}
    interface = replace(program.interface, inputs=tuple(each for each in program.interface.inputs if each.name in read))
    # The longest path of a step, and changes that would shorten it, do not apply to this part.
    known = replace(step.report.figures, depth_by_line=(), savings=())
    program = replace(program, name=f"{program.name}_model", interface=interface)
    program = _with_own_keys(program, CostTable(known.costs, **known.cost_table))
    return Artifact(program, Report(complete(program, known)), {})


def _with_own_keys(program: Program, costs: CostTable) -> Program:
    """The program with only its own keys, in the chains that are best for it."""
    builder = Builder(program.name, Stage.MANAGED, program)
    # Chains chosen for the whole program do not apply to a part of it.
    builder.set_ring(program.ring)
    used = sorted({node.attrs["range"] for node in program.nodes if node.attrs.get("range") is not None})

    def emit(node: Node, operands: list[Node]) -> Node:
        if node.op == "switch_chain":
            return operands[0]
        if node.attrs.get("range") is None:
            return builder.copy(node, operands)
        return builder.op(node.op, operands, node.loc, **{**node.attrs, "range": used.index(node.attrs["range"])})

    whole = replace(builder.rewrite(program, emit), ranges=tuple(program.ranges[number] for number in used))
    return run((SelectKeys(program.ring, costs=costs), PlaceChains(), Schedule()), whole)[-1].program
