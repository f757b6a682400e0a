"""The old primary comes back alone beside the one that was promoted (protocol §16): nothing of ours writes to it."""

from collections.abc import AsyncIterator

import pytest

from tests.support.ledger.agents import ALICE, add_agents, ask
from tests.support.processes.postgres_pair import PostgresPair
from turnstile.ledger.migrate import migrate
from turnstile.ledger.pool import Pool, Session
from turnstile.schema.errors import ServerUnavailable


@pytest.fixture
async def ledger(pair: PostgresPair) -> AsyncIterator[Pool]:
    """A pool that has worked with the primary, and knows both addresses."""
    pool = Pool(pair.url(), size=2, patience=1.0)
    await migrate(pool)
    await pool.close()  # the session that migrated was there before the era
    await add_agents(pool, ALICE)
    yield pool
    await pool.close()


async def test_nothing_is_written_to_an_old_primary_that_comes_back(pair: PostgresPair, ledger: Pool) -> None:
    await ask(ledger)
    await pair.until_standby_has_all()
    await pair.kill("a")
    await pair.promote("b")
    await ask(ledger)  # the same pool, on the other server
    assert await eras(pair) == {"b": 1}
    await pair.start("a")
    before = await pair.next_transaction("a")
    await ask(ledger)
    fresh = Pool(pair.url(), size=1)  # a process that has seen no history asks both
    await ask(fresh)
    await fresh.close()
    await pair.kill("b")
    with pytest.raises(ServerUnavailable, match="older history"):
        await ask(ledger)
    reader = Pool(pair.url("b", "a"), size=1, patience=0.2, read_only=True)
    reader._histories._newest = ledger._histories._newest
    with pytest.raises(ServerUnavailable, match="older history"):
        await reader.open()
    assert await pair.next_transaction("a") == before
    await pair.start("b")
    await ask(ledger)
    [turns] = await pair.fetch("b", "SELECT count(*) AS n FROM state.agent_inbox")
    assert turns["n"] == 5


async def test_sessions_on_the_old_primary_are_given_up_once_the_new_one_is_seen(
    pair: PostgresPair, ledger: Pool
) -> None:
    """Both run at once: nobody has ended the old one."""
    await ask(ledger)
    await pair.until_standby_has_all()
    await pair.cut()
    await pair.promote("b")
    async with ledger.connection() as old:
        assert await port_of(old) == pair.ports["a"]
        ledger._histories._last = pair.url("b")  # as if "a" had not answered for a moment
        async with ledger.connection() as new:
            assert await port_of(new) == pair.ports["b"]
    before = await pair.next_transaction("a")
    async with ledger.connection() as one, ledger.connection() as other:
        assert [await port_of(each) for each in (one, other)] == [pair.ports["b"]] * 2
    await ask(ledger)
    assert await pair.next_transaction("a") == before
    assert await eras(pair) == {"b": 1}


async def port_of(conn: Session) -> int:
    """Which server a session is on."""
    [found] = await conn.fetch("SELECT inet_server_port() AS port")
    return found["port"]


async def eras(pair: PostgresPair) -> dict[str, int]:
    """The era of the server that was promoted."""
    [found] = await pair.fetch("b", "SELECT era FROM state.ledger_era")
    return {"b": found["era"]}
