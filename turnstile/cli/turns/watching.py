"""Watches an agent or a turn. It subscribes before it queries the ledger, so that it cannot miss a turn's end."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from turnstile.cli.people.turn_questions import TurnQuestions
from turnstile.cli.session import Session
from turnstile.cli.turns.follow import Look, follow_turn, look_into_ledger
from turnstile.cli.turns.live import LiveView
from turnstile.cli.turns.turn_report import TurnEnd, document_of, link_of, print_deliverable, read_end, read_report
from turnstile.schema.ids import AgentId
from turnstile.schema.wire.descriptions import TurnView
from turnstile.sdk.client import BridgeClient
from turnstile.sdk.nats_turns import NatsBackend
from turnstile.sdk.turn import Turn
from turnstile.sdk.turns import Client

if TYPE_CHECKING:
    from turnstile.ledger.pool import Pool


async def watch_agent(session: Session, agent: AgentId) -> None:
    """Print the agent's events until interrupted; raises `ServerUnavailable` once NATS is lost for good."""
    async with session.nats() as conn:
        client = session.bridge_on(conn)
        view = LiveView(session.out)
        async with client.watching(agent, include_chunks=True) as events:
            session.out.remark(f"watching agent {agent} in {session.project}/{session.channel}; Ctrl-C ends it")
            with session.printing_outages(conn):
                async for event in events:
                    view.take(event)


async def watch_turn(session: Session, pool: "Pool", turn: TurnView) -> None:
    """Print the turn's events until it has ended, then how it ended and its deliverable."""
    if turn.ended_at is None:
        async with session.nats() as conn:
            with session.printing_outages(conn):
                look = look_into_ledger(session, pool, turn.agent_turn_id)
                bridge = session.bridge_on(conn)
                client = Client.over(NatsBackend(conn, bridge.in_channel(turn.channel_id)))
                async with _showing_questions(session, client, turn):
                    await _show_events(session, bridge, turn, look)
    _print_end(session, await read_report(pool, session, turn.agent_turn_id))


async def watch_by_client(session: Session, client: Client, turn: Turn) -> None:
    """As `watch_turn`, without the ledger. A gateway streams what the model writes, and no other events."""
    seen = await turn.describe()
    if seen.ended_at is None:
        async with _showing_questions(session, client, seen):
            if session.gateway is None:
                await _show_events(session, client.bridge, seen, turn.describe)
            else:
                view = LiveView(session.out, seen.agent_turn_id)
                async with turn.chunks() as chunks:
                    await follow_turn(session, None, chunks, view.take_chunk)
                view.close()
    _print_end(session, await read_end(turn))


@asynccontextmanager
async def _showing_questions(session: Session, client: Client, turn: TurnView) -> AsyncGenerator[None]:
    """Print beside it what the turn asks people, and the command that shows it."""
    questions = TurnQuestions(session, client, turn.agent_turn_id, answers=False)
    watching = asyncio.create_task(questions.watch())
    try:
        yield
    finally:
        watching.cancel()
        await asyncio.wait({watching})


async def _show_events(session: Session, bridge: BridgeClient, turn: TurnView, look: Look) -> None:
    view = LiveView(session.out, turn.agent_turn_id)
    async with bridge.in_channel(turn.channel_id).watching(turn.agent_id, include_chunks=True) as events:
        try:
            await follow_turn(session, look, events, view.take)
        finally:
            view.close()


def _print_end(session: Session, report: TurnEnd) -> None:
    turn = report.turn
    if session.out.as_json:
        link = link_of(session, turn.agent_turn_id)
        session.out.json_line({"event": "ended", "turn": document_of(report, link)})
        return
    code = f" ({turn.error_code})" if turn.error_code else ""
    session.out.line(f"· ended: {turn.status}{code}", style="dim")
    print_deliverable(session.out, report)
