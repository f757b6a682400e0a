"""When schedules fire: each time once, over gaps and hours that come twice (protocol §20)."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from turnstile.rules.schedule_times import following, latest, upcoming
from turnstile.schema.wire.schedule_requests import Timing

ANCHOR = datetime(2026, 1, 1, 0, 0, 0, 123456, tzinfo=UTC)


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def times(timing: Timing, after: str, count: int) -> list[str]:
    """The next times in UTC, to the minute."""
    return [at.strftime("%m-%d %H:%M") for at in upcoming(timing, ANCHOR, utc(after), count)]


@pytest.mark.parametrize(
    ("zone", "cron", "after", "expected"),
    [
        # Berlin: 2:00 to 3:00 is missing on 29 March, and comes twice on 25 October
        ("Europe/Berlin", "30 2 * * *", "2026-03-28T00:00", ["03-28 01:30", "03-29 01:00", "03-30 00:30"]),
        ("Europe/Berlin", "15,45 2 * * *", "2026-03-29T00:00", ["03-29 01:00", "03-30 00:15", "03-30 00:45"]),
        ("Europe/Berlin", "30 2 * * *", "2026-10-24T00:00", ["10-24 00:30", "10-25 00:30", "10-26 01:30"]),
        ("Europe/Berlin", "30 * * * *", "2026-10-25T00:00", ["10-25 00:30", "10-25 01:30", "10-25 02:30"]),
        ("Europe/Berlin", "*/30 2 * * *", "2026-10-25T00:00", ["10-25 00:30", "10-25 01:00", "10-25 01:30"]),
        # New York: 2:00 to 3:00 is missing on 8 March, 1:00 to 2:00 comes twice on 1 November
        ("America/New_York", "30 2 * * *", "2026-03-07T12:00", ["03-08 07:00", "03-09 06:30"]),
        ("America/New_York", "30 1 * * *", "2026-11-01T00:00", ["11-01 05:30", "11-02 06:30"]),
        # Lord Howe: half an hour is missing on 4 October, and comes twice on 5 April
        ("Australia/Lord_Howe", "15 2 * * *", "2026-10-02T12:00", ["10-02 15:45", "10-03 15:30", "10-04 15:15"]),
        ("Australia/Lord_Howe", "45 1 * * *", "2026-04-04T00:00", ["04-04 14:45", "04-05 15:15"]),
        ("UTC", "0 12 29 2 *", "2096-03-01T00:00", ["02-29 12:00", "02-29 12:00"]),
        ("UTC", "0 0 L * *", "2026-01-31T00:00", ["02-28 00:00", "03-31 00:00"]),
    ],
)
def test_a_time_that_is_missing_fires_after_the_gap_and_one_that_comes_twice_fires_once(
    zone: str, cron: str, after: str, expected: list[str]
) -> None:
    timing = Timing(cron=cron, timezone=zone)
    assert times(timing, after, len(expected)) == expected
    found = upcoming(timing, ANCHOR, utc(after), len(expected))
    for sooner, later in pairwise(found):
        for inside in (sooner, later - timedelta(microseconds=1), sooner + (later - sooner) / 2):
            assert latest(timing, ANCHOR, inside) == sooner
            assert following(timing, ANCHOR, inside) == later


def test_every_goes_by_elapsed_time_over_both_changes_of_the_clock() -> None:
    timing = Timing.model_validate({"every_seconds": 3600})
    for day in ("2026-03-29T00:00", "2026-10-25T00:00"):
        found = upcoming(timing, ANCHOR, utc(day), 30)
        assert {later - sooner for sooner, later in pairwise(found)} == {timedelta(hours=1)}
        assert {(at - ANCHOR) % timedelta(hours=1) for at in found} == {timedelta()}


def test_a_start_and_an_end_bound_the_times() -> None:
    bounds = {"start_at": "2026-05-01T00:00:00Z", "end_at": "2026-05-01T02:00:00+00:00"}
    every = Timing.model_validate({"every_seconds": 3600, **bounds})
    assert times(every, "2026-01-01T00:00", 9) == ["05-01 00:00", "05-01 01:00"]
    assert latest(every, ANCHOR, utc("2026-04-30T23:59")) is None
    assert latest(every, ANCHOR, utc("2027-01-01T00:00")) == utc("2026-05-01T01:00")
    cron = Timing.model_validate({"cron": "0 * * * *", **bounds})
    assert times(cron, "2026-01-01T00:00", 9) == ["05-01 00:00", "05-01 01:00"]
    assert latest(cron, ANCHOR, utc("2026-04-30T23:59")) is None
    once = Timing.model_validate({"at": "2026-05-01T00:00:00+02:00"})
    assert times(once, "2026-01-01T00:00", 9) == ["04-30 22:00"]
    assert following(once, ANCHOR, utc("2026-04-30T22:00")) is None
    assert latest(once, ANCHOR, utc("2026-04-30T21:59")) is None


@given(
    zone=st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Africa/Casablanca"]),
    minute=st.sampled_from(["0", "30", "15,45", "*/20", "*"]),
    hour=st.sampled_from(["*", "1", "2", "1,2,3", "*/6", "0-3"]),
    now=st.datetimes(datetime(2025, 1, 1), datetime(2028, 1, 1)),  # noqa: DTZ001 -- hypothesis wants naive bounds
)
def test_the_last_time_and_the_next_one_have_none_between_them(
    zone: str, minute: str, hour: str, now: datetime
) -> None:
    timing, moment = Timing(cron=f"{minute} {hour} * * *", timezone=zone), now.replace(tzinfo=UTC)
    last, following_one = latest(timing, ANCHOR, moment), following(timing, ANCHOR, moment)
    assert last is not None
    assert following_one is not None
    assert last <= moment < following_one
    assert following(timing, ANCHOR, last) == following_one
    assert latest(timing, ANCHOR, following_one) == following_one
    if minute.isdigit() and hour.isdigit():  # the wall clock shows it, or shows that it was missing
        wall = last.astimezone(ZoneInfo(zone))
        assert (wall.hour, wall.minute) == (int(hour), int(minute)) or wall.utcoffset() != (
            last - timedelta(hours=1)
        ).astimezone(ZoneInfo(zone)).utcoffset()


@pytest.mark.parametrize(
    "timing",
    [
        {},
        {"cron": "0 9 * * *", "every_seconds": 5},
        {"cron": "0 0 9 * * *"},  # seconds
        {"cron": "@daily"},
        {"cron": "61 * * * *"},
        {"cron": "0 0 30 2 *"},
        {"cron": "0 9 * * *", "timezone": "Mars/Olympus"},
        {"cron": "0 9 * * *", "timezone": "../../etc/passwd"},
        {"cron": "0 9 * * *", "timezone": "Europe"},
        {"every_seconds": 0.5},
        {"every_seconds": 60, "timezone": "Europe/Berlin"},
        {"at": "2026-05-01T00:00:00"},  # of no zone
    ],
)
def test_a_timing_that_means_nothing_is_refused(timing: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Timing.model_validate(timing)
