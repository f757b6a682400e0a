"""`turnstile up`, the demos, `migrate`, `worker`, `bridge` and `gateway`: starts processes, prepares servers."""

# ruff: noqa: PLC0415 -- heavy imports wait until a command runs, so that --help is fast

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from turnstile.runtime.event_loop import spare_collector
from turnstile.schema.errors import ConfigError
from turnstile.schema.ids import split_targets

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from pathlib import Path

    from turnstile.cli.session import Session

_NoStandby = Annotated[
    bool, typer.Option("--no-standby", help="Exit if another process serves a svc1_ target, instead of waiting for it.")
]


async def up(session: "Session") -> None:
    """Start the embedded servers, bring the database up to date, and run a worker, a bridge and a gateway until Ctrl-C.

    A server whose address is set is used instead of the embedded one. Other commands find the servers by --data or the
    working directory.
    """
    from turnstile.cli.processes.server_reports import print_addresses
    from turnstile.embedded import DEFAULT_DATA
    from turnstile.processes.up import Running, run_up

    data = session.options.data or DEFAULT_DATA

    def ready(running: Running) -> None:
        spare_collector()
        print_addresses(session.out, session.settings, data, running)

    session.out.remark(f"starting in {data.absolute()}")
    words = tuple(_passed_on(session, data))
    await run_up(session.settings, data, session.stop, say=session.out.remark, ready=ready, worker_words=words)


async def demo(
    session: "Session",
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep running afterwards, with the data in .turnstile or in --data.")
    ] = False,
    model: Annotated[
        str, typer.Option(help="Model to call; the default needs no key and no network.", metavar="ID")
    ] = "scripted/demo",
) -> None:
    """Start everything, let two agents answer, print what happened, and stop everything."""
    from turnstile.cli.demo.first_turn import run_demo

    await run_demo(session, keep=keep, model=model)


async def demo_pump(
    session: "Session",
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep running afterwards, with the data in .turnstile or in --data.")
    ] = False,
) -> None:
    """Start everything, let listeners and agents exchange messages, print the chains, and stop everything."""
    from turnstile.cli.demo.pump import run_demo_pump

    await run_demo_pump(session, keep=keep)


async def demo_tree(
    session: "Session",
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep running afterwards, with the data in .turnstile or in --data.")
    ] = False,
) -> None:
    """Start everything, let agents delegate to other agents, show the tree of turns live, and stop everything."""
    from turnstile.cli.demo.tree import run_demo_tree

    await run_demo_tree(session, keep=keep)


async def migrate(session: "Session") -> None:
    """Bring the database, the NATS streams and Temporal's search attributes up to date. Repeating it is harmless."""
    from turnstile.cli.processes.server_reports import print_migration
    from turnstile.processes.migration import migrate_all

    print_migration(session.out, await migrate_all(session.settings, session.endpoints()))


async def worker(
    session: "Session",
    no_standby: _NoStandby = False,
    processes: Annotated[
        int | None,
        typer.Option(min=1, max=256, help="Workers to run behind this process, instead of what the settings say."),
    ] = None,
    member: Annotated[int | None, typer.Option(hidden=True, help="Descriptor that takes where this serves.")] = None,
) -> None:
    """Run a worker: it executes the turns of the settings' worker_targets.

    With --processes N it runs N workers, each in a process of its own, behind one signal, one health and one log.
    """
    from turnstile.processes.run import run_worker

    count = 1 if member is not None else processes or session.settings.worker.processes
    if count > 1:
        await _serve_group(session, count, no_standby=no_standby)
        return
    if member is not None:
        session.announces_stop = False
        session.out.log_process_id()
    await _serve(session, "worker", partial(run_worker, standby=not no_standby), member)


