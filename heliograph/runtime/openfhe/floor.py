"""What a run would take if it were only its homomorphic calls: each primitive timed alone, beside the runs."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from heliograph.ckks.chains import chain_at
from heliograph.errors import InternalError
from heliograph.execution.protocol import BOOTSTRAPS, IN_WHOLE_CHAIN, Call
from heliograph.runtime.openfhe import bootstrapping
from heliograph.runtime.openfhe.context import working_context
from heliograph.runtime.openfhe.encapsulation import conjugation_index
from heliograph.runtime.openfhe.evaluator import OpenFHEEvaluator
from heliograph.runtime.openfhe.tags import chain_tag
from heliograph.runtime.openfhe.template import moved

# A bootstrap takes seconds and is made of many primitives; a few times are enough.
_BOOTSTRAP_SAMPLES = 3


class Floor:
    """Medians of the primitives that a program calls, sampled in between its runs in the same process.

    `sample()` times each distinct call once; `milliseconds()` is the sum over the calls of one run of the median of each.
    Hoisted rotations are timed hoisted, their decomposition apart; encoding is left out. Digits and products are made
    just before they are timed: those of all levels together would take gigabytes.
    """

    def __init__(self, evaluator: OpenFHEEvaluator, ciphertext: Any, calls: Mapping[Call, int]) -> None:
        self.calls = dict(calls)
        # A server that has run nothing has no tables of bootstraps yet.
        evaluator.prepare()
        self._evaluator, self._tag = evaluator, str(ciphertext.GetKeyTag())
        self._times: dict[Call, list[float]] = {call: [] for call in self.calls}
        self._examples: dict[int, Any] = {}

    @property
    def samples(self) -> int:
        """How many times each primitive has been timed."""
        return min((len(times) for (name, _, _), times in self._times.items() if name not in BOOTSTRAPS), default=0)

    def sample(self) -> None:
        for call, times in self._times.items():
            if call[0] in BOOTSTRAPS and len(times) >= _BOOTSTRAP_SAMPLES:
                continue
            operation = self._operation(*call)
            begun = time.perf_counter()
            operation()
            times.append(time.perf_counter() - begun)

    def milliseconds(self) -> float:
        return 1e3 * sum(count * statistics.median(self._times[call]) for call, count in self.calls.items())

    def medians_ms(self) -> dict[Call, float]:
        """The median of each primitive."""
        return {call: 1e3 * statistics.median(times) for call, times in self._times.items()}

    def _operation(self, primitive: str, level: int, parts: int) -> Callable[[], Any]:
        evaluator = self._evaluator
        cc, ring = evaluator.context_at(level), evaluator.ring_at(level)
        if level not in self._examples:
            self._examples[level] = evaluator.example(level, self._tag)
        x = self._examples[level]
        if primitive in IN_WHOLE_CHAIN:
            whole = evaluator.ring
            x = moved(x, whole, level, chain_tag(self._tag, whole, whole))
            if primitive == "conjugate":
                return lambda: working_context(whole).EvalRotate(x, conjugation_index(whole))
            return lambda: bootstrapping.bootstrap(whole, x, parts, paired=primitive == "bootstrap_pair")
        if parts == 3:
            x = cc.EvalMultNoRelin(x, x)
        keys = chain_at(evaluator.chains, level).rotation_keys
        if primitive == "rotate":
            return lambda: cc.EvalRotate(x, keys[0])
        if primitive == "decompose":
            return lambda: cc.EvalFastRotationPrecompute(x)
        if primitive == "rotate_hoisted":
            digits = cc.EvalFastRotationPrecompute(x)
            return lambda: cc.EvalFastRotation(x, keys[0], 2 * ring.ring_dim, digits)
        if primitive == "relinearize":
            return lambda: cc.Relinearize(x)
        if primitive == "rescale":
            return lambda: cc.Rescale(x)
        if primitive == "mul":
            return lambda: cc.EvalMultNoRelin(x, x)
        if primitive == "mul_scalar":
            return lambda: cc.EvalMult(x, 0.5)
        if primitive == "add":
            return lambda: cc.EvalAdd(x, x)
        if primitive == "accumulate":
            total = x.Clone()
            return lambda: cc.EvalAddInPlace(total, x)
        if primitive in ("mul_pt", "add_pt"):
            # The plaintext is known only at run time: its encoding is part of the operation.
            values = np.linspace(-1.0, 1.0, ring.slots)
            degree = x.GetNoiseScaleDeg() if primitive == "add_pt" else 1
            combine = cc.EvalMult if primitive == "mul_pt" else cc.EvalAdd
            return lambda: combine(x, cc.MakeCKKSPackedPlaintext(values, degree, ring.levels - level, None, ring.slots))
        if primitive in ("mul_plain", "add_plain"):
            values = np.linspace(-1.0, 1.0, ring.slots)
            degree = x.GetNoiseScaleDeg() if primitive == "add_plain" else 1
            plain = cc.MakeCKKSPackedPlaintext(values, degree, ring.levels - level, None, ring.slots)
            return (lambda: cc.EvalMult(x, plain)) if primitive == "mul_plain" else (lambda: cc.EvalAdd(x, plain))
        raise InternalError(f"no way to time {primitive}")
