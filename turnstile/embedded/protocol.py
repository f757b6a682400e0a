"""The messages between the parent process and its warden: one JSON object per line.

The warden parses them without these models, since it runs on the standard library only.
"""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class StartProcess(_Message):
    """Start a program, with its output appended to `log`; answered by `Started` or `NotStarted`."""

    do: Literal["start"] = "start"
    name: str
    argv: tuple[str, ...]
    env: dict[str, str]
    log: Path
    stop_signal: int
    grace_seconds: float = Field(gt=0)
    """How long after the stop signal SIGKILL follows."""
    death_signal: int
    """The signal that the kernel sends to the program when the warden is killed (Linux)."""
    private: Path | None = None
    """A FIFO from which the program's launcher takes its environment instead: the warden never has it."""
    user: int | None = None
    """Whom to run it as, if not as the warden."""
    group: int | None = None
    keep_search: bool = False


class StopProcess(_Message):
    """Send the stop signal, SIGKILL after the grace; answered by `Exited`."""

    do: Literal["stop"] = "stop"
    name: str


class KillProcess(_Message):
    """Send SIGKILL; answered by `Exited`."""

    do: Literal["kill"] = "kill"
    name: str


class Shutdown(_Message):
    """Stop all processes, then end."""

    do: Literal["shutdown"] = "shutdown"


Command = StartProcess | StopProcess | KillProcess | Shutdown


class Ready(_Message):
    """No process of an earlier run is left, commands are taken."""

    event: Literal["ready"]
    pid: int


class StillRunning(_Message):
    """Processes of an earlier run do not end; the warden gives up."""

    event: Literal["held"]


class Started(_Message):
    """The program runs under this pid."""

    event: Literal["started"]
    name: str
    pid: int


class NotStarted(_Message):
    """The program could not be executed."""

    event: Literal["not_started"]
    name: str
    reason: str


class Exited(_Message):
    """The program ended, asked or not; a negative code is the signal that ended it."""

    event: Literal["exited"]
    name: str
    code: int


Event = Annotated[Ready | StillRunning | Started | NotStarted | Exited, Field(discriminator="event")]
EVENT: TypeAdapter[Ready | StillRunning | Started | NotStarted | Exited] = TypeAdapter(Event)
