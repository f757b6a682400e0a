"""Schedules and their firings (protocol §20).

Guarantees: a time of a schedule makes at most one turn, whoever fires and however often; the firing, the turn and the
next time are of one transaction. A refusal is a firing, too, and the next time moves past it. Never publishes. The
ledger's clock alone decides what is due. Costs one statement for each firing.
"""

import contextlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from pydantic import Json

from turnstile.ledger.budgets.steering import EXCEEDED
from turnstile.ledger.queries import Again, Connection, query
from turnstile.ledger.trees.batches import ParentCall
from turnstile.ledger.turns.intake import Enqueue, Enqueued, enqueue_arguments, enqueued
from turnstile.rules.schedule_times import following, latest, upcoming
from turnstile.schema.access import Caller
from turnstile.schema.base import STORED, JsonObject, Tolerant
from turnstile.schema.delegation.arguments import WakeArguments
from turnstile.schema.errors import Refused
from turnstile.schema.ids import AgentTurnId, BoxId, ChannelId, ConversationId, ProjectId, conversation_named, uuid7
from turnstile.schema.states import MultitaskStrategy
from turnstile.schema.wire.inbox import EnqueueRequest
from turnstile.schema.wire.schedule_requests import (
    RESERVED,
    Firing,
    Overlap,
    SchedulePutRequest,
    ScheduleSettings,
    ScheduleView,
    Timing,
)

MOST_SCHEDULES: Final = 10_000
"""Of a project."""
SHOWN_FIRINGS: Final = 20
_SHOWN_TIMES: Final = 5
INVALID: Final = "schedule_invalid"
_REFUSALS: Final = {
    "not_yours": "another caller, or one of another channel, has a schedule of this name",
    "unknown_agent": "the project has no such agent: add it first",
    "agent_inactive": "the agent is not active",
    "unknown_profile": "the project has no profile of this name",
    "no_instances": "the profile has no instances: name an agent, or put the profile with `instances: true`",
    "too_many_schedules": f"a project has at most {MOST_SCHEDULES} schedules: remove one",
    "never_fires": "no time that it names lies ahead",
}
_WAKE_REFUSALS: Final = {
    "unknown_call": "the project has no such call",
    "parent_over": "the call waits no more: its turn is over, or it was answered",
    "parent_stopping": "the turn that asks is being stopped",
    "recursion_depth_exceeded": "the chain of turns that come from each other is too deep",
    "wake_is_past": "the time lies in the past",
    "wake_is_too_late": "the time is more than 366 days ahead",
    EXCEEDED: "the time of the budget ends before",
    "too_many_wakes": "the agent has asked to be woken at too many times that have not come",
}


class Wake(Tolerant):
    """What a turn that goes on later has of the turn whose call of `wake_me` it comes from."""

    headers: dict[str, str]
    """Its sender, one more than its depth, and it as the parent."""
    context_box_id: BoxId | None = None
    """Outside a conversation: what it read."""
    output_box_id: BoxId | None = None
    """Outside a conversation: where it wrote."""


class ScheduleRow(Tolerant):
    """A schedule as the ledger has it. Its settings are read when they are needed: they may be of a later version."""

    project_id: ProjectId
    channel_id: ChannelId
    schedule_id: str
    owner: str
    owner_operates: bool
    settings: Json[JsonObject]
    anchor_at: datetime
    next_at: datetime | None
    revision: int
    paused_at: datetime | None
    paused_because: str | None
    waker_turn_id: AgentTurnId | None
    wake: Json[Wake] | None
    """Of a `wake_me`."""
    created_at: datetime
    updated_at: datetime
    read_at: datetime
    """The ledger's clock."""

    @property
    def caller(self) -> Caller:
        """Its owner."""
        return Caller(self.owner, self.owner_operates)

    def parsed(self) -> ScheduleSettings:
        """Its settings; raises pydantic's `ValidationError` for those that this version does not know."""
        return ScheduleSettings.model_validate(self.settings, context=STORED)

    def view(self, firings: Sequence[Firing] = (), *, times: bool = False) -> ScheduleView:
        """As callers see it; with `times` also the next ones."""
        shown = ()
        if times:
            with contextlib.suppress(ValueError, OverflowError):  # of a later version
                shown = upcoming(self.parsed(), self.anchor_at, self.read_at, _SHOWN_TIMES)
        return ScheduleView(
            **self.model_dump(include=ScheduleView.model_fields.keys() & ScheduleRow.model_fields.keys()),
            upcoming=shown,
            firings=tuple(firings),
            last=next(iter(firings), None),
        )


class ListedSchedule(ScheduleRow):
    """A schedule in a list."""

    last: Json[Firing] | None
    """Its last firing."""

    def shown(self) -> ScheduleView:
        """As callers see it."""
        return self.view().model_copy(update={"last": self.last})


