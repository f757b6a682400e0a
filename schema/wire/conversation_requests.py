"""Requests and replies of `conversation.put` and `conversation.stop` (protocol §6)."""

from typing import Self

from pydantic import Field, model_validator

from turnstile.schema.base import AgentToken, BoxUuid, ConversationToken, IdOf, Reply, Strict, Tolerant
from turnstile.schema.ids import AgentId, AgentTurnId, BoxId, CardId, ConversationId
from turnstile.schema.wire.box_requests import CARD_LIMIT

NOTE_LIMIT = 64
"""Pairs of a conversation's metadata."""


class ConversationNotes(Tolerant):
    """What a client keeps with a conversation."""

    metadata: dict[str, str] = Field(default_factory=dict[str, str])
    """Pairs that no model reads."""
    removed: bool = False
    """Whether its clients have removed it: its turns and cards stay until retention removes them."""


class ConversationPutRequest(Strict):
    """Arguments of `conversation.put`. A conversation that is not there is made; what is left out is not changed."""

    conversation_id: ConversationToken
    """The conversation of the channel."""
    agent_id: AgentToken | None = None
    """The agent whose it is from now on, if it is no agent's yet; else its agent."""
    metadata: dict[str, str] | None = Field(default=None, max_length=NOTE_LIMIT)
    """Takes the place of all pairs before."""
    removed: bool | None = None
    """Whether its clients have removed it."""
    box_id: BoxUuid | None = None
    """The box (uuid) that it is in, as the caller knows it; needed to change its cards."""
    add_box_id: BoxUuid | None = None
    """The box (uuid) whose cards follow."""
    drop_card_ids: list[IdOf[CardId]] = Field(default_factory=list[CardId], max_length=CARD_LIMIT)
    """Cards that it has no more. They stay in the boxes before."""

    @model_validator(mode="after")
    def _knows_its_box(self) -> Self:
        if self.box_id is None and self.drop_card_ids:
            raise ValueError("drop_card_ids needs box_id: the box that has these cards")
        if self.box_id is not None and self.add_box_id is None and not self.drop_card_ids:
            raise ValueError("box_id needs add_box_id, drop_card_ids or both")
        return self


class ConversationPutReply(Reply):
    """Reply to `conversation.put`: the conversation as it is now."""

    conversation_id: ConversationId | None = None
    """Its id."""
    agent_id: AgentId | None = None
    """Its agent; null if it is no agent's yet."""
    box_id: BoxId | None = None
    """The box that its next turn goes on in."""
    notes: ConversationNotes | None = None
    """What clients keep with it."""


class ConversationStop(Strict):
    """Why the turns of a conversation are stopped."""

    reason: str = Field(default="", max_length=900)
    """The reason, for people."""


class ConversationStopRequest(ConversationStop):
    """Arguments of `conversation.stop`."""

    conversation_id: ConversationToken
    """The conversation of the channel."""
    agent_id: AgentToken | None = None
    """Only the turns of this agent, where several have a conversation of this id."""


class ConversationStopped(Tolerant):
    """What became of the turns of a conversation that were not over."""

    stopped: tuple[AgentTurnId, ...] = ()
    """The turns that will end, the newest first."""
    others: int = 0
    """The number of turns that somebody else asked for, and that go on."""
    more: bool = False
    """Whether further turns are not over: then the same request goes on with them."""


class ConversationStopReply(ConversationStopped, Reply):
    """Reply to `conversation.stop`."""
