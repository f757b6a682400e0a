"""Leases, claims, and the rules of the safety net that find them (protocol §6, §8)."""

from datetime import timedelta

import pytest

from tests.support.ledger.agents import (
    ALICE,
    BOB,
    CAROL,
    PROJECT,
    TARGET,
    add_agents,
    ask,
    begin,
    claim,
    finish,
    head,
    lease,
    play,
    rows,
    start,
    value,
)
from turnstile.ledger.operations import sweep
from turnstile.ledger.pool import Pool
from turnstile.ledger.turns.ends import fence, mark_announced
from turnstile.ledger.turns.intake import Enqueued
from turnstile.ledger.turns.lease import Claim, dispatch_next, release_claims
from turnstile.schema.errors import StaleTurn
from turnstile.schema.ids import AgentId, new_box_id
from turnstile.schema.states import DeferReason, TurnStatus
from turnstile.schema.wire import headers

OLD = timedelta(hours=1)


async def age(pool: Pool) -> None:
    """Everything that is due, claimed, leased or ended happened an hour ago."""
    await rows(
        pool,
        "UPDATE state.agent_inbox SET next_retry_at = next_retry_at - $1::interval, processed_at = processed_at - $1"
        " WHERE archived_at IS NULL AND next_retry_at < 'infinity'",
        OLD,
    )
    await rows(pool, "UPDATE state.agent_state_head SET updated_at = updated_at - $1::interval", OLD)
    await rows(pool, "UPDATE state.turn_outcomes SET ended_at = ended_at - $1::interval", OLD)


async def blocked(pool: Pool, *agents: AgentId) -> list[Enqueued]:
    """A turn for each, queued while its agent is idle, because Carol held its box; now she does not."""
    held = await lease(pool, CAROL)
    asked = [await ask(pool, agent, output_box_id=held.output_box_id) for agent in agents]
    await begin(pool, held)
    await finish(pool, held)
    return asked


async def test_dispatch_leases_idle_agents_to_their_oldest_turn(agents: Pool) -> None:
    [older] = await blocked(agents, ALICE)
    newer = await ask(agents, BOB)
    keys = [(PROJECT, agent) for agent in (ALICE, BOB, CAROL)]
    [leased] = await agents.run(lambda conn: dispatch_next(conn, keys))
    assert (leased.agent_id, leased.agent_turn_id, leased.turn_epoch) == (ALICE, older.reply.agent_turn_id, 1)
    assert headers.trace_id(leased.context_headers[headers.TRACEPARENT]) == older.reply.trace_id
    assert leased.worker_target == TARGET
    assert (await head(agents, BOB))["active_agent_turn_id"] == newer.reply.agent_turn_id
    assert await agents.run(lambda conn: dispatch_next(conn, keys)) == []
    await play(agents, ALICE)


async def test_dispatch_leaves_a_turn_whose_box_is_held(agents: Pool) -> None:
    held = await lease(agents, CAROL)
    await ask(agents, output_box_id=held.output_box_id)
    assert await agents.run(lambda conn: dispatch_next(conn, [(PROJECT, ALICE)])) == []
    assert (await head(agents))["turn_epoch"] == 0


async def test_a_claim_starts_a_leased_turn_once(agents: Pool) -> None:
    asked = await ask(agents)
    [claimed] = await claim(agents, ALICE)
    assert (claimed.verdict, claimed.agent_turn_id, claimed.turn_epoch) == ("start", asked.reply.agent_turn_id, 1)
    turn = claimed.turn()
    assert (turn.output_box_id, turn.context_box_id) == (asked.reply.output_box_id, asked.reply.context_box_id)
    assert turn.trace_id == asked.reply.trace_id
    assert await claim(agents, ALICE) == []
    assert await value(agents, "SELECT status FROM state.agent_inbox") == "processing"


async def test_one_claim_serves_many_agents_and_only_served_targets(agents: Pool) -> None:
    await add_agents(agents, *(many := [AgentId(f"a{n}") for n in range(20)]))
    await add_agents(agents, other := AgentId("other"), worker_target="sandbox")
    for agent in (*many, other):
        await ask(agents, agent)
    before = agents.round_trips
    claimed = await claim(agents, *many, other, other, many[0])
    assert agents.round_trips == before + 1
    assert sorted(row.agent_id for row in claimed) == sorted(many)
    assert await claim(agents, *many, other) == []
    [theirs] = await claim(agents, other, targets=("sandbox", "elsewhere"))
    assert theirs.worker_target == "sandbox"


