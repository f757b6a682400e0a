"""People who decide about held calls, tools that ask them, and the time that passes until nobody may (protocol §13)."""

from lab.explore.actors.cast import CHANNEL, PROJECT, Cast, Script, gated
from lab.explore.statements import statement
from lab.explore.world import Move, View
from turnstile.ledger.people.call_questions import ToolQuestion, ask_under_call
from turnstile.ledger.people.decisions import DecisionRecord, decide_interrupt, expire_interrupt
from turnstile.ledger.pool import Pool
from turnstile.schema.ids import InterruptId, ToolCallId, asked_interrupt_id, interrupt_id
from turnstile.schema.people.approvals import Decision
from turnstile.schema.people.interrupts import Hold, InterruptReason

_PEOPLE = {"dora": Decision.APPROVE, "erin": Decision.REJECT}
"""Two of them, who decide differently, each at any time and again."""
_ANSWERS = {"dora": Decision.RESPOND, "erin": Decision.REJECT}
"""What they answer a tool."""


def people(cast: Cast, script: Script, view: View) -> list[Move]:
    """What may become of each question of a turn."""
    moves: list[Move] = []
    for number, name, _ in script.calls() if cast.asks else ():
        moves += _asked_by_tool(script.call(number, name), view)
    for call in script.held():
        interrupt = interrupt_id(call)
        row = view.find("interrupts", interrupt_id=interrupt)
        if row is None:
            continue
        moves += [_decide(interrupt, call, who, decision) for who, decision in _PEOPLE.items()]
        if row["expires_at"] > "2090":
            moves.append(Move(f"due {call}", lambda pool, i=interrupt: _pass(pool, i)))
        moves.append(Move(f"lapse {call}", gated(lambda pool, i=interrupt: _lapse(pool, i))))
    return moves


def _asked_by_tool(call: ToolCallId, view: View) -> list[Move]:
    """The tool of a call asks, again and again; somebody answers, or nobody does."""
    if view.find("turn_waiting_tools", tool_call_id=call) is None:
        return []
    hold = Hold(
        reason=InterruptReason.INPUT_REQUIRED,
        message="Which?",
        allowed_decisions=(Decision.RESPOND, Decision.REJECT),
        requester_may_decide=True,
    )

    async def ask(pool: Pool) -> str:
        return (await pool.run(lambda conn: ask_under_call(conn, PROJECT, call, ToolQuestion("q", "d", hold)))).verdict

    interrupt = asked_interrupt_id(call, "q")
    moves = [Move(f"ask {call}", gated(ask))]
    row = view.find("interrupts", interrupt_id=interrupt)
    if row is not None:
        moves += [_decide(interrupt, call, who, decision) for who, decision in _ANSWERS.items()]
        if row["expires_at"] > "2090":
            moves.append(Move(f"due {call}", lambda pool: _pass(pool, interrupt)))
        moves.append(Move(f"lapse {call}", gated(lambda pool: _lapse(pool, interrupt))))
    return moves


def _decide(interrupt: InterruptId, call: str, who: str, decision: Decision) -> Move:

    async def do(pool: Pool) -> str:
        digest = None if "~" in interrupt else "d"  # a tool's question has nothing to send
        answer = DecisionRecord(decision, digest, digest=decision.value, response="this")
        decided = await pool.run(lambda conn: decide_interrupt(conn, PROJECT, CHANNEL, interrupt, who, answer))
        return decided.verdict

    return Move(f"decide {call} {decision.value}", gated(do))


async def _pass(pool: Pool, interrupt: InterruptId) -> str:
    await pool.run(lambda conn: statement("pass_expiry").many(conn, interrupt_id=interrupt))
    return "passed"


async def _lapse(pool: Pool, interrupt: InterruptId) -> str:
    return "expired" if await expire_interrupt(pool, interrupt) else "nothing"
