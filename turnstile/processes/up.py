"""`turnstile up`: runs the embedded servers, the migrations, worker, bridge and gateway in one process until `stop`.

The server of a local model is started when the model is first asked for, or at once if a profile names it. MCP servers
that the data directory names are served by a process beside it.

A server that dies is restarted once, on the same data and port: worker and bridge wait for it, and no turn is lost. If
the same server dies again, everything stops with an error that shows its log. A server that dies because its disk is
full is restarted when there is room, however often; so is NATS while its streams refuse messages. However this process
ends, the servers end with it.
"""

import asyncio
import errno
import logging
import os
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from turnstile.embedded import EmbeddedServers, Endpoints, ServerFailure, ServerName
from turnstile.embedded.files import FULL_MB, LOW_MB, disk_of, last_error
from turnstile.embedded.server_errors import DataDirectoryUnusable, EmbeddedError, ServerStartFailed
from turnstile.gateway.console.once import OneTimeLinks
from turnstile.local.model_servers import LocalServers
from turnstile.processes import addresses
from turnstile.processes.addresses import NAMESPACE
from turnstile.processes.connections import Servers
from turnstile.processes.gateway import links_of, own_token, serve_gateway
from turnstile.processes.mcp.beside_up import McpBeside
from turnstile.processes.migration import MigrationReport, migrate_all
from turnstile.processes.run import run_both
from turnstile.processes.worker_group import WorkerGroup
from turnstile.runtime.program import GRACE_SECONDS, LATE_SECONDS, unfinished
from turnstile.runtime.waiting import unless_stopped
from turnstile.schema.amounts import amount
from turnstile.schema.errors import TurnstileError
from turnstile.schema.ids import ProjectId
from turnstile.settings import Settings
from turnstile.telemetry.health import Health, serving_health
from turnstile.transport.connection import NatsConnection, connect
from turnstile.transport.stream_probe import NoStream, probe_streams
from turnstile.transport.streams import declare_streams

T = TypeVar("T")
log = logging.getLogger(__name__)
Restart = Callable[[ServerName], Awaitable[None]]
ROOM_SECONDS = 1.0
"""Seconds between two looks for room on the disk of a server that waits for it."""
_KERNEL_SECONDS = GRACE_SECONDS + 0.3
"""What worker, bridge and gateway have to end."""
_WORKERS_SECONDS = 0.5
"""What other workers have beyond that; those that are left end with this process."""
_CANCELED_TIMES = 4
"""How often a kernel that has not ended is canceled, every 0.1 s."""
_SERVERS_SECONDS = LATE_SECONDS - 0.3
"""When servers that have not ended after the signal are left to their wardens."""
DISKS_SECONDS = 10.0
"""Seconds between two looks at the disks of servers that run."""
_NO_ROOM = tuple(os.strerror(number) for number in (errno.ENOSPC, errno.EDQUOT, errno.EROFS))


class ServerDied(TurnstileError):
    """An embedded server ended twice."""

    code: str = "server_died"


class WorkersDied(TurnstileError):
    """Worker processes beside this one ended too often."""

    code: str = "workers_died"


class StoppedEarly(Exception):
    """`stop` was set before everything was up."""


@dataclass(frozen=True, slots=True)
class Running:
    """The running servers, their addresses, and what was migrated."""

    endpoints: Endpoints
    embedded: tuple[str, ...]
    migrated: MigrationReport


@dataclass(frozen=True, slots=True)
class WatchTimes:
    """In seconds. `failures` consecutive probes must fail; a restart doubles the pause up to `longest_pause`."""

    every: float = 5.0
    timeout: float = 5.0
    failures: int = 3
    pause: float = 30.0
    longest_pause: float = 600.0


