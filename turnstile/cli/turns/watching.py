"""Watches an agent or a turn. It subscribes before it looks at the turn, so that it cannot miss the turn's end."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from turnstile.cli.people.turn_questions import TurnQuestions
from turnstile.cli.session import Session
from turnstile.cli.turns.follow import follow_events
from turnstile.cli.turns.live import LiveView
from turnstile.cli.turns.lookup import find_turn
from turnstile.cli.turns.turn_report import TurnEnd, document_of, link_of, print_deliverable, read_report
from turnstile.schema.errors import Refused
from turnstile.schema.ids import AgentId
from turnstile.schema.ledger_reads import MemoryRead, ReadRequest
from turnstile.schema.wire.descriptions import TurnView
from turnstile.sdk.requests import parse_request
from turnstile.sdk.turn import Turn
from turnstile.sdk.turns import Client


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


async def find_turn_or_agent(session: Session, client: Client, target: str) -> tuple[Client, Turn] | None:
    """For an operator, the turn whose id begins so unless an agent has this id, and a client of its channel.

    None for an agent, and for a user who may not look up either. Raises `Refused` (unknown_agent) if there is neither.
    """
    agent = ReadRequest(memory=parse_request(MemoryRead, {"agent_id": target}))
    try:
        await session.read_if_operator(client, agent)
    except Refused as unknown:
        try:
            view = await find_turn(session, client.bridge, target)
        except Refused as error:
            raise (unknown if error.code == "unknown_turn" else error) from None
        client = client.in_channel(view.channel_id)
        return client, await client.turn(view.agent_turn_id, agent_id=view.agent_id)
    return None


async def watch_turn(session: Session, client: Client, turn: Turn) -> None:
    """Print the turn's events until it has ended, then how it ended and its deliverable.

    A gateway streams what the model writes, and no other events.
    """
    seen = await turn.describe()
    if seen.ended_at is None:
        async with _showing_questions(session, client, seen):
            view = LiveView(session.out, seen.agent_turn_id)
            try:
                if session.gateway is None:
                    async with client.bridge.watching(seen.agent_id, include_chunks=True) as events:
                        await follow_events(session, turn, events, view.take)
                else:
                    async with turn.chunks() as chunks:
                        async for chunk in chunks:
                            view.take_chunk(chunk)
            finally:
                view.close()
    _print_end(session, await read_report(session, client, turn))


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


def _print_end(session: Session, report: TurnEnd) -> None:
    turn = report.turn
    if session.out.as_json:
        link = link_of(session, turn.agent_turn_id)
        session.out.json_line({"event": "ended", "turn": document_of(report, link)})
        return
    code = f" ({turn.error_code})" if turn.error_code else ""
    session.out.line(f"· ended: {turn.status}{code}", style="dim")
    print_deliverable(session.out, report)
