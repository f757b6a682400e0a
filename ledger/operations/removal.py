"""The removal of a project: no row of it is left in any table (docs/operations.md).

Every table that says which project its rows are of is read once, some blocks to a transaction, and what is the
project's goes; the rows that hang on them go with them. The roster goes first, so nothing new comes. What a killed run
has left, the next one removes.
"""

from collections.abc import Callable

from turnstile.ledger.operations.retention import sole
from turnstile.ledger.pool import Pool
from turnstile.ledger.queries import Connection, query
from turnstile.schema.base import Tolerant
from turnstile.schema.errors import Refused
from turnstile.schema.ids import AgentTurnId, ProjectId

_PASSES = 5
_BOXES = "public.boxes"
BLOCKS = 64
"""Blocks of 8 kB to a transaction."""

Report = Callable[[str, int], None]
"""Hears of rows of a table, after each transaction."""


class ProjectTable(Tolerant):
    """A table with rows of projects: how it says whose they are, and how long it is, in blocks."""

    table_name: str
    project_column: str
    blocks: int


async def list_live_turns(conn: Connection, project: ProjectId) -> list[AgentTurnId]:
    """The turns of the project that are queued or in hand."""
    return [row["agent_turn_id"] for row in await query("list_live_turns").many(conn, project_id=project)]


async def close_project(conn: Connection, project: ProjectId, *, stop_turns: bool) -> list[AgentTurnId]:
    """Let no more turns in, in a transaction; returns those that are live.

    Raises `Refused` (project_busy) if turns or threads are, unless they are to be stopped.
    """
    await query("lock_project").many(conn, project_id=project)
    live = await list_live_turns(conn, project)
    threads = (await query("count_live_threads").one(conn, project_id=project))["found"]
    if (live or threads) and not stop_turns:
        raise Refused("project_busy", f"{len(live)} turns and {threads} threads of project {project} are live")
    return live


async def count_rows(pool: Pool, project: ProjectId) -> dict[str, int]:
    """The rows of the project by table, of those that have any."""
    found: dict[str, int] = {}
    await _read_through(pool, project, "count_project_rows", found, lambda _table, _rows: None)
    return found


async def remove_rows(pool: Pool, project: ProjectId, report: Report = lambda _table, _rows: None) -> dict[str, int]:
    """Remove every row of the project; returns how many, by table. Needs two connections.

    Raises `RetentionBusy`, `ServerUnavailable`, or `Refused` (project_busy) if rows come faster than they go.
    """
    removed: dict[str, int] = {}
    async with sole(pool):
        for _ in range(_PASSES):  # a statement that was in flight at the first may have come behind it
            await _read_through(pool, project, "remove_project_rows", removed, report)
            if not await count_rows(pool, project):
                return removed
    raise Refused("project_busy", f"something still writes rows of project {project}: run it again")


async def _read_through(pool: Pool, project: ProjectId, what: str, found: dict[str, int], report: Report) -> None:
    tables = await pool.run(lambda conn: query("list_project_tables").many(conn))
    for table in (ProjectTable.model_validate(dict(row)) for row in tables):
        for first in range(0, table.blocks + 1, BLOCKS):
            rows = await pool.transact(
                lambda conn, table=table, first=first: _blocks(conn, project, what, table, first)
            )
            if rows:
                found[table.table_name] = found.get(table.table_name, 0) + rows
            report(table.table_name, rows)


async def _blocks(conn: Connection, project: ProjectId, what: str, table: ProjectTable, first: int) -> int:
    await query("begin_retention").one(conn)
    # the last blocks have no end: the table may have grown
    end = first + BLOCKS if first + BLOCKS <= table.blocks else 2**32 - 1
    place = {"project_id": project, "first_block": first, "end_block": end}
    if what == "remove_project_rows" and table.table_name == _BOXES:
        await query("remove_project_places").many(conn, **place)
    columns = {"table_name": table.table_name, "project_column": table.project_column}
    return (await query(what).one(conn, **columns, **place))["found"]
