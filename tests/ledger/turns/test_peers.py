"""What CommonGround v1r4's stores say to the ledger, statement by statement in their form (protocol §10.12)."""

import json
from datetime import datetime
from functools import partial
from typing import Any

import asyncpg
import pytest

from tests.support.ledger.agents import ALICE, PROJECT, begin, claim, finish, lease, rows, value
from tests.support.ledger.calls import (
    TOOL,
    became,
    expire,
    result_card,
    results,
    settle,
    sleeper,
    tell,
    write_card,
    written_edge,
    written_report,
)
from tests.support.ledger.invariants import assert_invariants
from turnstile.ledger.delegation.peer_calls import answer_peer_call, find_peer_call
from turnstile.ledger.pool import Pool
from turnstile.ledger.trees.batches import ParentCall
from turnstile.schema.ids import AgentId, CardId, ToolCallId, new_box_id, uuid7
from turnstile.schema.states import AfterExecution, TurnStatus

HEADERS = json.dumps(
    {"traceparent": "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01", "CG-Recursion-Depth": "0"}
)

INBOX = """
    INSERT INTO state.agent_inbox (inbox_id, project_id, agent_id, channel_id, message_type, enqueue_mode,
        correlation_id, agent_turn_id, turn_epoch, context_headers, payload, status, retry_count, next_retry_at,
        last_error, defer_reason, created_at)
    VALUES ($1, $2, $3, 'public', $4, 'call', $5, $6, $7, $8::jsonb, $9::jsonb, $10, 0, NOW(), NULL, NULL, NOW())
    ON CONFLICT DO NOTHING RETURNING inbox_id"""

IDLE_HEAD = """
    INSERT INTO state.agent_state_head (project_id, agent_id, status, active_agent_turn_id, turn_epoch, updated_at,
        active_channel_id, parent_step_id, trace_id, profile_box_id, context_box_id, output_box_id)
    VALUES ($1, $2, 'idle', NULL, 0, NOW(), 'public', NULL, NULL, $3, $4, $5)
    ON CONFLICT (project_id, agent_id) DO NOTHING"""

LEASE = """
    UPDATE state.agent_state_head SET status='dispatched', active_agent_turn_id=$3, turn_epoch=turn_epoch + 1,
        active_channel_id=COALESCE('public', active_channel_id), active_recursion_depth=COALESCE(0, 0),
        parent_step_id=NULL, trace_id='0123456789abcdef0123456789abcdef', profile_box_id=COALESCE($4, profile_box_id),
        context_box_id=COALESCE($5, context_box_id), output_box_id=COALESCE($6, output_box_id),
        expecting_correlation_id=NULL, waiting_tool_count=0, resume_deadline=NULL, updated_at=NOW()
    WHERE project_id=$1 AND agent_id=$2 AND status='idle' RETURNING turn_epoch"""

PROMOTE = """
    UPDATE state.agent_inbox SET status='pending', processed_at=NULL, archived_at=NULL, agent_turn_id=$3, turn_epoch=$4
    WHERE project_id=$1 AND inbox_id=$2 AND status='queued' RETURNING inbox_id"""

IDLE = """
    UPDATE state.agent_state_head SET status='idle', active_agent_turn_id=NULL, active_channel_id=NULL,
        active_recursion_depth=0, parent_step_id=NULL, trace_id=NULL, context_box_id=NULL, output_box_id=NULL,
        expecting_correlation_id=NULL, waiting_tool_count=0, resume_deadline=NULL, updated_at=NOW()
    WHERE project_id=$1 AND agent_id=$2 AND turn_epoch=$3 AND active_agent_turn_id=$4 RETURNING agent_id"""

STEP = """
    INSERT INTO state.agent_steps (project_id, agent_id, step_id, agent_turn_id, channel_id, parent_step_id, trace_id,
        status, profile_box_id, context_box_id, output_box_id, started_at)
    VALUES ($1, $2, $3, $4, 'public', NULL, NULL, 'tool_dispatched', NULL, $5, $6, NOW())
    ON CONFLICT (project_id, agent_id, step_id) DO NOTHING RETURNING step_id"""

