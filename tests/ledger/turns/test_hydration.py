"""What a step reads of its boxes: nothing expired or deleted, and the context box as of the first step (§7.2)."""

from dataclasses import replace

import pytest

from tests.support.ledger.agents import BOB, PROJECT, begin, commit, lease, middle_record, rows
from tests.support.ledger.calls import result_card, sleeper, tell, told, write_card
from turnstile.ledger.pool import Pool
from turnstile.ledger.turns.cards import BoxCache, box_cards, get_card
from turnstile.ledger.turns.steps import commit_step
from turnstile.ledger.turns.waiting import apply_reports
from turnstile.schema.cards import CardType
from turnstile.schema.errors import Refused
from turnstile.schema.ids import CardId, turn_card_id
from turnstile.schema.step_metadata import ContinueMetadata

GONE = ["expires_at = now()", "deleted_at = now()", "expires_at = now() - interval '1 year'"]
caches = pytest.mark.parametrize("known", [0, 1_000_000], ids=["unknown", "cached"])


async def change(pool: Pool, card: CardId, what: str) -> None:
    """Change when a card expires, as its store does."""
    await rows(pool, f"UPDATE cards SET {what} WHERE card_id = $1", card)  # noqa: S608 -- words of tests


@caches
@pytest.mark.parametrize("how", GONE)
async def test_a_card_that_expires_or_is_deleted_is_read_no_more(agents: Pool, how: str, known: int) -> None:
    turn, cache = await lease(agents, result_fields=[{"name": "answer"}]), BoxCache(known)
    first = await begin(agents, turn, cache=cache)
    assert [card.type for card in first.context] == [CardType.INSTRUCTION, CardType.RESULT_FIELDS]
    await commit(agents, turn)
    fields = turn_card_id(turn.agent_turn_id, "fields")
    await change(agents, fields, how)
    second = await begin(agents, turn, 2, cache)
    assert [card.type for card in second.context] == [CardType.INSTRUCTION]
    assert (len(second.profile), len(second.output)) == (1, 1)
    assert await agents.run(lambda conn: get_card(conn, PROJECT, fields)) is None
    left = await agents.run(lambda conn: box_cards(conn, PROJECT, turn.context_box_id))
    assert [card.type for card in left or ()] == [CardType.INSTRUCTION]
    await change(agents, fields, "expires_at = NULL, deleted_at = NULL")
    assert (await begin(agents, turn, 2, cache)).context == first.context


@caches
async def test_a_card_expires_at_its_time_though_nobody_writes_then(agents: Pool, known: int) -> None:
    turn, cache = await lease(agents), BoxCache(known)
    instruction = turn_card_id(turn.agent_turn_id, "instruction")
    await change(agents, instruction, "expires_at = now() + interval '0.3 s'")
    assert len((await begin(agents, turn, cache=cache)).context) == 1
    await rows(agents, "SELECT pg_sleep(0.35)")
    assert (await begin(agents, turn, cache=cache)).context == ()


@caches
async def test_the_context_box_is_read_as_of_the_first_step(agents: Pool, known: int) -> None:
    writer = await lease(agents, BOB)
    await begin(agents, writer)
    await commit(agents, writer)
    cache = BoxCache(known)
    turn = await lease(agents, instruction=None, context_box_id=writer.output_box_id)
    first = await begin(agents, turn, cache=cache)
    assert (len(first.context), first.context_position) == (1, 1)
    pinned = ContinueMetadata(turn_config={"context_position": first.context_position})
    await agents.run(lambda conn: commit_step(conn, turn, replace(middle_record(turn, 1), metadata=pinned)))
    await begin(agents, writer, 2, cache)
    await commit(agents, writer, 2)
    await begin(agents, writer, 3, cache)  # the cache knows both cards now
    second = await begin(agents, turn, 2, cache)
    assert (second.context, second.context_position) == (first.context, 1)
    assert len((await begin(agents, writer, 3, cache)).output) == 2


async def test_a_turn_of_the_version_before_reads_its_whole_context(agents: Pool) -> None:
    writer = await lease(agents, BOB)
    await begin(agents, writer)
    await commit(agents, writer)
    turn = await lease(agents, instruction=None, context_box_id=writer.output_box_id)
    await begin(agents, turn)
    await commit(agents, turn)
    await begin(agents, writer, 2)
    await commit(agents, writer, 2)
    assert len((await begin(agents, turn, 2)).context) == 2


@pytest.mark.parametrize("how", GONE)
async def test_a_result_that_has_expired_is_not_applied(agents: Pool, how: str) -> None:
    turn = await sleeper(agents, "c1")
    reported = await told(agents, "c1")
    await change(agents, CardId("c1-result"), how)
    done = await agents.run(lambda conn: apply_reports(conn, turn, [reported]))
    assert ([row.status for row in done.rows], done.applied, done.waiting_tools) == (["deferred"], 0, ["search"])


@pytest.mark.parametrize("how", GONE)
async def test_a_result_that_has_expired_is_an_unknown_card(agents: Pool, how: str) -> None:
    turn = await sleeper(agents, "c1")
    card = await write_card(agents, result_card(turn, "c1"))
    await change(agents, card, how)
    with pytest.raises(Refused) as refused:
        await tell(agents, "c1", tool_result_card_id=card)
    assert refused.value.code == "unknown_card"
