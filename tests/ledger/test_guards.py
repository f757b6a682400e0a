"""What the database refuses by itself, whoever writes (protocol §2), and what it fills in for strangers (§4)."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import asyncpg
import pytest

from tests.support.databases import Databases
from tests.support.ledger.agents import (
    ALICE,
    BOB,
    PROJECT,
    TARGET,
    add_agents,
    ask,
    begin,
    commit,
    finish,
    lease,
    rows,
    value,
)
from turnstile.ledger.pool import Pool
from turnstile.ledger.turns.lease import claim_inbox
from turnstile.schema.wire import headers

Refusal = asyncpg.RestrictViolationError


@pytest.fixture(scope="module")
async def busy(databases: Databases, migrated: str) -> AsyncIterator[Pool]:
    """Alice and Bob have a turn, and Alice's next one waits. For statements that are refused and change nothing."""
    name = await databases.lend(migrated)
    pool = Pool(databases.url(name))
    await add_agents(pool, ALICE, BOB)
    for agent in (ALICE, BOB, ALICE):
        await ask(pool, agent)
    yield pool
    await pool.close()
    await databases.take_back(name)


@pytest.mark.parametrize(
    "change",
    [
        "content = '{}'",
        "metadata = metadata || '{\"a\": 1}'",
        "tenant_id = 'p2'",
        "tool_calls = '[]'",
        "tool_call_id = 'c'",
        "created_at = now()",
        "card_id = card_id || '-x'",
    ],
)
async def test_a_card_does_not_change(busy: Pool, change: str) -> None:
    with pytest.raises(Refusal, match="immutable"):
        await rows(busy, f"UPDATE cards SET {change}")  # noqa: S608 -- a constant of this test


async def test_an_identical_update_and_an_expiry_pass(agents: Pool) -> None:
    await rows(agents, "UPDATE cards SET content = content, metadata = metadata, card_id = card_id")
    await rows(agents, "UPDATE cards SET ttl_seconds = 5, expires_at = now(), deleted_at = now()")
    await rows(agents, "UPDATE boxes SET updated_at = now()")
    await rows(agents, "UPDATE box_cards SET position = position")


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM cards",
        "DELETE FROM box_cards",
        "DELETE FROM boxes",
        "TRUNCATE cards, box_cards",
        "TRUNCATE boxes CASCADE",
        "UPDATE box_cards SET position = position + 1",
        "UPDATE boxes SET tenant_id = 'p2'",
        "UPDATE boxes SET made_by = pg_current_xact_id()",
    ],
)
async def test_boxes_and_cards_stay(busy: Pool, statement: str) -> None:
    with pytest.raises(Refusal, match="immutable"):
        await rows(busy, statement)


async def test_retention_deletes_if_it_says_so(pool: Pool) -> None:
    await add_agents(pool, ALICE)
    async with pool.connection() as conn, conn.transaction():
        await conn.execute("SET LOCAL turnstile.retention = 'on'")
        await conn.execute("DELETE FROM box_cards; DELETE FROM cards; DELETE FROM boxes")
    assert await value(pool, "SELECT count(*) FROM cards") == 0
    await add_agents(pool)
    with pytest.raises(Refusal):
        await rows(pool, "DELETE FROM box_cards")


async def append(pool: Pool, box_id: object) -> None:
    """What a stranger would do: an existing card at the end of a box."""
    await rows(
        pool,
        "INSERT INTO box_cards (box_id, position, card_id)"
        " SELECT $1::text::uuid, coalesce(max(position), 0) + 1, (SELECT min(card_id) FROM cards)"
        " FROM box_cards WHERE box_id = $1::text::uuid",
        str(box_id),
    )


async def test_a_card_enters_no_closed_box(agents: Pool) -> None:
    turn = await lease(agents)
    for closed in (turn.context_box_id, turn.profile_box_id):
        with pytest.raises(Refusal, match="closed"):
            await append(agents, closed)
    await begin(agents, turn)
    await finish(agents, turn)
    with pytest.raises(Refusal, match="closed"):
        await append(agents, turn.output_box_id)


async def test_a_card_enters_the_output_box_of_a_turn_in_hand(agents: Pool) -> None:
    turn = await lease(agents)
    await append(agents, turn.output_box_id)
    await begin(agents, turn)
    await append(agents, turn.output_box_id)
    await commit(agents, turn)  # the ledger's own cards come after what it did not know of
    await append(agents, turn.output_box_id)
    await finish(agents, turn, 2)


async def test_a_card_enters_a_box_in_the_transaction_that_made_it(agents: Pool) -> None:
    made = "019aa000-0000-7000-8000-000000000001"
    async with agents.connection() as conn, conn.transaction():
        await conn.fetch("INSERT INTO boxes (box_id, tenant_id) VALUES ($1::text::uuid, 'p1')", made)
        await conn.fetch("INSERT INTO box_cards SELECT $1::text::uuid, 1, min(card_id) FROM cards", made)
    with pytest.raises(Refusal, match="closed"):
        await append(agents, made)


