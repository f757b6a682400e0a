"""Which rows a claim takes, in which order (protocol §6, claim); and what a step hydrates, in which order (§7.2)."""

import asyncio
from datetime import timedelta
from typing import Any

from tests.support.ledger.agents import ALICE, BOB, PROJECT, ask, begin, claim, commit, lease, play, profile, rows
from tests.support.ledger.calls import sleeper, told
from tests.support.ledger.steers import commit_asked, say
from tests.support.waiting import in_flight
from turnstile.ledger.pool import Pool
from turnstile.ledger.queries import Connection, query
from turnstile.ledger.roster import put_profile
from turnstile.ledger.turns.cards import BoxCache
from turnstile.ledger.turns.steps import gate
from turnstile.schema.ids import InboxId
from turnstile.schema.turns import TurnRef


async def at(pool: Pool, inbox_id: InboxId, due: float, created: float) -> None:
    """The row became due, and was made, so many seconds ago."""
    await rows(
        pool,
        "UPDATE state.agent_inbox SET next_retry_at = now() - $2::interval, created_at = now() - $3::interval"
        " WHERE inbox_id = $1",
        *(inbox_id, timedelta(seconds=due), timedelta(seconds=created)),
    )


async def three_reports(pool: Pool) -> tuple[InboxId, InboxId, InboxId]:
    """Reports of a suspended turn: first the one that is due longest; of the other two, due at once, the older one."""
    await sleeper(pool, "a", "b", "c")
    last, first, second = [await told(pool, call) for call in ("a", "b", "c")]
    await at(pool, first, due=30, created=10)
    await at(pool, second, due=20, created=40)
    await at(pool, last, due=20, created=30)
    return first, second, last


async def test_due_rows_are_taken_by_the_time_when_they_became_due_then_by_age(agents: Pool) -> None:
    expected = await three_reports(agents)
    taken = [row.inbox_id for _ in expected for row in await claim(agents, ALICE, row_limit=1)]
    assert taken == list(expected)


async def test_one_claim_answers_in_the_same_order(agents: Pool) -> None:
    expected = await three_reports(agents)
    assert [row.inbox_id for row in await claim(agents, ALICE)] == list(expected)


async def test_a_row_that_is_not_due_yet_is_not_taken(agents: Pool) -> None:
    first, second, last = await three_reports(agents)
    await at(agents, second, due=-60, created=40)
    await rows(agents, "UPDATE state.agent_inbox SET status = 'deferred' WHERE inbox_id = $1", last)
    assert [row.inbox_id for row in await claim(agents, ALICE)] == [first, last]


async def test_a_row_that_another_claim_has_locked_is_skipped(agents: Pool) -> None:
    first, second, last = await three_reports(agents)

    async def locks(conn: Connection) -> Any:
        return await conn.fetch("SELECT FROM state.agent_inbox WHERE inbox_id = $1 FOR NO KEY UPDATE", first)

    async with in_flight(agents, locks), asyncio.timeout(25):
        assert [row.inbox_id for row in await claim(agents, ALICE)] == [second, last]


async def read(pool: Pool, turn: TurnRef, step: int) -> list[tuple[int, str | None]]:
    """The rows of begin_step, in order: the part, and the card's type."""
    names = ("profile", "context", "output")
    nothing = {f"known_{name}": 0 for name in names} | {f"{name}_version": "" for name in names}
    nothing["output_box_id"] = turn.output_box_id
    found = await pool.run(lambda conn: query("begin_step").many(conn, **gate(turn), step=step, **nothing))
    types = {
        r["card_id"]: r["type"] for r in await rows(pool, "SELECT card_id, metadata ->> 'type' AS type FROM cards")
    }
    return [(row["part"], types.get(row["card_id"])) for row in found]


async def test_a_step_reads_its_head_and_tools_then_the_profile_the_context_and_the_output_box(agents: Pool) -> None:
    """The roster and the profile's row were read by the enqueue, which pinned the profile's box (protocol §10)."""
    turn = await lease(agents)
    await begin(agents, turn, cache=BoxCache(0))
    await commit(agents, turn)
    expected = [(0, None), (1, "sys.profile"), (2, "task.instruction"), (3, "agent.thought")]
    assert await read(agents, turn, 2) == expected


async def test_a_roster_that_changes_after_the_enqueue_changes_nothing_of_the_turn(agents: Pool) -> None:
    turn = await lease(agents)
    before = (await begin(agents, turn)).profile
    await put_profile(agents, PROJECT, profile(worker_target="elsewhere"))
    assert (await begin(agents, turn)).profile == before


async def cards_of(pool: Pool, box: str) -> list[str]:
    """The cards of a box, in order."""
    found = await rows(pool, "SELECT card_id FROM box_cards WHERE box_id = $1::text::uuid ORDER BY position", box)
    return [row["card_id"] for row in found]


async def test_a_step_reads_the_cards_of_its_turns_three_boxes_and_its_own_steers_alone(agents: Pool) -> None:
    """Beside it are another agent's turn, which was steered, and boxes and conversations of its own agent's past."""
    other = await lease(agents, BOB, conversation_id="theirs")
    await say(agents, other, "to Bob")
    await commit_asked(agents, other, await begin(agents, other))
    for conversation in ("another", None):
        await ask(agents, instruction="long ago", conversation_id=conversation)
        await play(agents)
    turn = await lease(agents, instruction="now", conversation_id="this")
    first = await begin(agents, turn)
    await commit(agents, turn)
    said = await say(agents, turn, "to Alice")
    begun = await begin(agents, turn, 2)
    for part, box in ((begun.profile, turn.profile_box_id), (begun.context, turn.context_box_id)):
        assert [card.card_id for card in part] == await cards_of(agents, box) != []
    assert [*(card.card_id for card in begun.output), said] == await cards_of(agents, turn.output_box_id)
    assert [card.card_id for card in begun.steers] == [said]
    assert first.steers == ()
