"""`/agui/{agent}` as front ends use it: text, calls, threads, repeats, and what is refused (protocol §17.4)."""

import asyncio
import json
from typing import Any

import httpx
import pytest
from ag_ui.core import PROTOCOL_VERSION, RunErrorEvent, RunFinishedEvent, RunStartedEvent

from tests.e2e.gateway.agui.front_end import FrontEnd
from tests.support.gateway import client, token_of
from tests.support.tenants import ALICE, Tenant
from tests.support.tools import calling, hand_of
from turnstile.schema.access import GatewayRole
from turnstile.schema.ids import AgentId

pytestmark = pytest.mark.shared_stack

WORDS = "".join(f"word-{number} " for number in range(60))
LONG = json.dumps({"steps": [{"text": WORDS, "chunks": 30, "delay_seconds": 0.03}]})
SLOW = json.dumps({"steps": [{"text": "All of this takes long. " * 5, "chunks": 100, "delay_seconds": 0.5}]})
FALTERING = json.dumps(
    {
        "steps": [
            {
                "attempts": [
                    {"text": "this is void", "chunks": 4, "error": {"code": "model_unavailable", "after_chunks": 3}},
                    {"text": "this holds", "chunks": 4},
                ]
            }
        ]
    }
)


def script(*steps: Any) -> str:
    return json.dumps({"steps": steps})


async def turns(tenant: Tenant) -> int:
    """How many turns the project has."""
    return await tenant.count("state.agent_inbox", "message_type = 'turn'")


async def test_a_run_is_a_turn_whose_text_is_streamed(web: httpx.AsyncClient, tenant: Tenant) -> None:
    await tenant.agent("player")
    front = FrontEnd(web)
    told = await front.run(LONG)
    assert told.kinds == [
        *("RUN_STARTED", "STEP_STARTED", "TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_END"),
        *("STEP_FINISHED", "RUN_FINISHED"),
    ]
    assert len(told.events) > 16
    begun, ended = told.events[0], told.last
    assert isinstance(begun, RunStartedEvent)
    assert (begun.thread_id, begun.protocol_version) == (front.thread, PROTOCOL_VERSION)
    assert isinstance(ended, RunFinishedEvent)
    assert (told.outcome, ended.run_id) == ("success", begun.run_id)
    assert ended.usage is not None
    assert ended.usage[0].total_tokens
    assert told.said[1:] == [("assistant", WORDS)]
    view = (await tenant.ended(told.turn)).view
    assert (view.status, view.conversation_id, view.correlation_id) == (
        *("success", front.thread),
        f"agui/{begun.run_id}",
    )


async def test_a_thread_is_a_conversation_that_the_kernel_remembers(web: httpx.AsyncClient, tenant: Tenant) -> None:
    """Whatever of it the front end repeats: only the last message of the user is read."""
    await tenant.agent("chat")
    front = FrontEnd(web)
    await front.run("My name is Ada")
    del front.messages[:]
    told = await front.run("What is my name?")
    assert "before that: My name is Ada" in told.said[-1][1]


async def test_a_new_thread_begins_with_what_the_front_end_has(web: httpx.AsyncClient, tenant: Tenant) -> None:
    """Its texts, and what it says beside them; of a thread that is known nothing is read twice."""
    await tenant.agent("mirror")
    front = FrontEnd(web)
    front.messages += [
        {"id": "m0", "role": "system", "content": "Be brief."},
        {"id": "m1", "role": "user", "content": "My name is Ada"},
        {"id": "m2", "role": "assistant", "content": "Hello Ada"},
        {"id": "m3", "role": "reasoning", "content": "not said"},
    ]
    told = await front.run("What is it?", context=[{"description": "the page", "value": "settings"}])
    system, *heard = json.loads(told.said[-1][1])["messages"]
    assert heard == [["user", "My name is Ada"], ["assistant", "Hello Ada"], ["user", "What is it?"]]
    assert system[1].endswith("Be brief.\n\nthe page: settings")
    again = json.loads((await front.run("And yours?")).said[-1][1])["messages"]
    assert [text for _, text in again].count("Hello Ada") == 0
    assert again[-1] == ["user", "And yours?"]


