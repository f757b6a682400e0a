"""Questions to people, as people look at them: pages of them, and one with the call that it is about. Reads only."""

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Json, JsonValue

from turnstile.ledger.queries import Connection, Row, query
from turnstile.schema.base import JsonObject, Tolerant, stored_json
from turnstile.schema.cards import ToolCallContent, names_or_none, own_arguments, read_content
from turnstile.schema.ids import (
    AgentId,
    AgentTurnId,
    ChannelId,
    ConversationId,
    InterruptId,
    ProjectId,
    StepId,
    ToolCallId,
    interrupt_id,
)
from turnstile.schema.people.interrupt_requests import InterruptView
from turnstile.schema.people.interrupts import Interrupt, InterruptReason, InterruptStatus

_TEXT_LIMIT = 20_000
"""Characters of an instruction, and of what a model said, that are read."""
_SHORT_BYTES = 8_000
"""Of a call's card, as JSON, that is read for a list."""


class CalledBefore(Tolerant):
    """A call before a person edited it."""

    content: JsonValue
    """The content of its card."""
    added: Annotated[tuple[str, ...] | None, BeforeValidator(names_or_none)]
    """The names of the arguments that the tool's options added."""


class InterruptContext(Tolerant):
    """What a person should know of a question beside its call."""

    conversation_id: ConversationId | None
    """The conversation of the turn; empty for the one that a profile's memory keeps, null for none."""
    asked: str | None
    """What the turn was asked; null if its card is gone."""
    thought: str | None
    """What its model said with the call."""
    tool: Json[JsonObject] | None
    """The tool's row as it is now; null if there is none."""
    tool_changed: bool
    """Whether the call failed as `tool_changed` when it was decided."""
    will_change: bool
    """Whether it would fail so now: the tool is not the one that was asked about."""
    before_edit: Json[CalledBefore] | None
    """The call's card before a person edited it; null if nobody has."""
    answer: Json[JsonValue] | None
    """The result that a person gave it; null if nobody has, or its card is gone."""
    own_words: bool
    """Whether the reader has words in what led to the call, and may not decide because of them."""

    def arguments_before(self, *, with_added: bool) -> JsonObject | None:
        """The arguments before a person edited them; with those that the tool's options added, or without."""
        before = self.before_edit
        content = None if before is None else read_content(before.content)
        if before is None or not isinstance(content, ToolCallContent):
            return None
        return content.arguments if with_added else own_arguments(content.arguments, before.added)


async def list_interrupts(
    conn: Connection,
    project: ProjectId,
    *,
    channel: ChannelId | None = None,
    agent: AgentId | None = None,
    turn: AgentTurnId | None = None,
    status: InterruptStatus | None = None,
    reason: InterruptReason | Literal["any"] | None = None,
    after: InterruptId | None = None,
    row_limit: int,
) -> Sequence[Interrupt]:
    """The newest first; those older than `after`, none if the project has no such question.

    Without a `reason` all that people are asked: calls that clients run are left out (protocol §19).
    """
    page = {
        "project_id": project,
        "channel_id": channel,
        "reason": reason,
        "agent_id": agent,
        "after_id": after,
        "row_limit": row_limit,
    }
    if turn is not None:
        rows = await query("list_interrupts_of_turn").many(conn, **page, agent_turn_id=turn, status=status)
    elif status is InterruptStatus.OPEN:
        rows = await query("list_open_interrupts").many(conn, **page)
    else:
        rows = await query("list_interrupts").many(conn, **page, status=status)
    return [Interrupt.model_validate(_columns(row)) for row in rows]


async def count_open_interrupts(
    conn: Connection, project: ProjectId, *, channel: ChannelId | None = None, most: int
) -> int:
    """How many questions are open, counted up to `most`."""
    row = await query("count_open_interrupts").one(conn, project_id=project, channel_id=channel, most=most)
    return int(row["open"])


async def get_interrupt(
    conn: Connection, project: ProjectId, interrupt: InterruptId, *, channel: ChannelId | None = None, with_added: bool
) -> InterruptView | None:
    """The question with its call; None if the project, or the channel, has no such question.

    `with_added`: with the arguments that the tool's options added (`Detail.ADDED`).
    """
    row = await query("get_interrupt").opt(conn, project_id=project, channel_id=channel, interrupt_id=interrupt)
    if row is None:
        return None
    columns = _columns(row)
    content = None if row["content"] is None else read_content(stored_json(row["content"]))
    if isinstance(content, ToolCallContent):
        columns |= {"arguments": content.arguments, "target_subject": content.target_subject}
    view = InterruptView.model_validate(columns)
    return view if with_added else view.without_added(_names(row["added"]))


async def get_interrupt_context(
    conn: Connection, project: ProjectId, interrupt: InterruptId, reader: str, *, channel: ChannelId | None = None
) -> InterruptContext | None:
    """What the reader is to know of a question beside its call; None if project or channel have no such question."""
    return await query("get_interrupt_context").opt_as(
        conn,
        InterruptContext,
        project_id=project,
        channel_id=channel,
        interrupt_id=interrupt,
        reader=reader,
        text_limit=_TEXT_LIMIT,
    )


async def list_call_arguments(
    conn: Connection, project: ProjectId, interrupts: Sequence[Interrupt], *, with_added: bool
) -> dict[InterruptId, JsonObject]:
    """The arguments of the calls that these questions are about, without large ones and those whose card is gone.

    `with_added`: with the arguments that the tools' options added (`Detail.ADDED`).
    """
    cards = [interrupt.tool_call_card_id for interrupt in interrupts]
    rows = await query("list_call_contents").many(conn, project_id=project, card_ids=cards, content_limit=_SHORT_BYTES)
    of_card: dict[str, JsonObject] = {}
    for row in rows:
        if isinstance(content := read_content(stored_json(row["content"])), ToolCallContent):
            arguments = content.arguments if with_added else own_arguments(content.arguments, _names(row["added"]))
            of_card[row["card_id"]] = arguments
    return {
        interrupt.interrupt_id: of_card[interrupt.tool_call_card_id]
        for interrupt in interrupts
        if interrupt.tool_call_card_id in of_card
    }


class ClientCall(Tolerant):
    """A call that the requester of its turn runs (protocol §19)."""

    interrupt_id: InterruptId
    tool_call_id: ToolCallId
    agent_turn_id: AgentTurnId
    step_id: StepId
    status: InterruptStatus
    requester: str | None
    channel_id: ChannelId


async def list_client_calls(conn: Connection, project: ProjectId, calls: Sequence[str]) -> list[ClientCall]:
    """All calls that clients run of the turns that made these calls; none of calls that are nobody's."""
    ids = [interrupt_id(ToolCallId(call)) for call in calls]
    rows = await query("list_client_calls").many(conn, project_id=project, interrupt_ids=ids)
    return [ClientCall.model_validate(dict(row)) for row in rows]


def _names(added: str | None) -> tuple[str, ...] | None:
    return None if added is None else names_or_none(json.loads(added))


def _columns(row: Row) -> dict[str, Any]:
    schema = row["response_schema"]
    return dict(row) | {"response_schema": None if schema is None else json.loads(schema)}
