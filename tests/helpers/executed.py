"""What becomes of executable programs on both backends, through file, client and server; and whether they agree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from helpers.keyed import keyed
from helpers.random_executables import random_executable, samples
from runtime.support import toy_artifact

from heliograph.artifact.artifact import Artifact
from heliograph.errors import HeliographError, InternalError
from heliograph.execution.interface import pack_inputs, unpack_outputs
from heliograph.execution.loop import execute
from heliograph.execution.simulator import Simulator
from heliograph.ir import Array, Program
from heliograph.ir.analysis.carried import carried_on
from heliograph.runtime.server.server import Server

BACKENDS = ("native", "openfhe")
# How many times the largest error of three simulated runs is still one that the scheme makes: each has hundreds of slots,
# but not all of what a backend rounds is in the model of their errors.
BEYOND = 16.0
# What encoding and double precision leave of a value of size one at any scale.
LEAST = 2.0**-20


# For each run of a program the tensors that came out.
Runs = list[list[Array]]


@dataclass(slots=True)
class Tally:
    """How many programs ran and how many were refused, by whom and with what; and what broke a promise."""

    made: int = 0
    not_made: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    ops: Counter[str] = field(default_factory=Counter)
    compared: int = 0
    # The largest error, as a share of what is allowed.
    worst: float = 0.0
    failures: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"{self.made} programs ({self.not_made} not made), {self.compared} results compared, the worst with "
            f"{self.worst:.3f} of the error allowed, {len(self.failures)} failures; {dict(self.counts.most_common())}"
        )


def execute_all(seeds: Iterable[int], bootstrapping: float = 0.03) -> Tally:
    """What became of the random programs of these numbers; that share of them bootstraps."""
    tally = Tally()
    for seed in seeds:
        try:
            program = random_executable(seed, bootstrapping)
        except HeliographError:
            tally.not_made += 1
            continue
        tally.made += 1
        _execute(program, seed, tally)
    return tally


def _execute(program: Program, seed: int, tally: Tally) -> None:
    def said(who: str, error: Exception) -> None:
        """A refusal in words is counted; anything else, InternalErrors too, is a failure."""
        if isinstance(error, HeliographError) and not isinstance(error, InternalError):
            tally.counts[f"{who}: refused, {type(error).__name__}"] += 1
        else:
            tally.failures.append(f"program {seed}, {who}: {type(error).__name__}: {str(error)[:300]}")

    try:
        artifact = Artifact.from_bytes(Artifact(program, toy_artifact().report, {}).to_bytes())
    except Exception as error:
        return said("reader", error)
    tally.ops.update(node.op for node in program.nodes)
    given, meant, usual = samples(program, seed), None, 0.0
    try:
        meant = _simulated(artifact, given, None)
        usual = max(_apart(meant, _simulated(artifact, given, number)) for number in (1, 2, 3))
    except Exception as error:
        # Values too large for their modulus: what backends make of them is nonsense.
        said("simulator", error)
        meant = None
    for backend in BACKENDS:
        try:
            made = _run(artifact, given, backend)
        except Exception as error:
            said(backend, error)
            continue
        tally.counts[f"{backend}: ran"] += 1
        if meant is not None:
            size = max(1.0, *(float(np.abs(each).max()) for run in meant for each in run))
            error_share = _apart(meant, made) / (BEYOND * usual + LEAST * size)
            tally.compared += 1
            tally.worst = max(tally.worst, error_share)
            if not error_share <= 1:
                tally.failures.append(f"program {seed}, {backend}: {error_share:.3g} times the error that is allowed")
    return None


def _run(artifact: Artifact, given: Mapping[str, Array], backend: str) -> Runs:
    """The outputs of one run; of a program that carries values those of two."""
    _, client, keys = keyed(artifact)
    carried = artifact.program.interface.carried_inputs
    encrypted = client.encrypt(*(given[spec.name] for spec in client.public.given))
    plain = {name: given[name] for name in artifact.plain_inputs}
    with Server(artifact, keys, backend=backend, allow_insecure=True) as server:
        if not carried:
            return [_tensors(client.decrypt(server.run(encrypted, plain=plain)))]
        kept, found = client.encrypt_carried(**{name: given[name] for name in carried}), []
        for _ in range(2):
            answer, kept = server.step(encrypted, kept, plain=plain)
            found.append(_tensors(client.decrypt(answer)))
        return found


def _simulated(artifact: Artifact, given: Mapping[str, Array], seed: int | None) -> Runs:
    """The same without encryption; with errors as CKKS makes them where there is a seed, which are carried on too."""
    program, found = artifact.program, []
    names = list(dict.fromkeys(node.attrs["name"] for node in program.inputs))
    simulator = Simulator(program, seed=seed or 0, noisy=seed is not None)
    inputs = simulator.encrypt_inputs(pack_inputs(program, tuple(given[name] for name in names)))
    becomes = dict(program.interface.carried)
    for _ in range(2 if becomes else 1):
        with np.errstate(all="ignore"):
            results, _ = execute(program, simulator, inputs)
        tensors = unpack_outputs(program, [simulator.decrypt(result) for result in results])
        named = zip((spec.name for spec in program.interface.outputs), tensors, strict=True)
        found.append([tensor for name, tensor in named if name not in becomes])
        inputs |= carried_on(program, results)
    return found


def _tensors(value: Any) -> list[Array]:
    return [np.asarray(each) for each in (value if isinstance(value, tuple) else (value,))]


def _apart(left: Runs, right: Runs) -> float:
    return max(float(np.abs(a - b).max()) for x, y in zip(left, right, strict=True) for a, b in zip(x, y, strict=True))
