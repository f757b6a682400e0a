"""The warden: owns the server processes of one data directory and stops them when its parent is gone.

It runs as a script (`python -I -S warden.py DATA`) on the standard library with one thread, so it is ready in 30 ms and
may fork. It reads commands as JSON lines from stdin and writes events as JSON lines to stdout (see `protocol.py`). Only
the parent holds the write end of stdin, so the warden reads an end of file when the parent dies, for whatever reason.
Then, on SIGTERM and on `shutdown`, it sends every server its stop signal, and SIGKILL after its grace. Ctrl-C in the
terminal does not reach the servers, because each has its own session.

Every server inherits a lock `run/NAME.lock`, which the kernel releases when the server's last process has ended. The
warden waits for all locks before it is ready, and for a server's lock before it starts that server again.
"""

import fcntl
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, cast

LAUNCH = Path(__file__).with_name("launch.py")
LOCK_WAIT = 30.0
"""Seconds the processes of an earlier run may take to end."""
LOCK_POLL = 0.02


@dataclass
class Waiting:
    """A start that waits until the processes of the server's last run have ended."""

    command: dict[str, Any]  # a checked StartProcess of the parent
    lock: int
    deadline: float


@dataclass
class ServerProcess:
    """A server that runs."""

    process: subprocess.Popen[bytes]
    stop_signal: int
    grace: float
    deadline: float | None = None
    """The time of the SIGKILL, once the server was asked to stop."""


def try_lock(path: Path) -> int | None:
    """The descriptor that holds the lock, or None if another process holds it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def only_wake(number: int, frame: FrameType | None) -> None:
    """Signal handler that does nothing: the loop reads the signal's number from the wake-up descriptor."""


class Warden:
    """The loop over stdin, signals and server processes."""

    def __init__(self, data: Path) -> None:
        self.locks = data / "run"
        self.own_lock: int | None = None
        self.ready = False
        self.closing = False
        self.ready_deadline = time.monotonic() + LOCK_WAIT
        self.waiting: dict[str, Waiting] = {}
        self.children: dict[str, ServerProcess] = {}
        self.received = b""

    def run(self) -> None:
        """Runs until it is asked to close or loses its parent; returns when the last server has ended."""
        awake, waker = os.pipe()
        for descriptor in (awake, waker):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            # Not SIG_IGN, which the servers would inherit.
            signal.signal(number, only_wake)
        with selectors.DefaultSelector() as selector:
            selector.register(awake, selectors.EVENT_READ, self.on_signal)
            selector.register(0, selectors.EVENT_READ, self.on_input)
            self.tick()
            while self.children or not self.closing:
                for key, _ in selector.select(self.patience()):
                    handle = cast("Callable[[int], bool]", key.data)
                    if not handle(key.fd):
                        selector.unregister(key.fd)
                self.tick()

    def patience(self) -> float | None:
        """Seconds until the next `tick` is due, or None if nothing waits for time to pass."""
        if self.waiting or not (self.ready or self.closing):
            return LOCK_POLL
        deadlines = [child.deadline for child in self.children.values() if child.deadline is not None]
        return max(0.0, min(deadlines) - time.monotonic()) if deadlines else None

    def tick(self) -> None:
        """Does what is due: reports exits, sends SIGKILL after a grace, and starts waiting servers."""
        now = time.monotonic()
        if not (self.ready or self.closing):
            self.become_ready(now)
        for name, waiting in list(self.waiting.items()):
            self.try_start(name, waiting, now)
        for name, child in list(self.children.items()):
            if (code := child.process.poll()) is not None:
                del self.children[name]
                self.emit(event="exited", name=name, code=code)
            elif child.deadline is not None and now >= child.deadline:
                child.deadline = None
                child.process.kill()

    def become_ready(self, now: float) -> None:
        if self.own_lock is None:
            self.own_lock = try_lock(self.locks / "warden.lock")
        held = self.own_lock is None
        for path in self.locks.glob("*.lock") if not held else ():
            if path.name == "warden.lock":
                continue
            if (descriptor := try_lock(path)) is None:
                held = True
                break
            os.close(descriptor)
        if not held:
            self.ready = True
            self.emit(event="ready", pid=os.getpid())
        elif now >= self.ready_deadline:
            self.closing = True
            self.emit(event="held")

    def on_signal(self, descriptor: int) -> bool:
        """SIGCHLD only wakes the loop, SIGTERM closes it."""
        if signal.SIGTERM in os.read(descriptor, 4096):
            self.close()
        return True

    def on_input(self, descriptor: int) -> bool:
        """Executes each complete line; closes at the end of file, since the parent is gone."""
        chunk = os.read(descriptor, 65536)
        if not chunk:
            self.close()
            return False
        *lines, self.received = (self.received + chunk).split(b"\n")
        for line in lines:
            self.execute(json.loads(line))
        return True

    def execute(self, command: dict[str, Any]) -> None:
        match command["do"]:
            case "start" if not self.closing:
                lock = os.open(self.locks / f"{command['name']}.lock", os.O_RDWR | os.O_CREAT, 0o600)
                self.waiting[command["name"]] = Waiting(command, lock, time.monotonic() + LOCK_WAIT)
            case "stop":
                self.stop(command["name"])
            case "kill":
                if (child := self.children.get(command["name"])) is not None:
                    child.process.kill()
            case _:
                self.close()

    def try_start(self, name: str, waiting: Waiting, now: float) -> None:
        """Starts the server if the lock of its last run is free."""
        try:
            fcntl.flock(waiting.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if now >= waiting.deadline:
                del self.waiting[name]
                os.close(waiting.lock)
                self.emit(event="not_started", name=name, reason="processes of its last run do not end")
            return
        del self.waiting[name]
        try:
            self.children[name] = child = self.spawn(waiting.command, waiting.lock)
        except OSError as error:
            self.emit(event="not_started", name=name, reason=str(error))
        else:
            self.emit(event="started", name=name, pid=child.process.pid)
        finally:
            os.close(waiting.lock)

    def spawn(self, command: dict[str, Any], lock: int) -> ServerProcess:
        plan = {key: command[key] for key in ("user", "group", "keep_search", "death_signal")}
        plan |= {"warden": os.getpid(), "private": command["private"]}
        launch = [sys.executable, "-I", "-S", str(LAUNCH), json.dumps(plan)]
        with Path(command["log"]).open("ab") as log:
            process = subprocess.Popen(  # noqa: S603 the parent names the program
                [*launch, *command["argv"]],
                env=command["env"],
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(lock,),
                start_new_session=True,
            )
        return ServerProcess(process, command["stop_signal"], command["grace_seconds"])

    def stop(self, name: str) -> None:
        if (waiting := self.waiting.pop(name, None)) is not None:
            os.close(waiting.lock)
        if (child := self.children.get(name)) is not None and child.deadline is None:
            child.deadline = time.monotonic() + child.grace
            child.process.send_signal(child.stop_signal)
            child.process.send_signal(signal.SIGCONT)  # a suspended process must be able to handle the signal

    def close(self) -> None:
        """Stops all servers at the same time: none needs another one to stop."""
        self.closing = True
        for name in {*self.waiting, *self.children}:
            self.stop(name)

    def emit(self, **event: object) -> None:
        try:
            os.write(1, json.dumps(event).encode() + b"\n")
        except BrokenPipeError:
            self.close()


if __name__ == "__main__":
    os.umask(0o077)
    Warden(Path(sys.argv[1])).run()
