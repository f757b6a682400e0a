"""The safety net as moves: the bridge's own rules (protocol §8), on a Temporal that is a model of the worst.

Temporal is the only thing that is not real. The model knows which turns ever had a workflow (`explore.workflows`), and
says of each that it is closed: every workflow that is started fails at once. So what the rules mend here, they mend
without anybody's help.
"""

from collections.abc import Sequence
from typing import Any, cast

from temporalio.client import Client
from temporalio.common import SearchAttributePair, WorkflowIDConflictPolicy, WorkflowIDReusePolicy

from lab.explore.statements import statement
from lab.explore.world import Move
from turnstile.bridge.inbox.served_targets import ServedTargets
from turnstile.bridge.inbox.workflow_starter import Starter
from turnstile.bridge.safety.eras import Eras
from turnstile.bridge.safety.reconciler import FRESH_SECONDS, UNKNOWN_SECONDS, Reconciler, UnknownTurn, Workflow
from turnstile.bridge.safety.rules import Rules, SafetyRule, WatchdogTimes
from turnstile.ledger.operations.recovery import OverTurn, RunTransition, list_in_hand, list_undispatched
from turnstile.ledger.pool import Pool
from turnstile.ledger.turns.lease import AgentKey, Claim, LiveTurn
from turnstile.schema.turns import TurnRef
from turnstile.schema.wire.events import Message
from turnstile.workflows import options

TARGET = "worker_generic"
LEDGER_RULES = (
    "claims",
    "dispatched_retry",
    "resume",
    "suspended",
    "stop",
    "batch",
    "batch_due",
    "interrupts",
    "marked_queued",
    "marked",
    "command",
    "stranded",
    "doorbell",
    "unannounced",
)
"""The rules that need no Temporal, in the order of a tick."""
REAPS = ("engine", "dispatched_reap")
"""The rules that start again, or end, what the engine lost."""
_CLAIMS = {"claims", "dispatched_retry", "resume", "doorbell"}
"""The rules that write inbox rows, and nothing of a turn."""
_PARTS = {
    "engine": "net heads",
    "dispatched_reap": "net heads",
    "suspended": "net calls",
    "command": "net calls",
    "unannounced": "net outcomes",
    "batch_due": "net batches",
    "interrupts": "net questions",
    "marked_queued": "net trees",
    "marked": "net trees",
}
"""What a rule that is not about the inbox finds nothing by."""


class SilentPublisher:
    """NATS that takes everything; nobody listens, so every doorbell is lost."""

    async def publish(self, messages: Sequence[Message]) -> None:
        """Acknowledged."""

    async def emit(self, message: Message) -> None:
        """Sent."""


class LostStarter(Starter):
    """Starts workflows that fail at once, and notes that they were there."""

    def __init__(self, pool: Pool) -> None:
        super().__init__(pool, cast("Client", None), SilentPublisher(), ServedTargets([TARGET]))

    async def start(
        self,
        turn: TurnRef,
        reuse: WorkflowIDReusePolicy = options.TURN_ID_REUSE,
        attributes: Sequence[SearchAttributePair[str]] = (),
        conflict: WorkflowIDConflictPolicy = options.TURN_ID_CONFLICT,
    ) -> bool:
        """The engine takes it."""
        await self._pool.run(lambda conn: statement("note_workflow").many(conn, agent_turn_id=turn.agent_turn_id))
        return True

    async def ring(self, claims: list[Claim]) -> None:
        """The signal is taken by a workflow that does nothing more."""


class LostEngine(Reconciler):
    """A Temporal in which no workflow is open, and which knows those that were started."""

    def __init__(self, pool: Pool, starter: Starter) -> None:
        super().__init__(pool, cast("Client", None), starter, SilentPublisher(), ServedTargets([TARGET]))

    async def list_lost(self, run: RunTransition, *, fresh_seconds: float = FRESH_SECONDS) -> list[LiveTurn]:
        """As the reconciler does where no workflow is open."""
        suspects = list_in_hand(run, self.served.now(), older_seconds=fresh_seconds)
        return await self._confirm(run, [turn async for turn in suspects])

    async def list_over(self, run: RunTransition) -> list[OverTurn]:
        """No workflow is open."""
        return []

    async def list_unknown(self, run: RunTransition, *, older_seconds: float = UNKNOWN_SECONDS) -> list[UnknownTurn]:
        """No workflow is open."""
        return []

    async def list_silent(self, run: RunTransition, *, older_seconds: float) -> list[LiveTurn]:
        """No workflow is open: the rule *engine* finds each of these turns."""
        return []

    async def list_undispatched(self, run: RunTransition, *, older_seconds: float) -> list[LiveTurn]:
        """As the reconciler does, without a look at the engine's health."""
        return await run(
            lambda conn: list_undispatched(conn, self.served.now(), older_seconds=older_seconds, row_limit=500)
        )

    async def _describe(self, turn: LiveTurn) -> Workflow:
        row = await self.pool.run(lambda conn: statement("knows_workflow").one(conn, agent_turn_id=turn.agent_turn_id))
        return Workflow(known=row["known"])


def rules_on(pool: Pool) -> dict[str, SafetyRule[Any]]:
    """The bridge's rules by name, on this pool and on a Temporal that loses everything."""
    starter = LostStarter(pool)
    served = ServedTargets([TARGET])
    rules = Rules(
        pool=pool,
        starter=starter,
        publisher=SilentPublisher(),
        served=served,
        times=WatchdogTimes(),
        reconciler=LostEngine(pool, starter),
        eras=Eras(pool, starter, served),
    )
    return {rule.name: rule for rule in rules.all()}


def rule_move(name: str) -> Move:
    """A rule as a move: it finds, and mends what it found."""

    async def do(pool: Pool) -> str:
        rule = rules_on(pool)[name]
        rows = await rule.find(pool.run)
        return f"mended {await rule.mend(rows)}" if rows else "nothing"

    part = _PARTS.get(name, "net")
    return Move(f"net {name}", do, repeats=False, single=False, part=part, alone=name in _CLAIMS)


async def claim(pool: Pool, agents: Sequence[AgentKey]) -> None:
    """Claim the due rows of these agents as a bridge does, whoever rang."""
    await LostStarter(pool).claim(agents, "doorbell")
