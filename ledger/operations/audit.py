"""The audit: every rule of the protocol that a ledger can show to be broken, as queries (`audit*.sql`).

One REPEATABLE READ READ ONLY transaction, so that all rules see one moment and nothing is changed. It is quiet on a
live ledger: a transition is one statement, so rows agree at every moment, and what must happen in time has the safety
net's time and a grace. A rule gives at most `row_limit` violations and says when there are more. Takes no lock; what
it reads is not vacuumed meanwhile. A million turns cost some 100 s of processor time and a few hundred MB.
"""

import functools
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from importlib import resources
from typing import Any, Protocol, cast

from pydantic import Json

from turnstile.ledger.pool import Pool
from turnstile.ledger.queries import Connection, Query, parse, query
from turnstile.schema.base import Tolerant
from turnstile.schema.ids import AgentId, AgentTurnId, ProjectId, first_id

_PURPOSE = re.compile(r"Protocol (?P<section>§[0-9.]+(?: [a-z_]+)?): (?P<says>.+)")
_A_DAY = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Rule:
    """What must hold: by its name, the section of the protocol that says so, and in a sentence."""

    name: str
    section: str
    says: str
    query: Query


@dataclass(frozen=True, slots=True)
class Scope:
    """What is looked at: everything, or the turns of a project, or those enqueued since a moment."""

    project_id: ProjectId | None = None
    since: datetime | None = None

    @property
    def whole(self) -> bool:
        """Whether all tables are read to their ends."""
        return self.project_id is None and self.since is None

    @property
    def since_id(self) -> str | None:
        """The least id that a turn since then can have: ids of turns sort by time."""
        return None if self.since is None else first_id(self.since)


@dataclass(frozen=True, slots=True)
class Bounds:
    """How long what must happen may take, in seconds, and the limit of depth."""

    grace_seconds: float = 60.0
    """Beyond the safety net's own time."""
    claim_seconds: float = 300.0
    """`[bridge].inbox_processing_timeout_seconds`."""
    stranded_seconds: float = 60.0
    """How long an idle agent may have a turn that could run."""
    silent_seconds: float = 60.0
    """A worker that has not signed on for so long is not there."""
    depth_limit: int = 20
    """`[protocol].max_recursion_depth`."""


class Finding(Tolerant):
    """What a rule's query gives: the ids of what breaks it, and what is wrong."""

    ids: Json[dict[str, str | None]]
    detail: str


class Violation(Tolerant):
    """One thing that breaks a rule. `ids` are of whatever is concerned; there is no content."""

    rule: str
    section: str
    ids: dict[str, str]
    detail: str


class RuleResult(Tolerant):
    """What a rule found, or the first of it (`cut`), and what it cost."""

    rule: str
    section: str
    says: str
    violations: int
    cut: bool
    seconds: float


@dataclass(frozen=True, slots=True)
class Audit:
    """What an audit found: a result for each rule, and all violations."""

    rules: Sequence[RuleResult]
    violations: Sequence[Violation]


class AuditedTurn(Tolerant):
    """A turn whose workflow is looked at; `status` is its head's, or its outcome's."""

    project_id: ProjectId
    agent_id: AgentId
    agent_turn_id: AgentTurnId
    turn_epoch: int
    status: str


class _Slow(Protocol):
    async def fetch(self, query: str, *args: Any, timeout: float) -> list[Any]: ...


class _UntimedConnection:
    """A connection whose statements may take long: they read whole tables."""

    __slots__ = ("_conn",)

    def __init__(self, conn: Connection) -> None:
        self._conn = cast("_Slow", conn)

    async def fetch(self, query: str, *args: Any) -> list[Any]:
        return await self._conn.fetch(query, *args, timeout=_A_DAY)


@functools.cache
def rules() -> Mapping[str, Rule]:
    """Every rule by name, in the order in which they are checked."""
    names = ("audit", "audit_inbox", "audit_calls", "audit_boxes")
    sql = resources.files("turnstile.ledger").joinpath("operations")
    texts = [sql.joinpath(f"{name}.sql").read_text("utf-8") for name in names]
    return {found.name: _rule(found) for text in texts for found in parse(text).values()}


def _rule(found: Query) -> Rule:
    purpose = _PURPOSE.fullmatch(found.purpose)
    if purpose is None:
        raise ValueError(f"audit rule {found.name} names no section of the protocol")
    return Rule(found.name, purpose["section"], purpose["says"], found)


def arguments(scope: Scope, bounds: Bounds, row_limit: int) -> dict[str, Any]:
    """The values of all parameters that rules have."""
    values = {field.name: getattr(bounds, field.name) for field in fields(bounds)}
    return values | {
        "project_id": scope.project_id,
        "since": scope.since,
        "since_id": scope.since_id,
        "row_limit": row_limit,
    }


async def audit(pool: Pool, scope: Scope, bounds: Bounds, *, row_limit: int) -> Audit:
    """Check all rules at one moment; raises `ServerUnavailable` if the server goes away."""
    async with pool.connection() as conn, conn.transaction():
        await query("begin_audit").many(conn)
        await query("tune_audit").one(conn, whole=scope.whole, windowed=scope.since is not None)
        return await check_rules(_UntimedConnection(conn), scope, bounds, row_limit=row_limit)


async def check_rules(conn: Connection, scope: Scope, bounds: Bounds, *, row_limit: int) -> Audit:
    """Check all rules in the transaction of the connection, whatever that sees."""
    values = arguments(scope, bounds, row_limit + 1)
    results: list[RuleResult] = []
    violations: list[Violation] = []
    for rule in rules().values():
        began = time.monotonic()
        rows = await rule.query.many(conn, **{name: values[name] for name in rule.query.parameters})
        found = [Finding.model_validate(dict(row)) for row in rows[:row_limit]]
        violations += [violation(rule, each) for each in found]
        results.append(
            RuleResult(
                rule=rule.name,
                section=rule.section,
                says=rule.says,
                violations=len(found),
                cut=len(rows) > row_limit,
                seconds=round(time.monotonic() - began, 3),
            )
        )
    return Audit(results, violations)


def violation(rule: Rule, found: Finding) -> Violation:
    """What a rule's query found, under the rule's name, without ids that are not known."""
    ids = {name: value for name, value in found.ids.items() if value is not None}
    return Violation(rule=rule.name, section=rule.section, ids=ids, detail=found.detail)


async def list_expected_workflows(
    conn: Connection, project: ProjectId | None, *, fresh_seconds: float, claimed_seconds: float
) -> list[AuditedTurn]:
    """Turns in hand that must have an open workflow, unchanged for so long, and claimed for so long if not begun."""
    rows = await query("list_expected_workflows").many(
        conn, project_id=project, fresh_seconds=fresh_seconds, claimed_seconds=claimed_seconds
    )
    return [AuditedTurn.model_validate(dict(row)) for row in rows]


async def list_ended_turns(
    conn: Connection, project: ProjectId | None, turns: Sequence[AgentTurnId], *, older_seconds: float
) -> list[AuditedTurn]:
    """Those of the turns that have been over for so long; what this ledger does not know is not among them."""
    rows = await query("list_ended_turns").many(
        conn, project_id=project, agent_turn_ids=list(turns), older_seconds=older_seconds
    )
    return [AuditedTurn.model_validate(dict(row)) for row in rows]
