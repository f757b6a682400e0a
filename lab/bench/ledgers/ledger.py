"""A ledger of its own whose statements are timed: enqueue, claim and begin of its agents' turns, and its audit."""

import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from lab.bench.agents import add_agents
from lab.bench.children import BenchError
from lab.bench.environment import Environment
from lab.bench.load_client import CHANNEL
from lab.bench.yardsticks.postgres import scratch_database
from turnstile.ledger.migrate import migrate
from turnstile.ledger.operations.audit import Audit, Bounds, Scope, audit
from turnstile.ledger.pool import Pool
from turnstile.ledger.turns.cards import BoxCache
from turnstile.ledger.turns.intake import enqueue
from turnstile.ledger.turns.lease import claim_inbox
from turnstile.ledger.turns.steps import begin_step
from turnstile.schema.ids import AgentId, ConversationId, ProjectId
from turnstile.schema.turns import TurnRef
from turnstile.schema.wire.inbox import EnqueueRequest

_DEPTH = 20
_DAY = timedelta(days=1)
_CACHE_BYTES = 64_000_000


@dataclass
class Ledger:
    """A ledger with idle agents, over one connection; `took` has the ms of each statement in the order of its runs."""

    url: str
    pool: Pool
    project: ProjectId
    target: str
    agents: Sequence[AgentId]
    took: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    _cache: BoxCache = field(default_factory=lambda: BoxCache(_CACHE_BYTES))

    async def ask(self, agent: AgentId, kind: str, conversation: ConversationId | None = None) -> TurnRef:
        """Time an enqueue for the agent, and the claim of its row, which is left as it is. `kind` ends their names."""
        request = EnqueueRequest(agent_id=agent, instruction="hello", conversation_id=conversation)
        began = time.perf_counter()
        await enqueue(self.pool, self.project, CHANNEL, request, {}, depth_limit=_DEPTH, sender="bench")
        enqueued = time.perf_counter()
        keys = [(self.project, agent)]
        claimed = await self.pool.run(lambda conn: claim_inbox(conn, keys, [self.target], row_limit=10))
        ended = time.perf_counter()
        if [claim.verdict for claim in claimed] != ["start"]:
            raise BenchError(f"a claim found {[claim.verdict for claim in claimed]}")
        self.took[f"enqueue{kind}"].append((enqueued - began) * 1000)
        self.took[f"claim{kind}"].append((ended - enqueued) * 1000)
        return claimed[0].turn()

    async def begin(self, turn: TurnRef, kind: str) -> None:
        """Time the begin of the turn's first step, which reads its boxes."""
        began = time.perf_counter()
        await self.pool.run(lambda conn: begin_step(conn, turn, 1, self._cache))
        self.took[f"begin{kind}"].append((time.perf_counter() - began) * 1000)

    async def audit(self) -> Audit:
        """Time an audit of the last day."""
        began = time.perf_counter()
        result = await audit(self.pool, Scope(since=datetime.now(UTC) - _DAY), Bounds(), row_limit=10)
        self.took["audit of a day"].append((time.perf_counter() - began) * 1000)
        return result


@asynccontextmanager
async def open_ledger(environment: Environment, project: ProjectId, agents: int) -> AsyncGenerator[Ledger]:
    """A new ledger with these agents, dropped at the end."""
    async with scratch_database(environment.endpoints.database_url) as url:
        pool = Pool(url, size=1, name="turnstile-bench")
        try:
            await migrate(pool)
            added = await add_agents(pool, project, environment.target, "instant", agents)
            yield Ledger(url, pool, project, environment.target, added)
        finally:
            await pool.close()