async def test_a_queued_turn_is_not_claimed(agents: Pool) -> None:
    await lease(agents)
    await ask(agents)
    assert await claim(agents, ALICE) == []


@pytest.mark.parametrize(
    ("change", "verdict", "last_error"),
    [
        ("agent_turn_id = 'another'", "error", "protocol_violation"),
        ("turn_epoch = 7", "skipped", "stale_turn"),
        ("agent_turn_id = NULL", "error", "protocol_violation"),
        ("turn_epoch = 0", "error", "protocol_violation"),
        ("message_type = 'nonsense'", "error", "protocol_violation"),
    ],
)
async def test_a_claim_settles_a_row_that_needs_no_workflow(
    pool: Pool, change: str, verdict: str, last_error: str
) -> None:
    await add_agents(pool, ALICE)
    await ask(pool)
    await rows(pool, f"UPDATE state.agent_inbox SET {change}")  # noqa: S608 -- a constant of this test
    [claimed] = await claim(pool, ALICE)
    assert claimed.verdict == verdict
    [row] = await rows(pool, "SELECT * FROM state.agent_inbox")
    assert (row["status"], row["last_error"]) == (verdict, last_error)
    assert row["archived_at"] is not None


async def give_back(pool: Pool, claimed: Claim, reason: DeferReason, delay: float) -> int:
    """release_claims."""
    return await pool.run(lambda conn: release_claims(conn, [claimed.inbox_id], reason, delay_seconds=delay))


async def why(pool: Pool) -> tuple[str, str | None, int, float]:
    """Status, reason and tries of the only row, and in how many seconds it was due as that was written."""
    [row] = await rows(
        pool,
        "SELECT *, extract(epoch FROM next_retry_at - now())::float8 AS due FROM state.agent_inbox",
    )
    return row["status"], row["defer_reason"], row["retry_count"], round(row["due"])


async def test_a_claim_that_is_given_back_says_why_and_is_due_after_a_delay_that_doubles_twice(agents: Pool) -> None:
    await ask(agents)
    away, ended = DeferReason.ENGINE_UNREACHABLE, DeferReason.WORKFLOW_ENDED
    [claimed] = await claim(agents, ALICE)
    for tries, delay in ((1, 60), (2, 120), (3, 240), (4, 240)):
        assert await give_back(agents, claimed, away, 60) == 1
        assert await why(agents) == ("deferred", away, tries, delay)
        assert await claim(agents, ALICE) == []
        await age(agents)
        [again] = await claim(agents, ALICE)
        assert again == claimed
    assert await give_back(agents, claimed, ended, 60) == 1
    assert await why(agents) == ("deferred", ended, 1, 60), "tries are counted for one reason"
    await age(agents)
    [again] = await claim(agents, ALICE)
    await begin(agents, again.turn())
    assert await give_back(agents, claimed, away, 0) == 0


async def test_claims_that_nobody_finished_are_released(agents: Pool) -> None:
    await lease(agents)
    assert await agents.run(lambda c: sweep.release_stale_claims(c, [TARGET], older_seconds=300, row_limit=9)) == []
    await age(agents)
    assert await agents.run(lambda c: sweep.release_stale_claims(c, ["x"], older_seconds=300, row_limit=9)) == []
    found = await agents.run(lambda c: sweep.release_stale_claims(c, [TARGET], older_seconds=300, row_limit=9))
    assert found == [(PROJECT, ALICE)]
    assert (await why(agents))[:3] == ("deferred", DeferReason.CLAIM_LOST, 1)
    await play(agents)


async def test_agents_whose_rows_nobody_took_are_listed(agents: Pool) -> None:
    await ask(agents)
    await ask(agents)
    assert await agents.run(lambda c: sweep.list_due_agents(c, [TARGET], older_seconds=5, row_limit=9)) == []
    await age(agents)
    assert await agents.run(lambda c: sweep.list_due_agents(c, ["x"], older_seconds=5, row_limit=9)) == []
    due = await agents.run(lambda c: sweep.list_due_agents(c, [TARGET], older_seconds=5, row_limit=9))
    [row] = due
    assert (row.project_id, row.agent_id, row.is_deferred, round(row.due_seconds)) == (PROJECT, ALICE, False, 3600)
    await start(agents)
    assert await agents.run(lambda c: sweep.list_due_agents(c, [TARGET], older_seconds=5, row_limit=9)) == []


