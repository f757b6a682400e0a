"""Forks, built by the ledger's own functions."""

import json
from collections.abc import Sequence
from typing import Any

from tests.support.ledger.agents import PROJECT, begin, finish, rows, value
from turnstile.ledger.pool import Pool
from turnstile.ledger.trees.batches import (
    Batch,
    ChildTurn,
    Forked,
    ForkLimits,
    NewAgent,
    OwnBatch,
    ParentCall,
    Task,
    find_call,
    find_own_batch,
    fork,
)
from turnstile.ledger.turns.views import locate_turn
from turnstile.schema.cards import CardType, JsonContent, Role, TextContent, make_card
from turnstile.schema.ids import (
    AgentId,
    AgentTurnId,
    BoxId,
    InboxId,
    ProjectId,
    ToolCallId,
    new_box_id,
    turn_card_id,
    uuid7,
)
from turnstile.schema.turns import TurnRef

WORKER = NewAgent(worker_target="worker_generic")


async def parent(pool: Pool, call: str, project: ProjectId = PROJECT) -> ParentCall:
    """The call, by its id."""
    found = await pool.run(lambda conn: find_call(conn, project, ToolCallId(call)))
    assert found is not None
    return found


def child(call: ParentCall, index: int, agent: str | None = None, **more: Any) -> ChildTurn:
    """A task for a new agent, or for the one that is named; `more` are further fields."""
    turn = AgentTurnId(uuid7())
    cards = [
        make_card(
            turn_card_id(turn, "instruction"),
            CardType.INSTRUCTION,
            Role.USER,
            TextContent(text=f"task {index}"),
            author=call.agent_id,
            turn=turn,
        ),
        make_card(
            turn_card_id(turn, "parent"),
            CardType.PARENT_POINTER,
            Role.SYSTEM,
            JsonContent(data={"agent_turn_id": call.agent_turn_id}),
            author="system",
            turn=turn,
        ),
    ]
    given: dict[str, Any] = {"new_agent": WORKER if agent is None else None}
    return ChildTurn(
        task_index=index,
        agent_id=AgentId(agent or f"{call.origin.replace('/', '-')}-{index}"),
        profile_box_id=call.profile_box_id,
        agent_turn_id=turn,
        inbox_id=InboxId(uuid7()),
        new_context_box_id=BoxId(new_box_id()),
        new_output_box_id=BoxId(new_box_id()),
        cards=cards,
        **(given | more),
    )


async def forks(
    pool: Pool,
    call: str,
    count: int = 2,
    *,
    tasks: Sequence[Task] | None = None,
    limits: ForkLimits | None = None,
    **plan: Any,
) -> Forked:
    """A fork of a waiting call: of `count` new agents, or of these tasks."""
    given = await parent(pool, call)
    made = [child(given, index) for index in range(count)] if tasks is None else tasks
    named: dict[str, Any] = {"deadline_seconds": 900.0, **plan}
    return await fork(pool, given, Batch(**named), made, limits or ForkLimits())


async def asks(pool: Pool, call: str, key: str = "1", count: int = 1, **plan: Any) -> Forked:
    """What the tool of a waiting call asks for by a key: a batch of `count` new agents."""
    given = (await parent(pool, call)).under(key, "fork_join", {})
    named: dict[str, Any] = {"deadline_seconds": 900.0, **plan}
    return await fork(pool, given, Batch(**named), [child(given, index) for index in range(count)])


async def own_batch(pool: Pool, call: str, key: str = "1") -> OwnBatch:
    """The batch that a call's tool has by a key."""
    given = (await parent(pool, call)).under(key, "fork_join", {})
    found = await pool.run(lambda conn: find_own_batch(conn, given))
    assert found is not None
    return found


async def in_hand(pool: Pool, turn: AgentTurnId | None) -> TurnRef:
    """The reference to a leased turn."""
    assert turn is not None
    found = await pool.run(lambda conn: locate_turn(conn, PROJECT, turn))
    assert found is not None
    return found


async def succeed(pool: Pool, turn: AgentTurnId | None) -> TurnRef:
    """Play a leased turn from its begin to its end, in one step."""
    ref = await in_hand(pool, turn)
    await begin(pool, ref)
    await finish(pool, ref)
    return ref


async def batch_of_call(pool: Pool, call: str) -> dict[str, Any]:
    """The row of a call's batch."""
    [row] = await rows(pool, "SELECT * FROM state.pmo_batches WHERE parent_tool_call_id = $1", call)
    return row


async def task_states(pool: Pool, call: str) -> list[tuple[int, str, str | None]]:
    """Index, status and code of each task of the call's batch, in order."""
    found = await rows(
        pool,
        "SELECT t.task_index, t.status, t.error_code FROM state.pmo_batch_tasks t"
        " JOIN state.pmo_batches b USING (batch_id) WHERE b.parent_tool_call_id = $1 ORDER BY t.task_index",
        call,
    )
    return [(row["task_index"], row["status"], row["error_code"]) for row in found]


async def marked(pool: Pool) -> set[str]:
    """The turns that are marked and not over."""
    found = await rows(pool, "SELECT agent_turn_id FROM state.turn_nodes WHERE stopping_at IS NOT NULL AND NOT ended")
    return {row["agent_turn_id"] for row in found}


async def answer(pool: Pool, call: str) -> dict[str, Any]:
    """The result that a call was answered with."""
    return json.loads(await value(pool, "SELECT content FROM cards WHERE card_id = $1", f"{call}-result"))
