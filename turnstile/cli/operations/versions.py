"""`turnstile worker-version`: lists builds of the workers, and sets the one that runs turns."""

# ruff: noqa: PLC0415 -- heavy imports wait until a command runs, so that --help is fast

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from turnstile.cli.command import command
from turnstile.schema.amounts import amount

if TYPE_CHECKING:
    from temporalio.client import Client

    from turnstile.cli.session import Session

app = typer.Typer()


@command(app, "list")
async def list_versions(session: "Session") -> None:
    """List the builds of the settings' deployment whose workers have polled, the newest first."""
    from turnstile.temporal.versions import deployment_name, list_builds

    name = deployment_name(session.settings.worker)
    async with _temporal(session) as client:
        builds = await list_builds(client, name)
    session.out.records(
        f"builds of {name}",
        builds,
        {
            "build": lambda row: row.build_id,
            "current": lambda row: "yes" if row.current else "",
            "status": lambda row: row.status,
        },
    )


@command(app, "set-current")
async def set_current_version(
    session: "Session",
    build: Annotated[str | None, typer.Argument(help="Build id, instead of the one in the settings.")] = None,
    ignore_missing: Annotated[
        bool, typer.Option("--ignore-missing", help="Accept a build that polls for fewer worker targets.")
    ] = False,
    unversioned: Annotated[
        bool, typer.Option("--unversioned", help="Let workers without a build run turns again: switches versions off.")
    ] = False,
    wait: Annotated[float, typer.Option(help="How long to wait for its workers to poll.", metavar="SECONDS")] = 30.0,
) -> None:
    """Make a build current: its workers run all new turns and all turns that wake."""
    from turnstile.temporal.versions import deployment_name, set_current

    worker = session.settings.worker
    name = deployment_name(worker)
    build_id = "" if unversioned else build or worker.build_id
    async with _temporal(session) as client:
        await set_current(client, name, build_id, ignore_missing=ignore_missing, patience_seconds=wait)
    session.out.remark(f"{name}.{build_id} runs turns now" if build_id else "workers without a build run turns now")


@asynccontextmanager
async def _temporal(session: "Session") -> "AsyncGenerator[Client]":
    import asyncio

    from turnstile.processes.connections import open_client
    from turnstile.schema.errors import ServerUnavailable
    from turnstile.temporal.plugin import turnstile_plugin

    patience = session.settings.database.patience_seconds
    endpoints = session.endpoints()
    try:
        async with asyncio.timeout(patience):
            client = await open_client(session.settings, endpoints, turnstile_plugin())
    except TimeoutError:
        raise ServerUnavailable(f"no answer from Temporal in {amount(patience)} s") from None
    yield client
