"""Message headers and the W3C trace they carry (protocol §5).

`context_headers` of an inbox row holds the same names, so a lease takes trace, lineage and depth from the row alone.
"""

import hashlib
import json
import os
import re
from collections.abc import Mapping
from typing import Annotated, cast

from pydantic import BeforeValidator

from turnstile.schema.errors import BadRequest
from turnstile.schema.ids import token

TRACEPARENT = "traceparent"
TRACESTATE = "tracestate"
DEPTH = "CG-Recursion-Depth"
PROJECT_ID = "CG-Project-Id"
CHANNEL_ID = "CG-Channel-Id"
AGENT_ID = "CG-Agent-Id"
TURN_ID = "CG-Turn-Id"
TURN_EPOCH = "CG-Turn-Epoch"
STEP_ID = "CG-Step-Id"
TOOL_CALL_ID = "CG-Tool-Call-Id"
PARENT_AGENT_ID = "CG-Parent-Agent-Id"
PARENT_TURN_ID = "CG-Parent-Turn-Id"
PARENT_STEP_ID = "CG-Parent-Step-Id"
THREAD_ID = "CG-Thread-Id"
"""Turnstile's own: the root thread of the message pump for which a turn works (protocol §9)."""
CONVERSATION_ID = "CG-Conversation-Id"
"""Turnstile's own: the conversation that a turn belongs to, and all that happens on its behalf (protocol §5.3)."""
TIMESTAMP = "CG-Timestamp"
VERSION = "CG-Version"
MSG_TYPE = "CG-Msg-Type"
SENDER = "CG-Sender"
MSG_ID = "Nats-Msg-Id"
PARENT_SPAN = "CG-Parent-Span-Id"
"""Turnstile's own, in `context_headers` only: the parent of the row's span (docs/observability.md)."""

_TRACEPARENT = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}\Z")
_SPAN_ID = re.compile(r"(?!0{16})[0-9a-f]{16}\Z")
_LINEAGE = (PARENT_AGENT_ID, PARENT_TURN_ID, PARENT_STEP_ID, THREAD_ID, CONVERSATION_ID)
_TRACESTATE_LIMIT = 512
_SENDER_LIMIT = 128
_DEPTH_LIMIT = 1_000_000


def new_traceparent() -> str:
    """A new sampled trace with one span."""
    return f"00-{os.urandom(16).hex()}-{os.urandom(8).hex()}-01"


def child_span(traceparent: str) -> str:
    """The same trace with a new span; every primitive makes one (protocol §5)."""
    version, trace, _, flags = traceparent.split("-")
    return f"{version}-{trace}-{os.urandom(8).hex()}-{flags}"


def derived_span(traceparent: str, name: str) -> str | None:
    """The same trace with a span id derived from `name`; None if `traceparent` is invalid (§5)."""
    if not _TRACEPARENT.match(traceparent):
        return None
    version, trace, _, flags = traceparent.split("-")
    span = hashlib.blake2s(f"{trace}-{name}".encode(), digest_size=8).hexdigest()
    return f"{version}-{trace}-{span}-{flags}"


def span_id(traceparent: str) -> str:
    """The 16 hex digits of the span id; empty if `traceparent` is invalid."""
    return traceparent.split("-")[2] if _TRACEPARENT.match(traceparent) else ""


def parent_span(context: Mapping[str, str]) -> str:
    """The parent of a row's span; empty if the row began its trace."""
    span = context.get(PARENT_SPAN, "")
    return span if _SPAN_ID.match(span) else ""


def named(values: Mapping[str, str], header: str) -> str | None:
    """The id in a header, for a log line; None if it is no valid id."""
    try:
        return token(values[header], header) if header in values else None
    except BadRequest:
        return None


def trace_id(traceparent: str) -> str:
    """The 32 hex digits of the trace id."""
    return traceparent.split("-")[1]


def context_headers(incoming: Mapping[str, str]) -> dict[str, str]:
    """The caller's headers that an enqueue keeps: trace (new if missing), depth (0 if missing), lineage and sender.

    A malformed `traceparent` starts a new trace, as W3C asks; a malformed depth or lineage is `BadRequest`.
    """
    incoming_span = incoming.get(TRACEPARENT, "")
    traceparent = child_span(incoming_span) if _TRACEPARENT.match(incoming_span) else new_traceparent()
    kept = {TRACEPARENT: traceparent, DEPTH: str(depth(incoming))}
    if _TRACEPARENT.match(incoming_span):
        kept[PARENT_SPAN] = span_id(incoming_span)
        if (state := incoming.get(TRACESTATE)) and len(state) <= _TRACESTATE_LIMIT:
            kept[TRACESTATE] = state
    kept.update({name: token(value, name) for name in _LINEAGE if (value := incoming.get(name))})
    if sender := incoming.get(SENDER):
        kept[SENDER] = sender[:_SENDER_LIMIT]
    return kept


def depth(incoming: Mapping[str, str]) -> int:
    """`CG-Recursion-Depth` as a number, 0 if missing; raises `BadRequest` if it is no number."""
    value = incoming.get(DEPTH, "0")
    if not value.isascii() or not value.isdigit() or int(value[:8]) > _DEPTH_LIMIT:
        raise BadRequest(f"{DEPTH} must be a whole number from 0, got {value[:20]!r}")
    return int(value)


def _loaded(value: object) -> object:
    """Parse the headers in a row: JSON text or an object; numbers become text, other values are dropped."""
    loaded = json.loads(value) if isinstance(value, str) else value
    if not isinstance(loaded, dict):
        return {}
    named = cast("dict[str, object]", loaded)
    return {name: str(v) for name, v in named.items() if v is not None}


ContextHeaders = Annotated[dict[str, str], BeforeValidator(_loaded)]
"""`context_headers` of a row: trace, depth and lineage of one turn."""


def carried(context: Mapping[str, str]) -> dict[str, str]:
    """The headers that every message about a turn takes from its context: child span, `tracestate`, lineage, depth."""
    traceparent = context.get(TRACEPARENT, "")
    kept = {name: context[name] for name in (TRACESTATE, *_LINEAGE) if name in context}
    kept[TRACEPARENT] = child_span(traceparent) if _TRACEPARENT.match(traceparent) else new_traceparent()
    kept[DEPTH] = context.get(DEPTH, "0")
    return kept


def dumps(values: Mapping[str, str]) -> str:
    """Headers as the JSON text of `context_headers`."""
    return json.dumps(dict(values))
