"""Requests and replies of the verbs of webhooks: which events are sent where by HTTP (protocol §17.6)."""

import base64
import binascii
from datetime import datetime
from enum import StrEnum
from typing import Annotated

from pydantic import AfterValidator, Field

from turnstile.schema.base import IdOf, Reply, Strict, Tolerant
from turnstile.schema.ids import AgentTurnId

_ID = r"^[A-Za-z0-9_.-]+$"
_VISIBLE = r"^[!-~]+$"
PREFIX = "whsec_"


class WebhookEvent(StrEnum):
    """What webhooks are sent."""

    TURN_ENDED = "turn.ended"
    """A turn is over. Of a project or a profile: one that no other turn asked for."""
    INTERRUPT_OPENED = "interrupt.opened"
    """A turn asks a person."""
    BUDGET_WARNED = "budget.warned"
    """A budget has passed its warning."""


def _checked(secret: str) -> str:
    try:
        size = len(base64.b64decode(secret.removeprefix(PREFIX), validate=True)) if secret.startswith(PREFIX) else 0
    except (binascii.Error, ValueError):
        size = 0
    if not 24 <= size <= 64:
        raise ValueError(f"a secret is {PREFIX} and the base64 of 24 to 64 random bytes")
    return secret


Secret = Annotated[str, Field(max_length=128, pattern=_VISIBLE), AfterValidator(_checked)]


class WebhookSettings(Strict):
    """Where events are sent, which, and how they are signed."""

    url: str = Field(max_length=2048, pattern=_VISIBLE)
    """Where events are posted: https, at a public address, unless the settings allow others."""
    events: list[WebhookEvent] = Field(default=list(WebhookEvent), min_length=1, max_length=3)
    """Which; without it all."""
    secret: Secret | None = None
    """Signs the events, by Standard Webhooks: `whsec_` and base64. Without it one is made, and returned this once."""


class ProjectWebhookSettings(WebhookSettings):
    """The same, for the turns of a project."""

    profile_name: str | None = Field(default=None, min_length=1, max_length=128)
    """The profile whose turns count; without it all do."""


class WebhookPutRequest(ProjectWebhookSettings):
    """Arguments of `webhook.put`."""

    webhook_id: str = Field(min_length=1, max_length=64, pattern=_ID)
    """The operator's own name for it; the same again replaces what was set."""


class TurnWebhookRequest(WebhookSettings):
    """Arguments of `turn.webhook`."""

    agent_turn_id: IdOf[AgentTurnId] = Field(min_length=1, max_length=128)
    """The turn."""


class WebhookRemoveRequest(Strict):
    """Arguments of `webhook.remove`."""

    webhook_id: str = Field(min_length=1, max_length=128, pattern=_ID)
    """The webhook; of a turn: the turn's id."""


class WebhookListRequest(Strict):
    """Arguments of `webhook.list`: none."""


class WebhookView(Tolerant):
    """A webhook, without its secret."""

    webhook_id: str
    """Its name."""
    profile_name: str | None = None
    """Whose turns count; null: all of the project."""
    url: str
    """Where events are posted."""
    events: list[WebhookEvent]
    """Which."""
    status: str
    """`active`, or `gone`: the receiver answered 410, and gets nothing until the webhook is put again."""
    created_by: str
    """Who set it last."""
    updated_at: datetime
    """When it was set, or came to be gone."""
    waiting: int
    """Events that are still to be sent."""
    last_error: str | None = None
    """Why one of them was not delivered yet."""


class WebhookReply(Reply):
    """Reply to `webhook.put`, `turn.webhook` and `webhook.remove`."""

    webhook_id: str | None = None
    """The webhook."""
    secret: str | None = None
    """The secret, if one was made."""


class WebhookListReply(Reply):
    """Reply to `webhook.list`."""

    webhooks: list[WebhookView] = Field(default_factory=list[WebhookView])
    """By their ids."""
