"""Steps of a call (protocol §21): one value for each key, while the call waits, within bounds and the turn's budget."""

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.support.ledger.agents import ALICE, BOB, CAROL, CHANNEL, PROJECT, rows, value
from tests.support.ledger.budgets import budget
from tests.support.ledger.calls import ask_to_stop, end, ending, sleeper, stop_on, tell, told
from tests.support.ledger.people import asking
from tests.support.ledger.unknown_calls import begun
from tests.support.waiting import Counting, overtaken
from turnstile.ledger.access.costs import CostLine, sum_costs
from turnstile.ledger.access.now import list_turn_calls, page_turns_with_use
from turnstile.ledger.queries import Connection
from turnstile.ledger.turns.call_steps import step_of_call
from turnstile.ledger.turns.usage import sum_turn_usage, sum_usage
from turnstile.ledger.turns.views import list_calls
from turnstile.schema.api import UsageLine
from turnstile.schema.errors import Refused
from turnstile.schema.ids import AgentTurnId, ToolCallId
from turnstile.schema.ledger_reads import SentCall
from turnstile.schema.wire.call_requests import VALUE_BYTES, StepOutcome, StepUse

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
Step = tuple[str, Any]
MANY = """
SELECT state.step_of_call($1, 'a', 'k' || n, $2::jsonb) ->> 'verdict' AS verdict FROM generate_series(1, $3::int) n
"""


async def step_on(conn: Connection, call: str, value: Any = None, key: str = "k", use: StepUse | None = None) -> Step:
    """step_of_call: a look without a value; the verdict and the value, or why not."""
    outcome = None if value is None else StepOutcome(value=value, usage=use)
    try:
        done = await step_of_call(conn, PROJECT, ToolCallId(call), key, outcome)
    except Refused as refused:
        return refused.code, None
    return done.verdict, done.value


async def step(pool: Counting, call: str, value: Any = None, key: str = "k", use: StepUse | None = None) -> Step:
    """As `step_on`, in a transaction of its own."""
    return await pool.run(lambda conn: step_on(conn, call, value, key, use))


