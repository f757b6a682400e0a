"""The check of `turnstile doctor` on the disks of the servers of a `turnstile up` here.

Servers of one's own have their disks elsewhere: of those, the lines of PostgreSQL and of the streams say whether they
store what they are given.
"""

from collections.abc import Sequence
from pathlib import Path

from turnstile.doctor.checks import Check
from turnstile.embedded.files import FULL_MB, LOW_MB, Disk, disks_of


def check_disks(homes: Sequence[Path]) -> list[Check]:
    """A line for each file system that these data directories of servers are on."""
    return [_line(disk) for disk in disks_of(*homes)]


def _line(disk: Disk) -> Check:
    name = f"disk of {disk.path}"
    if disk.trouble:
        hint = "make room: `turnstile up` then restarts the servers that have ended or refuse to write"
        return Check(name=name, status="fail", says=disk.trouble, hint=hint)
    if disk.free_mb < LOW_MB:
        hint = f"make room: below {FULL_MB} MB servers refuse to write, or end, until there is room"
        return Check(name=name, status="warn", says=f"{disk.free_mb} MB are free", hint=hint)
    return Check(name=name, status="ok", says=f"{disk.free_mb} MB are free")