@pytest.mark.parametrize(
    "change",
    [
        "output_box_id = (SELECT output_box_id FROM state.agent_state_head WHERE agent_id = 'bob')",
        "status = 'idle'",
        "active_agent_turn_id = NULL",
        "context_box_id = NULL",
        "status = 'asleep'",
        "waiting_tool_count = -1",
    ],
)
async def test_an_impossible_head_is_refused(busy: Pool, change: str) -> None:
    with pytest.raises(asyncpg.IntegrityConstraintViolationError):
        await rows(busy, f"UPDATE state.agent_state_head SET {change} WHERE agent_id = 'alice'")  # noqa: S608


@pytest.mark.parametrize(
    "change",
    [
        "payload = payload - 'output_box_id'",
        'payload = payload || \'{"context_box_id": "nonsense"}\'',
        "agent_turn_id = NULL",
        "next_retry_at = now()",
        "message_type = 'stop'",
        "status = 'consumed'",
        "archived_at = now()",
        "status = 'lost'",
    ],
)
async def test_an_impossible_queued_row_is_refused(busy: Pool, change: str) -> None:
    with pytest.raises(asyncpg.CheckViolationError):
        await rows(busy, f"UPDATE state.agent_inbox SET {change} WHERE status = 'queued'")  # noqa: S608


async def test_an_outcome_has_a_deliverable_and_is_one_a_turn(agents: Pool) -> None:
    turn = await lease(agents)
    await begin(agents, turn)
    await finish(agents, turn)
    columns = "project_id, agent_id, channel_id, turn_epoch, status, output_box_id"
    insert = (
        f"INSERT INTO state.turn_outcomes ({columns}, agent_turn_id, deliverable_card_id)"  # noqa: S608 -- columns above
        f" SELECT {columns}, $1, $2 FROM state.turn_outcomes"
    )
    with pytest.raises(asyncpg.UniqueViolationError):
        await rows(agents, insert, turn.agent_turn_id, "card")
    with pytest.raises(asyncpg.NotNullViolationError):
        await rows(agents, insert, "another", None)


Insert = Callable[..., Awaitable[dict[str, Any]]]


@pytest.fixture
def insert(pool: Pool) -> Insert:
    """Writes an inbox row as a stranger does, and gives it back as it is stored."""

    async def inserted(**columns: Any) -> dict[str, Any]:
        given = {"inbox_id": "i1", "project_id": PROJECT, "agent_id": ALICE, "message_type": "tool_result"} | columns
        names, marks = ", ".join(given), ", ".join(f"${n + 1}" for n in range(len(given)))
        found = await rows(
            pool,
            f"INSERT INTO state.agent_inbox ({names}) VALUES ({marks}) RETURNING *",  # noqa: S608 -- names above
            *given.values(),
        )
        return found[0]

    return inserted


async def test_a_v1r4_row_gets_its_ids_from_the_payload(insert: Insert) -> None:
    payload = {"agent_turn_id": "t1", "turn_epoch": 3, "tool_call_id": "c1", "status": "success"}
    row = await insert(payload=json.dumps(payload), status="pending")
    assert (row["agent_turn_id"], row["turn_epoch"], row["correlation_id"]) == ("t1", 3, "c1")
    assert (row["created_at"], row["next_retry_at"]) != (None, None)
    assert row["channel_id"] == "public"


async def test_a_row_of_nulls_is_filled(insert: Insert) -> None:
    names = (
        "channel_id",
        "status",
        "payload",
        "context_headers",
        "created_at",
        "next_retry_at",
        "retry_count",
        "turn_epoch",
    )
    row = await insert(**dict.fromkeys(names))
    assert (row["channel_id"], row["status"], row["retry_count"], row["turn_epoch"]) == ("public", "pending", 0, 0)
    kept = json.loads(row["context_headers"])
    assert kept[headers.DEPTH] == "0"
    assert headers.context_headers(kept)[headers.TRACEPARENT][:35] == kept[headers.TRACEPARENT][:35]


async def test_what_a_stranger_gives_is_kept(insert: Insert) -> None:
    traceparent = headers.new_traceparent()
    row = await insert(
        correlation_id="c2",
        agent_turn_id="t2",
        turn_epoch=4,
        payload=json.dumps({"agent_turn_id": "other", "turn_epoch": 9, "tool_call_id": "other"}),
        context_headers=json.dumps({headers.TRACEPARENT: traceparent, headers.DEPTH: "2", "x": "y"}),
    )
    assert (row["agent_turn_id"], row["turn_epoch"], row["correlation_id"]) == ("t2", 4, "c2")
    assert json.loads(row["context_headers"]) == {headers.TRACEPARENT: traceparent, headers.DEPTH: "2", "x": "y"}


async def test_nonsense_in_a_payload_hangs_nothing(insert: Insert, pool: Pool) -> None:
    await add_agents(pool, ALICE)
    row = await insert(payload=json.dumps({"turn_epoch": "many", "agent_turn_id": "t1"}), correlation_id="c")
    assert row["turn_epoch"] == 0
    await insert(inbox_id="i2", payload=json.dumps([1]), message_type="turn", correlation_id="c")
    claimed = await pool.run(lambda c: claim_inbox(c, [(PROJECT, ALICE)], [TARGET], row_limit=9))
    assert {each.verdict for each in claimed} == {"error"}
