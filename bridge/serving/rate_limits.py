"""Rate limits: one token bucket per project in the memory of each bridge (docs/limits.md, `rate_limited`).

`stop` and `report` always pass, since they end work that was admitted before; `progress` has a rate of its own.
"""

from collections.abc import Mapping
from dataclasses import replace

from pydantic import BaseModel

from turnstile.bridge.serving.micro_service import VerbHandler, VerbRequest
from turnstile.runtime.throttle import Throttle
from turnstile.schema.wire.limits import rate_limited

MAY_REPEAT = frozenset({"enqueue", "send", "delegate"})
"""Verbs that answer repeats also above the rate: they get `wait_seconds`, and refuse new requests themselves."""
ALWAYS_PASS = frozenset({"stop", "report", "progress"})


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
