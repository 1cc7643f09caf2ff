"""The time by which a server keeps and deletes: the wall clock, less its jumps."""

from __future__ import annotations

import threading
import time

# A step of the wall clock beyond this, against the monotonic clock, is a jump.
_JUMP_S = 60.0
# A stop of the server that took longer, by the wall clock, counts as a jump too: nothing else tells how long it was.
_AWAY_S = 86_400.0


class Clock:
    """Seconds since the epoch that go on evenly whatever the wall clock does, over restarts too.

    Nothing that is kept gets older by a jump: `skew` is what the jumps add up to, and `now` is the wall clock less that. A
    server that goes on from an earlier one gives what that one had noted: its skew, and what its `now` was `last`.
    """

    def __init__(self, skew: float = 0.0, last: float | None = None) -> None:
        self._lock = threading.Lock()
        self._wall, self._steady, self._skew = time.time(), time.monotonic(), skew
        if last is not None:
            away = self._wall - skew - last
            if not -_JUMP_S <= away <= _AWAY_S:
                self._skew += away

    def now(self) -> float:
        return self.noted()[0]

    def noted(self) -> tuple[float, float]:
        """The time, and the skew at it."""
        with self._lock:
            wall, steady = time.time(), time.monotonic()
            step = (wall - self._wall) - (steady - self._steady)
            if abs(step) > _JUMP_S:
                self._skew += step
            self._wall, self._steady = wall, steady
            return wall - self._skew, self._skew

    def shown(self, moment: float) -> float:
        """A time of this clock as the wall clock tells it now, for clients."""
        return moment + self._skew
