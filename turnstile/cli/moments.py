"""Parses a point in time from an option: a date and time, or an age."""

# ruff: noqa: PLC0415 -- heavy imports wait until a command runs, so that --help is fast

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def moment(text: str, option: str, now: "datetime | None" = None) -> "datetime":
    """Parse a time in ISO 8601, in the local zone unless it names one, or an age such as `24h` before `now`.

    Raises `BadRequest` for any other text, and for a time in the future.
    """
    import re
    from datetime import UTC, datetime, timedelta

    from turnstile.schema.errors import BadRequest

    now = now or datetime.now(UTC)
    try:
        if age := re.fullmatch(r"([0-9]{1,9})([smhdw])", text):
            parsed = now - timedelta(seconds=int(age[1]) * UNITS[age[2]])
        else:
            parsed = datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        raise BadRequest(f"{option} takes a time as 2026-01-31T12:00 or an age as 24h, got {text[:40]!r}") from None
    if parsed > now:
        raise BadRequest(f"{option} must not be in the future, got {text[:40]!r}")
    return parsed
