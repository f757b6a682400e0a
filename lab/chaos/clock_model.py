"""A model of cron and of `every`, which judges firings: a second reading of protocol §20, not the product's code.

It walks over minutes and days and compares each with the five fields, without cronsim. It knows numbers, `*`, lists,
ranges and steps. Costs a comparison for each minute, or for each day and time of day.
"""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

_BOUNDS = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))
_MINUTE, _DAY = timedelta(minutes=1), timedelta(days=1)


def times_between(timing: Mapping[str, Any], anchor: datetime, after: datetime, until: datetime) -> list[datetime]:
    """The times later than `after` and not later than `until`, in UTC; `anchor` is where `every` counts from."""
    if (seconds := timing.get("every_seconds")) is not None:
        every = timedelta(seconds=seconds)
        number = max(1, (after - anchor) // every)
        counted = (anchor + every * n for n in range(number, (until - anchor) // every + 1))
        return [at for at in counted if at > after]
    zone = ZoneInfo(timing.get("timezone", "UTC"))
    texts = timing["cron"].split()
    fields = [_numbers(text, *bounds) for text, bounds in zip(texts, _BOUNDS, strict=True)]
    read = _fixed if not texts[0].startswith("*") and not texts[1].startswith("*") else _elapsed
    found = read(fields, texts, zone, after.astimezone(UTC), until.astimezone(UTC))
    return sorted(at for at in found if after < at <= until)


def _numbers(text: str, low: int, high: int) -> set[int]:
    found: set[int] = set()
    for part in text.split(","):
        span, _, step = part.partition("/")
        first, _, last = span.partition("-")
        begin, end = (low, high) if span == "*" else (int(first), int(last or (high if step else first)))
        found |= set(range(begin, end + 1, int(step or 1)))
    return found


def _is_day(fields: list[set[int]], texts: list[str], day: datetime) -> bool:
    """Whether the date fits: with a day of the month and one of the week, either is enough."""
    days, months, weekdays = fields[2:]
    of_month, of_week = day.day in days, bool({day.isoweekday(), day.isoweekday() % 7} & weekdays)
    is_either = not texts[2].startswith("*") and not texts[4].startswith("*")
    return day.month in months and (of_month or of_week if is_either else of_month and of_week)


def _elapsed(
    fields: list[set[int]], texts: list[str], zone: ZoneInfo, after: datetime, until: datetime
) -> set[datetime]:
    """Each minute that has passed and whose wall clock fits."""
    found, at = set[datetime](), after.replace(second=0, microsecond=0)
    while at <= until:
        local = at.astimezone(zone)
        if local.minute in fields[0] and local.hour in fields[1] and _is_day(fields, texts, local):
            found.add(at)
        at += _MINUTE
    return found


def _fixed(fields: list[set[int]], texts: list[str], zone: ZoneInfo, after: datetime, until: datetime) -> set[datetime]:
    """Each time of day of each date that fits: the first of two, and the end of the gap in place of a missing one."""
    found = set[datetime]()
    day = (after.astimezone(zone) - _DAY).replace(hour=0, minute=0, second=0, microsecond=0, tzinfo=None)
    while day <= until.astimezone(zone).replace(tzinfo=None):
        if _is_day(fields, texts, day):
            wanted = (day.replace(hour=hour, minute=minute) for hour in fields[1] for minute in fields[0])
            found |= {_instant(local, zone) for local in wanted}
        day += _DAY
    return found


def _instant(local: datetime, zone: ZoneInfo) -> datetime:
    at = local.replace(tzinfo=zone).astimezone(UTC)
    if at.astimezone(zone).replace(tzinfo=None) == local:
        return at
    before = (local - _DAY).replace(tzinfo=zone)
    low, high = int(before.timestamp()), int((at + _DAY).timestamp())
    while high - low > 1:  # the gap ends at the first second that has another offset
        middle = (low + high) // 2
        is_later = datetime.fromtimestamp(middle, zone).utcoffset() != before.utcoffset()
        low, high = (low, middle) if is_later else (middle, high)
    return datetime.fromtimestamp(high, UTC)
