"""Runs of `/agui` when gateways die or stop, and what strangers send (protocol §17.4)."""

import asyncio
import json
import os
import signal
from collections import Counter
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from tests.e2e.gateway.agui.front_end import FrontEnd, agui_events
from tests.e2e.gateway.agui.test_runs import LONG, WORDS, turns
from tests.support.fuzz import IDS, Dice
from tests.support.gateway import asking, client, composed, gateway_process, serving, token_of
from tests.support.processes.stack import Stack
from tests.support.tenants import ALICE, Tenant

SHARE = 0.04
"""Of `--fuzz-cases`."""


async def test_a_gateway_that_stops_says_so_and_another_tells_the_run(
    here: Stack, web: httpx.AsyncClient, tenant: Tenant
) -> None:
    await tenant.agent("player")
    token = await token_of(here, tenant.project)
    begun = asyncio.Event()
    front = FrontEnd(web)
    front.says(LONG)
    body = front.input()

    async def cut() -> list[str]:
        kinds: list[str] = []
        async with client(url, token) as first, first.stream("POST", f"/agui/{ALICE}", json=body) as response:
            async for event in agui_events(response):
                kinds.append(event.type.value)
                if len(kinds) == 5:
                    begun.set()
        return kinds

    async with serving(here) as url:
        reading = asyncio.create_task(cut())
        await begun.wait()
    assert (await reading)[-1] == "RUN_ERROR"
    told = await front.run(runId=body["runId"])
    assert told.said[1:] == [("assistant", WORDS)]
    assert await turns(tenant) == 1


@pytest.mark.long
async def test_a_gateway_that_is_killed_in_a_run_leaves_it_to_another(
    here: Stack, web: httpx.AsyncClient, tenant: Tenant
) -> None:
    await tenant.agent("player")
    token = await token_of(here, tenant.project)
    front = FrontEnd(web)
    front.says(LONG)
    run = front.input()["runId"]
    async with gateway_process(here) as (process, url), client(url, token) as first:
        dying = FrontEnd(first, ALICE, front.thread, front.messages)
        await dying.run(runId=run, cut_after=8)
        os.kill(process, signal.SIGKILL)
        told = await front.run(runId=run)
    assert told.kinds[1] == "MESSAGES_SNAPSHOT"
    assert told.said[1:] == [("assistant", WORDS)]
    assert await turns(tenant) == 1


def odd_input(dice: Dice, front: FrontEnd) -> bytes:
    """The body of a run: valid, nearly valid, or something else."""
    said: list[dict[str, Any]] = [
        {"id": "m1", "role": "user", "content": dice.pick.choice(["hello", [{"type": "text", "text": "hello"}]])},
        {"id": "m2", "role": "assistant", "content": "hi", "metadata": {"a": [None]}},
        {"id": "m3", "role": "tool", "toolCallId": "call_1", "content": "found"},
        {"id": "m4", "role": "reasoning", "content": "so"},
        {"id": "m5", "role": "activity", "activityType": "x", "content": {"a": 1}},
        {"id": "m6", "role": "user", "content": "go on"},
    ]
    front.messages = dice.pick.sample(said, dice.pick.randrange(1, 5))
    more: dict[str, Any] = {}
    if dice.chance(0.3):
        answer = {"interruptId": "int-call_1-1", "status": "cancelled", "payload": {"approved": True}}
        more = {"resume": [answer, answer][: dice.pick.randrange(3)], "context": [{"description": "a", "value": "b"}]}
    made = front.input(**more)
    return dice.encoded(made if dice.chance(0.2) else dice.bent(made))


@pytest.mark.fuzz
async def test_odd_inputs_are_problems_or_runs(here: Stack, tenant: Tenant, fuzz_share: Callable[[float], int]) -> None:
    """Never an error of the gateway's own: an answer is a problem that says what is wrong, or a run to its end."""
    await tenant.agent("instant")
    token = await token_of(here, tenant.project)
    seen: Counter[str] = Counter()
    async with composed(here) as gateway, asking(gateway, token) as web:
        slots = asyncio.Semaphore(8)

        async def one(number: int) -> None:
            dice = Dice.of(number)
            front = FrontEnd(web, thread=f"thread-{number % 20}")
            body = odd_input(dice, front)
            agent = ALICE if dice.chance(0.9) else quote(dice.pick.choice([*IDS, "profile:", "profile:x"]), safe="")
            headers = {"content-type": "application/json"}
            async with slots, asyncio.timeout(60):
                answer = await web.post(f"/agui/{agent}", content=body, headers=headers)
            if answer.status_code != 200:
                assert answer.status_code < 500, (number, answer.text)
                seen[answer.json()["code"]] += 1
                return
            last = json.loads(answer.text.strip().rpartition("data: ")[2])
            assert last["type"] in ("RUN_FINISHED", "RUN_ERROR"), (number, last)
            assert last.get("code") != "internal_error", (number, last)
            seen[last.get("code") or last["outcome"]["type"]] += 1

        await asyncio.gather(*(one(number) for number in range(fuzz_share(SHARE))))
        assert gateway.access.open_streams == 0
    assert {"bad_request", "success"} <= seen.keys(), seen
