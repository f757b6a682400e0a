"""Several messages of one thread in flight, what a response ends, the limits, and a thread too long for one history."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from temporalio import workflow

from tests.support.conditions import until
from tests.support.processes.stack import QUICK, Config, Stack
from tests.support.pump.organism import Errand, Order, Shout, Task
from tests.support.pump.pump import Caller, assert_threads, calling_in, pump_config
from turnstile.schema.pump.primitives import UNDELIVERABLE
from turnstile.schema.wire.inbox import SendReply
from turnstile.workflows.message_thread import MessageThread

SLOTS = 4
CONFIG: Config = {**QUICK, "worker": {**QUICK["worker"], "max_concurrency": SLOTS}}
# A stack with little room: a few handlers at once, and threads that are soon full.
pytestmark = pytest.mark.stack(pump_config(CONFIG, max_hops=30, max_depth=4, max_messages=40, max_open=6))


@pytest.fixture
async def caller(here: Stack) -> AsyncIterator[Caller]:
    """A client in a project of its own; when the test ends, what protocol §9 says holds."""
    async with calling_in(here) as caller:
        yield caller
        async with here.pool.connection() as conn:
            await assert_threads(conn)
        assert sorted(await caller.stored()) == sorted(caller.events)


async def begun(gate: Path) -> None:
    """Returns when a handler waits for this file."""

    async def waits() -> bool:
        return gate.with_suffix(".begun").exists()

    await until(waits, 25, f"a handler waits for {gate.name}")


async def at_gate(caller: Caller, gate: Path, **fields: object) -> SendReply:
    """A message to `clerk`, whose handler waits for this file."""
    sent = await caller.send("clerk", Errand(do="gate", what=str(gate)), **fields)
    await begun(gate)
    return sent


async def segment_of(caller: Caller, sent: SendReply) -> str:
    """Where a message from outside went."""
    return next(message.segment_id for message in await caller.messages(sent) if message.message_id == sent.message_id)


async def test_messages_of_one_thread_are_handled_at_once_and_each_is_answered(caller: Caller, tmp_path: Path) -> None:
    held = await at_gate(caller, tmp_path / "held")
    thread = held.thread_id
    others = [
        await caller.send("shouter", Shout(text="one"), thread_id=thread),
        await caller.send("worker", Order(do="iterate", what="2"), thread_id=thread),
        await caller.send("manager", Task(do="ask", what="clerk/say/x"), thread_id=thread),
        await caller.send("nobody", Shout(text="two"), thread_id=thread),
    ]
    heard = [await caller.heard(each) for each in others]
    assert [each.reason for each in heard] == ["responded", "responded", "responded", "undelivered"]
    assert str(held.message_id) not in caller.events
    (tmp_path / "held").touch()
    assert (await caller.heard(held)).said == "held"


async def test_a_message_joins_the_live_segment_of_its_listener(caller: Caller, tmp_path: Path) -> None:
    first = await at_gate(caller, tmp_path / "a")
    joined = await caller.send("clerk", Errand(do="tell"), thread_id=first.thread_id)
    told = json.loads((await caller.heard(joined)).said)
    assert told["thread_id"] == await segment_of(caller, first) == await segment_of(caller, joined)
    pruned = await caller.heard(first)  # by the response to the other, which ended their segment
    assert (pruned.kind, pruned.reason, pruned.payload) == ("ended", "pruned", None)
    again = await caller.send("clerk", Errand(do="tell"), thread_id=first.thread_id)
    assert json.loads((await caller.heard(again)).said)["thread_id"] != told["thread_id"]


async def test_a_response_ends_what_works_below_it(caller: Caller, tmp_path: Path) -> None:
    above, below = tmp_path / "above", tmp_path / "below"
    first = await at_gate(caller, above)
    second = await caller.send("clerk", Errand(do="ask", what=f"manager/gate/{below}"), thread_id=first.thread_id)
    await begun(below)
    above.touch()
    assert (await caller.heard(first)).said == "above"
    ended = await caller.heard(second)
    assert (ended.kind, ended.reason, ended.sender, ended.payload) == ("ended", "pruned", None, None)
    below.touch()
    await asyncio.sleep(0.3)  # time for what comes late, were it heard
    lines = {message.chain.rpartition(".")[2]: message for message in await caller.messages(first)}
    assert (lines["manager"].status, lines["manager"].effect) == ("canceled", None)
    assert {message.status for message in await caller.messages(first)} == {"handled", "canceled"}
    assert len(await caller.messages(first)) == 3
    flow = caller.tenant.stack.temporal.get_workflow_handle(f"thread-{first.thread_id}")
    await asyncio.wait_for(flow.result(), 25)


async def test_requests_that_nobody_had_begun_move_to_a_fresh_segment(caller: Caller, tmp_path: Path) -> None:
    held = [await at_gate(caller, tmp_path / f"held-{number}") for number in range(SLOTS - 1)]
    first = await at_gate(caller, tmp_path / "first")
    waiting = await caller.send("clerk", Errand(do="tell"), thread_id=first.thread_id)
    assert (await caller.messages(waiting))[1].status == "pending"  # all hands are full
    assert await segment_of(caller, waiting) == await segment_of(caller, first)
    (tmp_path / "first").touch()
    assert (await caller.heard(first)).said == "first"
    told = json.loads((await caller.heard(waiting)).said)
    assert told["thread_id"] == await segment_of(caller, waiting) != await segment_of(caller, first)
    for number, sent in enumerate(held):
        (tmp_path / f"held-{number}").touch()
        await caller.heard(sent)


async def test_the_limit_of_hops_ends_a_request(caller: Caller) -> None:
    sent = await caller.send("worker", Order(do="iterate", what="200"))
    heard = await caller.heard(sent)
    assert (heard.kind, heard.reason, heard.payload) == ("ended", "limit", None)
    lines = await caller.messages(sent)
    assert (len(lines), lines[-1].effect) == (31, "limit")


async def test_the_limit_of_depth_is_a_system_error(caller: Caller) -> None:
    sent = await caller.send("worker", Order(do="ask", what="clerk/ask/manager/ask/clerk/ask/manager/say/x"))
    said = (await caller.heard(sent)).said
    assert f"manager SystemError routing True {UNDELIVERABLE}" in said
    assert max(message.chain.count(".") for message in await caller.messages(sent)) == 5


async def test_the_limit_of_messages_ends_requests_and_then_refuses(caller: Caller) -> None:
    sent = await caller.send("worker", Order(do="iterate", what="25"))
    await caller.heard(sent)
    more = await caller.send("worker", Order(do="iterate", what="25"), thread_id=sent.thread_id)
    assert (await caller.heard(more)).reason == "limit"
    assert len(await caller.messages(sent)) == 40
    refused = await caller.request("worker", Order(do="say"), thread_id=sent.thread_id)
    assert (refused.status, refused.error_code) == ("busy", "busy")
    assert (await caller.ask("worker", Order(do="say", what="in another thread"))).said == "in another thread"


async def test_the_limit_of_messages_in_flight_refuses_until_one_is_answered(caller: Caller, tmp_path: Path) -> None:
    first = await at_gate(caller, tmp_path / "first")
    rest = [Order(do="ask", what=f"clerk/gate/{tmp_path}/rest-{number}") for number in range(5)]
    others = [await caller.send("worker", order, thread_id=first.thread_id) for order in rest]
    refused = await caller.request("shouter", Shout(text="x"), thread_id=first.thread_id)
    assert (refused.status, refused.error_code) == ("busy", "busy")
    (tmp_path / "first").touch()
    await caller.heard(first)
    accepted = await caller.send("shouter", Shout(text="x"), thread_id=first.thread_id)
    for number in range(len(rest)):
        (tmp_path / f"rest-{number}").touch()
    reasons = [(await caller.heard(each)).reason for each in (*others, accepted)]
    assert (reasons[-1], {*reasons}) == ("responded", {"responded", "pruned"})


@pytest.mark.long
async def test_a_long_thread_goes_on_in_a_new_history(caller: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    def is_long(_: MessageThread) -> bool:
        return workflow.info().get_current_history_length() > 40

    monkeypatch.setattr(MessageThread, "_is_long", is_long)
    sent = await caller.send("worker", Order(do="iterate", what="29"))
    assert (await caller.heard(sent)).said == "True worker True"
    lines = await caller.messages(sent)
    assert len(lines) == 30
    assert {line.attempt for line in lines} == {1}
    client = caller.tenant.stack.temporal

    async def runs() -> int:
        listed = client.list_workflows(f"WorkflowId = 'thread-{sent.thread_id}'")
        found = [flow.status async for flow in listed]
        assert found.count(None) == 0
        return len(found) if len(found) > 3 else 0

    await until(runs, 25, "there are several runs")
