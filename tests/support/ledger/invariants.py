"""Runs the audit's rules (`ledger/operations/audit.py`) over everything in a test's database."""

import re
from collections.abc import Container, Sequence
from dataclasses import dataclass

from turnstile.ledger.operations.audit import (
    Bounds,
    Finding,
    Rule,
    Scope,
    Violation,
    arguments,
    rules,
    violation,
)
from turnstile.ledger.queries import Connection

AGES = 10 * 365 * 24 * 3600.0
AT_ONCE = Bounds(grace_seconds=AGES, claim_seconds=AGES, stranded_seconds=0.0, depth_limit=1_000_000)
"""No time for what one transition must leave right, and all the time for what the safety net mends: none runs here."""
_LIMIT = 20
_TOGETHER = 9
"""Rules to a statement: asyncpg forgets the plans of statements beyond 15 KB."""


@dataclass(frozen=True)
class _Statement:
    """Some rules as one; `names` are its parameters in the order of their numbers."""

    sql: str
    names: list[str]


def _joined(together: Sequence[Rule]) -> _Statement:
    names = list(dict.fromkeys(name for rule in together for name in rule.query.parameters))
    parts: list[str] = []
    for rule in together:
        numbers = {f"${n}": f"${names.index(name) + 1}" for n, name in enumerate(rule.query.parameters, 1)}
        sql = re.sub(r"\$[0-9]+", lambda found, numbers=numbers: numbers[found[0]], rule.query.sql)
        parts.append(f"SELECT '{rule.name}' AS rule, x.ids, x.detail FROM ({sql}) x")  # noqa: S608 -- our own files
    return _Statement(" UNION ALL ".join(parts), names)


_RULES = list(rules().values())
_STATEMENTS = [_joined(_RULES[start : start + _TOGETHER]) for start in range(0, len(_RULES), _TOGETHER)]


async def violations(conn: Connection, bounds: Bounds = AT_ONCE) -> list[Violation]:
    """What breaks a rule, at most so many a rule, as the transaction of the connection sees it."""
    values = arguments(Scope(), bounds, _LIMIT)
    found: list[Violation] = []
    for statement in _STATEMENTS:
        rows = await conn.fetch(statement.sql, *(values[name] for name in statement.names))
        found += [violation(rules()[row["rule"]], Finding.model_validate(dict(row))) for row in rows]
    return found


async def assert_invariants(conn: Connection, *, skip: Container[str] = ()) -> None:
    """Raises `AssertionError` with what breaks a rule, all broken ones at once."""
    broken = [each for each in await violations(conn) if each.rule not in skip]
    assert not broken, "\n".join(f"{each.rule} {each.section} {each.ids} {each.detail}" for each in broken[:_LIMIT])
