"""Which errors of PostgreSQL pass by themselves, and what is said of them; the server raises each of them itself."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import asyncpg
import pytest

from tests.support.ledger.agents import ALICE, PROJECT, add_agents
from tests.support.ledger.trouble import full_disk, raising
from tests.support.waiting import until_waiting
from turnstile.ledger.pool import Pool
from turnstile.ledger.postgres_errors import ErrorKind, kind_of
from turnstile.ledger.queries import Again
from turnstile.ledger.turns.intake import enqueue
from turnstile.schema.errors import BadRequest, ServerUnavailable
from turnstile.schema.ids import ChannelId
from turnstile.schema.states import ReplyStatus
from turnstile.schema.wire.inbox import EnqueueRequest

CHANNEL = ChannelId("public")

STATEMENTS: dict[str, tuple[str, str]] = {
    "read-only": ("SET transaction_read_only = on; CREATE TABLE public.t()", "the database is read-only (25006)"),
    "canceled": ("SET LOCAL statement_timeout = 5; SELECT pg_sleep(5)", "the database canceled the statement (57014)"),
    "temporary files": (
        "SET LOCAL temp_file_limit = 64; SET LOCAL work_mem = 64; SELECT FROM generate_series(1, 200000) n ORDER BY -n",
        "the database reached a limit of its configuration (53400)",
    ),
    "disk": ("DO $$BEGIN RAISE 'no space' USING ERRCODE = '53100'; END$$", "the database's disk is full (53100)"),
    "memory": ("DO $$BEGIN RAISE 'no' USING ERRCODE = '53200'; END$$", "the database is out of memory (53200)"),
    "input and output": (
        "DO $$BEGIN RAISE 'bad block' USING ERRCODE = '58030'; END$$",
        "the database cannot read or write its files (58030)",
    ),
}


@pytest.fixture
async def hasty(database_url: str) -> AsyncIterator[Pool]:
    """A pool with little patience."""
    pool = Pool(database_url, size=3, patience=0.2)
    yield pool
    await pool.close()


async def test_what_passes_by_itself_is_unavailable_and_says_why(hasty: Pool) -> None:
    for statement, told in STATEMENTS.values():
        runs = 0

        async def work(conn: Any, statement: str = statement) -> None:
            nonlocal runs
            runs += 1
            async with conn.transaction():
                await conn.execute(statement)

        with pytest.raises(ServerUnavailable) as tried:
            await _run(hasty, work)
        assert str(tried.value) == f"{hasty.server}: {told}"
        assert runs > 1, "it was tried again"
        with pytest.raises(ServerUnavailable) as held:
            async with hasty.connection() as conn:
                await work(conn)
        assert str(held.value) == str(tried.value), "on a connection of one's own too"


async def _run(pool: Pool, transition: Any) -> None:
    """As `Pool.run`, with a connection that can do more than `fetch`."""

    async def on(conn: Any) -> None:
        await transition(conn._conn)

    await pool.run(on)


async def test_a_lock_that_is_held_passes(hasty: Pool) -> None:
    async def work(conn: Any) -> str:
        async with conn.transaction():
            await conn.fetch("SET LOCAL lock_timeout = 20")
            await conn.fetch("LOCK TABLE public.cards")
        return "done"

    async with hasty.connection() as holder:
        transaction = holder.transaction()
        await transaction.__aenter__()
        await holder.execute("LOCK TABLE public.cards")
        with pytest.raises(ServerUnavailable, match=r"a lock was not available in time \(55P03\)"):
            await hasty.run(work)
        running = asyncio.create_task(hasty.insist(work))
        await until_waiting(hasty)
        await transaction.__aexit__(None, None, None)
    assert await running == "done"


@pytest.mark.parametrize(
    ("statement", "error"),
    [
        ("SELECT * FROM public.not_there", asyncpg.UndefinedTableError),
        ("SELECT 1/0", asyncpg.DivisionByZeroError),
        ("DO $$BEGIN RAISE 'a rule'; END$$", asyncpg.RaiseError),
    ],
)
async def test_what_never_passes_is_raised_at_once(statement: str, error: type[Exception], hasty: Pool) -> None:
    runs: list[str] = []

    async def work(conn: Any) -> None:
        runs.append(statement)
        await conn.fetch(statement)

    with pytest.raises(error):
        await hasty.run(work)
    assert runs == [statement]


async def test_an_argument_that_no_column_takes_is_no_outage(pool: Pool) -> None:
    """asyncpg finds it before the server does, and nobody waits for it."""
    runs: list[str] = []

    async def work(conn: Any) -> None:
        runs.append("once")
        await conn.fetch("SELECT $1::int", "three")

    with pytest.raises(asyncpg.DataError, match="invalid input for query argument"):
        await pool.run(work)
    assert runs == ["once"]
    with pytest.raises(BadRequest):
        await pool.run(lambda conn: conn.fetch("SELECT $1::text", "a\0b"))


async def _two_at_once(conn: Any) -> None:
    await asyncio.gather(conn.fetch("SELECT pg_sleep(0.1)"), conn.fetch("SELECT 1"))


async def _file_is_missing(_: Any) -> None:
    raise FileNotFoundError("a file of the caller's")


async def _socket_fails(_: Any) -> None:
    raise OSError("a socket of the caller's")


@pytest.mark.parametrize(
    ("mistake", "raised"),
    [(_two_at_once, asyncpg.InterfaceError), (_file_is_missing, FileNotFoundError), (_socket_fails, OSError)],
)
async def test_an_error_of_the_callers_on_an_open_connection_is_no_outage(
    mistake: Callable[[Any], Awaitable[None]], raised: type[Exception], pool: Pool
) -> None:
    runs = 0

    async def work(conn: Any) -> None:
        nonlocal runs
        runs += 1
        await mistake(conn)

    with pytest.raises(raised):
        await pool.run(work)
    with pytest.raises(raised):
        async with pool.connection() as conn:
            await work(conn)
    assert runs == 2, "neither was tried again"


@pytest.mark.parametrize("error", [asyncpg.InterfaceError("connection is closed"), OSError("no route to host")])
async def test_the_same_errors_of_a_lost_connection_are_an_outage(error: Exception, hasty: Pool) -> None:
    runs = 0

    async def work(conn: Any) -> str:
        nonlocal runs
        runs += 1
        if runs == 2:
            return "done"
        conn.terminate()
        raise error

    async def on(conn: Any) -> str:
        return await work(conn._conn)

    assert await hasty.run(on) == "done", "it was tried again on another connection"
    runs = 0
    with pytest.raises(ServerUnavailable, match="no answer from"):
        async with hasty.connection() as conn:
            await work(conn)


async def test_what_others_are_always_in_the_way_of_is_unavailable(pool: Pool) -> None:
    async def never(_: Any) -> None:
        raise Again

    with pytest.raises(ServerUnavailable, match="others were in the way"):
        await pool.run(never)
    with pytest.raises(ServerUnavailable, match="others were in the way"):
        await pool.run(lambda conn: conn.fetch("DO $$BEGIN RAISE 'x' USING ERRCODE = '40001'; END$$"))


async def test_a_session_that_is_read_only_is_not_used_again(database_url: str, pool: Pool) -> None:
    """It may be of a server that is no primary any more, or have the setting of before; another one has not."""
    name = database_url.rpartition("/")[2]
    async with pool.connection() as conn:
        await conn.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    writer = Pool(database_url, size=1)
    async with writer.connection() as conn:  # a session that began read-only
        await conn.fetch("SELECT 1")
    async with pool.connection() as conn:
        await conn.execute(f"ALTER DATABASE {name} RESET default_transaction_read_only")
    await writer.run(lambda conn: conn.fetch("CREATE TABLE public.written()"))
    await writer.close()


async def test_a_full_disk_is_unavailable_and_passes(hasty: Pool) -> None:
    """A real one, below the table of cards."""
    await add_agents(hasty, ALICE)

    async def ask(correlation: str) -> ReplyStatus:
        request = EnqueueRequest(agent_id=ALICE, instruction="x" * 100_000, correlation_id=correlation)
        done = await enqueue(hasty, PROJECT, CHANNEL, request, {}, depth_limit=20, sender="test")
        return done.reply.status

    async def ask_often() -> None:
        for number in range(50):  # a page that is there already may have room
            await ask(f"c{number}")

    async with full_disk(hasty, "public.cards"):
        with pytest.raises(ServerUnavailable, match=r"the database's disk is full \(53100\)"):
            await ask_often()
    assert await ask("c50") is ReplyStatus.ACCEPTED


async def test_what_cannot_be_had_again_is_tried_for_as_long_as_it_takes(hasty: Pool) -> None:
    async def work(conn: Any) -> str:
        await conn.fetch(
            "INSERT INTO public.cards (card_id, tenant_id, content, metadata) VALUES ('c', 'p', '{}', '{}')"
        )
        return "done"

    async with raising(hasty, "53100"):
        insisting = asyncio.create_task(hasty.insist(work))
        with pytest.raises(ServerUnavailable):
            await hasty.run(work)
        await asyncio.sleep(0.3)
        assert not insisting.done()
    assert await insisting == "done"


@pytest.mark.parametrize(
    ("sqlstate", "kind"),
    [
        ("08006", ErrorKind.AWAY),
        ("57P03", ErrorKind.AWAY),
        ("53300", ErrorKind.UNABLE),
        ("53000", ErrorKind.UNABLE),
        ("55006", ErrorKind.UNABLE),
        ("40P01", ErrorKind.CONFLICT),
        ("23505", ErrorKind.CONFLICT),
        ("28P01", ErrorKind.REFUSED),
        ("22021", ErrorKind.UNSTORABLE),
        ("22P05", ErrorKind.UNSTORABLE),
        ("25P02", ErrorKind.PERMANENT),
        ("23503", ErrorKind.PERMANENT),
        ("42501", ErrorKind.PERMANENT),
        ("54000", ErrorKind.PERMANENT),
        ("P0001", ErrorKind.PERMANENT),
        ("XX000", ErrorKind.PERMANENT),
    ],
)
def test_the_class_decides(sqlstate: str, kind: ErrorKind) -> None:
    error = asyncpg.PostgresError("words")
    vars(error)["sqlstate"] = sqlstate
    assert kind_of(error) is kind
