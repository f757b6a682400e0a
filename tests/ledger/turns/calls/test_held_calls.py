"""A call that something holds is not sent, answered or late; and the card that a call names is the one that counts."""

import pytest

from tests.support.ledger.agents import ALICE, TARGET, drain, head, rows, value
from tests.support.ledger.calls import end, pass_deadline, sleeper, tell, told
from turnstile.ledger.operations.sweep import retry_commands
from turnstile.ledger.pool import Pool
from turnstile.ledger.turns.waiting import describe_call, inject_timeouts
from turnstile.schema.errors import Refused
from turnstile.schema.ids import ProjectId, ToolCallId
from turnstile.schema.turns import TurnRef


async def held(pool: Pool, call: str = "k1") -> TurnRef:
    """A turn that waits for two calls, of which one is held."""
    turn = await sleeper(pool, "k1", "k2")
    await rows(pool, "UPDATE state.turn_waiting_tools SET held_by = 'i1' WHERE tool_call_id = $1", call)
    return turn


async def test_a_call_knows_its_card_and_its_deadline(agents: Pool) -> None:
    await sleeper(agents, "k1", wait_seconds=60)
    [call] = await rows(agents, "SELECT * FROM state.turn_waiting_tools")
    assert (call["call_card_id"], call["held_by"]) == ("k1-call", None)
    assert call["deadline"] == (await head(agents, ALICE))["resume_deadline"]


async def test_the_card_that_counts_is_described(agents: Pool) -> None:
    await sleeper(agents, "k1")
    await rows(
        agents,
        "INSERT INTO cards (card_id, tenant_id, content, tool_call_id, metadata)"
        " SELECT 'k1-edited', tenant_id, content, tool_call_id, metadata - 'agent_turn_id' FROM cards"
        " WHERE card_id = 'k1-call'",
    )
    await rows(agents, "UPDATE state.turn_waiting_tools SET call_card_id = 'k1-edited'")
    found = await agents.run(lambda conn: describe_call(conn, ProjectId("p1"), ToolCallId("k1")))
    assert found is not None
    assert found.tool_call_card_id == "k1-edited"


async def test_a_held_call_is_not_sent_not_answered_and_not_late(agents: Pool) -> None:
    turn = await held(agents)
    with pytest.raises(Refused) as refused:
        await tell(agents, "k1")
    assert refused.value.code == "not_sent"
    with pytest.raises(Refused, match="was not sent"):
        await agents.run(lambda conn: describe_call(conn, ProjectId("p1"), ToolCallId("k1")))
    sent = await agents.run(lambda conn: retry_commands(conn, [TARGET], older_seconds=0, row_limit=9))
    assert [each.tool_call_id for each in sent] == ["k2"]
    await pass_deadline(agents)
    late = await agents.run(lambda conn: inject_timeouts(conn, turn))
    assert [each.correlation_id for each in late] == ["k2"]
    assert (
        await value(agents, "SELECT wait_status FROM state.turn_waiting_tools WHERE tool_call_id = 'k1'") == "waiting"
    )


async def test_a_call_that_is_held_no_more_is_like_any_other(agents: Pool) -> None:
    await held(agents)
    await rows(agents, "UPDATE state.turn_waiting_tools SET held_by = NULL")
    await told(agents, "k1")
    await drain(agents)


async def test_a_turn_that_ends_drops_its_held_calls(agents: Pool) -> None:
    await end(agents, await held(agents))
    assert await rows(agents, "SELECT DISTINCT wait_status FROM state.turn_waiting_tools") == [
        {"wait_status": "dropped"}
    ]
