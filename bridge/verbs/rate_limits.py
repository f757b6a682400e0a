"""Rate limits: one token bucket per project in the memory of each bridge (docs/limits.md, `rate_limited`).

The buckets are not durable: a restarted bridge has full buckets, and each replica has its own. Bounded: beyond
`MAX_PROJECTS`, the bucket of the project whose last request is oldest is dropped, so it starts full again. `stop` and
`report` always pass, since they end work that was admitted before.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import replace

from pydantic import BaseModel

from turnstile.bridge.verbs.micro_service import VerbHandler, VerbRequest
from turnstile.schema.ids import ProjectId
from turnstile.schema.wire.limits import rate_limited

MAX_PROJECTS = 10_000
"""Buckets in memory, about 200 bytes each."""
MAY_REPEAT = frozenset({"enqueue", "send", "delegate"})
"""Verbs that answer repeats also above the rate: they get `wait_seconds`, and refuse new requests themselves."""
ALWAYS_PASS = frozenset({"stop", "report"})


class Throttle:
    """Buckets of `burst` tokens, refilled with `rate` tokens a second; a rate of 0 means no limit."""

    def __init__(self, rate: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._burst = float(burst)
        self._clock = clock
        self._buckets: OrderedDict[ProjectId, tuple[float, float]] = OrderedDict()
        """By project: the tokens left at its last request, and that time; ordered by that time."""

    def take(self, project: ProjectId) -> float:
        """Take a token and return 0; or take none and return the seconds until there will be one."""
        if not self._rate:
            return 0.0
        now = self._clock()
        left, seen = self._buckets.pop(project, (self._burst, now))
        left = min(self._burst, left + (now - seen) * self._rate)
        passes = left >= 1
        self._buckets[project] = (left - 1 if passes else left, now)
        if len(self._buckets) > MAX_PROJECTS:
            self._buckets.popitem(last=False)
        return 0.0 if passes else (1 - left) / self._rate

    def __len__(self) -> int:
        """Number of buckets in memory."""
        return len(self._buckets)


def throttled(verbs: Mapping[str, VerbHandler], throttle: Throttle) -> dict[str, VerbHandler]:
    """The same verbs, all but `ALWAYS_PASS` limited by the throttle; they raise `Limited` (rate_limited)."""
    return {
        verb: handler if verb in ALWAYS_PASS else _throttled(verb, handler, throttle) for verb, handler in verbs.items()
    }


def _throttled(verb: str, handler: VerbHandler, throttle: Throttle) -> VerbHandler:
    async def run(request: VerbRequest) -> BaseModel:
        wait = throttle.take(request.project_id)
        if wait and verb not in MAY_REPEAT:
            raise rate_limited(wait)
        return await handler(replace(request, wait_seconds=wait) if wait else request)

    return run