async def run_up(
    settings: Settings,
    data: Path,
    stop: asyncio.Event,
    *,
    say: Callable[[str], None],
    ready: Callable[[Running], None],
    watch: WatchTimes | None = None,
    worker_words: Sequence[str] = (),
) -> None:
    """Run until `stop` is set, then drain; calls `ready` once everything serves.

    Of `[worker].processes` one is this process; the others are `turnstile worker` with these options.
    Raises `EmbeddedError` (another `up` holds the data, its disk is full, a server does not start), `ServerDied`, and
    what `turnstile.processes.run` raises.
    """
    check_data(data)
    settings = addresses.beside(settings, data)
    stopped = asyncio.create_task(_moment(stop), name="signal")
    beside: list[Callable[[], Awaitable[None]]] = []
    servers = EmbeddedServers(
        data,
        database_url=settings.database.url or None,
        nats_url=settings.nats.url or None,
        temporal_address=settings.temporal.address or None,
        temporal_namespace=settings.temporal.namespace or NAMESPACE,
    )
    try:
        async with AsyncExitStack() as resources:
            health = await resources.enter_async_context(serving_health(data, "up"))
            endpoints = await unless(stop, servers.start())
            resources.push_async_callback(_end_servers, servers, beside, stopped, say)
            for moved in servers.moved:
                say(
                    f"WARNING: the port of {moved.name} has moved from {moved.usual}, which another program uses, to "
                    f"{moved.port}: programs that use the old address, as in NATS_URL, need the new one"
                )
            migrated = await unless(stop, migrate_all(settings, endpoints, needs_nats=False))
            local = LocalServers(data, settings.local)
            beside += local.close, McpBeside(data, endpoints.nats_url, say).close
            await unless(stop, own_token(data, endpoints.database_url, ProjectId(settings.protocol.default_project)))

            def serves(url: str) -> None:
                ready(Running(servers.announce_gateway(url), servers.embedded, migrated))

            count = settings.worker.processes - 1
            group = health.group = WorkerGroup(settings, count, worker_words, first=2) if count else None
            times = watch or WatchTimes()
            await _serve(settings, servers, local, stop, say, serves, health, times, OneTimeLinks(data), group)
    except StoppedEarly:
        return


def check_data(data: Path) -> None:
    """Raise `DataDirectoryUnusable` if the servers could not write into the data directory."""
    place = data.absolute()
    while not place.exists():
        place = place.parent
    if not place.is_dir():
        trouble = f"{place} is a file, and servers need a directory"
    elif (trouble := disk_of(place).trouble) == "" and not os.access(place, os.W_OK | os.X_OK):
        trouble = f"{place} may not be written by this user ({os.geteuid()})"
    if trouble:
        raise DataDirectoryUnusable(f"{trouble}. Fix that, or choose another data directory: --data DIR.")