@dataclass(frozen=True, slots=True)
class Due:
    """What a schedule whose time has come is to do."""

    nominal_at: datetime | None
    """The time that it fires for; None: it moves only."""
    following_at: datetime | None
    is_missed: bool = False
    """Whether it is later than `catchup_seconds`."""


def due_of(row: ScheduleRow, settings: ScheduleSettings, at: datetime) -> Due:
    """What becomes of a schedule of this next time now: of times that have passed the latest counts."""
    now = row.read_at
    if at > now:  # the clock was set back
        return Due(None, following(settings, row.anchor_at, now))
    after = following(settings, row.anchor_at, at)
    if after is None or after > now:
        nominal = at
    else:
        nominal, after = latest(settings, row.anchor_at, now) or at, following(settings, row.anchor_at, now)
    late = (now - nominal).total_seconds()
    return Due(nominal, after, is_missed=late > settings.catchup_seconds)


def request_of(row: ScheduleRow, settings: ScheduleSettings, name: str) -> EnqueueRequest:
    """The enqueue of the firing of this name: its time, or a trigger's."""
    conversation: ConversationId | None = settings.conversation_id
    if settings.new_conversations:
        conversation = conversation_named(f"{row.schedule_id}@{name}")
    overlap, runtime, wake = settings.overlap, settings.runtime_config, row.wake or Wake(headers={})
    if wake.output_box_id is not None:
        runtime = runtime.model_copy(update={"remember": True})
    return EnqueueRequest(
        agent_id=settings.agent_id,
        profile_name=settings.profile_name,
        instruction=settings.instruction,
        result_fields=settings.result_fields,
        runtime_config=runtime,
        context_box_id=wake.context_box_id,
        output_box_id=wake.output_box_id,
        budget=settings.budget,
        conversation_id=conversation,
        metadata=settings.metadata,
        correlation_id=f"{RESERVED}{row.schedule_id}@{name}",
        multitask_strategy=MultitaskStrategy.ENQUEUE
        if overlap in {Overlap.ENQUEUE, Overlap.ALLOW}
        else MultitaskStrategy(overlap),
    )


def time_name(at: datetime) -> str:
    """A time as correlations have it."""
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z")


async def put_schedule(
    conn: Connection, project: ProjectId, channel: ChannelId, request: SchedulePutRequest, caller: Caller
) -> bool:
    """Put a schedule; returns whether it is new. Raises `Refused` (`_REFUSALS`)."""
    now: datetime = (await query("read_clock").one(conn))["now"]
    timing = Timing.model_validate(request.timing())
    settings = request.model_dump(
        mode="json", exclude_defaults=True, exclude={*Timing.model_fields, "schedule_id", "paused"}
    )
    row = await query("put_schedule").one(
        conn,
        project_id=project,
        channel_id=channel,
        schedule_id=request.schedule_id,
        settings=json.dumps(settings),
        timing=json.dumps(request.timing()),
        anchor_at=now,
        next_at=following(timing, now, now),
        pauses=request.paused,
        caller=caller.name,
        operates=caller.operates,
        most=MOST_SCHEDULES,
    )
    if (verdict := row["verdict"]) != "accepted":
        raise Refused(verdict, _REFUSALS[verdict])
    return row["created"]


async def put_wake(
    conn: Connection, call: ParentCall, arguments: WakeArguments, *, depth_limit: int, most: int
) -> tuple[str, datetime]:
    """Put the schedule of a call of `wake_me`, once; returns its id and its time. Raises `Refused` (`_WAKE_REFUSALS`).

    `most` wakes of the agent may be to come; 0 is no limit.
    """
    row = await query("put_wake").one(
        conn,
        project_id=call.project_id,
        tool_call_id=call.tool_call_id,
        at=arguments.at,
        in_seconds=arguments.in_seconds,
        instruction=arguments.instruction,
        depth_limit=depth_limit,
        most=most,
    )
    if (verdict := row["verdict"]) != "accepted":
        raise Refused(verdict, _WAKE_REFUSALS[verdict])
    return row["schedule"], row["fires_at"]


async def find_schedule(conn: Connection, project: ProjectId, channel: ChannelId | None, schedule: str) -> ScheduleRow:
    """A schedule of a channel, or of any; raises `Refused` (unknown_schedule)."""
    row = await query("find_schedule").opt_as(
        conn, ScheduleRow, project_id=project, channel_id=channel, schedule_id=schedule
    )
    if row is None:
        raise Refused("unknown_schedule", "the channel has no such schedule")
    return row


async def list_firings(conn: Connection, project: ProjectId, schedule: str) -> list[Firing]:
    """The last firings of a schedule, newest first."""
    return await query("list_firings").all_as(
        conn, Firing, project_id=project, schedule_id=schedule, row_limit=SHOWN_FIRINGS
    )


