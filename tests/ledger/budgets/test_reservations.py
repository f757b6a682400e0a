"""What a model may use is reserved before it is asked, and settled with the step."""

from tests.support.ledger.budgets import budget, commit_uses, end, figures, reserve, spender, uses
from turnstile.ledger.pool import Pool


async def test_an_attempt_reserves_and_its_commit_settles(spending: Pool) -> None:
    turn = await spender(spending, {"max_tokens": 1000, "max_cost": 5000, "max_turns": 3})
    made = await reserve(spending, turn)
    assert made.verdict == "reserved"
    name = turn.agent_turn_id
    assert await figures(spending, name) == (1000, 0, 150)
    assert await figures(spending, name, "cost") == (5000, 0, 700)
    assert await figures(spending, name, "turns") == (3, 1, 0)
    await commit_uses(spending, turn, uses((1, 120, 444)))
    assert await figures(spending, name) == (1000, 120, 0)
    assert await figures(spending, name, "cost") == (5000, 444, 0)
    await end(spending, turn, step=2)
    row = await budget(spending, name)
    assert row["closed_at"] is not None
    assert (row["returned_tokens"], row["returned_cost"], row["returned_turns"]) == (880, 4556, 2)
