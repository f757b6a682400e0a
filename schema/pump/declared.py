"""Listeners as a worker declares them in the ledger, for operators to list: names, peers, and payloads with XSDs."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated

from pydantic import BeforeValidator

from turnstile.schema.base import Tolerant, read_column
from turnstile.schema.ids import AgentId


class DeclaredPayload(Tolerant):
    """A payload: its root tag, and its XML schema."""

    root_tag: str
    """The root tag of its documents."""
    xsd: str | None = None
    """Its XML schema; null where it was not asked for."""


class DeclaredListener(Tolerant):
    """A listener, as the worker that started last declared it."""

    listener: str
    """Its name."""
    description: str
    """What it does."""
    agent_id: AgentId | None
    """The agent of the roster that handles its messages; null for a handler in Python."""
    is_agent: bool
    """Whether it may address only its peers and itself."""
    peers: Sequence[str]
    """The listeners that it may address, if it is an agent."""
    root_tag: str
    """The root tag of the payload that it takes."""
    xsd: str | None = None
    """The XML schema of that payload; null where it was not asked for."""
    answers: Annotated[Sequence[DeclaredPayload], BeforeValidator(read_column)] = ()
    """Payloads that it sends and no listener takes; the first is an agent's response."""


class ListenerView(DeclaredListener):
    """A listener in a list."""

    declared_at: datetime
    """When a worker declared it last."""
    workers: int
    """The number of live workers that have it."""
