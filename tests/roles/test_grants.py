"""The rights of bridge and worker in the ledger: all that their statements need, nothing that none of them needs.

The server itself says what a statement needs: to explain one takes the rights to run it.
"""

import contextlib
import re
from collections.abc import AsyncIterator, Collection
from typing import Any

import asyncpg
import pytest

from tests.roles.conftest import BRIDGE, GATEWAY, WORKER
from tests.roles.servers import logged_in, login_url
from tests.support.databases import Databases
from tests.support.ledger.reach import SHARED, queries_of, used_by_processes
from tests.support.paths import ROOT
from turnstile.ledger.grants import grant
from turnstile.ledger.migrate import migrate
from turnstile.ledger.pool import Pool
from turnstile.ledger.queries import all_queries
from turnstile.schema.errors import ConfigError

PROTOCOL = ROOT / "docs" / "protocol.md"
PROCESSES = {"bridge": BRIDGE, "worker": WORKER}
ALL = {**PROCESSES, "gateway": GATEWAY}
HELD = """
SELECT n.nspname || '.' || c.relname AS relation, c.relname AS name, right_.privilege_type AS verb, null AS column
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace CROSS JOIN aclexplode(c.relacl) AS right_
WHERE right_.grantee = $1::text::regrole
UNION ALL
SELECT n.nspname || '.' || c.relname, c.relname, right_.privilege_type, a.attname
FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace
CROSS JOIN aclexplode(a.attacl) AS right_
WHERE right_.grantee = $1::text::regrole
ORDER BY 1, 3, 4
"""
CALLED = """
SELECT n.nspname || '.' || p.proname AS name, p.prosrc AS source
FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
WHERE n.nspname = 'state' AND NOT p.prosecdef AND p.prolang = (SELECT oid FROM pg_language WHERE lanname = 'plpgsql')
"""
CHANGES = {
    "SELECT": r"FROM {0}\b[^;]*",
    "INSERT": r"INSERT INTO {0}\b[^;]*",
    "UPDATE": r"UPDATE {0}\b[^;]*|INSERT INTO {0}\b[^;]*DO UPDATE[^;]*",
    "DELETE": r"DELETE FROM {0}\b[^;]*",
}
LOCKS = r"FROM {0}\b[^;]*\bFOR (?:SHARE|NO KEY UPDATE)"
KEPT = ("public.cards", "public.boxes", "public.box_cards", "state.agent_steps", "state.execution_edges")
"""What nobody changes (protocol §2.10)."""

FORBIDDEN = (
    "CREATE TABLE public.mine ()",
    "CREATE TABLE state.mine ()",
    "CREATE TEMP TABLE mine ()",
    "CREATE SCHEMA mine",
    "DROP TABLE state.agent_inbox",
    "ALTER TABLE state.agent_inbox ADD mine text",
    "ALTER TABLE public.cards DISABLE TRIGGER USER",
    "TRUNCATE state.turn_outcomes",
    "DELETE FROM public.cards",
    "UPDATE public.cards SET content = '{}'",
    "UPDATE state.turn_outcomes SET status = 'success'",
    "UPDATE state.agent_inbox SET project_id = 'mine'",
    "UPDATE state.queued_turns SET inbox_id = 'mine'",
    "UPDATE state.queued_turns SET profile_box_id = null",
    "UPDATE resource.tools SET project_id = 'mine'",
    "DELETE FROM resource.project_agents",
    "UPDATE resource.profiles SET project_id = 'mine'",
    "INSERT INTO state.schema_files (name, checksum) VALUES ('mine', '')",
    "CREATE FUNCTION public.mine() RETURNS int LANGUAGE sql RETURN 1",
    "SET ROLE turnstile_migrate",
)
FORBIDDEN_TO_WORKERS = (
    "INSERT INTO resource.tools (project_id, tool_name) VALUES ('p', 'mine')",
    "DELETE FROM resource.tools",
    "UPDATE resource.profiles SET worker_target = 'mine'",
)
"""What a bridge may, as operators ask it."""
FORBIDDEN_TO_GATEWAYS = (
    *FORBIDDEN_TO_WORKERS,
    "INSERT INTO state.agent_inbox (inbox_id) VALUES ('mine')",
    "UPDATE state.gateway_tokens SET role = 'operator'",
    "DELETE FROM state.gateway_tokens",
    "SELECT FROM state.agent_inbox FOR UPDATE",
    "SELECT FROM state.duties",
)
"""It reads, and nothing else."""
REFUSED = (asyncpg.InsufficientPrivilegeError, asyncpg.FeatureNotSupportedError)
"""The second is of a column of a view that is computed."""


