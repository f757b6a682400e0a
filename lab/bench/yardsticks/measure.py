"""The queries of `python -m lab.bench`: timings of turns and steps, rows touched. A round trip each.

The timings are the kernel's own (protocol §4, §5), not those seen by a client. Rows touched come from the server's
statistics, which a session reports at most once a second, late while it is idle, and at its end.
"""

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from turnstile.ledger.queries import Connection, parse
from turnstile.schema.base import Tolerant
from turnstile.schema.ids import AgentTurnId, ProjectId, ToolCallId

_QUERIES = parse(Path(__file__).with_name("measure.sql").read_text(encoding="utf-8"))


class TurnTiming(Tolerant):
    """Timings of an ended turn, in ms."""

    queue_delay_ms: float
    e2e_ms: float


class StepTiming(Tolerant):
    """The duration of a committed step, in ms."""

    step_ms: float


class Stamps(Tolerant):
    """Turns whose deliverable has all chunks of its stream."""

    whole: int


class ForkTiming(Tolerant):
    """Timings of a fork, in ms."""

    fork_ms: float
    """From the commit of the call to the end of the last child."""
    enqueued_ms: float
    """From the commit of the call to the enqueue of the last child."""
    wake_ms: float
    """From the end of the last child to the begin of the parent's next step."""


class TurnMoments(Tolerant):
    """When what happened to a turn of one step; None where it has not happened."""

    agent_turn_id: AgentTurnId
    enqueued: datetime | None
    """Its row was written, within the statement."""
    claimed: datetime | None
    step_started: datetime | None
    """By the worker's clock."""
    begun: datetime | None
    """The transaction in which the ledger let the step begin."""
    step_ended: datetime | None
    turn_ended: datetime | None
    announced: datetime | None


class Delay(Tolerant):
    """How long an ended turn waited for its begin, and the ended turns of a project that floods the same processes."""

    seconds: float
    meanwhile: int
    """Turns of the flood that began while the turn waited."""
    ended: int
    """Turns of the flood that have ended by now."""


class WaitingCall(Tolerant):
    """An unanswered call, and its turn."""

    tool_call_id: ToolCallId
    agent_turn_id: AgentTurnId


class RowsTouched(Tolerant):
    """Rows read and written since the statistics began."""

    read: int
    written: int


async def list_turn_timings(conn: Connection, project: ProjectId) -> list[TurnTiming]:
    """Timings of all turns of a project that began and ended."""
    rows = await _QUERIES["list_turn_timings"].many(conn, project_id=project)
    return [TurnTiming.model_validate(dict(row)) for row in rows]


async def list_step_timings(conn: Connection, project: ProjectId) -> list[StepTiming]:
    """Durations of all steps of a project."""
    rows = await _QUERIES["list_step_timings"].many(conn, project_id=project)
    return [StepTiming.model_validate(dict(row)) for row in rows]


async def count_stamps(conn: Connection, project: ProjectId, chunks: int) -> Stamps:
    """How many turns of a project have a deliverable of so many chunks of the bench's provider."""
    row = await _QUERIES["count_stamps"].one(conn, project_id=project, chunks=chunks)
    return Stamps.model_validate(dict(row))


async def list_fork_timings(conn: Connection, project: ProjectId, turns: Sequence[AgentTurnId]) -> list[ForkTiming]:
    """Timings of the forks of these turns."""
    rows = await _QUERIES["list_fork_timings"].many(conn, project_id=project, agent_turn_ids=list(turns))
    return [ForkTiming.model_validate(dict(row)) for row in rows]


async def list_turn_moments(conn: Connection, turns: Sequence[AgentTurnId]) -> list[TurnMoments]:
    """The moments of those of these turns that have ended."""
    return await _QUERIES["list_turn_moments"].all_as(conn, TurnMoments, agent_turn_ids=list(turns))


async def count_suspended(conn: Connection, project: ProjectId) -> int:
    """Number of sleeping turns of a project."""
    return (await _QUERIES["count_suspended"].one(conn, project_id=project))["suspended"]


async def list_waiting_calls(conn: Connection, project: ProjectId, row_limit: int) -> list[WaitingCall]:
    """The oldest unanswered calls of a project."""
    rows = await _QUERIES["list_waiting_calls"].many(conn, project_id=project, row_limit=row_limit)
    return [WaitingCall.model_validate(dict(row)) for row in rows]


async def rows_touched(conn: Connection) -> RowsTouched:
    """Rows touched in the whole database, by every session that has reported."""
    return RowsTouched.model_validate(dict(await _QUERIES["rows_touched"].one(conn)))


async def read_delay(conn: Connection, turn: AgentTurnId, loud: ProjectId) -> Delay:
    """The delay of an ended turn next to the flood of the project `loud`."""
    return Delay.model_validate(dict(await _QUERIES["read_delay"].one(conn, agent_turn_id=turn, loud=loud)))
