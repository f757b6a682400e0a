"""Removes a project: all its rows in all tables (docs/operations.md).

Every table with a project column is read once, `BLOCKS` blocks per transaction, and the project's rows are removed with
the rows that depend on them. The roster is removed first, so that no new rows come. After a killed run the next one
removes the rest.
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
"""Blocks of 8 kB per transaction."""

Report = Callable[[str, int], None]
"""Called after each transaction with a table and the number of its removed rows."""


class ProjectTable(Tolerant):
    """A table with rows of projects: its project column, and its length in blocks."""

    table_name: str
    project_column: str
    blocks: int


async def list_live_turns(conn: Connection, project: ProjectId) -> list[AgentTurnId]:
    """The queued and active turns of the project."""
    return [row["agent_turn_id"] for row in await query("list_live_turns").many(conn, project_id=project)]


async def close_project(conn: Connection, project: ProjectId, *, stop_turns: bool) -> list[AgentTurnId]:
    """Admit no more turns; returns the live ones. Runs in the caller's transaction.

    Raises `Refused` (project_busy) if turns or threads are live, unless `stop_turns`.
    """
    await query("lock_project").many(conn, project_id=project)
    live = await list_live_turns(conn, project)
    threads = (await query("count_live_threads").one(conn, project_id=project))["found"]
    if (live or threads) and not stop_turns:
        raise Refused("project_busy", f"{len(live)} turns and {threads} threads of project {project} are live")
    return live


async def count_rows(pool: Pool, project: ProjectId) -> dict[str, int]:
    """The number of the project's rows, by table; tables without any are left out."""
    counts: dict[str, int] = {}
    await _read_through(pool, project, "count_project_rows", counts, lambda _table, _rows: None)
    return counts


async def remove_rows(pool: Pool, project: ProjectId, report: Report = lambda _table, _rows: None) -> dict[str, int]:
    """Remove every row of the project; returns how many, by table. Needs two connections.

    Raises `RetentionBusy`, `ServerUnavailable`, or `Refused` (project_busy) if rows are added as fast as removed.
    """
    removed: dict[str, int] = {}
    async with sole(pool):
        for _ in range(_PASSES):  # a statement that ran during the first pass may have added rows behind it
            await _read_through(pool, project, "remove_project_rows", removed, report)
            if not await count_rows(pool, project):
                return removed
    raise Refused("project_busy", f"something still writes rows of project {project}: run it again")


async def _read_through(pool: Pool, project: ProjectId, what: str, counts: dict[str, int], report: Report) -> None:
    tables = await pool.run(lambda conn: query("list_project_tables").many(conn))
    for table in (ProjectTable.model_validate(dict(row)) for row in tables):
        for first in range(0, table.blocks + 1, BLOCKS):
            rows = await pool.transact(
                lambda conn, table=table, first=first: _blocks(conn, project, what, table, first)
            )
            if rows:
                counts[table.table_name] = counts.get(table.table_name, 0) + rows
            report(table.table_name, rows)


async def _blocks(conn: Connection, project: ProjectId, what: str, table: ProjectTable, first: int) -> int:
    await query("begin_retention").one(conn)
    # the last range is open-ended: the table may have grown
    end = first + BLOCKS if first + BLOCKS <= table.blocks else 2**32 - 1
    place = {"project_id": project, "first_block": first, "end_block": end}
    if what == "remove_project_rows" and table.table_name == _BOXES:
        await query("remove_project_places").many(conn, **place)
    columns = {"table_name": table.table_name, "project_column": table.project_column}
    return (await query(what).one(conn, **columns, **place))["found"]
