"""Injects the faults of a schedule: kills, pauses, cuts, deletions, wipes, power failures, one at a time for a target.

It restarts what it killed and continues what it stopped, also after an error. A fault waits until an earlier fault of
the same target is over.
"""

import asyncio
import json
import signal
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from lab.chaos.environment import SERVERS, Environment
from lab.chaos.observer import STREAMS, Observer
from lab.chaos.schedule import Fault
from lab.support.power_failure import PowerFailure
from lab.support.proxy import Proxy

LATE_SECONDS = 9.0
"""Longer than the heartbeat timeout and the retry of a step elsewhere."""
LATE_AT_MOST = 25.0
WATCH_SECONDS = 1.0
"""How long NATS is watched, and slow, before its power fails."""


@dataclass(frozen=True, slots=True)
class Late:
    """A worker that was stopped while it ran steps; `steps` were continued by another worker meanwhile."""

    worker: str
    pid: int
    slept_at: float
    woke_at: float
    steps: tuple[tuple[str, int], ...]


@dataclass
class Injector:
    """Injects faults, and counts them."""

    environment: Environment
    observer: Observer
    counts: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    """Number of faults by action and target."""
    kills: list[tuple[float, str]] = field(default_factory=list[tuple[float, str]])
    """Times and targets of kills, wipes and deletions."""
    cut_bytes: list[int] = field(default_factory=list[int])
    """What each power failure of NATS took from its streams."""
    lates: list[Late] = field(default_factory=list[Late])
    errors: list[str] = field(default_factory=list[str])
    now: dict[str, str] = field(default_factory=dict[str, str])
    """The current action by target."""
    _locks: dict[str, asyncio.Lock] = field(default_factory=dict[str, asyncio.Lock])

    async def run(self, faults: Sequence[Fault]) -> None:
        """Inject all faults at their times; returns when the last one is over."""
        began = asyncio.get_running_loop().time()

        async def at_its_time(fault: Fault) -> None:
            await asyncio.sleep(fault.at - (asyncio.get_running_loop().time() - began))
            await self.inject(fault)

        async with asyncio.TaskGroup() as group:
            for fault in faults:
                group.create_task(at_its_time(fault))

    async def inject(self, fault: Fault) -> None:
        """Inject one fault; an exception is recorded in `errors`."""
        if fault.action == "late":  # one at a time: another worker must continue its steps
            async with self._locks.setdefault("late", asyncio.Lock()):
                await self._late()
            return
        lock = self._locks.setdefault("nats" if fault.action == "delete" else fault.target, asyncio.Lock())
        async with lock:
            self.now[fault.target] = fault.action
            try:
                await self._inject(fault)
            except Exception as error:  # noqa: BLE001 -- an injection that fails must not end the run; it is reported
                self.errors.append(f"{fault}: {type(error).__name__}: {error}")
            finally:
                self.now.pop(fault.target, None)
        self.counts[fault.action, fault.target] += 1

    async def _inject(self, fault: Fault) -> None:
        match fault.action:
            case "kill":
                await self._kill(fault.target, fault.seconds)
            case "pause":
                self._signal(fault.target, signal.SIGSTOP)
                try:
                    await asyncio.sleep(fault.seconds)
                finally:
                    self._signal(fault.target, signal.SIGCONT)
            case "late":
                await self._late()
            case "cut":
                for proxy in self._proxies(fault.target):
                    proxy.cut()
            case "stall":
                await asyncio.gather(*(proxy.stall(fault.seconds) for proxy in self._proxies(fault.target)))
            case "refuse":
                await asyncio.gather(*(proxy.refuse(fault.seconds) for proxy in self._proxies(fault.target)))
            case "delete":
                await self.observer.delete(STREAMS if fault.target == "streams" else [fault.target])
                self.kills.append((time.time(), fault.target))
            case "wipe":
                self.kills.append((time.time(), "engine wiped"))
                await self.environment.wipe_engine()
            case "tail":
                await self._cut_tail(fault.seconds)

    async def _cut_tail(self, seconds: float) -> None:
        """Watch NATS for a moment of load, kill it, and take from its store what it had not synced in that moment."""
        servers = self.environment.servers
        store, _ = servers.home("nats")
        failure = PowerFailure(store, servers.pid("nats"))
        await asyncio.to_thread(failure.watch)
        await asyncio.sleep(WATCH_SECONDS)
        self.kills.append((time.time(), "nats, its tail cut"))
        await servers.kill("nats")
        lost = await asyncio.to_thread(failure.cut)
        self.cut_bytes.append(sum(lost.values()))
        await asyncio.sleep(seconds)
        await servers.restart("nats")

    async def _kill(self, target: str, seconds: float) -> None:
        self.kills.append((time.time(), target))
        if target in SERVERS:
            await self.environment.servers.kill(target)
            await asyncio.sleep(seconds)
            await self.environment.servers.restart(target)
            return
        program = self.environment.programs[target]
        await program.kill()
        await asyncio.sleep(seconds)
        await program.launch()

    def _signal(self, target: str, number: signal.Signals) -> None:
        if target in SERVERS:
            self.environment.signal_server(target, number)
        else:
            self.environment.programs[target].send(number)

    def _proxies(self, target: str) -> list[Proxy]:
        process, _, server = target.rpartition(":")
        return [
            proxy
            for (name, its_server), proxy in self.environment.proxies.items()
            if its_server == server and process in ("", name)
        ]

    async def _late(self) -> None:
        """Stop a worker that is running steps until another worker continues some of them, then continue it."""
        deadline = time.time() + LATE_AT_MOST
        while time.time() < deadline:
            for target in self.environment.named("worker"):
                lock = self._locks.setdefault(target, asyncio.Lock())
                if not lock.locked() and self._running_steps(self.environment.programs[target].pid):
                    async with lock:
                        if await self._sleep_late(target):
                            return
            await asyncio.sleep(0.1)
        self.errors.append("no worker was running a step, so none could be late")

    async def _sleep_late(self, target: str) -> bool:
        program = self.environment.programs[target]
        pid, slept = program.pid, time.time()
        program.send(signal.SIGSTOP)
        await asyncio.sleep(0.05)
        held, elsewhere = self._running_steps(pid), set[tuple[str, int]]()
        if not held:
            program.send(signal.SIGCONT)
            return False
        self.now[target] = "late"
        try:
            while time.time() < slept + LATE_AT_MOST and not (elsewhere and time.time() > slept + LATE_SECONDS):
                await asyncio.sleep(0.25)
                others = {_step(note) for note in self._notes() if note["pid"] != pid and _at(note) > slept}
                elsewhere = held & others
        finally:
            program.send(signal.SIGCONT)
            self.now.pop(target, None)
        self.counts["late", target] += 1
        self.lates.append(Late(target, pid, slept, time.time(), tuple(sorted(elsewhere))))
        return True

    def _running_steps(self, pid: int) -> set[tuple[str, int]]:
        """Steps whose model call is under way in that process."""
        held: set[tuple[str, int]] = set()
        for note in self._notes():
            if note["pid"] == pid:
                (held.add if note["what"] == "asked" else held.discard)(_step(note))
        return held

    def _notes(self) -> list[dict[str, object]]:
        return read_notes(self.environment)


def read_notes(environment: Environment) -> list[dict[str, object]]:
    """The notes that the models wrote (`lab.chaos.script`)."""
    if not environment.asked.exists():
        return []
    return [json.loads(line) for line in environment.asked.read_text().splitlines() if line.endswith("}")]


def _step(note: dict[str, object]) -> tuple[str, int]:
    return str(note["key"]), int(str(note["step"]))


def _at(note: dict[str, object]) -> float:
    return float(str(note["at"]))
