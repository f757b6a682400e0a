"""Small disks of memory that tests fill to the last byte, and empty again."""

import contextlib
import os
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class SmallDisk:
    """A file system of its own at `path`."""

    path: Path

    @property
    def _ballast(self) -> Path:
        return self.path / "ballast"

    def fill(self, leave: int = 0) -> None:
        """Use all but the last `leave` bytes; more, if it was filled before."""
        with contextlib.suppress(OSError), self._ballast.open("ab", buffering=0) as file:
            for size in (1 << 20, 1 << 12, 1):
                with contextlib.suppress(OSError):
                    while file.write(b"\0" * size):
                        pass
            os.truncate(file.fileno(), file.tell() - leave)

    def protect(self) -> None:
        """Make it read-only; nothing may have a file open for writing."""
        subprocess.run(["mount", "-o", "remount,ro", str(self.path)], check=True)

    def free(self) -> None:
        """Give back what `fill` used."""
        self._ballast.unlink()


@contextmanager
def small_disk(path: Path, megabytes: int) -> Generator[SmallDisk]:
    """Put a directory, with what is in it, on a disk of this size; skips the test where none can be mounted."""
    there, beside = path.stat(), path.with_name(f"{path.name}.before")
    options = f"size={megabytes}m,mode={there.st_mode & 0o777:o},uid={there.st_uid},gid={there.st_gid}"
    path.rename(beside)
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(path)], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {mounted.stderr.strip()}")
    try:
        subprocess.run(["cp", "-a", f"{beside}/.", str(path)], check=True)
        yield SmallDisk(path)
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)
