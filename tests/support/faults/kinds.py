"""Kinds of turns and verbs as plays: each prepares, says that it is `armed`, and goes on until all has ended.

A play outlives errors and deaths of worker and bridge: it repeats a request that got no reply or an error, as any
client would, under the same correlation. What the plays of `tests/support/faults/points.py` do is not done again.
"""

import asyncio
import hashlib
import json
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

from tests.support.a2a.receivers import receiving
from tests.support.conditions import until
from tests.support.delegation import CHIEF, fork, says, staff, steps, task
from tests.support.faults.points import DONE, HASTY
from tests.support.ledger.actions import button_of, pressed, turn_of
from tests.support.ledger.calls import result_card, write_card, written_report
from tests.support.processes.stack import Config, Stack
from tests.support.pump.organism import Shout
from tests.support.pump.pump import ORGANISM, Caller, calling_in, pump_config
from tests.support.pump.troupe import TROUPE, Brief, hire, play, verdict
from tests.support.tenants import ALICE, Ended, Tenant
from tests.support.tools import Hand, call_of, calling, definition, hand_of
from turnstile.schema.access import Caller as Principal
from turnstile.schema.base import JsonObject
from turnstile.schema.errors import ServerUnavailable
from turnstile.schema.ids import AgentId, AgentTurnId, uuid7

CONFIG: Config = pump_config(
    {
        **HASTY,
        "bridge": {**HASTY["bridge"], "ui_actions": True, "command_retry_seconds": 1.0},
        "gateway": {"push_to_private_addresses": True},
    },
    listeners=[ORGANISM, TROUPE],
)
"""Settings with which every kind can be played."""
PATIENCE_SECONDS = 300.0
"""While a turn recovers, worker and bridge go on dying at the points of the plays after it."""
ME = Principal("me")
OPERATOR = Principal("ops", operates=True)
PATIENT: dict[str, Any] = {"options": {"suspend_timeout_seconds": 90}}
NEVER = says("It began thus, and", chunks=2, delay_seconds=3600)
STREAM: JsonObject = {"text": "All of this was said before. " * 20, "chunks": 200, "delay_seconds": 0.1}
TEN_WORDS = "one two three four five six seven eight nine ten"
MEMORY: JsonObject = {
    "max_context_tokens": 60,
    "keep_last_turns": 1,
    "when_full": "summarize",
    "summary_model": "scripted/plain",
}
FULL = 3
"""So many turns fit into this memory; the next one cuts."""


@dataclass
class Scene:
    """One play, in a project of its own."""

    caller: Caller
    opened: AsyncExitStack
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    go: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def tenant(self) -> Tenant:
        """Its project."""
        return self.caller.tenant

    async def armed(self) -> None:
        """Say that all is prepared, and wait until fault points may strike."""
        self.ready.set()
        await self.go.wait()

    async def hand(self, *tools: Any, **profile: Any) -> Hand:
        """A client with these tools, or `search`, that waits for its calls long enough."""
        offered = tools or (definition(**PATIENT),)
        return await self.opened.enter_async_context(hand_of(self.tenant, *offered, **profile))

    async def insist(
        self, verb: str, payload: JsonObject, caller: Principal | None = None, settled: str | None = None
    ) -> JsonObject:
        """Repeat the request until it is accepted, or refused with the code `settled`, as a repeat may be."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                try:
                    reply = await self.tenant.client.request(verb, payload, timeout=2.0, caller=caller)
                except ServerUnavailable:
                    reply = JsonObject(status="error")
                if reply["status"] in ("accepted", "steered") or (
                    settled is not None and reply.get("error_code") == settled
                ):
                    return reply
                assert reply["status"] == "error", reply
                await asyncio.sleep(0.1)

    async def enqueue(
        self, agent: AgentId, *lines: JsonObject, caller: Principal | None = None, **fields: Any
    ) -> AgentTurnId:
        """Enqueue a turn whose model says these lines."""
        request: JsonObject = {"agent_id": agent, "correlation_id": uuid7(), "instruction": steps(*lines), **fields}
        reply = await self.insist("enqueue", request, caller)
        return AgentTurnId(str(reply["agent_turn_id"] or reply["steered_turn_id"]))

    async def ended(self, turn: AgentTurnId, status: str = "success") -> Ended:
        """Wait for the turn's end, which must be this."""
        ended = await self.tenant.ended(turn, timeout=PATIENCE_SECONDS)
        assert ended.view.status == status, ended.view
        return ended

    async def report(self, hand: Hand, turn: AgentTurnId, index: int = 0) -> None:
        """Answer a call of the turn's first step, once its command was heard."""
        call = call_of(turn, index)
        await hand.called(call, timeout=PATIENCE_SECONDS)
        await self.insist("report", {"tool_call_id": call, "status": "success", "result": "found"})

    async def until_count(self, count: int, table: str, condition: str = "true") -> None:
        """Wait until so many rows of the project are so."""

        async def there() -> bool:
            return await self.tenant.count(table, condition) == count

        await until(there, PATIENCE_SECONDS, f"{count} rows of {table} are {condition}", pause=0.05)

    async def decide(self, decision: str, **fields: Any) -> None:
        """Answer the project's only question, once it is open."""
        await self.until_count(1, "state.interrupts", "status = 'open'")
        [asked] = await self.tenant.rows(
            "SELECT interrupt_id, action_digest FROM state.interrupts WHERE project_id = $1", self.tenant.project
        )
        await self.insist("decide", {**asked, "decision": decision, **fields}, ME)


