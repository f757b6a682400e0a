"""Protocol §2 checked over everything in a database."""

from collections.abc import Container
from pathlib import Path

from ledger.queries import Connection, parse

QUERIES = parse(Path(__file__).with_name("invariants.sql").read_text(encoding="utf-8"))


async def assert_invariants(conn: Connection, *, skip: Container[str] = ()) -> None:
    """Raises `AssertionError` with the rows that break an invariant, all broken ones at once."""
    broken: dict[str, list[dict[str, object]]] = {}
    for name, query in QUERIES.items():
        if name not in skip and (found := await query.many(conn)):
            broken[name] = [dict(row) for row in found[:5]]
    assert not broken, broken