async def test_a_leased_turn_that_nobody_begins_is_rung_again(agents: Pool) -> None:
    turn = await lease(agents)
    running = await lease(agents, BOB)
    await begin(agents, running)
    assert await agents.run(lambda c: sweep.retry_dispatched(c, [TARGET], older_seconds=10, row_limit=9)) == []
    await age(agents)
    assert await agents.run(lambda c: sweep.retry_dispatched(c, ["x"], older_seconds=10, row_limit=9)) == []
    found = await agents.run(lambda c: sweep.retry_dispatched(c, [TARGET], older_seconds=10, row_limit=9))
    assert found == [(PROJECT, ALICE)]
    assert await agents.run(lambda c: sweep.retry_dispatched(c, [TARGET], older_seconds=10, row_limit=9)) == []
    reason = (
        "SELECT defer_reason FROM state.agent_inbox WHERE inbox_id = $1 AND status = 'deferred' AND retry_count = 1"
    )
    assert await value(agents, reason, turn.inbox_id) == DeferReason.NOT_BEGUN
    assert await start(agents) == turn


STRAY = (
    "INSERT INTO state.agent_inbox (inbox_id, project_id, agent_id, message_type, correlation_id, agent_turn_id,"
    " turn_epoch, status, payload, context_headers, created_at) VALUES ($1, 'p1', $2, $3, $1, $1, 1, $4,"
    " jsonb_build_object('profile_box_id', $5::text, 'context_box_id', $5, 'output_box_id', $5),"
    " '{\"CG-Sender\": \"mallory\"}', now() - interval '1 hour')"
)


async def stray(pool: Pool, name: str, agent: str, kind: str = "turn", status: str = "pending") -> None:
    """A row that some writer made by itself."""
    await rows(pool, STRAY, name, agent, kind, status, new_box_id())


async def end_orphans(pool: Pool, row_limit: int = 9) -> list[str]:
    """Rule 'orphans'."""
    found = await pool.run(lambda c: sweep.end_orphans(c, older_seconds=5, row_limit=row_limit))
    return sorted(row.inbox_id for row in found)


async def test_rows_for_agents_that_no_roster_has_end_as_errors_with_a_rejection(agents: Pool) -> None:
    turn = await lease(agents)
    for kind, status in (("turn", "pending"), ("turn", "queued"), ("tool_result", "pending"), ("stop", "deferred")):
        await stray(agents, f"{kind}-{status}", "nobody", kind, status)
    await rows(agents, "UPDATE state.agent_inbox SET created_at = now() WHERE inbox_id = 'stop-deferred'")
    assert len(await end_orphans(agents, row_limit=1)) == 1
    await end_orphans(agents)
    ended = await rows(agents, "SELECT * FROM state.agent_inbox WHERE agent_id = 'nobody' ORDER BY inbox_id")
    assert [(row["status"], row["last_error"]) for row in ended] == [
        ("deferred", None),  # it is younger than the rule's age
        *(("error", "unknown_agent"),) * 3,
    ]
    told = await rows(agents, "SELECT source, error_code, ids ->> 'inbox_id' AS row FROM state.rejections ORDER BY 3")
    assert [tuple(row.values()) for row in told] == [
        ("sql:mallory", "unknown_agent", name) for name in ("tool_result-pending", "turn-pending", "turn-queued")
    ]
    assert await end_orphans(agents) == []
    await begin(agents, turn)
    await finish(agents, turn)
    await rows(agents, "DELETE FROM state.agent_inbox WHERE agent_id = 'nobody'")


@pytest.mark.parametrize("kind", ["turn", "ui_action", "stop"])
async def test_a_due_row_of_a_turn_that_nobody_enqueued_is_an_error_of_its_claim(agents: Pool, kind: str) -> None:
    turn = await lease(agents)
    await stray(agents, "made-up", ALICE, kind)
    verdicts = {each.inbox_id: each.verdict for each in await claim(agents, ALICE)}
    assert verdicts == {"made-up": "error"}, "the turn in hand was claimed before"
    assert await end_orphans(agents) == []
    await begin(agents, turn)
    await finish(agents, turn)
    await rows(agents, "DELETE FROM state.agent_inbox WHERE inbox_id = 'made-up'")


