"""Conversations as people read them: lists with what was asked last, and the turns of one with all that was said.

Reads only. What is read is bounded in turns, in cards of a turn and in bytes of a card.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from pydantic import Json

from turnstile.ledger.access.pages import PageCursor, narrowed
from turnstile.ledger.queries import Connection, Row, query
from turnstile.schema.base import Tolerant, stored_json
from turnstile.schema.cards import Card, CardMetadata, ThoughtCall
from turnstile.schema.ids import AgentId, AgentTurnId, BoxId, CardId, ChannelId, ConversationId, ProjectId, StepId
from turnstile.schema.ledger_reads import ConversationLine, ConversationName
from turnstile.schema.states import SteerStatus
from turnstile.schema.wire.conversation_requests import ConversationNotes

LOOKED_THROUGH: Final = 2_000
"""The newest turns of a project among which conversations that were used lately are looked for."""
TEXT_LIMIT: Final = 40_000
"""Characters of an instruction that are read."""
CONTENT_LIMIT: Final = 60_000
"""Bytes of a card's content, as JSON, that are read."""
TURN_LIMIT: Final = 120_000
"""Bytes of the contents of a turn's cards, as JSON, that are read: of the last ones."""


class ChatLine(ConversationLine):
    """A conversation in a list."""

    asked: str | None
    """The beginning of what was asked last."""
    status: str | None
    """Where the last turn stands; null if it is gone."""


class KeptConversation(Tolerant):
    """A conversation with what clients keep with it."""

    agent_id: AgentId | None
    """None: a client made it, and no agent has had a turn in it."""
    channel_id: ChannelId
    conversation_id: ConversationId
    output_box_id: BoxId
    created_at: datetime
    notes: Json[ConversationNotes]


class ChatTurn(Tolerant):
    """A turn of a conversation: what was asked, and where it stands."""

    agent_turn_id: AgentTurnId
    created_at: datetime
    status: str
    started_at: datetime | None
    ended_at: datetime | None
    error_code: str | None
    error: str | None
    deliverable_card_id: CardId | None
    asked: str | None
    action_tool: str | None
    """Of a UI action the tool that was called."""
    requester: str | None
    """The principal that asked for it, if it said who it is."""
    waiting_tool_count: int | None
    is_paused: bool
    """Whether it is queued because its agent is paused."""
    rolled_back: bool
    """Whether another turn has taken its place, so that no later one reads it."""


@dataclass(frozen=True, slots=True)
class ChatCard:
    """A card of a turn at its place: what people said to it (part 0), its steps' cards (1) or applied results (3)."""

    agent_turn_id: AgentTurnId
    step_id: StepId | None
    """None for what no step has read yet."""
    part: int
    card: Card
    """Its content is null if it is too large to be read here."""
    size: int
    """Bytes of its content as JSON."""
    steer_status: SteerStatus | None


async def list_recent_conversations(
    conn: Connection,
    project: ProjectId,
    *,
    channel: ChannelId | None = None,
    agent: AgentId | None = None,
    looked_through: int = LOOKED_THROUGH,
    row_limit: int,
) -> list[ConversationName]:
    """The conversations that the newest turns are in, the last used first."""
    in_channel = None if channel is None else agent
    name = narrowed("list_recent_conversations", agent_in_channel=in_channel, agent=agent, channel=channel)
    rows = await query(name).many(
        conn,
        project_id=project,
        channel_id=channel,
        agent_id=agent,
        looked_through=looked_through,
        row_limit=row_limit,
    )
    return [ConversationName(row["agent_id"], row["conversation_id"], row["channel_id"]) for row in rows]


async def list_chats(conn: Connection, project: ProjectId, names: Sequence[ConversationName]) -> list[ChatLine]:
    """These conversations, in their order, without those that are gone."""
    lines = await query("list_chats").all_as(
        conn,
        ChatLine,
        project_id=project,
        agent_ids=[name.agent_id for name in names],
        conversation_ids=[name.conversation_id for name in names],
        channel_ids=[name.channel_id for name in names],
    )
    by_name = {line.name: line for line in lines}
    return [by_name[name] for name in names if name in by_name]


async def find_kept_conversations(
    conn: Connection, project: ProjectId, channel: ChannelId, conversation: ConversationId, *, row_limit: int
) -> list[KeptConversation]:
    """The conversations of a name in a channel: one, or those of several agents."""
    return await query("find_kept_conversations").all_as(
        conn,
        KeptConversation,
        project_id=project,
        channel_id=channel,
        conversation_id=conversation,
        row_limit=row_limit,
    )


async def list_chat_turns(
    conn: Connection, project: ProjectId, name: ConversationName, *, before: PageCursor | None = None, row_limit: int
) -> list[ChatTurn]:
    """The last turns of a conversation, those before a place if it is given, oldest first."""
    return await query("list_chat_turns").all_as(
        conn,
        ChatTurn,
        project_id=project,
        **name._asdict(),
        before_id=None if before is None else before.id,
        text_limit=TEXT_LIMIT,
        row_limit=row_limit,
    )


async def list_chat_cards(
    conn: Connection, project: ProjectId, turns: Sequence[AgentTurnId], *, row_limit: int
) -> list[ChatCard]:
    """What was said and done in turns, in order; of each turn the last `row_limit` cards."""
    rows = await query("list_chat_cards").many(
        conn,
        project_id=project,
        turns=list(turns),
        content_limit=CONTENT_LIMIT,
        turn_limit=TURN_LIMIT,
        row_limit=row_limit,
    )
    return [_card(row) for row in rows]


def _card(row: Row) -> ChatCard:
    calls = row["tool_calls"]
    card = Card(
        card_id=row["card_id"],
        content=None if row["content"] is None else stored_json(row["content"]),
        tool_calls=None if calls is None else [ThoughtCall.model_validate(call) for call in json.loads(calls)],
        tool_call_id=row["tool_call_id"],
        metadata=CardMetadata.model_validate_json(row["metadata"]),
    )
    status = row["steer_status"]
    return ChatCard(
        agent_turn_id=row["agent_turn_id"],
        step_id=row["step_id"],
        part=row["part"],
        card=card,
        size=row["size"],
        steer_status=None if status is None else SteerStatus(status),
    )