NEW_BOX = """
    INSERT INTO card_boxes (box_id, tenant_id, card_ids, parent_ids, updated_at)
    VALUES ($1::text::uuid, $2, $3::text::jsonb, NULL, current_timestamp) RETURNING box_id::text"""

APPEND = """
    UPDATE card_boxes SET card_ids = COALESCE(card_ids, '[]'::jsonb) || $1::text::jsonb, updated_at = current_timestamp
    WHERE box_id = $2::text::uuid AND tenant_id = $3 RETURNING box_id::text"""

SAVE = """
    UPDATE card_boxes SET card_ids = $1::text::jsonb, parent_ids = NULL, updated_at = current_timestamp
    WHERE box_id = $2::text::uuid AND tenant_id = $3 RETURNING box_id::text"""

LOAD = "SELECT card_ids::text FROM card_boxes WHERE box_id = $1::text::uuid AND tenant_id = $2"

SAVE_CARD = """
    INSERT INTO cards (card_id, tenant_id, content, tool_calls, tool_call_id, metadata, ttl_seconds, expires_at)
    VALUES ($1, $2, '{"__type__": "TextContent", "text": "hi"}', NULL, NULL, $3::text::jsonb, NULL, NULL)
    ON CONFLICT (card_id) DO UPDATE SET content = EXCLUDED.content, tool_calls = EXCLUDED.tool_calls,
        tool_call_id = EXCLUDED.tool_call_id, metadata = EXCLUDED.metadata, ttl_seconds = EXCLUDED.ttl_seconds,
        expires_at = EXCLUDED.expires_at, deleted_at = NULL"""


async def save_card(pool: Pool, card_id: str, **metadata: str) -> str:
    """A card as their card store saves it."""
    told = {"type": "task.instruction", "author_id": "sys.ui", "created_at": "2026-01-01T00:00:00+00:00", **metadata}
    await rows(pool, SAVE_CARD, card_id, PROJECT, json.dumps(told))
    return card_id


async def new_box(pool: Pool, *cards: str) -> str:
    """A box as their card store makes it."""
    return await value(pool, NEW_BOX, new_box_id(), PROJECT, json.dumps(cards))


async def inbox(pool: Pool, kind: str, status: str, turn: str, epoch: int, payload: dict[str, Any]) -> str:
    """An inbox row as their store inserts it."""
    row = f"inbox_{uuid7()}"
    correlation = f"call_{turn}"
    await rows(pool, INBOX, row, PROJECT, ALICE, kind, correlation, turn, epoch, HEADERS, json.dumps(payload), status)
    return row


async def test_a_report_with_its_edge_resumes_the_turn_and_a_repeat_adds_no_edge(agents: Pool) -> None:
    turn = await sleeper(agents, "a")
    card_id = await write_card(agents, result_card(turn, "a", author_id="tool.openapi"))
    inbox_id = await written_report(agents, turn, "a", card_id)
    await written_edge(agents, turn, "a", "report", "response")
    await settle(agents, turn, inbox_id)
    assert (await results(agents, turn), await became(agents, inbox_id)) == ([("a", "success")], ("consumed", None))
    edges = "SELECT count(*) FROM state.execution_edges WHERE correlation_id = 'a' AND primitive = 'report'"
    assert await value(agents, edges) == 1


@pytest.mark.parametrize(("of_row", "wanted"), [("suspend", "suspend"), ("terminate", "terminate")])
async def test_every_result_of_the_kernel_says_what_follows_and_when_it_was_made(
    agents: Pool, of_row: str, wanted: str
) -> None:
    """Their reader takes `suspend` or `terminate` and no null, and a card's time from its metadata."""
    put = "INSERT INTO resource.tools (project_id, tool_name, after_execution) VALUES ($1, $2, $3)"
    await rows(agents, put, PROJECT, TOOL, of_row)
    turn = await sleeper(agents, "late", "told", wait_seconds=0)
    await tell(agents, "told")
    for ring in await expire(agents, turn):
        await settle(agents, turn, ring.inbox_id)
    found = await rows(
        agents,
        "SELECT tool_call_id, content ->> 'after_execution' AS after, metadata ->> 'created_at' AS made, created_at"
        " FROM cards WHERE metadata ->> 'type' = 'tool.result' ORDER BY 1",
    )
    assert [(row["tool_call_id"], row["after"]) for row in found] == [("late", wanted), ("told", wanted)]
    assert [datetime.fromisoformat(row["made"]) for row in found] == [row["created_at"] for row in found]


