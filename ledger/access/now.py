"""What goes on in a project, and a turn in all its parts, for the people who watch (protocol §14). Reads only.

What is shown of live turns is one statement, whose cost grows with the live turns of the project, of which it reads
10,000 of a kind at most, and not with its past.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Final, Literal

from pydantic import Json

from turnstile.ledger.access.pages import PageCursor, narrowed
from turnstile.ledger.operations.sweep import WORKER_SILENT_SECONDS
from turnstile.ledger.queries import Connection, query
from turnstile.ledger.turns.cards import card_of
from turnstile.schema.api import TurnSummary
from turnstile.schema.base import Tolerant
from turnstile.schema.cards import Card
from turnstile.schema.ids import (
    AgentId,
    AgentTurnId,
    BoxId,
    CardId,
    ChannelId,
    ConversationId,
    InterruptId,
    ProjectId,
    StepId,
    ToolCallId,
)
from turnstile.schema.ledger_reads import SentCall

PATIENCE_SECONDS: Final = 30.0
"""After so long without a change a live turn stands still; a running step has twice that, and ten times the usual."""
MOST_LIVE: Final = 10_000
"""Turns in hand, and queued ones, that are looked at."""
MOST_CALLS: Final = 1000
"""Calls of one turn that are shown."""

Stall = Literal["not_leased", "not_begun", "slow_step", "overdue"]
LiveState = Literal["queued", "dispatched", "running", "suspended", "people", "stalled"]


class OpenCall(Tolerant):
    """A call that a sleeping turn waits for."""

    tool_call_id: ToolCallId
    tool_name: str
    created_at: datetime
    deadline: datetime | None
    wait_status: str
    tasks: int | None
    """Turns that it asked; null if it asks none."""
    tasks_done: int | None
    only_turn_id: AgentTurnId | None
    """The turn that it asked, if that is one."""
    question_id: InterruptId | None
    """The open question to people that it waits for."""


class TurnNow(Tolerant):
    """A live turn: where it stands, since when, and what it waits for. Tokens and cost are of its committed steps."""

    agent_turn_id: AgentTurnId
    agent_id: AgentId
    channel_id: ChannelId
    correlation_id: str | None
    conversation_id: ConversationId | None
    parent_turn_id: AgentTurnId | None
    status: str
    """Its head's, or `queued`."""
    inbox_status: str
    defer_reason: str | None
    """Why its claim was given back, of a turn that has not begun."""
    retry_count: int
    """How often running for that reason."""
    created_at: datetime
    started_at: datetime | None
    since: datetime
    """When the head last changed; of a queued turn when it was enqueued."""
    steps: int
    """Committed steps."""
    step_attempt: int
    """The attempt of the step in hand; 0 before its first."""
    model_failures: int
    restart_count: int
    resume_deadline: datetime | None
    queued_because: str | None
    asked: str | None
    """The begin of the instruction; for a UI action the tool."""
    asks_people: bool
    """Whether a question of it to people is open."""
    stalled: Stall | None
    """Why it stands still; null if it does not."""
    unserved: bool
    """Whether that is since no worker serves it."""
    stopping: bool
    profile_name: str | None
    model: str | None
    """The model of its last attempt, else the one that it will ask."""
    tokens: int
    cost: float | None
    """In US dollars; null if no price is known."""
    calls: list[OpenCall] | None
    """The first five that it waits for."""
    open_calls: int
    """All that it waits for."""


class LiveTurns(Tolerant):
    """Live turns by state, and a page of them."""

    total: int
    queued: int
    dispatched: int
    running: int
    suspended: int
    asking: int
    """Those that wait for people."""
    stalled: int
    seen_at: datetime
    usual_seconds: float | None
    """What a step of the project takes, of the last turns; null if there is none."""
    turns: Json[list[TurnNow]]


class SearchHit(Tolerant):
    """A turn that a search found."""

    agent_turn_id: AgentTurnId
    agent_id: AgentId
    correlation_id: str | None
    created_at: datetime
    asked: str | None
    """The begin of the instruction; for a UI action the tool."""


class TurnWithUse(TurnSummary):
    """A turn in a page, with what its committed steps used."""

    asked: str | None
    """The begin of the instruction; for a UI action the tool."""
    steps: int
    tokens: int
    cost: float | None
    model: str | None
    """The model of its last attempt."""


