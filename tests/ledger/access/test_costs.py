"""What turns cost, summed by day, agent, model, channel and profile at once."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.support.ledger.agents import ALICE, BOB, CHANNEL, PROJECT, STARTED, begin, card, lease, profile
from turnstile.ledger.access.costs import Costs, sum_costs
from turnstile.ledger.pool import Pool
from turnstile.ledger.roster import put_profile
from turnstile.ledger.turns.ends import finish_turn
from turnstile.ledger.turns.steps import commit_step
from turnstile.rules.turn_ends import Ending
from turnstile.rules.turn_step import StepRecord
from turnstile.schema.cards import CardType
from turnstile.schema.ids import AgentId, ChannelId, ProjectId
from turnstile.schema.states import TurnStatus
from turnstile.schema.step_metadata import ContinueMetadata, EndMetadata

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


def attempt(model: str, tokens: int, cost: float | None, error: str | None = None) -> dict[str, Any]:
    """An attempt as steps record it."""
    counts = {"prompt_tokens": tokens, "completion_tokens": tokens // 10, "total_tokens": tokens + tokens // 10}
    return {"model": model, "usage": counts, "usage_kind": "exact", "response_cost": cost, "error_code": error}


async def spent(pool: Pool, agent: AgentId, *attempts: dict[str, Any]) -> None:
    """A turn of one step with these attempts, and one without."""
    turn = await lease(pool, agent)
    await begin(pool, turn)
    metadata = ContinueMetadata(attempts=attempts)
    record = StepRecord(1, metadata, [card(turn, 1, "thought")], [], STARTED)
    await pool.run(lambda conn: commit_step(conn, turn, record))
    await begin(pool, turn, 2)
    made = card(turn, 2, "deliverable", CardType.DELIVERABLE)
    last = StepRecord(2, EndMetadata(), [made], [], STARTED + timedelta(days=1))
    await pool.run(lambda conn: finish_turn(conn, turn, Ending(TurnStatus.SUCCESS, made.card_id), record=last))


async def costs(
    pool: Pool,
    *,
    project: ProjectId = PROJECT,
    channel: ChannelId | None = None,
    since: datetime = LONG_AGO,
    **more: Any,
) -> Costs:
    """sum_costs."""
    return await pool.run(lambda conn: sum_costs(conn, project, channel=channel, since=since, **more))


async def test_attempts_are_summed_in_each_way_at_once(agents: Pool) -> None:
    await spent(agents, ALICE, attempt("big", 1000, 0.5), attempt("big", 1000, None, "timeout"))
    await spent(agents, BOB, attempt("small", 100, 0.01))
    await put_profile(agents, PROJECT, profile(max_steps=3))
    await spent(agents, BOB, attempt("big", 10, 0.02))
    found = await costs(agents, channel=CHANNEL)
    total = found.total
    assert (total.turns, total.attempts, total.failed_attempts, total.tokens) == (3, 4, 1, 2321)
    assert total.cost == pytest.approx(0.53)
    assert {line.name: (line.turns, line.prompt_tokens) for line in found.lines["agent"]} == {
        "alice": (1, 2000),
        "bob": (2, 110),
    }
    assert {line.name: line.turns for line in found.lines["model"]} == {"big": 2, "small": 1}
    assert {line.name: line.turns for line in found.lines["channel"]} == {"public": 3}
    assert [(line.name, line.turns, line.cost) for line in found.lines["profile"]] == [
        ("helper", 3, pytest.approx(0.53))
    ], "two versions of one profile"
    assert [line.name for line in found.lines["day"]] == ["2026-01-01"]
    assert not found.cut


async def test_what_is_not_asked_for_is_not_summed(agents: Pool) -> None:
    await spent(agents, ALICE, attempt("big", 1000, None))
    nothing = (0, 0, 0, None)
    for found in (
        await costs(agents, project=ProjectId("other")),
        await costs(agents, channel=ChannelId("elsewhere")),
        await costs(agents, since=datetime.now(UTC) + timedelta(hours=1)),
    ):
        assert (found.total.turns, found.total.attempts, found.total.tokens, found.total.cost) == nothing
        assert not any(found.lines.values())
    assert (await costs(agents, row_limit=1)).cut
    assert (await costs(agents)).total.cost is None
