"""Databases for tests: cloned from a template; one of which only rows were changed is emptied for the next test."""

import asyncio
from collections.abc import Sequence
from typing import Final

from turnstile.ledger.histories import connect_to_host
from turnstile.ledger.pool import Pool, Session
from turnstile.schema.ids import uuid7

# What a test may change beside rows. Storage and statistics are not in it: emptying a table changes them too. A row
# that is new or changed has a later transaction than all of the template's.
SHAPE: Final = """
md5(concat_ws(';',
    (SELECT string_agg(concat_ws(',', oid, relname, relnamespace, relowner, relacl, reloptions, relhastriggers), ';'
                       ORDER BY oid) FROM pg_class WHERE oid >= 16384),
    (SELECT concat(count(*), ':', sum(xmin::text::bigint)) FROM pg_attribute WHERE attrelid >= 16384),
    (SELECT string_agg(t::text, ';' ORDER BY oid) FROM pg_trigger t),
    (SELECT concat(count(*), ':', sum(xmin::text::bigint)) FROM pg_proc WHERE oid >= 16384),
    (SELECT concat(count(*), ':', sum(xmin::text::bigint)) FROM pg_constraint WHERE oid >= 16384),
    (SELECT string_agg(n::text, ';' ORDER BY oid) FROM pg_namespace n),
    (SELECT string_agg(s::text, ';' ORDER BY setrole) FROM pg_db_role_setting s
     WHERE setdatabase = (SELECT oid FROM pg_database WHERE datname = current_database())),
    (SELECT datacl::text FROM pg_database WHERE datname = current_database())))
"""
KEPT_POOL: Final = "test pool"
OTHERS: Final = """
SELECT pid FROM pg_stat_activity
WHERE datname = current_database() AND backend_type = 'client backend' AND application_name <> 'keeper'
      AND (application_name <> 'test pool' OR state <> 'idle')
"""
LATER_ERA: Final = "SELECT FROM state.ledger_era WHERE era > 0"
# Its session has `session_replication_role = replica`: triggers that guard rows sleep. A small table keeps its pages:
# to make new files costs more than the rest.
EMPTY: Final = """
DO $$ DECLARE found record; large text[] := '{{}}';
BEGIN
    FOR found IN
        SELECT c.oid, c.oid::regclass::text AS name, c.reltuples >= 0 OR pg_relation_size(c.oid) > 65536 AS is_large
        FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE c.oid >= 16384 AND c.relkind = 'r' AND n.nspname IN ('state', 'resource', 'public')
              AND pg_relation_size(c.oid) > 0 AND c.oid <> ALL (ARRAY[{kept}]::oid[])
    LOOP
        IF found.is_large THEN
            large := large || found.name;
            DELETE FROM pg_statistic WHERE starelid = found.oid;
        ELSE
            EXECUTE 'DELETE FROM ' || found.name;
        END IF;
    END LOOP;
    IF large <> '{{}}' THEN  -- together: some refer to others
        EXECUTE format('TRUNCATE %s CASCADE', array_to_string(large, ', '));
    END IF;
    PERFORM setval(seqrelid, seqstart, false) FROM pg_sequence;
END $$
"""
# The template has rows in these, which stay as they are.
KEPT: Final = """
SELECT c.oid, c.oid::regclass::text AS name FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid >= 16384 AND c.relkind = 'r' AND n.nspname NOT IN ('pg_catalog', 'information_schema')
      AND pg_relation_size(c.oid) > 0
"""


class Databases:
    """Makes and drops databases on the session's server."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._pool = Pool(self.url("postgres"), size=1)
        self._free: list[str] = []
        self._keepers: dict[str, Session] = {}
        self._emptiers: dict[str, Session] = {}
        self._pools: dict[str, Pool] = {}
        self._kept: Sequence[tuple[int, str]] = ()
        self._fresh: list[object] = []

    def url(self, name: str) -> str:
        """The address of a database."""
        return f"{self._url.rpartition('/')[0]}/{name}"

    async def execute(self, statement: str) -> None:
        """Run a statement that concerns the whole server."""
        async with self._pool.connection() as conn:
            await conn.execute(statement)

    async def close(self) -> None:
        """The server itself goes on."""
        for pool in self._pools.values():
            await pool.close()
        for conn in (*self._keepers.values(), *self._emptiers.values()):
            conn.terminate()
        await self._pool.close()

    async def create(self, template: str = "template0") -> str:
        """A new database; returns its name."""
        name = f"t_{uuid7().replace('-', '')}"
        await self.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        return name

    async def drop(self, name: str) -> None:
        """Gone, whoever is connected."""
        await self.execute(f"DROP DATABASE {name} WITH (FORCE)")

    async def lend(self, template: str) -> str:
        """A database like the template, which is the same at each call; give it back by `take_back`."""
        if self._free:
            return self._free.pop()
        name = await self.create(template)
        conn = self._keepers[name] = await self._connect(name)
        # a session of its own, because a change of the setting makes one forget its plans
        self._emptiers[name] = await self._connect(name, session_replication_role="replica")
        if not self._fresh:
            self._kept = [(row["oid"], row["name"]) for row in await conn.fetch(KEPT)]
            self._fresh = await self._fingerprint(conn)
        return name

    def keeper(self, name: str) -> Session:
        """A session on a lent database that goes on from test to test: what each asks again is planned once."""
        return self._keepers[name]

    def pool(self, name: str) -> Pool:
        """A pool on a lent database that goes on from test to test, as the keeper does."""
        if name not in self._pools:
            self._pools[name] = Pool(self.url(name), name=KEPT_POOL)
        self._pools[name].round_trips = 0
        return self._pools[name]

    async def take_back(self, name: str) -> None:
        """Empty it for the next one; drop it where somebody is still connected or more than rows changed."""
        conn = self._keepers[name]
        is_first_era = not await conn.fetch(LATER_ERA)  # a pool goes back to no earlier one
        if is_first_era and await self._is_alone(conn) and await self._fingerprint(conn) == self._fresh:
            await self._emptiers[name].execute(EMPTY.format(kept=", ".join(str(oid) for oid, _ in self._kept)))
            self._free.append(name)
        else:
            if name in self._pools:
                await self._pools.pop(name).close()
            self._keepers.pop(name).terminate()
            self._emptiers.pop(name).terminate()
            await self.drop(name)

    async def _connect(self, name: str, **settings: str) -> Session:
        # planned while tables are empty, and kept when they are not: as by the pools of the ledger
        planned = {"jit": "off", "plan_cache_mode": "force_generic_plan", "enable_seqscan": "off"}
        own = {"application_name": "keeper", **planned, **settings}
        return await connect_to_host(self.url(name), server_settings=own, max_cacheable_statement_size=0)

    async def _is_alone(self, conn: Session) -> bool:
        """Whether nobody else is connected; a session ends a moment after its client closed it."""
        for _ in range(20):
            if not await conn.fetch(OTHERS):
                return True
            await asyncio.sleep(0.01)
        return False

    async def _fingerprint(self, conn: Session) -> list[object]:
        """What tells a change of anything but rows, or of the rows that the template has."""
        rows = [f"(SELECT md5(string_agg(t::text, ';' ORDER BY t::text)) FROM {name} t)" for _, name in self._kept]  # noqa: S608 -- names that the server quoted
        [found] = await conn.fetch(f"SELECT {', '.join((SHAPE, *rows))}")
        return list(found.values())
