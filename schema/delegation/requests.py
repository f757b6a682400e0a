"""What a tool asks of agents and people under the call that it runs, and what it is answered (protocol §12, §13).

The answers of agents have the form of those that the delegating tools give to a model.
"""

from typing import Literal

from pydantic import Field, JsonValue

from turnstile.schema.base import IdOf, JsonObject, Reply, Strict, Tolerant
from turnstile.schema.ids import AgentId, AgentTurnId, BoxId, CardId, InterruptId, ToolCallId

DelegatingTool = Literal["delegate_async", "ask_expert", "fork_join"]
"""The delegating tools that a tool may use; it always waits for what it asks."""
AskedTool = DelegatingTool | Literal["ask_human"]
"""What a tool may ask by."""


class DelegateRequest(Strict):
    """Arguments of `delegate`: what a tool asks of agents or people under a call that it has not answered."""

    tool_call_id: IdOf[ToolCallId] = Field(min_length=1, max_length=128)
    """The call, whose turn is the caller: its policy, its boxes and its depth are those that count."""
    key: str = Field(pattern=r"^[A-Za-z0-9_.:-]{1,64}$")
    """The tool's name for this request under the call; a repeat asks how it stands, and makes nothing twice."""
    tool: AskedTool
    """The delegating tool, or `ask_human`."""
    arguments: JsonObject
    """Its arguments; `wait` is always true."""


class DelegateReply(Reply):
    """Reply to `delegate`."""

    tool_call_id: ToolCallId | None = None
    """The call."""
    batch_id: str | None = None
    """The batch of the children; null of `ask_human`."""
    batch_status: str | None = None
    """running | success | partial | failed | timeout; null of `ask_human`."""
    interrupt_id: InterruptId | None = None
    """With `ask_human`: the question."""
    duplicate: bool = False
    """Whether this was asked before."""
    answer: JsonObject | None = None
    """What it came to, as the delegating tool would answer, of `ask_human` `{decision, response, message}`; null while
    it is waited for: then ask again."""


class HumanReply(Tolerant):
    """What a person answered to a tool's question."""

    decision: Literal["respond", "reject"]
    response: JsonValue = None
    """With `respond`: the answer, which fits the question's schema."""
    message: str = ""
    """With `reject`: why."""


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
    """The beginning of its deliverable, `[pmo].fork_join_summary_chars` at most; of fields `name: value | …`."""
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
