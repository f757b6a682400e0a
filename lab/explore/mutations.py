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

from turnstile.ledger.histories import connect_to_host
from turnstile.ledger.queries import Query, all_queries


@dataclass(frozen=True, slots=True)
class Mutation:
    """A change of a statement's text, or of a function of the schema `state`, and the world that finds it."""

    name: str
    query: str
    """The name of the statement, or of the function."""
    old: str
    new: str
    world: str = "small"
    at_once: bool = False
    """Whether it shows only where two statements run at once."""
    function: bool = False
    """Whether it is a function, which is replaced in each database that is explored."""
    behind: tuple[tuple[str, str, str], ...] = ()
    """Functions with gates behind it that would stop it, each with the text to replace there, too."""

    def functions(self) -> tuple[tuple[str, str, str], ...]:
        """The functions to replace, each with old and new text."""
        return ((self.query, self.old, self.new), *self.behind) if self.function else self.behind


_WALL_BEHIND = ("is_written_abroad", "RETURN EXISTS (", "RETURN false AND EXISTS (")
"""Children are enqueued where no other channel writes, whatever the caller has found."""

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
        "i.message_type = 'stop' AND",
        "i.message_type = 'stop' AND false AND",
    ),
    Mutation(
        "stop_queued_turn ends a leased turn",
        "stop_queued_turn",
        "AND i.status = 'queued'",
        "",
    ),
    Mutation(
        "report_call reports a settled call anew",
        "report_call",
        "w.project_id = :project_id AND w.wait_status = 'waiting'",
        "w.project_id = :project_id",
    ),
    Mutation(
        "a tool asks under a call that was reported",
        "refused_under_call",
        "w.wait_status <> 'waiting' OR",
        "",
        "asking",
        function=True,
    ),
    Mutation(
        "inject_timeouts does not wait for the deadline",
        "inject_timeouts",
        "c.due_at <= now() AND c.left_seconds IS NULL",
        "c.left_seconds IS NULL",
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
        "w.held_by = call.held_by))\n    FOR NO KEY UPDATE OF w",
        "w.held_by = call.held_by))",
        at_once=True,
    ),
    Mutation(
        "finish_turn answers no again",
        "finish_turn",
        "WHERE (seen.xmin = head.version OR (",
        "WHERE (true OR (",
        "queue",
        at_once=True,
    ),
    Mutation(
        "finish_turn ends a turn for which a steer waits",
        "finish_turn",
        "AND NOT (:yields::boolean AND",
        "AND NOT (false AND :yields::boolean AND",
        "steered",
    ),
    Mutation(
        "commit_step applies no steer",
        "commit_step",
        "AND s.status = 'taken'",
        "AND s.status = 'waiting'",
        "steered",
    ),
    Mutation(
        "take_steers_into_box takes for every attempt",
        "take_steers_into_box",
        "IF first THEN",
        "IF true THEN",
        "steered",
        function=True,
    ),
    Mutation(
        "take_steers_into_box puts a card there for every attempt",
        "take_steers_into_box",
        "AND NOT EXISTS (SELECT FROM public.box_cards b WHERE b.card_id = s.steer_id AND b.box_id = box)",
        "",
        "steered",
        function=True,
    ),
    Mutation(
        "record_steer leaves the row of a skipped steer",
        "record_steer",
        "WHEN 'applied' THEN 'consumed' ELSE 'skipped' END",
        "WHEN 'applied' THEN 'consumed' ELSE 'consumed' END",
        "steered",
        function=True,
    ),
    Mutation(
        "skip_steers leaves what waits",
        "skip_steers",
        "s.status IN ('waiting', 'taken')",
        "s.status = 'taken'",
        "steered",
        function=True,
    ),
    Mutation(
        "steer_turn does not lock the head",
        "steer_turn",
        "FOR NO KEY UPDATE OF h",
        "",
        "steered",
        at_once=True,
    ),
    Mutation(
        "begin_step does not ask for a mark",
        "begin_step",
        "NOT EXISTS (SELECT FROM mark WHERE mark.stopping_at IS NOT NULL)",
        "true",
        "join-any",
    ),
    Mutation(
        "open_batch forks a call that is timed out",
        "open_batch",
        "i.message_type = 'timeout'",
        "false",
        "fork",
        function=True,
    ),
    Mutation(
        "enqueue_children makes children under a mark",
        "enqueue_children",
        "WHEN stopping IS NOT NULL THEN 'parent_stopping'",
        "WHEN false THEN 'parent_stopping'",
        "fork",
        function=True,
    ),
    Mutation(
        "mark_subtrees marks no children",
        "mark_subtrees",
        "(whole OR (c.waited AND NOT c.ended AND NOT state.is_let_finish(c.agent_turn_id)))",
        "whole",
        "fork",
        function=True,
    ),
    Mutation(
        "settle_end decides a batch again",
        "settle_end",
        "IF b.status = 'running' THEN",
        "IF true THEN",
        "join-finish",
        function=True,
    ),
    Mutation(
        "settle_end leaves the node open",
        "settle_end",
        "false, NEW.agent_turn_id)",
        "false, NULL)",
        "join-fast",
        function=True,
    ),
    Mutation(
        "tell_parent answers a call that waits no more",
        "tell_parent",
        "w.wait_status IS DISTINCT FROM 'waiting'",
        "w.wait_status IS NULL",
        "join-fast",
        function=True,
    ),
    Mutation(
        "expire_batch does not wait for the deadline",
        "expire_batch",
        "b.deadline_at > now() AND",
        "false AND",
        "join-fast",
        function=True,
    ),
    Mutation(
        "verdict_of waits for one success more",
        "verdict_of",
        "b.success_count >= b.k",
        "b.success_count > b.k",
        "join-any",
        function=True,
    ),
    Mutation(
        "expire_batch does not lock its batch",
        "expire_batch",
        "FOR NO KEY UPDATE SKIP LOCKED",
        "",
        "join-fast",
        at_once=True,
        function=True,
    ),
    Mutation(
        "find_targets names the box of an agent's turn in another channel",
        "find_targets",
        "CASE WHEN h.active_channel_id = :channel_id THEN h.output_box_id END",
        "h.output_box_id",
        "walls",
        behind=(_WALL_BEHIND,),
    ),
    Mutation(
        "channel_boxes gives what another channel wrote last",
        "channel_boxes",
        "CASE WHEN NOT state.is_abroad(project, channel, p.last_output_box_id)\n"
        "                        AND NOT state.is_read_abroad(project, channel, p.last_output_box_id)\n"
        "                        THEN p.last_output_box_id END",
        "p.last_output_box_id",
        "walls-clone",
        function=True,
        behind=(_WALL_BEHIND,),
    ),
    Mutation(
        "make_way asks nobody to stop",
        "make_way",
        "IF a.agent_turn_id IS NOT NULL THEN",
        "IF false THEN",
        "interrupt",
        function=True,
    ),
    Mutation(
        "make_way rolls back nothing of a turn that compacted its memory",
        "make_way",
        "WHERE b.box_id = begun_box",
        "WHERE b.box_id = h.output_box_id",
        "rollback",
        function=True,
    ),
    Mutation(
        "make_way keeps the cards of the turn that is rolled back",
        "make_way",
        "WHERE k.metadata ->> 'agent_turn_id' IS DISTINCT FROM a.agent_turn_id",
        "WHERE true",
        "rollback",
        function=True,
    ),
    Mutation(
        "commit_step leaves the conversation in the box that it compacts",
        "commit_step",
        "AND c.output_box_id = :output_box_id::text::uuid",
        "AND false",
        "talk",
    ),
    Mutation(
        "conversation_box finds none",
        "conversation_box",
        "c.conversation_id = conversation",
        "false",
        "talk",
        function=True,
    ),
    Mutation(
        "reserve_attempt does not count what others have reserved",
        "reserve_attempt",
        "x.spent + x.reserved + x.wanted > x.had",
        "x.spent + x.wanted > x.had",
        "budget-day",
        function=True,
    ),
    Mutation(
        "charge_turns gives what there is not",
        "charge_turns",
        "IF refused IS NOT NULL THEN",
        "IF false THEN",
        "budget-day",
        function=True,
    ),
    Mutation(
        "book_budgets gives a closed grant not back",
        "book_budgets",
        "CASE WHEN closes THEN -b.max_tokens ELSE 0 END",
        "0::bigint",
        "budget-day",
        function=True,
    ),
    Mutation(
        "raise_budget takes nothing from above",
        "raise_budget",
        "ANY (b.from_tokens) THEN coalesce(m.max_tokens, 0)",
        "ANY (b.from_tokens) THEN 0",
        "budget-day",
        function=True,
    ),
    Mutation(
        "settle_attempts books a late truth besides",
        "settle_attempts",
        "coalesce(now_tokens, r.tokens) - CASE WHEN was_open THEN 0 ELSE coalesce(r.used_tokens, r.tokens) END",
        "coalesce(now_tokens, r.tokens)",
        "budget",
        function=True,
    ),
    Mutation(
        "settle_budget leaves what is open",
        "settle_budget",
        "WHERE r.agent_turn_id = NEW.agent_turn_id AND r.status = 'open'));",
        "WHERE false));",
        "budget",
        function=True,
    ),
)


