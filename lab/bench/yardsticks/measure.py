"""What `python -m lab.bench` reads of a ledger: timings of turns and steps, rows touched. A round trip each.

The timings are the kernel's own (protocol §4, §5): what it did, not when a client heard of it. Rows touched come from
the server's statistics, which a session tells at most once a second, late while it is idle, and at its end.
"""

from pathlib import Path

from turnstile.ledger.queries import Connection, parse
from turnstile.schema.base import Tolerant
from turnstile.schema.ids import AgentTurnId, ProjectId, ToolCallId

_QUERIES = parse(Path(__file__).with_name("measure.sql").read_text(encoding="utf-8"))


class TurnTiming(Tolerant):
    """A turn that has ended, in ms."""

    queue_delay_ms: float
    e2e_ms: float


class StepTiming(Tolerant):
    """A step that is committed, in ms."""

    step_ms: float


class WaitingCall(Tolerant):
    """A call that is out, and its turn."""

    tool_call_id: ToolCallId
    agent_turn_id: AgentTurnId


class RowsTouched(Tolerant):
    """Rows read and written, since statistics began."""

    read: int
    written: int


async def list_turn_timings(conn: Connection, project: ProjectId) -> list[TurnTiming]:
    """Of all ended turns of a project that was begun."""
    rows = await _QUERIES["list_turn_timings"].many(conn, project_id=project)
    return [TurnTiming.model_validate(dict(row)) for row in rows]


async def list_step_timings(conn: Connection, project: ProjectId) -> list[StepTiming]:
    """Of all steps of a project."""
    rows = await _QUERIES["list_step_timings"].many(conn, project_id=project)
    return [StepTiming.model_validate(dict(row)) for row in rows]


async def count_suspended(conn: Connection, project: ProjectId) -> int:
    """How many turns of a project are asleep."""
    return (await _QUERIES["count_suspended"].one(conn, project_id=project))["suspended"]


async def list_waiting_calls(conn: Connection, project: ProjectId, row_limit: int) -> list[WaitingCall]:
    """The oldest calls of a project that nobody has answered."""
    rows = await _QUERIES["list_waiting_calls"].many(conn, project_id=project, row_limit=row_limit)
    return [WaitingCall.model_validate(dict(row)) for row in rows]


async def rows_touched(conn: Connection) -> RowsTouched:
    """Of the whole database, by every session that has told."""
    return RowsTouched.model_validate(dict(await _QUERIES["rows_touched"].one(conn)))
