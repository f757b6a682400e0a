"""The past that `growth` writes: turns as the kernel leaves them, and conversations that go on."""

from datetime import UTC, datetime, timedelta

from lab.bench.agents import add_agents
from lab.bench.ledgers.ended_turns import fill
from lab.bench.ledgers.ledger import Ledger
from lab.bench.ledgers.past import FIRST_CONVERSATION, add_past
from turnstile.ledger.pool import Pool, Session
from turnstile.ledger.turns.cards import BoxCache
from turnstile.ledger.turns.steps import begin_step
from turnstile.schema.ids import ProjectId

PROJECT = ProjectId("past")
AGENTS, ROWS, CONVERSATIONS = 3, 50, 7


async def test_a_conversation_of_the_past_goes_on(database_url: str, pool: Pool, keeper: Session) -> None:
    agents = await add_agents(pool, PROJECT, "bench", "instant", AGENTS)
    parts: list[int] = []
    await add_past(database_url, PROJECT, agents, ROWS, CONVERSATIONS, parts.append)
    assert sum(parts) == ROWS
    ledger = Ledger(database_url, pool, PROJECT, "bench", agents)
    for agent in agents:
        turn = await ledger.ask(agent, "", FIRST_CONVERSATION)
        assert turn.turn_epoch == ROWS + 1
        begun = await pool.run(lambda conn, turn=turn: begin_step(conn, turn, 1, BoxCache(0)))
        assert [card.type for card in begun.output] == ["agent.thought", "task.deliverable"]
    [found] = await keeper.fetch("SELECT count(*) AS n, sum(turn_count) AS turns FROM state.conversations")
    assert (found["n"], found["turns"]) == (CONVERSATIONS, CONVERSATIONS * (ROWS // CONVERSATIONS) + AGENTS)
    [left] = await keeper.fetch("SELECT count(*) AS n FROM pg_trigger WHERE tgenabled = 'D'")
    assert left["n"] == 0


async def test_the_past_lies_before_the_day_that_is_audited(database_url: str, pool: Pool, keeper: Session) -> None:
    agents = await add_agents(pool, PROJECT, "bench", "instant", AGENTS)
    await add_past(database_url, PROJECT, agents, ROWS, CONVERSATIONS, lambda _: None)
    [found] = await keeper.fetch("SELECT max(created_at) AS last FROM state.agent_inbox")
    assert found["last"] < datetime.now(UTC) - timedelta(days=1)
    await fill(database_url, 100, days=1)
    done = await Ledger(database_url, pool, PROJECT, "bench", agents).audit()
    assert done.violations == []
