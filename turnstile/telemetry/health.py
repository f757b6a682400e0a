"""`/health` over HTTP: whether this process serves, for health checks of containers and for probes.

It reports on this process only. While a server is away the process is healthy: it waits for the server, and restarting
the process would not help.

Each process serves it on a free loopback port and writes the port to a file `run/health-PID.json` of its data
directory, where `turnstile health` finds it; it removes the file when it ends. A killed process leaves its file behind;
readers ignore files of processes that are gone.
"""

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from threading import Thread
from typing import Any, Literal, Protocol, get_args
from wsgiref.simple_server import WSGIRequestHandler, make_server

from pydantic import BaseModel, ConfigDict, ValidationError

from turnstile.embedded import DEFAULT_DATA
from turnstile.embedded.files import private_directory, write_private
from turnstile.embedded.ports import LOOPBACK

PATH = "/health"
ANSWER_SECONDS = 2.0
"""An event loop that does not answer for so long is stuck."""

SystemStatus = Literal["starting", "serving", "stuck"]
_STATUSES: tuple[SystemStatus, ...] = get_args(SystemStatus)
Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]
"""A WSGI application."""


class Group(Protocol):
    """Processes that this one has started, and answers for."""

    def status(self) -> SystemStatus:
        """The status of all of them; called from any thread."""
        ...

    def metrics_ports(self) -> Mapping[str, int]:
        """The loopback port of each one's metrics, by its number."""
        ...


class Health:
    """The health of one process: `starting` until `serves` is called, then `serving` while its event loop answers."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._serves = False
        self.group: Group | None = None
        """The workers that this process has started: it serves only if they do."""

    def serves(self) -> None:
        """Call this when the process has reached its servers and begun its work."""
        self._serves = True

    def status(self) -> SystemStatus:
        """The status now; call it from another thread than the loop's. Takes at most `ANSWER_SECONDS`."""
        if not self._serves:
            return "starting"
        answer = asyncio.run_coroutine_threadsafe(asyncio.sleep(0), self._loop)
        try:
            answer.result(ANSWER_SECONDS)
        except TimeoutError:
            answer.cancel()
            return "stuck"
        return "serving" if self.group is None else self.group.status()

    def beside(self, others: Application) -> Application:
        """The application `others` with `/health` added: 200 if the status is `serving`, else 503; body: the status."""

        def application(environment: dict[str, Any], respond: Callable[..., Any]) -> Iterable[bytes]:
            if environment["PATH_INFO"] != PATH:
                return others(environment, respond)
            status = self.status()
            code = "200 OK" if status == "serving" else "503 Service Unavailable"
            respond(code, [("Content-Type", "text/plain; charset=utf-8")])
            return [f"{status}\n".encode()]

        return application


class HealthFile(BaseModel):
    """The role of a process, and the port on which it serves `/health`."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    role: str
    pid: int
    port: int


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 -- its name in the base class
        """Log nothing for requests to `/health`."""


@asynccontextmanager
async def serving_health(data: Path | None, role: str, *, report: int | None = None) -> AsyncGenerator[Health]:
    """Serve the health of this process, and write its file into the data directory, until the block ends.

    With `report`, an open descriptor, the file's content goes there instead, and `report` is closed. Without either
    nothing is served.
    """
    health = Health()
    if data is None and report is None:
        yield health
        return
    server = make_server(LOOPBACK, 0, health.beside(_not_found), handler_class=_Quiet)
    thread = Thread(target=server.serve_forever, args=(0.1,), daemon=True, name="health")
    thread.start()
    content = HealthFile(role=role, pid=os.getpid(), port=server.server_port).model_dump_json() + "\n"
    path: Path | None = None
    try:
        if report is not None:
            with os.fdopen(report, "w") as pipe:
                pipe.write(content)
        elif data is not None:
            path = private_directory(data / "run") / f"health-{os.getpid()}.json"
            write_private(path, content)
        yield health
    finally:
        if path is not None:
            path.unlink(missing_ok=True)
        await asyncio.to_thread(server.shutdown)
        server.server_close()
        thread.join(timeout=1)


def read_health_files(data: Path) -> list[HealthFile]:
    """The processes of this data directory that are alive."""
    files: list[HealthFile] = []
    for path in sorted((data / "run").glob("health-*.json")):
        try:
            file = HealthFile.model_validate_json(path.read_bytes())
        except (FileNotFoundError, ValidationError):  # the process just ended, or has another version
            continue
        if Path(f"/proc/{file.pid}").exists():
            files.append(file)
    return files


def find_health_files(data: Path | None) -> list[HealthFile]:
    """The health files of `data` if given, else of the nearest `.turnstile` here or above that has any."""
    here = Path.cwd()
    directories = [data] if data is not None else [parent / DEFAULT_DATA for parent in (here, *here.parents)]
    return next((files for directory in directories if (files := read_health_files(directory))), list[HealthFile]())


async def fetch_status(host: str, port: int) -> SystemStatus | None:
    """The status that the process at this address reports; None if there is no answer."""
    try:
        async with asyncio.timeout(2 * ANSWER_SECONDS):
            body = await _get(host, port, PATH)
    except (OSError, TimeoutError):
        return None
    return next((status for status in _STATUSES if status == body), None)


async def _get(host: str, port: int, path: str) -> str:
    """The body of the response to a GET; plain HTTP/1.0, since importing a client library would take longer."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(f"GET {path} HTTP/1.0\r\n\r\n".encode())
        return (await reader.read()).decode(errors="replace").rpartition("\r\n\r\n")[2].strip()[:40]
    finally:
        writer.close()


def _not_found(environment: dict[str, Any], respond: Any) -> list[bytes]:
    respond("404 Not Found", [("Content-Type", "text/plain; charset=utf-8")])
    return [b"only /health is here\n"]
