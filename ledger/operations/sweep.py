"""The safety net's statements (protocol §8). Each may run on many bridges at once and reads only served targets."""

import json
from collections.abc import Mapping, Sequence

from pydantic import Json

from turnstile.ledger.queries import Connection, Row, query
from turnstile.ledger.turns.ends import EndedTurn
from turnstile.ledger.turns.lease import AgentKey, LiveTurn
from turnstile.schema.base import Tolerant
from turnstile.schema.ids import (
    AgentId,
    AgentTurnId,
    ChannelId,
    ProjectId,
    StepId,
    ToolCallId,
)
from turnstile.schema.message_types import PROTOCOL_LEVEL
from turnstile.schema.pump.threads import Serves
from turnstile.schema.tools import ToolCommand
from turnstile.schema.wire.events import Address, Message
from turnstile.schema.wire.headers import ContextHeaders

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
        return self.announcement(Address.of(self, self.context_headers, sender))


async def release_stale_claims(
    conn: Connection, worker_targets: Sequence[str], *, older_seconds: float, row_limit: int
) -> list[AgentKey]:
    """Rule 'claims': make stale claimed rows pending again; returns their agents."""
    return await _agents("release_stale_claims", conn, worker_targets, older_seconds=older_seconds, row_limit=row_limit)


async def list_due_agents(
    conn: Connection, worker_targets: Sequence[str], *, older_seconds: float, row_limit: int
) -> list[AgentKey]:
    """Rule 'doorbell': the agents with rows that have been due for longer than that."""
    return await _agents("list_due_agents", conn, worker_targets, older_seconds=older_seconds, row_limit=row_limit)


async def retry_dispatched(
    conn: Connection, worker_targets: Sequence[str], *, older_seconds: float, row_limit: int
) -> list[AgentKey]:
    """Rule 'dispatched, retry': make rows of leased turns that were not begun pending again; returns their agents."""
    return await _agents("retry_dispatched", conn, worker_targets, older_seconds=older_seconds, row_limit=row_limit)


async def retry_resumes(
    conn: Connection, worker_targets: Sequence[str], *, older_seconds: float, row_limit: int
) -> list[AgentKey]:
    """Rule 'resume': make claimed reports pending again whose turn is still suspended, although a worker is there.

    Returns their agents.
    """
    silent = WORKER_SILENT_SECONDS
    return await _agents(
        "retry_resumes", conn, worker_targets, older_seconds=older_seconds, silent_seconds=silent, row_limit=row_limit
    )


async def list_stranded(conn: Connection, worker_targets: Sequence[str], *, row_limit: int) -> list[AgentKey]:
    """Rule 'stranded': idle agents with a turn that could be leased."""
    return await _agents("list_stranded", conn, worker_targets, row_limit=row_limit)


async def _agents(name: str, conn: Connection, worker_targets: Sequence[str], **more: float) -> list[AgentKey]:
    rows: list[Row] = await query(name).many(conn, worker_targets=list(worker_targets), **more)
    return list(dict.fromkeys((row["project_id"], row["agent_id"]) for row in rows))


async def list_unannounced(
    conn: Connection, worker_targets: Sequence[str], *, older_seconds: float, row_limit: int
) -> list[Unannounced]:
    """Rule 'unannounced': the outcomes to announce, oldest first."""
    rows = await query("list_unannounced").many(
        conn, worker_targets=list(worker_targets), older_seconds=older_seconds, row_limit=row_limit
    )
    return [Unannounced.model_validate(dict(row)) for row in rows]


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
        address = Address.of(self, self.context_headers, sender)
        return address.tool_command(self.command, self.step_id, self.repeat)


async def retry_commands(
    conn: Connection, worker_targets: Sequence[str], *, older_seconds: float, row_limit: int
) -> list[SilentCall]:
    """Rule 'command': the calls whose commands are to be published again."""
    rows = await query("retry_commands").many(
        conn, worker_targets=list(worker_targets), older_seconds=older_seconds, row_limit=row_limit
    )
    return [SilentCall.model_validate(dict(row)) for row in rows]


async def list_overdue(
    conn: Connection, worker_targets: Sequence[str], *, older_seconds: float, row_limit: int
) -> list[LiveTurn]:
    """Rule 'suspended': the turns whose deadline has passed."""
    return await _turns("list_overdue", conn, worker_targets, older_seconds=older_seconds, row_limit=row_limit)


async def list_stops_overdue(
    conn: Connection, worker_targets: Sequence[str], *, older_seconds: float, row_limit: int
) -> list[LiveTurn]:
    """Rule 'stop': the turns that did not stop in time."""
    return await _turns("list_stops_overdue", conn, worker_targets, older_seconds=older_seconds, row_limit=row_limit)


async def _turns(name: str, conn: Connection, worker_targets: Sequence[str], **more: float) -> list[LiveTurn]:
    rows = await query(name).many(conn, worker_targets=list(worker_targets), **more)
    return [LiveTurn.model_validate(dict(row)) for row in rows]


async def reject(
    conn: Connection, project: ProjectId | None, source: str, code: str, error: str, ids: Mapping[str, str]
) -> None:
    """Record a refused message: its sender and the reason, never its body. NUL is removed from the ids."""
    ids_text = json.dumps({name: each.replace("\0", "") for name, each in ids.items()})
    source, error = source.replace("\0", "")[:200], error.replace("\0", "")[:500]
    await query("reject").many(conn, project_id=project, source=source, error_code=code, error=error, ids=ids_text)


async def is_served(conn: Connection, worker_target: str) -> bool:
    """Whether a worker of this target has signed on lately."""
    row = await query("is_served").one(conn, worker_target=worker_target, silent_seconds=WORKER_SILENT_SECONDS)
    return row["served"]


async def touch_worker(
    conn: Connection, instance: str, worker_targets: Sequence[str], serves: Serves | None = None, *, anew: bool = False
) -> None:
    """Sign on: this instance serves these targets and listeners now. After a gap, or with `anew`, it counts as new."""
    await query("touch_worker").many(
        conn,
        instance=instance,
        worker_targets=list(worker_targets),
        pump_target="" if serves is None else serves.worker_target,
        listeners=None if serves is None else list(serves.listeners),
        payloads=None if serves is None else list(serves.payloads),
        silent_seconds=WORKER_SILENT_SECONDS,
        anew=anew,
        protocol_level=PROTOCOL_LEVEL,
    )


async def touch_bridge(conn: Connection, instance: str) -> None:
    """Sign on: this bridge speaks `PROTOCOL_LEVEL`."""
    await query("touch_bridge").many(conn, instance=instance, protocol_level=PROTOCOL_LEVEL)
