"""Starts turns again that a new era of the ledger found in hand (protocol §16, rule *era*).

Such a turn has a new epoch, and its workflow, if it runs, still the one of before: each of its writes is stale, and it
may know of steps that the ledger has lost. It is replaced by one that goes on from the head. That counts as no restart
of the turn. A crash between the start and its record replaces the workflow once more.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from turnstile.bridge.inbox.served_targets import ServedTargets
from turnstile.bridge.inbox.workflow_starter import Starter
from turnstile.bridge.safety.visibility import for_each
from turnstile.ledger.operations.recovery import RunTransition, list_carried, restart_turn
from turnstile.ledger.pool import Pool
from turnstile.ledger.turns.lease import LiveTurn
from turnstile.runtime.faults import Fault, hit
from turnstile.schema.errors import StaleTurn
from turnstile.workflows import options

_ROW_LIMIT = 500


@dataclass(frozen=True, slots=True)
class Eras:
    """Finds and starts turns that were carried over."""

    pool: Pool
    starter: Starter
    served: ServedTargets

    async def list_carried(self, run: RunTransition) -> list[LiveTurn]:
        """Turns in hand whose workflow is of the era before."""
        return await run(lambda conn: list_carried(conn, self.served.now(), row_limit=_ROW_LIMIT))

    async def carry(self, turns: Sequence[LiveTurn]) -> int:
        """Start each turn again from its head, in place of its workflow; returns how many were.

        Raises `ServerUnavailable` if Temporal did not answer.
        """
        carried = await for_each(turns, self._carry)
        await self.starter.claim([(turn.project_id, turn.agent_id) for turn in turns], "era")
        return sum(carried)

    async def _carry(self, turn: LiveTurn) -> bool:
        await self.starter.start(turn, options.TURN_ID_RESTART, conflict=options.TURN_ID_CARRY)
        hit(Fault.TURN_CARRIED)
        try:
            await self.pool.run(lambda conn: restart_turn(conn, turn, counted=False))
        except StaleTurn:
            return False
        return True
