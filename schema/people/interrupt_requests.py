"""Requests and replies of `interrupt.list` and `interrupt.get` (protocol §13): how people see what they are asked."""

from collections.abc import Sequence

from pydantic import Field

from turnstile.schema.base import AgentToken, IdOf, JsonObject, Reply, Strict
from turnstile.schema.cards import own_arguments
from turnstile.schema.ids import AgentTurnId, InterruptId
from turnstile.schema.people.digests import NotCanonical, action_digest
from turnstile.schema.people.interrupts import Interrupt, InterruptReason, InterruptStatus


class InterruptView(Interrupt):
    """A question with the call that it is about. What a model wrote (`arguments`, a question's `message`) is data."""

    target_subject: str | None = None
    """Where the call would go; null for a question, which goes to no tool."""
    arguments: JsonObject | None = None
    """The arguments that the tool would get; null in lists, or if its card is gone."""
    arguments_left_out: bool = False
    """Whether `arguments` lacks some that the tool's options add, and that the reader may not see."""

    @property
    def is_what_is_shown(self) -> bool:
        """Whether the digest is that of the call as it is shown here: only then may a person be asked to decide.

        Where arguments are left out, whoever left them out has looked: else it would have left out all.
        """
        if self.action_digest is None or (self.arguments_left_out and self.arguments is not None):
            return True
        if self.arguments is None:
            return False
        try:
            digest = action_digest(self.tool_call_id, self.tool_name, self.target_subject or "", self.arguments)
        except NotCanonical:
            return False
        return digest == self.action_digest

    def without_added(self, added: Sequence[str] | None) -> "InterruptView":
        """The question without the arguments that the tool's options added; without all if its digest is another's."""
        if self.arguments is None or not self.is_what_is_shown:
            return self.model_copy(update={"arguments": None})
        arguments = own_arguments(self.arguments, added)
        return self.model_copy(update={"arguments": arguments, "arguments_left_out": arguments != self.arguments})


class InterruptListRequest(Strict):
    """Arguments of `interrupt.list`: which questions of the channel."""

    status: InterruptStatus | None = None
    """Only those with this status."""
    reason: InterruptReason | None = None
    """Only those for this reason; by default all that people answer, which calls of `client_tool` are not."""
    agent_id: AgentToken | None = None
    """Only those of this agent."""
    agent_turn_id: IdOf[AgentTurnId] | None = Field(default=None, min_length=1, max_length=128)
    """Only of this turn."""
    after: IdOf[InterruptId] | None = Field(default=None, min_length=1, max_length=160)
    """Only those older than this one: `next` of the reply before."""
    limit: int = Field(default=100, ge=1, le=1000)
    """At most this many."""


class InterruptListReply(Reply):
    """Reply to `interrupt.list`."""

    interrupts: tuple[Interrupt, ...] = ()
    """The questions, the newest first, without arguments."""
    next: InterruptId | None = None
    """`after` of the next request; null if there are no more."""


class InterruptRequest(Strict):
    """Arguments of `interrupt.get`."""

    interrupt_id: IdOf[InterruptId] = Field(min_length=1, max_length=160)
    """The question."""


class InterruptReply(Reply):
    """Reply to `interrupt.get`."""

    interrupt: InterruptView | None = None
    """The question, with the call that it is about."""
