"""Asks the bridge's verbs for a principal: the gateway's one way to change anything (protocol §14).

What the bridge answers becomes a reply or an error with the bridge's code. The token is the caller at the subject's
end, or `CG-Sender`; the trace goes on, so that ledger and traces say who asked. A token of a channel names what is the
channel's own: its correlations begin with the channel, and a box that no turn of the channel has is asked for as one
that nobody has.
"""

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel
from starlette.datastructures import Headers

from turnstile.ledger.access.pages import is_box_of_channel
from turnstile.ledger.pool import Pool
from turnstile.schema.access import Principal
from turnstile.schema.base import JsonObject, Reply
from turnstile.schema.errors import Refused
from turnstile.schema.ids import BoxId, ChannelId, ProjectId, new_box_id, token
from turnstile.schema.verbs import ENQUEUE, Verb
from turnstile.schema.wire import headers as names
from turnstile.sdk.client import BridgeClient
from turnstile.transport.connection import NatsConnection

Answer = TypeVar("Answer", bound=Reply)
_PASSED = (names.TRACEPARENT, names.TRACESTATE)
_LONGEST = 512
_BOXES = ("context_box_id", "output_box_id")


class Asking:
    """The bridge, as principals may ask it."""

    def __init__(self, conn: NatsConnection, pool: Pool, default_channel: ChannelId) -> None:
        self._conn = conn
        self._pool = pool
        self._default_channel = default_channel

    def channel(self, principal: Principal, requested: str | None) -> ChannelId:
        """The channel that a request is about: the token's own, else the one asked for, else the default.

        Raises `Refused` (forbidden) where the token is for another one, and `BadRequest` for a name that is no token.
        """
        if requested is None:
            return principal.channel_id or self._default_channel
        channel = ChannelId(token(requested, "channel_id"))
        if not principal.sees(channel):
            raise Refused("forbidden", "the token is for another channel")
        return channel

    async def ask(
        self,
        principal: Principal,
        channel: ChannelId,
        verb: Verb[Any, Answer],
        payload: BaseModel | JsonObject,
        headers: Headers,
        *,
        own_boxes: bool = False,
    ) -> Answer:
        """Request a verb and return its accepted reply; `own_boxes`: the boxes that it names were made for it here.

        Raises `Refused` with the bridge's code, which is `Limited` where the request may be accepted later, and
        `ServerUnavailable`.
        """
        client = BridgeClient(self._conn, principal.project_id, channel)
        if principal.channel_id is not None:
            payload = payload.model_dump(mode="json", exclude_unset=True) if isinstance(payload, BaseModel) else payload
            if verb is ENQUEUE and not own_boxes:
                payload = await self._with_own_boxes(principal.project_id, principal.channel_id, payload)
            payload = _with_own_key(principal, payload)
        caller = None if verb.caller == "none" else principal.caller
        sent_headers = {**_passed(headers), names.SENDER: principal.sender}
        return await client.call(verb, payload, headers=sent_headers, caller=caller)

    async def _with_own_boxes(self, project: ProjectId, channel: ChannelId, payload: JsonObject) -> JsonObject:
        """An enqueue whose boxes are those of one channel; what is not is replaced by what nobody has."""
        fields = {**payload}
        for name in _BOXES:
            match fields.get(name):
                case str() as box if not await self._pool.run(
                    lambda conn, box=box: is_box_of_channel(conn, project, channel, BoxId(box))
                ):
                    fields[name] = new_box_id()
                case _:
                    pass
        return fields


def key_of(principal: Principal, key: str) -> str:
    """A correlation as it is in the ledger: that of a token of a channel is the channel's own."""
    return key if principal.channel_id is None else f"{principal.channel_id}/{key}"


def _with_own_key(principal: Principal, payload: JsonObject) -> JsonObject:
    """A request whose correlation, if it has one, is the channel's own."""
    match payload.get("correlation_id"):
        case str() as key:
            return {**payload, "correlation_id": key_of(principal, key)}
        case _:
            return payload


def _passed(headers: Headers) -> Mapping[str, str]:
    """The caller's trace; what is malformed begins a new one, as W3C asks."""
    return {
        name: value for name in _PASSED if (value := headers.get(name)) and len(value) <= _LONGEST and value.isascii()
    }
