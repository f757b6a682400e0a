"""Token buckets, one for each project or token of a caller, in the memory of a process.

They are not durable: a restarted process has full buckets, and each replica has its own. Bounded: beyond `MAX_BUCKETS`
the one whose last request is oldest is dropped, so it starts full again.
"""

import time
from collections import OrderedDict
from collections.abc import Callable

MAX_BUCKETS = 10_000
"""Buckets in memory, about 200 bytes each."""


class Throttle:
    """Buckets of `burst` tokens, refilled with `rate` tokens a second; a rate of 0 means no limit."""

    def __init__(self, rate: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._burst = float(burst)
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """By whom it is for: the tokens left at its last request, and that time; ordered by that time."""

    def take(self, who: str) -> float:
        """Take a token and return 0; or take none and return the seconds until there will be one."""
        if not self._rate:
            return 0.0
        now = self._clock()
        left, seen = self._buckets.pop(who, (self._burst, now))
        left = min(self._burst, left + (now - seen) * self._rate)
        passes = left >= 1
        self._buckets[who] = (left - 1 if passes else left, now)
        if len(self._buckets) > MAX_BUCKETS:
            self._buckets.popitem(last=False)
        return 0.0 if passes else (1 - left) / self._rate

    def __len__(self) -> int:
        """Number of buckets in memory."""
        return len(self._buckets)
