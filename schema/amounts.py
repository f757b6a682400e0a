"""Numbers, money and spans of time as people write them: one form for the command line and the console. Pure."""

from datetime import timedelta
from decimal import Decimal
from typing import Final

_MINUTE, _HOUR, _DAY = 60, 3600, 86_400
_THOUSAND, _MILLION = 1000, 1_000_000
_FINE: Final = Decimal("0.000001")


def amount(value: float | Decimal | None) -> str:
    """A number: `1,175`, `0.25`, `12,345.6`; never with an exponent, and without a fraction of nothing."""
    if value is None:
        return "–"
    number = Decimal(str(value))
    if not number.is_finite():
        return str(value)
    if number == 0:
        return "0"
    size = abs(number)
    if number == number.to_integral_value():
        return f"{number:,.0f}"
    if size >= _THOUSAND:
        places = 1
    elif size >= 1:
        places = 2
    else:  # two digits that say something
        places = min(12, 1 - size.adjusted())
    text = f"{number:,.{places}f}".rstrip("0").rstrip(".")
    return "0" if text in ("-0", "") else text


def counted(count: int, noun: str, many: str = "") -> str:
    """A number of things: `1 turn`, `1,200 turns`; `many` where the plural has no -s."""
    return f"{count:,} {noun if count == 1 else many or f'{noun}s'}"


def data_size(size: int) -> str:
    """An amount of data: `1.5 MB`, `12 B`; a unit is a thousand of the one before."""
    for unit, count in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size >= count:
            return f"{amount(round(size / count, 1))} {unit}"
    return f"{size} B"


def money(value: Decimal | float | None) -> str:
    """US dollars: `$0.0042`, `$1.20`; a dash if it is not known."""
    if value is None:
        return "–"
    number = Decimal(str(value))
    if number == 0:
        return "$0"
    sign, size = ("-" if number < 0 else ""), abs(number)
    if size >= 1:
        return f"{sign}${size:,.2f}"
    if size < _FINE:
        return f"{sign}<$0.000001"
    text = f"{size:.2f}" if size >= Decimal("0.1") else f"{size:.2g}" if size >= Decimal("0.0001") else f"{size:.6f}"
    return f"{sign}${text}"


def tokens(value: float | None) -> str:
    """A count of tokens where there is little room: `950`, `12.4k`, `1.2M`; a dash if it is not known."""
    if value is None:
        return "–"
    if value < _THOUSAND:
        return f"{value:.0f}"
    if value < _MILLION:
        return f"{value / _THOUSAND:.1f}k"
    return f"{value / _MILLION:.1f}M"


def duration(value: float | timedelta | None) -> str:
    """Seconds in words: `300 ms`, `2.5 s`, `12 s`, `3 min 5 s`, `2 h 4 min`, `3 d 1 h`."""
    if value is None:
        return "–"
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if seconds < 0.9995:
        return f"{max(0, round(seconds * 1000))} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < _MINUTE:
        return f"{whole} s"
    if whole < _HOUR:
        return _two(whole // _MINUTE, "min", whole % _MINUTE, "s")
    if whole < _DAY:
        return _two(whole // _HOUR, "h", whole % _HOUR // _MINUTE, "min")
    return _two(whole // _DAY, "d", whole % _DAY // _HOUR, "h")


def rough_duration(seconds: float) -> str:
    """As `duration`, in its largest unit, which is over: `3 min`, `2 h`, `5 d`."""
    whole = int(seconds)
    for size, unit in ((2 * _DAY, "d"), (_HOUR, "h"), (_MINUTE, "min")):
        if whole >= size:
            return f"{whole // (_DAY if unit == 'd' else size)} {unit}"
    return f"{whole} s"


def _two(large: int, name: str, small: int, smaller: str) -> str:
    return f"{large} {name} {small} {smaller}" if small else f"{large} {name}"
