"""The safety net's statements (protocol §8). Each may run on many bridges at once and reads only served targets."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeVar

from pydantic import Json

from turnstile.ledger.queries import Connection, Model, Row, query
from turnstile.ledger.turns.lease import AgentKey, LiveTurn
from turnstile.rules.turn_ends import EndedTurn
from turnstile.schema.base import Tolerant
from turnstile.schema.ids import AgentId, AgentTurnId, ChannelId, InboxId, ProjectId, StepId, ToolCallId
from turnstile.schema.message_types import PROTOCOL_LEVEL
from turnstile.schema.pump.threads import Serves
from turnstile.schema.tools import ToolCommand
from turnstile.schema.wire.events import Message, TurnAddress
from turnstile.schema.wire.headers import ContextHeaders

T = TypeVar("T")
WORKER_SILENT_SECONDS = 30.0
"""A worker that has not signed on for this long counts as gone."""


class Unannounced(EndedTurn):
    """An outcome whose `task` event is not known to be in the event stream."""

    agent_turn_id: AgentTurnId
    project_id: ProjectId
    agent_id: AgentId
    channel_id: ChannelId
    turn_epoch: int

    def messages(self, sender: str) -> list[Message]:
        """What announces it."""
        return self.announcement(TurnAddress.of(self, self.context_headers, sender))


class RuleStatement(Protocol[T]):
    """A rule's statement: what it finds for these targets, and has been so for `older_seconds`."""

    async def __call__(
        self, conn: Connection, worker_targets: Sequence[str], *, older_seconds: float, row_limit: int
    ) -> list[T]:
        """Run the statement; returns at most `row_limit` rows."""
        ...


def rule_rows(name: str, model: type[Model]) -> RuleStatement[Model]:
    """The statement of this name, whose rows are of this model."""

    async def find(
        conn: Connection, worker_targets: Sequence[str], *, older_seconds: float, row_limit: int
    ) -> list[Model]:
        values = _values(name, worker_targets, older_seconds, row_limit)
        return await query(name).all_as(conn, model, **values)

    return find


def _rule_agents(name: str) -> RuleStatement[AgentKey]:
    """The statement of this name, whose rows name agents."""

    async def find(
        conn: Connection, worker_targets: Sequence[str], *, older_seconds: float, row_limit: int
    ) -> list[AgentKey]:
        return _agents(await query(name).many(conn, **_values(name, worker_targets, older_seconds, row_limit)))

    return find


def _values(name: str, worker_targets: Sequence[str], older_seconds: float, row_limit: int) -> dict[str, Any]:
    values = {"worker_targets": list(worker_targets), "older_seconds": older_seconds, "row_limit": row_limit}
    needs_worker = "silent_seconds" in query(name).parameters
    return values | ({"silent_seconds": WORKER_SILENT_SECONDS} if needs_worker else {})


def _agents(rows: Sequence[Row]) -> list[AgentKey]:
    return list(dict.fromkeys((row["project_id"], row["agent_id"]) for row in rows))


release_stale_claims = _rule_agents("release_stale_claims")
"""Rule 'claims': gives stale claimed rows back; returns their agents."""
retry_dispatched = _rule_agents("retry_dispatched")
"""Rule 'dispatched, retry': gives back rows of leased turns that were not begun; returns their agents."""
retry_resumes = _rule_agents("retry_resumes")
"""Rule 'resume': gives back claimed reports whose turn is still suspended, although a worker is there; returns their
agents."""


class Orphan(Tolerant):
    """A row for an agent that no roster has, ended as error, and who wrote it."""

    project_id: ProjectId
    agent_id: AgentId
    inbox_id: InboxId
    message_type: str
    sender: str


async def end_orphans(conn: Connection, *, older_seconds: float, row_limit: int) -> list[Orphan]:
    """Rule 'orphans': ends rows of that age for agents that no roster has; returns them."""
    return await query("end_orphans").all_as(conn, Orphan, older_seconds=older_seconds, row_limit=row_limit)


async def list_stranded(conn: Connection, worker_targets: Sequence[str], *, row_limit: int) -> list[AgentKey]:
    """Rule 'stranded': idle agents with a turn that could be leased."""
    targets = list(worker_targets)
    return _agents(await query("list_stranded").many(conn, worker_targets=targets, row_limit=row_limit))


