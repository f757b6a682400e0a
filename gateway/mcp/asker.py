"""Who asks with one request of MCP: whose token it is, what its client can do, and what it gets while it waits.

It is also the dispatch context that the SDK hands to handlers. A server sends no requests and waits for no reply here:
in no generation would the reply come to this process for sure. What it asks people goes out with a name that says all.
"""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from mcp.shared.exceptions import NoBackChannelError
from mcp.shared.transport_context import TransportContext
from mcp_types import ElicitRequestFormParams, JSONRPCNotification, JSONRPCRequest, ProgressToken
from pydantic import BaseModel

from turnstile.gateway.http.endpoints import Call
from turnstile.gateway.mcp.session_ids import request_key
from turnstile.schema.access import Principal
from turnstile.schema.errors import BadRequest

KEY: Final = "turnstile/idempotency_key"
"""The key of a request's `_meta` by which its turn is found again."""
_KEY_LENGTH = 256
_TRANSPORT = TransportContext(kind="streamable-http", can_send_request=False)


def sse(message: BaseModel) -> bytes:
    """A JSON-RPC message as a server-sent event."""
    body = message.model_dump(mode="json", by_alias=True, exclude_none=True)
    return f"event: message\ndata: {json.dumps(body, separators=(',', ':'))}\n\n".encode()


@dataclass(slots=True)
class Asker:
    """The client of one request."""

    call: Call[Any, Any]
    """Its HTTP request."""
    request_id: str | int
    is_stateless: bool
    """Whether it is of the generation without sessions, in which a client that goes away has cancelled."""
    session: str | None
    asks_people: bool
    """Whether its client can ask a person."""
    progress_token: ProgressToken | None
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when nobody hears the answer any more."""
    dismissed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when its person will not answer what was asked."""
    has_frames: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when there is something to send before the answer."""
    _frames: list[bytes] = field(default_factory=list[bytes])

    @property
    def principal(self) -> Principal:
        """Whose token it is."""
        return self.call.principal

    @property
    def leaving(self) -> tuple[asyncio.Event, ...]:
        """What ends its wait."""
        return self.gone, self.dismissed

    def key(self, meta: Mapping[str, object] | None) -> tuple[str | None, bool]:
        """The idempotency key of the turn it asks for, and whether the client chose it; raises `BadRequest`."""
        chosen = (meta or {}).get(KEY)
        if chosen is not None:
            if not isinstance(chosen, str) or not 0 < len(chosen) <= _KEY_LENGTH or not _is_plain(chosen):
                raise BadRequest(f"_meta[{KEY!r}] must be a text of 1 to {_KEY_LENGTH} ASCII characters")
            return chosen, True
        if self.session is None:
            return None, False
        return request_key(self.principal.token_id, self.session, self.request_id), False

    def ask_person(self, name: str, form: ElicitRequestFormParams) -> None:
        """Send a question on the open stream; its reply comes with another request, to any gateway."""
        params = form.model_dump(mode="json", by_alias=True, exclude_none=True)
        if self.is_stateless:
            raise NoBackChannelError("elicitation/create")
        self._send(JSONRPCRequest(jsonrpc="2.0", id=name, method="elicitation/create", params=params))

    def take(self) -> list[bytes]:
        """What is to be sent now."""
        self.has_frames.clear()
        frames, self._frames = self._frames, []
        return frames

    def _send(self, message: BaseModel) -> None:
        self._frames.append(sse(message))
        self.has_frames.set()

    # What the SDK asks of a dispatch context.

    transport: TransportContext = _TRANSPORT
    can_send_request: bool = False
    message_metadata: None = None

    @property
    def cancel_requested(self) -> Any:
        """The SDK's own event, which it does not wait for here."""
        return self.gone

    async def send_raw_request(self, method: str, params: Mapping[str, Any] | None, opts: Any = None) -> dict[str, Any]:
        """Nothing can be asked."""
        raise NoBackChannelError(method)

    async def notify(self, method: str, params: Mapping[str, Any] | None, opts: Any = None) -> None:
        """Send a notification on the open stream."""
        self._send(JSONRPCNotification(jsonrpc="2.0", method=method, params=None if params is None else dict(params)))

    async def progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        """Tell how far it is, if the client wants to know."""
        if self.progress_token is not None:
            progress_fields = {
                "progressToken": self.progress_token,
                "progress": progress,
                "total": total,
                "message": message,
            }
            await self.notify(
                "notifications/progress", {name: value for name, value in progress_fields.items() if value is not None}
            )


def _is_plain(text: str) -> bool:
    return text.isascii() and text.isprintable()
