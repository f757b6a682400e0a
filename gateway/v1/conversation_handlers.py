"""`/v1/conversations` (protocol §14.1). They begin with a turn that names them."""

from dataclasses import dataclass
from typing import Any

from turnstile.gateway.http.endpoints import Answer, Call
from turnstile.gateway.v1.cursors import cursor_of, place_of
from turnstile.gateway.v1.turn_handlers import seen_channel
from turnstile.ledger.access.pages import PageCursor, page_conversations
from turnstile.ledger.pool import Pool
from turnstile.ledger.turns.views import find_conversations
from turnstile.schema.access import Principal
from turnstile.schema.api import (
    ChannelQuery,
    Conversation,
    ConversationDeleteQuery,
    ConversationPage,
    ConversationsQuery,
)
from turnstile.schema.base import JsonObject
from turnstile.schema.errors import BadRequest, Refused
from turnstile.schema.ids import AgentId, BoxId, ChannelId, ConversationId, box_id, conversation_named
from turnstile.schema.ledger_reads import ConversationLine


@dataclass(frozen=True, slots=True)
class Conversations:
    """The handlers, over one ledger."""

    pool: Pool

    async def list(self, call: Call[ConversationsQuery, object]) -> Answer:
        """A page of conversations."""
        principal, query = call.principal, call.query
        channel, before = seen_channel(principal, query.channel_id), place_of(query.cursor)
        if before is not None:
            before = PageCursor(before.at, _box(before.id))
        page = await self.pool.run(
            lambda conn: page_conversations(
                conn,
                principal.project_id,
                channel=channel,
                agent=None if query.agent_id is None else AgentId(query.agent_id),
                before=before,
                row_limit=query.limit + 1,
            )
        )
        lines = page[: query.limit]
        after = cursor_of(PageCursor(lines[-1].created_at, lines[-1].output_box_id)) if len(page) > len(lines) else None
        return Answer(ConversationPage(conversations=[_shown(line) for line in lines], next=after))

    async def get(self, call: Call[ChannelQuery, object]) -> Answer:
        """A conversation by its id."""
        return Answer(_shown(await self.find(call.principal, call.path["conversation_id"], call.query)))

    async def lookup(self, call: Call[ChannelQuery, Any]) -> tuple[ChannelId, JsonObject]:
        """The channel of the conversation that the path names, and its ids; raises as `find`."""
        line = await self.find(call.principal, call.path["conversation_id"], call.query)
        named: JsonObject = {"conversation_id": line.conversation_id, "agent_id": line.agent_id}
        if isinstance(call.query, ConversationDeleteQuery) and call.query.last_turn_id is not None:
            named["last_turn_id"] = call.query.last_turn_id
        return line.channel_id, named

    async def find(self, principal: Principal, conversation: str, query: ChannelQuery) -> ConversationLine:
        """The one conversation of this id that the token may see.

        Raises `Refused`: unknown_conversation, or ambiguous if several agents or channels have one of this id.
        """
        channel = seen_channel(principal, query.channel_id)
        agent = None if query.agent_id is None else AgentId(query.agent_id)
        name = conversation_named(conversation) if conversation else ConversationId("")  # of an agent itself
        lines = await self.pool.run(
            lambda conn: find_conversations(conn, principal.project_id, name, agent, channel, row_limit=2)
        )
        if not lines:
            raise Refused("unknown_conversation", "the project has no such conversation")
        if len(lines) > 1:
            raise Refused(
                "ambiguous", "several agents or channels have a conversation with this id: send agent_id or channel_id"
            )
        return lines[0]


def _shown(line: ConversationLine) -> Conversation:
    return Conversation.model_validate(line.model_dump())


def _box(text: str) -> BoxId:
    try:
        return box_id(text, "cursor")
    except BadRequest:
        raise BadRequest("cursor: unknown; use the cursor of an earlier page") from None
