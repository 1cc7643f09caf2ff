"""One training step as a program with state, and its compilation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from heliograph.artifact.artifact import Artifact
from heliograph.compiler.driver import compile as compile_program
from heliograph.compiler.options import Options
from heliograph.dsl.parse import parse
from heliograph.ir import Array, Program
from heliograph.transfer.clear import ClearRun, State
from heliograph.transfer.coarse import coarse
from heliograph.transfer.data import TransferData
from heliograph.transfer.layers import Layers, Seen
from heliograph.transfer.settings import TransferSettings, momentum

# Weights are kept divided by their range, so that bootstrapped values are at most one.
_STEP = """
program transfer

# Samples are columns; the last feature is a one, its weight the bias.
input x: secret tensor[{features}, {batch}] in [-{size}, {size}]
input y: secret tensor[{classes}, {batch}] in [0, 1]
input held: secret tensor[{features}, {batch}] in [-{size}, {size}]
input w: carried tensor[{classes}, {features}] in [-1, 1]
input v: carried tensor[{classes}, {features}] in [-1, 1]
input rate: plain tensor[] in [0, {most_rate}]
input momentum: plain tensor[] in [-1, 0]

z = (v @ x) * {range}
p = softmax(z, axis=0) with range = [-{limit}, {limit}]
gradient = ((p - y) @ permute(x, axes=[1, 0])) * (1 / {batch} / {range})

# Divided by the range of the softmax: what leaves has little room.
output logits = z * (1 / {limit})
output held_logits = (w @ held) * ({range} / {limit})
output w = v - gradient * rate
output v = v * (1 - momentum) - gradient * ((1 - momentum) * rate) + w * momentum
"""
# The same with a hidden layer: b^2 - 1/4 for b = (a + 1) / 2 is the activation, and b its derivative.
_HIDDEN_STEP = """
program transfer

# Samples are columns; the last feature is a one, its weight the bias of the hidden layer.
input x: secret tensor[{features}, {batch}] in [-{size}, {size}]
input y: secret tensor[{classes}, {batch}] in [0, 1]
input held: secret tensor[{features}, {batch}] in [-{size}, {size}]
input hidden_w: carried tensor[{hidden}, {features}] in [-1, 1]
input hidden_v: carried tensor[{hidden}, {features}] in [-1, 1]
input w: carried tensor[{classes}, {hidden}] in [-1, 1]
input v: carried tensor[{classes}, {hidden}] in [-1, 1]
input rate: plain tensor[] in [0, {most_rate}]
input momentum: plain tensor[] in [-1, 0]

b = (hidden_v @ x) * ({range} / 2) + 0.5
h = b * b - 0.25
z = (v @ h) * {range}
p = softmax(z, axis=0) with range = [-{limit}, {limit}]
away = p - y
gradient = (away @ permute(h, axes=[1, 0])) * (1 / {batch} / {range})
back = (permute(v, axes=[1, 0]) @ away) * b
hidden_gradient = (back @ permute(x, axes=[1, 0])) * (1 / {batch})

held_b = (hidden_w @ held) * ({range} / 2) + 0.5

# Divided by their ranges: what leaves has little room.
output logits = z * (1 / {limit})
output hidden = b * (2 / {hidden_range}) - 1 / {hidden_range}
output held_logits = (w @ (held_b * held_b - 0.25)) * ({range} / {limit})
output hidden_w = hidden_v - hidden_gradient * rate
output hidden_v = hidden_v * (1 - momentum) - hidden_gradient * ((1 - momentum) * rate) + hidden_w * momentum
output w = v - gradient * rate
output v = v * (1 - momentum) - gradient * ((1 - momentum) * rate) + w * momentum
"""
# The error that encryption may add to an output, as a share of the largest output (2**-bits). Bootstraps refresh
# weights divided by their range, and multiplying them back scales up the errors. With 10 bits SNIPS stops an epoch
# early: losses are then off by 0.0003, and near the end they differ by 0.0002 from one epoch to the next
# (docs/transfer.md).
_PRECISION_BITS = 13.0
_SAMPLES, _EPOCHS_SEEN = 8, 30


def step_program(data: TransferData, settings: TransferSettings, states: Sequence[State] = ()) -> Program:
    """The program of one step.

    `states` are states of a similar training, from which the sizes of bootstrapped values are observed. If they come
    from data like the owner's, the program reveals nothing about the owner's data: neither it nor the artifact contains
    the states.
    """
    layers = Layers.of(data, settings)
    text = (_HIDDEN_STEP if settings.hidden else _STEP).format(
        hidden=settings.hidden,
        hidden_range=settings.hidden_range,
        features=data.features + 1,
        batch=settings.batch,
        classes=data.classes,
        size=data.size,
        most_rate=2.0 * settings.rate,
        range=settings.weight_range,
        limit=settings.logit_range,
    )
    program = parse(text)
    if not states:
        return program
    batches, held = data.batches(settings), data.validation(settings)[0]
    samples = [
        (
            *batches[state.step % len(batches)],
            held,
            *_carried(layers, state, settings.weight_range),
            settings.rate,
            momentum(state.step),
        )
        for state in states
    ]
    return replace(program, calibration=tuple(np.stack(column) for column in zip(*samples, strict=True)))


def _carried(layers: Layers, state: State, weight_range: float) -> list[Array]:
    """The carried values of a state, in the order of the program's inputs."""
    pairs = zip(layers.matrices(state.weights), layers.matrices(state.ahead), strict=True)
    return [matrix / weight_range for pair in pairs for matrix in pair]


def compile_step(data: TransferData, settings: TransferSettings, options: Options | None = None) -> Artifact:
    """The artifact of one step. Sizes of values are observed in a training in the clear on data like the owner's.

    The server gets the artifact, so it contains only powers of two about the data (transfer/coarse.py).
    """
    made = options or Options()
    chosen = replace(
        made,
        target_error=made.target_error or settings.softmax_error,
        precision_bits=max(made.bits(), _PRECISION_BITS),
    )
    return coarse(compile_program(step_program(data, settings, seen_states(data, settings)), chosen))


def seen_states(data: TransferData, settings: TransferSettings) -> list[State]:
    """States at some steps of a training in the clear, evenly spaced from the first to the last."""
    run = ClearRun(data, settings)
    states = [run.state]

    def left(seen: Seen) -> bool:
        return seen.logit > settings.logit_range or seen.hidden > settings.hidden_range

    for _epoch in range(min(settings.most_epochs, _EPOCHS_SEEN)):
        seen = [run.step() for _ in range(data.steps(settings))]
        if any(map(left, seen)) or np.abs(run.state.ahead).max() > settings.weight_range:
            # Later states leave the ranges, and the training stops. The last state is dropped too if its own step left
            # first.
            if left(seen[0]) and len(states) > 1:
                states.pop()
            break
        states.append(run.state)
    places = np.unique(np.linspace(0, len(states) - 1, _SAMPLES).round().astype(int))
    return [states[place] for place in places]
