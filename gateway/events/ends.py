"""Hints that a turn may have ended, or that something changed, for those who do not follow a turn's text.

All who wait on one subject of events share one subscription, which is kept a while for the next. A hint is a reason to
look, never the truth: an event may be lost, so who waits looks now and then without one. Costs a look at each event on
a subject on which somebody waits.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from turnstile.ledger.people.interrupt_views import list_interrupts
from turnstile.ledger.pool import Pool
from turnstile.ledger.turns.views import describe_turn
from turnstile.schema.errors import BadRequest
from turnstile.schema.ids import AgentTurnId, ChannelId, ProjectId
from turnstile.schema.people.interrupts import Interrupt, InterruptReason, InterruptStatus
from turnstile.schema.states import HeadStatus
from turnstile.schema.wire import subjects
from turnstile.schema.wire.descriptions import TurnView
from turnstile.sdk.chunk_order import step_number
from turnstile.transport.connection import NATS_TROUBLE, NatsConnection
from turnstile.transport.json_messages import decode_object

LINGER_SECONDS: Final = 30.0
"""How long a subscription is kept that nobody waits on."""
MOST_QUESTIONS: Final = 1000
"""Open questions of one turn: a step has fewer calls."""
_ANY = ""


@dataclass(frozen=True, slots=True)
class Seen:
    """A turn, and the questions to people that are open in it, the newest first."""

    view: TurnView
    questions: Sequence[Interrupt] = ()
    client_calls: Sequence[Interrupt] = ()
    """The calls that the turn's requester runs, and has not answered (protocol §19)."""

    def awaits_client(self, step: int = 0) -> bool:
        """Whether a step after this one has made calls of its client's tools, and the turn waits for these alone."""
        steps = {step_number(call.step_id) for call in self.client_calls}
        waiting = self.view.waiting_tool_count
        return steps == {self.view.steps} and self.view.steps > step and len(self.client_calls) == waiting

    @property
    def is_over(self) -> bool:
        """Whether the turn is over."""
        return self.view.ended_at is not None


async def look(pool: Pool, view: TurnView, most: int = MOST_QUESTIONS) -> Seen:
    """How the turn stands now, with at most so many questions; raises `ServerUnavailable`."""
    project, turn = view.project_id, view.agent_turn_id
    current = await pool.run(lambda conn: describe_turn(conn, project, turn)) or view
    if current.ended_at is not None or current.status != HeadStatus.SUSPENDED:
        return Seen(current)
    opened = InterruptStatus.OPEN
    interrupts = await pool.run(
        lambda conn: list_interrupts(conn, project, turn=turn, status=opened, reason="any", row_limit=most)
    )
    client_calls = [i for i in interrupts if i.reason is InterruptReason.CLIENT_TOOL]
    return Seen(current, [i for i in interrupts if i.reason is not InterruptReason.CLIENT_TOOL], client_calls)


@dataclass(slots=True)
class _Subject:
    heard: asyncio.Event = field(default_factory=asyncio.Event)
    """Whether there is a subscription, or none can be made now."""
    waiting: dict[str, set[asyncio.Event]] = field(default_factory=dict[str, set[asyncio.Event]])
    """By their turns; those who wait for any under `_ANY`."""
    task: asyncio.Task[None] | None = None
    closing: asyncio.TimerHandle | None = None


class Ends:
    """The events that somebody waits for."""

    def __init__(self, conn: NatsConnection) -> None:
        self._conn = conn
        self._subjects: dict[str, _Subject] = {}

    @asynccontextmanager
    async def hinted(self, project: ProjectId, channel: ChannelId, turn: AgentTurnId) -> AsyncGenerator[asyncio.Event]:
        """An event that is set at each hint that this turn is over; inside none is missed while NATS is there."""
        async with self.hearing(subjects.task_events_filter(project, channel), turn) as hint:
            yield hint

    @asynccontextmanager
    async def hearing(self, subject: str, turn: AgentTurnId | None = None) -> AsyncGenerator[asyncio.Event]:
        """As `hinted`, at each event on `subject` that is of this turn, or of any."""
        hint, key = asyncio.Event(), _ANY if turn is None else turn
        held = self._subjects.get(subject)
        if held is None:
            held = self._subjects[subject] = _Subject()
            held.task = asyncio.create_task(self._listen(subject, held), name=f"ends-{subject}")
        if held.closing is not None:
            held.closing.cancel()
            held.closing = None
        held.waiting.setdefault(key, set()).add(hint)
        try:
            await held.heard.wait()
            yield hint
        finally:
            held.waiting[key].discard(hint)
            if not held.waiting[key]:
                del held.waiting[key]
            if not held.waiting and held.task is not None:
                held.closing = asyncio.get_running_loop().call_later(LINGER_SECONDS, held.task.cancel)

    def nudge(self, project: ProjectId) -> None:
        """Hint at all of a project: it was changed here, and some changes have no event."""
        prefix = subjects.events_filter(project, None).removesuffix(">").partition("*")[0]
        for subject, held in self._subjects.items():
            if subject.startswith(prefix):
                for hint in set[asyncio.Event]().union(*held.waiting.values()):
                    hint.set()

    async def close(self) -> None:
        """End all subscriptions."""
        tasks = [held.task for held in self._subjects.values() if held.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _listen(self, subject: str, held: _Subject) -> None:
        async def on_event(_: str, data: bytes) -> None:
            with contextlib.suppress(BadRequest):  # a stranger's
                turn = str(decode_object(data).get("agent_turn_id"))
                for hint in (*held.waiting.get(turn, ()), *held.waiting.get(_ANY, ())):
                    hint.set()

        try:
            with contextlib.suppress(*NATS_TROUBLE):  # NATS was not there yet: the next who waits tries again
                subscription = await self._conn.hear(subject, on_event)
                held.heard.set()
                try:
                    await asyncio.Event().wait()
                finally:
                    await self._conn.unsubscribe(subscription)
        finally:
            self._subjects.pop(subject, None)
            held.heard.set()
            if held.closing is not None:
                held.closing.cancel()
