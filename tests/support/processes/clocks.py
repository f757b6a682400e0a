"""The wall clock of one process, shifted by libfaketime while the process runs.

Only programs that read the clock through the C library are deceived: ours and PostgreSQL. NATS and Temporal are static
Go programs and are not. The monotonic clock stays as it is, as when an operator sets the time of a machine.
"""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest

from turnstile.embedded.postgres_server import PostgresServer
from turnstile.embedded.protocol import StartProcess


@dataclass(frozen=True)
class Clock:
    """A file that says by how much the clock is wrong."""

    file: Path

    @property
    def environment(self) -> Mapping[str, str]:
        """What the process needs in its environment; the test is skipped where there is no libfaketime."""
        found = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
        if not found:
            pytest.skip("needs libfaketime (apt-get install faketime)")
        return {
            "LD_PRELOAD": str(found[0]),
            "FAKETIME_TIMESTAMP_FILE": str(self.file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }

    def shift(self, by: timedelta) -> None:
        """Set how far the clock is ahead of the machine's, or behind."""
        beside = self.file.with_suffix(".new")
        beside.write_text(f"{by.total_seconds():+.0f}\n")
        beside.chmod(0o644)
        beside.replace(self.file)


def right_clock(file: Path) -> Clock:
    """A clock that is right until it is shifted."""
    clock = Clock(file)
    clock.shift(timedelta())
    return clock


@contextmanager
def of_postgres(clock: Clock) -> Generator[None]:
    """PostgreSQL servers that are started in the block have this clock."""
    usual = PostgresServer.command
    words = ("/usr/bin/env", *(f"{name}={value}" for name, value in clock.environment.items()))

    def deceived(server: PostgresServer) -> StartProcess:
        start = usual(server)
        return start.model_copy(update={"argv": (*words, *start.argv)})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PostgresServer, "command", deceived)
        yield
