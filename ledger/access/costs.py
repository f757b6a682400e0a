"""What turns cost, by day, agent, model, channel and profile at once, for charts. Reads so many turns at most."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from turnstile.ledger.queries import Connection, query
from turnstile.schema.base import Tolerant
from turnstile.schema.ids import ChannelId, ProjectId

CostGrouping = Literal["day", "agent", "model", "channel", "profile"]
TURN_LIMIT = 50_000
"""The most turns that are summed, the newest: a second or two."""


class CostLine(Tolerant):
    """Sums over attempts, failed ones included."""

    name: str
    turns: int
    attempts: int
    failed_attempts: int
    prompt_tokens: int
    completion_tokens: int
    cost: float | None
    """In US dollars, of the attempts with a known price; None if there are none."""

    @property
    def tokens(self) -> int:
        """Read and written."""
        return self.prompt_tokens + self.completion_tokens


class _Row(Tolerant):
    grouped: str
    name: str | None
    turns: int
    attempts: int
    failed_attempts: int
    prompt_tokens: int
    completion_tokens: int
    cost: float | None
    turns_read: int

    def line(self) -> CostLine:
        return CostLine.model_validate(self.model_dump() | {"name": self.name or ""})


@dataclass(frozen=True, slots=True)
class Costs:
    """Sums by each grouping, and of all."""

    lines: dict[CostGrouping, list[CostLine]]
    total: CostLine
    cut: bool
    """Whether there were more turns than are summed."""


GROUPINGS: Sequence[CostGrouping] = ("day", "agent", "model", "channel", "profile")


async def sum_costs(
    conn: Connection, project: ProjectId, *, channel: ChannelId | None, since: datetime, row_limit: int = TURN_LIMIT
) -> Costs:
    """What the turns that were enqueued since then used; one round trip."""
    rows = await query("sum_costs").all_as(
        conn, _Row, project_id=project, channel_id=channel, since=since, row_limit=row_limit
    )
    lines: dict[CostGrouping, list[CostLine]] = {
        grouping: _joined([row.line() for row in rows if row.grouped == grouping]) for grouping in GROUPINGS
    }
    [total] = [row for row in rows if row.grouped == "all"]
    return Costs(lines, total.line(), total.turns_read >= row_limit)


def _joined(lines: Sequence[CostLine]) -> list[CostLine]:
    """One line for each name: versions of a profile are one profile."""
    by_name: dict[str, CostLine] = {}
    for line in lines:
        before = by_name.get(line.name)
        by_name[line.name] = line if before is None else _added(before, line)
    return list(by_name.values())


def _added(one: CostLine, other: CostLine) -> CostLine:
    known = [line.cost for line in (one, other) if line.cost is not None]
    return CostLine(
        name=one.name,
        turns=one.turns + other.turns,
        attempts=one.attempts + other.attempts,
        failed_attempts=one.failed_attempts + other.failed_attempts,
        prompt_tokens=one.prompt_tokens + other.prompt_tokens,
        completion_tokens=one.completion_tokens + other.completion_tokens,
        cost=sum(known) if known else None,
    )
