"""Everything that the real stack says on NATS fits the interface documents, and nothing is said that they lack."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from nats.aio.msg import Msg
from nats.errors import NoRespondersError
from nats.errors import TimeoutError as NoReplyError
from pydantic import BaseModel

from tests.support.conditions import until
from tests.support.delegation import chief_says, fork, result, staff, task
from tests.support.ledger.actions import allowed, done
from tests.support.people import Person
from tests.support.processes.stack import QUICK, Stack
from tests.support.pump.pump import calling_in, pump_config
from tests.support.tenants import CHANNEL, Tenant, new_tenant
from tests.support.tools import Hand, calling, definition, hand_of
from turnstile.ledger.roster import add_agent
from turnstile.schema.base import JsonObject
from turnstile.schema.ids import AgentId, ProjectId, uuid7
from turnstile.schema.interface.catalog import ENTRIES, VERBS, find
from turnstile.schema.interface.entries import Transport
from turnstile.schema.interface.json_schemas import schemas
from turnstile.schema.people.approvals import Decision
from turnstile.schema.wire import subjects
from turnstile.sdk.client import BridgeClient
from turnstile.sdk.tools.service import ToolService
from turnstile.transport.json_messages import decode_object
from turnstile.transport.stream_probe import probe_streams

pytestmark = pytest.mark.stack(pump_config({**QUICK, "bridge": {**QUICK["bridge"], "ui_actions": True}}))

AMONG_TOOLS = {"req.tool", "req.tool.reply"}
OF_ANOTHER_PROJECT = {"evt.sys.probe"}
"""Said in a project of its own, when somebody asks whether the streams take messages."""


@cache
def validators() -> dict[str, Any]:
    """By the names of the schemas; made when the first message is checked, because every process imports this file."""
    return {name: Draft202012Validator(schema) for name, schema in schemas().items()}


@dataclass
class Wiretap:
    """Every message of one project, what probes store as events, and all of the reply inboxes."""

    said: list[Msg] = field(default_factory=list[Msg])
    replies: dict[str, list[Msg]] = field(default_factory=dict[str, list[Msg]])

    async def on_message(self, msg: Msg) -> None:
        self.said.append(msg)

    async def on_reply(self, msg: Msg) -> None:
        self.replies.setdefault(msg.subject, []).append(msg)

    def seen(self) -> set[str]:
        """The names of what was said, and of requests that were answered."""
        found: set[str] = set()
        for msg in self.said:
            entry = find(msg.subject)
            assert entry is not None, f"{msg.subject} is not in schema/interface/catalog.py"
            found.add(entry.name)
            check(entry.payload, msg.data, msg.subject)
            if entry.headers is not None:
                check(entry.headers, json.dumps(dict(msg.headers or {})).encode(), f"headers of {msg.subject}")
            if entry.reply is not None:
                for reply in self.replies.get(msg.reply, []):
                    check(entry.reply, reply.data, f"reply to {msg.subject}")
                    found.add(f"{entry.name}.reply")
        return found


def check(model: type[BaseModel] | None, data: bytes, what: str) -> None:
    """Raises `AssertionError` naming what does not fit its schema."""
    if model is None:
        assert not data, what
        return
    faults = [error.message for error in validators()[model.__name__].iter_errors(decode_object(data))]
    assert not faults, f"{what} is no {model.__name__}: {faults}: {data.decode()}"


@asynccontextmanager
async def tapped(stack: Stack, project: ProjectId) -> AsyncGenerator[Wiretap]:
    """What is said meanwhile."""
    tap = Wiretap()
    heard = [
        await stack.conn.subscribe(f"cg.{subjects.VERSION}.{project}.>", tap.on_message),
        await stack.conn.subscribe(f"cg.{subjects.VERSION}.*.*.evt.sys.probe", tap.on_message),  # no project has it
        await stack.conn.subscribe("_INBOX.>", tap.on_reply),
    ]
    try:
        yield tap
    finally:
        for each in heard:
            await stack.conn.unsubscribe(each)


def expected() -> set[str]:
    """All that there is."""
    return {entry.name for entry in ENTRIES} | {f"{entry.name}.reply" for entry in ENTRIES if entry.reply}


async def acked(client: BridgeClient, tap: Wiretap, verb: str, payload: JsonObject) -> JsonObject:
    """The answer to a durable command."""
    request = uuid7()
    await client.command(verb, payload, request)

    async def answer() -> JsonObject | None:
        acks = [decode_object(msg.data) for msg in tap.said if msg.subject.endswith(f".{verb}_ack")]
        return next((each for each in acks if each.get("request_id") == request), None)

    return await until(answer, 25, f"{verb} is answered")


async def test_all_that_is_said_fits_its_schema(here: Stack) -> None:
    async with calling_in(here) as caller:
        tenant, client = caller.tenant, caller.tenant.client
        async with tapped(here, tenant.project) as tap, hand_of(tenant, allowed()) as hand:
            await speak_of_a_turn(tap, hand, client)
            await speak_of_a_fork(tenant)
            await speak_of_people(tenant)
            await speak_of_budgets(client)
            await done(hand)  # an action of a UI
            # a conversation, and one that is refused
            answer = await client.send("shouter", {"text": "hi"})
            refused = await client.request("send", {"to": "shouter", "payload": {"text": "hi"}, "thread_id": "none"})
            assert refused["status"] == "rejected"
            await client.request("thread.describe", {"thread_id": answer.thread_id})
            await client.request("listener.list", {"listener": "shouter"})
            await client.request("ledger.read", {"turns": {}})
            sent = await acked(client, tap, "send", {"to": "shouter", "payload": "<shout><text>hi</text></shout>"})
            await caller.heard(str(sent["message_id"]))
            assert set((await probe_streams(here.conn)).values()) == {None}

            async def complete() -> bool:
                return tap.seen() >= expected() - AMONG_TOOLS - OF_ANOTHER_PROJECT

            await until(complete, 25, "all of it is said")
        assert tap.seen() | AMONG_TOOLS | OF_ANOTHER_PROJECT == expected()


async def speak_of_a_turn(tap: Wiretap, hand: Hand, client: BridgeClient) -> None:
    """A turn that streams, calls a tool and ends; one that is stopped, and whose tool answers too late."""
    turn = await hand.suspended(calling("search", text="let me see", chunks=2))
    [command] = await hand.heard()
    call = command.call
    described: Any = await client.request("describe", {"tool_call_id": call})
    await client.request("describe", {"card_id": described["call"]["tool_call_card_id"]})
    task: JsonObject = {"target_strategy": "new", "target_ref": "nobody", "instruction": "hi"}
    await client.request(
        "delegate",
        {"tool_call_id": call, "key": "1", "tool": "fork_join", "arguments": {"tasks": [task], "join": "all"}},
    )
    await client.request("progress", {"tool_call_id": call, "progress": 1, "total": 2, "message": "half"})
    use: JsonObject = {"model": "m", "tokens": 7, "cost": 0.1}
    step: JsonObject = {"tool_call_id": call, "key": "plan", "outcome": {"value": [1], "usage": use}}
    await client.request("call.step", step)
    await client.request("call.history", {"tool_call_id": call})
    receiver: JsonObject = {"agent_turn_id": turn, "receiver_id": "r"}
    await client.request("push.set", {**receiver, "url": "https://192.0.2.1/"})
    await client.request("push.remove", receiver)
    await hand.report(call)
    box = (await hand.ended(turn)).view.output_box_id
    memory: JsonObject = {"agent_id": hand.agent, "memory_context_box_id": box}
    await client.request("describe", {"agent_turn_id": turn})
    await client.request("box_fork", {"box_id": box})
    await client.request("box_make", {"parts": [{"box_id": box}]})
    await client.request("conversation.put", {"conversation_id": "c1", "add_box_id": box})
    await client.request("rerun", {"agent_turn_id": turn, "from_step": 2, "model": "scripted/echo"})
    for verb in ("agent.pause", "agent.retire", "agent.resume"):
        await client.request(verb, {"agent_id": hand.agent})
    await client.request("agent.put", {"agent_id": "spare", "profile_name": f"{hand.agent}-profile"})
    await client.request("profile.put", {"profile": {"name": "spare", "llm_config": {"model": "scripted/echo"}}})
    await client.request("tool.put", {"tool": definition("spare").model_dump(mode="json")})
    for verb in ("agent.list", "profile.list", "tool.list"):
        await client.request(verb, {})
    await client.request("tool.remove", {"tool_name": "spare"})
    await client.request("box_replace", memory)
    durable: tuple[tuple[str, JsonObject], ...] = (
        ("box_fork", {"box_id": box, "correlation_id": "fork"}),
        ("box_make", {"parts": [{"text": "hi"}]}),
        ("box_replace", memory),
        ("describe", {"agent_turn_id": turn}),
        ("report", {"tool_call_id": call, "status": "success", "result": 1}),
        ("stop", {"agent_turn_id": turn}),
        ("enqueue", {"agent_id": "nobody", "instruction": "hi"}),
    )
    for verb, payload in durable:
        await acked(client, tap, verb, dict(payload))
    # another bridge's agent, so that a doorbell leaves this one's process
    await add_agent(hand.tenant.pool, hand.tenant.project, AgentId("away"), "alice-profile", worker_target="elsewhere")
    await hand.tenant.enqueue(AgentId("away"))
    late = await hand.suspended(calling("search"), conversation_id="c2")
    await client.request("conversation.stop", {"conversation_id": "c2"})
    await client.request("stop", {"agent_turn_id": late, "reason": "enough"})
    await hand.ended(late)
    [*_, command] = await hand.heard(2)
    await hand.answer(command.call)


async def speak_of_a_fork(tenant: Tenant) -> None:
    """A turn that is answered by a child."""
    await staff(tenant)
    assert result(await chief_says(tenant, fork([task()])))["status"] == "success"


async def speak_of_people(tenant: Tenant) -> None:
    """A turn that asks a person, who says something more and answers."""
    client = tenant.client
    async with hand_of(tenant, definition("unused"), agent=AgentId("asker"), allowed_tools=["ask_human"]) as asker:
        turn = await asker.start(calling(("ask_human", {"question": "Which?"})))
        [asked] = await Person(tenant).asked()
        await client.request("interrupt.list", {})
        await client.request("interrupt.get", {"interrupt_id": asked.interrupt_id})
        await client.request("steer", {"agent_turn_id": turn, "text": "be brief"})
        await Person(tenant).decide(asked, Decision.RESPOND, response="this one")
        await asker.ended(turn)


async def speak_of_budgets(client: BridgeClient) -> None:
    """What the project may spend, which somebody raises."""
    limited = await client.request("limit_project", {"period": "day", "limits": {"max_turns": 1000}})
    day: Any = limited["budget"]
    await client.request("raise_budget", {"budget_id": day["budget_id"], "max_turns": 5})
    await client.request("budget.get", {"budget_id": day["budget_id"]})
    await client.request("budget.list", {})
    asked: list[tuple[str, JsonObject]] = [
        ("conversation.delete", {"conversation_id": "nobodys"}),
        ("end_user.delete", {"end_user": "nobody"}),
        ("deletion.get", {"deletion_id": "none"}),
        ("schedule.put", {"schedule_id": "s", "agent_id": "nobody", "instruction": "hi", "every_seconds": 60}),
        *((f"schedule.{verb}", {"schedule_id": "s"}) for verb in ("get", "pause", "resume", "trigger", "remove")),
        ("schedule.list", {}),
        ("webhook.put", {"webhook_id": "w", "url": "http://127.0.0.1:1/"}),
        ("webhook.list", {}),
        ("webhook.remove", {"webhook_id": "w"}),
        ("turn.webhook", {"agent_turn_id": "nobodys", "url": "http://127.0.0.1:1/"}),
        ("artifact.create", {"filename": "a"}),
        ("artifact.commit", {"artifact_id": "nobodys", "size": 0, "sha256": "0" * 64}),
        ("artifact.remove", {"artifact_id": "nobodys"}),
    ]
    for verb, named in asked:
        await client.request(verb, named)


async def test_what_replicas_of_a_tool_ask_each_other_fits_its_schema(here: Stack) -> None:
    tenant = new_tenant(here)
    service = ToolService(project_id=tenant.project)
    release, stop, ready = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @service.tool(target="interface", suffix="hold")
    async def hold() -> str:
        """Wait."""
        await release.wait()
        return "done"

    serving = asyncio.create_task(service.run(here.endpoints.nats_url, stop=stop, ready=ready.set))
    await ready.wait()
    async with tapped(here, tenant.project) as tap, hand_of(tenant, *service.definitions()) as hand:
        turn = await hand.suspended(calling(("hold", {})))
        [command] = await hand.heard()
        asked = subjects.tool_presence(tenant.project, CHANNEL, "interface", "hold", command.call)

        async def held() -> bool:
            try:
                await here.conn.request(asked, b"", timeout=2)
            except (NoRespondersError, NoReplyError):  # the replica has not begun it, or is just beginning
                return False
            return True

        await until(held, 25, "the replica runs the call")
        release.set()
        await hand.ended(turn)
    stop.set()
    await serving
    assert tap.seen() >= AMONG_TOOLS


async def test_the_verbs_that_are_served_are_those_of_the_catalog(here: Stack) -> None:
    told = decode_object((await here.conn.request("$SRV.INFO.turnstile", b"", timeout=25)).data)
    endpoints: Any = told["endpoints"]
    served = {each["name"]: each["subject"] for each in endpoints}
    assert set(served) == {verb.name for verb in VERBS}, "add a line to VERBS of schema/interface/catalog.py"
    micro = {
        entry.subject.replace("{principal}", ">")  # whose name NATS permissions fix
        for entry in ENTRIES
        if entry.transport is Transport.MICRO
    }
    assert {subject.split(".", 4)[4] for subject in served.values()} == micro