async def plain(scene: Scene) -> None:
    """A turn of one step."""
    hand = await scene.hand()
    await scene.armed()
    await scene.ended(await scene.enqueue(hand.agent, DONE))


async def tool(scene: Scene) -> None:
    """A turn that sleeps between its two steps."""
    hand = await scene.hand()
    await scene.armed()
    turn = await scene.enqueue(hand.agent, calling("search"), DONE)
    await scene.report(hand, turn)
    await scene.ended(turn)


async def reported_by_sql(scene: Scene) -> None:
    """A tool of v1r4 writes its report into the ledger itself."""
    hand = await scene.hand()
    await scene.armed()
    turn = await scene.enqueue(hand.agent, calling("search"), DONE)
    call = call_of(turn)
    await hand.called(call, timeout=PATIENCE_SECONDS)
    ref = await hand.ref(turn)
    card = await write_card(scene.tenant.pool, result_card(ref, call), scene.tenant.project)
    await written_report(scene.tenant.pool, ref, call, card)
    await scene.ended(turn)


async def stopped_running(scene: Scene) -> None:
    """It is stopped while its model streams."""
    hand = await scene.hand()
    await scene.armed()
    turn = await scene.enqueue(hand.agent, STREAM)
    await scene.until_count(1, "state.agent_state_head", "status = 'running'")
    await scene.insist("stop", {"agent_turn_id": turn})
    await scene.ended(turn, "canceled")


async def stopped_queued(scene: Scene) -> None:
    """It is stopped while it waits behind another turn."""
    hand = await scene.hand()
    first = await hand.suspended(calling("search"), DONE)
    await scene.armed()
    turn = await scene.enqueue(hand.agent, DONE)
    await scene.insist("stop", {"agent_turn_id": turn})
    await scene.ended(turn, "canceled")
    await scene.report(hand, first)
    await scene.ended(first)


async def action(scene: Scene) -> None:
    """A person presses a button: a turn without a model."""
    hand = await scene.opened.enter_async_context(button_of(scene.tenant))
    await scene.armed()
    async with pressed(hand, action_id="a-1"):
        turn = await turn_of(scene.tenant, "a-1")
        await scene.report(hand, turn)
        await scene.ended(turn)


async def forked(scene: Scene) -> None:
    """A turn asks two others, and waits for both."""
    await staff(scene.tenant)
    await scene.armed()
    await scene.ended(await scene.enqueue(CHIEF, fork([task(), task()])))


async def fork_expired(scene: Scene) -> None:
    """One of the two does not answer in time, and is stopped."""
    await staff(scene.tenant)
    await scene.armed()
    asked = fork([task(), task(instruction=NEVER)], deadline_seconds=2)
    await scene.ended(await scene.enqueue(CHIEF, asked))
    await scene.until_count(3, "state.turn_outcomes", "announced_at IS NOT NULL")


