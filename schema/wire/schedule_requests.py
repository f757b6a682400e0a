"""Requests and replies of the verbs of schedules: which turns are enqueued when (protocol §20)."""

from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Self
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError
from pydantic import AfterValidator, AwareDatetime, Field, model_validator

from turnstile.schema.base import AgentToken, ConversationToken, JsonObject, Reply, Strict, Tolerant
from turnstile.schema.budgets.limits import BudgetLimits
from turnstile.schema.cards import ResultField
from turnstile.schema.ids import AgentTurnId, ChannelId
from turnstile.schema.profiles import RuntimeConfig

RESERVED = "schedule:"
"""What the correlations of firings begin with, and those of callers may not."""
_ID = r"^[A-Za-z0-9_.-]+$"
_CRON_FIELDS = 5
_TEN_YEARS = 315_360_000.0


class Overlap(StrEnum):
    """What a firing does with the turns of the schedule's owner in hand or queued in the same conversation."""

    ENQUEUE = "enqueue"
    """It waits for them."""
    REJECT = "reject"
    """It is refused, `turn_in_progress`."""
    INTERRUPT = "interrupt"
    """They stop."""
    ALLOW = "allow"
    """Each firing has an instance of the profile of its own, so that firings run beside each other."""


def _zone(name: str) -> str:
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise ValueError("no such time zone; a name is such as Europe/Berlin") from None
    return name


def _cron(text: str) -> str:
    if len(text.split()) != _CRON_FIELDS:
        raise ValueError("a cron expression has five fields: minute, hour, day of month, month, day of week")
    try:
        next(CronSim(text, datetime(2026, 1, 1, tzinfo=UTC)))
    except CronSimError as error:
        raise ValueError(f"no cron expression: {error}") from None
    except StopIteration:
        raise ValueError("no day that the cron expression means comes in the next 50 years") from None
    return text


class Timing(Strict):
    """When a schedule fires: exactly one of `cron`, `every_seconds` and `at`."""

    cron: Annotated[str, Field(max_length=200), AfterValidator(_cron)] | None = None
    """Five fields, as cron has them. A fixed time of day that does not exist on a day fires once, right after the gap;
    one that comes twice fires once."""
    timezone: Annotated[str, Field(max_length=64), AfterValidator(_zone)] = "UTC"
    """The time zone of `cron`, such as `Europe/Berlin`."""
    every_seconds: float | None = Field(default=None, ge=1, le=_TEN_YEARS)
    """The seconds that pass from one firing to the next, counted from `start_at`, else from when this was put."""
    at: AwareDatetime | None = None
    """Once, at this time."""
    start_at: AwareDatetime | None = None
    """No firing is before it."""
    end_at: AwareDatetime | None = None
    """No firing is at it or later."""

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if sum(way is not None for way in (self.cron, self.every_seconds, self.at)) != 1:
            raise ValueError("exactly one of cron, every_seconds and at is needed")
        if self.cron is None and self.timezone != "UTC":
            raise ValueError("timezone goes with cron")
        return self

    def timing(self) -> JsonObject:
        """The fields that say when, as the ledger keeps them."""
        return self.model_dump(mode="json", exclude_defaults=True, include=set(Timing.model_fields))


class ScheduleSettings(Timing):
    """Whom a schedule asks for what, and when."""

    agent_id: AgentToken | None = None
    """The agent that is asked; else instances of the profile are."""
    profile_name: str | None = Field(default=None, min_length=1, max_length=128)
    """A profile with instances: one for the conversation, else a new one for each firing."""
    instruction: str = Field(min_length=1)
    """What each firing asks for."""
    result_fields: list[ResultField] | None = Field(default=None, min_length=1, max_length=256)
    """Fields that the deliverable must have."""
    runtime_config: RuntimeConfig = RuntimeConfig()
    """Settings that the turns override or add."""
    budget: BudgetLimits | None = None
    """What each turn and all below it may use."""
    conversation_id: ConversationToken | None = None
    """The conversation that all turns are in."""
    new_conversations: bool = False
    """Whether each firing begins a conversation."""
    metadata: JsonObject = Field(default_factory=dict)
    """Notes of the turns; stored, and never shown to a model."""
    overlap: Overlap = Overlap.ENQUEUE
    """What a firing does where a turn of an earlier one is not over."""
    catchup_seconds: float = Field(default=3600.0, ge=10, le=_TEN_YEARS)
    """How late a firing may be. Of several that were missed, the latest is made up for."""
    paused: bool | None = None
    """Whether it is paused; null: as it is."""

    @model_validator(mode="after")
    def _whom(self) -> Self:
        if (self.agent_id is None) == (self.profile_name is None):
            raise ValueError("exactly one of agent_id and profile_name is needed")
        if self.conversation_id is not None and self.new_conversations:
            raise ValueError("either conversation_id or new_conversations")
        if self.overlap in {Overlap.REJECT, Overlap.INTERRUPT} and self.conversation_id is None:
            raise ValueError(f"overlap {self.overlap} needs a conversation_id: it means the turns of one conversation")
        if self.overlap is Overlap.ALLOW and (self.profile_name is None or self.conversation_id is not None):
            raise ValueError("overlap allow needs a profile_name and no conversation_id: turns of an agent take turns")
        return self


