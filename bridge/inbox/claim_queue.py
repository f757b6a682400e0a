"""Agents that somebody rang for, claimed project by project in turn (protocol §6, claim; docs/limits.md, fairness).

Doorbells and the poll put agents here and wait for nothing. A few lanes take them, one of each project at a time, so a
project with thousands of agents has as many starts in flight as are left over by the others. Everything is bounded:
starts in flight, agents that wait, of a project and in all. What finds no room is found by the poll, which is the
truth.
"""

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Iterable

from turnstile.bridge.inbox.claims import Claims
from turnstile.ledger.turns.lease import AgentKey
from turnstile.schema.errors import ServerUnavailable
from turnstile.schema.ids import AgentId, ProjectId

log = logging.getLogger(__name__)
LANES = 4
BATCH = 8
"""Agents of one claim; with the lanes, at most 32 starts are in flight, behind which another project's start waits."""
MAX_WAITING = 50_000
MAX_OF_PROJECT = 10_000


class FairQueue:
    """Agents that wait, each once; projects take turns, and an agent waits behind its project's earlier ones."""

    def __init__(self) -> None:
        self._projects: OrderedDict[ProjectId, deque[AgentId]] = OrderedDict()
        self._reasons: dict[AgentKey, str] = {}

    def __len__(self) -> int:
        """How many wait."""
        return len(self._reasons)

    def offer(self, agents: Iterable[AgentKey], reason: str) -> int:
        """Let them wait; returns how many are new. Those without room are left to the poll."""
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
        """At most so many by the reason they were offered for, one of each project before a second of any."""
        taken: dict[str, list[AgentKey]] = {}
        for _ in range(min(count, len(self._reasons))):
            project, waiting = self._projects.popitem(last=False)
            key = (project, waiting.popleft())
            if waiting:
                self._projects[project] = waiting
            taken.setdefault(self._reasons.pop(key), []).append(key)
        return taken


class ClaimQueue:
    """Agents that wait to be claimed for. `run` claims for them, in lanes."""

    def __init__(self) -> None:
        self._queue = FairQueue()
        self._offered = asyncio.Event()
        self.runs = False
        """Whether who is offered now will be claimed for."""

    def offer(self, agents: Iterable[AgentKey], reason: str) -> int:
        """Claim for these agents soon; returns how many did not wait already."""
        added = self._queue.offer(agents, reason)
        if added:
            self._offered.set()
        return added

    async def run(self, claims: Claims, stop: asyncio.Event) -> None:
        """Claim until `stop`: what is being claimed then is finished, who still waits is left to the poll."""
        async with asyncio.TaskGroup() as lanes:
            for _ in range(LANES):
                lanes.create_task(self._lane(claims, stop))
            self.runs = True
            try:
                await stop.wait()
            finally:
                self.runs = False
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
        except Exception:  # a lane must outlive any claim; what is due is found by the poll
            log.exception("claiming for %d agents failed", len(agents))
