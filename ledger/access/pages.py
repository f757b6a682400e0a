"""What a gateway reads besides what operators read: pages of turns and conversations, and a turn's cards as they come.

Reads only. A place in a page is a moment and an id, so pages neither skip nor repeat what is there when rows are added.
"""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from turnstile.ledger.queries import Connection, Row, query
from turnstile.ledger.turns.cards import card_of
from turnstile.schema.api import TurnSummary
from turnstile.schema.cards import Card
from turnstile.schema.ids import AgentId, AgentTurnId, BoxId, CardId, ChannelId, ConversationId, ProjectId, StepId
from turnstile.schema.ledger_reads import ConversationLine


class PageCursor(NamedTuple):
    """Where a page ended."""

    at: datetime
    id: str


@dataclass(frozen=True, slots=True)
class TurnCard:
    """A row of a turn's progress: a card of a step (part 1) or what came of a call (part 3), and its place."""

    step_id: StepId
    part: int
    place: int
    sub: int
    """1 of the card of a call as a person edited it: right after this place, before the result that is the next."""
    card: Card | None
    """None for a step that made none, and for a card that is gone, or known."""
    step_status: str | None
    finish_reason: str | None


class TurnAt(NamedTuple):
    """A turn of a conversation, and its place there."""

    agent_turn_id: AgentTurnId
    conversation_seq: int


CONVERSATION_BEGIN = TurnAt(AgentTurnId(""), 0)
"""The place before all turns of a conversation."""


def narrowed(name: str, **by: str | None) -> str:
    """The variant of a list that enters the index of the first thing that it is narrowed to."""
    return next((f"{name}_of_{what}" for what, value in by.items() if value is not None), name)


async def page_turns(
    conn: Connection,
    project: ProjectId,
    *,
    channel: ChannelId | None,
    agent: AgentId | None,
    conversation: ConversationId | None,
    before: PageCursor | None,
    row_limit: int,
    end_user: str | None = None,
) -> list[TurnSummary]:
    """The newest first, those before a place."""
    in_channel = None if channel is None else agent
    by = {
        "end_user": end_user,
        "conversation": conversation,
        "agent_in_channel": in_channel,
        "agent": agent,
        "channel": channel,
    }
    name = narrowed("page_turns", **by)
    return await query(name).all_as(
        conn,
        TurnSummary,
        project_id=project,
        channel_id=channel,
        agent_id=agent,
        conversation_id=conversation,
        end_user=end_user,
        before_at=None if before is None else before.at,
        before_id=None if before is None else before.id,
        row_limit=row_limit,
    )


async def page_conversations(
    conn: Connection,
    project: ProjectId,
    *,
    channel: ChannelId | None,
    agent: AgentId | None,
    before: PageCursor | None,
    row_limit: int,
) -> list[ConversationLine]:
    """The last begun first, those before a place; the id of a place is that of the conversation's box."""
    return await query(narrowed("page_conversations", agent=agent, channel=channel)).all_as(
        conn,
        ConversationLine,
        project_id=project,
        channel_id=channel,
        agent_id=agent,
        before_at=None if before is None else before.at,
        before_id=None if before is None else before.id,
        row_limit=row_limit,
    )


async def list_last_turns(
    conn: Connection, project: ProjectId, line: ConversationLine, *, row_limit: int
) -> list[TurnAt]:
    """The last turns of a conversation, in its order."""
    rows = await query("list_last_turns").many(conn, project_id=project, **_named(line), row_limit=row_limit)
    return [_place(row) for row in rows]


async def list_turns_after(
    conn: Connection, project: ProjectId, line: ConversationLine, place: TurnAt, *, row_limit: int
) -> list[TurnAt]:
    """The first turns of a conversation after this place, in its order.

    Whoever has seen a turn has missed none before it: turns commit in this order.
    """
    rows = await query("list_turns_after").many(
        conn,
        project_id=project,
        **_named(line),
        after_seq=place.conversation_seq,
        row_limit=row_limit,
    )
    return [_place(row) for row in rows]


async def find_turn_place(
    conn: Connection, project: ProjectId, line: ConversationLine, turn: AgentTurnId
) -> TurnAt | None:
    """The place of a turn in the order of a conversation; None if it is not one of it."""
    row = await query("find_turn_place").opt(conn, project_id=project, **_named(line), agent_turn_id=turn)
    return None if row is None else _place(row)


def _place(row: Row) -> TurnAt:
    return TurnAt(AgentTurnId(row["agent_turn_id"]), row["conversation_seq"])


def _named(line: ConversationLine) -> dict[str, str]:
    return {"agent_id": line.agent_id, "channel_id": line.channel_id, "conversation_id": line.conversation_id}


async def is_box_of_channel(conn: Connection, project: ProjectId, channel: ChannelId, box: BoxId) -> bool:
    """Whether a turn of this channel reads or writes a box."""
    return (await query("is_box_of_channel").one(conn, project_id=project, channel_id=channel, box_id=box))["found"]


async def list_turn_progress(
    conn: Connection,
    project: ProjectId,
    turn: AgentTurnId,
    *,
    known_steps: Collection[StepId] = (),
    known_cards: Collection[CardId] = (),
) -> list[TurnCard]:
    """What a turn's steps made, and the results that were applied; without steps and cards that are known."""
    rows = await query("list_turn_progress").many(
        conn, project_id=project, agent_turn_id=turn, known_steps=list(known_steps), known_cards=list(known_cards)
    )
    return [
        TurnCard(
            StepId(row["step_id"]),
            row["part"],
            row["place"],
            row["sub"],
            None if row["card_id"] is None else card_of(row),
            row["step_status"],
            row["finish_reason"],
        )
        for row in rows
    ]
