"""Ports of the servers: a data directory keeps its ports, so that clients find them after a restart.

Ports are chosen below the range that the system uses for outgoing connections, so no connection takes a server's port
while it restarts.
"""

import random
import socket
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from turnstile.embedded.files import write_private
from turnstile.embedded.server_errors import EmbeddedError

LOOPBACK = "127.0.0.1"
CANDIDATES = range(20_000, 30_000)


class Ports(BaseModel):
    """One TCP port on the loopback interface for each listener."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    postgres: int
    nats: int
    temporal: int
    temporal_ui: int
    temporal_http: int
    temporal_metrics: int
    gateway: int = 0
    """Of `turnstile up`; 0 in a file of a version that had none."""
    nats_monitoring: int = 0


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        # The servers set it too: connections of the last run in TIME_WAIT do not block the port.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def _kept(path: Path) -> dict[str, int]:
    try:
        return Ports.model_validate_json(path.read_bytes()).model_dump()
    except (FileNotFoundError, ValidationError):
        return {}


@dataclass(frozen=True, slots=True)
class Moved:
    """A listener that has another port in this run, because another program uses its own."""

    name: str
    usual: int
    port: int


def choose_ports(data: Path) -> tuple[Ports, list[Moved]]:
    """The ports of this data directory, and the listeners that moved because another program uses their port.

    The file keeps the first choice, so a listener that moved gets its own port back at the next start. The first choice
    depends on the directory's path only, so a directory that was removed gets the same ports again. Call it when the
    last run has ended.
    """
    path = data / "ports.json"
    kept = _kept(path)
    drawn = iter(random.Random(str(data)).sample(CANDIDATES, 500))  # noqa: S311 -- no secret
    taken = set(kept.values())
    chosen: dict[str, int] = {}
    for name in Ports.model_fields:
        port = kept.get(name)
        if not port or not _is_free(port):
            port = next((new for new in drawn if new not in taken and _is_free(new)), None)
        if port is None:
            raise _none_free()
        chosen[name] = port
    if not all(kept.get(name) for name in Ports.model_fields):
        first = {name: kept.get(name) or port for name, port in chosen.items()}
        write_private(path, Ports(**first).model_dump_json() + "\n")
    return Ports(**chosen), [
        Moved(name, kept[name], port) for name, port in chosen.items() if (kept.get(name) or port) != port
    ]


def free_port() -> int:
    """A port that nothing uses now, outside the range for outgoing connections."""
    drawn = random.Random().sample(CANDIDATES, 500)  # noqa: S311 -- no secret
    port = next((port for port in drawn if _is_free(port)), None)
    if port is None:
        raise _none_free()
    return port


def _none_free() -> EmbeddedError:
    return EmbeddedError(f"no TCP port between {CANDIDATES.start} and {CANDIDATES.stop} is free on {LOOPBACK}")
