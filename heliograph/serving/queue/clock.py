"""The clock for retention times on a server: the wall clock without its jumps."""

from __future__ import annotations

import threading
import time

# A step of the wall clock beyond this, against the monotonic clock, is a jump.
_JUMP_S = 60.0
# A longer stop of the server, by the wall clock, counts as a jump too: there is no other measure of its length.
_AWAY_S = 86_400.0


class Clock:
    """Seconds since the epoch that advance evenly whatever the wall clock does, also across restarts.

    A jump does not make stored data older: `skew` is the sum of the jumps, and `now` is the wall clock minus `skew`. A
    server that continues from an earlier one passes the values noted then: `skew`, and `last`, the last value of `now`.
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
        """The time and the skew, both now."""
        with self._lock:
            wall, steady = time.time(), time.monotonic()
            step = (wall - self._wall) - (steady - self._steady)
            if abs(step) > _JUMP_S:
                self._skew += step
            self._wall, self._steady = wall, steady
            return wall - self._skew, self._skew

    def shown(self, moment: float) -> float:
        """A time of this clock converted to the present wall clock, for clients."""
        return moment + self._skew
