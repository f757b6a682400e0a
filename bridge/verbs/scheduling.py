"""Schedules: their verbs, and the loop that fires what is due (protocol §20).

Any number of bridges fire; the ledger lets one of them make the turn of each time. The loop sleeps until the next time
that it has seen, `poll` seconds at most, and goes by the ledger's clock. A firing that is refused is recorded and moved
past; one that fails by a fault of ours is recorded, too, so that no schedule keeps others from firing.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

from turnstile.bridge.inbox.prompt_claims import PromptClaims, start_enqueued
from turnstile.bridge.people.multitask import MultitaskEnqueues
from turnstile.bridge.serving.micro_service import VerbRequest
from turnstile.ledger.pool import Pool
from turnstile.ledger.queries import Connection
from turnstile.ledger.schedules import (
    INVALID,
    Due,
    ScheduleRow,
    due_of,
    find_schedule,
    fire_schedule,
    list_due_schedules,
    list_firings,
    list_schedules,
    pause_schedule,
    put_schedule,
    refuse_firing,
    remove_schedule,
    request_of,
    resume_schedule,
    time_name,
    trigger_schedule,
)
from turnstile.ledger.turns.intake import Enqueue, Enqueued, planned
from turnstile.runtime.faults import Fault, hit
from turnstile.runtime.ports import Publisher
from turnstile.runtime.telemetry import SILENT, Metric, Telemetry
from turnstile.schema.errors import Refused, ServerUnavailable, TurnstileError
from turnstile.schema.ids import uuid7
from turnstile.schema.states import MultitaskStrategy, ReplyStatus
from turnstile.schema.wire import headers
from turnstile.schema.wire.limits import UNLIMITED, Admission
from turnstile.schema.wire.schedule_requests import (
    ScheduleListReply,
    ScheduleListRequest,
    SchedulePutReply,
    SchedulePutRequest,
    ScheduleReply,
    ScheduleRequest,
    ScheduleSettings,
    ScheduleTriggerReply,
    ScheduleTriggerRequest,
)
from turnstile.transport.limited_log import LimitedLog

log = logging.getLogger(__name__)
ROW_LIMIT = 200
SHARE = 100
"""Due schedules of one project that a look takes, so that its own do not delay those of others."""
AT_ONCE = 8
"""Firings that one bridge has in flight."""
FAILED = "internal_error"
_PAUSE = 0.02


@dataclass
class Schedules:
    """The verbs over one ledger, and the loop."""

    pool: Pool
    publisher: Publisher
    depth_limit: int
    admission: Admission = UNLIMITED
    claims: PromptClaims | None = None
    telemetry: Telemetry = SILENT
    poll: float = 1.0
    """Seconds between two looks where nothing is due."""
    _limited: LimitedLog = field(default_factory=lambda: LimitedLog(log))

    def __post_init__(self) -> None:
        self._over = MultitaskEnqueues(self.pool, self.publisher, self.telemetry)

    async def schedule_put(self, request: VerbRequest) -> SchedulePutReply:
        """Put a schedule. Raises `Refused` as `ledger.schedules.put_schedule` does, and (text_too_large)."""
        caller, body = request.named_caller(), request.parse(SchedulePutRequest)
        project, channel = request.project_id, request.channel_id
        created = await self.pool.run(lambda conn: put_schedule(conn, project, channel, body, caller))
        hit(Fault.SCHEDULE_STORED)
        reply = await self._reply(request, body.schedule_id)
        return SchedulePutReply(status=reply.status, schedule=reply.schedule, created=created)

    async def schedule_get(self, request: VerbRequest) -> ScheduleReply:
        """A schedule of the channel with its next times and last firings; raises `Refused` (unknown_schedule)."""
        return await self._reply(request, request.parse(ScheduleRequest).schedule_id)

    async def schedule_list(self, request: VerbRequest) -> ScheduleListReply:
        """The schedules of the channel."""
        body = request.parse(ScheduleListRequest)
        rows = await self.pool.run(
            lambda conn: list_schedules(conn, request.project_id, request.channel_id, body.after or "", body.limit + 1)
        )
        page, more = rows[: body.limit], len(rows) > body.limit
        return ScheduleListReply(
            status=ReplyStatus.ACCEPTED,
            schedules=tuple(row.shown() for row in page),
            next=page[-1].schedule_id if more else None,
        )

    async def schedule_pause(self, request: VerbRequest) -> ScheduleReply:
        """Let it fire no more until it is resumed; raises `Refused` (unknown_schedule, not_yours)."""
        return await self._change(request, pause_schedule)

    async def schedule_resume(self, request: VerbRequest) -> ScheduleReply:
        """Let it fire from its next time on; raises `Refused` (unknown_schedule, not_yours, never_fires)."""
        return await self._change(request, resume_schedule)

    async def schedule_remove(self, request: VerbRequest) -> ScheduleReply:
        """Remove it with its firings, not its turns; raises `Refused` (unknown_schedule, not_yours)."""
        name = request.parse(ScheduleRequest).schedule_id
        before = await self._reply(request, name)
        await self._owned(request, name, remove_schedule)
        hit(Fault.SCHEDULE_STORED)
        return before

    async def schedule_trigger(self, request: VerbRequest) -> ScheduleTriggerReply:
        """Enqueue a turn of it now, paused or not. Raises `Refused` (unknown_schedule, not_yours), and as `enqueue`."""
        body, caller = request.parse(ScheduleTriggerRequest), request.named_caller()
        name = body.correlation_id or (request.command_id and f"command-{request.command_id}") or uuid7()
        made: list[Enqueued] = []

        async def trigger(conn: Connection, row: ScheduleRow) -> None:
            command = self._command(row, row.parsed(), f"by/{name}")
            made.append(await trigger_schedule(conn, row, command, caller))

        row = await self._owned(request, body.schedule_id, trigger)
        hit(Fault.SCHEDULE_FIRED)
        [enqueued] = made
        await start_enqueued(enqueued, None, self.publisher)
        hit(Fault.SCHEDULE_PUBLISHED)
        reply = enqueued.reply
        return ScheduleTriggerReply(
            status=ReplyStatus.ACCEPTED,
            schedule_id=row.schedule_id,
            agent_turn_id=reply.agent_turn_id,
            duplicate=reply.duplicate,
        )

    async def _reply(self, request: VerbRequest, name: str) -> ScheduleReply:
        project, channel = request.project_id, request.channel_id
        row = await self.pool.run(lambda conn: find_schedule(conn, project, channel, name))
        firings = await self.pool.run(lambda conn: list_firings(conn, project, name))
        return ScheduleReply(status=ReplyStatus.ACCEPTED, schedule=row.view(firings, times=True))

    async def _change(
        self, request: VerbRequest, change: Callable[[Connection, ScheduleRow], Awaitable[None]]
    ) -> ScheduleReply:
        row = await self._owned(request, request.parse(ScheduleRequest).schedule_id, change)
        hit(Fault.SCHEDULE_STORED)
        return await self._reply(request, row.schedule_id)

    async def _owned(
        self, request: VerbRequest, name: str, change: Callable[[Connection, ScheduleRow], Awaitable[None]]
    ) -> ScheduleRow:
        """Read the schedule and change it as it was read, which is repeated if it was changed meanwhile."""
        caller = request.named_caller()

        async def run(conn: Connection) -> ScheduleRow:
            row = await find_schedule(conn, request.project_id, request.channel_id, name)
            if row.owner != caller.name and not caller.operates:
                raise Refused("not_yours", "another caller put the schedule: only they and operators may change it")
            await change(conn, row)
            return row

        return await self.pool.run(run)

    async def run(self, stop: asyncio.Event) -> None:
        """Fire what is due until `stop` is set."""
        while not stop.is_set():
            wait = self.poll
            try:
                wait = await self.look()
            except TurnstileError as error:
                self._limited.warning("look", "schedules wait: %s", error)
            except Exception:  # a bridge outlives what goes wrong here
                log.exception("schedules wait")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), wait)

    async def look(self) -> float:
        """Fire what is due now; returns the seconds after which to look again."""
        rows = await self.pool.run(
            lambda conn: list_due_schedules(conn, ahead_seconds=self.poll, share=SHARE, row_limit=ROW_LIMIT)
        )
        due = [row for row in rows if row.next_at is not None and not 0 < _seconds_to(row) <= self.poll]
        slots = asyncio.Semaphore(AT_ONCE)

        async def fire(row: ScheduleRow) -> bool:
            async with slots:
                return await self._settle(row)

        async with asyncio.TaskGroup() as group:
            firings = [group.create_task(fire(row)) for row in due]
        if due:
            return _PAUSE if all(firing.result() for firing in firings) else self.poll
        return max(_PAUSE, min([self.poll, *(_seconds_to(row) for row in rows)]))

    async def _settle(self, row: ScheduleRow) -> bool:
        """Fire one, or record why not; False: that could not be done now."""
        try:
            if (refusal := await self._attempt(row)) is not None:
                await self._refuse(row, *refusal)
        except TurnstileError as error:
            self._limited.warning("fire", "schedule %s/%s waits: %s", row.project_id, row.schedule_id, error)
            return False
        except Exception:  # one schedule must not keep others from firing
            log.exception("schedule %s/%s cannot be moved past its time", row.project_id, row.schedule_id)
            return False
        return True

    async def _attempt(self, row: ScheduleRow) -> tuple[Due, str, str] | None:
        """Fire one; returns the code and the reason to record if there is no turn. Raises `ServerUnavailable`."""
        due = Due(row.next_at, None)
        try:
            settings = row.parsed()
            due = due_of(row, settings, row.next_at or row.read_at)
        except (ValueError, OverflowError):
            return due, INVALID, "its settings cannot be read"
        try:
            await self._fire(row, settings, due)
        except ServerUnavailable:
            raise
        except TurnstileError as error:
            return due, error.code, str(error)[:500]
        except Exception as error:  # recorded as what came of it
            log.exception("schedule %s/%s failed", row.project_id, row.schedule_id)
            return due, FAILED, type(error).__name__
        return None

    async def _fire(self, row: ScheduleRow, settings: ScheduleSettings, due: Due) -> None:
        if due.nominal_at is None:
            await self._refuse(row, due, "", None)
            return
        if due.is_missed:
            await self._refuse(row, due, "missed", "it was later than catchup_seconds")
            return
        command = self._command(row, settings, time_name(due.nominal_at))
        targets = () if self.claims is None else self.claims.targets()
        if command.request.multitask_strategy is MultitaskStrategy.ENQUEUE:
            enqueued = await self.pool.run(lambda conn: fire_schedule(conn, row, due, command, targets))
        else:
            enqueued = await self._fire_over(row, due, command)
        if enqueued is None:
            return
        hit(Fault.SCHEDULE_FIRED)
        self._count("enqueued", row, due)
        await start_enqueued(enqueued, self.claims, self.publisher)
        hit(Fault.SCHEDULE_PUBLISHED)

    async def _fire_over(self, row: ScheduleRow, due: Due, command: Enqueue) -> Enqueued | None:
        """Fire in the transaction in which the turns before make way, or that is undone as they do not."""

        async def fire(conn: Connection, command: Enqueue) -> Enqueued:
            made = await fire_schedule(conn, row, due, command)
            if made is None:
                raise _FiredBefore
            return made

        try:
            return await self._over.enqueue(command, row.caller, fire)
        except _FiredBefore:
            await self._refuse(row, replace(due, nominal_at=None), "", None)
            return None

    async def _refuse(self, row: ScheduleRow, due: Due, code: str, error: str | None) -> None:
        if await self.pool.run(lambda conn: refuse_firing(conn, row, due, code, error)):
            self._count(code, row, due)

    def _count(self, outcome: str, row: ScheduleRow, due: Due) -> None:
        if due.nominal_at is None:
            return
        meter = self.telemetry.meter
        meter.count(Metric.SCHEDULE_FIRINGS, outcome=outcome if outcome in {"enqueued", "missed"} else "refused")
        meter.observe(Metric.SCHEDULE_LATE_SECONDS, max(0.0, (row.read_at - due.nominal_at).total_seconds()))

    def _command(self, row: ScheduleRow, settings: ScheduleSettings, name: str) -> Enqueue:
        return planned(
            row.project_id,
            row.channel_id,
            request_of(row, settings, name),
            {headers.SENDER: row.owner} if row.wake is None else row.wake.headers,
            scheduled=True,
            depth_limit=self.depth_limit,
            sender=row.owner[:128] if row.wake is None else settings.agent_id or row.owner,
            admission=self.admission,
            caller=row.caller,
        )


class _FiredBefore(Exception):
    """Another bridge was first, or the time was fired before."""


def _seconds_to(row: ScheduleRow) -> float:
    """Until its next time, by the ledger's clock as of the look."""
    return ((row.next_at or row.read_at) - row.read_at).total_seconds()
