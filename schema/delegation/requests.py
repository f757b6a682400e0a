"""What a tool asks of other agents under the call that it runs, and what it is answered (protocol §12).

The answers have the form of those that the delegating tools give to a model.
"""

from typing import Literal

from pydantic import Field, JsonValue

from turnstile.schema.base import JsonObject, Strict, Tolerant
from turnstile.schema.ids import AgentId, AgentTurnId, BoxId, CardId, ToolCallId
from turnstile.schema.wire.inbox import Reply

AskedTool = Literal["delegate_async", "ask_expert", "fork_join"]
"""The delegating tools that a tool may use; it always waits for what it asks."""


class DelegateRequest(Strict):
    """Arguments of `delegate`: what a tool asks of other agents under a call that it runs and has not reported."""

    tool_call_id: ToolCallId = Field(min_length=1, max_length=128)
    """The call, whose turn is the caller: its policy, its boxes and its depth are those that count."""
    key: str = Field(pattern=r"^[A-Za-z0-9_.:-]{1,64}$")
    """The tool's name for this request under the call; a repeat asks how it stands, and makes nothing twice."""
    tool: AskedTool
    """The delegating tool."""
    arguments: JsonObject
    """Its arguments; `wait` is always true."""


class DelegateReply(Reply):
    """Reply to `delegate`."""

    tool_call_id: ToolCallId | None = None
    """The call."""
    batch_id: str | None = None
    """The batch of the children."""
    batch_status: str | None = None
    """running | success | partial | failed | timeout"""
    duplicate: bool = False
    """Whether this was asked before."""
    answer: JsonObject | None = None
    """What it came to, as the delegating tool would answer; null while the batch runs: then ask again."""


class ChildAnswer(Tolerant):
    """What one child came to."""

    status: str
    """success | partial | failed | canceled | timeout"""
    value: JsonValue = None
    """Its deliverable: a text, or the data that was asked for."""
    error: str | None = None
    """Why it did not succeed, as a code."""
    error_detail: JsonObject | None = None
    """Of `budget_exceeded`: `dimension`, `had`, `spent`, `reserved`, `asked` and `left`; money in dollars."""
    agent_id: AgentId | None = None
    agent_turn_id: AgentTurnId | None = None
    output_box_id: BoxId | None = None
    deliverable_card_id: CardId | None = None


class TaskAnswer(Tolerant):
    """What one task of a fork came to."""

    task_index: int
    label: str | None = None
    status: str
    """success | partial | failed | canceled | timeout, or running for one that may finish after the join"""
    summary: str | None = None
    """The beginning of its deliverable, at most 500 characters."""
    error: str | None = None
    """Why it did not succeed, as a code."""
    error_detail: JsonObject | None = None
    """Of `budget_exceeded`: `dimension`, `had`, `spent`, `reserved`, `asked` and `left`; money in dollars."""
    output_box_id: BoxId | None = None
    agent_id: AgentId | None = None
    agent_turn_id: AgentTurnId | None = None
    deliverable_card_id: CardId | None = None


class JoinAnswer(Tolerant):
    """What a fork came to, with its tasks in their order."""

    status: str
    """success | partial | failed | timeout"""
    results: tuple[TaskAnswer, ...]
