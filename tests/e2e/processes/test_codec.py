"""Histories that are encrypted: turns run, wake and stop as ever, and who lacks the key is told so."""

import asyncio
import base64
import logging
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer
from google.protobuf import json_format
from google.protobuf.message import Message
from temporalio.api.common.v1 import Payload, Payloads
from temporalio.api.history.v1 import History, HistoryEvent
from temporalio.client import WorkflowHistory

from examples.codec.server import application
from tests.support.conditions import until
from tests.support.ledger.invariants import assert_invariants
from tests.support.processes.stack import Config, Stack, running_here
from tests.support.processes.stacks import Stacks
from tests.support.pump.organism import Order
from tests.support.pump.payloads import payloads_in
from tests.support.pump.pump import calling_in, pump_config
from tests.support.tenants import Tenant, new_tenant, turn_of
from tests.support.tools import calling, hand_of
from turnstile.doctor.examine import examine
from turnstile.processes.run import run_bridge, run_worker
from turnstile.schema.errors import ConfigError
from turnstile.schema.ids import AgentId, AgentTurnId
from turnstile.temporal.converters import codec_of

OLD, NEW, WRONG = (
    f"{name}:{base64.b64encode(byte * 32).decode()}" for name, byte in (("k1", b"a"), ("k2", b"b"), ("k1", b"c"))
)


def keyed(*keys: str) -> dict[str, Any]:
    """`[temporal]` of a process with these keys."""
    return {"codec": "aes-gcm", "codec_keys": list(keys)} if keys else {"codec": "", "codec_keys": []}


def rekeyed(stack: Stack, *keys: str) -> Stack:
    """The same servers for processes with these keys."""
    temporal = stack.settings.temporal.model_copy(update=keyed(*keys))
    return replace(stack, settings=stack.settings.model_copy(update={"temporal": temporal}))


@pytest.fixture(scope="module")
async def stack(stacks: Stacks) -> AsyncIterator[Stack]:
    """A stack with the key `k1`; nothing of it runs yet."""
    config: Config = {**pump_config(), "temporal": keyed(OLD)}
    async with stacks.open(config) as opened:
        yield opened
        async with opened.pool.connection() as conn:
            await assert_invariants(conn)


def without_what_is_plain(message: Message) -> bytes:
    """The bytes of a message, but for what every Temporal shows."""
    left = History.FromString(message.SerializeToString())
    for event in left.events:
        for _, attributes in event.ListFields():
            for name in ("search_attributes", "priority"):
                if isinstance(attributes, Message) and name in attributes.DESCRIPTOR.fields_by_name:
                    attributes.ClearField(name)
    return left.SerializeToString()


def sealed_by(history: WorkflowHistory) -> set[str]:
    """The names of the keys that the payloads of a history are encrypted under; empty for a plain one."""
    found = [each for event in history.events for each in payloads_in(event) if each not in notes_of_the_sdk(event)]
    return {each.metadata.get("encryption-key-id", b"").decode() for each in found}


def notes_of_the_sdk(event: HistoryEvent) -> list[Payload]:
    """What its core writes beside the result of a local activity: its number, name and times."""
    details = event.marker_recorded_event_attributes.details
    return list(details["data"].payloads) if "data" in details else []


async def all_closed(stack: Stack) -> bool:
    """Whether Temporal lists no open workflow of the stack."""
    [target] = stack.settings.worker.worker_targets
    open_ones = f"WorkerTarget = '{target}' AND ExecutionStatus = 'Running'"
    return (await stack.temporal.count_workflows(open_ones)).count == 0


async def test_histories_hold_no_plain_id_and_turns_run_wake_and_stop(stack: Stack) -> None:
    tenant, agent = new_tenant(stack), AgentId("zebra-agent")
    async with running_here(stack), hand_of(tenant, agent=agent) as hand:
        asleep = await hand.suspended(calling("search"))
        stopped = await hand.start(calling("search"))
        await tenant.client.request("stop", {"agent_turn_id": stopped})
        await hand.report(hand.commands[0].call)
        woken = await hand.ended(asleep)
        again = await hand.suspended(calling("search"))
        await tenant.client.request("stop", {"agent_turn_id": again})
        ended = [woken, await hand.ended(again)]
        assert [each.view.status for each in ended] == ["success", "canceled"]
        async with calling_in(stack) as caller:
            sent = await caller.send("worker", Order(do="ask", what="clerk/say/hello"))
            await caller.heard(sent)
            handle = stack.temporal.get_workflow_handle(f"thread-{sent.thread_id}")
            await handle.result()
            thread = await handle.fetch_history()
        histories = [*[await stack.history(each.view.agent_turn_id) for each in ended], thread]
    ids = {tenant.project, agent, caller.tenant.project, "clerk", str(sent.message_id)}
    for each in ended:
        view = each.view
        ids |= {str(view.inbox_id), str(view.context_box_id), str(view.output_box_id), str(view.trace_id)}
        ids |= {card.card_id for card in each.cards} | {step.step_id for step in each.steps}
    for history in histories:
        assert sealed_by(history) == {"k1"}
        raw = without_what_is_plain(History(events=history.events))
        assert {each for each in ids if each.encode() in raw} == set()


