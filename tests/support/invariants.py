"""Protocol §2 checked over everything in a database."""

from collections.abc import Container
from pathlib import Path

from ledger.queries import Connection, parse

QUERIES = parse(Path(__file__).with_name("invariants.sql").read_text(encoding="utf-8"))
_ALL = " UNION ALL ".join(
    f"SELECT '{name}' AS name, to_jsonb(x)::text AS found FROM ({query.sql}) x"  # noqa: S608 -- files of this repository
    for name, query in QUERIES.items()
)


async def assert_invariants(conn: Connection, *, skip: Container[str] = ()) -> None:
    """Raises `AssertionError` with the rows that break an invariant, all broken ones at once."""
    broken = [(row["name"], row["found"]) for row in await conn.fetch(_ALL) if row["name"] not in skip]
    assert not broken, broken[:20]
