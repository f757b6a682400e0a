"""The model servers of a `turnstile up`: one process for each local model, started when it is first asked for.

A warden of their own holds them, so they end with this process however it ends. One that dies is started again, after
a delay that grows while it keeps dying; who asks for it meanwhile starts it at once. One that does not come up is tried
again by the next request. Nothing is loaded, and no process is started, before a model is asked for. Each costs the
memory of its weights and of its slots.
"""

import asyncio
import json
import logging
import os
import signal
import sys
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

from turnstile.embedded.files import private_directory, tail, turn_over
from turnstile.embedded.ports import LOOPBACK, free_port
from turnstile.embedded.protocol import StartProcess
from turnstile.embedded.server import POLL, close_stream, describe_exit
from turnstile.embedded.server_errors import EmbeddedError, ServerNotRunning
from turnstile.embedded.supervisor import Supervisor, clean_environment
from turnstile.local.weights import KNOWN, PREFIX, find_weights
from turnstile.schema.errors import ModelError
from turnstile.settings import LocalSettings

log = logging.getLogger(__name__)

SERVE = Path(__file__).with_name("serve.py")
START_SECONDS = 300.0
"""How long weights may take to load: some are many gigabytes on a slow disk."""
GRACE = 5.0
SERVE_PORT = 8180
"""Where `turnstile model serve` listens, and a worker outside of `turnstile up` looks for it."""
_FIRST_DELAY, _LONGEST_DELAY = 0.1, 60.0
_STABLE_SECONDS = 60.0
"""A server that ran for so long is started again without delay."""


def serve_command(name: str, settings: LocalSettings, port: int) -> tuple[str, ...]:
    """The program of a model's server; raises `ModelError` as `check_local` does."""
    check_local(name, settings)
    known = KNOWN.get(name) if name not in settings.weights else None
    options = {
        "--gguf": find_weights(name, settings),
        "--name": name,
        "--port": port,
        "--slots": settings.slots,
        "--context": settings.context_tokens,
        "--threads": settings.threads,
        "--answer": known.answer_tokens if known else -1,
        "--sampling": json.dumps(dict(known.sampling) if known else {}),
    }
    return (sys.executable, "-I", str(SERVE), *(f"{option}={value}" for option, value in options.items()))


def check_local(name: str, settings: LocalSettings) -> None:
    """Whether `local/NAME` can be served here; raises `ModelError` as `find_weights`, or `model_library_missing`."""
    find_weights(name, settings)
    if not is_installed():
        message = "xllamacpp is not installed: pip install 'turnstile-kernel[local]'"
        raise ModelError("model_library_missing", f"{PREFIX}/{name}: {message}", retryable=False)


def become_server(name: str, settings: LocalSettings, port: int) -> NoReturn:
    """Replace this process by the server of `local/NAME`; raises `ModelError` as `check_local`."""
    program, *arguments = serve_command(name, settings, port)
    os.execv(program, [program, *arguments])  # noqa: S606 -- this Python and a file of this package


def is_installed() -> bool:
    """Whether llama.cpp is here; loads nothing."""
    return find_spec("xllamacpp") is not None


