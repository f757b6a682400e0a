"""Tools of a front end: a run ends after their calls, and the next goes on with their outputs (protocol §17.4, §19)."""

import asyncio
import os
import signal
from typing import Any

import httpx
import pytest
from ag_ui.core import RunFinishedEvent, RunFinishedSuccessOutcome

from tests.e2e.gateway.agui.front_end import FrontEnd, Told
from tests.e2e.gateway.agui.test_runs import script, turns
from tests.support.gateway import client, gateway_process, token_of
from tests.support.processes.stack import Stack
from tests.support.tenants import Tenant
from tests.support.tools import calling, definition, hand_of
from turnstile.schema.access import GatewayRole
from turnstile.schema.ids import uuid7

SHAPE = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
MOVE: dict[str, Any] = {"name": "move", "description": "Moves the box.", "parameters": SHAPE}
PAINT: dict[str, Any] = {"name": "paint", "description": "Paints it."}
ONCE = script(calling(("move", {"x": 5}), text="I move it."), {"text": "Moved."})


def calls_in(told: Told) -> list[str]:
    """The calls of its messages that have no result."""
    known = {message["toolCallId"] for message in told.messages if message["role"] == "tool"}
    calls = [call["id"] for message in told.messages for call in message.get("toolCalls") or ()]
    return [call for call in calls if call not in known]


def answers(front: FrontEnd, calls: list[str], *outputs: str, **fields: Any) -> None:
    """The front end has run these calls."""
    for call, output in zip(calls, outputs, strict=True):
        front.messages.append({"id": uuid7(), "role": "tool", "toolCallId": call, "content": output, **fields})


async def test_a_run_ends_with_calls_of_its_front_end_and_the_next_one_goes_on_with_the_outputs(
    web: httpx.AsyncClient, tenant: Tenant
) -> None:
    steps = (
        calling(("move", {"x": 5}), ("paint", {}), ("move", {"y": 1}), "search"),
        calling(("paint", {"colour": "red"})),
        {"text": "Done."},
    )
    async with hand_of(tenant, definition()) as hand:
        front = FrontEnd(web)
        front.says(script(*steps))
        running = asyncio.create_task(front.run(runId="one", tools=[MOVE, PAINT]))
        [command] = await hand.heard()
        await asyncio.sleep(0)
        assert not running.done()  # a tool of the project is waited for: only then has the front end all of it
        await hand.report(command.call, "found")
        first = await running
        assert (first.outcome, [name for name, _ in first.calls]) == ("success", ["move", "paint", "move", "search"])
        assert first.kinds[-2:] == ["TOOL_CALL_RESULT", "RUN_FINISHED"]
        move, paint = calls_in(first)
        assert isinstance(first.last, RunFinishedEvent)
        assert isinstance(first.last.outcome, RunFinishedSuccessOutcome)
        assert set(first.last.outcome.pending_tool_call_ids or ()) == {move, paint}
        answers(front, [move], "at 5")
        part = await front.run(runId="part")  # not all of it: the run ends at once
        assert (part.outcome, part.turn, calls_in(part)) == ("success", first.turn, [paint])
        answers(front, [paint], "no brush", error="The brush is gone.")
        second = await front.run(runId="two")
        [again] = calls_in(second)
        assert (second.turn, second.kinds[0], second.kinds[-1]) == (first.turn, "RUN_STARTED", "RUN_FINISHED")
        answers(front, [again], "red")
        third = await front.run(runId="three")
        assert (third.turn, third.said[-1]) == (first.turn, ("assistant", "Done."))
        held = [dict(message) for message in front.messages]
        assert (await front.run(runId="three")).messages == held  # the same outputs are the same run
        assert (await front.run(runId="one", tools=[MOVE, PAINT])).turn == first.turn  # and so is the first one
        assert front.messages[-1]["content"] == "Done."
        ended = await hand.ended(first.turn)
        assert sorted(ended.results()) == [
            ("failed", "client_tool_failed", "The brush is gone."),
            (
                "failed",
                "invalid_arguments",
                next(text for _, code, text in ended.results() if code == "invalid_arguments"),
            ),
            *[("success", None, "")] * 3,
        ]
    assert await turns(tenant) == 1


async def test_a_user_who_says_something_else_stops_the_turn_and_late_outputs_change_nothing(
    web: httpx.AsyncClient, tenant: Tenant
) -> None:
    await tenant.agent("talks")
    front = FrontEnd(web)
    first = await front.run(ONCE, tools=[MOVE])
    [call] = calls_in(first)
    before = [dict(message) for message in front.messages]
    second = await front.run(script({"text": "As you like."}))
    assert (second.outcome, second.said[-1][1]) == ("success", "As you like.")
    assert second.turn != first.turn
    assert (await tenant.ended(first.turn)).view.status == "canceled"
    late = FrontEnd(web, thread=front.thread, messages=before)
    answers(late, [call], "at 5")
    assert (await late.run()).outcome == "cancelled"
    assert await turns(tenant) == 2


async def test_outputs_of_others_other_outputs_and_bad_tools_are_refused(
    url: str, web: httpx.AsyncClient, tenant: Tenant
) -> None:
    await tenant.agent("talks")
    front = FrontEnd(web)
    first = await front.run(ONCE, tools=[MOVE])
    asked = [dict(message) for message in front.messages]
    calls = calls_in(first)
    answers(front, calls, "at 5")
    async with client(url, await token_of(tenant.stack, tenant.project, GatewayRole.CLIENT)) as other:
        stranger = FrontEnd(other, thread=front.thread, messages=[dict(message) for message in front.messages])
        assert (await stranger.run()).outcome == "error: not_yours"
    elsewhere = FrontEnd(web, messages=[dict(message) for message in front.messages])
    assert (await elsewhere.run()).outcome == "error: unknown_interrupt"
    assert (await front.run()).said[-1][1] == "Moved."
    changed = FrontEnd(web, thread=front.thread, messages=asked)
    answers(changed, calls, "at 6")
    assert (await changed.run()).outcome == "error: already_decided"
    front.says("x")
    for tools, param in (
        ([MOVE, MOVE], "tools"),
        ([MOVE | {"name": "no name"}], "tools.0.name"),
        ([MOVE] * 129, "tools"),
        ([MOVE | {"parameters": {"type": "object", "unevaluatedProperties": False}}], "tools.0.parameters"),
    ):
        status, code, named = await front.refusal(tools=tools)
        assert (status, named) == (400, param), code
    many = [{"name": f"tool_{number}", "description": "One of many."} for number in range(128)]
    said = script(calling(("tool_127", {})), {"text": "Of many."})
    told = await front.run(said, tools=many)
    answers(front, calls_in(told), "yes")
    assert (await front.run()).said[-1][1] == "Of many."
    taken = await front.run(script({"text": "No."}), tools=[PAINT | {"name": "ask_human"}])
    assert taken.outcome == "error: tool_name_taken"


@pytest.mark.long
async def test_a_gateway_that_dies_between_call_and_output_changes_nothing(here: Stack, tenant: Tenant) -> None:
    await tenant.agent("talks")
    token = await token_of(here, tenant.project)
    async with gateway_process(here) as (pid, address), client(address, token) as web:
        front = FrontEnd(web)
        told = await front.run(ONCE, tools=[MOVE])
        os.kill(pid, signal.SIGKILL)
    async with gateway_process(here) as (_, address), client(address, token) as web:
        front.web = web
        answers(front, calls_in(told), "at 5")
        assert (await front.run()).said[-1][1] == "Moved."
    assert await turns(tenant) == 1
