"""The lock on a data directory: one process at a time runs servers there.

It is an flock, which the kernel releases when the holder dies, so it is never stale; the text in the file only names
the holder. The file is never removed: with a replaced file two processes could each hold a lock.
"""

import asyncio
import fcntl
import os
import shlex
import sys
from datetime import UTC, datetime
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from turnstile.embedded.server_errors import DataDirectoryHeld
from turnstile.transport.local_servers import LOCK

TRIES = 15
"""Attempts, 20 ms apart: a process that checks the lock (`is_held`) holds it for a moment."""


class Holder(BaseModel):
    """The process that holds the data directory."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    pid: int
    started_at: datetime
    command: str


def _path(data: Path) -> Path:
    return data / LOCK


def read_holder(data: Path) -> Holder | None:
    """The process that took the lock last, or None; it may have ended."""
    try:
        return Holder.model_validate_json(_path(data).read_bytes())
    except (FileNotFoundError, ValidationError):
        return None


class DataLock:
    """Holds the data directory from `acquire` to `release`."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self._descriptor: int | None = None

    async def acquire(self) -> None:
        """Takes the lock; raises `DataDirectoryHeld` if another process holds it."""
        descriptor = os.open(_path(self._data), os.O_RDWR | os.O_CREAT, 0o600)
        for _ in range(TRIES):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                await asyncio.sleep(0.02)
            else:
                self._sign(descriptor)
                self._descriptor = descriptor
                return
        os.close(descriptor)
        holder = read_holder(self._data)
        if holder is None:
            raise DataDirectoryHeld(self._data, None, None, None)
        raise DataDirectoryHeld(self._data, holder.pid, holder.started_at, holder.command)

    @staticmethod
    def _sign(descriptor: int) -> None:
        command = shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])[:200]
        holder = Holder(pid=os.getpid(), started_at=datetime.now(UTC), command=command)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, holder.model_dump_json().encode(), 0)

    def release(self) -> None:
        """Releases the lock; a second call does nothing."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