async def test_calls_and_results_belong_to_their_steps(web: httpx.AsyncClient, tenant: Tenant) -> None:
    async with hand_of(tenant) as hand:
        front = FrontEnd(web)
        front.says(script(calling(("search", {"q": "tea"}), text="I look it up."), {"text": "It is tea."}))
        body = front.input()
        told = await front.run(runId=body["runId"], cut_after=9)
        [command] = await hand.heard()
        await hand.report(command.call, "leaves")
        told = await front.run(runId=body["runId"])
        assert told.kinds == [
            *("RUN_STARTED", "MESSAGES_SNAPSHOT", "STEP_STARTED"),
            *("TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_END"),
            *("TOOL_CALL_START", "TOOL_CALL_ARGS", "TOOL_CALL_END", "STEP_FINISHED", "TOOL_CALL_RESULT"),
            *("STEP_STARTED", "TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_END"),
            *("STEP_FINISHED", "RUN_FINISHED"),
        ]
        assert told.said[1:] == [("assistant", "I look it up."), ("tool", "leaves"), ("assistant", "It is tea.")]
        assert told.calls == [("search", '{"q": "tea"}')]
        assert await turns(tenant) == 1


async def test_text_that_is_void_is_taken_back(web: httpx.AsyncClient, tenant: Tenant) -> None:
    await tenant.agent("talks")
    front = FrontEnd(web)
    await front.run(script({"text": "first"}))
    told = await front.run(FALTERING)
    assert "MESSAGES_SNAPSHOT" in told.kinds
    assert [text for role, text in told.said if role == "assistant"] == ["first", "this holds"]
    assert told.outcome == "success"


async def test_the_same_run_again_is_the_same_turn_from_its_begin(web: httpx.AsyncClient, tenant: Tenant) -> None:
    """While it runs and afterwards; the messages of its client are right each time."""
    await tenant.agent("player")
    front = FrontEnd(web)
    front.says(LONG)
    run = "my run: 4711"
    for cut in (4, 12, None, None):
        told = await front.run(runId=run, cut_after=cut)
    assert told.said[1:] == [("assistant", WORDS)]
    assert await turns(tenant) == 1
    del front.messages[-1]
    front.says("something else")
    assert await front.refusal(runId=run) == (409, "correlation_conflict", None)


async def test_reasoning_is_told_once(web: httpx.AsyncClient, tenant: Tenant) -> None:
    await tenant.agent("player")
    front = FrontEnd(web)
    front.says(script({"reasoning": "let me think", "text": "done", "chunks": 8, "delay_seconds": 0.2}))
    run = front.input()["runId"]
    told = await front.run(runId=run, cut_after=6)
    told = await front.run(runId=run)
    assert told.outcome == "success"
    assert sorted(told.said[1:]) == [("assistant", "done"), ("reasoning", "let me think")]


async def test_a_turn_that_fails_is_an_error_and_one_that_is_stopped_is_cancelled(
    web: httpx.AsyncClient, tenant: Tenant
) -> None:
    await tenant.agent("player")
    failed = await FrontEnd(web).run(script({"error": {"code": "bad_request", "retryable": False}}))
    assert isinstance(failed.last, RunErrorEvent)
    view = (await tenant.ended(failed.turn)).view
    assert (failed.last.code, failed.last.message) == (view.error_code, view.error)
    front = FrontEnd(web)
    front.says(SLOW)
    run = front.input()["runId"]
    begun = await front.run(runId=run, cut_after=4)
    await web.post(f"/v1/turns/{begun.turn}/stop", json={})
    stopped = await front.run(runId=run)
    assert stopped.outcome == "cancelled"


async def test_who_goes_away_stops_nothing_unless_they_said_so(web: httpx.AsyncClient, tenant: Tenant) -> None:
    for number, more in enumerate(({"forwardedProps": {"on_disconnect": "cancel"}}, {})):
        agent = await tenant.agent("player", AgentId(f"agent-{number}"))
        front = FrontEnd(web, agent)
        begun = await front.run(SLOW if more else LONG, cut_after=4, **more)
        assert (await tenant.ended(begun.turn)).view.status == ("canceled" if more else "success")


async def test_profiles_run_by_instances_of_their_own_for_each_thread(web: httpx.AsyncClient, tenant: Tenant) -> None:
    await tenant.profile("clerks", "chat", instances=True)
    one, two = FrontEnd(web, "profile:clerks"), FrontEnd(web, "profile:clerks")
    turns = [(await front.run("hello")).turn for front in (one, two, one)]
    agents = [(await tenant.ended(turn)).view.agent_id for turn in turns]
    assert agents[0] == agents[2] != agents[1]