async def test_a_new_key_encrypts_and_the_old_one_still_opens(stack: Stack) -> None:
    tenant = new_tenant(stack)
    async with hand_of(tenant) as hand:
        async with running_here(stack):
            turn = await hand.suspended(calling("search"))
        async with running_here(rekeyed(stack, NEW, OLD)):
            await hand.report(hand.commands[0].call)
            assert (await hand.ended(turn)).view.status == "success"
            handle = stack.temporal.get_workflow_handle(f"turn-{turn}")
            await until(lambda: all_closed(stack), 25, "the turn is closed: the old key alone could not close it")
            assert sealed_by(await handle.fetch_history()) >= {"k1", "k2"}


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ((), "it is encrypted, and this process has no codec"),
        ((WRONG,), "key 'k1' of this process is another than it was encrypted under"),
        ((NEW,), "it is encrypted under key 'k1', and this process has k2"),
    ],
    ids=["no codec", "another key", "a key of another name"],
)
async def test_who_cannot_read_a_live_turn_does_not_start(stack: Stack, keys: tuple[str, ...], told: str) -> None:
    tenant = new_tenant(stack)
    async with hand_of(tenant) as hand, running_here(stack):
        turn = await hand.suspended(calling("search"))
        blind = rekeyed(stack, *keys)
        for run in (run_worker, run_bridge):
            with pytest.raises(ConfigError, match=told):
                await asyncio.wait_for(run(blind.settings, stack.endpoints, asyncio.Event()), 25)
        [check] = [each for each in await examine(blind.settings, None, []) if each.name == "Temporal"]
        assert check.status == "fail"
        assert told in check.says
        await tenant.client.request("stop", {"agent_turn_id": turn})
        assert (await hand.ended(turn)).view.status == "canceled"


@pytest.mark.long
async def test_a_worker_with_a_wrong_key_says_so_and_no_turn_is_held_up(
    stack: Stack, caplog: pytest.LogCaptureFixture
) -> None:
    """It can be stopped, and what is not stopped is run by a worker that has the key."""
    tenant = new_tenant(stack)
    agents = await tenant.agents("plain", 2)
    async with running_here(stack):  # a worker that could not read a turn of before would not start
        await until(lambda: all_closed(stack), 25, "Temporal lists no open turn")
    async with running_here(stack, run_bridge):
        async with running_here(rekeyed(stack, WRONG), run_worker):
            turns = [turn_of(await tenant.enqueue(agent)) for agent in agents]
            await until(lambda: logged(caplog, "another than it was encrypted under"), 25, "the worker says so")
            await tenant.client.request("stop", {"agent_turn_id": turns[0]})
            assert (await tenant.ended(turns[0])).view.status == "canceled"
        async with running_here(stack, run_worker):
            assert (await tenant.ended(turns[1])).deliverable() == "It is done."


async def logged(caplog: pytest.LogCaptureFixture, words: str) -> bool:
    return any(words in logging.Formatter().format(record) for record in caplog.records)


async def test_the_codec_server_shows_what_histories_hold(stack: Stack) -> None:
    tenant: Tenant = new_tenant(stack)
    async with running_here(stack):
        ended = await tenant.run("plain")
        turn: AgentTurnId = ended.view.agent_turn_id
        history = await stack.history(turn)  # while there is a worker that closes the workflow behind the turn's end
    sealed = Payloads(payloads=list(payloads_in(history.events[0])))
    codec = codec_of(stack.settings.temporal)
    assert codec is not None
    origin = "http://127.0.0.1:8233"
    async with TestClient(TestServer(application(codec, origin))) as client:
        answer = await client.post(
            "/decode", data=json_format.MessageToJson(sealed), headers={"X-Namespace": "default"}
        )
        assert (answer.status, answer.headers["Access-Control-Allow-Origin"]) == (200, origin)
        shown = json_format.Parse(await answer.text(), Payloads()).payloads
        assert any(turn.encode() in each.data for each in shown)
        coded = await client.post("/encode", data=json_format.MessageToJson(Payloads(payloads=shown)))
        assert json_format.Parse(await coded.text(), Payloads()).payloads[0].metadata["encoding"] == b"binary/encrypted"
        assert (await client.options("/decode")).status == 204
        for bad in (b"\xff", b"{", b'{"payloads": 7}'):
            assert (await client.post("/decode", data=bad)).status == 400
        sealed.payloads[0].data = b"x"
        refused = await client.post("/decode", data=json_format.MessageToJson(sealed))
        assert refused.status == 400
        assert "another than it was encrypted under" in await refused.text()
