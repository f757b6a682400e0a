"""How often a project may ask one bridge: a token bucket each, in memory (docs/limits.md, `rate_limited`).

Figures only, never truth: a bridge that starts anew has full buckets, and each replica has its own. Bounded: of the
projects that asked longest ago the bucket is forgotten, which gives them a full one. `stop` and `report` always pass,
since they end work that was let in before.
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
"""Buckets kept, some 200 bytes each."""
MAY_REPEAT = frozenset({"enqueue", "send"})
"""Verbs that answer a repeat first: they are told of the wait, and refuse what is none."""
ALWAYS_PASS = frozenset({"stop", "report"})


class Throttle:
    """Buckets of `burst` requests that fill at `rate` a second; a rate of 0 lets everything pass."""

    def __init__(self, rate: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._burst = float(burst)
        self._clock = clock
        self._buckets: OrderedDict[ProjectId, tuple[float, float]] = OrderedDict()
        """What was left in each, and when; those that asked last are last."""

    def take(self, project: ProjectId) -> float:
        """Take one; returns 0, or in how many seconds there will be one, and then takes none."""
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
        """How many buckets are kept."""
        return len(self._buckets)


def throttled(verbs: Mapping[str, VerbHandler], throttle: Throttle) -> dict[str, VerbHandler]:
    """The same verbs, those that the rate bounds behind the throttle; they raise `Limited` (rate_limited)."""
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
