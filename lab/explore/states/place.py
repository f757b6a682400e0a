"""A database of one's own, in which a state is loaded, one move made, and what it wrote read back.

Only rows that differ are written, and only rows that were written are read, so a move costs three round trips and some
milliseconds. The session that loads has triggers and foreign keys off; moves run as the ledger's pools run them.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import asyncpg

from lab.explore.states.folding import Key, Rows
from turnstile.ledger.budgets.steering import refusal_of
from turnstile.ledger.gathered import GatheredWrites, Write
from turnstile.ledger.histories import connect_to_host
from turnstile.ledger.pool import Pool, Session
from turnstile.ledger.queries import Again, Connection

T = TypeVar("T")
TABLES = (
    "state.agent_state_head",
    "state.agent_state_pointers",
    "state.channel_pointers",
    "state.agent_inbox",
    "state.turn_waiting_tools",
    "state.agent_steps",
    "state.execution_edges",
    "state.turn_outcomes",
    "state.turn_nodes",
    "state.pmo_batches",
    "state.pmo_batch_tasks",
    "state.conversations",
    "state.interrupts",
    "state.steers",
    "state.budgets",
    "state.budget_reservations",
    "state.budget_raises",
    "state.project_budgets",
    "public.cards",
    "public.boxes",
    "public.box_cards",
    "state.threads",
    "state.thread_segments",
    "state.thread_messages",
    "state.thread_replies",
    "state.listeners",
    "explore.workflows",
)
"""What a state is. Rows of the roster stay as the world made them; only people read rejections, duties and repairs."""
_SQL = Path(__file__).with_name("place.sql")
_AGAIN = 3
"""A statement that finds its picture old is run again; alone it must not do so more than once."""
_LOADS_TO_VACUUM = 400


class AsksForEver(Exception):
    """A statement answers `again` although nobody else runs."""


class LostWrites(GatheredWrites):
    """Gathered writes of a process that dies before it writes them; who lives writes them by a move of its own."""

    def add(self, write: Write, key: str) -> None:
        """Nothing: a write that came later would be part of whatever state is loaded then."""


class LonePool(Pool):
    """A pool of one session, which runs a transition once: nobody else is there to wait for.

    `StaleTurn` is raised at once, and whatever else a statement raises. Gathered writes are lost.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url, size=1, name="explore")
        self.soon = LostWrites(self.run)
        self._session: Session | None = None
        self._alone = asyncio.Lock()

    async def run(self, transition: Callable[[Connection], Awaitable[T]]) -> T:
        """Run the transition; raises `AsksForEver`, `Refused` for what a budget has not, and what it raises."""
        async with self._alone:
            for _ in range(_AGAIN):
                try:
                    return await transition(self.session)
                except Again:
                    continue
                except asyncpg.PostgresError as error:
                    raise refusal_of(error) or error from None
        raise AsksForEver

    async def insist(self, transition: Callable[[Connection], Awaitable[T]]) -> T:
        """As `run`."""
        return await self.run(transition)

    @property
    def session(self) -> Session:
        """The one session; `hold` must be running."""
        if self._session is None:
            raise RuntimeError("the pool is not held")
        return self._session

    def hold(self, session: Session | None) -> None:
        """Use this session from now on."""
        self._session = session


class Place:
    """A database, and the state that is in it."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.pool = LonePool(url)
        self._rows: Rows = {}
        self._since = 0
        self._loads = 0
        self.loader: Any = None
        """The session that loads and reads."""
        self._held: Any = None

    @property
    def url(self) -> str:
        """The address of the database."""
        return self._url

    async def open(self) -> None:
        """Connect; the database has the functions of `prepare_database`."""
        settings = {"session_replication_role": "replica", "plan_cache_mode": "force_generic_plan", "jit": "off"}
        self.loader = await connect_to_host(self._url, server_settings=settings)
        self._held = self.pool.connection()
        self.pool.hold(await self._held.__aenter__())
        await self._read_all()

    async def close(self) -> None:
        """Disconnect."""
        self.pool.hold(None)
        if self._held is not None:
            await self._held.__aexit__(None, None, None)
        await self.pool.close()
        if self.loader is not None:
            await self.loader.close()

    async def load(self, rows: Rows) -> None:
        """Make these rows the state."""
        gone: dict[str, list[str]] = {}
        added: dict[str, list[str]] = {}
        for key, text in self._rows.items():
            if rows.get(key) != text:
                gone.setdefault(key[0], []).append(key[1])
        for key, text in rows.items():
            if self._rows.get(key) != text:
                added.setdefault(key[0], []).append(text)
        if not gone and not added:
            return
        parts = [
            f'"{table}": {{"gone": {json.dumps(gone.get(table, []))}, "rows": [{", ".join(added.get(table, []))}]}}'
            for table in gone.keys() | added.keys()
        ]
        self._since = await self.loader.fetchval("SELECT explore.load($1::jsonb)", f"{{{', '.join(parts)}}}")
        self._rows = dict(rows)
        self._loads += 1
        if self._loads % _LOADS_TO_VACUUM == 0:
            await self.loader.execute(f"VACUUM {', '.join(TABLES)}")

    async def changes(self) -> Rows:
        """The rows that were written since the load, as they are now; they are part of the state from now on."""
        rows_changed: Sequence[Any] = await self.loader.fetch("SELECT * FROM explore.changes($1)", self._since)
        changed = {cast("Key", (row["name"], row["key"])): cast("str", row["data"]) for row in rows_changed}
        self._rows.update(changed)
        return changed

    @property
    def rows(self) -> Rows:
        """The state, as `load` and `changes` know it."""
        return self._rows

    async def _read_all(self) -> None:
        self._since = 0
        await self.changes()


async def prepare_database(url: str, audit_function: str) -> None:
    """Make the functions with which states are loaded, read and audited."""
    loader = await connect_to_host(url)
    try:
        await loader.execute("SELECT set_config('explore.tables', $1, false)", ",".join(TABLES))
        await loader.execute(_SQL.read_text("utf-8"))
        await loader.execute(audit_function)
    finally:
        await loader.close()