async def test_a_card_that_is_saved_again_as_it_was_stays(agents: Pool) -> None:
    for _ in range(2):
        await save_card(agents, "c")
    assert (
        await value(agents, "SELECT metadata ->> 'created_at' FROM cards WHERE card_id = 'c'")
        == "2026-01-01T00:00:00+00:00"
    )
    with pytest.raises(asyncpg.RestrictViolationError, match="immutable"):
        await save_card(agents, "c", type="agent.thought")


async def test_a_box_is_made_read_and_grown_as_their_card_store_does(agents: Pool) -> None:
    turn = await lease(agents)
    held = json.loads(await value(agents, LOAD, turn.output_box_id, PROJECT))
    first, second = await save_card(agents, "c1"), await save_card(agents, "c2")
    made = await new_box(agents, first)
    assert json.loads(await value(agents, LOAD, made, PROJECT)) == ["c1"]
    assert await value(agents, APPEND, json.dumps([first, second]), turn.output_box_id, PROJECT) == turn.output_box_id
    assert await value(agents, SAVE, json.dumps([*held, first, second]), turn.output_box_id, PROJECT) is not None
    assert json.loads(await value(agents, LOAD, turn.output_box_id, PROJECT)) == [*held, "c1", "c2"]
    await begin(agents, turn)
    await finish(agents, turn)
    assert json.loads(await value(agents, LOAD, turn.output_box_id, PROJECT))[: len(held) + 2] == [*held, "c1", "c2"]
    with pytest.raises(asyncpg.RestrictViolationError, match="is closed"):
        await rows(agents, APPEND, json.dumps([first]), made, PROJECT)
    with pytest.raises(asyncpg.RestrictViolationError, match="only grows"):
        await rows(agents, SAVE, "[]", made, PROJECT)


async def test_a_ui_worker_leases_without_boxes_takes_a_step_and_idles(agents: Pool) -> None:
    """Between lease and end its turn breaks no rule of the audit: the fixture checks them after each test."""
    epoch = await value(agents, LEASE, PROJECT, ALICE, "turn_ui", None, None, None)
    action = await inbox(
        agents, "ui_action", "pending", "turn_ui", epoch, {"action_id": "x", "tool_name": TOOL, "args": {}}
    )
    context, output = await new_box(agents), await new_box(agents)
    head = "UPDATE state.agent_state_head SET updated_at = NOW(), context_box_id=$2, output_box_id=$3 WHERE agent_id=$1"
    await rows(agents, head, ALICE, context, output)
    for _ in range(2):
        await rows(agents, STEP, PROJECT, ALICE, "step_ui_1", "turn_ui", context, output)
    await inbox(agents, "command_anchor", "consumed", "turn_ui", epoch, {"kind": "command_anchor"})
    assert await value(
        agents, "SELECT archived_at IS NOT NULL FROM state.agent_inbox WHERE message_type = 'command_anchor'"
    )
    await rows(agents, APPEND, json.dumps([await save_card(agents, "c1")]), output, PROJECT)
    done = "UPDATE state.agent_inbox SET status='consumed', archived_at=COALESCE(archived_at, NOW()) WHERE inbox_id=$1"
    await rows(agents, done, action)
    assert await value(agents, IDLE, PROJECT, ALICE, epoch, "turn_ui") == ALICE
    pointer = """INSERT INTO state.agent_state_pointers (project_id, agent_id, last_output_box_id, updated_at)
        VALUES ($1, $2, $3, NOW()) ON CONFLICT (project_id, agent_id) DO UPDATE
        SET last_output_box_id = EXCLUDED.last_output_box_id, updated_at = NOW()"""
    await rows(agents, pointer, PROJECT, ALICE, output)
    async with agents.connection() as conn:
        await assert_invariants(conn)
    following = await lease(agents)
    assert following.turn_epoch == epoch + 1


