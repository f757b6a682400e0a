"""Runs a program until a signal ends it; the process then ends in bounded time, even if code in it blocks.

The first SIGTERM, SIGINT or SIGHUP asks the program to end, a second one ends the process at once. A program that
serves ends within five seconds of the first signal: work in hand has `GRACE_SECONDS`; after `LATE_SECONDS` every task
that has not ended, because a server hangs, is logged and canceled; what does not end then either is logged and left
behind. A watching thread ends the process by force, and logs the line at which it stands, if the event loop does not
respond for `BLOCKED_SECONDS` after the signal or the process has not ended after `END_SECONDS`. Only native code that
keeps the interpreter's lock can prevent that.
"""

import asyncio
import concurrent.futures.thread
import logging
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, Final, NoReturn, TypeVar

from turnstile.schema.amounts import amount

T = TypeVar("T")
log = logging.getLogger(__name__)
INTERRUPTED: Final = 130
"""The exit code after a second signal."""
FORCED: Final = 1
"""The exit code of a process that could not end by itself."""
BLOCKED_SECONDS: Final = 15.0
END_SECONDS: Final = 28.0
"""Less than the 30 s after which systemd (our units), Docker (our compose file) and Kubernetes kill."""
GRACE_SECONDS: Final = 2.5
"""What work in hand has after the signal: steps, handlers, requests."""
LATE_SECONDS: Final = 4.3
"""When tasks that have not ended after the signal are canceled: the grace, and time for what comes of it."""
_CANCELED_SECONDS = 0.4
"""What canceled tasks of a program that is late have, before they are left behind."""
_CANCEL_AGAIN_SECONDS = 0.1
_LEFT_SECONDS = 1.0
"""What tasks and threads that the program leaves have to end, at most."""
_SHOWN_TASKS = 20
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_OVER = b"\0"
_ASYNCIO = Path(asyncio.__file__).parent


class Program:
    """Runs one coroutine to its end, in the main thread, and then ends the process."""

    def __init__(
        self,
        *,
        end_seconds: float = END_SECONDS,
        late_seconds: float | None = None,
        new_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop,
    ) -> None:
        """With `late_seconds`, tasks that have not ended so long after the signal are canceled."""
        self._end_seconds = end_seconds
        self.late_seconds = late_seconds
        """When after the signal tasks that have not ended are canceled; may be set until then."""
        self._new_loop = new_loop
        self._left: list[str] = []
        self._signaled_at: float | None = None
        self.was_late = False
        """Whether the program's own tasks were canceled, as they did not end."""

    def run(
        self,
        main: Coroutine[Any, Any, T],
        on_signal: Callable[["asyncio.Task[T]"], object],
        on_interrupt: Callable[[], Callable[[], object] | None] = lambda: None,
    ) -> T:
        """Run `main`; returns or raises as it does. The first signal calls `on_signal` with the task of `main`.

        A SIGINT does not count while `on_interrupt` returns a function, which is then called in the loop instead.
        """
        loop = self._new_loop()
        asyncio.set_event_loop(loop)
        watch = _Watch(loop, lambda: self._told(task, on_signal), on_interrupt, self._end_seconds)
        watch.listen_with(loop)
        watch.start()
        task = loop.create_task(main, name="program")
        try:
            return loop.run_until_complete(task)
        finally:
            watch.listen_with(loop)
            self._left = loop.run_until_complete(_cancel_rest(self._left_seconds()))
            if self._left:
                log.error("left behind, as it does not end: %s", "; ".join(self._left))
            else:
                loop.close()
            asyncio.set_event_loop(None)
            watch.close()

    def _told(self, task: "asyncio.Task[T]", on_signal: Callable[["asyncio.Task[T]"], object]) -> None:
        self._signaled_at = time.monotonic()
        on_signal(task)
        if self.late_seconds is not None:
            asyncio.get_running_loop().call_later(self.late_seconds, self._hurry, task)

    def _left_seconds(self) -> float:
        """What tasks and threads have that the program leaves: less, the later it is after the signal."""
        if self.late_seconds is None or self._signaled_at is None:
            return _LEFT_SECONDS
        over = self._signaled_at + self.late_seconds + _CANCELED_SECONDS
        return min(_LEFT_SECONDS, max(0.1, over - time.monotonic()))

    def _hurry(self, task: "asyncio.Task[Any]") -> None:
        """Cancel all tasks while the program has not ended, and what they then wait for, again and again.

        A program that does not hear it is left behind, and the process ended.
        """
        if task.done():
            return
        loop = asyncio.get_running_loop()
        if not self.was_late:
            self.was_late = True
            log.error("not ended %g s after the signal, and canceled: %s", self.late_seconds, unfinished(task))
            loop.call_later(_CANCELED_SECONDS, self._abandon, task)
        for other in asyncio.all_tasks():
            other.cancel()
        loop.call_later(_CANCEL_AGAIN_SECONDS, self._hurry, task)

    def _abandon(self, task: "asyncio.Task[Any]") -> None:
        if not task.done():
            log.error("left behind, as it does not end: %s", unfinished(task))
            _exit(0)

    def leave(self, code: int) -> None:
        """End the process with this code, without waiting for what was left behind.

        Returns if the code is 0 and nothing was left behind.
        """
        if self._left:
            _exit(code)
        if code:
            raise SystemExit(code)


