"""Requests and replies of `conversation.delete`, `end_user.delete` and `deletion.get` (protocol §6)."""

from datetime import datetime
from typing import Literal

from turnstile.schema.base import AgentToken, ConversationToken, EndUser, IdOf, Reply, Strict, Tolerant
from turnstile.schema.ids import AgentTurnId


class ConversationDeleteRequest(Strict):
    """Arguments of `conversation.delete`."""

    conversation_id: ConversationToken
    """The conversation of the channel."""
    agent_id: AgentToken | None = None
    """Its agent, where several have a conversation of this id."""
    last_turn_id: IdOf[AgentTurnId] | None = None
    """The last turn that the caller has seen of it: with a later one nothing is deleted (`conversation_changed`)."""


class EndUserDeleteRequest(Strict):
    """Arguments of `end_user.delete`."""

    end_user: EndUser
    """The end user of the project, as the requests of their turns named them."""


class DeletionRequest(Strict):
    """Arguments of `deletion.get`."""

    deletion_id: IdOf[str]
    """The deletion."""


class RequestedDeletion(Tolerant):
    """A deletion that was accepted: nothing new is admitted, and what is there will be gone."""

    deletion_id: str | None = None
    """The deletion, for `deletion.get`."""
    duplicate: bool = False
    """Whether a deletion of the same was running already: then this is its id."""


class DeleteReply(RequestedDeletion, Reply):
    """Reply to `conversation.delete` and `end_user.delete`."""


class Deletion(Tolerant):
    """How far a deletion is. Whom it is about is not kept."""

    deletion_id: str
    """The deletion."""
    kind: Literal["conversation", "end_user"]
    """What it deletes."""
    status: Literal["running", "done"]
    """`done` once nothing is left."""
    turns: int
    """The turns that it has removed."""
    boxes: int
    """The boxes."""
    cards: int
    """The cards."""
    emptied: int
    """The cards that keep their place in a conversation of others, without content."""
    requested_by: str
    """Who asked for it."""
    created_at: datetime
    """When."""
    ended_at: datetime | None
    """When it was done."""


class DeletionReply(Reply):
    """Reply to `deletion.get`."""

    deletion: Deletion | None = None
    """The deletion."""