async def test_a_turn_that_their_enqueue_leases_runs_here(agents: Pool) -> None:
    profile_box = await value(
        agents, "SELECT profile_box_id::text FROM resource.project_agents WHERE agent_id = 'alice'"
    )
    boxes = {
        "profile_box_id": profile_box,
        "context_box_id": await new_box(agents),
        "output_box_id": await new_box(agents),
    }
    row = await inbox(agents, "turn", "queued", "turn_theirs", 0, boxes)
    async with agents.connection() as conn, conn.transaction():
        await conn.fetch(IDLE_HEAD, PROJECT, ALICE, *boxes.values())
        [leased] = await conn.fetch(LEASE, PROJECT, ALICE, "turn_theirs", *boxes.values())
        assert await conn.fetch(PROMOTE, PROJECT, row, "turn_theirs", leased["turn_epoch"])
    [claimed] = await claim(agents, ALICE)
    assert (claimed.verdict, claimed.inbox_id) == ("start", row)
    turn = claimed.turn()
    await begin(agents, turn)
    assert (await finish(agents, turn)).result == "done"


async def test_a_turn_that_they_queue_behind_another_is_the_next(agents: Pool) -> None:
    turn = await lease(agents)
    boxes = {name: await new_box(agents) for name in ("profile_box_id", "context_box_id", "output_box_id")}
    row = await inbox(agents, "turn", "queued", "turn_theirs", 0, boxes)
    await begin(agents, turn)
    await finish(agents, turn)
    [claimed] = await claim(agents, ALICE)
    assert (claimed.verdict, claimed.inbox_id) == ("start", row)


CREATE_PROJECT = """
    INSERT INTO public.projects (project_id, title, status, owner_id) VALUES ($1, $2, 'active', $3)
    ON CONFLICT (project_id) DO NOTHING RETURNING *"""

UPSERT_AGENT = """
    INSERT INTO resource.project_agents (project_id, agent_id, profile_box_id, worker_target, tags, display_name,
        owner_agent_id, status, metadata)
    VALUES ($1, $2, $3::text::uuid, $4, '[]', $2, NULL, 'active', '{}')
    ON CONFLICT (project_id, agent_id) DO UPDATE SET profile_box_id=EXCLUDED.profile_box_id,
        worker_target=EXCLUDED.worker_target, tags=EXCLUDED.tags,
        metadata=COALESCE(resource.project_agents.metadata, '{}'::jsonb) || EXCLUDED.metadata"""


async def test_their_api_lists_makes_changes_and_removes_projects(agents: Pool) -> None:
    [own] = await rows(agents, "SELECT * FROM public.projects ORDER BY project_id ASC LIMIT 100 OFFSET 0")
    assert (own["project_id"], own["title"], own["status"]) == (PROJECT, PROJECT, "active")
    assert await rows(agents, CREATE_PROJECT, PROJECT, "again", "me") == []
    [made] = await rows(agents, CREATE_PROJECT, "p2", "Second", "me")
    assert (made["title"], made["status"], made["owner_id"]) == ("Second", "active", "me")
    changed = "UPDATE public.projects SET title=$2, status=$3 WHERE project_id=$1 RETURNING *"
    assert (await rows(agents, changed, "p2", "Third", "archived"))[0]["title"] == "Third"
    with pytest.raises(asyncpg.CheckViolationError):
        await rows(agents, changed, "p2", "Third", "gone")
    assert await rows(agents, "DELETE FROM public.projects WHERE project_id=$1 RETURNING 1", "p2")


