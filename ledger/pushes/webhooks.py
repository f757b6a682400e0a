"""Webhooks and their events: set, written, claimed, sent, given up (protocol §17.6).

Events are written by triggers, in the statement that makes them happen, so that none is lost and each has one id.
"""

import hashlib
from collections.abc import Sequence
from datetime import datetime
from typing import Final

from pydantic import Json

from turnstile.ledger.queries import Connection, query
from turnstile.schema.base import JsonObject, Tolerant
from turnstile.schema.errors import Refused
from turnstile.schema.ids import AgentTurnId, ChannelId, ProjectId
from turnstile.schema.wire.limits import MADE_LIMITS, Maker, made_limited
from turnstile.schema.wire.webhook_requests import WebhookEvent, WebhookView

MOST_WEBHOOKS: Final = 20
"""Of a project and its profiles."""
_REFUSALS: Final = {
    "unknown_turn": "the channel has no such turn",
    "unknown_profile": "the project has no such profile",
    "unknown_webhook": "the project has no such webhook",
    "too_many_webhooks": f"a project has at most {MOST_WEBHOOKS} webhooks: remove one",
}


class ClaimedEvent(Tolerant):
    """An event to send."""

    event_id: str
    project_id: ProjectId
    webhook_id: str
    agent_turn_id: AgentTurnId | None
    type: WebhookEvent
    data: Json[JsonObject]
    happened_at: datetime
    attempts: int
    url: str
    secret: str


def turn_webhook(turn: AgentTurnId, maker: Maker) -> str:
    """The id of the webhook that this caller sets of a turn: no other caller has it, and no operator can name it."""
    return f"{turn}/{hashlib.sha256((maker.name or '').encode()).hexdigest()[:16]}"


async def put_webhook(
    conn: Connection,
    project: ProjectId,
    channel: ChannelId,
    webhook: str,
    *,
    url: str,
    secret: str,
    events: Sequence[WebhookEvent],
    maker: Maker,
    profile_name: str | None = None,
    agent_turn_id: AgentTurnId | None = None,
) -> None:
    """Set a webhook; raises `Refused` (unknown_turn, unknown_profile, too_many_webhooks) or `Limited` (pushes_full)."""
    row = await query("put_webhook").one(
        conn,
        project_id=project,
        channel_id=channel,
        webhook_id=webhook,
        profile_name=profile_name,
        agent_turn_id=agent_turn_id,
        url=url,
        secret=secret,
        events=sorted(set(events)),
        created_by=maker.name or "",
        most=MOST_WEBHOOKS,
        most_open=maker.limits.max_open_pushes,
    )
    if (verdict := row["verdict"]) in MADE_LIMITS:
        raise made_limited(verdict, maker)
    if verdict != "accepted":
        raise Refused(verdict, _REFUSALS[verdict])


async def remove_webhook(conn: Connection, project: ProjectId, webhook: str) -> None:
    """Remove a webhook and what was still to be sent to it; raises `Refused` (unknown_webhook)."""
    if not (await query("remove_webhook").one(conn, project_id=project, webhook_id=webhook))["found"]:
        raise Refused("unknown_webhook", _REFUSALS["unknown_webhook"])


async def list_webhooks(conn: Connection, project: ProjectId) -> list[WebhookView]:
    """The webhooks of a project and its profiles."""
    return await query("list_webhooks").all_as(conn, WebhookView, project_id=project)


async def claim_events(
    conn: Connection, *, busy: Sequence[ProjectId], share: int, hold_seconds: float, row_limit: int
) -> list[ClaimedEvent]:
    """Take events that are due; they are due again after `hold_seconds`, unless their end is recorded."""
    return await query("claim_events").all_as(
        conn, ClaimedEvent, busy_projects=list(busy), share=share, hold_seconds=hold_seconds, row_limit=row_limit
    )


async def record_event_sent(conn: Connection, event: ClaimedEvent) -> bool:
    """The receiver has acknowledged it; False if that was known."""
    return (await query("record_event_sent").one(conn, event_id=event.event_id))["recorded"]


async def fail_event(
    conn: Connection, event: ClaimedEvent, error: str, *, gone: bool, longest_pause: float, give_up_seconds: float
) -> bool:
    """The receiver has not acknowledged it; returns whether it is given up."""
    row = await query("fail_event").one(
        conn,
        event_id=event.event_id,
        error=error[:500],
        gone=gone,
        longest_pause=longest_pause,
        give_up_seconds=give_up_seconds,
    )
    return row["given_up"]
