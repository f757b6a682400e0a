"""Sessions of the generations before 2026-07-28, of which no gateway keeps anything (protocol §17.2). Pure.

A session's id is random, and says whether its client can ask people. Whoever makes up an id of this form has a session
of its own: an id gives no right, and what it names is looked up under the token each time. With the JSON-RPC id of a
request, which a client uses once in a session, it is the turn's idempotency key.
"""

import hashlib
import json
import re
import secrets

from turnstile.schema.access import TokenId

_ID = re.compile(r"s1-[0-9a-f]{32}-([ef])\Z")


def new_session(*, asks_people: bool) -> str:
    """The id of a new session; `asks_people`: its client takes `elicitation/create`."""
    return f"s1-{secrets.token_hex(16)}-{'e' if asks_people else 'f'}"


def is_session(text: str) -> bool:
    """Whether this is the id of a session."""
    return _ID.match(text) is not None


def asks_people(session: str | None) -> bool:
    """Whether the session's client takes `elicitation/create`."""
    match = None if session is None else _ID.match(session)
    return match is not None and match[1] == "e"


def request_key(token: TokenId, session: str, request: str | int) -> str:
    """The idempotency key of a request; 1 and "1" are two."""
    return "mcp-" + hashlib.sha256(json.dumps([token, session, request]).encode()).hexdigest()
