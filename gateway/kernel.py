"""What the handlers of other protocols work with: the parts of a gateway, and the verbs that they need."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from turnstile.gateway.addressed import AddressedTarget
from turnstile.gateway.events.feeds import Feeds
from turnstile.gateway.events.stream import Streaming
from turnstile.gateway.http.bearers import Access
from turnstile.gateway.http.endpoints import Call
from turnstile.gateway.v1.turn_handlers import Turns
from turnstile.ledger.pool import Pool
from turnstile.schema import verbs
from turnstile.schema.base import JsonObject
from turnstile.schema.errors import Refused
from turnstile.schema.ids import BoxId, ChannelId
from turnstile.schema.wire.box_requests import BoxMakeRequest, Part
from turnstile.schema.wire.descriptions import TurnView
from turnstile.transport.connection import NatsConnection


@dataclass(frozen=True, slots=True)
class Kernel:
    """The parts of one gateway."""

    pool: Pool
    turns: Turns
    feeds: Feeds
    access: Access
    streaming: Streaming
    heartbeat_seconds: float
    conn: NatsConnection

    async def make_box(self, call: Call[Any, Any], channel: ChannelId, parts: Sequence[Part], key: str | None) -> BoxId:
        """A new box of these parts, the same one for the same `Idempotency-Key`; raises as `Asking.ask` does."""
        name = None if key is None else f"openai-{hashlib.sha256(key.encode()).hexdigest()}"
        request = BoxMakeRequest(parts=list(parts), correlation_id=name)
        payload = request.model_dump(mode="json", exclude_none=True)
        reply = await self.turns.asking.ask(call.principal, channel, verbs.BOX_MAKE, payload, call.headers)
        if reply.box_id is None:
            raise Refused("internal_error", "the bridge made a box and named none")
        return reply.box_id

    async def enqueue(
        self, call: Call[Any, Any], channel: ChannelId, target: AddressedTarget, fields: JsonObject, key: str | None
    ) -> TurnView:
        """A turn for the target, the same one for the same `Idempotency-Key`.

        Raises as `Asking.ask` does.
        """
        payload: JsonObject = {**target.fields(), **fields}
        if key is not None:
            payload["correlation_id"] = key
        asking = self.turns.asking
        reply = await asking.ask(call.principal, channel, verbs.ENQUEUE, payload, call.headers, own_boxes=True)
        return await self.turns.made(call.principal, reply, channel)
