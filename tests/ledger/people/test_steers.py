"""What somebody says to a turn while it runs is asked with once, in order, or skipped (protocol §6, steer)."""

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.support.ledger.agents import (
    ALICE,
    TARGET,
    ask,
    begin,
    box,
    claim,
    command,
    finish,
    head,
    lease,
    rows,
    send,
    start,
    stop,
)
from tests.support.ledger.calls import end, settle, sleeper, told
from tests.support.ledger.steers import commit_asked, finish_asked, say, steers
from turnstile.ledger.operations.sweep import release_stale_claims
from turnstile.ledger.pool import Pool
from turnstile.schema.access import Caller
from turnstile.schema.errors import Limited, Refused, SteerWaits
from turnstile.schema.ids import AgentTurnId, CardId
from turnstile.schema.states import SteerPriority
from turnstile.schema.wire import headers
from turnstile.schema.wire.inbox import SteerPayload
from turnstile.schema.wire.limits import Admission


async def test_the_next_step_asks_with_a_steer_and_its_commit_applies_it(agents: Pool) -> None:
    turn = await lease(agents)
    await begin(agents, turn)
    first, second = await say(agents, turn, "use Python"), await say(agents, turn, "and be brief")
    assert await steers(agents, turn) == {first: ("waiting", None), second: ("waiting", None)}
    await commit_asked(agents, turn, await begin(agents, turn))
    begun = await begin(agents, turn, 2)
    step = f"{turn.agent_turn_id}-s2"
    assert [steer.card_id for steer in begun.steers] == [first, second]
    assert begun.steers[0].content == {"__type__": "TextContent", "text": "use Python"}
    assert await steers(agents, turn) == {first: ("taken", step), second: ("taken", step)}
    await finish_asked(agents, turn, begun)
    assert await steers(agents, turn) == {first: ("applied", step), second: ("applied", step)}
    kinds = [(place.type, place.card_id) for place in await box(agents, turn.output_box_id)]
    assert [kind for kind in kinds if kind[0] == "task.steer"] == [("task.steer", first), ("task.steer", second)]


async def test_each_attempt_of_a_step_asks_with_the_same(agents: Pool) -> None:
    turn = await lease(agents)
    first = await say(agents, turn, "one")
    begun = await begin(agents, turn)
    second = await say(agents, turn, "two")
    again = await begin(agents, turn)
    assert [steer.card_id for steer in begun.steers] == [steer.card_id for steer in again.steers] == [first]
    await commit_asked(agents, turn, begun)
    assert [steer.card_id for steer in (await begin(agents, turn, 2)).steers] == [second]


async def test_a_turn_that_would_end_takes_another_step(agents: Pool) -> None:
    turn = await lease(agents)
    begun = await begin(agents, turn)
    said = await say(agents, turn, "wait", priority="when_idle")
    await commit_asked(agents, turn, begun)
    begun = await begin(agents, turn, 2)
    assert begun.steers == ()
    with pytest.raises(SteerWaits):
        await finish_asked(agents, turn, begun)
    await commit_asked(agents, turn, begun, steered=True)
    begun = await begin(agents, turn, 3)
    assert [steer.card_id for steer in begun.steers] == [said]
    assert (await finish_asked(agents, turn, begun)).skipped_steers == []


async def test_a_turn_that_ends_regardless_skips_what_waits_and_says_so(agents: Pool) -> None:
    turn = await lease(agents)
    taken = await say(agents, turn, "taken")
    await begin(agents, turn)
    waiting = await say(agents, turn, "waiting")
    done = await end(agents, turn)
    assert done.skipped_steers == [taken, waiting]
    assert {steer[0] for steer in (await steers(agents, turn)).values()} == {"skipped"}
    assert [place.card_id for place in await box(agents, turn.output_box_id) if place.type == "task.steer"] == [taken]
    assert [row["status"] for row in await steer_rows(agents)] == ["skipped", "skipped"]
    assert (await end(agents, turn)).skipped_steers == [taken, waiting]


STEER_ROWS = "SELECT * FROM state.agent_inbox WHERE message_type = 'steer' ORDER BY created_at"


async def steer_rows(pool: Pool) -> list[Any]:
    """The inbox rows of steers, oldest first."""
    return await rows(pool, STEER_ROWS)


async def test_a_steer_leaves_a_row_that_no_claim_takes_and_that_its_step_consumes(agents: Pool) -> None:
    turn = await lease(agents)
    said = await say(agents, turn, "listen")
    [row] = await steer_rows(agents)
    assert (row["inbox_id"], row["correlation_id"], row["agent_turn_id"]) == (said, said, turn.agent_turn_id)
    assert (row["status"], row["enqueue_mode"], row["turn_epoch"]) == ("pending", "report", turn.turn_epoch)
    assert SteerPayload.model_validate_json(row["payload"]) == SteerPayload(
        steer_card_id=CardId(said), priority=SteerPriority.ASAP
    )
    headers_of = json.loads(row["context_headers"])
    assert (headers_of["CG-Sender"], headers.trace_id(headers_of["traceparent"])) == ("root", turn.trace_id)
    [edge] = await rows(agents, "SELECT * FROM state.execution_edges WHERE correlation_id = $1", said)
    assert (edge["primitive"], edge["edge_phase"], edge["target_agent_turn_id"]) == (
        *("report", "response", turn.agent_turn_id),
    )
    assert said not in {each.inbox_id for each in await claim(agents, ALICE)}
    begun = await begin(agents, turn)
    [row] = await steer_rows(agents)
    assert (row["status"], row["processed_at"] is not None) == ("processing", True)
    assert await agents.run(lambda c: release_stale_claims(c, [TARGET], older_seconds=-9, row_limit=9)) == []
    await finish_asked(agents, turn, begun)
    [row] = await steer_rows(agents)
    assert (row["status"], row["last_error"], row["archived_at"] is not None) == ("consumed", None, True)


