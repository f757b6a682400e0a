"""The schema: made of files at once, migrated step by step, the same either way; its words are Python's words."""

import asyncio
import re
from collections.abc import AsyncIterator, Iterable
from dataclasses import replace
from typing import cast, get_args

import pytest

from tests.support.databases import Databases
from tests.support.ledger.agents import rows
from tests.support.ledger.catalog import baseline, differences, read_catalog
from tests.support.paths import ROOT
from turnstile.ledger import migrate as module
from turnstile.ledger import pool as pool_module
from turnstile.ledger.migrate import MigrationError, SchemaFile, migrate, migrations, pending, schema_files
from turnstile.ledger.pool import Pool, ServerTooOld, Session
from turnstile.ledger.queries import Connection
from turnstile.schema.delegation.arguments import Join, Losers
from turnstile.schema.errors import ServerUnavailable
from turnstile.schema.states import HeadStatus, InboxStatus, StepStatus, TurnStatus, WaitStatus

FILES = schema_files()
NAMES = [file.name for file in FILES]
TRIGGER = re.compile(r"CREATE (?:OR REPLACE )?(?:CONSTRAINT )?TRIGGER \w+ .*?EXECUTE FUNCTION ([\w.]+)", re.DOTALL)
WIDEST = 120


@pytest.fixture
async def empty(databases: Databases) -> AsyncIterator[Pool]:
    """A pool on a database that was never migrated."""
    name = await databases.create()
    pool = Pool(databases.url(name))
    yield pool
    await pool.close()
    await databases.drop(name)


def migration(name: str, sql: str) -> SchemaFile:
    """A migration that is not in the tree."""
    return SchemaFile(f"migrations/{name}", sql)


async def test_the_files_are_applied_once_and_in_order(empty: Pool) -> None:
    assert await pending(empty) == NAMES
    assert await migrate(empty) == NAMES
    assert await migrate(empty) == []
    assert await pending(empty) == []


async def test_migrators_at_once_apply_each_file_once(empty: Pool, databases: Databases) -> None:
    url = databases.url((await rows(empty, "SELECT current_database() AS name"))[0]["name"])
    pools = [Pool(url, size=1) for _ in range(4)]
    applied = await asyncio.gather(*(migrate(pool) for pool in pools))
    assert sorted(name for names in applied for name in names) == sorted(NAMES)
    for pool in pools:
        await pool.close()


