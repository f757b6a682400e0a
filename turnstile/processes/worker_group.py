"""Several workers behind one signal, one health and one log: `turnstile worker --processes N`, and those of `up`.

Each worker is a `turnstile worker` of its own, with its own connections, its own name in `state.workers` and the bounds
of `[worker]` for itself, so targets, rollouts and exclusive targets hold as for N workers that were started apart. They
write to this process's standard error. They end with this process however it ends: SIGTERM is passed on, and the kernel
sends them a second one when this process is gone (Linux).

A worker that ends though nobody stopped it is logged and started again, with growing pauses. After `MOST_ENDS` such
ends in `ENDS_SECONDS`, or the first one before all have served once, all are stopped, and the group returns the exit
code of the last: systemd and Kubernetes then see the failure, and pace the next attempts.
"""

import asyncio
import json
import logging
import os
import signal
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import turnstile.embedded
from turnstile.embedded.ports import LOOPBACK, free_port
from turnstile.embedded.server import describe_exit
from turnstile.runtime.waiting import await_first
from turnstile.schema.amounts import amount
from turnstile.settings import Settings
from turnstile.settings.model import ENV_PREFIX
from turnstile.telemetry.health import HealthFile, SystemStatus, fetch_status

log = logging.getLogger(__name__)
MOST_ENDS = 5
"""Unexpected ends of workers in `ENDS_SECONDS`; with one more the group ends."""
ENDS_SECONDS = 60.0
KILL_SECONDS = 26.0
"""Workers that have not ended so long after the signal are killed; each ends itself by force before that."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.25, 4.0
_LOOK_SECONDS = 0.5
_LAUNCH = Path(turnstile.embedded.__file__).with_name("launch.py")
_MAIN = "from turnstile.cli import main; main()"


@dataclass
class _Member:
    """One of the workers."""

    number: int
    process: asyncio.subprocess.Process | None = None
    """The process that runs, if one does."""
    health_port: int | None = None
    metrics_port: int | None = None
    status: SystemStatus = "starting"


class WorkerGroup:
    """`count` workers of these settings, numbered from `first`; `words` are their options."""

    def __init__(self, settings: Settings, count: int, words: Sequence[str], first: int = 1) -> None:
        self._settings = settings
        self._words = tuple(words)
        self._members = [_Member(number) for number in range(first, first + count)]
        self._ends: deque[float] = deque()
        self._code = 0
        self._failed = asyncio.Event()
        self.serves = asyncio.Event()
        """Set once all serve."""

    def status(self) -> SystemStatus:
        """`stuck` if one of them is; `serving` once all have served, as long as one serves; else `starting`.

        While one is started again the others do its work: an orchestrator has no reason to end them.
        """
        statuses = [member.status for member in self._members]
        if "stuck" in statuses:
            return "stuck"
        serving = self.serves.is_set() and "serving" in statuses
        return "serving" if serving else "starting"

    def metrics_ports(self) -> Mapping[str, int]:
        """The loopback port of each running worker's metrics, by the worker's number."""
        running = (member for member in self._members if member.process is not None)
        return {str(member.number): member.metrics_port for member in running if member.metrics_port is not None}

    async def run(self, stop: asyncio.Event) -> int:
        """Run until `stop`, or until workers end too often; returns 0, or the exit code of the last of these.

        All workers have ended when it returns. One that was ended by a signal has 128 and its number as its code.
        """
        over = asyncio.Event()
        tasks = [
            asyncio.create_task(self._keep(member, over), name=f"worker {member.number}") for member in self._members
        ]
        looking = asyncio.create_task(self._look(), name="health of workers")
        stopping = asyncio.create_task(await_first(stop, self._failed))
        try:
            await asyncio.wait([stopping, looking, *tasks], return_when=asyncio.FIRST_COMPLETED)
        finally:
            over.set()
            stopping.cancel()
            looking.cancel()
            for member in self._members:
                _signal(member, signal.SIGTERM)
            _, late = await asyncio.wait(tasks, timeout=KILL_SECONDS)
            for member in self._members:
                _signal(member, signal.SIGKILL)
            if late:
                await asyncio.wait(late)
        for task in tasks:
            task.result()
        return self._code

    async def _keep(self, member: _Member, over: asyncio.Event) -> None:
        """Run the member's process, and another one whenever it ends, until `over`."""
        while not over.is_set():
            process = await self._start(member)
            if over.is_set():
                _signal(member, signal.SIGTERM)
            code = await process.wait()
            member.process, member.health_port, member.status = None, None, "starting"
            if over.is_set():
                return
            pause = self._pause_after(member, process.pid, code)
            if pause is None:
                return
            await await_first(over, seconds=pause)

    def _pause_after(self, member: _Member, pid: int, code: int) -> float | None:
        """How long to wait before the next start; None if the group ends."""
        who = f"worker {member.number} (process {pid}) has ended: {describe_exit(code)}"
        now = asyncio.get_running_loop().time()
        self._ends.append(now)
        while self._ends[0] < now - ENDS_SECONDS:
            self._ends.popleft()
        if not self.serves.is_set() or len(self._ends) > MOST_ENDS:
            why = (
                "before all served"
                if not self.serves.is_set()
                else f"and {MOST_ENDS} before it in {amount(ENDS_SECONDS)} s"
            )
            log.critical("%s, %s: all workers are stopped", who, why)
            self._code = 128 - code if code < 0 else code or 1
            self._failed.set()
            return None
        pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** (len(self._ends) - 1))
        log.error("%s: it is started again in %s s", who, amount(pause))
        return pause

    async def _start(self, member: _Member) -> asyncio.subprocess.Process:
        plan = {
            "user": None,
            "group": None,
            "keep_search": False,
            "death_signal": signal.SIGTERM,
            "warden": os.getpid(),
        }
        reads, writes = os.pipe()
        words = ("worker", *self._words, "--member", str(writes))
        try:
            member.process = process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-I",
                "-S",
                str(_LAUNCH),
                json.dumps(plan),
                sys.executable,
                "-P",
                "-c",
                _MAIN,
                *words,
                env={**os.environ, **self._variables(member)},
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=(writes,),
                start_new_session=True,  # Ctrl-C of the terminal reaches this process only, which passes it on once
            )
        finally:
            os.close(writes)
        asyncio.get_running_loop().add_reader(reads, _hear_port, member, process, reads)
        return process

    def _variables(self, member: _Member) -> dict[str, str]:
        """The settings in which this worker differs from the others: ports, each of which one process can have."""
        section, prefix = self._settings.observability, f"{ENV_PREFIX}OBSERVABILITY__"
        variables: dict[str, str] = {}
        if section.metrics_port:
            member.metrics_port = free_port()
            variables[f"{prefix}METRICS_PORT"] = str(member.metrics_port)
            variables[f"{prefix}METRICS_HOST"] = LOOPBACK
        if section.temporal_metrics_port:
            variables[f"{prefix}TEMPORAL_METRICS_PORT"] = str(section.temporal_metrics_port + member.number - 1)
        return variables

    async def _look(self) -> None:
        """Ask each worker for its health, over and over."""
        while True:
            await asyncio.gather(*(_ask(member) for member in self._members))
            if all(member.status == "serving" for member in self._members):
                self.serves.set()
            await asyncio.sleep(_LOOK_SECONDS)


async def _ask(member: _Member) -> None:
    process, port = member.process, member.health_port
    if process is None or port is None:
        return
    status = await fetch_status(LOOPBACK, port)
    if member.process is process and process.returncode is None:  # else another process has taken its place
        member.status = status or "stuck"


def _hear_port(member: _Member, process: asyncio.subprocess.Process, reads: int) -> None:
    """Take the one line that a worker writes: where it serves its health. Nothing comes if it ends before."""
    asyncio.get_running_loop().remove_reader(reads)
    line = os.read(reads, 4096)
    os.close(reads)
    if line and member.process is process:
        member.health_port = HealthFile.model_validate_json(line).port


def _signal(member: _Member, number: signal.Signals) -> None:
    if member.process is not None:
        with suppress(ProcessLookupError):
            member.process.send_signal(number)
