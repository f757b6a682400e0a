"""File helpers for the data directory: private directories, atomic writes, rotating and reading logs."""

import os
from pathlib import Path

LOG_KEPT = 8 * 1024 * 1024
"""A log that has more bytes when its server starts is renamed to `NAME.log.1`."""


def private_directory(path: Path) -> Path:
    """Creates the directory, accessible to its owner only, unless it exists; returns it."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path


def write_private(path: Path, text: str) -> None:
    """Replaces the file atomically, readable by its owner only."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    beside.replace(path)


def turn_over(log: Path) -> int:
    """Rotates the log if it is long; returns the byte offset at which the next line will be written."""
    size = log.stat().st_size if log.exists() else 0
    if size > LOG_KEPT:
        log.replace(log.with_name(f"{log.name}.1"))
        return 0
    return size


def tail(log: Path, start: int = 0, lines: int = 15) -> str:
    """The last lines written at or after the byte `start`."""
    if not log.exists():
        return ""
    with log.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(min(size, max(start, size - 32_768)))
        return "\n".join(file.read().decode(errors="replace").splitlines()[-lines:])


def last_error(log: Path) -> str:
    """The text of the last error in the last 40 lines of a NATS log, without its time; empty if there is none."""
    found = [line.partition("[ERR] ")[2] for line in tail(log, lines=40).splitlines() if "[ERR] " in line]
    return found[-1] if found else ""