def used(tokens: int, cost: float = 0.0, model: str = "m") -> StepUse:
    return StepUse(model=model, tokens=tokens, written=tokens // 4, cost=cost)


async def test_the_first_value_counts_for_every_run_and_after_the_end(counting: Counting) -> None:
    turn = await sleeper(counting, "a")
    assert await step(counting, "a") == ("absent", None)
    first = await asyncio.gather(*(step(counting, "a", [n]) for n in range(6)))
    [chosen] = [value for verdict, value in first if verdict == "recorded"]
    assert [value for _, value in first] == [chosen] * 6
    late = await overtaken(counting, lambda conn: step_on(conn, "a", {"x": 1}, "2"), step(counting, "a", "other", "2"))
    assert late == ("duplicate", {"x": 1})
    assert await step(counting, "a", False, "3") == ("recorded", False)
    await end(counting, turn)
    assert await step(counting, "a", "late") == ("duplicate", chosen)
    assert await step(counting, "a", "late", "4") == ("parent_over", None)
    assert [row["seq"] for row in await rows(counting, "SELECT seq FROM state.call_steps ORDER BY seq")] == [1, 2, 3]


async def test_nothing_is_recorded_for_a_call_that_is_held_answered_or_of_a_turn_that_shall_stop(
    counting: Counting,
) -> None:
    await asking(counting, "held")
    assert await step(counting, "held", 1) == ("not_sent", None)
    await sleeper(counting, "told", "other", agent=BOB)
    await told(counting, "told")
    assert await step(counting, "told") == ("parent_over", None)
    turn = await sleeper(counting, "a", agent=CAROL)
    await ask_to_stop(counting, turn.agent_turn_id)
    for value_given in (None, 1):
        assert await step(counting, "a", value_given) == ("parent_stopping", None)
    assert await step(counting, "none", 1) == ("unknown_call", None)
    await end(counting, turn)
    assert await value(counting, "SELECT count(*) FROM state.call_steps") == 0


async def test_a_step_and_a_stop_an_end_or_a_report_at_once(counting: Counting) -> None:
    first = await sleeper(counting, "a")
    assert await overtaken(counting, lambda conn: stop_on(conn, first), step(counting, "a", 1)) == (
        "parent_stopping",
        None,
    )
    await end(counting, first)
    second = await sleeper(counting, "b")
    assert await overtaken(counting, ending(second), step(counting, "b", 1)) == ("parent_over", None)
    third = await sleeper(counting, "c", "d")
    await overtaken(counting, lambda conn: step_on(conn, "c", 1), tell(counting, "c"))
    assert await step(counting, "c") == ("duplicate", 1)
    await overtaken(counting, lambda conn: step_on(conn, "d", 2), end(counting, third))
    assert await step(counting, "d") == ("duplicate", 2)


async def test_a_call_has_so_many_steps_and_so_many_bytes(counting: Counting) -> None:
    turn = await sleeper(counting, "a")
    made = await rows(counting, MANY, PROJECT, '{"value": 1, "bytes": 1}', 1001)
    assert [row["verdict"] for row in made] == ["recorded"] * 1000 + ["too_many_steps"]
    assert await step(counting, "a", None, "more") == ("too_many_steps", None)
    assert await step(counting, "a", None, "k7") == ("duplicate", 1)
    await end(counting, turn)
    turn = await sleeper(counting, "b")
    made = await rows(counting, MANY.replace("'a'", "'b'"), PROJECT, f'{{"value": 1, "bytes": {VALUE_BYTES}}}', 33)
    assert [row["verdict"] for row in made] == ["recorded"] * 32 + ["too_many_steps"]
    await end(counting, turn)
    await sleeper(counting, "c")
    assert await step(counting, "c", "x" * (VALUE_BYTES - 2)) == ("recorded", "x" * (VALUE_BYTES - 2))
    assert await step(counting, "c", "x" * (VALUE_BYTES - 1), "2") == ("result_too_large", None)


async def test_what_a_model_used_is_booked_with_its_step_and_what_is_beyond_ends_it(counting: Counting) -> None:
    turn = await sleeper(counting, "a", budget={"max_tokens": 100, "max_cost_usd": 0.5})
    assert await step(counting, "a", 1, "1", used(60, 0.1)) == ("recorded", 1)
    assert await step(counting, "a", 2, "1", used(60, 0.1)) == ("duplicate", 1)
    assert await step(counting, "a", None, "2") == ("absent", None)
    both = await asyncio.gather(*(step(counting, "a", key, key, used(50)) for key in ("2", "3")))
    assert {verdict for verdict, _ in both} == {"recorded"}
    spent = await budget(counting, turn.agent_turn_id)
    assert (spent["spent_tokens"], spent["beyond_tokens"], spent["reserved_tokens"]) == (160, 60, 0)
    assert (spent["spent_cost"], spent["beyond_cost"]) == (100_000, 0)
    assert await step(counting, "a", None, "4") == ("budget_exhausted", None)
    assert await step(counting, "a", None, "3") == ("duplicate", "3")
    await end(counting, turn)
    assert (await budget(counting, turn.agent_turn_id))["closed_at"] is not None


@pytest.mark.parametrize("use", [None, used(7, 0.000001)])
async def test_without_a_budget_nothing_is_booked(counting: Counting, use: StepUse | None) -> None:
    await begun(counting, "a", agent=ALICE)
    assert await step(counting, "a", 1, use=use) == ("recorded", 1)
    [row] = await rows(counting, "SELECT model, tokens, written, cost, attempt FROM state.call_steps")
    assert tuple(row.values()) == ((None,) * 5 if use is None else ("m", 7, 1, 1, None))
    assert await value(counting, "SELECT count(*) FROM state.budget_reservations") == 0


async def views_of_use(pool: Counting, turn: AgentTurnId) -> dict[str, tuple[Any, ...]]:
    """Tokens read and written and dollars, by each view that sums them."""

    def of(line: UsageLine | CostLine) -> tuple[Any, ...]:
        cost = line.response_cost if isinstance(line, UsageLine) else line.cost
        return line.prompt_tokens, line.completion_tokens, cost

    seen: dict[str, tuple[Any, ...]] = {}
    for grouping in ("agent", "model", "day"):
        lines = await pool.run(lambda conn, by=grouping: sum_usage(conn, PROJECT, by, since=LONG_AGO, channel=CHANNEL))
        seen[f"usage by {grouping}"] = of(lines[-1])
        seen |= {f"{grouping} {line.name}": of(line) for line in lines[:-1] if grouping == "model"}
    costs = await pool.run(lambda conn: sum_costs(conn, PROJECT, channel=None, since=LONG_AGO))
    seen["costs"] = of(costs.total)
    seen |= {f"cost of {line.name}": of(line) for line in costs.lines["model"]}
    whole = await pool.run(lambda conn: sum_turn_usage(conn, PROJECT, turn))
    seen["turn"] = whole.prompt_tokens, whole.completion_tokens, costs.total.cost
    first = await pool.run(lambda conn: sum_turn_usage(conn, PROJECT, turn, after_step=0, until_step=1))
    assert first == whole
    [line] = await pool.run(lambda conn: page_turns_with_use(conn, PROJECT, channel=None, row_limit=9))
    assert (line.tokens, line.cost, line.steps, line.model) == (60, pytest.approx(0.0301), 1, "n")
    [call] = await pool.run(lambda conn: list_calls(conn, PROJECT, turn))
    assert [call] == [
        SentCall.model_validate(c.model_dump())
        for c in await pool.run(lambda conn: list_turn_calls(conn, PROJECT, turn))
    ]
    assert call.recorded is not None
    assert (call.recorded.count, call.recorded.tokens, call.recorded.cost) == (3, 60, pytest.approx(0.0301))
    shown = [(did.key, did.model, did.tokens, did.bytes) for did in call.recorded.steps]
    assert shown == [("1", "m", 40, 1), ("2", None, None, 1), ("3", "n", 20, 1)]
    return seen


async def test_every_view_counts_what_steps_used_and_so_do_the_sums_of_removed_turns(counting: Counting) -> None:
    turn = await sleeper(counting, "a")
    for key, use in (("1", used(40, 0.03)), ("2", None), ("3", used(20, 0.0001, "n"))):
        await step(counting, "a", 1, key, use)
    m, n = (30, 10, pytest.approx(0.03)), (15, 5, pytest.approx(0.0001))
    total = (45, 15, pytest.approx(0.0301))
    seen = await views_of_use(counting, turn.agent_turn_id)
    assert seen == {
        **dict.fromkeys(("usage by agent", "usage by model", "usage by day", "costs", "turn"), total),
        "model m": m,
        "model n": n,
        "cost of m": m,
        "cost of n": n,
    }
    await end(counting, turn)
    await end(counting, await sleeper(counting, "b"))  # whose box the agent goes on with
    await rows(counting, "SELECT state.remove_turns(ARRAY[$1])", turn.agent_turn_id)
    assert await value(counting, "SELECT count(*) FROM state.call_steps") == 0
    past = await counting.run(lambda conn: sum_costs(conn, PROJECT, channel=CHANNEL, since=LONG_AGO))
    assert (past.total.turns, past.total.prompt_tokens, past.total.completion_tokens, past.total.cost) == (1, *total)