async def test_a_steers_card_is_in_the_box_before_a_model_reads_it_and_once_for_every_attempt(agents: Pool) -> None:
    turn = await lease(agents)
    first, second = [await say(agents, turn, text) for text in ("one", "two")]
    begun = await begin(agents, turn)
    before = [place.card_id for place in await box(agents, turn.output_box_id)]
    assert before[-2:] == [first, second]
    again = await begin(agents, turn)
    assert [steer.card_id for steer in (*again.output, *again.steers)] == [
        steer.card_id for steer in (*begun.output, *begun.steers)
    ]
    assert [place.card_id for place in await box(agents, turn.output_box_id)] == before
    await commit_asked(agents, turn, again)
    after = [place.card_id for place in await box(agents, turn.output_box_id)]
    assert (after[: len(before)], len(after)) == (before, len(before) + 1)
    begun = await begin(agents, turn, 2)
    assert [each.card_id for each in begun.output] == after
    await finish_asked(agents, turn, begun)


async def test_steers_that_wait_take_no_place_in_the_queue(agents: Pool) -> None:
    turn = await lease(agents)
    for number in range(3):
        await say(agents, turn, str(number))
    queued = await agents.run(lambda conn: send(conn, replace(command(), admission=Admission(max_queued_turns=1))))
    assert queued.reply.inbox_status == "queued"
    with pytest.raises(Limited, match="too many turns wait"):
        await agents.run(lambda conn: send(conn, replace(command(), admission=Admission(max_queued_turns=1))))
    await end(agents, turn)


async def test_a_sleeping_turn_takes_a_steer_after_its_results_and_is_not_woken(agents: Pool) -> None:
    turn = await sleeper(agents, "a")
    said = await say(agents, turn, "meanwhile")
    assert (await head(agents))["status"] == "suspended"
    await settle(agents, turn, await told(agents, "a"))
    begun = await begin(agents, turn, 2)
    assert [steer.card_id for steer in begun.steers] == [said]
    await finish_asked(agents, turn, begun)
    kinds = [place.type for place in await box(agents, turn.output_box_id)]
    assert kinds.index("tool.result") < kinds.index("task.steer")


async def test_a_queued_turn_is_steered_once_it_is_leased(agents: Pool) -> None:
    first = await lease(agents)
    queued = (await ask(agents)).reply.agent_turn_id
    assert queued is not None
    said = await say(agents, queued, "first of all")
    await begin(agents, first)
    await finish(agents, first)
    turn = await start(agents)
    assert [steer.card_id for steer in (await begin(agents, turn)).steers] == [said]


async def test_a_queued_turn_that_is_stopped_skips_its_steers(agents: Pool) -> None:
    await lease(agents)
    queued = await ask(agents)
    assert queued.reply.agent_turn_id is not None
    await say(agents, queued.reply.agent_turn_id, "first of all")
    stopped = await stop(agents, ALICE, queued)
    assert stopped is not None
    assert {steer[0] for steer in (await steers(agents, queued.reply.agent_turn_id)).values()} == {"skipped"}


async def test_a_repeat_is_the_same_steer_also_after_the_end(agents: Pool) -> None:
    turn = await lease(agents)
    first = await say(agents, turn, "once", correlation_id="c")
    assert await say(agents, turn, "once", correlation_id="c") == first
    with pytest.raises(Refused) as refused:
        await say(agents, turn, "twice", correlation_id="c")
    assert refused.value.code == "correlation_conflict"
    await end(agents, turn)
    assert await say(agents, turn, "once", correlation_id="c") == first
    assert len(await steers(agents, turn)) == 1


async def test_who_asked_for_a_turn_may_steer_it(agents: Pool) -> None:
    turn = await lease(agents, incoming={headers.SENDER: "token.1"})
    said = await say(agents, turn, "mine", caller=Caller("token.1"))
    with pytest.raises(Refused, match="somebody else"):
        await say(agents, turn, "not mine", caller=Caller("token.2"))
    [card] = await rows(agents, "SELECT metadata FROM cards WHERE card_id = $1", said)
    assert json.loads(card["metadata"])["author_id"] == "token.1"


async def test_each_refusal_has_its_code_and_changes_nothing(agents: Pool) -> None:
    turn = await lease(agents)
    before = await head(agents)
    stranger, unknown = Caller("mallory"), AgentTurnId("nobody")
    for code, refused_turn, caller in (
        ("not_yours", turn.agent_turn_id, stranger),
        ("unknown_turn", unknown, stranger),
        ("unknown_turn", unknown, Caller("root", operates=True)),
    ):
        with pytest.raises(Refused) as refused:
            await say(agents, refused_turn, "hello", caller=caller)
        assert refused.value.code == code
    assert await head(agents) == before
    await end(agents, turn)
    with pytest.raises(Refused) as refused:
        await say(agents, turn, "hello")
    assert refused.value.code == "already_final"
    assert await rows(agents, "SELECT FROM state.steers") == []
    assert await rows(agents, "SELECT FROM cards WHERE metadata ->> 'type' = 'task.steer'") == []
