"""Small dealings with files of the data directory: private directories, whole writes, the end of a log."""

import os
from pathlib import Path

LOG_KEPT = 8 * 1024 * 1024
"""Bytes a log may have at a start; a longer one becomes `NAME.log.1`."""


def private_directory(path: Path) -> Path:
    """The directory, made for its owner alone unless it is there."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path


def write_private(path: Path, text: str) -> None:
    """Replaces the file as a whole, readable by its owner alone. A reader sees the old text or the new one."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    beside.replace(path)


def turn_over(log: Path) -> int:
    """Puts a long log aside and returns where the next line will be written, in bytes."""
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
    """What the last error in the end of a NATS log says, without its time; empty if there is none."""
    found = [line.partition("[ERR] ")[2] for line in tail(log, lines=40).splitlines() if "[ERR] " in line]
    return found[-1] if found else ""
