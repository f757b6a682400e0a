"""A request of A2A with whom it is for, and the tasks that it may see (protocol §17.3)."""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from turnstile.gateway.a2a.faults import task_not_found
from turnstile.gateway.a2a.objects import Task
from turnstile.gateway.a2a.refusals import RequestId
from turnstile.gateway.a2a.tasks import task_of
from turnstile.gateway.addressed import AddressedTarget
from turnstile.gateway.http.endpoints import Call
from turnstile.gateway.kernel import Kernel
from turnstile.ledger.access.tasks import TaskRow, TaskScope, get_task
from turnstile.ledger.people.interrupt_views import list_call_arguments, list_interrupts
from turnstile.runtime.outbound import Names
from turnstile.schema.access import Right
from turnstile.schema.base import JsonObject
from turnstile.schema.ids import AgentId, AgentTurnId, ChannelId, InterruptId
from turnstile.schema.people.interrupts import Interrupt, InterruptStatus
from turnstile.schema.wire import subjects
from turnstile.schema.wire.descriptions import TurnView

QUESTIONS: Final = 20
"""The most open questions of a turn that are shown."""
_LOOK_SECONDS: Final = 5.0
_LOOK_ALONE_SECONDS: Final = 1.0
_LONGEST_ID: Final = 128


@dataclass(frozen=True, slots=True)
class A2aRequest:
    """One request."""

    kernel: Kernel
    call: Call[Any, Any]
    target: AddressedTarget
    request_id: RequestId
    params: JsonObject
    """Its parameters as they were sent."""
    names: Names
    """By which names of receivers are resolved."""
    private_receivers: bool = False
    """Whether notifications may go to private addresses."""

    @property
    def scope(self) -> TaskScope:
        """The tasks that it may see: the agent's, in the token's channel."""
        principal, name = self.call.principal, self.target.name
        return TaskScope(
            project_id=principal.project_id,
            channel_id=principal.channel_id,
            agent_id=None if self.target.is_profile else AgentId(name),
            profile_name=name if self.target.is_profile else None,
        )

    @property
    def channel(self) -> ChannelId:
        """The channel of new tasks."""
        return self.kernel.turns.asking.channel(self.call.principal, None)

    def needs(self, right: Right) -> None:
        """Raises `Forbidden` if the token lacks the right."""
        self.kernel.access.check(self.call.principal, right)

    async def still(self) -> None:
        """Raises `Unauthenticated` if the token is no longer valid."""
        await self.kernel.access.still(self.call.secret)

    async def row(self, task_id: str) -> TaskRow:
        """The task of this id; raises `TaskNotFoundError`."""
        if len(task_id) > _LONGEST_ID or not task_id.isprintable():
            raise task_not_found()
        task = await self.kernel.pool.run(lambda conn: get_task(conn, self.scope, AgentTurnId(task_id)))
        if task is None:
            raise task_not_found()
        return task

    async def view(self, row: TaskRow) -> TurnView:
        """The turn of a task, as feeds need it."""
        return await self.kernel.turns.described(self.call.principal, row.agent_turn_id)

    async def questions(self, row: TaskRow) -> list[Interrupt]:
        """What a task asks now, the newest first."""
        if not row.asks:
            return []
        project, turn, opened = self.call.principal.project_id, row.agent_turn_id, InterruptStatus.OPEN
        rows = await self.kernel.pool.run(
            lambda conn: list_interrupts(conn, project, turn=turn, status=opened, row_limit=QUESTIONS)
        )
        return list(rows)

    async def shown(self, row: TaskRow, history_length: int | None = None) -> Task:
        """The task with what it asks."""
        return task_of(row, *await self.about(await self.questions(row)), history_length=history_length)

    async def about(
        self, questions: Sequence[Interrupt]
    ) -> tuple[Sequence[Interrupt], Mapping[InterruptId, JsonObject]]:
        """The newest of these questions, and the arguments of the calls that they are about."""
        interrupts, principal = questions[:QUESTIONS], self.call.principal
        if not interrupts:
            return (), {}
        return interrupts, await self.kernel.pool.run(
            lambda conn: list_call_arguments(conn, principal.project_id, interrupts, with_added=principal.sees_added)
        )

    async def settled(self, row: TaskRow) -> TaskRow:
        """The task once it is over or asks a person."""
        turn, feeds, conn = row.agent_turn_id, self.kernel.feeds, self.kernel.conn
        subject = subjects.agent_events_filter(self.call.principal.project_id, row.channel_id, row.agent_id)
        async with feeds.ends.hearing(subject, turn) as hint:
            while True:
                hint.clear()
                row = await self.row(turn)
                if row.ended_at is not None or row.asks:
                    return row
                look = _LOOK_SECONDS if conn.connected.is_set() else _LOOK_ALONE_SECONDS
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(hint.wait(), look)
