"""Runs the audit's rules (`ledger/operations/audit.py`) over everything in a test's database."""

import re
from collections.abc import Container, Sequence
from dataclasses import dataclass

from turnstile.ledger.operations.audit import (
    AuditRule,
    Bounds,
    Finding,
    Scope,
    Violation,
    arguments,
    rules,
    violation,
)
from turnstile.ledger.queries import Connection

AGES = 10 * 365 * 24 * 3600.0
AT_ONCE = Bounds(grace_seconds=AGES, claim_seconds=AGES, stranded_seconds=0.0, depth_limit=1_000_000)
"""Bounds without any grace for a single transition's rules, and without end for what the safety net would mend."""
_LIMIT = 20
_TOGETHER = 9
"""Rules per statement: asyncpg does not cache the plans of statements above 15 KB."""


@dataclass(frozen=True)
class _Statement:
    """Several rules joined into one statement; `names` are its parameters in the order of their numbers."""

    sql: str
    names: list[str]


def _joined(together: Sequence[AuditRule]) -> _Statement:
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
    """The violations, at most `_LIMIT` per rule, as the connection's transaction sees them."""
    values = arguments(Scope(), bounds, _LIMIT)
    found: list[Violation] = []
    for statement in _STATEMENTS:
        rows = await conn.fetch(statement.sql, *(values[name] for name in statement.names))
        found += [violation(rules()[row["rule"]], Finding.model_validate(dict(row))) for row in rows]
    return found


async def assert_invariants(conn: Connection, *, skip: Container[str] = ()) -> None:
    """Raise `AssertionError` with the violations of all rules."""
    broken = [v for v in await violations(conn) if v.rule not in skip]
    assert not broken, "\n".join(f"{each.rule} {each.section} {each.ids} {each.detail}" for each in broken[:_LIMIT])
