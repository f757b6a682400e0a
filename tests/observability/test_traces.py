"""One trace for a turn, from the caller's span through bridge, worker and tool, and nothing twice in it."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from temporalio.client import Client
from temporalio.testing import ActivityEnvironment

from lab.support.collector import Collector, Seen
from tests.observability.tools import a_tool
from tests.sdk.tools.stack import CHANNEL, PROJECT, Stack, fresh
from tests.support.conditions import until
from tests.support.ledger.agents import ALICE, add_agents, lease
from tests.workflows.recordings import replay
from turnstile.activities.models import ScriptedModel, load_scripts
from turnstile.activities.prompt.model_attempts import StepLimits
from turnstile.activities.turn.steps import StepActivities
from turnstile.ledger.pool import Pool
from turnstile.ledger.turns.cards import BoxCache
from turnstile.ledger.turns.views import describe_turn
from turnstile.runtime.ports import ModelEvent, ModelRequest
from turnstile.runtime.telemetry import Span, Telemetry
from turnstile.schema.ids import AgentId, AgentTurnId
from turnstile.schema.turns import RunStepInput
from turnstile.schema.wire import headers, subjects
from turnstile.schema.wire.events import Message
from turnstile.sdk.tools.service import ToolCall, ToolService, Used
from turnstile.telemetry.tracing import otlp_tracer
from turnstile.temporal.plugin import turnstile_plugin
from turnstile.workflows.options import turn_workflow_id

MARKER = "content-marker-7731"


async def ask(stack: Stack, agent: AgentId, trace: str, *calls: tuple[str, dict[str, Any]]) -> tuple[str, Any]:
    """A turn under this trace; its id and its `task` event."""
    async with stack.client.wait_task(agent) as waiter:
        instruction = json.dumps([{"name": name, "arguments": arguments} for name, arguments in calls])
        asked = {"agent_id": agent, "instruction": instruction}
        reply = await stack.client.request("enqueue", cast("Any", asked), headers={headers.TRACEPARENT: trace})
        assert reply["status"] == "accepted", reply
        turn = str(reply["agent_turn_id"])
        return turn, await waiter.wait(cast("Any", turn), 20)


async def spans_of(collector: Collector, trace: str, count: int) -> list[Seen]:
    """The trace, once it has so many spans and no more come."""

    async def all_there() -> list[Seen] | None:
        found = collector.of_trace(headers.trace_id(trace))
        return found if len(found) >= count else None

    await until(all_there, 25, f"{count} spans")
    await asyncio.sleep(0.3)  # batches later nothing has been added
    return collector.of_trace(headers.trace_id(trace))


def tree(spans: list[Seen], parent: str) -> list[Any]:
    """Names below a span, with what is below them."""
    return [[f"{span.service}: {span.name}", *tree(spans, span.span_id)] for span in spans if span.parent == parent]


async def test_a_turn_with_a_tool_is_one_trace(stack: Stack, collector: Collector) -> None:
    name = fresh("look")
    under: list[str | None] = []
    async with otlp_tracer(collector.url, "tools") as tracer:
        service = ToolService("demo", telemetry=Telemetry(tracer=tracer))

        @service.tool(target=name, suffix="run", name=name)
        async def look(call: ToolCall, text: str) -> str:
            """Look at a text.

            text: The text.
            """
            under.append(call.traceparent)
            await call.step("eyes", lambda: Used(1, model="openai/eyes", tokens=7, written=2))
            return f"{text} seen"

        agent = await stack.register(*service.definitions())
        trace = headers.new_traceparent()
        async with stack.serving(service):
            turn, event = await ask(stack, agent, trace, (name, {"text": MARKER}))
    spans = await spans_of(collector, trace, 17)
    assert event.status == "success"
    assert tree(spans, headers.span_id(trace)) == [
        [
            "turnstile-bridge: enqueue",
            [
                f"turnstile-worker: invoke_agent {agent}",
                [
                    "turnstile-worker: step",
                    ["turnstile-worker: chat caller"],
                    [
                        f"turnstile-worker: execute_tool {name}",
                        [
                            "tools: tool",
                            ["tools: describe call", ["turnstile-bridge: describe"]],
                            [
                                "tools: run tool",
                                ["tools: step"],
                                ["turnstile-bridge: call.step"],
                                ["turnstile-bridge: call.step"],
                            ],
                            ["tools: report call", ["turnstile-bridge: report"]],
                        ],
                    ],
                ],
                ["turnstile-worker: step", ["turnstile-worker: chat caller"]],
                ["turnstile-worker: finish"],
            ],
        ]
    ]
    assert len({span.span_id for span in spans}) == len(spans) == 17
    step = next(span for span in spans if (span.service, span.name) == ("tools", "step")).attributes
    assert (step["turnstile.step_key"], step["gen_ai.request.model"], step["gen_ai.usage.input_tokens"]) == (
        "eyes",
        "eyes",
        5,
    )
    assert [headers.span_id(place or "") for place in under] == [s.span_id for s in spans if s.name == "run tool"]
    assert not any(span.failed for span in spans)
    assert {span.attributes["gen_ai.conversation.id"] for span in spans} == {event.output_box_id}
    whole = next(span for span in spans if span.name.startswith("invoke_agent"))
    assert whole.attributes["turnstile.agent_turn_id"] == turn
    assert whole.attributes["turnstile.e2e_ms"] == event.stats["e2e_ms"]
    assert not any(MARKER.encode() in body for body in collector.bodies)
    assert await replayed(stack, turn) == {}
    await asyncio.sleep(0.3)
    assert len(collector.of_trace(headers.trace_id(trace))) == 17


async def test_a_call_that_failed_or_was_not_waited_for_says_so(stack: Stack, collector: Collector) -> None:
    name, never = fresh("unlucky"), fresh("never")
    service, _ = a_tool(name)
    agent = await stack.register(*service.definitions())
    trace = headers.new_traceparent()
    async with stack.serving(service):
        _, event = await ask(stack, agent, trace, (name, {"text": "fail"}))
    assert event.status == "success"
    called = [each for each in await spans_of(collector, trace, 8) if each.name == f"execute_tool {name}"]
    assert [(each.failed, each.attributes["error.type"]) for each in called] == [(True, "unlucky")]
    service, _ = a_tool(never)
    agent, trace = await stack.register(*service.definitions()), headers.new_traceparent()
    async with stack.client.wait_task(agent) as waiter:
        told = json.dumps([{"name": never, "arguments": {"text": "x"}}])
        asked: Any = {"agent_id": agent, "instruction": told}
        reply = await stack.client.request("enqueue", asked, headers={headers.TRACEPARENT: trace})
        turn: Any = reply["agent_turn_id"]

        async def asleep() -> bool:
            view = await stack.pool.run(lambda conn: describe_turn(conn, PROJECT, turn))
            return view is not None and view.status == "suspended"

        await until(asleep, 25, "the turn waits for its call")
        await stack.client.request("stop", {"agent_turn_id": turn})
        assert (await waiter.wait(turn, 20)).status == "canceled"
    spans = await spans_of(collector, trace, 6)
    [lost] = [span for span in spans if span.name == f"execute_tool {never}"]
    assert lost.attributes["error.type"] == "canceled"
    assert lost.parent in {span.span_id for span in spans if span.name == "step"}
    [whole] = [span for span in spans if span.name == "invoke_agent"]  # nobody who stops a turn knows its profile
    assert (whole.attributes["gen_ai.agent.id"], whole.attributes["error.type"]) == (agent, "stopped")


async def replayed(stack: Stack, turn: str) -> dict[str, str]:
    """The failures of the turn's workflow, replayed."""
    told = stack.endpoints
    client = await Client.connect(
        told.temporal_address, namespace=told.temporal_namespace, plugins=[turnstile_plugin()]
    )
    handle = client.get_workflow_handle(turn_workflow_id(AgentTurnId(turn)))
    await handle.result()
    return await replay([await handle.fetch_history()])


