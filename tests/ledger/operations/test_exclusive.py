"""Locks of one process (protocol §8): who has one, who hears that it is lost, and who lets go first."""

import asyncio
import time
from urllib.parse import urlsplit

import pytest

from lab.support.proxy import Proxy
from tests.support.conditions import until
from turnstile.ledger.operations.exclusive import ExclusiveLock, LockTaken, LockTimes, try_hold
from turnstile.ledger.pool import Pool
from turnstile.schema.errors import ServerUnavailable

NAME = "turnstile.worker/svc1_counter_main"
QUICK = LockTimes(watch=0.1, give_up=0.6, settle=0.9, silent=3.0)


async def is_free(url: str, name: str = NAME) -> bool:
    """Whether somebody else could have it now."""
    try:
        async with try_hold(url, name, "visitor", QUICK):
            return True
    except LockTaken:
        return False


async def lost(hold: ExclusiveLock, within: float) -> float:
    """After how many seconds the holder heard of it."""
    began = time.monotonic()
    await asyncio.wait_for(hold.lost.wait(), within)
    return time.monotonic() - began


async def test_one_session_has_it_until_it_lets_go(database_url: str) -> None:
    async with try_hold(database_url, NAME, "worker@here-1", QUICK) as hold:
        with pytest.raises(LockTaken) as refused:
            async with try_hold(database_url, NAME, "worker@here-2", QUICK):
                pass
        assert refused.value.holder == "worker@here-1"
        assert await is_free(database_url, NAME.replace("worker", "bridge"))
        await asyncio.sleep(QUICK.silent + 0.3)  # asking keeps the session alive
        assert not hold.lost.is_set()
        assert not await is_free(database_url)
    assert await is_free(database_url)


async def test_a_session_that_is_ended_is_heard_of_at_once(database_url: str, pool: Pool) -> None:
    async with try_hold(database_url, NAME, "holder", LockTimes(watch=30, give_up=60, settle=90, silent=120)) as hold:
        async with pool.connection() as conn:
            await conn.fetch("SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'")
        await lost(hold, 25)  # the next look is after 30
        assert "closed" in hold.why
        assert await is_free(database_url)


async def test_who_is_cut_off_gives_up_before_the_server_lets_go(database_url: str) -> None:
    server = urlsplit(database_url)
    assert server.port is not None
    port = server.port
    proxy = Proxy(lambda: port)
    await proxy.start()
    through = server._replace(netloc=f"{server.username}:{server.password}@127.0.0.1:{proxy.port}").geturl()
    try:
        async with try_hold(through, NAME, "holder", QUICK) as hold:
            stalled = asyncio.create_task(proxy.stall(10))
            gave_up = await lost(hold, 25)
            assert not await is_free(database_url)

            async def let_go() -> bool:
                return await is_free(database_url)

            began = time.monotonic()
            await until(let_go, 25, "the server lets go", pause=0.05)
            assert gave_up < QUICK.silent
            assert gave_up + time.monotonic() - began >= QUICK.silent - QUICK.watch - 0.1
            stalled.cancel()
    finally:
        await proxy.close()


async def test_a_server_that_is_away_says_so(database_url: str) -> None:
    away = urlsplit(database_url)._replace(netloc="nobody@127.0.0.1:1").geturl()
    with pytest.raises(ServerUnavailable):
        async with try_hold(away, NAME, "holder", QUICK):
            pass
