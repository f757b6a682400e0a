"""Statements with one thing wrong, which the explorer must find: what it would not find, it does not prove.

Each leaves out a gate, raises no epoch, leaves a row behind, takes a lock too late or answers no `again`. Most break a
state or a step, and the search finds them; one only keeps the net from its end; the last two show only where two
statements run truly at once, and the pairs find them (`lab.explore.pairs`).
"""

import re
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import cast

from turnstile.ledger.queries import Query, all_queries


@dataclass(frozen=True, slots=True)
class Mutation:
    """A change of one statement's text, and the world whose exploration finds it."""

    name: str
    query: str
    old: str
    new: str
    world: str = "small"
    at_once: bool = False
    """Whether it shows only where two statements run at once."""


MUTATIONS: Sequence[Mutation] = (
    Mutation(
        "begin_step wakes a turn that sleeps",
        "begin_step",
        "h.status IN ('dispatched', 'running')",
        "h.status <> 'idle'",
    ),
    Mutation(
        "commit_step takes any step",
        "commit_step",
        "h.status = 'running' AND h.step_count = :step::int - 1",
        "h.status = 'running'",
    ),
    Mutation(
        "finish_turn leaves calls open",
        "finish_turn",
        "w.wait_status IN ('waiting', 'received')",
        "w.wait_status = 'waiting'",
    ),
    Mutation(
        "finish_turn leases under the same epoch",
        "finish_turn",
        "h.turn_epoch + CASE WHEN n.inbox_id IS NULL THEN :idle_bump::int ELSE 1 END",
        "h.turn_epoch + :idle_bump::int",
        "queue",
    ),
    Mutation(
        "finish_turn leaves its stop live",
        "finish_turn",
        "i.message_type = 'stop' AND i.archived_at IS NULL",
        "i.message_type = 'stop' AND i.archived_at IS NOT NULL",
    ),
    Mutation(
        "stop_queued_turn ends a leased turn",
        "stop_queued_turn",
        "AND i.archived_at IS NULL AND i.status = 'queued'",
        "AND i.archived_at IS NULL",
    ),
    Mutation(
        "report_call reports a settled call anew",
        "report_call",
        "w.project_id = :project_id AND w.wait_status = 'waiting'",
        "w.project_id = :project_id",
    ),
    Mutation(
        "inject_timeouts does not wait for the deadline",
        "inject_timeouts",
        " WHERE c.due_at <= now()",
        "",
    ),
    Mutation(
        "apply_reports takes both a result and its timeout",
        "apply_reports",
        "SELECT DISTINCT ON (j.correlation_id) j.inbox_id",
        "SELECT j.inbox_id",
    ),
    Mutation(
        "list_due_agents passes by pending rows",
        "list_due_agents",
        "i.status IN ('pending', 'deferred')",
        "i.status IN ('deferred')",
    ),
    Mutation(
        "report_call locks its call too late",
        "report_call",
        "w.wait_status <> 'waiting')\n    FOR NO KEY UPDATE OF w",
        "w.wait_status <> 'waiting')",
        at_once=True,
    ),
    Mutation(
        "finish_turn answers no again",
        "finish_turn",
        "WHERE seen.xmin = head.version OR (",
        "WHERE true OR (",
        "queue",
        at_once=True,
    ),
)


@contextmanager
def mutated(name: str | None) -> Generator[None]:
    """Inside the block this mutation's statement is the wrong one, in this process."""
    if name is None:
        yield
        return
    mutation = next(each for each in MUTATIONS if each.name == name)
    every = cast("dict[str, Query]", all_queries())
    right = every[mutation.query]
    old, new = (_numbered(text, right) for text in (mutation.old, mutation.new))
    if right.sql.count(old) != 1:
        raise ValueError(f"{name}: the text to replace is {right.sql.count(old)} times in {mutation.query}")
    every[mutation.query] = replace(right, sql=right.sql.replace(old, new))
    try:
        yield
    finally:
        every[mutation.query] = right


def _numbered(text: str, query: Query) -> str:
    """The text with parameters as the statement has them."""
    numbers = {name: number for number, name in enumerate(query.parameters, 1)}
    return re.sub(r"(?<![:\w]):([a-z_]+)\b", lambda found: f"${numbers[found[1]]}", text)
