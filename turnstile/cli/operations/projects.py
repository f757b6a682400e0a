"""`turnstile project`: removes a project with all its data from ledger, streams and Temporal."""

# ruff: noqa: PLC0415 -- heavy imports wait until a command runs, so that --help is fast

from typing import TYPE_CHECKING, Annotated

import typer

from turnstile.cli.command import command

if TYPE_CHECKING:
    from temporalio.client import Client

    from turnstile.cli.session import Session
    from turnstile.ledger.pool import Pool
    from turnstile.schema.ids import ProjectId
    from turnstile.transport.connection import NatsConnection

app = typer.Typer()


@command(app, "remove")
async def remove(
    session: "Session",
    project: Annotated[str, typer.Argument(help="The project.", metavar="PROJECT", show_default=False)],
    stop_turns: Annotated[bool, typer.Option("--stop-turns", help="End its live turns and threads first.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count what would be removed; remove nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
) -> None:
    """Remove all data of a project: rows, stored messages, workflows. This cannot be undone; `export` makes a copy."""
    from turnstile.processes.connections import open_servers
    from turnstile.schema.errors import BadRequest
    from turnstile.schema.ids import ProjectId, token

    named = ProjectId(token(project, "PROJECT"))
    if not (yes or dry_run or session.out.confirm(f"Remove all data of project {named}, for good?")):
        raise BadRequest("nothing was removed: --yes confirms it")
    endpoints = session.endpoints()
    async with open_servers(session.settings, endpoints, "turnstile-remove") as servers:
        report = await (
            _count(named, *servers) if dry_run else _remove(session, named, *servers, stop_turns=stop_turns)
        )
    _print_result(session, named, report, dry_run=dry_run)


async def _count(project: "ProjectId", pool: "Pool", conn: "NatsConnection", client: "Client") -> dict[str, int]:
    from turnstile.bridge.verbs.project_removal import count_workflows
    from turnstile.ledger.operations.removal import count_rows, list_live_turns
    from turnstile.transport.streams import purge_project

    live = await pool.run(lambda ledger: list_live_turns(ledger, project))
    flows, rows = await count_workflows(client, project), await count_rows(pool, project)
    return {"live turns": len(live), "workflows": flows} | rows | await purge_project(conn, project, dry_run=True)


async def _remove(
    session: "Session",
    project: "ProjectId",
    pool: "Pool",
    conn: "NatsConnection",
    client: "Client",
    *,
    stop_turns: bool,
) -> dict[str, int]:
    """Remove in this order: turns, workflows, files, the rows that workflows read, and last all events."""
    from turnstile.bridge.files.file_rules import remove_files
    from turnstile.bridge.publishing.publisher import NatsPublisher
    from turnstile.bridge.verbs.project_removal import remove_workflows, stop_live_turns
    from turnstile.ledger.operations.removal import close_project, remove_rows
    from turnstile.processes.addresses import with_store
    from turnstile.processes.connections import open_store
    from turnstile.transport.streams import purge_project

    await pool.transact(lambda closing: close_project(closing, project, stop_turns=stop_turns))
    stopped = await stop_live_turns(pool, NatsPublisher(conn), project) if stop_turns else 0
    with session.out.progress("removing") as show:
        flows = await remove_workflows(client, project)
        await remove_files(pool, open_store(with_store(session.settings, session.options.data).artifacts), project)
        rows = await remove_rows(pool, project, lambda table, _rows: show(table))
    return {"turns stopped": stopped, "workflows": flows} | rows | await purge_project(conn, project)


def _print_result(session: "Session", project: "ProjectId", report: dict[str, int], *, dry_run: bool) -> None:
    if session.out.as_json:
        session.out.document({"project": project, "dry_run": dry_run, "removed": {**report}})
        return
    title = f"project {project} {'has' if dry_run else 'is removed'}"
    session.out.table(title, ["what", "count"], list(report.items()))
