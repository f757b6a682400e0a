"""Webhooks that tests set in the ledger (protocol §17.6)."""

from tests.support.ledger.agents import CHANNEL, PROJECT
from turnstile.ledger.pushes.webhooks import put_webhook, turn_webhook
from turnstile.ledger.queries import Connection
from turnstile.schema.ids import AgentTurnId
from turnstile.schema.wire.limits import UNCOUNTED, Maker
from turnstile.schema.wire.webhook_requests import WebhookEvent


async def put_webhook_of(
    conn: Connection,
    turn: AgentTurnId | None,
    maker: Maker = UNCOUNTED,
    name: str = "",
    events: tuple[WebhookEvent, ...] = (WebhookEvent.TURN_ENDED,),
) -> None:
    """Set the caller's webhook of a turn, or the project's of this name."""
    webhook = name if turn is None else turn_webhook(turn, maker)
    settings = {"url": f"https://{maker.name or 'x'}/", "secret": "whsec_eA=="}
    await put_webhook(conn, PROJECT, CHANNEL, webhook, **settings, events=events, maker=maker, agent_turn_id=turn)
