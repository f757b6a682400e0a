"""Turns claimed by their own enqueue: no claim follows, and their workflow starts at once (protocol §6, claim).

Only while nothing waits in the claim queue and few such starts are in flight: else the projects take turns there
(docs/limits.md, fairness). A process that dies before the start leaves a claimed row, which the safety net releases.
"""

import asyncio
import logging

from turnstile.bridge.inbox.claim_queue import ClaimQueue
from turnstile.bridge.inbox.claims import Claims
from turnstile.bridge.inbox.served_targets import ServedTargets
from turnstile.bridge.publishing.best_effort import SENDER, publish_best_effort
from turnstile.ledger.turns.intake import Enqueued
from turnstile.ledger.turns.lease import Claim
from turnstile.runtime.faults import Fault, hit
from turnstile.runtime.ports import Publisher
from turnstile.schema.errors import ServerUnavailable

log = logging.getLogger(__name__)
MOST_STARTS = 16
"""Starts in flight beside those of the queue, of all projects together."""


class PromptClaims:
    """Says which targets' turns may be claimed by their enqueue now, and starts those that were."""

    def __init__(self, queue: ClaimQueue, claims: Claims, served: ServedTargets) -> None:
        self._queue = queue
        self._claims = claims
        self._served = served
        self._starting: set[asyncio.Task[None]] = set()

    def targets(self) -> tuple[str, ...]:
        """The targets whose turns the next enqueue may claim."""
        free = self._queue.runs and self._queue.is_empty and len(self._starting) < MOST_STARTS
        return self._served.now() if free else ()

    def start(self, claim: Claim) -> None:
        """Start the turn of a row that its enqueue has claimed."""
        hit(Fault.CLAIM_TAKEN)
        task = self._queue.run_beside(self._start(claim))
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)

    async def _start(self, claim: Claim) -> None:
        try:
            await self._claims.settle([claim], "enqueue")
        except ServerUnavailable as error:
            log.warning("turn %s is left to the safety net: %s", claim.agent_turn_id, error)
        except Exception:  # nobody awaits the task
            log.exception("starting turn %s failed", claim.agent_turn_id)


async def start_enqueued(enqueued: Enqueued, claims: PromptClaims | None, publisher: Publisher) -> None:
    """Start the turn if its enqueue has claimed it, else ring for it; nothing if its agent is not leased to it."""
    if (lease := enqueued.lease) is None:
        return
    claimed = claims is not None and enqueued.claim is not None
    if claims is not None and enqueued.claim is not None:
        claims.start(enqueued.claim)
        await asyncio.sleep(0)  # the start is on its way before anything else is done
    doorbell = lease.doorbell(SENDER, "enqueue", claimed=claimed)
    await publish_best_effort(publisher, lease.dispatched(SENDER), doorbell)