async def test_idle_agents_with_turns_that_could_run_are_listed(agents: Pool) -> None:
    held = await lease(agents, CAROL)
    for agent in (ALICE, BOB):
        await ask(agents, agent, output_box_id=held.output_box_id)
    assert await agents.run(lambda c: sweep.list_stranded(c, [TARGET], row_limit=9)) == []
    await begin(agents, held)
    await finish(agents, held)
    assert await agents.run(lambda c: sweep.list_stranded(c, ["x"], row_limit=9)) == []
    found = await agents.run(lambda c: sweep.list_stranded(c, [TARGET], row_limit=9))
    assert sorted(found) == [(PROJECT, ALICE), (PROJECT, BOB)]
    assert len(await agents.run(lambda c: sweep.list_stranded(c, [TARGET], row_limit=1))) == 1
    while found := await agents.run(lambda c: sweep.list_stranded(c, [TARGET], row_limit=9)):
        [leased] = await agents.run(lambda c: dispatch_next(c, found))
        await play(agents, leased.agent_id)
    assert await value(agents, "SELECT count(*) FROM state.turn_outcomes") == 3


async def test_outcomes_are_listed_until_they_are_announced(agents: Pool) -> None:
    turn = await lease(agents, correlation_id="c")
    await begin(agents, turn)
    ended = await finish(agents, turn)
    fenced = await lease(agents, BOB)
    await fence(agents, fenced, TurnStatus.FAILED, "timeout_reaped_by_watchdog", "no sign of life")
    assert await agents.run(lambda c: sweep.list_unannounced(c, [TARGET], older_seconds=5, row_limit=9)) == []
    await age(agents)
    assert await agents.run(lambda c: sweep.list_unannounced(c, ["x"], older_seconds=5, row_limit=9)) == []
    first, second = await agents.run(lambda c: sweep.list_unannounced(c, [TARGET], older_seconds=5, row_limit=9))
    assert (first.agent_turn_id, first.deliverable_card_id) == (turn.agent_turn_id, ended.deliverable_card_id)
    assert (second.status, second.error_code) == ("failed", "timeout_reaped_by_watchdog")
    [event] = first.messages("test")
    assert event.headers["Nats-Msg-Id"] == f"task-{turn.agent_turn_id}"
    assert event.headers["traceparent"].split("-")[1] == turn.trace_id
    await agents.run(lambda c: mark_announced(c, [turn.agent_turn_id]))
    [left] = await agents.run(lambda c: sweep.list_unannounced(c, [TARGET], older_seconds=5, row_limit=9))
    assert left.agent_turn_id == fenced.agent_turn_id
    [row] = await rows(agents, "SELECT announced_at FROM state.turn_outcomes WHERE announced_at IS NOT NULL")
    await agents.run(lambda c: mark_announced(c, [turn.agent_turn_id, fenced.agent_turn_id]))
    assert row in await rows(agents, "SELECT announced_at FROM state.turn_outcomes")
    assert await agents.run(lambda c: sweep.list_unannounced(c, [TARGET], older_seconds=5, row_limit=9)) == []


async def test_what_was_refused_and_who_serves_is_recorded(agents: Pool) -> None:
    await agents.run(lambda c: sweep.reject(c, PROJECT, "s" * 300, "bad_request", "e" * 900, {"agent_id": ALICE}))
    [rejection] = await rows(agents, "SELECT * FROM state.rejections")
    assert (len(rejection["source"]), len(rejection["error"]), rejection["error_code"]) == (200, 500, "bad_request")
    await agents.run(lambda c: sweep.touch_worker(c, "w1", [TARGET, "sandbox", TARGET]))
    [before] = await rows(agents, "SELECT last_seen_at FROM state.workers WHERE worker_target = 'sandbox'")
    await agents.run(lambda c: sweep.touch_worker(c, "w1", ["sandbox"]))
    [after] = await rows(agents, "SELECT last_seen_at FROM state.workers WHERE worker_target = 'sandbox'")
    assert after["last_seen_at"] > before["last_seen_at"]
    assert await value(agents, "SELECT count(*) FROM state.workers") == 2


async def test_a_stale_claim_cannot_be_begun(agents: Pool) -> None:
    turn = await lease(agents)
    await fence(agents, turn, TurnStatus.TIMEOUT, "dispatch_timeout", "nobody came")
    with pytest.raises(StaleTurn):
        await begin(agents, turn)
    assert await claim(agents, ALICE) == []
