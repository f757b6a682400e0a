"""What a power failure leaves of a nats-server's store: what it wrote and had not synced is gone.

`strace` watches the server from `watch` on, and prints each write to a message file (`*.blk`), each fsync, and which
of the other files are written with O_SYNC. After a SIGKILL, `cut` makes the store what the disk would have had:

- a file of messages ends where it ended when its last completed fsync began, or when `watch` was called;
- any other file is as it was when `watch` was called, unless it was written with O_SYNC since: then it is as it is.
  With `keep_states` the states of streams and consumers stay as they are: a file system may write a small file that
  replaces another before it writes what was appended to a large one.

It does not take back what was overwritten within the synced length, nor files that were removed, and it believes that
the entry of a new file is on the disk with its first fsync, as on ext4 and XFS. `strace` slows the server while it
watches, by a little if it watches from the start, and by more if it is attached.
"""

import contextlib
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

_CALLS = "trace=openat,pwrite64,fsync,fdatasync"
_LINE = re.compile(
    r"(\d+) +(?:<\.\.\. )?(\w+)(?:\((?:AT_FDCWD(?:<[^>]*>)?, \"([^\"]*)\", (\S+?)[,)]|\d+<([^>]*)>))?(.*)"
)
_PLACE = re.compile(r", (\d+), (\d+)(?:\)| <unfinished)")
_BLOCKS = ".blk"
_SECONDS = 10.0
STRACE = shutil.which("strace")


@dataclass
class Trace:
    """What a trace says: how long each file was at its last fsync, and which were written through."""

    synced: dict[str, int] = field(default_factory=dict[str, int])
    durable: set[str] = field(default_factory=set[str])
    """Files that were opened with O_SYNC, by the name that they have in the end."""


def read_trace(lines: Sequence[str]) -> Trace:
    """Read the lines of a trace; a call that was not completed counts for nothing."""
    trace, written, begun = Trace(), dict[str, int](), dict[str, tuple[str, int]]()
    for line in lines:
        if (match := _LINE.match(line)) is None:
            continue
        thread, call, opened, flags, path, rest = match.groups()
        match call:
            case "openat" if opened and "O_SYNC" in flags:
                trace.durable.add(opened.removesuffix(".tmp"))
            case "pwrite64" if path and (place := _PLACE.search(rest)):
                written[path] = max(written.get(path, 0), int(place[1]) + int(place[2]))
            case "fsync" | "fdatasync":
                if path is not None:
                    begun[thread] = path, written.get(path, 0)
                if rest.endswith("= 0") and thread in begun:
                    name, length = begun.pop(thread)
                    trace.synced[name] = max(trace.synced.get(name, 0), length)
            case _:
                pass
    return trace


class PowerFailure:
    """Watches a server with this pid, whose streams are below `store`."""

    def __init__(self, store: Path, pid: int) -> None:
        self._store = store
        self._notes = Path(tempfile.mkdtemp(prefix="turnstile-power-"))
        self._pid = pid
        self._strace: subprocess.Popen[bytes] | None = None
        self._before: dict[Path, int] = {}
        """The lengths of the files when watching began."""

    def watch(self) -> None:
        """Returns when every thread of the server is watched; raises `TimeoutError` if `strace` may not do that."""
        options = ("-f", "-y", "-s", "0", "-qq", "-e", _CALLS, "-e", "signal=none", "-o", str(self._notes / "trace"))
        self._strace = subprocess.Popen([STRACE or "strace", *options, "-p", str(self._pid)], stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + _SECONDS
        while not self._watched():
            if time.monotonic() > deadline or self._strace.poll() is not None:
                raise TimeoutError("strace does not watch nats-server")
            time.sleep(0.01)
        for path in self._files():
            with contextlib.suppress(FileNotFoundError):
                self._before[path] = path.stat().st_size
        passing = shutil.ignore_patterns(f"*{_BLOCKS}", "*.tmp")
        shutil.copytree(self._store, self._notes / "store", ignore=passing, copy_function=_copy)

    def cut(self, *, keep_states: bool = False) -> dict[str, int]:
        """After the server was killed: make the store what was synced; returns the bytes lost of each file of messages.

        The server may be started on it then.
        """
        if self._strace is None:
            raise RuntimeError("nothing was watched")
        self._strace.wait(_SECONDS)
        trace = read_trace((self._notes / "trace").read_text(errors="replace").splitlines())
        lost: dict[str, int] = {}
        for path in self._files():
            if path.suffix == _BLOCKS:
                length = max(trace.synced.get(str(path), 0), self._before.get(path, 0))
                if (more := path.stat().st_size - length) > 0:
                    lost[str(path.relative_to(self._store))] = more
                    _shorten(path, length)
            elif not keep_states and str(path) not in trace.durable:
                self._restore(path)
        shutil.rmtree(self._notes)
        return lost

    def _files(self) -> list[Path]:
        return [path for path in self._store.rglob("*") if path.is_file()]

    def _watched(self) -> bool:
        tasks = list(Path(f"/proc/{self._pid}/task").glob("*/status"))
        return bool(tasks) and all("TracerPid:\t0" not in task.read_text() for task in tasks)

    def _restore(self, path: Path) -> None:
        before = self._notes / "store" / path.relative_to(self._store)
        if before.exists():
            shutil.copy2(before, path)
        else:
            path.unlink()


def _copy(source: str, target: str) -> None:
    """The server works on, and renames or removes files meanwhile."""
    with contextlib.suppress(FileNotFoundError):
        shutil.copy2(source, target)


def _shorten(path: Path, length: int) -> None:
    """A file that was never synced may not be there at all."""
    if length:
        with path.open("r+b") as file:
            file.truncate(length)
    else:
        path.unlink()
