"""Pages: what each takes, needs and answers, and what a handler gets of the person who asks.

A page is a read (GET) or a change (POST). A handler of a GET reads the ledger as `/v1` does; one of a POST asks the
bridge's verbs for the session's token, so the ledger says who did it. `gateway/console/routes.py` checks the rest
before a handler is called: session, role, CSRF, query and form.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

from pydantic import BaseModel
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response

from turnstile.gateway.asking import Asking
from turnstile.gateway.bounds import GatewayLimits
from turnstile.gateway.console.once import OneTimeLinks
from turnstile.gateway.console.templating import Templates
from turnstile.gateway.events.feeds import Feeds
from turnstile.gateway.events.stream import Streaming
from turnstile.gateway.http.bearers import Access
from turnstile.gateway.http.endpoints import NoQuery
from turnstile.gateway.v1.conversation_handlers import Conversations
from turnstile.gateway.v1.event_handlers import Events
from turnstile.gateway.v1.roster_handlers import Roster
from turnstile.gateway.v1.turn_handlers import Turns
from turnstile.gateway.v1.verb_endpoints import VerbEndpoints
from turnstile.ledger.operations.audit import Bounds
from turnstile.ledger.pool import Pool
from turnstile.schema.access import Principal, Right, Secret
from turnstile.schema.base import Strict
from turnstile.schema.ids import ChannelId
from turnstile.transport.connection import NatsConnection


class NoForm(Strict):
    """A form without fields of its own."""


Query = TypeVar("Query")
Form = TypeVar("Form")


@dataclass(frozen=True, slots=True)
class Links:
    """Where other programs show the same; None where the settings name none."""

    workflow: Callable[[str], str] | None = None
    """A workflow's page in the Temporal Web UI, by its id."""
    trace: Callable[[str], str] | None = None
    """A trace's page, by its id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Console:
    """What pages read and ask."""

    pool: Pool
    asking: Asking
    feeds: Feeds
    access: Access
    streaming: Streaming
    conn: NatsConnection
    limits: GatewayLimits
    default_channel: ChannelId
    closing: asyncio.Event
    links: Links
    once: OneTimeLinks | None
    """None where nobody makes links that sign in once."""
    templates: Templates
    turns: Turns
    conversations: Conversations
    events: Events
    verbs: VerbEndpoints
    roster: Roster
    audit_bounds: Bounds


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit(Generic[Query, Form]):
    """One request to a page, read and checked."""

    console: Console
    page: "Page"
    principal: Principal
    secret: Secret
    path: Mapping[str, str]
    query: Query
    form: Form
    headers: Headers
    request: Request
    csrf: str
    """What a form must carry."""
    open_approvals: int = 0
    """How many questions wait for a person, at most `MOST_COUNTED`."""
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    """What people call tokens, by what the ledger calls them."""
    notice: str = ""
    """The code of the sentence that this page shows once."""
    fragment: bool = False
    """Whether the script asks for parts of the page alone."""

    def may(self, right: str) -> bool:
        """Whether the session's role has this right."""
        return self.principal.may(Right(right))


Handler = Callable[[Visit[Any, Any]], Awaitable[Response]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One address of the console."""

    name: str
    """What log and metrics call it, after `console_`."""
    path: str
    handler: Handler
    method: Literal["GET", "POST"] = "GET"
    right: Right = Right.READ
    query: type[BaseModel] = NoQuery
    form: type[BaseModel] = NoForm