class Probe:
    """A role's rights, tried on statements."""

    def __init__(self, conn: Any, role: str) -> None:  # asyncpg is untyped
        self.conn = conn
        self.role = role

    async def refused(self, queries: Collection[str]) -> dict[str, str]:
        """The statements that the role may not run, and why."""
        return {name: told for name in sorted(queries) if (told := await self._refusal(name))}

    async def _refusal(self, name: str) -> str | None:
        undone = self.conn.transaction()
        await undone.start()
        try:
            await self.conn.execute(f"SET LOCAL ROLE {self.role}; EXPLAIN (GENERIC_PLAN) {all_queries()[name].sql}")
        except asyncpg.InsufficientPrivilegeError as error:
            return str(error)
        finally:
            await undone.rollback()
        return None

    async def held(self) -> list[Any]:
        """Every right: relation, verb and column."""
        return await self.conn.fetch(HELD, self.role)

    async def needs(self, right: Any, queries: Collection[str]) -> bool:
        """Whether one of the statements fails without the right."""
        column = f" ({right['column']})" if right["column"] else ""
        about = sorted(name for name in queries if right["name"] in all_queries()[name].sql)
        undone = self.conn.transaction()
        await undone.start()
        try:
            await self.conn.execute(f"REVOKE {right['verb']}{column} ON {right['relation']} FROM {self.role}")
            for name in about:
                if await self._refusal(name):
                    return True
        finally:
            await undone.rollback()
        return await self._needed_inside(right, queries)

    async def _needed_inside(self, right: Any, queries: Collection[str]) -> bool:
        """Whether a function that the statements reach with the caller's rights needs the right.

        To explain a statement needs no rights of what its functions do. What nobody changes is locked by the right to
        update one column.
        """
        sources = {row["name"]: row["source"] for row in await self.conn.fetch(CALLED)}
        texts = [all_queries()[name].sql for name in queries]
        for text in texts:  # grows by the functions that each text calls
            texts += [sources.pop(name) for name in [*sources] if f"{name}(" in text]
        for source in texts[len(queries) :]:
            part = CHANGES[right["verb"]].format(re.escape(right["relation"]))
            locks = re.search(LOCKS.format(re.escape(right["relation"])), source)
            if locks and right["verb"] == "UPDATE" and right["relation"] in KEPT:
                return True
            if any(
                right["column"] is None or re.search(rf"\b{right['column']}\b", change)
                for change in re.findall(part, source)
            ):
                return True
        return False


@pytest.fixture(scope="module")
async def conn(databases: Databases, granted: str) -> AsyncIterator[Any]:
    """A superuser's connection, which may take any role."""
    opened = await logged_in(databases.url(granted))
    yield opened
    await opened.close()


def test_it_is_known_what_each_process_runs() -> None:
    assert used_by_processes() == {*SHARED, "BoxCache", "FileLimits", "drop_prices", "grant", "migrate"}
    bridge, worker = queries_of("bridge"), queries_of("worker")
    assert {"enqueue_turn", "claim_inbox", "report_call", "list_stranded", "take_duty", "list_late_replies"} <= bridge
    assert {"begin_step", "commit_step", "apply_reports", "touch_worker", "begin_message", "own_box"} <= worker
    assert not {"commit_step", "touch_worker", "forget_agent", "one_active_turn"} & bridge
    assert not {"claim_inbox", "report_call", "put_profile", "one_active_turn"} & worker


@pytest.mark.parametrize("process", ALL)
async def test_a_process_may_run_its_statements(conn: Any, process: str) -> None:
    assert await Probe(conn, ALL[process]).refused(queries_of(process)) == {}


@pytest.mark.parametrize("process", ALL)
async def test_every_right_is_needed(conn: Any, process: str) -> None:
    probe, queries = Probe(conn, ALL[process]), queries_of(process)
    held = await probe.held()
    assert len(held) > (10 if process == "gateway" else 40)
    spare = [(each["relation"], each["verb"], each["column"]) for each in held if not await probe.needs(each, queries)]
    assert spare == []


async def test_a_gateway_only_reads(conn: Any) -> None:
    held = await Probe(conn, GATEWAY).held()
    assert {(each["verb"], each["column"]) for each in held} == {("SELECT", None)}


