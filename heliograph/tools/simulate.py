"""Runs an artifact on the simulator: levels, scales and CKKS's error, without keys."""

from __future__ import annotations

from typing import Any

import numpy as np

from heliograph.artifact.artifact import Artifact
from heliograph.artifact.validate import check_transforms
from heliograph.errors import RangeError
from heliograph.execution.interface import given_rows, pack_inputs, unpack_outputs, with_drawn
from heliograph.execution.loop import execute
from heliograph.execution.ranges import RangeWatch
from heliograph.execution.simulator import Simulator


def simulate(artifact: Artifact, *samples: Any, seed: int = 0, noisy: bool = True, check_ranges: bool = False) -> Any:
    """The simulated result of decryption for one sample (one array per input, including plain ones, no batch axis).

    Inputs that a server draws may be left out: they are then drawn with `seed`. An artifact for several samples at once
    takes up to that many, with a leading axis, and returns as many results.

    The error is drawn at random with `seed`; `noisy=False` leaves it out. Raises RangeError if an input is outside its
    declared range, and, with `check_ranges`, if the input of a polynomial leaves its interval: the error names the
    layer, its source line, the element and the excess.
    """
    program = artifact.program
    check_transforms(program, artifact.ring)
    simulator = Simulator(program, seed=seed, noisy=noisy)
    samples = tuple(with_drawn(program, samples, np.random.default_rng(seed)))
    encrypted = simulator.encrypt_inputs(pack_inputs(program, samples, declared=True))
    watch = RangeWatch(program, lambda node, value: value.slots)
    try:
        results, _ = execute(program, simulator, encrypted, observe=watch.observe if check_ranges else None)
    except RangeError:
        # A value outgrew the modulus. The layer where this started, if known, says more.
        watch.check()
        raise
    watch.check()
    outputs = given_rows(program, samples, unpack_outputs(program, [simulator.decrypt(result) for result in results]))
    outputs = [spec.finished(out) for spec, out in zip(program.interface.outputs, outputs, strict=True)]
    return outputs[0] if len(outputs) == 1 else tuple(outputs)
