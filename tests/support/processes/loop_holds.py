"""How long each callback holds the event loop of a process, in CPU time of its thread: a busy machine changes nothing.

A process that is forked with `HOLDS` in its environment runs on asyncio's own loop, whose callbacks can be measured;
its code is the same as on uvloop's. A hold above `NOTED_SECONDS` is a line of that file, with the code that was
running; the counts of all of them follow when the process ends.
"""

import asyncio
import gc
import json
import os
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

HOLDS = "TURNSTILE_TEST_HOLDS"
NOTED_SECONDS = 0.02
_LOOK_SECONDS = 0.005
_FRAMES = 8


@dataclass(frozen=True)
class Hold:
    """One hold of a loop: its CPU time, and the code that was seen running."""

    seconds: float
    where: str


@dataclass
class Holds:
    """What one process recorded."""

    longest: list[Hold] = field(default_factory=list[Hold])
    """Those above `NOTED_SECONDS`, the longest first."""
    counts: Counter[int] = field(default_factory=Counter[int])
    """All callbacks by their CPU time in tenths of a millisecond."""

    @classmethod
    def read(cls, file: Path) -> "Holds":
        """What is in the file now."""
        read = cls()
        for line in file.read_text().splitlines() if file.exists() else ():
            match json.loads(line):
                case {"seconds": seconds, "where": where}:
                    read.longest.append(Hold(seconds, where))
                case counts:
                    read.counts.update({int(tenth): count for tenth, count in counts.items()})
        read.longest.sort(key=lambda hold: -hold.seconds)
        return read

    def quantile(self, share: float) -> float:
        """The CPU seconds that this share of the callbacks stayed below."""
        left = sum(self.counts.values()) * share
        for tenth in sorted(self.counts):
            left -= self.counts[tenth]
            if left <= 0:
                return (tenth + 1) / 10_000
        return 0.0


class _Watch:
    def __init__(self, file: Path) -> None:
        self._out = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._counts: Counter[int] = Counter()
        self._thread = threading.get_ident()
        self._began = 0.0
        self._seen: tuple[float, str] = (0.0, "")
        self._collected = 0.0

    def start(self) -> None:
        """Measure each callback of this thread from now on."""
        run = asyncio.Handle._run

        def measured(handle: asyncio.Handle) -> None:
            self._collected = 0.0
            began = self._began = time.thread_time()
            try:
                run(handle)
            finally:
                self._record(began, handle)

        setattr(asyncio.Handle, "_run", measured)  # noqa: B010 -- its parameter has another name
        gc.callbacks.append(self._collect)
        threading.Thread(target=self._look, name="loop-holds", daemon=True).start()

    def _record(self, began: float, handle: asyncio.Handle) -> None:
        seconds = time.thread_time() - began
        self._began = 0.0
        self._counts[int(seconds * 10_000)] += 1
        if seconds > NOTED_SECONDS:
            seen, where = self._seen
            where = where if seen == began else repr(handle)[:500]
            collected = f" (of which {self._collected * 1000:.0f} ms for garbage)" if self._collected else ""
            self._write({"seconds": round(seconds, 4), "where": where + collected})

    def _collect(self, phase: str, _: dict[str, int]) -> None:
        self._collected += time.thread_time() if phase == "stop" else -time.thread_time()

    def _look(self) -> None:
        clock = time.pthread_getcpuclockid(self._thread)
        while True:
            time.sleep(_LOOK_SECONDS)
            began = self._began
            if began and self._seen[0] != began and time.clock_gettime(clock) - began > NOTED_SECONDS / 2:
                frames = traceback.extract_stack(sys._current_frames().get(self._thread))
                ours = [
                    f"{frame.name} ({'/'.join(Path(frame.filename).parts[-2:])}:{frame.lineno})"
                    for frame in reversed(frames)
                    if "importlib" not in frame.filename
                ]
                self._seen = began, ", called by ".join(ours[:_FRAMES])

    def close(self) -> None:
        """Write the counts."""
        counts, self._counts = self._counts, Counter()
        self._write({str(tenth): count for tenth, count in counts.items()})

    def _write(self, record: dict[str, object] | dict[str, int]) -> None:
        os.write(self._out, json.dumps(record).encode() + b"\n")


@contextmanager
def watched_if_wanted() -> Generator[None]:
    """Measure this thread's loops during the block if the environment names a file."""
    if not (file := os.environ.get(HOLDS)):
        yield
        return
    sys.modules["uvloop"] = None  # type: ignore[assignment] # asyncio's loop is taken then
    watch = _Watch(Path(file))
    watch.start()
    try:
        yield
    finally:
        watch.close()
