"""Logs which task blocks the event loop: meanwhile nothing else in the process runs, and heartbeats are missed.

A thread schedules a callback on the loop every `_EVERY_SECONDS`. If it does not run for `_HELD_SECONDS`, a warning
names the blocking task and its code lines; it is repeated whenever the time has doubled, and a last line says when the
loop runs again. Costs one callback a second. Code that keeps the GIL is not detected. No values are logged.
"""

import asyncio
import logging
import sys
import threading
import time
import traceback
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

log = logging.getLogger(__name__)
_EVERY_SECONDS = 1.0
_HELD_SECONDS = 2.0
_FRAMES = 3


@asynccontextmanager
async def watching_loop() -> AsyncGenerator[None]:
    """Watch the running loop while the block runs."""
    ended = threading.Event()
    arguments = asyncio.get_running_loop(), threading.get_ident(), ended
    thread = threading.Thread(target=_watch, args=arguments, name="turnstile-loop-watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()


def _watch(loop: asyncio.AbstractEventLoop, thread: int, ended: threading.Event) -> None:
    while not ended.wait(_EVERY_SECONDS):
        alive, asked_at, patience, holder = threading.Event(), time.monotonic(), _HELD_SECONDS, ""
        try:
            loop.call_soon_threadsafe(alive.set)
        except RuntimeError:  # it is closed
            return
        # After SIGSTOP and SIGCONT of the whole process the loop was not blocked: give it a moment to run.
        while not alive.wait(patience) and not alive.wait(_EVERY_SECONDS / 10) and not ended.is_set():
            held = patience = time.monotonic() - asked_at
            holder = _holder(loop, thread)
            log.warning("the event loop has been held up for %.0f s by %s: nothing else runs here", held, holder)
        if holder and alive.is_set():
            log.warning("the event loop goes on: %s held it up for %.1f s", holder, time.monotonic() - asked_at)


def _holder(loop: asyncio.AbstractEventLoop, thread: int) -> str:
    """The running task and its innermost code lines."""
    task, frame = asyncio.current_task(loop), sys._current_frames().get(thread)  # noqa: SLF001 -- there is no other way
    calls = [
        f"{frame.name} ({Path(frame.filename).name}:{frame.lineno})"
        for frame in reversed(traceback.extract_stack(frame))
        if Path(frame.filename).parent.name != "asyncio"
    ]
    name = "a callback" if task is None else task.get_name()
    return f"{name} at {', called by '.join(calls[:_FRAMES])}"
