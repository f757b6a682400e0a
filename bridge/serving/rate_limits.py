"""Rate limits: one token bucket per project in the memory of each bridge (docs/limits.md, `rate_limited`).

The declaration of a verb says which of its requests count (`Verb.counted`).
"""

from collections.abc import Mapping
from dataclasses import replace

from pydantic import BaseModel

from turnstile.bridge.serving.micro_service import VerbHandler, VerbRequest
from turnstile.runtime.throttle import Throttle
from turnstile.schema.verbs import verb_named
from turnstile.schema.wire.limits import rate_limited


def throttled(verbs: Mapping[str, VerbHandler], throttle: Throttle) -> dict[str, VerbHandler]:
    """The same verbs, limited by the throttle as they declare; they raise `Limited` (rate_limited)."""
    return {verb: _throttled(verb, handler, throttle) for verb, handler in verbs.items()}


def _throttled(verb: str, handler: VerbHandler, throttle: Throttle) -> VerbHandler:
    declared = verb_named(verb)
    counted = "all" if declared is None else declared.counted
    if counted == "none":
        return handler

    async def run(request: VerbRequest) -> BaseModel:
        wait = throttle.take(request.project_id)
        if wait and counted == "all":
            raise rate_limited(wait)
        return await handler(replace(request, wait_seconds=wait) if wait else request)

    return run