class DueAgent(Tolerant):
    """An agent with a row that is due, and for how long it has been."""

    project_id: ProjectId
    agent_id: AgentId
    is_deferred: bool
    """Whether the row waited for its time; else it waited for a doorbell."""
    due_seconds: float


list_due_agents = rule_rows("list_due_agents", DueAgent)
"""Rule 'doorbell': the agents with pending rows that have been due for too long, or deferred rows that are due."""


list_unannounced = rule_rows("list_unannounced", Unannounced)
"""Rule 'unannounced': the outcomes to announce, oldest first."""


class MarkedTurn(Tolerant):
    """A marked turn in a queue."""

    project_id: ProjectId
    agent_id: AgentId
    agent_turn_id: AgentTurnId
    inbox_id: InboxId
    channel_id: ChannelId
    worker_target: str
    context_headers: ContextHeaders


class SilentCall(Tolerant):
    """A call whose command is to be published again; `repeat` counts from 1 and is part of the message id."""

    project_id: ProjectId
    channel_id: ChannelId
    agent_id: AgentId
    agent_turn_id: AgentTurnId
    turn_epoch: int
    step_id: StepId
    tool_call_id: ToolCallId
    repeat: int
    command: Json[ToolCommand] | None
    context_headers: ContextHeaders

    def message(self, sender: str) -> Message | None:
        """The command, under a message id of its own; None if the step recorded none."""
        if self.command is None:
            return None
        address = TurnAddress.of(self, self.context_headers, sender)
        return address.tool_command(self.command, self.step_id, self.repeat)


retry_commands = rule_rows("retry_commands", SilentCall)
"""Rule 'command': the calls whose commands are to be published again."""
list_overdue = rule_rows("list_overdue", LiveTurn)
"""Rule 'suspended': the turns whose earliest deadline has passed."""
retry_forks = rule_rows("retry_forks", SilentCall)
"""Rule 'batch': the calls whose batch has tasks that nobody enqueues; their commands are to be published again."""


class Undecided(Tolerant):
    """A batch that is to be decided."""

    batch_id: str


list_undecided = rule_rows("list_undecided", Undecided)
"""Rule 'batch': those past their deadline, or whose turn is over."""
list_marked_queued = rule_rows("list_marked_queued", MarkedTurn)
"""Rule 'marked': the turns that are marked and wait in a queue."""
list_marked_in_hand = rule_rows("list_marked_in_hand", LiveTurn)
"""Rule 'marked': the turns in hand that are marked and did not end in time."""
list_stops_overdue = rule_rows("list_stops_overdue", LiveTurn)
"""Rule 'stop': the turns that did not stop in time."""


async def reject(
    conn: Connection, project: ProjectId | None, source: str, code: str, error: str, ids: Mapping[str, str]
) -> None:
    """Record a refused message: its sender and the reason, never its body. NUL is removed from the ids."""
    ids_text = json.dumps({name: text.replace("\0", "") for name, text in ids.items()})
    source, error = source.replace("\0", "")[:200], error.replace("\0", "")[:500]
    await query("reject").many(conn, project_id=project, source=source, error_code=code, error=error, ids=ids_text)


async def touch_worker(
    conn: Connection,
    instance: str,
    worker_targets: Sequence[str],
    serves: Serves | None = None,
    *,
    restarted: bool = False,
) -> None:
    """Record that this instance serves these targets and listeners now.

    After a gap, or if it has `restarted`, it counts as present from now on.
    """
    await query("touch_worker").many(
        conn,
        instance=instance,
        worker_targets=list(worker_targets),
        pump_target="" if serves is None else serves.worker_target,
        listeners=None if serves is None else list(serves.listeners),
        payloads=None if serves is None else list(serves.payloads),
        silent_seconds=WORKER_SILENT_SECONDS,
        restarted=restarted,
        protocol_level=PROTOCOL_LEVEL,
    )


async def sign_off(conn: Connection, instance: str, *, is_bridge: bool) -> None:
    """Record that this worker, or bridge, ends as it should; the net and listeners go by its last sign of life."""
    await query("sign_off").many(conn, instance=instance, is_bridge=is_bridge)


async def touch_bridge(conn: Connection, instance: str) -> None:
    """Sign on: this bridge speaks `PROTOCOL_LEVEL`."""
    await query("touch_bridge").many(conn, instance=instance, protocol_level=PROTOCOL_LEVEL)
