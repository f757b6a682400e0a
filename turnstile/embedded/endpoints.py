"""The addresses of the running servers, in a file that `turnstile up` writes and every other command reads."""

from pathlib import Path

from pydantic import BaseModel, ConfigDict

from turnstile.embedded.files import write_private
from turnstile.transport.local_servers import DEFAULT_DATA, ENDPOINTS, find_data, is_held

__all__ = ["DEFAULT_DATA", "Endpoints", "find_data", "find_endpoints", "read_endpoints"]


class Endpoints(BaseModel):
    """The addresses of the three servers, embedded or not. `database_url` holds a password."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    database_url: str
    nats_url: str
    nats_monitoring_url: str | None = None
    """Where the NATS server serves its settings and figures over HTTP."""
    temporal_address: str
    temporal_namespace: str
    web_ui_url: str | None = None
    """The Web UI of the embedded Temporal."""
    gateway_url: str | None = None
    """The gateway of `turnstile up`; the file `token` beside this one has a token for it."""


def _path(data: Path) -> Path:
    return data / ENDPOINTS


def write_endpoints(data: Path, endpoints: Endpoints) -> None:
    """Writes the file atomically."""
    write_private(_path(data), endpoints.model_dump_json(indent=2) + "\n")


def remove_endpoints(data: Path) -> None:
    """Removes the file if it is there."""
    _path(data).unlink(missing_ok=True)


def read_endpoints(data: Path) -> Endpoints | None:
    """The addresses of this data directory's servers, or None if no servers run, even if an old file is left."""
    try:
        text = _path(data).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return Endpoints.model_validate_json(text) if is_held(data) else None


def find_endpoints(data: Path | None = None) -> Endpoints | None:
    """Reads `data` if given, else the first `.turnstile` with running servers here or in a directory above."""
    home = find_data(data)
    return read_endpoints(home) if home is not None else None
