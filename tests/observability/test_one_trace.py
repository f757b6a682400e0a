"""One trace of everything: an HTTP caller, the turn, its children, their tools, and the agents that a tool asks.

Worker, bridge and gateway are processes of their own; the caller and the tools record from here.
"""

import json
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from lab.support.collector import Collector, Seen
from tests.sdk.tools.stack import Stack as Tools
from tests.support.conditions import until
from tests.support.databases import Databases
from tests.support.delegation import ALL, CHIEF, fork, steps, task
from tests.support.gateway import client, gateway_process, token_of
from tests.support.processes.hatchery import shared_hatchery
from tests.support.processes.process import processes_of
from tests.support.processes.stack import QUICK, Stack, open_stack
from tests.support.tenants import Tenant, new_tenant
from tests.support.tools import calling
from turnstile import ToolCall, ToolService
from turnstile.embedded import Endpoints
from turnstile.ledger.roster import add_agent, put_tool
from turnstile.runtime.telemetry import Span, Telemetry
from turnstile.schema.wire import headers
from turnstile.telemetry.tracing import otlp_tracer

MARKER = "content-marker-8812"
SECRET = "secret-marker-8813"


@pytest.fixture(scope="module", params=["off", pytest.param("captured", marks=pytest.mark.long)])
def content(request: pytest.FixtureRequest) -> bool:
    """Whether spans hold what was said."""
    return request.param == "captured"