def unfinished(program: "asyncio.Task[Any] | None" = None) -> str:
    """The tasks that run, with the line at which each waits, at most `_SHOWN_TASKS`; else where `program` waits."""
    others = asyncio.all_tasks() - {program, asyncio.current_task()}
    lines = sorted(f"{task.get_name()} at {_where(task.get_coro())}" for task in others)
    if len(lines) > _SHOWN_TASKS:
        lines[_SHOWN_TASKS:] = [f"and {len(lines) - _SHOWN_TASKS} more"]
    return "; ".join(lines) or ("nothing" if program is None else _where(program.get_coro()))


async def _cancel_rest(seconds: float) -> list[str]:
    """Cancel all other tasks and wait for tasks and threads; returns those still running, with their lines."""
    loop, deadline = asyncio.get_running_loop(), time.monotonic() + seconds
    if tasks := asyncio.all_tasks() - {asyncio.current_task()}:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=seconds)
    while (busy := _busy_threads()) and time.monotonic() < deadline:  # noqa: ASYNC110 -- a thread sets no event
        await asyncio.sleep(0.05)
    await loop.shutdown_asyncgens()
    if not busy:
        await loop.shutdown_default_executor()
    return [*(f"{task.get_name()} at {_where(task.get_coro())}" for task in tasks if not task.done()), *busy]


def _busy_threads() -> list[str]:
    """Threads that would keep the process from ending; idle threads of executors are left out."""
    names: list[str] = []
    for thread in threading.enumerate():
        frame = _frame_of(thread)
        if thread is threading.main_thread() or thread.daemon or frame is None:
            continue
        if frame.f_code is not concurrent.futures.thread._worker.__code__:  # noqa: SLF001 -- there it waits for work
            names.append(f"thread {thread.name} at {_place(frame)}")
    return names


def _where(awaited: Any) -> str:
    """The innermost line of a suspended coroutine, lines of asyncio left out."""
    place = "an unknown place"
    while awaited is not None:
        frame: FrameType | None = getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None)
        if frame is not None and Path(frame.f_code.co_filename).parent != _ASYNCIO:
            place = _place(frame)
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)
    return place


def _frame_of(thread: threading.Thread) -> FrameType | None:
    return sys._current_frames().get(thread.ident or 0)  # noqa: SLF001 -- the documented way to another's frames


def _place(frame: FrameType) -> str:
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_qualname}"


def _exit(code: int) -> NoReturn:
    """End the process now, without waiting for threads."""
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # its reader is gone
            stream.flush()
    os._exit(code)


class _Watch(threading.Thread):
    """Notices signals even while the event loop is blocked: the interpreter's C code writes each to a pipe at once."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        on_signal: Callable[[], object],
        on_interrupt: Callable[[], Callable[[], object] | None],
        end_seconds: float,
    ) -> None:
        super().__init__(name="signals", daemon=True)
        self._loop = loop
        self._on_signal = on_signal
        self._on_interrupt = on_interrupt
        self._end_seconds = end_seconds
        self._answered = 0.0
        self._pipe, self._written = os.pipe()
        os.set_blocking(self._written, False)
        self._fd_before = self._listen()
        ours = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]  # nohup
        self._before = {number: signal.signal(number, _only_wake) for number in ours}

    def listen_with(self, loop: asyncio.AbstractEventLoop) -> None:
        """Take the signals back from the loop as soon as it runs: uvloop takes them when it begins to."""
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # those of this moment come after it
        loop.call_soon(self._listen)

    def _listen(self) -> int:
        """Have signals written to the pipe; returns where they went before."""
        before = signal.set_wakeup_fd(self._written, warn_on_full_buffer=False)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        return before

    def close(self) -> None:
        """Restore the signal handlers that were there before, and end the thread."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._fd_before)
        os.write(self._written, _OVER)
        self.join()
        os.close(self._pipe)
        os.close(self._written)

    def run(self) -> None:
        """Wait for signals until `close`."""
        deadline: float | None = None
        while True:
            ready, _, _ = select.select([self._pipe], [], [], None if deadline is None else 0.5)
            for number in os.read(self._pipe, 64) if ready else b"":
                if number == _OVER[0]:
                    return
                if number not in self._before:
                    continue
                if deadline is None and number == signal.SIGINT and (instead := self._on_interrupt()) is not None:
                    self._ask(instead)
                    continue
                if deadline is not None:
                    os._exit(INTERRUPTED)  # the warden of embedded servers ends them with this process
                deadline, self._answered = time.monotonic() + self._end_seconds, time.monotonic()
                self._ask(self._on_signal)
            if deadline is not None:
                self._check(deadline)

    def _check(self, deadline: float) -> None:
        now = time.monotonic()
        if now - self._answered > BLOCKED_SECONDS:
            self._end(f"the event loop has been held up for {amount(BLOCKED_SECONDS)} s, by")
        elif now > deadline:
            self._end(f"this process has not ended in {amount(self._end_seconds)} s; it is")
        self._ask(self._answer)

    def _ask(self, what: Callable[[], object]) -> None:
        with suppress(RuntimeError):  # the loop is closed, and all but over
            self._loop.call_soon_threadsafe(what)

    def _answer(self) -> None:
        self._answered = time.monotonic()

    def _end(self, why: str) -> NoReturn:
        frame = _frame_of(threading.main_thread())
        where = "an unknown place" if frame is None else _place(frame)
        # in a thread of its own: writing to a log whose reader has stopped can block
        logging_thread = threading.Thread(target=log.critical, args=("ended by force: %s %s", why, where), daemon=True)
        logging_thread.start()
        logging_thread.join(_LEFT_SECONDS)
        os._exit(FORCED)


def _only_wake(_number: int, _frame: FrameType | None) -> None:
    """Do nothing: the pipe that the signal writes to wakes `_Watch`."""
