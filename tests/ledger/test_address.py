"""PostgreSQL addresses with one host or several: what is shown of them, and which sessions they come to."""

import asyncio
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import pytest

from lab.bench.yardsticks.postgres import scratch_database
from tests.support.databases import Databases
from turnstile.embedded.ports import free_port
from turnstile.ledger.address import read_address
from turnstile.ledger.migrate import migrate, pending
from turnstile.ledger.operations.exclusive import LockTimes, try_hold
from turnstile.ledger.pool import Pool
from turnstile.ledger.turns.usage import list_profile_models
from turnstile.processes.addresses import without_password
from turnstile.schema.errors import ConfigError, ServerUnavailable

LOCK_TIMES = LockTimes(watch=0.1, give_up=0.6, settle=0.9, silent=3.0)


def beside(url: str, *hosts: str, options: str = "?target_session_attrs=read-write") -> str:
    """The address with other hosts before its own."""
    split = urlsplit(url)
    login, _, own = split.netloc.rpartition("@")
    return split._replace(netloc=f"{login}@{','.join((*hosts, own))}").geturl() + options


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://u:s3cret@h1:1,h2:2/db?target_session_attrs=read-write", "postgresql://h1:1,h2:2/db"),
        ("postgresql://u:s3,cret@h1,h2:2/db", "postgresql://h1:5432,h2:2/db"),
        ("postgres://u:p%40s3cret@[::1]:7,10.0.0.1/db", "postgresql://[::1]:7,10.0.0.1:5432/db"),
        ("postgresql:///db?host=h1,h2&port=1,2&password=s3cret", "postgresql://h1:1,h2:2/db"),
        ("postgresql:///db", "postgresql://localhost:5432/db"),
    ],
)
def test_what_is_shown_of_an_address(url: str, shown: str) -> None:
    assert read_address(url).shown == Pool(url).server == shown
    assert "s3cret" not in without_password(url)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:s3/cret@h:1/db",
        "postgresql://h:port/db",
        "postgresql://[::1/db",
        "postgresql:///db?host=a,b&port=1,2,3",
    ],
)
def test_an_address_that_cannot_be_read_is_a_config_error_that_does_not_quote_it(url: str) -> None:
    with pytest.raises(ConfigError, match=r"\[database\]\.url") as refused:
        Pool(url)
    assert "s3" not in str(refused.value)


async def test_an_outage_of_all_hosts_is_told_with_their_names() -> None:
    first, second = free_port(), free_port()
    pool = Pool(f"postgresql://u@127.0.0.1:{first},127.0.0.1:{second}/db", patience=0.2)
    for work in (pool.open(), pool.run(list_profile_models)):
        with pytest.raises(ServerUnavailable, match=f"127.0.0.1:{first},127.0.0.1:{second}/db"):
            await work


@pytest.fixture
async def standby(databases: Databases, migrated: str) -> AsyncIterator[str]:
    """A migrated database that takes no writes."""
    name = await databases.create(migrated)
    await databases.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    yield databases.url(name)
    await databases.drop(name)


async def test_the_first_host_that_will_do_serves_pool_migrations_locks_and_yardsticks(database_url: str) -> None:
    url = beside(database_url, f"127.0.0.1:{free_port()}")
    pool = Pool(url, size=1)
    await pool.open(writable=True)
    assert await migrate(pool) == await pending(pool) == []
    assert await pool.run(list_profile_models) == []
    async with try_hold(url, "a lock", "holder", LOCK_TIMES) as hold:
        assert not hold.lost.is_set()
    async with scratch_database(url) as scratch:
        other = Pool(scratch, size=1)
        await other.open()
        await other.close()
    await pool.close()


async def test_a_host_that_is_just_starting_does_not_keep_the_next_one_away(database_url: str) -> None:
    """A server that starts up or recovers refuses sessions with 57P03."""

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(8)  # the question for TLS
        writer.write(b"N")
        await reader.read(1000)
        fields = b"SFATAL\0VFATAL\0C57P03\0Mthe database system is starting up\0\0"
        writer.write(b"E" + (len(fields) + 4).to_bytes(4) + fields)
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as starting:
        port = starting.sockets[0].getsockname()[1]
        pool = Pool(beside(database_url, f"127.0.0.1:{port}"), size=1)
        await pool.open()
        await pool.close()


async def test_a_server_that_takes_no_writes_is_told_where_they_are_needed(standby: str) -> None:
    pool = Pool(standby, size=1)
    await pool.open()  # enough for who only reads
    with pytest.raises(ServerUnavailable, match="read-only"):
        await pool.open(writable=True)
    with pytest.raises(ServerUnavailable, match="read-only"):
        async with try_hold(standby, "a lock", "holder", LOCK_TIMES):
            pass
    await pool.close()