async def delegated(scene: Scene) -> None:
    """A turn asks another one, and does not wait."""
    await staff(scene.tenant)
    await scene.armed()
    await scene.ended(await scene.enqueue(CHIEF, calling(("delegate_async", task()))))
    await scene.until_count(2, "state.turn_outcomes", "announced_at IS NOT NULL")


async def provisioned(scene: Scene) -> None:
    """A turn makes an agent."""
    await staff(scene.tenant)
    await scene.armed()
    made: JsonObject = {"action": "ensure", "agent_id": "new", "profile_name": "worker"}
    await scene.ended(await scene.enqueue(CHIEF, calling(("provision_agent", made))))


async def steered(scene: Scene) -> None:
    """It hears one steer with its next step, and another one when it would end."""
    hand = await scene.hand()
    await scene.armed()
    turn = await scene.enqueue(hand.agent, calling("search"), DONE, DONE)
    await hand.called(call_of(turn), timeout=PATIENCE_SECONDS)
    for priority in ("asap", "when_idle"):
        said: JsonObject = {"agent_turn_id": turn, "text": priority, "priority": priority}
        await scene.insist("steer", {**said, "correlation_id": uuid7()})
    await scene.report(hand, turn)
    await scene.ended(turn)


async def approved(scene: Scene) -> None:
    """A call waits until a person has approved it."""
    hand = await scene.hand(definition("pay", **PATIENT), interrupt_on={"pay": True})
    await scene.armed()
    turn = await scene.enqueue(hand.agent, calling("pay"), DONE)
    await scene.decide("approve")
    await scene.report(hand, turn)
    await scene.ended(turn)


async def unasked(scene: Scene) -> None:
    """Nobody decides about the call in time."""
    hand = await scene.hand(definition("pay", **PATIENT), interrupt_on={"pay": True})
    await scene.armed()
    turn = await scene.enqueue(hand.agent, calling("pay"), DONE)
    await scene.until_count(1, "state.interrupts", "status = 'open'")
    await scene.tenant.rows(
        "UPDATE state.interrupts SET expires_at = now() WHERE status = 'open' AND project_id = $1", scene.tenant.project
    )
    await scene.ended(turn)


async def unknown_call(scene: Scene) -> None:
    """Whoever ran the call is gone, it must not be run twice, and a person says what came of it."""
    hand = await scene.hand(definition(options={"timeout_seconds": 60, "repeat": "unsafe"}))
    await scene.armed()
    turn = await scene.enqueue(hand.agent, calling("search"), DONE)
    call = call_of(turn)
    await hand.called(call, timeout=PATIENCE_SECONDS)
    begins: JsonObject = {"tool_call_id": call, "begins": "run.1"}
    await scene.insist("describe", begins, settled="not_sent")  # a repeat, where the net has asked a person meanwhile
    await scene.decide("respond", response="done")
    await scene.ended(turn)


async def tool_asks(scene: Scene) -> None:
    """The tool that runs the call records a step, asks a person under it, and goes on with the answer."""
    hand = await scene.hand()
    await scene.armed()
    turn = await scene.enqueue(hand.agent, calling("search"), DONE)
    call = call_of(turn)
    await hand.called(call, timeout=PATIENCE_SECONDS)
    step: JsonObject = {"tool_call_id": call, "key": "plan", "outcome": {"value": [1]}}
    assert (await scene.insist("call.step", step))["value"] == [1]
    request: JsonObject = {"tool_call_id": call, "key": "1", "tool": "ask_human", "arguments": {"question": "Which?"}}
    assert (await scene.insist("delegate", request))["answer"] is None
    await scene.decide("respond", response="this")
    answer = (await scene.insist("delegate", request))["answer"]
    assert answer == {"decision": "respond", "response": "this", "message": ""}
    await scene.report(hand, turn)
    await scene.ended(turn)


async def rerun(scene: Scene) -> None:
    """A turn is run again."""
    hand = await scene.hand()
    first = await hand.start(DONE)
    await scene.ended(first)
    await scene.armed()
    reply = await scene.insist("rerun", {"agent_turn_id": first, "correlation_id": uuid7()})
    await scene.ended(AgentTurnId(str(reply["agent_turn_id"])))


