"""Runs a stateful service (docs/services.md): an exclusive target, and a handler of its turns.

`run_service` is a whole program; `serve_inbox` runs inside another one. Both hold the target's lock, find work by
doorbells and by polling, and need PostgreSQL and NATS. `turnstile.bridge.inbox_service` says what a handler may
rely on.
"""

import argparse
import asyncio
import logging
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from turnstile.bridge.inbox.claim_queue import ClaimQueue
from turnstile.bridge.inbox.doorbells import Doorbells
from turnstile.bridge.inbox_service import Handler, InboxService, ServiceTurn
from turnstile.bridge.publishing.publisher import NatsPublisher
from turnstile.bridge.safety.watchdog import Watchdog
from turnstile.processes import addresses
from turnstile.processes.connections import instance_name, open_nats, open_pool, watch_nats, watchdog_times
from turnstile.processes.exclusive_targets import ExclusiveTarget
from turnstile.processes.presence import sign_on
from turnstile.runtime.event_loop import fast_loop
from turnstile.runtime.program import GRACE_SECONDS, INTERRUPTED, LATE_SECONDS, Program
from turnstile.schema.errors import BadRequest, ConfigError, Refused, TurnstileError
from turnstile.schema.ids import EXCLUSIVE_PREFIX, is_exclusive
from turnstile.schema.ids import worker_target as checked_target
from turnstile.settings import Settings, load_settings

__all__ = ["Handler", "Refused", "ServiceTurn", "run_service", "serve_inbox"]


async def serve_inbox(
    worker_target: str,
    handler: Handler,
    stop: asyncio.Event,
    *,
    settings: Settings,
    data: Path | None = None,
    standby: bool = True,
    concurrency: int = 1,
    deadline_seconds: float = 300.0,
) -> None:
    """Run the turns of this target's agents until `stop`, `concurrency` at a time; running handlers then get 2.5 s.

    Raises `ConfigError` for a target that is not exclusive (`svc1_…`) or servers whose addresses are not known,
    `TargetHeld` if another process has it and this is no `standby`.
    """
    if not is_exclusive(worker_target):
        raise ConfigError(f"{worker_target}: the target of a service begins with {EXCLUSIVE_PREFIX}")
    try:
        checked_target(worker_target, "the target of a service")
    except BadRequest as error:
        raise ConfigError(str(error)) from None
    database, instance = addresses.database_url(settings, data), instance_name("service")
    async with AsyncExitStack() as stack:
        pool = await stack.enter_async_context(open_pool(settings, database, 4 + concurrency, instance))
        nats_url = addresses.nats_url(settings, data)
        conn = await stack.enter_async_context(open_nats(settings.nats, nats_url, instance, needed=False))
        publisher = NatsPublisher(conn, give_up_seconds=2)

        async def serve(ending: asyncio.Event) -> None:
            service = InboxService(
                pool,
                publisher,
                worker_target,
                handler,
                concurrency=concurrency,
                deadline_seconds=deadline_seconds,
            )
            watchdog = Watchdog(pool, service.rules(watchdog_times(settings.bridge)))
            try:
                await service.take_over()
                queue = ClaimQueue()
                async with asyncio.TaskGroup() as group:
                    group.create_task(queue.run(service, ending))
                    group.create_task(Doorbells(conn, queue, worker_target).run(ending))
                    group.create_task(watchdog.run(ending))
                    group.create_task(sign_on(pool, instance, [worker_target], ending))
            finally:
                await service.close(GRACE_SECONDS if stop.is_set() else 0)

        serving = asyncio.create_task(
            ExclusiveTarget(database, instance, standby).serve("bridge", worker_target, stop, serve)
        )
        watching = asyncio.create_task(watch_nats(conn, stop))
        try:
            await asyncio.wait([serving, watching], return_when=asyncio.FIRST_EXCEPTION)
        finally:
            for task in (serving, watching):
                task.cancel()
            await asyncio.wait([serving, watching])
        for task in (watching, serving):
            if not task.cancelled():
                task.result()


def run_service(worker_target: str, handler: Handler, argv: Sequence[str] | None = None) -> None:
    """The program of a service: serves until SIGTERM or Ctrl-C; ends with exit code 1 after an error."""
    parser = argparse.ArgumentParser(description=f"Runs the turns of {worker_target}.")
    parser.add_argument("--config", type=Path, metavar="FILE", help="settings, instead of ./config.toml")
    parser.add_argument("--data", type=Path, metavar="DIR", help="data directory of a `turnstile up`")
    parser.add_argument("--no-standby", action="store_true", help="end if another process has the target")
    options = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")

    stop, program, code = asyncio.Event(), Program(late_seconds=LATE_SECONDS, new_loop=fast_loop), 0

    async def run() -> None:
        settings = load_settings(options.config)
        await serve_inbox(
            worker_target, handler, stop, settings=settings, data=options.data, standby=not options.no_standby
        )

    try:
        program.run(run(), lambda _: stop.set())
    except asyncio.CancelledError:
        code = 0 if program.was_late else INTERRUPTED
    except TurnstileError as error:
        sys.stderr.write(f"{error} ({error.code})\n")
        code = 1
    program.leave(code)
