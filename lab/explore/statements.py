"""The named statements of `explore.sql`."""

from functools import cache
from pathlib import Path

from turnstile.ledger.queries import Query, parse


@cache
def _all() -> dict[str, Query]:
    return parse(Path(__file__).with_name("explore.sql").read_text("utf-8"))


def statement(name: str) -> Query:
    """The statement of this name."""
    return _all()[name]