async def budgeted(scene: Scene) -> None:
    """It may spend so much, and reserves before it asks its model."""
    hand = await scene.hand(llm={"max_tokens": 200})
    await scene.armed()
    await scene.ended(await scene.enqueue(hand.agent, DONE, budget={"max_tokens": 9000}))


async def cut(scene: Scene) -> None:
    """Its memory is full: it is cut, and another model sums up what was cut."""
    await scene.tenant.profile("crew", "echo", instances=True, memory=MEMORY)
    request: JsonObject = {"profile_name": "crew", "conversation_id": "c", "instruction": TEN_WORDS}
    for number in range(FULL + 1):
        if number == FULL:
            await scene.armed()
        reply = await scene.insist("enqueue", {**request, "correlation_id": str(number)})
        await scene.ended(AgentTurnId(str(reply["agent_turn_id"])))
    assert await scene.tenant.count("state.agent_steps", "metadata ? 'compaction'") == 1


async def _made_way(scene: Scene, strategy: str, before: str, chunks: int = 200) -> None:
    """Another turn of the conversation comes while one runs."""
    agent = await scene.tenant.agent("talks")
    first = await scene.enqueue(agent, {**STREAM, "chunks": chunks}, caller=ME, conversation_id="c")
    await scene.until_count(1, "state.agent_state_head", "status = 'running'")
    await scene.armed()
    turn = await scene.enqueue(agent, DONE, caller=ME, conversation_id="c", multitask_strategy=strategy)
    await scene.ended(turn)
    await scene.ended(first, before)


async def interrupting(scene: Scene) -> None:
    """The one that runs is stopped for it."""
    await _made_way(scene, "interrupt", "canceled")


async def rolling_back(scene: Scene) -> None:
    """The one that runs is stopped for it, and forgotten."""
    await _made_way(scene, "rollback", "canceled")


async def steering(scene: Scene) -> None:
    """The one that runs hears it as a steer."""
    await _made_way(scene, "steer", "success", chunks=20)


async def thread(scene: Scene) -> None:
    """A message to a handler, and its reply."""
    await scene.armed()
    request: JsonObject = {"to": "shouter", "payload": Shout(text="hi").to_xml().decode(), "correlation_id": uuid7()}
    sent = await scene.insist("send", request)
    await scene.caller.heard(str(sent["message_id"]), PATIENCE_SECONDS)


async def agent_thread(scene: Scene) -> None:
    """A message to an agent, whose turn is its reply."""
    await hire(scene.tenant, "alice")
    await scene.armed()
    payload = Brief(play=play(verdict("all is well", 1))).to_xml().decode()
    sent = await scene.insist("send", {"to": "alice", "payload": payload, "correlation_id": uuid7()})
    await scene.caller.heard(str(sent["message_id"]), PATIENCE_SECONDS)


async def roster(scene: Scene) -> None:
    """What operators do to profiles, tools and agents."""
    [target] = scene.tenant.stack.settings.worker.worker_targets
    profile: JsonObject = {"name": "crew", "worker_target": target, "llm_config": {"model": "scripted/echo"}}
    await scene.armed()
    await scene.insist("profile.put", {"profile": profile})
    await scene.insist("tool.put", {"tool": json.loads(definition().model_dump_json())})
    await scene.insist("agent.put", {"agent_id": ALICE, "profile_name": "crew"})
    for verb in ("agent.pause", "agent.resume"):
        await scene.insist(verb, {"agent_id": ALICE})
    await scene.insist("tool.remove", {"tool_name": "search"}, settled="unknown_tool")


async def boxes(scene: Scene) -> None:
    """What callers do to boxes."""
    await scene.tenant.agent("echo")
    await scene.armed()
    made = await scene.insist("box_make", {"parts": [{"text": "before"}], "correlation_id": uuid7()})
    await scene.insist("box_fork", {"box_id": made["box_id"]})
    await scene.insist("box_replace", {"agent_id": ALICE, "memory_context_box_id": made["box_id"]})
    await scene.insist("conversation.put", {"conversation_id": "c1", "add_box_id": made["box_id"]})


