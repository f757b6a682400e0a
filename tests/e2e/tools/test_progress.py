"""A tool tells how far it is with a call (protocol §6, progress): an event of its turn, and not too often."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
from nats.aio.msg import Msg

from tests.support.conditions import until
from tests.support.delegation import CHIEF, answer, result, serving, steps
from tests.support.gateway import asking, composed, token_of
from tests.support.tenants import Tenant, turn_of
from tests.support.tools import call_of, calling, hand_of
from turnstile import ToolCall, ToolService
from turnstile.schema.base import JsonObject
from turnstile.schema.states import StepPhase
from turnstile.schema.wire.events import StepEvent

pytestmark = pytest.mark.shared_stack


@asynccontextmanager
async def watching(tenant: Tenant) -> AsyncGenerator[asyncio.Queue[StepEvent]]:
    """What tools tell of their calls."""
    heard: asyncio.Queue[StepEvent] = asyncio.Queue()

    async def put(msg: Msg) -> None:
        event = StepEvent.model_validate_json(msg.data)
        if event.phase is StepPhase.TOOL_PROGRESS:
            heard.put_nowait(event)

    subject = f"cg.v1r4.{tenant.project}.*.evt.agent.*.step"
    subscription = await tenant.stack.conn.subscribe(subject, put)
    try:
        yield heard
    finally:
        await tenant.stack.conn.unsubscribe(subscription)


async def test_a_tool_tells_how_far_it_is_and_what_comes_too_fast_is_dropped(tenant: Tenant) -> None:
    service = ToolService(tenant.project)

    @service.tool(target="office", suffix="count", timeout_seconds=30)
    async def count(call: ToolCall) -> int:
        """Count to a hundred, quickly."""
        for number in range(100):
            await call.progress(number, total=100, message="x" * 300)
        return 100

    del count  # the service has it
    async with serving(tenant, service), watching(tenant) as heard:
        turn = turn_of(await tenant.enqueue(CHIEF, steps(calling(("count", {})))))
        ended = await tenant.ended(turn)
        assert result(ended) == 100, answer(ended)
        first = await asyncio.wait_for(heard.get(), 25)
    assert (first.agent_turn_id, first.step_id) == (turn, f"{turn}-s1")
    told = first.metadata
    assert (told["tool_call_id"], told["tool_name"]) == (call_of(turn), "count")
    assert (told["progress"], told["total"]) == (0, 100)
    assert told["message"] == "x" * 199 + "…"
    assert heard.qsize() < 10


async def test_only_a_calls_own_tool_tells_and_only_while_it_waits(tenant: Tenant) -> None:
    async with hand_of(tenant) as hand, watching(tenant) as heard:
        turn = await hand.suspended(calling("search"))
        call = call_of(turn)
        given: JsonObject = {"tool_call_id": call, "progress": 0.5, "message": "a\x1b[2J\u202e\nb"}
        cases: tuple[tuple[JsonObject, dict[str, str], str], ...] = (
            ({"tool_call_id": "call_none"}, {}, "unknown_call"),
            ({"message": "x" * 201}, {}, "bad_request"),
            ({"progress": "half"}, {}, "bad_request"),
            ({}, {"CG-Turn-Id": "other"}, "not_your_call"),
        )
        for more, named, code in cases:
            told = await tenant.client.request("progress", given | more, headers=named)
            assert (told["status"], told["error_code"]) == ("rejected", code), more
        told = await tenant.client.request("progress", given)
        assert (told["status"], told["published"]) == ("accepted", True)
        assert (await asyncio.wait_for(heard.get(), 25)).metadata["message"] == "a [2J b"
        since = time.monotonic()
        fast = await asyncio.gather(*(tenant.client.request("progress", given) for _ in range(30)))
        assert all(each["status"] == "accepted" for each in fast)
        more_told = sum(each["published"] is True for each in fast)
        assert more_told <= 2 + 2 * (time.monotonic() - since)
        for _ in range(more_told):
            await asyncio.wait_for(heard.get(), 25)
        await hand.report(call)
        await hand.ended(turn)
        late = await tenant.client.request("progress", given)
        assert late["status"] == "rejected" or late["published"] is False
    assert heard.empty()


async def test_streams_of_v1_tell_it_to_who_follows_and_to_who_comes_later(tenant: Tenant) -> None:
    async with hand_of(tenant) as hand, composed(tenant.stack) as gateway:
        turn = await hand.suspended(calling("search"))
        call, token = call_of(turn), await token_of(tenant.stack, tenant.project)
        told = {"tool_call_id": call, "progress": 1250.0, "total": 4000.0, "message": "rows read"}

        async def events() -> list[tuple[str, JsonObject]]:
            async with asking(gateway, token) as web:
                text = (await web.get(f"/v1/turns/{turn}/events", timeout=30)).text
            lines = [block.split("\n") for block in text.split("\n\n") if "event: " in block]
            return [(_field(block, "event"), json.loads(_field(block, "data"))) for block in lines]

        async def followed(readers: int) -> bool:
            return gateway.feeds.readers == readers

        first = asyncio.create_task(events())
        await until(lambda: followed(1), 25, "the stream is open")
        await tenant.client.request("progress", {**told, "progress": 250.0})
        await tenant.client.request("progress", told)
        second = asyncio.create_task(events())
        await until(lambda: followed(2), 25, "another stream is open")
        await hand.report(call)
        await hand.ended(turn)
        for stream, amounts in ((await first, [250.0, 1250.0]), (await second, [1250.0])):
            progress = [data for kind, data in stream if kind == "progress"]
            assert [data["progress"] for data in progress] == amounts
            assert progress[-1] == {**told, "agent_turn_id": turn, "step_id": f"{turn}-s1", "tool_name": "search"}
            kinds = [kind for kind, _ in stream]
            cards = [
                place for place, (kind, data) in enumerate(stream) if kind == "card" and data["type"] == "tool.result"
            ]
            assert max(place for place, kind in enumerate(kinds) if kind == "progress") < cards[0]


def _field(block: list[str], name: str) -> str:
    return next(line.removeprefix(f"{name}: ") for line in block if line.startswith(f"{name}: "))
