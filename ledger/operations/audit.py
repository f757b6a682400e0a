"""The audit: checks the rules of the protocol that the ledger's rows can break, as queries (`audit*.sql`).

It runs in one REPEATABLE READ READ ONLY transaction, so all rules see the same moment and nothing is changed. A live
ledger gives no false alarms: a transition is one statement, so rows are consistent at every moment, and time limits
allow for the safety net and a grace. A rule returns at most `row_limit` violations and says when there are more. The
audit takes no lock, but delays vacuum. A million turns cost about 100 s of processor time and a few hundred MB.
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
class AuditRule:
    """A rule: its name, its section of the protocol, and what must hold, in a sentence."""

    name: str
    section: str
    says: str
    query: Query


@dataclass(frozen=True, slots=True)
class Scope:
    """The turns to audit: all, those of a project, or those enqueued since a moment."""

    project_id: ProjectId | None = None
    since: datetime | None = None

    @property
    def whole(self) -> bool:
        """Whether all rows are audited."""
        return self.project_id is None and self.since is None

    @property
    def since_id(self) -> str | None:
        """The smallest id that a turn since then can have: ids of turns sort by time."""
        return None if self.since is None else first_id(self.since)


@dataclass(frozen=True, slots=True)
class Bounds:
    """The time limits of rules, in seconds, and the limit of depth."""

    grace_seconds: float = 60.0
    """Added to the safety net's own time."""
    claim_seconds: float = 300.0
    """`[bridge].inbox_processing_timeout_seconds`."""
    stranded_seconds: float = 60.0
    """How long an idle agent may leave a turn that could run."""
    silent_seconds: float = 60.0
    """A worker that has not signed on for this long counts as gone."""
    depth_limit: int = 20
    """`[protocol].max_recursion_depth`."""


class Finding(Tolerant):
    """A row of a rule's query: the ids of the rows that break the rule, and what is wrong."""

    ids: Json[dict[str, str | None]]
    detail: str


class Violation(Tolerant):
    """One violation of a rule; it holds ids, no content."""

    rule: str
    section: str
    ids: dict[str, str]
    detail: str


class RuleResult(Tolerant):
    """A rule's violations, how long the query took, and whether there are more (`cut`)."""

    rule: str
    section: str
    says: str
    violations: int
    cut: bool
    seconds: float


@dataclass(frozen=True, slots=True)
class Audit:
    """The result of an audit: one for each rule, and all violations."""

    rules: Sequence[RuleResult]
    violations: Sequence[Violation]


class AuditedTurn(Tolerant):
    """A turn whose workflow is audited; `status` is its head's, or its outcome's."""

    project_id: ProjectId
    agent_id: AgentId
    agent_turn_id: AgentTurnId
    turn_epoch: int
    status: str


class _Slow(Protocol):
    async def fetch(self, query: str, *args: Any, timeout: float) -> list[Any]: ...


class _UntimedConnection:
    """A connection without a statement timeout, since audit statements read whole tables."""

    __slots__ = ("_conn",)

    def __init__(self, conn: Connection) -> None:
        self._conn = cast("_Slow", conn)

    async def fetch(self, query: str, *args: Any) -> list[Any]:
        return await self._conn.fetch(query, *args, timeout=_A_DAY)


@functools.cache
def rules() -> Mapping[str, AuditRule]:
    """Every rule of the files `audit*.sql` but `audit_setup.sql`, by name, in the order of the checks."""
    folder = resources.files("turnstile.ledger").joinpath("operations")
    names = sorted(path.name for path in folder.iterdir() if path.name.startswith("audit"))
    files = [name for name in names if name.endswith(".sql") and name != "audit_setup.sql"]
    texts = [folder.joinpath(name).read_text("utf-8") for name in files]
    return {q.name: _rule(q) for text in texts for q in parse(text).values()}


def _rule(q: Query) -> AuditRule:
    purpose = _PURPOSE.fullmatch(q.purpose)
    if purpose is None:
        raise ValueError(f"audit rule {q.name} names no section of the protocol")
    return AuditRule(q.name, purpose["section"], purpose["says"], q)


def arguments(scope: Scope, bounds: Bounds, row_limit: int) -> dict[str, Any]:
    """The values of all parameters of the rules' queries."""
    values = {field.name: getattr(bounds, field.name) for field in fields(bounds)}
    return values | {
        "project_id": scope.project_id,
        "since": scope.since,
        "since_id": scope.since_id,
        "row_limit": row_limit,
    }


async def audit(pool: Pool, scope: Scope, bounds: Bounds, *, row_limit: int) -> Audit:
    """Check all rules at one moment; raises `ServerUnavailable` if the server is lost."""
    async with pool.connection() as conn, conn.transaction():
        await query("begin_audit").many(conn)
        await query("tune_audit").one(conn, whole=scope.whole, windowed=scope.since is not None)
        return await check_rules(_UntimedConnection(conn), scope, bounds, row_limit=row_limit)


async def check_rules(conn: Connection, scope: Scope, bounds: Bounds, *, row_limit: int) -> Audit:
    """Check all rules in the connection's transaction."""
    values = arguments(scope, bounds, row_limit + 1)
    results: list[RuleResult] = []
    violations: list[Violation] = []
    for rule in rules().values():
        began = time.monotonic()
        rows = await rule.query.many(conn, **{name: values[name] for name in rule.query.parameters})
        findings = [Finding.model_validate(dict(row)) for row in rows[:row_limit]]
        violations += [violation(rule, f) for f in findings]
        results.append(
            RuleResult(
                rule=rule.name,
                section=rule.section,
                says=rule.says,
                violations=len(findings),
                cut=len(rows) > row_limit,
                seconds=round(time.monotonic() - began, 3),
            )
        )
    return Audit(results, violations)


def violation(rule: AuditRule, finding: Finding) -> Violation:
    """The violation for a row of a rule's query; ids that are null are left out."""
    ids = {name: value for name, value in finding.ids.items() if value is not None}
    return Violation(rule=rule.name, section=rule.section, ids=ids, detail=finding.detail)


async def list_expected_workflows(
    conn: Connection, project: ProjectId | None, *, fresh_seconds: float, claimed_seconds: float
) -> list[AuditedTurn]:
    """The active turns that must have an open workflow: unchanged, and claimed if not begun, for that long."""
    return await query("list_expected_workflows").all_as(
        conn, AuditedTurn, project_id=project, fresh_seconds=fresh_seconds, claimed_seconds=claimed_seconds
    )


async def list_ended_turns(
    conn: Connection, project: ProjectId | None, turns: Sequence[AgentTurnId], *, older_seconds: float
) -> list[AuditedTurn]:
    """Those of the turns that ended that long ago; turns unknown to this ledger are left out."""
    return await query("list_ended_turns").all_as(
        conn, AuditedTurn, project_id=project, agent_turn_ids=list(turns), older_seconds=older_seconds
    )