async def _serve_group(session: "Session", count: int, *, no_standby: bool) -> None:
    from contextlib import AsyncExitStack

    from turnstile.embedded import find_data
    from turnstile.processes.worker_group import WorkerGroup
    from turnstile.runtime.program import END_SECONDS
    from turnstile.runtime.waiting import unless_stopped
    from turnstile.telemetry.health import serving_health
    from turnstile.telemetry.metrics import serving_group_metrics

    settings, observability = session.settings, session.settings.observability
    session.endpoints()  # raises here what each worker would
    if no_standby and split_targets(settings.worker.worker_targets)[1]:
        raise ConfigError(f"{count} workers cannot have one svc1_ target: leave out --no-standby, or --processes")
    session.late_seconds = END_SECONDS  # each worker has its own time
    words = (*_passed_on(session, session.options.data), *(("--no-standby",) if no_standby else ()))
    group = WorkerGroup(settings, count, words)

    async def announce() -> None:
        await unless_stopped(session.stop, group.serves.wait())
        if not session.stop.is_set():
            session.out.remark(f"worker serves {_serves(settings.worker.worker_targets)}, by {count} processes")

    async with AsyncExitStack() as stack:
        health = await stack.enter_async_context(serving_health(find_data(session.options.data), "worker"))
        health.group = group
        health.serves()
        if observability.metrics_port:
            host, port = observability.metrics_host, observability.metrics_port
            await stack.enter_async_context(serving_group_metrics(host, port, group, health))
        announcing = asyncio.create_task(announce(), name="announcement")
        try:
            session.exit_code = await group.run(session.stop)
        finally:
            announcing.cancel()


async def bridge(session: "Session", no_standby: _NoStandby = False) -> None:
    """Run a bridge: it answers requests, starts turns, and repairs what crashes have left."""
    from turnstile.processes.run import run_bridge

    await _serve(session, "bridge", partial(run_bridge, standby=not no_standby))


async def gateway(session: "Session") -> None:
    """Run a gateway: HTTP for applications under /v1, and the console for people under /console."""
    from turnstile.embedded import find_data
    from turnstile.processes import addresses
    from turnstile.processes.gateway import links_of, run_gateway
    from turnstile.telemetry.health import serving_health

    def ready(url: str) -> None:
        spare_collector()
        session.out.remark(f"gateway serves {url}")

    data = session.options.data
    async with serving_health(find_data(data), "gateway") as health:
        await run_gateway(
            addresses.with_store(session.settings, data),
            addresses.database_url(session.settings, data),
            addresses.nats_url(session.settings, data),
            session.stop,
            ready=ready,
            health=health,
            links=links_of(session.settings, addresses.announced(data)),
        )


async def _serve(
    session: "Session", role: str, run: "Callable[..., Awaitable[None]]", member: int | None = None
) -> None:
    """Run a worker or a bridge. A `member` of a group reports its health to the group, which prints for all."""
    from turnstile.embedded import find_data
    from turnstile.processes.addresses import with_store
    from turnstile.telemetry.health import serving_health

    def ready() -> None:
        spare_collector()
        if member is None:
            session.out.remark(f"{role} serves {targets}")

    endpoints, targets = session.endpoints(), _serves(session.settings.worker.worker_targets)
    async with serving_health(find_data(session.options.data), role, report=member) as health:
        settings = with_store(session.settings, session.options.data)
        await run(settings, endpoints, session.stop, ready=ready, health=health)


def _passed_on(session: "Session", data: "Path | None") -> "Iterator[str]":
    """The common options of this command, for one that it starts."""
    options = session.options
    if options.config is not None:
        yield from ("--config", str(options.config))
    if data is not None:
        yield from ("--data", str(data.absolute()))
    if options.verbose:
        yield "--verbose"


def _serves(worker_targets: list[str]) -> str:
    """The targets served from now on, and those served once this process holds their lock."""
    shared, exclusive = split_targets(worker_targets)
    now = ", ".join(shared) or "nothing yet"
    return f"{now}; when it is free: {', '.join(exclusive)}" if exclusive else now