async def test_a_migrated_database_equals_one_that_is_made_of_the_files(
    empty: Pool, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, applied = baseline()
    with monkeypatch.context() as before:
        before.setattr(module, "schema_files", lambda: files)
        before.setattr(module, "migrations", lambda: applied)
        await migrate(empty)
    await migrate(empty)
    assert differences(await empty.run(read_catalog), await pool.run(read_catalog)) == []


async def test_a_migration_that_does_not_lead_to_the_files_shows(
    empty: Pool, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    await migrate(empty)
    late = migration("9998_add_color", "ALTER TABLE public.cards ADD COLUMN color text")
    monkeypatch.setattr(module, "migrations", lambda: [*migrations(), late])
    assert await migrate(empty) == [late.name]
    assert differences(await empty.run(read_catalog), await pool.run(read_catalog)) == ["column cards.color"]


async def test_every_damage_to_the_schema_shows(pool: Pool) -> None:
    whole = await pool.run(read_catalog)
    for damage, name in {
        "ALTER TABLE state.steers ALTER COLUMN due SET DEFAULT true": "column state.steers.due",
        "ALTER TABLE state.steers ALTER COLUMN step_id TYPE varchar": "column state.steers.step_id",
        "ALTER TABLE state.steers SET (fillfactor = 71)": "relation state.steers",
        "DROP INDEX state.steers_open": "relation state.steers_open",
        "ALTER TABLE state.steers DROP CONSTRAINT steer_is_settled": "constraint state.steers steer_is_settled",
        "ALTER TABLE state.steers DISABLE TRIGGER steers_settled": "trigger state.steers steers_settled",
        "ALTER SEQUENCE state.conversation_seq INCREMENT 2": "sequence state.conversation_seq",
        "CREATE FUNCTION state.as_uuid(j int) RETURNS uuid RETURN NULL::uuid": "function state.as_uuid(integer)",
        "CREATE OR REPLACE FUNCTION state.is_service(author text) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE"
        " RETURN author = 'sys'": "function state.is_service(text)",
        "ALTER FUNCTION state.is_marked(text) SET search_path = pg_catalog": "function state.is_marked(text)",
        "CREATE OR REPLACE VIEW state.turn_boxes AS SELECT ''::text AS box_id, ''::text AS agent_turn_id": (
            "relation state.turn_boxes"
        ),
        "GRANT SELECT ON state.steers TO PUBLIC": "relation state.steers",
        "GRANT USAGE ON SCHEMA state TO PUBLIC": "schema state",
        "COMMENT ON COLUMN state.steers.due IS 'words'": "comment column due of table state.steers",
        "CREATE TABLE resource.mine (a int)": "relation resource.mine",
    }.items():

        async def damaged(conn: Connection, damage: str = damage) -> dict[str, str]:
            await conn.fetch(damage)
            return await read_catalog(conn)

        assert name in differences(whole, await pool.rehearse(damaged)), damage


async def test_a_function_whose_file_changed_is_applied_again(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    known = {file.name: file for file in FILES}
    for name, old, new in (
        ("functions/is_service", "coalesce(", "coalesce (/* again */"),
        ("functions/fill_inbox", "'public'", "'elsewhere'"),
        ("functions/charge_enqueue", "RETURN NULL", "RETURN  NULL"),  # with a constraint trigger
        ("views/push_configs", "token IS NOT NULL", "token > ''"),
    ):
        assert old in known[name].sql
        known[name] = replace(known[name], sql=known[name].sql.replace(old, new))
    whole = await pool.run(read_catalog)
    monkeypatch.setattr(module, "schema_files", lambda: list(known.values()))
    changed = [name for name in NAMES if known[name] not in FILES]
    assert await pending(pool) == changed
    assert await migrate(pool) == changed
    assert await migrate(pool) == []
    found = differences(whole, await pool.run(read_catalog))
    assert found == ["function state.fill_inbox()", "relation state.push_configs"]


async def test_what_a_migration_needs_of_functions_comes_after_it(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    late = migration("9998_add_color", "ALTER TABLE public.cards ADD COLUMN color text")
    tables = [replace(file, sql=file.sql.replace("created_at   ", "color text,\n    created_at   ")) for file in FILES]
    color = "CREATE OR REPLACE FUNCTION state.color(card text) RETURNS text LANGUAGE sql STABLE RETURN (\n"
    color += "    SELECT c.color FROM public.cards c WHERE c.card_id = card);"
    files = [*(new if old.name == "tables/cards" else old for old, new in zip(FILES, tables, strict=True))]
    monkeypatch.setattr(module, "schema_files", lambda: [*files, SchemaFile("functions/color", color)])
    with pytest.raises(MigrationError, match=r"\(tables/cards differ, and no migration is new\): export its projects"):
        await migrate(pool)
    monkeypatch.setattr(module, "migrations", lambda: [*migrations(), late])
    assert await pending(pool) == [late.name, "functions/color"]
    assert await migrate(pool) == [late.name, "functions/color"]
    assert await migrate(pool) == []


async def test_words_about_a_table_are_no_change_of_it(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    told = [replace(file, sql="-- More.\n" + file.sql) if file.folder == "tables" else file for file in FILES]
    monkeypatch.setattr(module, "schema_files", lambda: told)
    assert await pending(pool) == []


def test_each_file_holds_the_one_thing_of_its_name() -> None:
    for file in FILES:
        name = file.name.partition("/")[2]
        made = set(module._DEFINITION.findall(file.outside))
        assert file.sql.startswith("-- "), f"{file.name} does not begin with what it is"
        if file.name != "tables/schemas":
            assert [each for each in made if each.partition(".")[2] == name], f"{file.name} makes {made}"
        if file.folder != "tables":
            assert len(made) == 1, f"{file.name} makes {made}"
            assert not re.search(r"^ *CREATE (?!OR REPLACE|CONSTRAINT TRIGGER)", file.outside, re.MULTILINE), file.name
        if file.folder == "functions":
            assert {each[1] for each in TRIGGER.finditer(file.outside)} <= made, file.name
            assert ("RETURNS trigger" in file.outside) == ("TRIGGER" in file.outside), file.name
        else:
            assert not TRIGGER.search(file.outside), file.name


def test_no_line_of_sql_is_too_wide() -> None:
    lines = [(path, line) for path in (ROOT / "ledger").rglob("*.sql") for line in path.read_text("utf-8").splitlines()]
    assert [f"{path.name}: {line}" for path, line in lines if len(line) > WIDEST] == []


async def test_the_bodies_of_functions_name_what_is_there(pool: Pool) -> None:
    async def checked(conn: Connection) -> None:
        for file in FILES:
            if file.folder == "functions":
                await cast("Session", conn).execute(file.sql)

    await pool.rehearse(checked)


async def test_a_migration_that_deadlocks_with_what_runs_is_applied_again(
    empty: Pool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    crossing = migration("9999_cross_locks", "CREATE TABLE t (); LOCK TABLE public.cards; LOCK TABLE public.boxes")
    held = "SELECT FROM pg_locks WHERE relation = 'public.cards'::regclass AND mode = 'AccessExclusiveLock'"
    await migrate(empty)
    monkeypatch.setattr(module, "migrations", lambda: [*migrations(), crossing])
    async with empty.connection() as conn, conn.transaction():
        await conn.execute("SET LOCAL deadlock_timeout = '1min'")  # so that the migration is the one that gives way
        await conn.execute("LOCK TABLE public.boxes")
        migrating = asyncio.create_task(migrate(empty))
        while not await conn.fetch(held):  # noqa: ASYNC110 -- a lock sets no event
            await asyncio.sleep(0.01)
        await conn.execute("LOCK TABLE public.cards")
    assert await migrating == [crossing.name]
    assert "migrations/9999_cross_locks met a deadlock, and is applied again" in caplog.text


@pytest.mark.parametrize("is_first", [True, False], ids=["of an empty database", "of a migration"])
async def test_what_fails_leaves_nothing_behind(empty: Pool, monkeypatch: pytest.MonkeyPatch, is_first: bool) -> None:
    broken = migration("9999_break_it", "CREATE TABLE t (); SELECT 1 / 0")
    if is_first:
        monkeypatch.setattr(module, "schema_files", lambda: [*FILES, broken])
    else:
        await migrate(empty)
        monkeypatch.setattr(module, "migrations", lambda: [*migrations(), broken])
    before = await pending(empty)
    with pytest.raises(Exception, match="division by zero"):
        await migrate(empty)
    assert await pending(empty) == before
    assert await rows(empty, "SELECT to_regclass('t') AS found") == [{"found": None}]
    monkeypatch.undo()
    assert await migrate(empty) == (NAMES if is_first else [])  # and the lock is free


async def test_an_edited_migration_is_named(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    late = migration("9998_add_color", "ALTER TABLE public.cards ADD COLUMN color text")
    monkeypatch.setattr(module, "migrations", lambda: [*migrations(), late])
    await migrate(pool)
    monkeypatch.setattr(module, "migrations", lambda: [*migrations(), replace(late, sql="SELECT 1")])
    for ask in (migrate, pending):
        with pytest.raises(MigrationError, match="9998_add_color was edited after it was applied"):
            await ask(pool)


async def test_a_migration_of_another_version_is_named(pool: Pool) -> None:
    await rows(pool, "INSERT INTO state.schema_files VALUES ('migrations/9999_from_the_future', 'x')")
    for ask in (migrate, pending):
        with pytest.raises(MigrationError, match="9999_from_the_future"):
            await ask(pool)


async def test_a_database_of_numbered_migrations_is_refused_with_what_to_do(empty: Pool) -> None:
    await rows(empty, "CREATE SCHEMA state")
    await rows(empty, "CREATE TABLE state.migrations (name text, checksum text)")
    for ask in (migrate, pending):
        with pytest.raises(MigrationError, match=r"a development version .*: export its projects .* empty database"):
            await ask(empty)


async def test_a_server_that_is_too_old_is_refused_in_words(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    await pool.open()
    monkeypatch.setattr(pool_module, "MINIMUM_SERVER", 990_000)
    with pytest.raises(ServerTooOld, match=r"PostgreSQL 16 or newer is needed, and postgresql://[^ @]+ runs 1[6-9]"):
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
        ("state.pmo_batches", "join_mode", get_args(Join)),
        ("state.pmo_batches", "losers", get_args(Losers)),
    ],
)
async def test_the_checks_have_the_words_of_the_enums(
    pool: Pool, table: str, column: str, words: Iterable[str]
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
