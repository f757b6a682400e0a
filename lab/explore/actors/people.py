"""People who decide about held calls, and the time that passes until nobody may (protocol §13)."""

from lab.explore.actors.cast import CHANNEL, PROJECT, Script, gated
from lab.explore.statements import statement
from lab.explore.world import Move, View
from turnstile.ledger.people.decisions import Answer, decide_interrupt, expire_interrupt
from turnstile.ledger.pool import Pool
from turnstile.schema.ids import InterruptId, interrupt_id
from turnstile.schema.people.interrupts import Decision

_PEOPLE = {"dora": Decision.APPROVE, "erin": Decision.REJECT}
"""Two of them, who decide differently, each at any time and again."""


def people(script: Script, view: View) -> list[Move]:
    """What may become of each question of a turn."""
    moves: list[Move] = []
    for call in script.held():
        asked = interrupt_id(call)
        row = view.find("interrupts", interrupt_id=asked)
        if row is None:
            continue
        moves += [_decide(asked, call, who) for who in _PEOPLE]
        if row["expires_at"] > "2090":
            moves.append(Move(f"due {call}", lambda pool, i=asked: _pass(pool, i)))
        moves.append(Move(f"lapse {call}", gated(lambda pool, i=asked: _lapse(pool, i))))
    return moves


def _decide(asked: InterruptId, call: str, who: str) -> Move:
    decision = _PEOPLE[who]

    async def do(pool: Pool) -> str:
        given = Answer(decision, "d", digest=decision.value)
        done = await pool.run(lambda conn: decide_interrupt(conn, PROJECT, CHANNEL, asked, who, given))
        return done.verdict

    return Move(f"decide {call} {decision.value}", gated(do))


async def _pass(pool: Pool, asked: InterruptId) -> str:
    await pool.run(lambda conn: statement("pass_expiry").many(conn, interrupt_id=asked))
    return "passed"


async def _lapse(pool: Pool, asked: InterruptId) -> str:
    return "expired" if await expire_interrupt(pool, asked) else "nothing"
