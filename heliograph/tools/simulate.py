"""Runs an artifact on the simulator: levels, scales and CKKS's error, without keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from heliograph.artifact.artifact import Artifact
from heliograph.artifact.validate import check_transforms
from heliograph.errors import RangeError
from heliograph.execution.interface import (
    batch_of,
    given_rows,
    one_row,
    pack_inputs,
    rows_of,
    sample_count,
    unpack_outputs,
    with_drawn,
)
from heliograph.execution.loop import Progress, execute
from heliograph.execution.ranges import RangeWatch
from heliograph.execution.simulator import Simulator
from heliograph.ir import Program
from heliograph.ir.node import Array


def simulate(
    artifact: Artifact,
    *samples: Any,
    seed: int = 0,
    noisy: bool = True,
    check_ranges: bool = False,
    clip: bool = False,
    scores: bool = False,
    progress: Progress | None = None,
) -> Any:
    """The simulated result of decryption: one array, or a tuple if the program has several outputs.

    samples: one array per input, including plain ones, which have no axis of samples. The encrypted inputs are those of
        one sample, or of many with a leading axis, which the results then have too. Inputs that a server draws may be
        left out: they are then drawn.
    seed: of the error, and of what is drawn; the groups of samples that run together have consecutive seeds.
    noisy: False leaves the error out.
    check_ranges: raise RangeError where the input of a polynomial leaves its interval: the error names the layer, its
        source line, the element and the excess.
    clip: replace values outside the declared ranges by the nearer end.
    scores: the values before a softmax that is left to the client.
    progress: called as `progress("simulate", done, total)` after each group of samples.

    Raises RangeError if an input is outside its declared range.
    """
    program = artifact.program
    check_transforms(program, artifact.ring)
    given = with_drawn(program, samples, np.random.default_rng(seed))
    names = list(dict.fromkeys(node.attrs["name"] for node in program.inputs))
    specs = {spec.name: spec for spec in program.interface.inputs}
    batch = batch_of(program)

    def run(rows: Any, number: int) -> list[Array]:
        """The outputs of some samples: of one for a place, of some for a slice."""
        own = with_drawn(program, samples, np.random.default_rng(seed + number))
        if rows is not None:
            own = [rows_of(value, rows) if name in specs else value for name, value in zip(names, own, strict=True)]
        if count == 0 and batch > 1:
            own = [one_row(value) if name in specs else value for name, value in zip(names, own, strict=True)]
        found = _outputs(program, own, seed + number, noisy=noisy, check_ranges=check_ranges, clip=clip)
        found = [spec.finished(out, scores=scores) for spec, out in zip(program.interface.outputs, found, strict=True)]
        return [out[0] for out in found] if count == 0 and batch > 1 else found

    encrypted = {name: value for name, value in zip(names, given, strict=False) if name in specs}
    count = sample_count([specs[name] for name in encrypted], list(encrypted.values()))
    if not count or (batch > 1 and count <= batch):
        outputs = run(None, 0)
    else:
        parts = []
        for number, start in enumerate(range(0, count, batch)):
            parts.append(run(start if batch == 1 else slice(start, start + batch), number))
            if progress is not None:
                progress("simulate", min(start + batch, count), count)
        join = np.stack if batch == 1 else np.concatenate
        outputs = [join(column) for column in zip(*parts, strict=True)]
    return outputs[0] if len(outputs) == 1 else tuple(outputs)


def _outputs(
    program: Program, samples: Sequence[Any], seed: int, *, noisy: bool, check_ranges: bool, clip: bool
) -> list[Array]:
    """The encrypted values of the outputs after decryption, for samples that run together."""
    simulator = Simulator(program, seed=seed, noisy=noisy)
    encrypted = simulator.encrypt_inputs(pack_inputs(program, samples, declared=True, clip=clip))
    watch = RangeWatch(program, lambda node, value: value.slots)
    try:
        results, _ = execute(program, simulator, encrypted, observe=watch.observe if check_ranges else None)
    except RangeError:
        # A value outgrew the modulus. The layer where this started, if known, says more.
        watch.check()
        raise
    watch.check()
    return given_rows(program, samples, unpack_outputs(program, [simulator.decrypt(result) for result in results]))
