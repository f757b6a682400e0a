"""Watches an agent or a turn. It subscribes before it queries the ledger, so that it cannot miss a turn's end."""

from typing import TYPE_CHECKING

from turnstile.cli.session import Session
from turnstile.cli.turns.follow import follow_turn, look_at, printing_outages
from turnstile.cli.turns.live import LiveView
from turnstile.cli.turns.turn_report import document_of, link_of, print_deliverable, read_end
from turnstile.schema.ids import AgentId
from turnstile.schema.wire.descriptions import TurnView
from turnstile.sdk.client import BridgeClient

if TYPE_CHECKING:
    from turnstile.ledger.pool import Pool


async def watch_agent(session: Session, agent: AgentId) -> None:
    """Print the agent's events until interrupted; raises `ServerUnavailable` once NATS is lost for good."""
    async with session.nats() as conn:
        client = BridgeClient(conn, session.project, session.channel)
        view = LiveView(session.out)
        async with client.watching(agent, include_chunks=True) as events:
            session.out.remark(f"watching agent {agent} in {session.project}/{session.channel}; Ctrl-C ends it")
            with printing_outages(session, conn):
                async for event in events:
                    view.take(event)


async def watch_turn(session: Session, pool: "Pool | None", turn: TurnView) -> None:
    """Print the turn's events until it has ended, then how it ended and its deliverable."""
    if turn.ended_at is None:
        async with session.nats() as conn:
            client = BridgeClient(conn, session.project, turn.channel_id)
            async with client.watching(turn.agent_id, include_chunks=True) as events:
                view = LiveView(session.out, turn.agent_turn_id)
                with printing_outages(session, conn):
                    await follow_turn(session, look_at(session, pool, client, turn.agent_turn_id), events, view)
    report = await read_end(pool, session, turn.agent_turn_id)
    if session.out.as_json:
        session.out.json_line({"event": "ended", "turn": document_of(report, link_of(session, turn.agent_turn_id))})
        return
    code = f" ({report.turn.error_code})" if report.turn.error_code else ""
    session.out.line(f"· ended: {report.turn.status}{code}", style="dim")
    print_deliverable(session.out, report)