class SchedulePutRequest(ScheduleSettings):
    """Arguments of `schedule.put`."""

    schedule_id: str = Field(min_length=1, max_length=64, pattern=_ID)
    """The caller's own name for it, within the project; the same again replaces what was put."""


class ScheduleRequest(Strict):
    """Arguments of `schedule.get`, `schedule.pause`, `schedule.resume` and `schedule.remove`."""

    schedule_id: str = Field(min_length=1, max_length=64, pattern=_ID)
    """The schedule."""


class ScheduleTriggerRequest(ScheduleRequest):
    """Arguments of `schedule.trigger`."""

    correlation_id: str | None = Field(default=None, min_length=1, max_length=128)
    """The caller's own name for the request; a repeat returns the same turn."""


class ScheduleListRequest(Strict):
    """Arguments of `schedule.list`."""

    after: str | None = Field(default=None, max_length=64, pattern=_ID)
    """The last schedule of the page before."""
    limit: int = Field(default=100, ge=1, le=500)
    """At most so many."""


class Firing(Tolerant):
    """What came of one firing: a turn, or the code of a refusal."""

    nominal_at: datetime
    """The time that the schedule names; of a trigger the time of the request."""
    fired_at: datetime
    """When it was fired."""
    agent_turn_id: AgentTurnId | None = None
    """The turn."""
    code: str | None = None
    """Why there is no turn: what an enqueue is refused with, `missed` or `owner_revoked`."""
    error: str | None = None
    """The same, for people."""
    triggered_by: str | None = None
    """Who triggered it; null: its time had come."""


class ScheduleView(Tolerant):
    """A schedule."""

    schedule_id: str
    """Its name."""
    channel_id: ChannelId
    """The channel of its turns."""
    owner: str
    """Who put it last, and is the requester of its turns."""
    settings: JsonObject
    """What was put."""
    next_at: datetime | None = None
    """When it fires next; null: never again."""
    upcoming: tuple[datetime, ...] = ()
    """The next times, of a single one."""
    paused_at: datetime | None = None
    """Since when it is paused; null if it is not."""
    paused_because: str | None = None
    """Why: `paused`, `owner_revoked` or `schedule_invalid`."""
    waker_turn_id: AgentTurnId | None = None
    """The turn whose call of `wake_me` put it; null if a caller did."""
    created_at: datetime
    """When it was put first."""
    updated_at: datetime
    """When it was put, paused or resumed last."""
    last: Firing | None = None
    """Its last firing."""
    firings: tuple[Firing, ...] = ()
    """Its last firings, of a single one, newest first."""


class ScheduleReply(Reply):
    """Reply to the verbs that name one schedule."""

    schedule: ScheduleView | None = None
    """The schedule, as it is then; of `schedule.remove` as it was."""


class SchedulePutReply(ScheduleReply):
    """Reply to `schedule.put`."""

    created: bool = False
    """Whether there was none of this name."""


class ScheduleListReply(Reply):
    """Reply to `schedule.list`."""

    schedules: tuple[ScheduleView, ...] = ()
    """By their ids."""
    next: str | None = None
    """The `after` of the next page; null if there is none."""


class ScheduleTriggerReply(Reply):
    """Reply to `schedule.trigger`."""

    schedule_id: str | None = None
    """The schedule."""
    agent_turn_id: AgentTurnId | None = None
    """The turn."""
    duplicate: bool = False
    """Whether the same request was made before."""