class LocalServers:
    """The model servers of one data directory."""

    def __init__(self, data: Path, settings: LocalSettings) -> None:
        self._home = data.absolute() / "models"
        self._settings = settings
        self._supervisor: Supervisor | None = None
        self._ports: dict[str, int] = {}
        self._began: dict[str, float] = {}
        self._answered: set[str] = set()
        """Those that answered in their current or last run: these are started again when they die."""
        self._starting: dict[str, asyncio.Task[None]] = {}
        self._guard: asyncio.Task[None] | None = None
        self._lock = asyncio.Lock()

    async def address(self, name: str) -> str:
        """The base URL of `local/NAME`, whose server is started if it does not run; waits until it answers.

        Raises `ModelError` as `check_local`, or `model_connection` with the end of its log if it does not start.
        """
        if not self._runs(name):
            starting = self._starting.get(name)
            if starting is None:
                starting = self._starting[name] = asyncio.create_task(self._start(name))
                starting.add_done_callback(lambda task: self._started(name, task))
            # An attempt that runs out of time must not end a start that others, and the next attempt, wait for.
            await asyncio.shield(starting)
        return f"http://{LOOPBACK}:{self._ports[name]}/v1"

    def pid(self, name: str) -> int:
        """The process of a model's server; raises `ServerNotRunning`."""
        if self._supervisor is None:
            raise ServerNotRunning(name)
        return self._supervisor.pid(name)

    def log_of(self, name: str) -> Path:
        """The log of a model's server."""
        return self._home / "logs" / f"{name}.log"

    async def close(self) -> None:
        """End all of them."""
        ending = [*self._starting.values(), *((self._guard,) if self._guard else ())]
        for task in ending:
            task.cancel()
        if ending:
            await asyncio.wait(ending)
        if self._supervisor is not None:
            await self._supervisor.close()

    def _runs(self, name: str) -> bool:
        """Whether it has been started, answered, and not ended since."""
        if name in self._starting:
            return False
        with suppress(ServerNotRunning):
            return self.pid(name) > 0
        return False

    def _started(self, name: str, task: asyncio.Task[None]) -> None:
        """The start of a server is over; who waited for it has its error, if anybody still does."""
        self._starting.pop(name, None)
        if not task.cancelled() and task.exception() is not None:
            self._ports.pop(name, None)  # another program may have it

    async def _start(self, name: str) -> None:
        """Returns once the server answers; raises `ModelError`."""
        port = self._ports[name] = self._ports.get(name) or free_port()
        argv = await asyncio.to_thread(serve_command, name, self._settings, port)
        try:
            supervisor = await self._launched()
            where = self.log_of(name)
            begin = turn_over(where)
            self._began[name] = time.monotonic()
            self._answered.discard(name)
            await supervisor.start(
                StartProcess(
                    name=name,
                    argv=argv,
                    env=clean_environment(),
                    log=where,
                    stop_signal=signal.SIGTERM,
                    death_signal=signal.SIGTERM,
                    grace_seconds=GRACE,
                )
            )
            reason = await self._until_it_answers(supervisor, name, port)
        except EmbeddedError as error:
            raise ModelError("model_connection", f"{PREFIX}/{name}: {error}", retryable=True) from None
        if reason is not None:
            quoted = "".join(f"\n    {line}" for line in tail(where, begin, lines=5).splitlines())
            message = f"{PREFIX}/{name}: its server did not start: {reason}. The last lines of {where}:{quoted}"
            raise ModelError("model_connection", message, retryable=True)
        self._answered.add(name)
        log.info("%s/%s serves on port %d after %.1f s", PREFIX, name, port, time.monotonic() - self._began[name])

    async def _launched(self) -> Supervisor:
        async with self._lock:
            if self._supervisor is None:
                for directory in (self._home, self._home / "logs", self._home / "run"):
                    private_directory(directory)
                self._supervisor = await Supervisor.launch(self._home)
                self._guard = asyncio.create_task(self._revive(self._supervisor))
            return self._supervisor

    async def _until_it_answers(self, supervisor: Supervisor, name: str, port: int) -> str | None:
        """Why it did not come to answer; None once it does."""
        exited = asyncio.create_task(supervisor.wait_exited(name))
        try:
            async with asyncio.timeout(START_SECONDS):
                while not await is_healthy(port):
                    await asyncio.wait({exited}, timeout=POLL)
                    if exited.done():
                        return describe_exit(exited.result())
        except TimeoutError:
            await supervisor.stop(name)
            return f"it did not answer within {START_SECONDS:.0f} s"
        finally:
            exited.cancel()
        return None

    async def _revive(self, supervisor: Supervisor) -> None:
        """Start servers that died again, each after its delay."""
        delays: dict[str, float] = {}
        while True:
            failure = await supervisor.wait_failed()
            name = failure.name
            supervisor.forget(name)
            if name not in self._answered:  # it did not come up: who asked for it knows, and who asks again tries again
                continue
            stable = time.monotonic() - self._began[name] > _STABLE_SECONDS
            delay = _FIRST_DELAY if stable else delays.get(name, _FIRST_DELAY)
            delays[name] = min(delay * 4, _LONGEST_DELAY)
            log.warning(
                "the server of %s/%s died: %s; see %s", PREFIX, name, describe_exit(failure.code), self.log_of(name)
            )
            await asyncio.sleep(delay)
            try:
                await self.address(name)
            except ModelError as error:
                log.warning("%s", error)


async def is_healthy(port: int) -> bool:
    """Whether a model's server at this port has loaded its weights."""
    try:
        reader, writer = await asyncio.open_connection(LOOPBACK, port)
    except OSError:
        return False
    try:
        writer.write(b"GET /health HTTP/1.0\r\n\r\n")
        answer = await reader.readline()
    except OSError:
        return False
    finally:
        await close_stream(writer)
    return b" 200 " in answer


async def served_elsewhere(_: str) -> str:
    """The base URL of any local model for a process that starts no servers."""
    return f"http://{LOOPBACK}:{SERVE_PORT}/v1"
