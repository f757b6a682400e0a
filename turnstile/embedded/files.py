"""File helpers for the data directory: private directories, atomic writes, logs, and the room on its disks."""

import os
from dataclasses import dataclass
from pathlib import Path

LOG_KEPT = 8 * 1024 * 1024
"""A log that has more bytes when its server starts is renamed to `NAME.log.1`."""

FULL_MB = 32
"""Free space below which a disk counts as full: the next file of PostgreSQL's log (WAL) takes 17 MB at once."""
LOW_MB = 512
"""Free space below which a warning asks people to make room."""


@dataclass(frozen=True, slots=True)
class Disk:
    """The file system of a directory, and what programs of ordinary users may still store there."""

    path: Path
    device: int
    free_mb: int
    read_only: bool
    stores_files: bool = True
    """False of /proc, /sys and their like."""

    @property
    def trouble(self) -> str:
        """Why no server can write there, in words; empty if it can."""
        if not self.stores_files:
            return f"{self.path} belongs to the system and stores no files"
        if self.read_only:
            return f"the file system of {self.path} is read-only"
        if self.free_mb < FULL_MB:
            return f"the disk is full: {self.free_mb} MB are free at {self.path}, and {FULL_MB} are needed"
        return ""


def disk_of(path: Path) -> Disk:
    """The file system of a directory that exists."""
    stats = os.statvfs(path)
    free = stats.f_bavail * stats.f_frsize // 1_000_000
    return Disk(path, path.stat().st_dev, free, bool(stats.f_flag & os.ST_RDONLY), stats.f_blocks > 0)


def disks_of(*directories: Path) -> list[Disk]:
    """The file systems of those directories that exist, each once; PostgreSQL may have its log on one of its own."""
    places = [place for directory in directories for place in (directory, directory / "pg_wal") if place.is_dir()]
    return list({disk.device: disk for disk in map(disk_of, reversed(places))}.values())[::-1]


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
    errors = [line.partition("[ERR] ")[2] for line in tail(log, lines=40).splitlines() if "[ERR] " in line]
    return errors[-1] if errors else ""
