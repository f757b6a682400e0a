"""The present state of all projects, for `top`, `doctor` and metrics. Bounded, indexed reads; decides nothing."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from pydantic import Json, JsonValue

from turnstile.ledger.operations.sweep import WORKER_SILENT_SECONDS
from turnstile.ledger.queries import Connection, query
from turnstile.schema.base import Tolerant
from turnstile.schema.budgets.plans import BudgetPeriod
from turnstile.schema.ids import ProjectId

ROW_LIMIT = 10_000
"""The most rows of a kind that are counted."""


class InboxLag(Tolerant):
    """Live inbox rows by status, and for how long the oldest due one has been due."""

    rows: Json[dict[str, int]]
    tried_again: Json[dict[str, int]]
    """Rows whose claim failed before, by `defer_reason`: `engine_unreachable` where Temporal takes nothing."""
    oldest_due_seconds: float


class Spending(Tolerant):
    """What all projects with limits may spend in this day or month, and what of it is gone; costs in micro-dollars."""

    period: BudgetPeriod
    max_tokens: int
    spent_tokens: int
    reserved_tokens: int
    unsettled_tokens: int
    """The part of what is spent that was booked whole, since nobody knows what was used."""
    max_cost: int
    spent_cost: int
    reserved_cost: int
    unsettled_cost: int


@dataclass(frozen=True, slots=True)
class Backlog:
    """Inbox rows and threads that wait, and what projects have spent."""

    inbox: InboxLag
    open_threads: int
    spending: Sequence[Spending] = ()


class LimitedModel(Tolerant):
    """A model whose provider wants no requests until then, or at which some wait for their turn (protocol §7.9)."""

    account: str
    """Stands for the provider, the server and the key."""
    model: str
    paused_until: datetime | None
    waiting: int


class SystemStatus(InboxLag):
    """The whole state. `outcomes` and `mean_seconds` are of the turns that ended in the last minute."""

    seen_at: datetime
    agents: Json[dict[str, int]]
    outcomes: Json[dict[str, int]]
    mean_seconds: float | None
    repairs: Json[dict[str, int]]
    workers: Json[dict[str, int]]
    open_threads: int
    limited_models: Json[list[LimitedModel]]


class TargetUse(Tolerant):
    """A worker target that agents or profiles of any project name; `example` is one of them."""

    worker_target: str
    agents: int
    profiles: int
    example: str


class LiveWorker(Tolerant):
    """A worker, or another service, that signed on lately for a target."""

    instance: str
    worker_target: str
    seen_seconds: float


class ToolTarget(Tolerant):
    """The target subject of a tool, and the schema of its arguments; or a tool that is not there."""

    project_id: ProjectId
    tool_name: str
    target_subject: str | None
    parameters: Json[JsonValue] | None = None
    missed_by: str | None = None
    """A profile whose `run_by` names it, of a tool that is not there."""


async def list_target_uses(conn: Connection) -> list[TargetUse]:
    """The targets that agents and profiles name; one round trip."""
    return await query("list_target_uses").all_as(conn, TargetUse, row_limit=ROW_LIMIT)


async def list_live_workers(conn: Connection) -> list[LiveWorker]:
    """The workers that serve targets now; one round trip."""
    return await query("list_live_workers").all_as(
        conn, LiveWorker, silent_seconds=WORKER_SILENT_SECONDS, row_limit=ROW_LIMIT
    )


async def list_tool_targets(conn: Connection) -> list[ToolTarget]:
    """The tools of all projects; one round trip."""
    return await query("list_tool_targets").all_as(conn, ToolTarget, row_limit=ROW_LIMIT)


async def measure_inbox(conn: Connection, worker_targets: Sequence[str] | None = None) -> InboxLag:
    """The inbox of these targets, or of all; one round trip."""
    targets = None if worker_targets is None else list(worker_targets)
    return await query("measure_inbox").one_as(conn, InboxLag, worker_targets=targets, row_limit=ROW_LIMIT)


async def count_open_threads(conn: Connection, worker_targets: Sequence[str]) -> int:
    """Threads of these targets that have open messages; one round trip."""
    row = await query("count_open_threads").one(conn, worker_targets=list(worker_targets), row_limit=ROW_LIMIT)
    return row["found"]


async def measure_backlog(conn: Connection, worker_targets: Sequence[str], thread_targets: Sequence[str]) -> Backlog:
    """Inbox and threads of these targets, and what all projects have spent; three round trips."""
    inbox = await measure_inbox(conn, worker_targets)
    threads = await count_open_threads(conn, thread_targets)
    return Backlog(inbox, threads, await measure_spending(conn))


async def measure_spending(conn: Connection) -> list[Spending]:
    """What projects with limits have spent of them in this day and month; none if none has any. One round trip."""
    return await query("measure_spending").all_as(conn, Spending, row_limit=ROW_LIMIT)


async def look_around(conn: Connection) -> SystemStatus:
    """The whole state; one round trip."""
    return await query("look_around").one_as(
        conn, SystemStatus, row_limit=ROW_LIMIT, silent_seconds=WORKER_SILENT_SECONDS
    )
