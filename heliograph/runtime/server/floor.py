"""The time of a run's homomorphic calls alone: each primitive is timed separately, beside the runs."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

from heliograph.ckks.chains import chain_at
from heliograph.execution.prices import chain_of
from heliograph.execution.primitives import PRIMITIVES, Sample
from heliograph.execution.protocol import Call
from heliograph.runtime.backend import ServerEvaluator
from heliograph.runtime.keyloader import KeyLoader

# Calls that take seconds (bootstraps, sums of many ciphertexts) need only a few samples.
_FEW_SAMPLES = 3
_LONG_SECONDS = 1.0


class Floor:
    """Median times of a program's primitives, sampled between its runs in the same process.

    `sample()` times each distinct call once; `milliseconds()` is the sum of the medians over the calls of one run.
    Hoisted rotations are timed hoisted, their decomposition separately; encoding is left out. Digits and products are
    computed just before they are timed: for all levels together they would take gigabytes. `loader` has the keys of a
    server that does not hold all of them; reading them is left out too.
    """

    def __init__(self, evaluator: ServerEvaluator, calls: Mapping[Call, int], loader: KeyLoader | None = None) -> None:
        self.calls, self._loader = dict(calls), loader
        # A server that has not run anything has no bootstrap tables yet.
        evaluator.prepare()
        self._evaluator = evaluator
        self._times: dict[Call, list[float]] = {call: [] for call in self.calls}
        self._examples: dict[int, Any] = {}
        self._taken = 0

    @property
    def samples(self) -> int:
        """The number of times that each primitive has been timed."""
        return min((len(times) for times in self._times.values() if not _enough(times)), default=self._taken)

    def sample(self) -> None:
        self._taken += 1
        for call, times in self._times.items():
            if _enough(times):
                continue
            operation = self._operation(call)
            begun = time.perf_counter()
            operation()
            times.append((time.perf_counter() - begun) / PRIMITIVES[call.primitive].calls)

    def milliseconds(self) -> float:
        return 1e3 * sum(count * statistics.median(self._times[call]) for call, count in self.calls.items())

    def medians_ms(self) -> dict[Call, float]:
        """The median of each primitive."""
        return {call: 1e3 * statistics.median(times) for call, times in self._times.items()}

    def _operation(self, call: Call) -> Callable[[], Any]:
        evaluator, primitive, level = self._evaluator, PRIMITIVES[call.primitive], call.level
        if level not in self._examples:
            self._examples[level] = evaluator.example(level)
        chain = chain_of(call, evaluator.chains)
        x, do = self._examples[level], evaluator.part(evaluator.chains.index(chain))
        if chain is not chain_at(evaluator.chains, level):
            x = do.move(x, level)
        if call.size == 3 and not primitive.bootstraps:
            x = do.mul(x, x)
        amount = next(iter(chain.rotation_keys), 0)
        if self._loader is not None and chain.rotation_keys:
            with self._loader.lock:
                amount = self._loader.rotation(chain.ring, chain.rotation_keys)
        return primitive.ready(do, Sample(chain.ring, level, call.size, amount, x))


def _enough(times: list[float]) -> bool:
    """Whether a call takes long and has been timed a few times."""
    return len(times) >= _FEW_SAMPLES and statistics.median(times) > _LONG_SECONDS
