"""The endpoints of `/v1` that are verbs, made of their declarations (protocol §14.1).

A verb whose path names a turn, a conversation, an interrupt, a budget or a period needs no code here: what the path
names is looked up within what the token may see, and the bridge is asked in its channel. Verbs that answer more than
the reply, or read the ledger, have handlers of their own.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from pydantic import BaseModel

from turnstile.gateway.asking import Asking
from turnstile.gateway.http.endpoints import Answer, Call, Endpoint, Handler
from turnstile.gateway.v1.turn_handlers import key_in
from turnstile.schema.base import JsonObject, Reply
from turnstile.schema.errors import BadRequest, Refused
from turnstile.schema.ids import ChannelId
from turnstile.schema.verbs import IDEMPOTENT, VERBS, Verb

Lookup: TypeAlias = Callable[[Call[Any, Any]], Awaitable[tuple[ChannelId, JsonObject]]]
"""The channel of what a path names, and the arguments that name it; raises `Refused` where the token sees none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerbEndpoints:
    """The endpoints, over one bridge."""

    asking: Asking
    lookups: Mapping[str, Lookup]
    """By the argument that a path names (`Route.key`)."""
    handlers: Mapping[str, Handler]
    """Handlers of their own, by verb."""

    def endpoints(self) -> list[Endpoint]:
        """All of them."""
        served = [(verb, verb.route) for verb in VERBS if verb.route is not None]
        return [Endpoint.of(route, self.handlers.get(verb.name, partial(self.ask, verb))) for verb, route in served]

    async def ask(self, verb: Verb[Any, Reply], call: Call[Any, BaseModel]) -> Answer:
        """Ask the bridge; raises as `Asking.ask` and the lookup do."""
        route = verb.route
        if route is None or route.key is None:
            raise TypeError(f"{verb.name} has no endpoint whose path names what it is about")
        channel, named = await self.lookups[route.key](call)
        payload: JsonObject = {**call.body.model_dump(mode="json", exclude_unset=True), **named}
        if IDEMPOTENT.keys() <= route.request_headers.keys() and (key := key_in(call.headers)) is not None:
            if payload.get("correlation_id") not in (None, key):
                raise BadRequest("correlation_id and Idempotency-Key differ: send only one of them")
            payload["correlation_id"] = key
        reply = await self.asking.ask(call.principal, channel, verb, payload, call.headers)
        status = next(iter(route.statuses))
        if route.part is None:
            return Answer(route.answer.model_validate(reply.model_dump()), status)
        if (part := getattr(reply, route.part)) is None:
            raise Refused("internal_error", f"the bridge accepted {verb.name} and showed no {route.part}")
        return Answer(part, status)
