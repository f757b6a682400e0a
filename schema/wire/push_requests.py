"""Requests and replies of `push.set` and `push.remove`: who is notified of a turn over HTTP (protocol §17.3)."""

from pydantic import Field

from turnstile.schema.base import IdOf, Reply, Strict
from turnstile.schema.ids import AgentTurnId, ReceiverId

_ID = r"^[A-Za-z0-9_.:-]+$"
_VISIBLE = r"^[!-~]+$"


class PushSetRequest(Strict):
    """Arguments of `push.set`."""

    agent_turn_id: IdOf[AgentTurnId] = Field(min_length=1, max_length=128)
    """The turn."""
    receiver_id: IdOf[ReceiverId] = Field(max_length=128, pattern=_ID)
    """The caller's own name for the receiver; the same again replaces what was set."""
    url: str = Field(max_length=2048, pattern=_VISIBLE)
    """Where notifications are posted: https, at a public address, unless the settings allow others."""
    token: str | None = Field(default=None, max_length=1024, pattern=_VISIBLE)
    """A secret that is sent with each notification and signs it."""


class PushRemoveRequest(Strict):
    """Arguments of `push.remove`."""

    agent_turn_id: IdOf[AgentTurnId] = Field(min_length=1, max_length=128)
    """The turn."""
    receiver_id: IdOf[ReceiverId] = Field(max_length=128, pattern=_ID)
    """The receiver."""


class PushReply(Reply):
    """Reply to `push.set` and `push.remove`."""

    agent_turn_id: AgentTurnId | None = None
    """The turn."""
    receiver_id: ReceiverId | None = None
    """The receiver."""