class TurnCall(SentCall):
    """A call that a turn has sent, with its result and the turns that it asked."""

    updated_at: datetime
    deadline: datetime | None
    call_card_id: CardId
    tool_result_card_id: CardId | None
    tasks: int | None
    """Turns that it asked; null if it asked none."""
    tasks_done: int | None
    only_turn_id: AgentTurnId | None
    """The turn that it asked, if that is one."""
    result_status: str | None
    error_code: str | None


class TurnPlace(Tolerant):
    """Where a turn is in its tree, who asked for it, and what it runs with."""

    root_turn_id: AgentTurnId | None
    """Null if it is in no tree."""
    parent_turn_id: AgentTurnId | None
    stopping: bool
    stop_reason: str | None
    children: int
    """Turns that it asked, 10,000 at most."""
    requester: str | None
    """Who asked for it; null if nobody said."""
    profile_name: str | None
    model: str | None
    """The profile's."""
    profile_box_id: BoxId | None
    """The version of the profile."""
    ui_action: str | None
    """The tool of a UI action; null of a turn of a model."""


async def look_at_live_turns(
    conn: Connection,
    project: ProjectId,
    *,
    channel: ChannelId | None,
    agent: AgentId | None = None,
    profile: str | None = None,
    state: LiveState | None = None,
    turn: AgentTurnId | None = None,
    offset: int = 0,
    row_limit: int,
) -> LiveTurns:
    """Counts of all live turns of the project, or a channel, and a page of those that fit the filters; one round trip.

    Those that stand still come first, then those that wait for people, then the newest. With `turn` that one alone.
    """
    return await query("look_at_live_turns").one_as(
        conn,
        LiveTurns,
        project_id=project,
        channel_id=channel,
        agent_id=agent,
        profile_name=profile,
        state=state,
        agent_turn_id=turn,
        patience=PATIENCE_SECONDS,
        silent_seconds=WORKER_SILENT_SECONDS,
        row_offset=offset,
        row_limit=row_limit,
    )


async def page_turns_with_use(
    conn: Connection,
    project: ProjectId,
    *,
    channel: ChannelId | None,
    agent: AgentId | None = None,
    status: str | None = None,
    before: PageCursor | None = None,
    row_limit: int,
) -> list[TurnWithUse]:
    """The newest first, those before a place; of a `status` of outcomes, `ended` for any."""
    return await query(narrowed("page_turns_with_use", agent=agent, channel=channel)).all_as(
        conn,
        TurnWithUse,
        project_id=project,
        channel_id=channel,
        agent_id=agent,
        status=status,
        before_at=None if before is None else before.at,
        before_id=None if before is None else before.id,
        row_limit=row_limit,
    )


async def search_turns(
    conn: Connection, project: ProjectId, text: str, *, channel: ChannelId | None, row_limit: int
) -> list[SearchHit]:
    """The newest turns whose id begins with the text, or which their caller named so."""
    names = [text] if channel is None else [text, f"{channel}/{text}"]
    return await query("search_turns").all_as(
        conn,
        SearchHit,
        project_id=project,
        channel_id=channel,
        beginning=text,
        correlations=names,
        row_limit=row_limit,
    )


async def list_turn_calls(conn: Connection, project: ProjectId, turn: AgentTurnId) -> list[TurnCall]:
    """The calls that the turn has sent, in order: the first `MOST_CALLS`."""
    return await query("list_turn_calls").all_as(
        conn, TurnCall, project_id=project, agent_turn_id=turn, row_limit=MOST_CALLS
    )


async def list_turn_inputs(conn: Connection, project: ProjectId, box: BoxId, *, row_limit: int) -> list[Card]:
    """The last cards of a turn's context box, in order, without those that say what it runs with."""
    rows = await query("list_turn_inputs").many(conn, project_id=project, box_id=box, row_limit=row_limit)
    return [card_of(row) for row in rows]


async def list_cards_of_steps(
    conn: Connection, project: ProjectId, turn: AgentTurnId, steps: Sequence[StepId], others: Sequence[CardId]
) -> list[Card]:
    """The cards of these steps, results of their calls, all that was said to the turn, and others; in no order."""
    rows = await query("list_cards_of_steps").many(
        conn, project_id=project, agent_turn_id=turn, step_ids=list(steps), card_ids=list(others)
    )
    return [card_of(row) for row in rows]


async def describe_place(conn: Connection, project: ProjectId, turn: AgentTurnId) -> TurnPlace:
    """Where a turn of the project is in its tree, and who asked for it; raises `LookupError` if there is none."""
    return await query("describe_place").one_as(conn, TurnPlace, project_id=project, agent_turn_id=turn)