@dataclass
class Heard:
    """A tracer that keeps what it hears."""

    enabled: bool = True
    clear: Callable[[str], str] | None = None
    spans: list[Span] = field(default_factory=list[Span])

    def record(self, span: Span) -> None:
        """Keep it."""
        self.spans.append(span)

    def names(self) -> list[str]:
        """Of the spans, sorted; without what they are about."""
        return sorted(span.name.split()[0] for span in self.spans)


class NoReply:
    """A publisher that reaches nobody."""

    async def publish(self, messages: Sequence[Message]) -> None:
        """Nothing."""

    async def emit(self, message: Message) -> None:
        """Nothing."""


class WorkerLost(Exception):
    """Stands for a worker that goes away."""


class DiesOnce(ScriptedModel):
    """Its first stream ends the worker's activity after the answer."""

    asked = 0

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """As the script says, if at all."""
        self.asked += 1
        if self.asked == 1:
            raise WorkerLost
        async for event in super().stream(request):
            yield event


async def test_a_step_that_is_run_again_is_one_span(pool: Pool) -> None:
    await add_agents(pool, ALICE)
    trace = headers.new_traceparent()
    turn = await lease(pool, ALICE, incoming={headers.TRACEPARENT: trace})
    heard, model = Heard(), DiesOnce(load_scripts([]))
    steps = StepActivities(pool, NoReply(), model, StepLimits(), BoxCache(1_000_000), telemetry=Telemetry(tracer=heard))

    async def run() -> object:
        return await ActivityEnvironment().run(steps.run_step, RunStepInput(turn=turn, step=0))

    with pytest.raises(WorkerLost):
        await run()  # a worker that is lost
    assert heard.names() == ["chat"]
    first = await run()
    assert heard.names() == ["chat", "chat", "finish", "invoke_agent", "step"]
    assert await run() == first == await run()  # and answers that were lost
    assert heard.names() == ["chat", "chat", "finish", "invoke_agent", "step"]
    by_name = {span.name.split()[0]: span for span in heard.spans}
    place = headers.span_id(by_name["step"].traceparent)
    assert {span.parent for span in heard.spans if span.kind == "client"} == {place}
    assert by_name["invoke_agent"].parent == headers.span_id(trace)
    assert len({span.traceparent for span in heard.spans}) == 5


async def test_an_unsampled_trace_stays_so(stack: Stack, collector: Collector) -> None:
    agent = await stack.register()
    trace = headers.new_traceparent()[:-2] + "00"
    await ask(stack, agent, trace)
    await asyncio.sleep(0.5)
    assert collector.of_trace(headers.trace_id(trace)) == []


async def test_a_caller_without_a_trace_gets_one(stack: Stack, collector: Collector) -> None:
    agent = await stack.register()
    subject = subjects.bridge_request(PROJECT, CHANNEL, "enqueue")
    asked = json.dumps({"agent_id": agent, "instruction": "[]"}).encode()
    reply = json.loads((await stack.conn.request(subject, asked, timeout=25)).data)
    trace = f"00-{reply['trace_id']}-{'1' * 16}-01"
    spans = await spans_of(collector, trace, 5)
    [root] = tree(spans, "")
    assert root[0] == "turnstile-bridge: enqueue"
    assert sum(span.name.startswith("invoke_agent") for span in spans) == 1
