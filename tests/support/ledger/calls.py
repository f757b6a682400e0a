"""Pending calls, built by the ledger's own functions; and reports by SQL, as a v1r4 tool writes them."""

import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from tests.support.ledger.agents import ALICE, PROJECT, STARTED, begin, box, card, lease, rows
from turnstile.ledger.pool import Pool
from turnstile.ledger.queries import Connection
from turnstile.ledger.turns.cards import card_columns
from turnstile.ledger.turns.ends import finish_turn
from turnstile.ledger.turns.steps import CommittedStep, commit_step
from turnstile.ledger.turns.waiting import (
    AppliedReports,
    Reported,
    RequestedStop,
    apply_reports,
    inject_timeouts,
    report,
    request_stop,
)
from turnstile.rules.turn_ends import LIVE, Ending, FinishedTurn, fallback_card
from turnstile.rules.turn_step import StepRecord
from turnstile.schema.cards import Card, CardType, Role, ToolCallContent, ToolResultContent, make_card
from turnstile.schema.ids import AgentId, AgentTurnId, CardId, InboxId, ProjectId, ToolCallId, step_id, uuid7
from turnstile.schema.states import AfterExecution, HeadStatus, TurnStatus
from turnstile.schema.step_metadata import SuspendMetadata
from turnstile.schema.tools import ToolCommand
from turnstile.schema.turns import Ring, TurnRef
from turnstile.schema.wire.inbox import ReportRequest

TOOL = "search"


def tool_command(call: str) -> ToolCommand:
    """The command of a call of `search`."""
    return ToolCommand(
        tool_call_id=ToolCallId(call),
        tool_name=TOOL,
        tool_call_card_id=CardId(f"{call}-call"),
        after_execution=AfterExecution.SUSPEND,
        subject="cg.v1r4.p1.public.cmd.tool.search.run",
    )


def call_record(
    turn: TurnRef,
    step: int,
    *calls: str,
    wait_seconds: float = 60.0,
    uncarded: tuple[str, ...] = (),
    waits: Sequence[float] = (),
) -> StepRecord:
    """A step with a thought that calls `search`; the calls in `uncarded` lack their `tool.call` card."""
    step_name = step_id(turn.agent_turn_id, step)
    sent = [tool_command(call) for call in calls]
    cards = [
        make_card(
            CardId(each.tool_call_card_id),
            CardType.TOOL_CALL,
            Role.ASSISTANT,
            ToolCallContent(tool_name=TOOL, arguments={"q": each.tool_call_id}, target_subject=each.subject),
            author=turn.agent_id,
            turn=turn.agent_turn_id,
            step=step_name,
            trace=turn.trace_id,
            tool_call=each.tool_call_id,
        )
        for each in sent
        if each.tool_call_id not in uncarded
    ]
    metadata = SuspendMetadata(commands=tuple(sent))
    ids = [each.tool_call_id for each in sent]
    made = [card(turn, step, "thought"), *cards]
    return StepRecord(step, metadata, made, ids, STARTED, wait_seconds=wait_seconds, call_waits=waits)


async def suspend(
    pool: Pool,
    turn: TurnRef,
    *calls: str,
    step: int = 1,
    wait_seconds: float = 60.0,
    uncarded: tuple[str, ...] = (),
    waits: Sequence[float] = (),
) -> CommittedStep:
    """commit_step of a running turn with these calls, which wait for `wait_seconds`, or each for its `waits`."""
    record = call_record(turn, step, *calls, wait_seconds=wait_seconds, uncarded=uncarded, waits=waits)
    return await pool.run(lambda conn: commit_step(conn, turn, record))


async def sleeper(
    pool: Pool,
    *calls: str,
    agent: AgentId = ALICE,
    wait_seconds: float = 60.0,
    waits: Sequence[float] = (),
    **fields: Any,
) -> TurnRef:
    """A new turn of an idle agent, suspended in its first step."""
    turn = await lease(pool, agent, **fields)
    await begin(pool, turn)
    await suspend(pool, turn, *calls, wait_seconds=wait_seconds, waits=waits)
    return turn