async def test_an_agent_that_their_api_makes_is_no_finding_and_takes_turns(agents: Pool) -> None:
    """The fixture runs the audit."""
    box = await value(agents, "SELECT profile_box_id::text FROM resource.project_agents WHERE agent_id = 'alice'")
    target = await value(agents, "SELECT worker_target FROM resource.project_agents WHERE agent_id = 'alice'")
    for _ in range(2):
        await rows(agents, UPSERT_AGENT, PROJECT, "theirs", box, target)
        await rows(agents, IDLE_HEAD, PROJECT, "theirs", box, None, None)
    head = "SELECT status, active_channel_id FROM state.agent_state_head WHERE agent_id = 'theirs'"
    [row] = await rows(agents, head)
    assert (row["status"], row["active_channel_id"]) == ("idle", None)
    assert (await lease(agents, AgentId("theirs"))).turn_epoch == 1


@pytest.mark.parametrize("in_hand", [True, False])
async def test_a_call_of_their_programs_is_found_by_card_and_anchor_and_answered_once(
    agents: Pool, in_hand: bool
) -> None:
    """In hand: of their UI worker, whose turn sleeps; else of their API, which only looks for the row."""
    turn, epoch = "turn_gc_1", 0
    if in_hand:
        epoch = await value(agents, LEASE, PROJECT, ALICE, turn, None, None, None)
    content = {"__type__": "ToolCallContent", "tool_name": "delegate_async", "arguments": {"a": 1}, "status": "called"}
    metadata = {
        "type": "tool.call",
        "author_id": ALICE,
        "agent_turn_id": turn,
        "step_id": "step_gc",
        "tool_call_id": "c",
    }
    card = (
        "INSERT INTO cards (card_id, tenant_id, content, tool_call_id, metadata) VALUES ($1,$2,$3::jsonb,'c',$4::jsonb)"
    )
    await rows(agents, card, "card", PROJECT, json.dumps(content), json.dumps(metadata))
    call = ToolCallId("c")

    async def find(card_id: str = "card") -> ParentCall | None:
        return await agents.run(lambda conn: find_peer_call(conn, PROJECT, call, CardId(card_id)))

    assert await find() is None  # without an anchor it is nobody's
    await rows(agents, INBOX, "anchor", PROJECT, ALICE, "command_anchor", "c", turn, epoch, HEADERS, "{}", "consumed")
    assert await find("other") is None
    found = await find()
    assert found is not None
    assert (found.agent_id, found.arguments, found.waits, found.turn_epoch) == (ALICE, {"a": 1}, True, epoch)
    answer = partial(
        answer_peer_call,
        call=found,
        after_execution=AfterExecution.SUSPEND,
        status=TurnStatus.SUCCESS,
        result={"status": "accepted"},
        error=None,
    )
    rings = [await agents.run(answer) for _ in range(2)]
    assert [ring and ring.inbox_id for ring in rings] == ["pmo-c" if in_hand else None, None]
    [row] = await rows(agents, "SELECT status, payload FROM state.agent_inbox WHERE message_type = 'tool_result'")
    assert row["status"] == ("pending" if in_hand else "consumed")
    assert json.loads(row["payload"]).keys() == {"status", "after_execution", "tool_result_card_id"}
    answered = await find()
    assert answered is not None
    assert not answered.waits
    if in_hand:
        consume = "UPDATE state.agent_inbox SET status='consumed', archived_at=NOW() WHERE inbox_id='pmo-c'"
        await rows(agents, consume)
        await rows(agents, IDLE, PROJECT, ALICE, epoch, turn)


async def test_a_stop_of_their_api_is_settled_by_the_end_of_its_turn(agents: Pool) -> None:
    turn = await lease(agents)
    await begin(agents, turn)
    stop = f"inbox_{uuid7()}"
    for row in (stop, f"{stop}-again"):
        values = (row, PROJECT, ALICE, "stop", f"stop_{row}", turn.agent_turn_id, turn.turn_epoch, HEADERS)
        await rows(agents, INBOX, *values, '{"reason": "x"}', "pending")
    [claimed] = await claim(agents, ALICE)
    assert (claimed.verdict, claimed.inbox_id) == ("signal", stop)
    await finish(agents, turn)
    found = await rows(agents, "SELECT inbox_id, status FROM state.agent_inbox WHERE message_type = 'stop'")
    assert [(row["inbox_id"], row["status"]) for row in found] == [(stop, "skipped")]  # it ended otherwise
