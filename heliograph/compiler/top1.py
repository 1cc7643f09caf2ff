"""A classifier that reveals only the class to its client, not the logits."""

from __future__ import annotations

from dataclasses import replace

from heliograph.compiler.arguments import require_program
from heliograph.errors import ProgramError
from heliograph.ir import Builder, Program, Stage, TensorType
from heliograph.ir.interface import TensorSpec


def top1(
    program: Program, *, gap: float | None = None, bits: float | None = None, axis: int = -1, index: bool = False
) -> Program:
    """The program with its only output replaced by its one-hot argmax, or by the position of the maximum with `index`.

    `gap` is the smallest difference between the largest and the next logit that must be resolved, in units of the
    logits (default: from calibration); for smaller differences the result lies between the two. `bits` is the closeness
    of the result to 0 and 1. Logits do not leave the server, and slots without a result are proved not to depend on any
    input. `Options(flood=...)` hides what the distance from 0 and 1 still reveals about the logits.
    """
    require_program(program, "top1")
    if program.stage is not Stage.TENSOR or len(program.outputs) != 1:
        raise ProgramError(
            f"top1 takes a tensor program with one output, the logits; {program.name!r} has {len(program.outputs)}"
        )
    logits = program.outputs[0]
    if not isinstance(logits.type, TensorType) or not logits.type.shape:
        raise ProgramError("top1 takes a vector of logits, not one number", where=logits.loc)
    builder = Builder(program.name, Stage.TENSOR, program)
    builder.inputs = list(program.inputs)
    loc = replace(logits.loc, layer="argmax")
    made = builder.op("argmax", (logits,), loc, axis=axis, gap=gap, bits=bits, index=True if index else None)
    found = builder.finish({program.output_names[0]: made})
    # What clients compute of the logits after decryption, such as a softmax, they must not compute of the class.
    kept = tuple(
        TensorSpec(spec.name, spec.shape, columns=spec.columns, labels=spec.labels)
        for spec in program.interface.outputs
        if spec.labels is not None and not index
    )
    return replace(found, interface=replace(found.interface, outputs=kept))