async def test_a_run_may_name_the_run_before_and_no_other(web: httpx.AsyncClient, tenant: Tenant) -> None:
    await tenant.agent("chat")
    front = FrontEnd(web)
    first = await front.run("one", runId="r1")
    assert isinstance(first.events[0], RunStartedEvent)
    assert (await front.run("two", runId="r2", parentRunId="r1")).outcome == "success"
    assert (await front.run(runId="r2", parentRunId="r1")).outcome == "success"  # the same run again
    front.says("three")
    for earlier in ("r1", "r3", "nobody-ran-it"):
        assert await front.refusal(parentRunId=earlier) == (400, "unsupported_parameter", "parentRunId")
    assert (await front.run(runId="r3", parentRunId="r2")).outcome == "success"
    assert await turns(tenant) == 3


async def test_what_is_not_supported_is_refused_by_name(web: httpx.AsyncClient, tenant: Tenant) -> None:
    await tenant.agent("player")
    image = {"type": "image", "source": {"type": "url", "value": "https://example.com/a.png"}}
    cases: list[tuple[dict[str, Any], str]] = [
        ({"state": {"open": True}}, "state"),
        ({"parentRunId": "nobody-ran-it"}, "parentRunId"),
        ({"messages": [{"id": "1", "role": "user", "content": [image]}]}, "messages.0.content"),
    ]
    front = FrontEnd(web)
    front.says("hello")
    for fields, param in cases:
        assert await front.refusal(**fields) == (400, "unsupported_parameter", param)
    bad: list[tuple[dict[str, Any], str]] = [
        ({"threadId": "a\0b"}, "threadId"),
        ({"threadId": "x" * 513}, "threadId"),
        ({"runId": ""}, "runId"),
        ({"messages": []}, "messages"),
        ({"messages": [{"id": "1", "role": "user", "content": ""}]}, "messages.0.content"),
        ({"messages": [{"id": "1", "role": "stranger", "content": "x"}]}, "messages.0"),
        ({"messages": None}, "messages"),
        ({"forwardedProps": {"on_disconnect": "explode"}}, "forwardedProps.on_disconnect"),
    ]
    for fields, param in bad:
        assert await front.refusal(**fields) == (400, "bad_request", param)
    assert await FrontEnd(web, "nobody").refusal(messages=front.messages) == (404, "unknown_agent", None)
    assert await turns(tenant) == 0


async def test_what_a_front_end_brings_besides_passes(web: httpx.AsyncClient, tenant: Tenant) -> None:
    await tenant.agent("chat")
    front = FrontEnd(web, thread="thread:19:abc@thread.tacv2/1")
    empty: dict[str, Any] = {"state": {"theme": None, "open": []}, "forwardedProps": {"theme": "dark", "config": {}}}
    first = await front.run("one", tools=[{"name": "draw", "description": "Draws."}], **empty)
    second = await front.run("two")
    assert "before that: one" in second.said[-1][1]
    assert isinstance(first.events[0], RunStartedEvent)
    assert first.events[0].thread_id == front.thread


async def test_a_token_sees_its_channel_and_does_what_its_role_may(
    url: str, web: httpx.AsyncClient, tenant: Tenant
) -> None:
    await tenant.agent("chat")
    front = FrontEnd(web)
    front.says("hello")
    run = front.input()["runId"]
    whole = await front.run(runId=run)
    async with client(url, await token_of(tenant.stack, tenant.project, channel="u_ada")) as other:
        own = FrontEnd(other, ALICE, front.thread, list(front.messages[:1]))
        told = await own.run(runId=run)
        assert told.turn != whole.turn
        view = (await tenant.ended(told.turn)).view
        assert (view.channel_id, view.correlation_id) == ("u_ada", f"u_ada/agui/{run}")
    for role in (GatewayRole.VIEWER, GatewayRole.APPROVER):
        async with client(url, await token_of(tenant.stack, tenant.project, role)) as other:
            assert await FrontEnd(other, messages=front.messages).refusal() == (403, "forbidden", None)
    for token in (None, "tsk_0_nothing"):
        async with client(url, token) as other:
            assert (await FrontEnd(other, messages=front.messages).refusal())[:2] == (401, "unauthenticated")


@pytest.mark.long
async def test_many_clients_of_one_run_hear_one_turn(web: httpx.AsyncClient, tenant: Tenant) -> None:
    await tenant.agent("player")
    front = FrontEnd(web)
    front.says(LONG)
    run = front.input()["runId"]
    fronts = [FrontEnd(web, ALICE, front.thread, list(front.messages)) for _ in range(8)]
    told = await asyncio.gather(*(f.run(runId=run) for f in fronts))
    assert {each.said[1] for each in told} == {("assistant", WORDS)}
    assert len({each.turn for each in told}) == 1
    assert await turns(tenant) == 1
