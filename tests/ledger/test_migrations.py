"""Migrations: once, in order, whoever else migrates; and the database's words are Python's words."""

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from enum import StrEnum

import pytest

from tests.support.databases import Databases
from tests.support.ledger.agents import rows
from turnstile.ledger import migrate as module
from turnstile.ledger import pool as pool_module
from turnstile.ledger.migrate import MigrationError, migrate, migrations, pending
from turnstile.ledger.pool import Pool, ServerTooOld
from turnstile.schema.errors import ServerUnavailable
from turnstile.schema.states import HeadStatus, InboxStatus, StepStatus, TurnStatus, WaitStatus

NAMES = [migration.name for migration in migrations()]


@pytest.fixture
async def empty_url(databases: Databases) -> AsyncIterator[str]:
    """A database that was never migrated."""
    name = await databases.create()
    yield databases.url(name)
    await databases.drop(name)


async def test_migrations_are_applied_once_and_in_order(empty_url: str) -> None:
    pool = Pool(empty_url)
    assert await pending(pool) == NAMES
    assert await migrate(pool) == NAMES
    assert await migrate(pool) == []
    assert await pending(pool) == []
    await pool.close()


async def test_migrators_at_once_apply_each_migration_once(empty_url: str) -> None:
    pools = [Pool(empty_url, size=1) for _ in range(4)]
    applied = await asyncio.gather(*(migrate(pool) for pool in pools))
    assert sorted(name for names in applied for name in names) == NAMES
    for pool in pools:
        await pool.close()


async def test_a_migration_that_deadlocks_with_what_runs_is_applied_again(
    empty_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    slow = "CREATE TABLE t (); LOCK TABLE public.cards; SELECT pg_sleep(0.3); LOCK TABLE public.boxes"
    crossing = replace(migrations()[-1], name="9999_cross_locks", sql=slow)
    pool, other = Pool(empty_url), Pool(empty_url)
    await migrate(pool)
    monkeypatch.setattr(module, "migrations", lambda: [*migrations(), crossing])
    async with other.connection() as conn, conn.transaction():
        await conn.execute("SET LOCAL deadlock_timeout = '1min'")  # so that the migration is the one that gives way
        await conn.execute("LOCK TABLE public.boxes")
        migrating = asyncio.create_task(migrate(pool))
        await conn.execute("SELECT pg_sleep(0.15)")
        await conn.execute("LOCK TABLE public.cards")
    assert await migrating == ["9999_cross_locks"]
    assert "migration 9999_cross_locks met a deadlock, and is applied again" in caplog.text
    await pool.close()
    await other.close()


async def test_a_migration_that_fails_leaves_nothing_behind(empty_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = replace(migrations()[-1], name="9999_break_it", sql="CREATE TABLE t (); SELECT 1 / 0")
    monkeypatch.setattr(module, "migrations", lambda: [*migrations(), broken])
    pool = Pool(empty_url)
    with pytest.raises(Exception, match="division by zero"):
        await migrate(pool)
    assert await pending(pool) == ["9999_break_it"]
    assert await rows(pool, "SELECT to_regclass('t') AS found") == [{"found": None}]
    monkeypatch.undo()
    assert await migrate(pool) == []  # and the lock is free
    await pool.close()


async def test_an_edited_migration_is_named(pool: Pool) -> None:
    await rows(pool, "UPDATE state.migrations SET checksum = 'x' WHERE name = $1", NAMES[1])
    for ask in (migrate, pending):
        with pytest.raises(MigrationError, match=NAMES[1]):
            await ask(pool)


async def test_a_migration_of_another_version_is_named(pool: Pool) -> None:
    await rows(pool, "INSERT INTO state.migrations VALUES ('9999_from_the_future', 'x')")
    for ask in (migrate, pending):
        with pytest.raises(MigrationError, match="9999_from_the_future"):
            await ask(pool)


async def test_a_server_that_is_too_old_is_refused_in_words(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    await pool.open()
    monkeypatch.setattr(pool_module, "MINIMUM_SERVER", 990_000)
    with pytest.raises(ServerTooOld, match=r"PostgreSQL 16 or newer is needed, and postgresql://[^ @]+ runs 18"):
        await pool.open()


async def test_a_server_that_is_away_is_named_without_its_password() -> None:
    pool = Pool("postgresql://user:secret@127.0.0.1:1/db", patience=0)
    for attempt in (pool.open(), migrate(pool), pool.run(lambda conn: conn.fetch("SELECT 1"))):
        with pytest.raises(ServerUnavailable, match=r"postgresql://127\.0\.0\.1:1/db") as away:
            await attempt
        assert "secret" not in str(away.value)
    await pool.close()


@pytest.mark.parametrize(
    ("table", "column", "words"),
    [
        ("state.agent_state_head", "status", HeadStatus),
        ("state.agent_inbox", "status", InboxStatus),
        ("state.turn_waiting_tools", "wait_status", WaitStatus),
        ("state.agent_steps", "status", StepStatus),
        ("state.turn_outcomes", "status", TurnStatus),
    ],
)
async def test_the_checks_have_the_words_of_the_enums(
    pool: Pool, table: str, column: str, words: type[StrEnum]
) -> None:
    found = await rows(
        pool,
        "SELECT pg_get_constraintdef(c.oid) AS text FROM pg_constraint c JOIN pg_attribute a"
        " ON a.attrelid = c.conrelid AND a.attname = $2 AND c.conkey = ARRAY[a.attnum]"
        " WHERE c.contype = 'c' AND c.conrelid = $1::text::regclass",
        table,
        column,
    )
    lists = [re.search(r"'\{([a-z_,]+)\}'::text\[\]", row["text"]) for row in found]
    said = [
        set(one[1].split(",")) if one is not None else set(re.findall(r"'([a-z_]+)'::text", row["text"]))
        for one, row in zip(lists, found, strict=True)
    ]
    assert said == [set(words)]
