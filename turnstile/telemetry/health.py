"""`/health` over HTTP: whether this process serves, for health checks of containers and for probes.

It reports on this process only. While a server is away the process is healthy: it waits for the server, and restarting
the process would not help.

Each process serves it on a free loopback port and writes the port to a file `run/health-PID.json` of its data
directory, where `turnstile health` finds it; it removes the file when it ends. A killed process leaves its file behind;
readers ignore files of processes that are gone.
"""

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from threading import Thread
from typing import Any, Literal
from wsgiref.simple_server import WSGIRequestHandler, make_server

from pydantic import BaseModel, ConfigDict, ValidationError

from turnstile.embedded import DEFAULT_DATA
from turnstile.embedded.files import private_directory, write_private
from turnstile.embedded.ports import LOOPBACK

PATH = "/health"
ANSWER_SECONDS = 2.0
"""An event loop that does not answer for so long is stuck."""

SystemStatus = Literal["starting", "serving", "stuck"]
Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]
"""A WSGI application."""


class Health:
    """The health of one process: `starting` until `serves` is called, then `serving` while its event loop answers."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._serves = False

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
        return "serving"

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
async def serving_health(data: Path | None, role: str) -> AsyncGenerator[Health]:
    """Serve the health of this process, and write its file into the data directory, until the block ends.

    Without a data directory nothing is served.
    """
    health = Health()
    if data is None:
        yield health
        return
    server = make_server(LOOPBACK, 0, health.beside(_not_found), handler_class=_Quiet)
    thread = Thread(target=server.serve_forever, args=(0.1,), daemon=True, name="health")
    thread.start()
    path = private_directory(data / "run") / f"health-{os.getpid()}.json"
    try:
        content = HealthFile(role=role, pid=os.getpid(), port=server.server_port)
        write_private(path, content.model_dump_json() + "\n")
        yield health
    finally:
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


def _not_found(environment: dict[str, Any], respond: Any) -> list[bytes]:
    respond("404 Not Found", [("Content-Type", "text/plain; charset=utf-8")])
    return [b"only /health is here\n"]
