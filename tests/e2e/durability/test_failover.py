"""A primary is killed under load and its standby is promoted (protocol §16): processes of ours run on."""

import asyncio
import json
import logging
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import pytest

from tests.support.conditions import until
from tests.support.ledger.invariants import assert_invariants
from tests.support.processes.hatchery import Hatchery
from tests.support.processes.postgres_pair import PostgresPair
from tests.support.processes.process import processes_of
from tests.support.processes.stack import Stack
from tests.support.tenants import Tenant, new_tenant
from tests.support.tools import Hand, calling, hand_of
from turnstile.ledger.turns.views import describe_turn
from turnstile.schema.base import JsonObject
from turnstile.schema.errors import ServerUnavailable
from turnstile.schema.ids import AgentTurnId, uuid7

STEPS = json.dumps({"steps": [{"text": "Thinking."} | calling("search", "search"), {"text": "All is done."}]})
PATIENCE_SECONDS = 60.0


@dataclass
class Acknowledged:
    """What one client was told."""

    enqueued: list[str] = field(default_factory=list[str])
    reported: list[str] = field(default_factory=list[str])
    stopped: list[str] = field(default_factory=list[str])


@dataclass
class Client:
    """It asks for one turn after the other, and reports each call that its tool hears; it stops every third turn."""

    hand: Hand
    told: Acknowledged = field(default_factory=Acknowledged)
    over: int = 0
    answered: set[str] = field(default_factory=set[str])

    @property
    def tenant(self) -> Tenant:
        """Its project."""
        return self.hand.tenant

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop`; each turn that was accepted comes to its end."""
        while not stop.is_set():
            turn = str((await self.insist("enqueue", self._request()))["agent_turn_id"])
            self.told.enqueued.append(turn)
            stops = len(self.told.enqueued) % 3 == 0
            async with asyncio.timeout(PATIENCE_SECONDS):
                while not await self._is_over(turn):
                    await self._serve(turn, stops=stops)
                    await asyncio.sleep(0.02)
            self.over += 1

    def _request(self) -> JsonObject:
        return {"agent_id": self.hand.agent, "instruction": STEPS, "correlation_id": uuid7()}

    async def _is_over(self, turn: str) -> bool:
        view = await self.tenant.pool.run(lambda conn: describe_turn(conn, self.tenant.project, AgentTurnId(turn)))
        return view is not None and view.announced_at is not None

    async def _serve(self, turn: str, *, stops: bool) -> None:
        for command in list(self.hand.commands):
            if command.call in self.answered:
                continue
            self.answered.add(command.call)
            if not stops:
                reply = await self.insist(
                    "report", {"tool_call_id": command.call, "status": "success", "result": "found"}
                )
                if reply["status"] == "accepted":
                    self.told.reported.append(command.call)
            elif (
                turn not in self.told.stopped
                and (await self.insist("stop", {"agent_turn_id": turn}))["status"] == "accepted"
            ):
                self.told.stopped.append(turn)

    async def insist(self, verb: str, payload: JsonObject) -> JsonObject:
        """Repeat the request while nobody answers or the ledger is away; returns the reply."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                try:
                    reply = await self.tenant.client.request(verb, payload, timeout=2.0)
                except ServerUnavailable:
                    reply = JsonObject(status="error", code="unavailable")
                if reply["status"] != "error":
                    return reply
                await asyncio.sleep(0.1)

    async def lost(self) -> list[str]:
        """What was acknowledged and is not in the ledger, or in it twice."""
        outcomes = {
            row["agent_turn_id"]: row["status"]
            for row in await self.tenant.rows(
                "SELECT agent_turn_id, status FROM state.turn_outcomes WHERE project_id = $1", self.tenant.project
            )
        }
        applied = {
            row["tool_call_id"]
            for row in await self.tenant.rows(
                "SELECT tool_call_id FROM state.agent_inbox i JOIN state.turn_waiting_tools w ON"
                " w.tool_call_id = i.correlation_id WHERE i.project_id = $1 AND i.message_type = 'tool_result'",
                self.tenant.project,
            )
        }
        events = await self.tenant.task_events()
        found = [f"turn {each} has no outcome" for each in self.told.enqueued if each not in outcomes]
        found += [
            f"turn {outcome} has {events.get(outcome, 0)} task events"
            for outcome in outcomes
            if events.get(outcome) != 1
        ]
        found += [f"report of {each} is gone" for each in self.told.reported if each not in applied]
        found += [
            f"turn {each} was stopped, and is {outcomes[each]}"
            for each in self.told.stopped
            if outcomes[each] != "canceled"
        ]
        for event in await self.tenant.events("agent.*.task"):
            turn, status = str(event.payload["agent_turn_id"]), event.payload["status"]
            found += [] if outcomes.get(turn) == status else [f"turn {turn} was told as {status}"]
        return found


@dataclass
class Load:
    """Many clients."""

    clients: list[Client]
    stop: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def over(self) -> int:
        """How many turns have ended and were announced."""
        return sum(client.over for client in self.clients)

    async def more(self, count: int, timeout: float = PATIENCE_SECONDS) -> float:
        """Seconds until so many more turns are over."""
        began, wanted = time.monotonic(), self.over + count

        async def enough() -> bool:
            return self.over >= wanted

        await until(enough, timeout, f"{count} more turns are over")
        return time.monotonic() - began

    async def lost(self) -> list[str]:
        """What any of them lost."""
        return [line for client in self.clients for line in await client.lost()]

    def counts(self) -> str:
        """What was acknowledged, in numbers."""
        told = [client.told for client in self.clients]
        enqueued, reported, stopped = (
            sum(len(getattr(each, name)) for each in told) for name in ("enqueued", "reported", "stopped")
        )
        return f"{enqueued} enqueues, {reported} reports, {stopped} stops, {self.over} ends"


@asynccontextmanager
async def load_on(stack: Stack, count: int) -> AsyncGenerator[Load]:
    """So many clients at work during the block; at its end each ends its turn, and they stop."""
    async with AsyncExitStack() as opened:
        hands = [await opened.enter_async_context(hand_of(new_tenant(stack))) for _ in range(count)]
        load = Load([Client(hand) for hand in hands])
        async with asyncio.TaskGroup() as group:
            for client in load.clients:
                group.create_task(client.run(load.stop))
            try:
                yield load
            finally:
                load.stop.set()


log = logging.getLogger(__name__)


@pytest.mark.long
async def test_a_synchronous_standby_that_takes_over_has_lost_nothing(
    pair: PostgresPair, failing: Stack, hatching: Hatchery
) -> None:
    await pair.make_synchronous()
    async with processes_of(failing.config, hatching) as both:
        await both.ensure()
        pids = (both.worker.pid, both.bridge.pid)
        async with load_on(failing, 8) as load:
            await load.more(24)
            await pair.kill("a")
            killed = time.monotonic()
            await pair.promote("b")
            promoted = time.monotonic()
            await load.more(1)
            first = time.monotonic() - promoted
            await load.more(48)
        assert (both.worker.pid, both.bridge.pid) == pids
        [era] = await pair.fetch("b", "SELECT * FROM state.ledger_era")
        log.warning(
            "%s; first end %.1f s after the promotion, which took %.1f s; %d turns carried over",
            *(load.counts(), first, promoted - killed, era["carried_count"]),
        )
        assert era["era"] == 1
        assert await load.lost() == []
    async with failing.pool.connection() as conn:
        await assert_invariants(conn)
