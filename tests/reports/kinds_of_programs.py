"""Artifacts of each kind of program, on toy rings: plain inputs, slots, decisions, several outputs."""

from __future__ import annotations

import functools

import heliograph as hg

TEXTS = {
    "plain": """program scorer
input x: secret tensor[4] in [-1, 1]
input w: plain tensor[3, 4] in [-1, 1]
input b: plain tensor[3] in [-2, 2]
h = w @ x + relu(b)
output y = sigmoid(h) * (b * b) - 2 * b
""",
    "slots": """program filter
input x: secret slots[8] in [-1, 1]
input w: plain slots[8] in [0, 1]
s = 0.5 * x + 0.25 * rotate(x, 1) + 0.25 * rotate(x, -1)
d = rescale(s * w) - w * w
output s, y = poly(d, [1, 0.5, 0.25, 0.125], low=-2, high=1)
""",
    "decision": """program decide
input x: secret tensor[4] in [-1, 1]
a = argmax(x, axis=0, gap=0.25)
s = softmax(x, axis=0)
h = tanh(x)
output a, s, h
""",
    "outputs": """program two
input x: secret tensor[4] in [-1, 1]
h = relu(x)
output h, y = 2 * tanh(x) + h
""",
}
KINDS = tuple(TEXTS)


@functools.cache
def program(kind: str) -> hg.Program:
    return hg.parse(TEXTS[kind])


@functools.cache
def artifact(kind: str) -> hg.Artifact:
    """As a reader of the file has it."""
    made = hg.compile(program(kind), hg.Options(security_bits=None, degree=5, precision_bits=10))
    return hg.Artifact.from_bytes(made.to_bytes())
