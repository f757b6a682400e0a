"""What the three providers' stubs have in common: a list of replies, a record of requests, and refusals.

A stub refuses what the real service refuses, with its status and the form of its errors; a test that expects none
looks at `refusals`.
"""

import json
import re
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

from tests.activities.models.http_stub import Ending, HttpReply, HttpRequest, HttpStub
from turnstile.schema.base import JsonObject

API_KEY = "sk-marker-key-4711"
"""The key that every stub wants."""

PLAIN = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")


class Refused(Exception):
    """The stub does not take this request."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


def require(condition: object, message: str) -> None:
    """Refuse unless `condition`."""
    if not condition:
        raise Refused(message)


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call; `arguments` are the pieces of its JSON."""

    name: str
    arguments: Sequence[str] = ("{}",)
    id: str | None = "call_0"
    index: int | None = None
    """Instead of its place among the calls."""
    signature: str | None = None
    """What a provider that signs calls wants back with it."""


@dataclass(frozen=True, slots=True)
class Said:
    """An answer, rendered in the provider's form."""

    text: Sequence[str] = ()
    reasoning: Sequence[str] = ()
    calls: Sequence[Call] = ()
    finish: str | None = None
    """The provider's own word for it; the usual one if None."""
    usage: bool = True
    events: int | None = None
    """How many of the events are sent before `ending`; all if None."""
    ending: Ending = "end"
    garbage: bytes | None = None
    """Sent as an event of its own after the `events`."""


@dataclass(frozen=True, slots=True)
class Fault:
    """An error instead of an answer. `body` is what the provider's JSON says, `error_type` its name for it."""

    status: int
    message: str = "stub says no"
    error_type: str = "error"
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    body: bytes | None = None


PROMPT_TOKENS = 11
COMPLETION_TOKENS = 7


class ProviderStub(HttpStub):
    """A provider with scripted replies: each request takes the next one, the last one serves all further."""

    def __init__(self, *replies: Said | Fault) -> None:
        super().__init__()
        self.replies = list(replies)
        self.bodies: list[JsonObject] = []
        self.requests: list[HttpRequest] = []
        self.refusals: list[str] = []

    prefix: ClassVar[str]
    """litellm's name of the provider."""
    model: ClassVar[str]
    """A model id with a known price."""

    @property
    @abstractmethod
    def api_base(self) -> str:
        """What to give litellm."""

    @abstractmethod
    def check(self, request: HttpRequest, body: Any) -> None:
        """Raise `Refused` for what the real service refuses."""

    @abstractmethod
    def render(self, said: Said) -> Iterable[bytes]:
        """The events of an answer."""

    @abstractmethod
    def error_body(self, fault: Fault) -> JsonObject:
        """An error in the provider's form."""

    async def reply(self, request: HttpRequest) -> HttpReply:
        """Check, record, and answer with the next reply."""
        self.requests.append(request)
        try:
            body = request.json()
            self.bodies.append(body)
            self.check(request, body)
        except Refused as error:
            self.refusals.append(str(error))
            return self._fault(Fault(error.status, str(error), "invalid_request_error"))
        reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        if isinstance(reply, Fault):
            return self._fault(reply)
        events = list(self.render(reply))[: reply.events]
        if reply.garbage is not None:
            events.append(reply.garbage)
        return HttpReply(200, {"content-type": "text/event-stream"}, events, reply.ending)

    def _fault(self, fault: Fault) -> HttpReply:
        body = fault.body if fault.body is not None else json.dumps(self.error_body(fault)).encode()
        return HttpReply(fault.status, dict(fault.headers), [body])


def listed(value: Any) -> list[Any]:
    """`value` if it is a list, else an empty one."""
    return cast("list[Any]", value) if isinstance(value, list) else []


def sse(data: object, event: str | None = None) -> bytes:
    """A server-sent event."""
    head = f"event: {event}\n" if event else ""
    text = data if isinstance(data, str) else json.dumps(data)
    return f"{head}data: {text}\n\n".encode()


def indexed(calls: Sequence[Call]) -> list[tuple[int, Call]]:
    """The calls with the index each is sent under."""
    return [(place if call.index is None else call.index, call) for place, call in enumerate(calls)]