async def unless(stop: asyncio.Event, work: Coroutine[Any, Any, T]) -> T:
    """Await `work` and return its result; cancels it and raises `StoppedEarly` if `stop` is set first."""
    task = asyncio.create_task(work)
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({task, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise StoppedEarly
    finally:
        for waiter in (task, stopping):
            waiter.cancel()
        await asyncio.wait({task, stopping})


async def _end(work: "asyncio.Task[None]") -> None:
    """Wait until the kernel ends; a kernel that waits for a server that hangs is logged, canceled, and left behind."""
    await asyncio.wait({work}, timeout=_KERNEL_SECONDS)
    if work.done():
        return
    log.error("not ended %g s after the signal, and canceled: %s", _KERNEL_SECONDS, unfinished(asyncio.current_task()))
    for _ in range(_CANCELED_TIMES):
        work.cancel()  # again: what it then waits for may hang, too
        if (await asyncio.wait({work}, timeout=0.1))[0]:
            return


async def _end_servers(
    servers: EmbeddedServers,
    beside: Sequence[Callable[[], Awaitable[None]]],
    stopped: "asyncio.Task[float]",
    say: Callable[[str], None],
) -> None:
    """End what runs beside the embedded servers, and then them.

    Those that have not ended in time after the signal are named, and left to their wardens: these end them, by force
    after a grace, when this process is gone.
    """

    async def end() -> None:
        async with asyncio.TaskGroup() as group:
            for close in beside:
                group.create_task(_awaited(close()))
        await servers.stop()

    async def left_to_wardens() -> None:
        await asyncio.sleep(max(0.0, await stopped + _SERVERS_SECONDS - asyncio.get_running_loop().time()))

    ending, leaving = asyncio.create_task(end(), name="servers"), asyncio.create_task(left_to_wardens())
    try:
        await asyncio.wait({ending, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if ending.done():
            ending.result()
            return
        late = ", ".join(servers.running()) or "a server of models or tools"
        say(f"{late}: still ending. This process does not wait longer; `turnstile up` does before it starts again")
    finally:
        stopped.cancel()
        leaving.cancel()
        ending.cancel()


async def _awaited(work: Awaitable[None]) -> None:
    await work


async def _moment(stop: asyncio.Event) -> float:
    """The loop's time at which `stop` is set."""
    await stop.wait()
    return asyncio.get_running_loop().time()


async def _serve(
    settings: Settings,
    servers: EmbeddedServers,
    local: LocalServers,
    stop: asyncio.Event,
    say: Callable[[str], None],
    ready: Callable[[str], None],
    health: Health,
    watch: WatchTimes,
    once: OneTimeLinks,
    group: WorkerGroup | None,
) -> None:
    halt, kernel = asyncio.Event(), asyncio.Event()

    async def workers() -> None:
        """Run the other workers; raises `WorkersDied` if they end too often."""
        if group is None:
            await halt.wait()
        elif code := await group.run(halt):
            raise WorkersDied(f"workers ended too often, the last with code {code}: the lines above say how")

    async def gateway(opened: Servers) -> None:
        """Serve HTTP once the kernel does; `ready` gets the address."""
        await unless_stopped(halt, kernel.wait())
        if group is not None:
            await unless_stopped(halt, group.serves.wait())
        url = servers.endpoints.database_url
        links, port = links_of(settings, servers.endpoints), servers.gateway_port
        opening = opened.conn, opened.telemetry, halt, ready
        await serve_gateway(settings, url, *opening, port=port, links=links, once=once)

    program = asyncio.create_task(
        run_both(
            settings,
            servers.endpoints,
            halt,
            ready=kernel.set,
            health=health,
            local=local.address,
            beside=gateway,
        )
    )
    guard = asyncio.create_task(_guard(servers, say, watch))
    beside = asyncio.create_task(workers(), name="workers")
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({program, guard, beside, stopping}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        halt.set()
        guard.cancel()
        stopping.cancel()
        await _end(program)
        await asyncio.wait({guard, stopping})
        await asyncio.wait({beside}, timeout=_WORKERS_SECONDS)
    if not guard.cancelled():
        guard.result()
    if beside.done():
        beside.result()
    if program.done() and not program.cancelled():
        program.result()


async def _guard(servers: EmbeddedServers, say: Callable[[str], None], watch: WatchTimes) -> None:
    """Restart servers that die or refuse messages; raises `ServerDied` if the same server dies a second time."""
    starting = asyncio.Lock()

    async def restart(name: ServerName) -> None:
        async with starting:
            await servers.restart(name)

    watching = [
        asyncio.create_task(_watch(servers, say, watch, lambda: restart("nats"))),
        asyncio.create_task(_watch_disks(servers, say)),
    ]
    try:
        await _revive(servers, say, restart)
    finally:
        for watcher in watching:
            watcher.cancel()
        await asyncio.wait(watching)


async def _watch(
    servers: EmbeddedServers, say: Callable[[str], None], times: WatchTimes, restart: Callable[[], Awaitable[None]]
) -> None:
    if "nats" in servers.embedded:
        home, log = servers.home("nats")
        await StreamWatch(servers.endpoints.nats_url, home, log, restart=restart, say=say, times=times).run()


async def _watch_disks(servers: EmbeddedServers, say: Callable[[str], None]) -> None:
    """Warn of each disk with less than `LOW_MB`, once until there is twice as much again."""
    low: set[int] = set()
    while True:
        for disk in servers.disks():
            if disk.free_mb < LOW_MB and disk.device not in low:
                low.add(disk.device)
                needed = f"below {FULL_MB} MB servers refuse to write, or end, until there is room"
                say(f"WARNING: {disk.free_mb} MB are free at {disk.path}: make room; {needed}")
            elif disk.free_mb >= 2 * LOW_MB:
                low.discard(disk.device)
        await asyncio.sleep(DISKS_SECONDS)


async def _revive(servers: EmbeddedServers, say: Callable[[str], None], restart: Restart) -> None:
    """Restart each server that dies, once, and as often as its disk was full. Several wait for room at a time."""
    died: set[str] = set()
    starting: dict[str, asyncio.Task[None]] = {}
    try:
        async with asyncio.TaskGroup() as group:
            while True:
                failure = await servers.wait_failed()
                name = failure.server
                if name in starting and not starting[name].done():
                    continue  # it ended while it was started, which `_start_again` sees, too
                if not (servers.disk_trouble(name) or any(message in failure.tail for message in _NO_ROOM)):
                    if name in died:
                        raise ServerDied(
                            _died(failure, "It had been started again once before, so everything stops.")
                            + "\nMend what they name and start again: the data is untouched. "
                            f"Or set the address of a {name} server of your own."
                        )
                    died.add(name)
                starting[name] = group.create_task(_start_again(servers, failure, say, restart))
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None


async def _start_again(
    servers: EmbeddedServers, failure: ServerFailure, say: Callable[[str], None], restart: Restart
) -> None:
    """Start a server that died, as soon as its disk has room."""
    while True:
        name = failure.server
        if trouble := servers.disk_trouble(name):
            say(_died(failure, f"It cannot run: {trouble}. Make room: then it is started again, and turns go on."))
            while servers.disk_trouble(name):  # noqa: ASYNC110 -- a disk sets no event
                await asyncio.sleep(ROOM_SECONDS)
        else:
            say(_died(failure, "Starting it again on the same data; turns go on when it answers."))
        try:
            await restart(name)
        except ServerStartFailed as error:
            if not servers.disk_trouble(name):
                raise
            failure = ServerFailure(name, error.reason, error.log, error.tail)
        else:
            say(f"{name} answers again")
            return


def _died(failure: ServerFailure, what: str) -> str:
    quoted = "\n".join(f"    {line}" for line in failure.tail.splitlines()) or "    (nothing was logged)"
    return f"{failure.server} died: {failure.reason}. {what}\nThe last lines of {failure.log}:\n{quoted}"


@dataclass
class StreamWatch:
    """Watches the streams of one NATS server, and restarts it if they keep refusing messages.

    After a full disk nats-server keeps refusing a stream that it could not write once, even when there is space again,
    until it is restarted. So, while the disk has space, a message is stored in each stream every few seconds and
    removed again. A refusal is printed in the server's own words. Restarts are at least `pause` apart. Costs three
    small requests per stream and probe; never ends `up`.

    `home` is where the server's streams are, `log` its log; `restart` stops and starts it.
    """

    url: str
    home: Path
    log: Path
    restart: Callable[[], Awaitable[None]]
    say: Callable[[str], None]
    times: WatchTimes
    _failed: int = 0
    """Consecutive failed probes."""
    _last_refusal: str = ""
    """The kind of refusal that was printed last and still lasts."""
    _not_before: float = 0.0

    def __post_init__(self) -> None:
        self._pause = self.times.pause

    async def run(self) -> None:
        """Probe until cancelled."""
        conn = await connect(self.url, name="turnstile-up", on_wait=lambda _: None)
        try:
            while True:
                await asyncio.sleep(self.times.every)
                disk = disk_of(self.home)
                if not conn.connected.is_set():  # it died or is starting: `up` restarts it
                    self._failed = 0
                elif disk.trouble:  # a probe that cannot be written would itself make the stream refuse
                    self._print_full(disk.trouble)
                elif why := await self._trouble(conn):
                    await self._mend(why)
                else:
                    self._recovered()
        finally:
            await conn.close()

    def _print_full(self, trouble: str) -> None:
        logged = last_error(self.log)
        logs = f" Its log says: {logged}." if logged else ""
        self._print("full", f"NATS cannot store events, and no turn is lost: {trouble}. Make room.{logs}")

    def _recovered(self) -> None:
        if self._last_refusal:
            self.say("the streams of NATS take messages again")
        if asyncio.get_running_loop().time() > self._not_before:
            self._pause = self.times.pause
        self._failed, self._last_refusal = 0, ""

    async def _mend(self, why: str) -> None:
        """Restart the server if enough probes have failed, or the disk was just full, and the pause is over."""
        self._failed += 1
        if self._failed < self.times.failures and self._last_refusal != "full":
            return
        refuses, now = f"NATS refuses messages: {why}", asyncio.get_running_loop().time()
        if now < self._not_before:
            self._print(
                "later",
                f"{refuses}. It was started less than {amount(self._pause / 2)} s ago; it is started again soon.",
            )
        else:
            self._print("restart", f"{refuses}. Starting it again on the same data; no turn is lost.")
            self._not_before, self._pause = now + self._pause, min(2 * self._pause, self.times.longest_pause)
            self._failed = 0
            try:
                await self.restart()
            except EmbeddedError as error:
                self.say(str(error))

    def _print(self, kind: str, text: str) -> None:
        if self._last_refusal != kind:
            self.say(text)
            self._last_refusal = kind

    async def _trouble(self, conn: NatsConnection) -> str:
        """The streams' errors in the server's own words; empty if there are none."""
        probe = await probe_streams(conn, timeout=self.times.timeout, remove=True)
        wrong = {stream: error for stream, error in probe.items() if error is not None}
        if not wrong or not conn.connected.is_set():
            return ""
        if all(isinstance(error, NoStream) for error in wrong.values()):
            try:
                await declare_streams(conn)
            except TurnstileError as error:
                return str(error)
            return ""
        refused = "; ".join(f"{stream}: {error}" for stream, error in wrong.items())
        logged = last_error(self.log)
        return f"{refused}; its log says: {logged}" if logged else refused
