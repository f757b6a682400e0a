"""When a schedule fires (protocol §20): pure functions of its timing and a moment.

Instants are in UTC. `every` goes by elapsed time from its anchor. Cron goes by the wall clock of its time zone where
minute and hour are fixed, as Debian's cron does: a time that a day lacks fires once right after the gap, and one that
it has twice fires at the first. Where minute or hour is a star it goes by elapsed time. Costs at most some hundred
steps of cronsim, and a look at the zone for each week up to the next instant.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from cronsim import CronSim

from turnstile.schema.wire.schedule_requests import Timing

_WINDOWS = tuple(timedelta(days=days) for days in (0.125, 2, 40, 400, 3000))
"""How far back the last instant is looked for: past an hour that comes twice, a day, a month, a year, and a missing
29 February."""
_WEEK_SECONDS = 7 * 86_400
"""No clock is changed twice within one."""


def following(timing: Timing, anchor: datetime, after: datetime) -> datetime | None:
    """The first instant later than `after`; None if there is none.

    `anchor` is where `every` counts from, unless the timing has a start: the first instant is one interval later.
    """
    start, after = timing.start_at, after.astimezone(UTC)
    if start is not None:
        after = max(after, start.astimezone(UTC) - timedelta(microseconds=1))
    found = next((at for at in _later(timing, anchor, after) if at > after), None)
    return found if found is not None and _is_before_end(timing, found) else None


def latest(timing: Timing, anchor: datetime, now: datetime) -> datetime | None:
    """The last instant that is not later than `now`; None if there is none."""
    now = now.astimezone(UTC)
    if timing.end_at is not None:
        now = min(now, timing.end_at.astimezone(UTC) - timedelta(microseconds=1))
    if timing.cron is None:
        found = _last_counted(timing, anchor, now)
    else:
        found = next((at for window in _WINDOWS if (at := _last_within(timing, now, window)) is not None), None)
    starts = timing.start_at is None or (found is not None and found >= timing.start_at)
    return found if starts else None


def upcoming(timing: Timing, anchor: datetime, after: datetime, count: int) -> tuple[datetime, ...]:
    """The next instants later than `after`, at most `count`."""
    found: list[datetime] = []
    while len(found) < count and (at := following(timing, anchor, found[-1] if found else after)) is not None:
        found.append(at)
    return tuple(found)


def _is_before_end(timing: Timing, at: datetime) -> bool:
    return timing.end_at is None or at < timing.end_at


def _later(timing: Timing, anchor: datetime, after: datetime) -> Iterator[datetime]:
    """Instants in order, of which at most a few are not later than `after`."""
    if timing.at is not None:
        yield timing.at.astimezone(UTC)
    elif timing.every_seconds is not None:
        first, every = _counted_from(timing, anchor)
        yield first + max(0, (after - first) // every + 1) * every
    elif any(text.startswith("*") for text in (timing.cron or "").split()[:2]):
        yield from _elapsed(timing.cron or "", ZoneInfo(timing.timezone), after)
    else:
        for at in CronSim(timing.cron or "", after.astimezone(ZoneInfo(timing.timezone))):
            yield at.astimezone(UTC)


def _elapsed(cron: str, zone: ZoneInfo, after: datetime) -> Iterator[datetime]:
    """Each instant later than `after` whose wall clock fits, however the clock is changed.

    From one change of the clock to the next its times are those of a clock that is never changed. Left to itself,
    cronsim passes over some times where a clock is changed by half an hour.
    """
    offset = _offset(zone, after)
    while True:
        for local in CronSim(cron, after + offset):
            change = _change(zone, offset, after, local - offset)
            if change is not None:
                offset, after = _offset(zone, change), change - timedelta(seconds=1)
                break
            after = local - offset
            yield after
        else:
            return


def _offset(zone: ZoneInfo, at: datetime) -> timedelta:
    return at.astimezone(zone).utcoffset() or timedelta()


def _change(zone: ZoneInfo, offset: timedelta, after: datetime, until: datetime) -> datetime | None:
    """The first second later than `after`, and not later than `until`, at which the zone has another offset."""
    low, high = int(after.timestamp()) + 1, int(after.timestamp()) + 1
    end = int(until.timestamp())
    while _offset(zone, datetime.fromtimestamp(high, UTC)) == offset:
        if high >= end:
            return None
        low, high = high, min(high + _WEEK_SECONDS, end)
    while low < high:
        middle = (low + high) // 2
        if _offset(zone, datetime.fromtimestamp(middle, UTC)) == offset:
            low = middle + 1
        else:
            high = middle
    return datetime.fromtimestamp(high, UTC)


def _counted_from(timing: Timing, anchor: datetime) -> tuple[datetime, timedelta]:
    """The first instant of `every`, and its interval."""
    every = timedelta(seconds=timing.every_seconds or 0)
    return (anchor.astimezone(UTC) + every if timing.start_at is None else timing.start_at.astimezone(UTC)), every


def _last_counted(timing: Timing, anchor: datetime, now: datetime) -> datetime | None:
    if timing.at is not None:
        return at if (at := timing.at.astimezone(UTC)) <= now else None
    first, every = _counted_from(timing, anchor)
    return first + (now - first) // every * every if first <= now else None


def _last_within(timing: Timing, now: datetime, window: timedelta) -> datetime | None:
    found = None
    for at in _later(timing, now, now - window):
        if at > now:
            return found
        if at > now - window:
            found = at
    return found
