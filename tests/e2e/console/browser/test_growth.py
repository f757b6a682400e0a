"""A page that stays open while much happens: what the browser holds for it does not grow."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import astuple, dataclass
from typing import Any, cast

import pytest
from playwright.async_api import CDPSession

from tests.e2e.console.conftest import Seats
from tests.support.tenants import ALICE
from tests.support.tools import Hand, definition, hand_of
from turnstile.schema.base import JsonObject
from turnstile.schema.ids import AgentId

BOB = AgentId("bob")
SECONDS = 600.0
_NODES, _LISTENERS, _HEAP_MB = 1.35, 1.35, 4.0


@dataclass(frozen=True)
class Held:
    """What a page holds after its garbage was collected."""

    nodes: float
    listeners: float
    heap_mb: float


async def _asked(session: CDPSession, method: str) -> dict[str, Any]:
    """What Chromium answers."""
    return cast("dict[str, Any]", await session.send(method))  # pyright: ignore[reportUnknownMemberType] -- playwright: a bare Dict


async def held(session: CDPSession) -> Held:
    """As it is now: the least of some readings, since in the middle of a renewal the page is there twice."""
    readings: list[Held] = []
    for _ in range(6):
        await _asked(session, "HeapProfiler.collectGarbage")
        await asyncio.sleep(0.2)
        await _asked(session, "HeapProfiler.collectGarbage")
        found: dict[str, Any] = await _asked(session, "Performance.getMetrics")
        metrics: dict[str, float] = {each["name"]: each["value"] for each in found["metrics"]}
        readings.append(Held(metrics["Nodes"], metrics["JSEventListeners"], metrics["JSHeapUsedSize"] / 1e6))
    return Held(*(min(values) for values in zip(*map(astuple, readings), strict=True)))


@asynccontextmanager
async def busy(hand: Hand) -> AsyncGenerator[None]:
    """Turns of the agent, one after the other, whose text streams."""

    async def work() -> None:
        number = 0
        while True:
            number += 1
            ended = await hand.start({"text": f"turn {number} " + "word " * 60, "chunks": 40, "delay_seconds": 0.01})
            await hand.ended(ended)

    working = asyncio.create_task(work())
    try:
        yield
    finally:
        working.cancel()
        await asyncio.wait({working})


@pytest.mark.long
@pytest.mark.timeout(SECONDS + 120)
async def test_an_open_page_does_not_grow_under_load(people: Seats) -> None:
    """Now, an agent and a turn that streams: nodes, listeners and heap at the end are those after the first third."""
    slow: JsonObject = {"text": "slowly " * 100, "chunks": 2000, "delay_seconds": (SECONDS + 5) / 2000}
    async with hand_of(people.tenant, definition()) as hand, hand_of(people.tenant, definition(), agent=BOB) as other:
        for number in range(20):  # the lists are full from the begin
            await hand.ended(await hand.start({"text": f"before {number}"}))
        turn = await other.start(slow)
        seats = [await people.seat() for _ in range(3)]
        paths = ("/console", f"/console/agents/{ALICE}", f"/console/turns/{turn}")
        sessions: list[CDPSession] = []
        async with busy(hand):
            for each, path in zip(seats, paths, strict=True):
                await each.open(path)
                sessions.append(await each.page.context.new_cdp_session(each.page))
                await _asked(sessions[-1], "Performance.enable")
            await asyncio.sleep(SECONDS / 3)
            before = [await held(session) for session in sessions]
            await asyncio.sleep(SECONDS * 2 / 3)
            after = [await held(session) for session in sessions]
        for path, early, late in zip(paths, before, after, strict=True):
            assert late.nodes <= early.nodes * _NODES + 200, (path, early, late)
            assert late.listeners <= early.listeners * _LISTENERS + 20, (path, early, late)
            assert late.heap_mb <= early.heap_mb + _HEAP_MB, (path, early, late)
        await hand.tenant.client.request("stop", {"agent_turn_id": turn, "reason": "seen"})
        await other.ended(turn)