@contextmanager
def mutated(name: str | None) -> Generator[None]:
    """Inside the block this mutation's statement and its variants are wrong, in this process; a function is not."""
    mutation = _named(name)
    if mutation is None or mutation.function:
        yield
        return
    every = cast("dict[str, Query]", all_queries())
    right = {q.name: q for q in every.values() if mutation.query in (q.name, q.variant_of)}
    for statement in right.values():
        old, new = (_numbered(text, statement) for text in (mutation.old, mutation.new))
        count = statement.sql.count(old)
        if count != 1 and (count or statement.variant_of is None):  # a variant may lack the part
            raise ValueError(f"{name}: the text to replace is {count} times in {statement.name}")
        every[statement.name] = replace(statement, sql=statement.sql.replace(old, new))
    try:
        yield
    finally:
        every.update(right)


async def mutate(url: str, name: str | None) -> str:
    """Replace this mutation's functions, if it has any, in a database that is to be explored; returns its address."""
    mutation = _named(name)
    if mutation is None or not mutation.functions():
        return url
    session = await connect_to_host(url)
    try:
        for function, old, new in mutation.functions():
            right = await session.fetchval(_DEFINITION, f"state.{function}")
            if right.count(old) != 1:
                raise ValueError(f"{name}: the text to replace is {right.count(old)} times in {function}")
            await session.execute(right.replace(old, new))
    finally:
        await session.close()
    return url


_DEFINITION = "SELECT pg_get_functiondef($1::regproc)"


def _named(name: str | None) -> Mutation | None:
    return None if name is None else next(mutation for mutation in MUTATIONS if mutation.name == name)


def _numbered(text: str, query: Query) -> str:
    """The text with parameters as the statement has them."""
    numbers = {name: f"${number}" for number, name in enumerate(query.parameters, 1)}
    return re.sub(r"(?<![:\w]):([a-z_]+)\b", lambda match: numbers.get(match[1], match[0]), text)
