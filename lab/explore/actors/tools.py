"""Tools that report and repeat themselves, timers, a workflow that applies reports, and whoever fences or restarts."""

from collections.abc import Sequence
from typing import cast

from lab.explore.actors.cast import MOMENT, PROJECT, Cast, Script, gated
from lab.explore.statements import statement
from lab.explore.world import Move, View
from turnstile.bridge.safety.reconciler import MAX_RESTARTS
from turnstile.ledger.operations.recovery import restart_turn
from turnstile.ledger.pool import Pool, Session
from turnstile.ledger.queries import Connection
from turnstile.ledger.turns.ends import (
    fence,
)
from turnstile.ledger.turns.lease import LiveTurn
from turnstile.ledger.turns.waiting import apply_reports, inject_timeouts, report_call
from turnstile.schema.cards import (
    ToolResultContent,
)
from turnstile.schema.ids import (
    AgentTurnId,
    InboxId,
    ToolCallId,
)
from turnstile.schema.states import AfterExecution, TurnStatus
from turnstile.schema.turns import TurnRef
from turnstile.schema.wire import headers
from turnstile.schema.wire.inbox import ReportRequest


def waits(cast: Cast, script: Script, turn: TurnRef, view: View) -> list[Move]:
    moves: list[Move] = []
    for number, name, ends in script.calls():
        call = script.call(number, name)
        if call not in cast.forked and view.find("turn_waiting_tools", tool_call_id=call) is not None:
            moves += [_report(script, call, ends, status, view) for status in cast.reports]
    head = view.find("agent_state_head", active_agent_turn_id=script.turn)
    if cast.times_out and head is not None and (head["resume_deadline"] or "") > "2090":
        moves.append(Move(f"deadline {script.letter}", lambda pool: _pass(pool, script.turn)))
    if cast.times_out and any(True for _ in script.calls()):
        moves.append(Move(f"expire {script.letter}", gated(lambda pool: _expire(pool, turn))))
    rows = [row for row in view.all("agent_inbox", agent_turn_id=script.turn) if row["message_type"] in _REPORTS]
    live = sorted(row["inbox_id"] for row in rows if row["archived_at"] is None)
    for reports in [live] + ([[r] for r in live] if len(live) > 1 else []):
        if reports:
            moves.append(_apply(script, turn, reports))
    final = sorted(row["inbox_id"] for row in rows if row["archived_at"] is not None)
    if final and not live:
        moves.append(_apply(script, turn, final))
    if cast.wipes:
        moves += _restarts(script, turn, view)
    if script.letter in cast.reaps:

        async def reap(pool: Pool) -> str:
            return (await fence(pool, turn, TurnStatus.FAILED, "timeout_reaped_by_watchdog", "no sign of life")).result

        moves.append(Move(f"fence {script.letter}", gated(reap)))
    return moves


def _restarts(script: Script, turn: TurnRef, view: View) -> list[Move]:
    """The loss of a workflow is recorded, by a bridge that saw it once as few times lost as this, or fewer."""
    head = view.find("agent_state_head", active_agent_turn_id=script.turn)
    if head is None:
        return []

    async def restart(pool: Pool, times: int) -> str:
        seen = LiveTurn.model_validate(
            turn.model_dump()
            | {"status": "running", "updated_at": MOMENT, "resume_deadline": None, "restart_count": times}
        )
        return f"restarted {await pool.run(lambda conn: restart_turn(conn, seen, counted=True))}"

    most = min(head["restart_count"], MAX_RESTARTS - 1)
    return [
        Move(f"restart {script.letter} {times}", gated(lambda pool, n=times: restart(pool, n)))
        for times in range(most + 1)
    ]


async def wipe(pool: Pool) -> str:
    await pool.run(lambda conn: statement("wipe_engine").many(conn))
    return "wiped"


_REPORTS = {"tool_result", "timeout"}


def _report(script: Script, call: ToolCallId, ends: bool, status: TurnStatus, view: View) -> Move:
    """The report of a call, or the repeat of one, which has another inbox id."""
    earlier = view.find("agent_inbox", correlation_id=call, message_type="tool_result")
    after = AfterExecution.TERMINATE if ends else None
    content = ToolResultContent(status=status, after_execution=after, result="found").model_dump_json()
    row = InboxId(f"{call}-report" if earlier is None else f"{call}-repeat")
    incoming = {headers.TRACEPARENT: script.traceparent}

    async def do(pool: Pool) -> str:
        request = ReportRequest(tool_call_id=call, status=status, after_execution=after, result="found")
        reported = await pool.run(lambda conn: report_call(conn, PROJECT, request, content, row, incoming))
        return "duplicate" if reported.reply.duplicate else "accepted"

    suffix = "" if status is TurnStatus.SUCCESS else f" {status.value}"
    return Move(f"report {call}{suffix}", gated(do))


async def _pass(pool: Pool, turn: AgentTurnId) -> str:
    async def do(conn: Connection) -> None:
        async with cast("Session", conn).transaction():
            await statement("hold_turn").many(conn, agent_turn_id=turn)
            await statement("pass_deadlines").many(conn, agent_turn_id=turn)

    await pool.run(do)
    return "passed"


async def _expire(pool: Pool, turn: TurnRef) -> str:
    return f"rings {len(await pool.run(lambda conn: inject_timeouts(conn, turn)))}"


def _apply(script: Script, turn: TurnRef, rows: Sequence[str]) -> Move:
    async def do(pool: Pool) -> str:
        ids = [InboxId(row) for row in rows]
        return (await pool.run(lambda conn: apply_reports(conn, turn, ids))).status.value

    return Move(f"apply {script.letter} {','.join(rows)}", gated(do))