async def list_schedules(
    conn: Connection, project: ProjectId, channel: ChannelId | None, after: str, row_limit: int
) -> list[ListedSchedule]:
    """Schedules of a channel, or of all, by their ids."""
    return await query("list_schedules").all_as(
        conn, ListedSchedule, project_id=project, channel_id=channel, after=after, row_limit=row_limit
    )


class StuckSchedule(Tolerant):
    """A schedule that cannot run."""

    project_id: ProjectId
    schedule_id: str
    reason: str
    """`late`, or what a firing would be refused with."""


async def list_stuck_schedules(conn: Connection, *, late_seconds: float, row_limit: int) -> list[StuckSchedule]:
    """Schedules of all projects that cannot run."""
    return await query("list_stuck_schedules").all_as(
        conn, StuckSchedule, late_seconds=late_seconds, row_limit=row_limit
    )


async def list_due_schedules(
    conn: Connection, *, ahead_seconds: float, share: int, row_limit: int
) -> list[ScheduleRow]:
    """Schedules that are due now, or within `ahead_seconds`."""
    return await query("list_due_schedules").all_as(
        conn, ScheduleRow, ahead_seconds=ahead_seconds, share=share, row_limit=row_limit
    )


async def pause_schedule(conn: Connection, row: ScheduleRow) -> None:
    """Fire it no more."""
    await _change(conn, "pause_schedule", row)


async def resume_schedule(conn: Connection, row: ScheduleRow) -> None:
    """Let it fire again: what it missed while it was paused is not made up for. Raises `Refused` (never_fires)."""
    if row.paused_at is None:
        return
    next_at = following(row.parsed(), row.anchor_at, row.read_at)
    if next_at is None:
        raise Refused("never_fires", _REFUSALS["never_fires"])
    await _change(conn, "resume_schedule", row, next_at=next_at)


async def remove_schedule(conn: Connection, row: ScheduleRow) -> None:
    """Remove it and its firings; its turns stay."""
    await _change(conn, "remove_schedule", row)


async def _change(conn: Connection, name: str, row: ScheduleRow, **more: object) -> None:
    """Run the statement; raises `Again` if the schedule was changed since it was read."""
    done = await query(name).opt(
        conn, project_id=row.project_id, schedule_id=row.schedule_id, revision=row.revision, **more
    )
    if done is None:
        raise Again


async def fire_schedule(
    conn: Connection,
    row: ScheduleRow,
    due: Due,
    command: Enqueue,
    claimed_targets: Sequence[str] = (),
) -> Enqueued | None:
    """Fire it; None: another was first, or the time was fired before.

    Raises as `enqueue_turn`, and `Refused` (owner_revoked): then nothing was written, and `refuse_firing` records it.
    """
    return await _fire(conn, row, row.next_at, due, command, claimed_targets)


async def trigger_schedule(
    conn: Connection, row: ScheduleRow, command: Enqueue, caller: Caller, claimed_targets: Sequence[str] = ()
) -> Enqueued:
    """Enqueue a turn of it now. Raises as `enqueue_turn`, `Refused` (owner_revoked), and `Again`."""
    made = await _fire(conn, row, None, Due(row.read_at, None), command, claimed_targets, caller.name)
    if made is None:
        raise Again
    return made


async def refuse_firing(conn: Connection, row: ScheduleRow, due: Due, code: str, error: str | None) -> bool:
    """Record why there is no turn, and move on; False: that was done before. Some codes pause it."""
    return (await _statement(conn, row, row.next_at, due, refused=code, error=error))["fired"] in {"refused", "moved"}


async def _fire(
    conn: Connection,
    row: ScheduleRow,
    due_at: datetime | None,
    due: Due,
    command: Enqueue,
    claimed_targets: Sequence[str],
    triggered_by: str | None = None,
) -> Enqueued | None:
    made = await _statement(
        conn,
        row,
        due_at,
        due,
        request=enqueue_arguments(command),
        claimed_targets=list(claimed_targets),
        triggered_by=triggered_by,
    )
    if made["fired"] in {"stale", "moved"}:
        return None
    if made["verdict"] == "owner_revoked":
        raise Refused("owner_revoked", "the token that put the schedule is revoked or has expired")
    return await enqueued(conn, command, made)


async def _statement(conn: Connection, row: ScheduleRow, due_at: datetime | None, due: Due, **how: object):
    return await query("fire_schedule").one(
        conn,
        **{
            "project_id": row.project_id,
            "schedule_id": row.schedule_id,
            "revision": row.revision,
            "due_at": due_at,
            "nominal_at": due.nominal_at,
            "following_at": due.following_at,
            "refused": None,
            "error": None,
            "firing_id": uuid7(),
            "triggered_by": None,
            "request": None,
            "claimed_targets": [],
        }
        | how,
    )
