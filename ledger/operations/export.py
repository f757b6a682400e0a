"""Exports all data of a project as JSON lines (docs/operations.md describes the format).

One REPEATABLE READ READ ONLY transaction is read through cursors, so all lines show the same moment and memory is
bounded. It takes no lock, but delays vacuum. The export holds nothing of the environment or the settings.
"""

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Final, cast

from turnstile.ledger.pool import Pool
from turnstile.ledger.queries import Cursors, query
from turnstile.schema.base import Tolerant
from turnstile.schema.errors import Refused
from turnstile.schema.ids import AgentId, ProjectId

FORMAT: Final = "turnstile-export"
VERSION: Final = 1
_PREFETCH: Final = 200
_A_DAY: Final = 24 * 3600.0

TABLES: Final[tuple[str, ...]] = (
    *("public.projects", "resource.profiles", "resource.project_agents", "resource.tools"),
    "resource.artifacts",
    *("state.agent_state_head", "state.agent_state_pointers", "state.channel_pointers"),
    *("state.agent_inbox", "state.turn_waiting_tools"),
    *("state.agent_steps", "state.execution_edges", "state.identity_edges", "state.turn_outcomes", "state.rejections"),
    *("state.conversations", "state.turn_nodes", "state.steers", "state.call_steps"),
    *("state.threads", "state.thread_segments", "state.thread_messages", "state.thread_replies"),
    *("state.pmo_batches", "state.pmo_batch_tasks", "public.boxes", "public.cards", "public.box_cards"),
    *("state.artifact_refs", "state.interrupts", "resource.schedules", "state.schedule_firings"),
    *("state.budgets", "state.budget_reservations", "state.budget_raises", "state.project_budgets", "state.past_costs"),
)
"""The exported tables, in an order in which they can be imported."""

LEFT_OUT: Final[Mapping[str, str]] = {
    "state.schema_files": "of the database",
    "state.ledger_era": "of the database",
    "state.workers": "of processes",
    "state.listeners": "of processes",
    "state.duties": "of bridges",
    "state.repairs": "sums over all projects",
    "state.model_prices": "of the installation",
    "state.model_queues": "of processes",
    "state.push_receivers": "who is notified, with their secrets",
    "state.webhooks": "who is notified, with their secrets",
    "state.webhook_events": "of webhooks",
    "state.deletions": "of what is being removed; who reads an export gets none of it",
    "state.deletion_items": "of what is being removed",
    "state.gateway_tokens": "who may ask, not what was said; who reads an export is given nobody's access",
}
"""Tables without data of a project."""


class ExportedLine(Tolerant):
    """One line: its text, and the table of its row; None for the first and the last line."""

    table: str | None
    text: str


async def export_project(
    pool: Pool, project: ProjectId, agents: Sequence[AgentId] = ()
) -> AsyncGenerator[ExportedLine]:
    """Yields the lines, without line ends: a header, one line per row, and a last one with the counts.

    Named `agents` limit the export to them. Raises `Refused` (being_deleted) while a deletion runs, so that nobody is
    given what is going, and `ServerUnavailable` if the server cannot be reached.
    """
    counts: dict[str, int] = dict.fromkeys(TABLES, 0)
    who = list(agents) or None
    async with pool.connection() as conn, conn.transaction():
        await query("begin_export").many(conn)
        await query("tune_export").one(conn)
        if (await query("count_running_deletions").one(conn, project_id=project))["found"]:
            raise Refused("being_deleted", "a deletion of the project is running: export it when that is done")
        moment = await query("describe_export").one(conn)
        header = Header(
            project_id=project,
            agent_ids=who,
            exported_at=moment["exported_at"].isoformat(),
            schema_hash=moment["schema_hash"],
        )
        yield ExportedLine(table=None, text=header.model_dump_json())
        for table in TABLES:
            named = query(f"export_{table.partition('.')[2]}")
            values = {"project_id": project, "agent_ids": who}
            arguments = {name: values[name] for name in named.parameters}
            rows = named.stream(cast("Cursors", conn), prefetch=_PREFETCH, timeout=_A_DAY, **arguments)
            async for row in rows:
                counts[table] += 1
                yield ExportedLine(table=table, text=f'{{"table": "{table}", "row": {row["row"]}}}')
        yield ExportedLine(table=None, text=ExportEnd(rows=counts).model_dump_json())


class Header(Tolerant):
    """The first line."""

    format: str = FORMAT
    version: int = VERSION
    project_id: ProjectId
    agent_ids: list[AgentId] | None
    exported_at: str
    schema_hash: str


class ExportEnd(Tolerant):
    """The last line; an export without it is incomplete."""

    end: bool = True
    rows: dict[str, int]