@pytest.fixture(scope="module")
async def stack(
    servers: Endpoints,
    databases: Databases,
    collector: Collector,
    content: bool,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[Stack]:
    """Worker and bridge as processes, which tell the collector."""
    name = await databases.create()
    endpoints = servers.model_copy(update={"database_url": databases.url(name)})
    told: dict[str, Any] = {"otlp_endpoint": collector.url, "capture_content": content}
    config = {**QUICK, "observability": told}
    async with (
        open_stack(endpoints, tmp_path_factory.mktemp("one-trace"), config) as opened,
        processes_of(opened.config, await shared_hatchery.get()) as both,
    ):
        both.worker.env = {"SOME_API_KEY": SECRET}
        await both.ensure()
        yield opened
    await databases.drop(name)


def research(tenant: Tenant, telemetry: Telemetry) -> ToolService:
    """A tool that looks, and one that asks another agent."""
    service = ToolService(tenant.project, telemetry=telemetry)

    @service.tool(target="books", suffix="look")
    async def look(text: str) -> str:
        """Look at a text."""
        return f"{text} {MARKER}"

    @service.tool(target="books", suffix="consult", timeout_seconds=30)
    async def consult(call: ToolCall, instruction: str) -> str:
        """Ask a clerk."""
        return str((await call.delegate(instruction, profile="clerk")).value)

    del look, consult  # the service has them
    return service


@pytest.fixture
async def tenant(stack: Stack, collector: Collector, content: bool) -> AsyncIterator[Tenant]:
    """A chief that forks and has tools, and a profile of clerks that look."""
    made = new_tenant(stack)
    async with otlp_tracer(collector.url, "tools", content=content) as tracer:
        service = research(made, Telemetry(tracer=tracer))
        for definition in service.definitions():
            await put_tool(made.pool, made.project, definition)
        await made.profile("clerk", "player", allowed_tools=["look"])
        allowed = ["look", "consult", "fork_join"]
        await made.profile("Chief", "player", delegation_policy=ALL, allowed_tools=allowed)
        await add_agent(made.pool, made.project, CHIEF, "Chief")
        async with Tools(stack.endpoints, stack.settings, stack.pool, stack.conn).serving(service):
            yield made


@pytest.fixture
async def web(stack: Stack, tenant: Tenant) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a gateway that is a process."""
    async with gateway_process(stack) as (_, url), client(url, await token_of(stack, tenant.project)) as made:
        yield made


def looking() -> str:
    """What a clerk does: it looks once, and answers."""
    return steps(calling(("look", {"text": f"{MARKER} {SECRET}"})), {"text": f"seen {MARKER}"})


async def trace_of(collector: Collector, trace: str, turns: int) -> list[Seen]:
    """The trace once all its turns have ended and every span's parent is there."""

    async def whole() -> list[Seen] | None:
        spans = collector.of_trace(headers.trace_id(trace))
        known = {span.span_id for span in spans}
        finished = sum(span.name == "finish" for span in spans)
        orphans = [span for span in spans if span.parent and span.parent not in known]
        return spans if finished == turns and not orphans else None

    return await until(whole, 30, f"{turns} turns, and no orphan")


async def called(collector: Collector, web: httpx.AsyncClient, path: str, body: Any) -> tuple[str, httpx.Response]:
    """A request under a span of the caller's own."""
    trace, began = headers.new_traceparent(), time.time_ns()
    answer = await web.post(path, json=body, headers={"traceparent": trace, "prefer": "wait=40"})
    async with otlp_tracer(collector.url, "caller") as tracer:
        tracer.record(Span(f"POST {path}", trace, "", began, time.time_ns(), kind="client"))
    return trace, answer


def check(spans: list[Seen], conversation: str | None) -> None:
    """One root, everything below it, and the conversation on all that is the kernel's or a tool's."""
    assert not [span for span in spans if sum(s.span_id == span.span_id for s in spans) > 1]
    [root] = [span for span in spans if not span.parent]
    assert root.service == "caller"
    of_turns = (span for span in spans if span is not root and span.name != "box_make")  # which is before any turn
    found = {span.attributes.get("gen_ai.conversation.id") for span in of_turns}
    assert len(found) == 1
    assert None not in found
    assert conversation is None or found == {conversation}
    assert {span.service for span in spans} == {"caller", "turnstile-worker", "turnstile-bridge", "tools"}
    for span in spans:
        match span.attributes.get("gen_ai.operation.name"):
            case "invoke_agent":
                assert span.attributes["gen_ai.agent.id"]
                assert span.name == f"invoke_agent {span.attributes['gen_ai.agent.name']}"
            case "chat":
                assert (span.name, span.kind) == ("chat player", "client")
                assert span.attributes["gen_ai.provider.name"] == "scripted"
                assert span.attributes["gen_ai.response.finish_reasons"] in (["stop"], ["tool_calls"])
            case "execute_tool":
                assert (span.name, span.kind) == (f"execute_tool {span.attributes['gen_ai.tool.name']}", "internal")
                assert span.started < span.ended
            case _:
                pass


def below(spans: list[Seen], above: Seen, name: str) -> list[Seen]:
    """The spans of this name in the tree under a span."""
    direct = [span for span in spans if span.parent == above.span_id]
    return [each for span in direct for each in ([span] if span.name == name else below(spans, span, name))]


async def test_a_tree_that_is_asked_for_over_http_is_one_trace(
    tenant: Tenant, web: httpx.AsyncClient, collector: Collector, content: bool
) -> None:
    clerks = fork([task("clerk", looking(), label=f"n{n}") for n in range(3)])
    told = steps(
        calling(("look", {"text": MARKER}), ("consult", {"instruction": looking()})), clerks, {"text": f"all {MARKER}"}
    )
    body = {"agent_id": CHIEF, "instruction": told, "conversation_id": "desk-7"}
    trace, answer = await called(collector, web, "/v1/turns", body)
    assert (answer.status_code, answer.json()["status"]) == (201, "success"), answer.text
    spans = await trace_of(collector, trace, 5)
    check(spans, "desk-7")
    [chief] = [span for span in spans if span.name == "invoke_agent Chief"]
    assert chief.attributes["gen_ai.agent.id"] == CHIEF
    forked, consulted = below(spans, chief, "execute_tool fork_join"), below(spans, chief, "execute_tool consult")
    assert [len(below(spans, each, "invoke_agent clerk")) for each in (*forked, *consulted)] == [3, 1]
    looks = below(spans, chief, "execute_tool look")
    assert len(looks) == 5
    assert all(below(spans, look, "run tool") for look in (*looks, *consulted))
    said = [body for body in collector.bodies if MARKER.encode() in body]
    assert bool(said) is content
    assert not any(SECRET.encode() in body for body in collector.bodies) or not content
    if content:
        captured(spans)


def captured(spans: list[Seen]) -> None:
    """Messages, arguments and results are there, in the conventions' form."""
    chats = [span for span in spans if span.name == "chat player"]
    asked: Any = [json.loads(str(span.attributes["gen_ai.input.messages"])) for span in chats]
    assert all(message["role"] and message["parts"] for messages in asked for message in messages)
    kinds = {part["type"] for messages in asked for message in messages for part in message["parts"]}
    assert kinds == {"text", "tool_call", "tool_call_response"}
    answers: Any = [json.loads(str(span.attributes["gen_ai.output.messages"])) for span in chats]
    assert {message["finish_reason"] for [message] in answers} == {"stop", "tool_call"}
    looks = [span for span in spans if span.name == "execute_tool look"]
    assert len(looks) == 5
    for look in looks:
        assert MARKER in json.loads(str(look.attributes["gen_ai.tool.call.arguments"]))["text"]
        assert MARKER in json.loads(str(look.attributes["gen_ai.tool.call.result"]))


async def test_a_chat_completion_is_one_trace(tenant: Tenant, web: httpx.AsyncClient, collector: Collector) -> None:
    said = [{"role": "user", "content": looking()}]
    body = {"model": CHIEF, "messages": said, "user": "u"}
    trace, answer = await called(collector, web, "/openai/v1/chat/completions", body)
    assert answer.status_code == 200, answer.text
    spans = await trace_of(collector, trace, 1)
    check(spans, None)
    assert [span.name for span in spans if "execute_tool" in span.name] == ["execute_tool look"]
