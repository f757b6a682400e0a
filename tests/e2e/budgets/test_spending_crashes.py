"""What was reserved when a step breaks off, is repeated, or is answered too late: booked once (protocol §15)."""

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.budgets.test_spending import LLM, USES, reservations, script
from tests.support.conditions import until
from tests.support.faults.points import DONE, GUESS, HASTY
from tests.support.ledger.budgets import budget, commit_uses, uses
from tests.support.tenants import ALICE, Tenant, turn_of
from turnstile.ledger.budgets.attempts import reserve_attempt
from turnstile.ledger.turns.cards import BoxCache
from turnstile.ledger.turns.steps import begin_step
from turnstile.ledger.turns.views import locate_turn
from turnstile.runtime.faults import Fault
from turnstile.schema.ids import AgentTurnId
from turnstile.schema.turns import TurnRef

pytestmark = pytest.mark.stack(HASTY)

POINTS = (Fault.ATTEMPT_RESERVED, Fault.MODEL_ANSWERED)
"""Between the reservation and the answer, and between the answer and the commit."""
ANSWER = {**DONE, "usage": USES}


async def spent_once(tenant: Tenant, turn: AgentTurnId, *, known: int = 400) -> None:
    """One attempt is booked whole, since nobody knows what it used, and the other as it was used."""
    found = await reservations(tenant, turn)
    assert [each[2:] for each in found] == [("unsettled", None), ("settled", known)], found
    row = await budget(tenant.pool, turn)
    assert row["unsettled_tokens"] > 200
    assert (row["spent_tokens"], row["reserved_tokens"]) == (row["unsettled_tokens"] + known, 0)
    assert row["returned_tokens"] == 9000 - row["spent_tokens"]


async def spender(tenant: Tenant) -> AgentTurnId:
    """A turn of one answer that may spend 9,000 tokens."""
    return turn_of(await tenant.enqueue(ALICE, script(ANSWER), budget={"max_tokens": 9000}))


@pytest.mark.parametrize("point", POINTS)
async def test_a_step_that_breaks_off_is_booked_whole_once(
    tenant: Tenant, point: Fault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await tenant.agent("player", llm=LLM)
    monkeypatch.setenv("TURNSTILE_FAULTS_DIR", str(tmp_path))
    monkeypatch.setenv("TURNSTILE_FAULTS", f"{point}=throw")
    turn = await spender(tenant)
    await tenant.ended(turn)
    assert tmp_path.joinpath(point).exists()
    if point is Fault.ATTEMPT_RESERVED:
        await spent_once(tenant, turn)
    else:  # its worker lives, and had told what it used
        assert [reservation[2:] for reservation in await reservations(tenant, turn)] == [("settled", 400)] * 2


@pytest.mark.parametrize("late", [True, False], ids=["it-is-late", "it-is-first"])
async def test_who_answers_beside_another_worker_is_booked_once(tenant: Tenant, late: bool) -> None:
    """A worker that was taken for dead: where its commit is the first it is booked as it was used, else whole."""
    await tenant.agent("player", llm=LLM)
    slow = {**GUESS, "usage": USES, "delay_seconds": 0.7}
    turn = turn_of(await tenant.enqueue(ALICE, script(slow, ANSWER), budget={"max_tokens": 9000}))

    async def asked() -> bool:
        return bool(await reservations(tenant, turn))

    await until(asked, 25, "its model is asked")
    ref = await taken_over(tenant, turn)
    if late:
        await commit_uses(tenant.pool, ref, uses((2, 50, 0)))
    ended = await tenant.ended(turn)
    assert ended.view.status == "success"
    first, second, third = await reservations(tenant, turn)
    whole = ("unsettled", None)
    assert (first[2:], second[2:]) == ((whole, ("settled", 50)) if late else (("settled", 400), whole))
    assert third == (2, 1, "settled", 400)
    row = await budget(tenant.pool, turn)
    assert row["spent_tokens"] == row["unsettled_tokens"] + 400 + (50 if late else 400)
    assert (row["reserved_tokens"], row["returned_tokens"]) == (0, 9000 - row["spent_tokens"])


async def taken_over(tenant: Tenant, turn: AgentTurnId) -> TurnRef:
    """Begin the step that runs once more, and reserve for it, as another worker would."""
    ref = await tenant.pool.run(lambda conn: locate_turn(conn, tenant.project, turn))
    assert ref is not None
    begun = await tenant.pool.run(lambda conn: begin_step(conn, ref, 1, BoxCache(0)))
    assert begun.head.step_attempt == 2
    made: Any = await tenant.pool.run(
        lambda conn: reserve_attempt(conn, ref, 1, 2, "scripted/gated", input_tokens=10, max_tokens=100)
    )
    assert made.verdict == "reserved"
    assert [reservation[2] for reservation in await reservations(tenant, turn)] == ["unsettled", "open"]
    return ref