async def spending(scene: Scene) -> None:
    """What operators do to budgets."""
    hand = await scene.hand(llm={"max_tokens": 200})
    turn = await scene.enqueue(hand.agent, calling("search"), DONE, budget={"max_tokens": 9000})
    await hand.called(call_of(turn), timeout=PATIENCE_SECONDS)
    await scene.armed()
    more: JsonObject = {"budget_id": turn, "max_tokens": 100, "correlation_id": uuid7()}
    await scene.insist("raise_budget", more, OPERATOR)
    limits: JsonObject = {"period": "day", "limits": {"max_tokens": 1_000_000}}
    await scene.insist("limit_project", limits, OPERATOR)
    await scene.report(hand, turn)
    await scene.ended(turn)


async def pushed(scene: Scene) -> None:
    """A receiver is told how a turn has ended, and another one is removed."""
    receiver = await scene.opened.enter_async_context(receiving())
    turn = await scene.enqueue(await scene.tenant.agent("player"), DONE)
    await scene.ended(turn)
    await scene.armed()
    named: JsonObject = {"agent_turn_id": turn, "receiver_id": "one"}
    await scene.insist("push.set", {**named, "url": receiver.url, "token": "secret"})
    await scene.insist("push.remove", {**named, "receiver_id": "another"})
    await scene.until_count(1, "state.push_receivers", "status = 'done'")
    assert {(note.id, note.state) for note in receiver.notes} == {(f"{turn}.one.1", "COMPLETED")}


async def deleted(scene: Scene) -> None:
    """A conversation is deleted, with a turn that sleeps and one that waits behind it."""
    hand = await scene.hand()
    for line in (calling("search"), DONE):
        await scene.enqueue(hand.agent, line, conversation_id="c1")
    await hand.heard()
    await scene.armed()
    await scene.insist("conversation.delete", {"conversation_id": "c1"}, OPERATOR, settled="unknown_conversation")
    await scene.until_count(1, "state.deletions", "status = 'done'")
    for table in ("state.agent_inbox", "state.turn_outcomes", "state.conversations", "state.deletion_items"):
        await scene.until_count(0, table)


async def scheduled(scene: Scene) -> None:
    """A schedule fires, once for each of its times, until it is removed."""
    agent = await scene.tenant.agent("player")
    await scene.armed()
    asked: JsonObject = {"agent_id": agent, "instruction": steps(DONE), "every_seconds": 3}
    await scene.insist("schedule.put", {"schedule_id": "tick", **asked}, ME)
    await scene.until_count(1, "state.schedule_firings", "agent_turn_id IS NOT NULL")
    turns = await scene.tenant.rows(
        "SELECT agent_turn_id FROM state.schedule_firings WHERE project_id = $1", scene.tenant.project
    )
    await scene.insist("schedule.remove", {"schedule_id": "tick"}, ME, "unknown_schedule")
    for row in turns:
        await scene.ended(AgentTurnId(row["agent_turn_id"]))


async def files(scene: Scene) -> None:
    """A file without bytes is announced, ready, removed and gone."""
    await scene.armed()
    made = await scene.insist("artifact.create", {"filename": "empty", "correlation_id": uuid7()})
    named: JsonObject = {"artifact_id": made["artifact_id"]}
    await scene.insist("artifact.commit", {**named, "size": 0, "sha256": hashlib.sha256(b"").hexdigest()})
    await scene.insist("artifact.remove", named, settled="unknown_artifact")
    await scene.until_count(0, "resource.artifacts", "status = 'removed'")


PLAYS: dict[str, Callable[[Scene], Coroutine[Any, Any, None]]] = {
    each.__name__: each
    for each in (
        *(plain, tool, reported_by_sql, stopped_running, stopped_queued, action),
        *(forked, fork_expired, delegated, provisioned, steered, approved, unasked, unknown_call, rerun, tool_asks),
        *(budgeted, cut, interrupting, rolling_back, steering, thread, agent_thread, roster, boxes, spending),
        *(pushed, deleted, scheduled, files),
    )
}
"""Every play by its name, which is its kind's."""


async def open_scene(stack: Stack, opened: AsyncExitStack) -> Scene:
    """A scene in a new project."""
    return Scene(await opened.enter_async_context(calling_in(stack)), opened)