@pytest.mark.parametrize("process", PROCESSES)
async def test_what_no_process_may(conn: Any, process: str) -> None:
    held = await Probe(conn, PROCESSES[process]).held()
    kept = {(each["verb"], each["column"]) for each in held if each["relation"] in KEPT}
    # of boxes: to lock one that is named, and to record that it is in use
    assert kept == {("SELECT", None), ("INSERT", None), ("UPDATE", "updated_at"), ("UPDATE", "unused_of")}
    assert {each["verb"] for each in held} <= {"SELECT", "INSERT", "UPDATE", "DELETE"}
    deletes = {each["relation"] for each in held if each["verb"] == "DELETE"}
    assert deletes == (
        {"state.workers", "state.listeners", "state.model_queues"}
        if process == "worker"
        else {"resource.tools", "resource.schedules", "resource.artifacts", "state.webhooks", "state.webhook_events"}
    )
    assert not [each for each in held if each["verb"] == "UPDATE" and each["column"] is None]


async def test_a_worker_writes_what_the_protocol_lists(conn: Any) -> None:
    """A role cannot be bound to a turn: what it may write beyond its own is named, with the reason."""
    held = await Probe(conn, WORKER).held()
    [listed] = re.findall(r"^15\. .*?^16\. ", PROTOCOL.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    named = set(re.findall(r"`((?:public|resource|state)\.\w+)`", listed))
    assert {each["relation"] for each in held if each["verb"] != "SELECT"} == named


@pytest.mark.parametrize("process", ALL)
async def test_what_a_process_is_refused(logins: str, granted: str, process: str) -> None:
    conn = await logged_in(login_url(logins, process, granted))
    done: list[str] = []
    for statement in (
        *FORBIDDEN,
        *({"worker": FORBIDDEN_TO_WORKERS, "gateway": FORBIDDEN_TO_GATEWAYS}.get(process, ())),
    ):
        with contextlib.suppress(*REFUSED):
            await conn.execute(statement)
            done.append(statement)
    await conn.close()
    assert done == []


async def test_one_who_looks_needs_no_role_of_ours(conn: Any) -> None:
    """`pg_read_all_data` is enough for whatever the program only reads, the audit included."""
    await conn.execute("DROP ROLE IF EXISTS looker; CREATE ROLE looker IN ROLE pg_read_all_data")
    reads = {
        name
        for name, query in all_queries().items()
        if not re.search(r"\b(INSERT|UPDATE|DELETE|BEGIN|SET|CREATE)\b", query.sql)
    }
    assert {"list_turns", "describe_turn", "one_active_turn", "sum_usage", "look_around", "list_repairs"} <= reads
    assert await Probe(conn, "looker").refused(reads) == {}
    await conn.execute("DROP ROLE looker")


async def test_rights_are_given_anew(logins: str, databases: Databases) -> None:
    """What a role held beyond its rights is taken away; one role for both has the rights of both."""
    name = await databases.create()
    await databases.execute(f"ALTER DATABASE {name} OWNER TO turnstile_migrate")
    pool = Pool(login_url(logins, "migrate", name), size=1)
    await migrate(pool)
    async with pool.connection() as owner:
        await owner.execute(f"GRANT ALL ON public.cards, state.pmo_batches TO {BRIDGE}")
    await grant(pool, bridge_role=BRIDGE, worker_role=BRIDGE)
    conn = await logged_in(databases.url(name))
    probe = Probe(conn, BRIDGE)
    assert await probe.refused(queries_of("bridge") | queries_of("worker")) == {}
    held = {(each["relation"], each["verb"]) for each in await probe.held()}
    assert {each for each in held if each[0] == "state.pmo_batches"} == {("state.pmo_batches", "SELECT")}
    assert {verb for relation, verb in held if relation == "public.cards"} == {"SELECT", "INSERT"}
    await conn.close()
    await pool.close()
    await databases.drop(name)


async def test_a_role_that_cannot_be_given_rights_is_named(logins: str, granted: str) -> None:
    pool = Pool(login_url(logins, "migrate", granted), size=1)
    with pytest.raises(ConfigError, match="there is no role nobody"):
        await grant(pool, bridge_role="nobody")
    with pytest.raises(ConfigError, match="turnstile_migrate owns the tables"):
        await grant(pool, worker_role="turnstile_migrate")
    assert await grant(pool) == []
    await pool.close()


@pytest.mark.parametrize(
    ("role", "database"),
    [("temporal", "turnstile"), ("bridge", "temporal"), ("worker", "temporal_visibility"), ("migrate", "temporal")],
)
async def test_a_role_does_not_enter_what_is_not_its(logins: str, role: str, database: str) -> None:
    with pytest.raises(asyncpg.InsufficientPrivilegeError, match="permission denied for database"):
        await logged_in(login_url(logins, role, database))


@pytest.mark.parametrize("database", ["temporal", "temporal_visibility"])
async def test_temporal_owns_its_databases(logins: str, database: str) -> None:
    conn = await logged_in(login_url(logins, "temporal", database))
    await conn.execute("CREATE TABLE IF NOT EXISTS public.schema_version ()")
    await conn.close()
