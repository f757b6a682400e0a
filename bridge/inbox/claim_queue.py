"""A queue of agents with due inbox rows, claimed round-robin by project (protocol §6, claim; docs/limits.md, fairness).

Doorbells and the watchdog's poll add agents and return at once. `LANES` tasks take them, one agent of each project at a
time, so a project with thousands of waiting agents delays no other project. Starts in flight and waiting agents are
bounded, per project and in total. An agent that finds the queue full is added again by a later poll.
"""

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Coroutine, Iterable
from typing import Any

from turnstile.bridge.inbox.claims import Claims
from turnstile.ledger.turns.lease import AgentKey
from turnstile.schema.errors import ServerUnavailable
from turnstile.schema.ids import AgentId, InboxId, ProjectId

log = logging.getLogger(__name__)
LANES = 4
BATCH = 4
"""Agents of one claim. With four lanes at most 16 starts are in flight, and another project's start waits for them.
With twice as many, 300 turns at once took a tenth longer on two cores."""
MAX_WAITING = 50_000
MAX_OF_PROJECT = 10_000
MAX_RUNG = 10_000
"""Doorbells of this process that it has not heard yet. One that is forgotten costs a claim that finds nothing."""


class FairQueue:
    """Waiting agents, each once: projects take turns, and the agents of a project are first in, first out."""

    def __init__(self) -> None:
        self._projects: OrderedDict[ProjectId, deque[AgentId]] = OrderedDict()
        self._reasons: dict[AgentKey, str] = {}

    def __len__(self) -> int:
        """Number of waiting agents."""
        return len(self._reasons)

    def offer(self, agents: Iterable[AgentKey], reason: str) -> int:
        """Add agents; returns how many are new. Agents beyond a bound are dropped, and a later poll adds them again."""
        before = len(self._reasons)
        for key in agents:
            project, agent = key
            waiting = self._projects.get(project)
            if key in self._reasons or len(self._reasons) >= MAX_WAITING:
                continue
            if waiting is None:
                self._projects[project] = deque([agent])
            elif len(waiting) < MAX_OF_PROJECT:
                waiting.append(agent)
            else:
                continue
            self._reasons[key] = reason
        return len(self._reasons) - before

    def take(self, count: int) -> dict[str, list[AgentKey]]:
        """Remove at most `count` agents, one per project in each round; returns them by the reason of their offer."""
        taken: dict[str, list[AgentKey]] = {}
        for _ in range(min(count, len(self._reasons))):
            project, waiting = self._projects.popitem(last=False)
            key = (project, waiting.popleft())
            if waiting:
                self._projects[project] = waiting
            taken.setdefault(self._reasons.pop(key), []).append(key)
        return taken


class ClaimQueue:
    """Claims the inboxes of waiting agents in `LANES` concurrent tasks."""

    def __init__(self) -> None:
        self._queue = FairQueue()
        self._offered = asyncio.Event()
        self._rung: dict[InboxId, None] = {}
        self.runs = False
        """Whether `run` is active, so that agents offered now will be claimed."""
        self._group: asyncio.TaskGroup | None = None

    @property
    def is_empty(self) -> bool:
        """Whether no agent waits."""
        return not len(self._queue)

    def rings(self, rows: Iterable[InboxId | None]) -> None:
        """Note rows whose doorbells this process publishes, and which it claims without hearing them."""
        self._rung.update(dict.fromkeys(row for row in rows if row is not None))
        while len(self._rung) > MAX_RUNG:
            del self._rung[next(iter(self._rung))]

    def has_rung(self, row: InboxId | None) -> bool:
        """Whether a doorbell that was heard is one of this process's own; it is forgotten then."""
        if row is None or row not in self._rung:
            return False
        del self._rung[row]
        return True

    def run_beside(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Run this in a task, which `run` waits for at its end; the work must not raise."""
        return asyncio.create_task(work) if self._group is None else self._group.create_task(work)

    def offer(self, agents: Iterable[AgentKey], reason: str) -> int:
        """Queue these agents for a claim; returns how many were not queued already."""
        added = self._queue.offer(agents, reason)
        if added:
            self._offered.set()
        return added

    async def run(self, claims: Claims, stop: asyncio.Event) -> None:
        """Claim until `stop` is set. Claims in progress finish; agents that still wait are left to the poll."""
        async with asyncio.TaskGroup() as lanes:
            for _ in range(LANES):
                lanes.create_task(self._lane(claims, stop))
            self.runs, self._group = True, lanes
            try:
                await stop.wait()
            finally:
                self.runs, self._group = False, None
            self._offered.set()

    async def _lane(self, claims: Claims, stop: asyncio.Event) -> None:
        while not stop.is_set():
            if not len(self._queue):
                self._offered.clear()
                await self._offered.wait()
            for reason, agents in self._queue.take(BATCH).items():
                await self._claim(claims, agents, reason)

    async def _claim(self, claims: Claims, agents: list[AgentKey], reason: str) -> None:
        try:
            await claims.claim(agents, reason)
        except ServerUnavailable as error:
            log.warning("%d agents are left to the watchdog: %s", len(agents), error)
        except Exception:  # a failed claim must not end the lane; the poll finds the due rows again
            log.exception("claiming for %d agents failed", len(agents))
