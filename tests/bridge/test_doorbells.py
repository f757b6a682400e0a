"""Doorbells over a real NATS: which ones make a bridge claim, and how often."""

import asyncio
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from typing import cast

import pytest

from tests.support.conditions import until
from tests.support.processes.nats_server import CHANNEL
from turnstile.bridge.inbox import claim_queue
from turnstile.bridge.inbox.claim_queue import ClaimQueue
from turnstile.bridge.inbox.claims import Claims
from turnstile.bridge.inbox.doorbells import Doorbells
from turnstile.bridge.inbox.local_doorbells import LocalDoorbells
from turnstile.bridge.inbox.served_targets import ServedTargets
from turnstile.bridge.publishing.publisher import NatsPublisher
from turnstile.ledger.pool import Pool
from turnstile.ledger.turns.lease import AgentKey, Claim
from turnstile.runtime.ports import Publisher
from turnstile.schema.ids import AgentId, AgentTurnId, InboxId, ProjectId, uuid7
from turnstile.schema.wire.events import Doorbell, TurnAddress
from turnstile.transport.connection import NatsConnection

ALICE = AgentId("alice")
LAST = AgentId("last")
"""Rung for after the others, as by another bridge: when it is claimed, what was published before has been heard."""


class Asked(Claims):
    """Claims that only count which agents they are for."""

    def __init__(self, target: str) -> None:
        super().__init__(cast("Pool", None), cast("Publisher", None), ServedTargets([target]))
        self.agents: list[AgentKey] = []

    async def claim(self, agents: Iterable[AgentKey], reason: str) -> None:
        self.agents += agents

    async def start_claimed(self, claim: Claim) -> None:
        raise AssertionError

    async def ring(self, claims: list[Claim]) -> None:
        raise AssertionError


class Bridge:
    """The part of a bridge that hears doorbells, and what publishes them there."""

    def __init__(self, conn: NatsConnection, target: str) -> None:
        self.queue, self.claims = ClaimQueue(), Asked(target)
        self.publisher = LocalDoorbells(NatsPublisher(conn), self.queue, ServedTargets([target]))
        self._doorbells = Doorbells(conn, self.queue, target)

    @asynccontextmanager
    async def serving(self) -> AsyncGenerator[None]:
        """Claim and hear while the block runs."""
        stop = asyncio.Event()
        tasks = [asyncio.create_task(job) for job in (self.queue.run(self.claims, stop), self._doorbells.run(stop))]
        await asyncio.sleep(0)
        try:
            yield
        finally:
            stop.set()
            await asyncio.gather(*tasks)

    async def until_claimed(self, agent: AgentKey) -> list[AgentKey]:
        """The agents that were claimed for until this one was."""

        async def claimed() -> bool:
            return agent in self.claims.agents

        await until(claimed, 25, f"{agent} is claimed for")
        return self.claims.agents


@pytest.fixture
def target() -> str:
    """A worker target of this test alone."""
    return f"t-{uuid7()}"


def doorbell(project: ProjectId, target: str, agent: AgentId, *, claimed: bool = False) -> Doorbell:
    """The doorbell of a new row."""
    address = TurnAddress(project, CHANNEL, agent, AgentTurnId(uuid7()), 1, {}, "test")
    return address.wakeup(target, InboxId(uuid7()), "enqueue", claimed=claimed)


async def test_a_bridge_claims_once_for_a_doorbell_of_its_own(
    conn: NatsConnection, project: ProjectId, target: str
) -> None:
    bridge = Bridge(conn, target)
    async with bridge.serving():
        await bridge.publisher.publish([doorbell(project, target, ALICE)])
        assert await bridge.until_claimed((project, ALICE)) == [(project, ALICE)]
        await NatsPublisher(conn).publish([doorbell(project, target, LAST)])
        assert await bridge.until_claimed((project, LAST)) == [(project, ALICE), (project, LAST)]


async def test_a_bridge_does_not_claim_for_a_row_that_it_has_claimed(
    conn: NatsConnection, project: ProjectId, target: str
) -> None:
    bridge = Bridge(conn, target)
    async with bridge.serving():
        await bridge.publisher.publish([doorbell(project, target, ALICE, claimed=True)])
        await NatsPublisher(conn).publish([doorbell(project, target, LAST)])
        assert await bridge.until_claimed((project, LAST)) == [(project, LAST)]


async def test_another_bridge_hears_the_doorbell_of_one_that_died(
    conn: NatsConnection, other: NatsConnection, project: ProjectId, target: str
) -> None:
    """It committed, rang, and claims no more; no poll is needed to find the row."""
    died, lives = Bridge(conn, target), Bridge(other, target)
    died.queue.runs = True
    await died.publisher.publish([doorbell(project, target, ALICE)])
    async with lives.serving():
        assert await lives.until_claimed((project, ALICE)) == [(project, ALICE)]


async def test_a_doorbell_that_was_forgotten_is_claimed_for(
    conn: NatsConnection, project: ProjectId, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claim_queue, "MAX_RUNG", 1)
    bridge = Bridge(conn, target)
    async with bridge.serving():
        await bridge.publisher.publish([doorbell(project, target, agent, claimed=True) for agent in (ALICE, LAST)])
        assert await bridge.until_claimed((project, ALICE)) == [(project, ALICE)]