def request(call: str, status: TurnStatus = TurnStatus.SUCCESS, **fields: Any) -> ReportRequest:
    """A report with an inline result, unless `fields` say otherwise."""
    inline = {} if {"tool_result_card_id", "error"} & fields.keys() else {"result": f"found by {call}"}
    return ReportRequest.model_validate({"tool_call_id": call, "status": status, **inline, **fields})


async def tell(
    pool: Pool, call: str, *, incoming: dict[str, str] | None = None, project: ProjectId = PROJECT, **fields: Any
) -> Reported:
    """report, inline unless `fields` point to a card."""
    return await report(pool, project, request(call, **fields), incoming)


async def told(pool: Pool, call: str, **fields: Any) -> InboxId:
    """The inbox row of an accepted first report."""
    done = await tell(pool, call, **fields)
    assert not done.reply.duplicate
    assert done.reply.inbox_id is not None
    return done.reply.inbox_id


def result_card(turn: TurnRef, call: str, **changes: Any) -> Card:
    """The card that `search` writes for a call; `changes` are of its metadata or its `tool_call_id`."""
    made = make_card(
        CardId(uuid7()),
        CardType.TOOL_RESULT,
        Role.TOOL,
        ToolResultContent(status=TurnStatus.SUCCESS, result="by card"),
        author=f"tool.{TOOL}",
        turn=turn.agent_turn_id,
        tool_call=ToolCallId(changes.pop("tool_call_id", call)),
        function_name=TOOL,
    )
    return made.model_copy(update={"metadata": made.metadata.model_copy(update=changes)})


async def write_card(pool: Pool, made: Card, project: ProjectId = PROJECT) -> CardId:
    """A card in no box, as a tool that speaks SQL writes it."""
    await rows(
        pool,
        "INSERT INTO cards (card_id, tenant_id, content, tool_call_id, metadata) VALUES ($1, $2, $3, $4, $5)",
        *(made.card_id, project, json.dumps(made.content), made.tool_call_id),
        card_columns([made])["card_metadatas"][0],
    )
    return made.card_id


async def written_report(
    pool: Pool, turn: TurnRef, call: str, card_id: str | None, message_type: str = "tool_result", **columns: Any
) -> InboxId:
    """A report and its edge as a v1r4 tool writes them: ids in the payload only, nulls in the columns."""
    inbox_id = InboxId(uuid7())
    payload = {
        "tool_call_id": call,
        "agent_turn_id": turn.agent_turn_id,
        "turn_epoch": turn.turn_epoch,
        "status": "success",
        "after_execution": "suspend",
        "tool_result_card_id": card_id,
    }
    given: dict[str, Any] = {
        "inbox_id": inbox_id,
        "project_id": turn.project_id,
        "agent_id": turn.agent_id,
        "message_type": message_type,
        "payload": json.dumps(payload),
    }
    given |= dict.fromkeys(("channel_id", "correlation_id", "agent_turn_id", "turn_epoch", "context_headers"))
    given |= dict.fromkeys(("status", "retry_count", "next_retry_at", "created_at"))
    given |= columns
    marks = ", ".join(f"${number + 1}" for number in range(len(given)))
    await rows(
        pool,
        f"INSERT INTO state.agent_inbox ({', '.join(given)}) VALUES ({marks})",  # noqa: S608 -- names above
        *given.values(),
    )
    await written_edge(pool, turn, call, "report", "response")
    return inbox_id


_EDGE = """
    INSERT INTO state.execution_edges (edge_id, project_id, channel_id, primitive, edge_phase, source_agent_id,
        source_agent_turn_id, source_step_id, target_agent_id, target_agent_turn_id, correlation_id, enqueue_mode,
        recursion_depth, trace_id, parent_step_id, metadata, created_at)
    VALUES ($1, $2, $3, $4, $5, $6, NULL, NULL, $7, $8, $9, $10, $11, $12, NULL, $13::jsonb, NOW())
    ON CONFLICT (project_id, md5(correlation_id), primitive, edge_phase) DO NOTHING"""
