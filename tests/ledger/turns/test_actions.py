"""UI actions in the ledger: leased at once or not at all, and one turn however often they are asked for."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from tests.support.ledger.agents import (
    ALICE,
    BOB,
    PROJECT,
    act,
    add_agents,
    ask,
    command,
    drain,
    head,
    play,
    rows,
    send,
    start,
    value,
)
from tests.support.ledger.invariants import assert_invariants
from tests.support.waiting import overtaken
from turnstile.ledger.pool import Pool
from turnstile.ledger.turns.action_lookup import find_action
from turnstile.schema.errors import Refused
from turnstile.schema.wire.ui_actions import UiAction

ROWS = "SELECT count(*) FROM state.agent_inbox WHERE message_type = 'ui_action'"
CARDS = "SELECT count(*) FROM cards WHERE metadata ->> 'type' = 'task.instruction'"


@pytest.fixture
async def agents(pool: Pool) -> Pool:
    await add_agents(pool, ALICE, BOB)
    return pool


async def test_an_action_leases_its_idle_agent(agents: Pool) -> None:
    made = await act(agents, message_id="m-1")
    assert (made.reply.status, made.reply.inbox_status, made.reply.turn_epoch) == ("accepted", "pending", 1)
    assert made.lease is not None
    assert (await head(agents))["status"] == "dispatched"
    [row] = await rows(agents, "SELECT correlation_id, payload ->> 'ui_action' AS kept FROM state.agent_inbox")
    assert (row["correlation_id"], "m-1" in row["kept"], "it" in row["kept"]) == ("m-1", True, False)
    assert (await start(agents)).agent_turn_id == made.reply.agent_turn_id
    async with agents.connection() as conn:
        await assert_invariants(conn)


async def test_a_busy_agent_writes_nothing(agents: Pool) -> None:
    await ask(agents)
    before = await value(agents, CARDS)
    busy = await act(agents)
    assert (busy.reply.status, busy.reply.error_code, busy.lease) == ("busy", "agent_busy", None)
    assert (await value(agents, ROWS), await value(agents, CARDS)) == (0, before)
    await play(agents)
    assert (await act(agents)).reply.status == "accepted"


async def test_an_action_that_waited_for_an_enqueue_is_busy(agents: Pool) -> None:
    asked = command(ALICE)
    late = await overtaken(agents, lambda conn: send(conn, asked), act(agents))
    assert (late.reply.status, await value(agents, ROWS)) == ("busy", 0)


async def test_an_action_that_waited_for_a_blocked_turn_sees_it_in_the_queue(agents: Pool) -> None:
    """The agent is idle all the while: only the queue, which the late one had not seen, makes it busy."""
    await ask(agents)
    await play(agents)
    held = await ask(agents, BOB)
    asked = command(ALICE, output_box_id=held.reply.output_box_id)
    late = await overtaken(agents, lambda conn: send(conn, asked), act(agents))
    assert ((await head(agents))["status"], late.reply.status) == ("idle", "busy")


async def test_a_repeat_that_waited_for_the_first_finds_its_turn(agents: Pool) -> None:
    made = await asyncio.gather(*(act(agents) for _ in range(8)))
    assert {each.reply.status for each in made} == {"accepted"}
    assert len({each.reply.agent_turn_id for each in made}) == 1
    assert [each.reply.duplicate for each in made].count(False) == 1
    assert await value(agents, ROWS) == 1


@pytest.mark.parametrize(
    "other", [{"args": {"q": "that"}}, {"tool_name": "find"}, {"parent_step_id": "s"}, {"message_id": "a-1"}]
)
async def test_other_content_under_the_same_correlation_is_a_conflict(agents: Pool, other: dict[str, Any]) -> None:
    await act(agents)
    with pytest.raises(Refused, match="used before"):
        await act(agents, **other)
    with pytest.raises(Refused, match="used before"):
        await ask(agents, BOB, correlation_id="a-1")


async def test_a_turn_at_the_same_instant_is_a_conflict_too(agents: Pool) -> None:
    """Of another agent, whose head no lock of the action's waits for; in either order."""
    asked = command(BOB, correlation_id="a-1")
    with pytest.raises(Refused, match="used before"):
        await overtaken(agents, lambda conn: send(conn, asked), act(agents))
    await drain(agents)
    given = UiAction(action_id="a-2", agent_id=ALICE, tool_name="search", args={})
    pressed = replace(command(ALICE, instruction=None, correlation_id="a-2"), action=given)
    with pytest.raises(Refused, match="used before"):
        await overtaken(agents, lambda conn: send(conn, pressed), ask(agents, BOB, correlation_id="a-2"))
    assert await value(agents, "SELECT count(DISTINCT correlation_id) = count(*) FROM state.agent_inbox")


async def test_what_strangers_write_is_under_their_own_rule(agents: Pool) -> None:
    """A v1r4 writer may use one correlation for a row of either type."""
    columns = "(inbox_id, project_id, agent_id, message_type, correlation_id, agent_turn_id)"
    for kind in ("turn", "ui_action"):
        await rows(
            agents,
            f"INSERT INTO state.agent_inbox {columns} VALUES ($3, $1, $2, $3, 'c', $3)",  # noqa: S608 -- above
            *(PROJECT, ALICE, kind),
        )
    assert await value(agents, ROWS) == 1


async def test_metadata_and_the_order_of_arguments_are_no_other_content(agents: Pool) -> None:
    await act(agents, args={"a": 1, "b": 2}, metadata={"client_ts": 1})
    again = await act(agents, args={"b": 2, "a": 1}, metadata={"client_ts": 2})
    assert again.reply.duplicate


async def test_what_a_stranger_wrote_is_found_and_conflicts(agents: Pool) -> None:
    await rows(
        agents,
        "INSERT INTO state.agent_inbox (inbox_id, project_id, agent_id, message_type, correlation_id, agent_turn_id)"
        " VALUES ('i', $1, $2, 'ui_action', 'a-1', 't')",
        *(PROJECT, ALICE),
    )
    action = UiAction(action_id="a-1", agent_id=ALICE, tool_name="search", args={})
    tool, turn = await agents.run(lambda conn: find_action(conn, PROJECT, action))
    assert tool is None
    assert turn is not None
    assert (turn.agent_turn_id, turn.request_digest, turn.final_ack(action)) == ("t", None, None)
    with pytest.raises(Refused, match="used before"):
        await act(agents)
