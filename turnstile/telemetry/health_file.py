"""Where the processes of a data directory tell their health: `run/health-PID.json`, for `turnstile health`.

Each serves `/health` on a port of loopback that the system chooses, and names it in a file of its own that goes when
the process ends. What a kill leaves behind names a process that is gone, and counts for nothing.
"""

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from threading import Thread
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

from pydantic import BaseModel, ConfigDict, ValidationError

from turnstile.embedded import DEFAULT_DATA
from turnstile.embedded.files import private_directory, write_private
from turnstile.embedded.ports import LOOPBACK
from turnstile.telemetry.health import Health


class HealthFile(BaseModel):
    """One process: what it is, and where it tells its health."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    role: str
    pid: int
    port: int


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 -- its name in the base class
        """Nothing: a question about health is no news."""


@asynccontextmanager
async def health_told(data: Path | None, role: str) -> AsyncGenerator[Health]:
    """The health of this process, told in the data directory, if there is one, until the block ends."""
    health = Health()
    if data is None:
        yield health
        return
    server = make_server(LOOPBACK, 0, health.beside(_nothing), handler_class=_Quiet)
    thread = Thread(target=server.serve_forever, daemon=True, name="health")
    thread.start()
    path = private_directory(data / "run") / f"health-{os.getpid()}.json"
    try:
        told = HealthFile(role=role, pid=os.getpid(), port=server.server_port)
        write_private(path, told.model_dump_json() + "\n")
        yield health
    finally:
        path.unlink(missing_ok=True)
        await asyncio.to_thread(server.shutdown)
        server.server_close()
        thread.join(timeout=1)


def read_health_files(data: Path) -> list[HealthFile]:
    """The processes of this data directory that are alive."""
    found: list[HealthFile] = []
    for path in sorted((data / "run").glob("health-*.json")):
        try:
            told = HealthFile.model_validate_json(path.read_bytes())
        except (FileNotFoundError, ValidationError):  # it ends just now, or is of another version
            continue
        if Path(f"/proc/{told.pid}").exists():
            found.append(told)
    return found


def find_health_files(data: Path | None) -> list[HealthFile]:
    """Those of `data` if given, else of the first `.turnstile` here or in a directory above that has some."""
    here = Path.cwd()
    places = [data] if data is not None else [each / DEFAULT_DATA for each in (here, *here.parents)]
    return next((found for place in places if (found := read_health_files(place))), list[HealthFile]())


def _nothing(environment: dict[str, Any], respond: Any) -> list[bytes]:
    respond("404 Not Found", [("Content-Type", "text/plain; charset=utf-8")])
    return [b"only /health is here\n"]
