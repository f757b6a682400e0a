"""Asks the bridge's verbs for a principal: the gateway's one way to change anything (protocol §14).

What the bridge answers becomes a reply or an error with the bridge's code. `CG-Sender` names the token, and the trace
of the caller goes on, so that ledger and traces say who asked.
"""

from collections.abc import Mapping
from typing import TypeVar

from pydantic import BaseModel
from starlette.datastructures import Headers

from turnstile.gateway.http.problems import Overloaded
from turnstile.schema.access import Principal
from turnstile.schema.base import JsonObject
from turnstile.schema.errors import BadRequest, Refused, ServerUnavailable
from turnstile.schema.ids import ChannelId, token
from turnstile.schema.states import ReplyStatus
from turnstile.schema.wire import headers as names
from turnstile.schema.wire.inbox import Reply
from turnstile.sdk.client import BridgeClient
from turnstile.transport.connection import NatsConnection

Answer = TypeVar("Answer", bound=Reply)
_PASSED = (names.TRACEPARENT, names.TRACESTATE)
_LONGEST = 512


class Asking:
    """The bridge, as principals may ask it."""

    def __init__(self, conn: NatsConnection, default_channel: ChannelId) -> None:
        self._conn = conn
        self._default_channel = default_channel

    def channel(self, principal: Principal, wanted: str | None) -> ChannelId:
        """The channel that a request is about: the token's own, else the one asked for, else the default.

        Raises `Refused` (forbidden) where the token is for another one, and `BadRequest` for a name that is no token.
        """
        if wanted is None:
            return principal.channel_id or self._default_channel
        channel = ChannelId(token(wanted, "channel_id"))
        if not principal.sees(channel):
            raise Refused("forbidden", "the token is for another channel")
        return channel

    async def ask(
        self,
        principal: Principal,
        channel: ChannelId,
        verb: str,
        payload: BaseModel | JsonObject,
        reply: type[Answer],
        given: Headers,
    ) -> Answer:
        """Request a verb and return its accepted reply.

        Raises `BadRequest`, `Refused` or `Overloaded` with the bridge's code, and `ServerUnavailable`.
        """
        client = BridgeClient(self._conn, principal.project_id, channel)
        answer = await client.request(verb, payload, headers={**_passed(given), names.SENDER: principal.sender})
        return accepted(reply, answer)


def accepted(reply: type[Answer], answer: JsonObject) -> Answer:
    """The reply if it was accepted; raises as `Asking.ask` does."""
    read = reply.model_validate(answer)
    if read.status is ReplyStatus.ACCEPTED:
        return read
    code, message = read.error_code or str(read.status), read.error or f"the bridge answered {read.status}"
    if read.status is ReplyStatus.BUSY:
        wait = answer.get("retry_after_seconds")
        raise Overloaded(code, message, retry_after=float(wait) if isinstance(wait, int | float) else None)
    if read.status is ReplyStatus.ERROR and code != "result_too_large":
        raise ServerUnavailable(message)
    if code == BadRequest.code:
        raise BadRequest(message)
    raise Refused(code, message)


def _passed(given: Headers) -> Mapping[str, str]:
    """The caller's trace; what is malformed begins a new one, as W3C asks."""
    return {
        name: value for name in _PASSED if (value := given.get(name)) and len(value) <= _LONGEST and value.isascii()
    }
