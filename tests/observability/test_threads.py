"""Conversations as they are told: one trace from `send` through handlers and the turns of agents, and their figures."""

from typing import Any, cast

from lab.support.collector import Collector, Seen
from tests.observability.test_metrics import Samples, scrape, value
from tests.observability.test_traces import spans_of, tree
from tests.sdk.tools.stack import PROJECT, TARGET, Stack
from tests.support.conditions import until
from tests.support.pump.organism import Order
from tests.support.pump.troupe import Job, play, verdict
from turnstile.ledger.roster import add_agent, put_profile
from turnstile.schema.base import JsonObject
from turnstile.schema.ids import AgentId
from turnstile.schema.profiles import LlmConfig, Profile
from turnstile.schema.pump.payloads import Payload
from turnstile.schema.wire import headers
from turnstile.settings.model import ObservabilitySettings

MARKER = "content-marker-5519"
WORKER, BRIDGE = "turnstile-worker", "turnstile-bridge"


async def send(stack: Stack, to: str, payload: Payload, trace: str, **fields: Any) -> JsonObject:
    """The reply to a `send` under this trace."""
    asked = {"to": to, "payload": payload.to_xml().decode(), **fields}
    reply = await stack.client.request("send", cast("Any", asked), headers={headers.TRACEPARENT: trace})
    assert reply["status"] == "accepted", reply
    return reply


def named(spans: list[Seen], name: str) -> list[Seen]:
    """The spans of a name, in the order of their begin."""
    return [span for span in spans if span.name == name]


def shown(spans: list[Seen], trace: str) -> list[Any]:
    """The whole trace below the caller's span."""
    return tree(spans, headers.span_id(trace))


async def test_a_conversation_is_one_trace(stack: Stack, collector: Collector) -> None:
    made = Profile(name="bob", worker_target=TARGET, llm_config=LlmConfig(model="scripted/actor"), allowed_tools=[])
    await put_profile(stack.pool, PROJECT, made)
    await add_agent(stack.pool, PROJECT, AgentId("bob"), "bob")
    trace = headers.new_traceparent()
    sent = await send(stack, "broker", Job(to="bob", play=play(verdict(MARKER))), trace)
    spans = await spans_of(collector, trace, 13)
    handled = [f"{WORKER}: message", [f"{WORKER}: handler"]]
    turn = [f"{WORKER}: invoke_agent bob", [f"{WORKER}: step", [f"{WORKER}: chat actor"]], [f"{WORKER}: finish"]]
    answer = [f"{WORKER}: message", [f"{WORKER}: enqueue", turn]]
    request = [f"{WORKER}: invoke_workflow broker", handled, answer, handled, [f"{WORKER}: reply"]]
    assert shown(spans, trace) == [[f"{BRIDGE}: send", request]]
    assert len({span.span_id for span in spans}) == len(spans) == 13
    assert not any(span.failed for span in spans)
    messages = named(spans, "message")
    assert [
        (message.attributes["turnstile.listener"], message.attributes["turnstile.effect"]) for message in messages
    ] == [
        ("broker", "forward"),
        ("bob", "respond"),
        ("broker", "respond"),
    ]
    assert {span.attributes["gen_ai.conversation.id"] for span in spans} == {str(sent["thread_id"])}
    assert {message.attributes["turnstile.thread_id"] for message in messages} == {str(sent["thread_id"])}
    assert named(spans, "send")[0].attributes["turnstile.message_id"] == sent["message_id"]
    [asked], [below] = named(spans, "enqueue"), named(spans, "invoke_agent bob")
    assert asked.attributes["turnstile.agent_turn_id"] == below.attributes["turnstile.agent_turn_id"]
    [whole], [last] = named(spans, "invoke_workflow broker"), named(spans, "reply")
    assert whole.started <= messages[0].started <= messages[-1].ended <= last.ended
    assert whole.ended == last.started
    assert not any(MARKER.encode() in body for body in collector.bodies)


async def test_what_joins_a_thread_keeps_its_own_trace(stack: Stack, collector: Collector) -> None:
    first, second = headers.new_traceparent(), headers.new_traceparent()
    sent = await send(stack, "worker", Order(do="forward", what="shouter"), first)
    assert len(named(await spans_of(collector, first, 9), "message")) == 3
    await send(stack, "worker", Order(do="crash", what=MARKER), second, thread_id=sent["thread_id"])
    spans = await spans_of(collector, second, 5)
    message = [f"{WORKER}: message", [f"{WORKER}: handler"]]
    assert shown(spans, second) == [[f"{BRIDGE}: send", [f"{WORKER}: invoke_workflow", message, [f"{WORKER}: reply"]]]]
    assert {span.name: span.attributes.get("error.type") for span in spans if span.failed} == {
        "handler": "failed",
        "message": "undelivered",
        "invoke_workflow": "undelivered",
    }
    assert len(collector.of_trace(headers.trace_id(first))) == 9
    assert not any(MARKER.encode() in body for body in collector.bodies)


async def test_conversations_are_counted(stack: Stack, told: dict[str, ObservabilitySettings]) -> None:
    async def figures() -> Samples:
        return (await scrape(told["worker"].metrics_port))[1]

    before, asked = await figures(), headers.new_traceparent()
    labels: dict[str, dict[str, str]] = {
        "forwarded": {"listener": "worker", "effect": "forward", "by": "listener"},
        "failed": {"listener": "worker", "effect": "respond", "by": "pump"},
        "unknown": {"listener": "unknown", "effect": "respond", "by": "pump"},
    }
    await send(stack, "worker", Order(do="forward", what="shouter"), asked)
    await send(stack, "worker", Order(do="crash", what=MARKER), asked)
    await send(stack, "nosuch", Order(do="tell"), asked)

    async def answered() -> Samples | None:
        now = await figures()
        new = sum(
            value(now, "thread_replies_total", kind="reply", reason=reason)
            - value(before, "thread_replies_total", kind="reply", reason=reason)
            for reason in ("responded", "undelivered")
        )
        return now if new >= 3 else None

    after = await until(answered, 25, "three answers")
    for case, each in labels.items():
        known = value(before, "thread_messages_total", **each)
        assert value(after, "thread_messages_total", **each) == known + 1, case
    for outcome, runs in (("returned", 2), ("failed", 1)):
        run = {"listener": "worker", "outcome": outcome}
        new = value(after, "handler_seconds_count", **run) - value(before, "handler_seconds_count", **run)
        assert new == runs, outcome
    for histogram in ("thread_message_delay_seconds", "thread_request_seconds"):
        of = {"kind": "reply"} if "request" in histogram else {"listener": "shouter"}
        assert value(after, f"{histogram}_count", **of) > value(before, f"{histogram}_count", **of), histogram
    text, bridge = await scrape(told["bridge"].metrics_port)
    assert value(bridge, "verbs_total", verb="send", status="accepted") >= 3
    assert "turnstile_threads_open" in text
    assert "nosuch" not in text