"""The statement with which v1r4's store inserts an edge: ON CONFLICT names the index."""


async def written_edge(pool: Pool, turn: TurnRef, correlation: str, primitive: str, phase: str) -> None:
    """An edge as a v1r4 tool writes it."""
    told = json.dumps({"cg_ctx": {"agent_id": turn.agent_id}})
    await rows(
        pool,
        _EDGE,
        *(f"edge_{uuid7()}", turn.project_id, turn.channel_id, primitive, phase, f"tool.{TOOL}", turn.agent_id),
        *(turn.agent_turn_id, correlation, "call", 0, turn.trace_id, told),
    )


async def settle(pool: Pool, turn: TurnRef, *inbox_ids: InboxId) -> AppliedReports:
    """apply_reports."""
    return await pool.run(lambda conn: apply_reports(conn, turn, inbox_ids))


async def expire(pool: Pool, turn: TurnRef) -> list[Ring]:
    """inject_timeouts."""
    return await pool.run(lambda conn: inject_timeouts(conn, turn))


def ending(
    turn: TurnRef, code: str = "stopped", states: Sequence[HeadStatus] = LIVE
) -> Callable[[Connection], Awaitable[FinishedTurn]]:
    """The transition finish_turn without a step, as for a stopped turn."""
    made = fallback_card(turn, (), TurnStatus.CANCELED, "stopped")
    how = Ending(TurnStatus.CANCELED, made.card_id, code)
    return lambda conn: finish_turn(conn, turn, how, cards=[made], from_statuses=states)


async def end(pool: Pool, turn: TurnRef, code: str = "stopped", states: Sequence[HeadStatus] = LIVE) -> FinishedTurn:
    """Execute `ending`."""
    return await pool.run(ending(turn, code, states))


async def ask_to_stop(pool: Pool, turn: AgentTurnId, inbox_id: str | None = None) -> RequestedStop:
    """request_stop."""
    row = InboxId(inbox_id or uuid7())
    return await pool.run(lambda conn: request_stop(conn, PROJECT, turn, "enough", row))


async def stop_on(conn: Connection, turn: TurnRef) -> RequestedStop:
    """request_stop, on this connection."""
    return await request_stop(conn, turn.project_id, turn.agent_turn_id, "enough", InboxId(uuid7()))


async def pass_deadline(pool: Pool) -> None:
    """Set every deadline of a head and of a call to now."""
    await rows(pool, "UPDATE state.turn_waiting_tools SET deadline = now()")
    await rows(pool, "UPDATE state.agent_state_head SET resume_deadline = now() WHERE resume_deadline IS NOT NULL")


async def waits(pool: Pool) -> dict[str, str]:
    """`wait_status` of every call."""
    found = await rows(pool, "SELECT tool_call_id, wait_status FROM state.turn_waiting_tools ORDER BY tool_call_id")
    return {row["tool_call_id"]: row["wait_status"] for row in found}


async def row_of(pool: Pool, inbox_id: InboxId) -> dict[str, Any]:
    """An inbox row."""
    [row] = await rows(pool, "SELECT * FROM state.agent_inbox WHERE inbox_id = $1", inbox_id)
    return row


async def became(pool: Pool, inbox_id: InboxId) -> tuple[str, str | None]:
    """The status of an inbox row, and its reason."""
    row = await row_of(pool, inbox_id)
    return row["status"], row["last_error"]


async def results(pool: Pool, turn: TurnRef) -> list[tuple[str, str]]:
    """Call and status of the `tool.result` cards in the turn's output box, in order."""
    places = [place.card_id for place in await box(pool, turn.output_box_id) if place.type == CardType.TOOL_RESULT]
    found = await rows(
        pool,
        "SELECT tool_call_id, content ->> 'status' AS status FROM cards WHERE card_id = ANY ($1)"
        " ORDER BY array_position($1, card_id)",
        places,
    )
    return [(row["tool_call_id"], row["status"]) for row in found]
