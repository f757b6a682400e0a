"""Nothing that a client of one project sends reads or changes anything of another (protocol §5, §6).

The matrix: every verb, over both ways, with an id of the other project in every field and header that takes one. Each
is answered like an id that nobody has, the other project's rows, events and commands stay as they are, and no word of
it comes out. What NATS itself refuses a client is in `tests/roles`.
"""

import asyncio
import base64
import hashlib
import json
import re
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest
from pydantic import JsonValue

from tests.support.conditions import until
from tests.support.ledger.actions import allowed
from tests.support.processes.net import STILL, unheard
from tests.support.processes.stack import Stack, running_here
from tests.support.processes.stacks import Stacks
from tests.support.pump.pump import pump_config
from tests.support.tenants import ALICE, CHANNEL, Tenant, new_tenant, turn_of
from tests.support.tools import call_of, calling, definition, hand_of
from turnstile.ledger.roster import add_agent, put_tool
from turnstile.schema.access import Caller
from turnstile.schema.base import JsonObject
from turnstile.schema.ids import AgentId, AgentTurnId, interrupt_id, new_box_id, uuid7
from turnstile.schema.verbs import VERBS, Party, verb_named
from turnstile.schema.wire import headers, subjects
from turnstile.schema.wire.ui_actions import UiAction
from turnstile.transport.json_messages import decode_object, encode
from turnstile.transport.streams import STREAMS

SECRET = "the secret of another project"
MALLORY, BOB = AgentId("mallory"), AgentId("bob")
BUTTON = "button"
OPERATOR = Caller("somebody", operates=True)
WORD = re.compile(r"call_[0-9a-f]{26}|[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|[0-9a-f]{32}")
DONE: JsonObject = {"text": "done"}

OWNED = """
SELECT c.table_schema || '.' || c.table_name AS relation, c.column_name AS owner FROM information_schema.columns c
JOIN information_schema.tables t USING (table_schema, table_name)
WHERE c.table_schema IN ('public', 'resource', 'state') AND c.column_name IN ('project_id', 'tenant_id')
  AND t.table_type = 'BASE TABLE' ORDER BY 1
"""
BY_THEIR_OWNER = {
    "public.box_cards": "box_id IN (SELECT box_id FROM public.boxes WHERE tenant_id = $1)",
    "state.thread_segments": "thread_id IN (SELECT thread_id FROM state.threads WHERE project_id = $1)",
    "state.thread_replies": "thread_id IN (SELECT thread_id FROM state.threads WHERE project_id = $1)",
}
HOURLY: JsonObject = {"instruction": "hi", "every_seconds": 3600}
SIGNED = "whsec_" + base64.b64encode(b"s" * 32).decode()
EMPTY = {
    "resource.schedules",
    "state.schedule_firings",
    "state.webhooks",
    "state.webhook_events",
    "state.deletions",
    "state.deletion_items",
    "state.past_costs",
    "state.pmo_batches",
    "state.budget_raises",
    "state.pmo_batch_tasks",
    "state.turn_nodes",
    "state.identity_edges",
    "state.rejections",
    "state.gateway_tokens",
    "state.steers",
    "state.call_steps",
    "state.artifact_refs",
    "state.push_receivers",
}
"""Tables in which nothing that is tried here leaves a row of the other project."""
NO_PROJECTS = {
    *("state.model_prices", "state.schema_files", "state.ledger_era", "state.workers"),
    *("state.listeners", "state.duties", "state.repairs", "state.model_queues"),
}


@dataclass(frozen=True)
class Ids:
    """An id of each kind."""

    agent: str
    profile: str
    context_box: str
    output_box: str
    card: str
    result_card: str
    asleep: str
    asleep_box: str
    action: str
    message: str
    named: str
    queued: str
    due: str
    ended: str
    call: str
    thread: str
    correlation: str
    project: str
    interrupt: str
    digest: str
    file: str
    channel: str = "u_other"


def of_nobody() -> Ids:
    """Ids that are drawn and not used, in the forms of those that are."""
    turn = AgentTurnId(uuid7())
    agent, profile, project = f"agent-{uuid7()}", f"profile-{uuid7()}", f"p-{uuid7()}"
    return Ids(
        *(agent, profile, new_box_id(), new_box_id(), f"{turn}-deliverable", f"{call_of(turn)}-result"),
        *(turn, new_box_id(), f"a-{uuid7()}", f"m-{uuid7()}", f"t-{uuid7()}", uuid7(), uuid7(), uuid7()),
        *(call_of(AgentTurnId(uuid7())), uuid7(), f"c-{uuid7()}", project),
        *(f"int-{call_of(AgentTurnId(uuid7()))}-1", hashlib.sha256(project.encode()).hexdigest()),
        f"file-{uuid7()}",
    )


@dataclass(frozen=True)
class Case:
    """A request with a foreign id: its arguments and headers."""

    verb: str
    arguments: JsonObject
    told: Mapping[str, str] = field(default_factory=dict[str, str])


Make = Callable[[Ids, Ids], Case]
"""Of the sender's own ids and the foreign ones."""


def day_of(project: str) -> str:
    """The budget of a project's day."""
    return f"{project}/day/{datetime.now(UTC):%Y-%m-%d}"


def enqueue(told: Mapping[str, str] | None = None, **fields: Any) -> Case:
    """An enqueue that would be accepted."""
    return Case("enqueue", {"agent_id": MALLORY, "instruction": json.dumps({"steps": [DONE]}), **fields}, told or {})


def rerun(turn: str, told: Mapping[str, str] | None = None, **fields: Any) -> Case:
    """A turn that is run again."""
    return Case("rerun", {"agent_turn_id": turn, **fields}, told or {})


def send(told: Mapping[str, str] | None = None, **fields: Any) -> Case:
    """A message that would be accepted; threads are joined under the name of who began them."""
    return Case(
        "send", {"to": "shouter", "payload": {"text": "hi"}, **fields}, {headers.SENDER: "client", **(told or {})}
    )


def report(call: str, told: Mapping[str, str] | None = None, **fields: Any) -> Case:
    """A result of a call."""
    inline = {} if "tool_result_card_id" in fields else {"result": "forged"}
    return Case("report", {"tool_call_id": call, "status": "success", **inline, **fields}, told or {})


def composed(part: JsonObject, **fields: Any) -> Case:
    """A box of one part and a text."""
    return Case("box_make", {"parts": [{"text": "new"}, part], **fields})


def replaced(memory: str, told: Mapping[str, str] | None = None, **fields: Any) -> Case:
    """A box for an agent's memory."""
    return Case("box_replace", {"agent_id": MALLORY, "memory_context_box_id": memory, **fields}, told or {})


def action(told: Mapping[str, str] | None = None, **fields: Any) -> Case:
    """A UI action that would be accepted."""
    asked: JsonObject = {"action_id": f"a-{uuid7()}", "agent_id": MALLORY, "tool_name": BUTTON, "args": {"q": "it"}}
    return Case("ui_action", {**asked, **fields}, told or {})


def decide(its: "Ids", told: Mapping[str, str] | None = None, **fields: Any) -> Case:
    """A decision that would count."""
    asked = {"interrupt_id": its.interrupt, "decision": "approve", "action_digest": its.digest, **fields}
    return Case("decide", asked, told or {})


STATUS_VERBS = ("agent.pause", "agent.resume", "agent.retire")


def put(conversation: str, **fields: Any) -> Case:
    return Case("conversation.put", {"conversation_id": conversation, **fields})


def status_of(verb: str, _: "Ids", its: "Ids") -> Case:
    """A change of an agent's status."""
    return Case(verb, {"agent_id": its.agent})


def tells(call: str, told: Mapping[str, str] | None = None) -> Case:
    """How far a tool is with a call."""
    return Case("progress", {"tool_call_id": call, "progress": 1}, told or {})


def steps(call: str, told: Mapping[str, str] | None = None, **fields: Any) -> Case:
    """A step of a call."""
    return Case("call.step", {"tool_call_id": call, "key": "1", **fields}, told or {})


def asks(call: str, told: Mapping[str, str] | None = None, tool: str = "delegate_async", **fields: Any) -> Case:
    """What a tool asks under a call."""
    given: JsonObject = {"target_strategy": "new", "target_ref": "nobody", "instruction": "hi", **fields}
    asked: JsonObject = {"tool_call_id": call, "key": "1", "tool": tool, "arguments": given}
    return Case("delegate", asked, told or {})


def read(**of: Mapping[str, JsonValue]) -> Case:
    """A request for rows of the ledger."""
    return Case("ledger.read", {kind: {**arguments} for kind, arguments in of.items()})


def read_of_agent(kind: str, _: Ids, its: Ids) -> Case:
    """Rows of an agent."""
    return read(**{kind: {"agent_id": its.agent}})


MATRIX: dict[str, Make] = {
    "enqueue agent_id": lambda _, its: enqueue(agent_id=its.agent),
    "enqueue context_box_id": lambda _, its: enqueue(context_box_id=its.context_box),
    "enqueue context_box_id, an output box": lambda _, its: enqueue(context_box_id=its.output_box),
    "enqueue output_box_id": lambda _, its: enqueue(output_box_id=its.output_box),
    "enqueue profile_name": lambda _, its: enqueue(profile_name=its.profile),
    "enqueue correlation_id": lambda _, its: enqueue(correlation_id=its.correlation),
    "enqueue conversation_id": lambda _, its: enqueue(conversation_id=its.correlation),
    "enqueue files": lambda _, its: enqueue(files=[its.file]),
    "enqueue end_user": lambda _, its: enqueue(end_user=f"new-{its.correlation}"),
    "enqueue under a parent": lambda _, its: enqueue(
        {
            headers.PARENT_TURN_ID: its.asleep,
            headers.PARENT_AGENT_ID: its.agent,
            headers.PARENT_STEP_ID: f"{its.asleep}-s1",
        }
    ),
    "enqueue for a thread": lambda _, its: enqueue({headers.THREAD_ID: its.thread}),
    "enqueue, turn in the header": lambda _, its: enqueue({headers.TURN_ID: its.asleep, headers.TURN_EPOCH: "1"}),
    "enqueue, agent in the header": lambda _, its: enqueue({headers.AGENT_ID: its.agent}),
    "enqueue, project in the header": lambda _, its: enqueue({headers.PROJECT_ID: its.project}),
    "stop agent_turn_id, asleep": lambda _, its: Case("stop", {"agent_turn_id": its.asleep}),
    "stop cascade": lambda _, its: Case("stop", {"agent_turn_id": its.asleep, "cascade": "all"}),
    "stop agent_turn_id, queued": lambda _, its: Case("stop", {"agent_turn_id": its.queued}),
    "stop agent_turn_id, dispatched": lambda _, its: Case("stop", {"agent_turn_id": its.due}),
    "stop agent_turn_id, ended": lambda _, its: Case("stop", {"agent_turn_id": its.ended}),
    "stop, turn in the header": lambda own, its: Case(
        "stop", {"agent_turn_id": own.ended}, {headers.TURN_ID: its.asleep}
    ),
    "stop, project in the header": lambda _, its: Case(
        "stop", {"agent_turn_id": its.asleep}, {headers.PROJECT_ID: its.project}
    ),
    "turn.webhook agent_turn_id": lambda _, its: Case(
        "turn.webhook", {"agent_turn_id": its.asleep, "url": "http://127.0.0.1:1/", "secret": SIGNED}
    ),
    "webhook.put profile_name": lambda _, its: Case(
        "webhook.put",
        {"webhook_id": "w", "url": "http://127.0.0.1:1/", "secret": SIGNED, "profile_name": its.profile},
    ),
    "webhook.remove webhook_id": lambda _, its: Case("webhook.remove", {"webhook_id": its.asleep}),
    "conversation.delete conversation_id": lambda _, its: Case(
        "conversation.delete", {"conversation_id": f"d-{its.correlation}"}
    ),
    "conversation.delete agent_id": lambda _, its: Case(
        "conversation.delete", {"conversation_id": f"d-{its.correlation}", "agent_id": its.agent}
    ),
    "conversation.delete last_turn_id": lambda _, its: Case(
        "conversation.delete", {"conversation_id": f"d-{its.correlation}", "last_turn_id": its.queued}
    ),
    "end_user.delete end_user": lambda _, its: Case("end_user.delete", {"end_user": its.correlation}),
    "deletion.get deletion_id": lambda _, its: Case("deletion.get", {"deletion_id": its.ended}),
    **{
        f"schedule.{verb} schedule_id": lambda _, its, verb=verb: Case(f"schedule.{verb}", {"schedule_id": its.asleep})
        for verb in ("get", "pause", "resume", "trigger", "remove")
    },
    "schedule.trigger correlation_id": lambda _, its: Case(
        "schedule.trigger", {"schedule_id": its.asleep, "correlation_id": its.correlation}
    ),
    "schedule.put agent_id": lambda _, its: Case(
        "schedule.put",
        {"schedule_id": "s", "agent_id": its.agent, "conversation_id": its.correlation, **HOURLY},
    ),
    "schedule.put profile_name": lambda _, its: Case(
        "schedule.put", {"schedule_id": "s", "profile_name": its.profile, **HOURLY}
    ),
    "artifact.create correlation_id": lambda _, its: Case("artifact.create", {"correlation_id": its.correlation}),
    "artifact.commit artifact_id": lambda _, its: Case(
        "artifact.commit", {"artifact_id": its.file, "size": 0, "sha256": "0" * 64}
    ),
    "artifact.remove artifact_id": lambda _, its: Case("artifact.remove", {"artifact_id": its.file}),
    "conversation.stop conversation_id": lambda _, its: Case(
        "conversation.stop", {"conversation_id": f"s-{its.correlation}"}
    ),
    "conversation.stop agent_id": lambda _, its: Case(
        "conversation.stop", {"conversation_id": f"s-{its.correlation}", "agent_id": its.agent}
    ),
    "steer agent_turn_id, asleep": lambda _, its: Case("steer", {"agent_turn_id": its.asleep, "text": "go on"}),
    "steer agent_turn_id, queued": lambda _, its: Case("steer", {"agent_turn_id": its.queued, "text": "go on"}),
    "steer agent_turn_id, ended": lambda _, its: Case("steer", {"agent_turn_id": its.ended, "text": "go on"}),
    "steer correlation_id": lambda own, its: Case(
        "steer", {"agent_turn_id": own.asleep, "text": "go on", "correlation_id": its.correlation}
    ),
    "steer, project in the header": lambda _, its: Case(
        "steer", {"agent_turn_id": its.asleep, "text": "go on"}, {headers.PROJECT_ID: its.project}
    ),
    "push.set agent_turn_id": lambda _, its: Case(
        "push.set", {"agent_turn_id": its.asleep, "receiver_id": "r", "url": "https://93.184.216.34/"}
    ),
    "push.remove agent_turn_id": lambda _, its: Case("push.remove", {"agent_turn_id": its.asleep, "receiver_id": "r"}),
    "rerun agent_turn_id, ended": lambda _, its: rerun(its.ended),
    "rerun agent_turn_id, asleep": lambda _, its: rerun(its.asleep, model="scripted/player"),
    "rerun from_step": lambda _, its: rerun(its.ended, from_step=1),
    "rerun correlation_id": lambda own, its: rerun(own.ended, correlation_id=f"rerun-{its.correlation}"),
    "rerun, turn in the header": lambda own, its: rerun("nobody", {headers.TURN_ID: its.asleep}),
    "rerun, project in the header": lambda _, its: rerun(its.ended, {headers.PROJECT_ID: its.project}),
    "report tool_call_id": lambda _, its: report(its.call),
    "report tool_call_id, with its turn": lambda _, its: report(
        its.call, {headers.TURN_ID: its.asleep, headers.AGENT_ID: its.agent, headers.TOOL_CALL_ID: its.call}
    ),
    "report files": lambda own, its: report(own.call, files=[its.file]),
    "report tool_result_card_id": lambda own, its: report(own.call, tool_result_card_id=its.result_card),
    "report both": lambda _, its: report(its.call, tool_result_card_id=its.result_card),
    "report, call in the header": lambda own, its: report(own.call, {headers.TOOL_CALL_ID: its.call}),
    "report, project in the header": lambda _, its: report(its.call, {headers.PROJECT_ID: its.project}),
    "delegate tool_call_id": lambda _, its: asks(its.call),
    "delegate to people": lambda _, its: asks(its.call, tool="ask_human"),
    "progress tool_call_id": lambda _, its: tells(its.call),
    "call.step tool_call_id": lambda _, its: steps(its.call),
    "call.step, a value": lambda _, its: steps(its.call, outcome={"value": 1}),
    "call.step, call in the header": lambda own, its: steps(own.call, {headers.TOOL_CALL_ID: its.call}),
    "call.history tool_call_id": lambda _, its: Case("call.history", {"tool_call_id": its.call}),
    "progress, call in the header": lambda own, its: tells(own.call, {headers.TOOL_CALL_ID: its.call}),
    "delegate, call in the header": lambda own, its: asks(own.call, {headers.TOOL_CALL_ID: its.call}),
    "delegate, turn in the header": lambda own, its: asks(own.call, {headers.TURN_ID: its.asleep}),
    "delegate arguments, an agent": lambda own, its: asks(own.call, target_strategy="reuse", target_ref=its.agent),
    "delegate arguments, a profile": lambda own, its: asks(own.call, target_strategy="new", target_ref=its.profile),
    "delegate arguments, a box": lambda own, its: asks(own.call, context_box_id=its.context_box),
    "describe agent_turn_id, asleep": lambda _, its: Case("describe", {"agent_turn_id": its.asleep}),
    "describe agent_turn_id, ended": lambda _, its: Case("describe", {"agent_turn_id": its.ended}),
    "describe tree": lambda _, its: Case("describe", {"agent_turn_id": its.ended, "tree": True}),
    "describe card_id": lambda _, its: Case("describe", {"card_id": its.card}),
    "describe tool_call_id": lambda _, its: Case("describe", {"tool_call_id": its.call}),
    "describe begins": lambda _, its: Case("describe", {"tool_call_id": its.call, "begins": "mine"}),
    "describe, project in the header": lambda _, its: Case(
        "describe", {"card_id": its.card}, {headers.PROJECT_ID: its.project}
    ),
    "decide interrupt_id": lambda _, its: decide(its),
    "decide interrupt_id, edited": lambda _, its: decide(its, decision="edit", arguments={"q": "forged"}),
    "decide interrupt_id, answered": lambda _, its: decide(its, decision="respond", response="forged"),
    "decide, project in the header": lambda _, its: decide(its, told={headers.PROJECT_ID: its.project}),
    "interrupt.get interrupt_id": lambda _, its: Case("interrupt.get", {"interrupt_id": its.interrupt}),
    "interrupt.list agent_id": lambda _, its: Case("interrupt.list", {"agent_id": its.agent}),
    "interrupt.list agent_turn_id": lambda _, its: Case("interrupt.list", {"agent_turn_id": its.asleep}),
    "interrupt.list after": lambda _, its: Case("interrupt.list", {"after": its.interrupt, "status": "open"}),
    "budget.get budget_id": lambda _, its: Case("budget.get", {"budget_id": its.asleep}),
    "budget.get budget_id, a project's": lambda _, its: Case("budget.get", {"budget_id": day_of(its.project)}),
    "budget.list after": lambda _, its: Case("budget.list", {"after": its.asleep}),
    "raise_budget budget_id": lambda _, its: Case("raise_budget", {"budget_id": its.asleep, "max_tokens": 1}),
    "raise_budget budget_id, a project's": lambda _, its: Case(
        "raise_budget", {"budget_id": day_of(its.project), "max_turns": -1, "correlation_id": its.correlation}
    ),
    "raise_budget, project in the header": lambda _, its: Case(
        "raise_budget", {"budget_id": its.asleep, "max_tokens": 1}, {headers.PROJECT_ID: its.project}
    ),
    "box_fork box_id, a context": lambda _, its: Case("box_fork", {"box_id": its.context_box}),
    "box_fork box_id, an output box": lambda _, its: Case("box_fork", {"box_id": its.output_box}),
    "box_fork correlation_id": lambda own, its: Case(
        "box_fork", {"box_id": own.context_box, "correlation_id": its.correlation}
    ),
    "box_fork, project in the header": lambda _, its: Case(
        "box_fork", {"box_id": its.context_box}, {headers.PROJECT_ID: its.project}
    ),
    "box_make a box, a context": lambda _, its: composed({"box_id": its.context_box}),
    "box_make a box, an output box": lambda _, its: composed({"box_id": its.output_box, "last": 1}),
    "box_make a card": lambda _, its: composed({"card_id": its.card}),
    "box_make a card, a result": lambda _, its: composed({"card_id": its.result_card}),
    "box_make correlation_id": lambda own, its: composed({"box_id": own.context_box}, correlation_id=its.correlation),
    "box_replace agent_id": lambda own, its: replaced(own.context_box, agent_id=its.agent),
    "box_replace memory_context_box_id": lambda _, its: replaced(its.context_box),
    "box_replace memory_context_box_id, an output box": lambda _, its: replaced(its.output_box),
    "box_replace last_output_box_id": lambda own, its: replaced(own.context_box, last_output_box_id=its.output_box),
    "box_replace last_output_box_id, being written": lambda own, its: replaced(
        own.context_box, last_output_box_id=its.asleep_box
    ),
    "box_replace, agent in the header": lambda own, its: replaced(own.context_box, {headers.AGENT_ID: its.agent}),
    "box_replace, project in the header": lambda _, its: replaced(its.context_box, {headers.PROJECT_ID: its.project}),
    "conversation.put conversation_id": lambda _, its: put(f"c1-{its.correlation}", removed=True),
    "conversation.put agent_id": lambda _, its: put(f"c2-{its.correlation}", agent_id=its.agent),
    "conversation.put box_id": lambda _, its: put(
        f"c3-{its.correlation}", box_id=its.output_box, drop_card_ids=[its.card]
    ),
    "conversation.put add_box_id": lambda _, its: put("fresh", add_box_id=its.context_box),
    "conversation.put add_box_id, an output box": lambda _, its: put("fresh", add_box_id=its.output_box),
    "conversation.put, project in the header": lambda _, its: Case(
        "conversation.put",
        {"conversation_id": f"c4-{its.correlation}", "removed": True},
        {headers.PROJECT_ID: its.project},
    ),
    **{f"{verb} agent_id": partial(status_of, verb) for verb in STATUS_VERBS},
    "agent.put profile_name": lambda own, its: Case("agent.put", {"agent_id": own.agent, "profile_name": its.profile}),
    "tool.remove tool_name": lambda _, its: Case("tool.remove", {"tool_name": f"button-{its.project}"}),
    "send thread_id": lambda _, its: send(thread_id=its.thread),
    "send correlation_id": lambda _, its: send(correlation_id=its.correlation),
    "send under a parent": lambda _, its: send(
        {headers.PARENT_TURN_ID: its.asleep, headers.PARENT_AGENT_ID: its.agent}
    ),
    "send for a thread": lambda _, its: send({headers.THREAD_ID: its.thread}),
    "send, project in the header": lambda _, its: send({headers.PROJECT_ID: its.project}),
    "thread.describe thread_id": lambda _, its: Case("thread.describe", {"thread_id": its.thread}),
    "ledger.read turn": lambda _, its: read(turn={"agent_turn_id": its.asleep, "record": True, "tree": True}),
    **{f"ledger.read {kind}": partial(read_of_agent, kind) for kind in ("turns", "inbox", "memory", "conversations")},
    "ledger.read box": lambda _, its: read(box={"box_id": its.output_box}),
    "ledger.read said": lambda _, its: read(said={"agent_id": its.agent, "channel_id": CHANNEL, "conversation_id": ""}),
    "ledger.read threads": lambda _, its: read(threads={"thread_id": its.thread}),
    "ledger.read usage, of a tree": lambda _, its: read(usage={"tree": its.ended}),
    "ledger.read usage, of a budget": lambda _, its: read(usage={"budget_id": its.asleep}),
    "ledger.read profile": lambda _, its: read(profile={"name": its.profile}),
    "ledger.read budget": lambda _, its: read(budget={"budget_id": its.asleep}),
    "ledger.read budget, of a project": lambda _, its: read(budget={"budget_id": day_of(its.project)}),
    "ledger.read budgets": lambda _, its: read(budgets={"after": its.asleep}),
    "ledger.read interrupt": lambda _, its: read(interrupt={"interrupt_id": its.interrupt}),
    "ledger.read interrupts": lambda _, its: read(interrupts={"agent_turn_id": its.asleep}),
}
ACTIONS: dict[str, Make] = {
    "agent_id": lambda _, its: action(agent_id=its.agent),
    "agent_id in the header": lambda _, its: action({headers.AGENT_ID: its.agent}),
    "tool_name": lambda _, its: action(tool_name=f"button-{its.project}"),
    "action_id": lambda _, its: action(action_id=its.action),
    "message_id": lambda _, its: action(message_id=its.message),
    "message_id, a turn's": lambda _, its: action(message_id=its.named),
    "parent_step_id": lambda _, its: action(parent_step_id=f"{its.asleep}-s1"),
    "metadata": lambda _, its: action(
        metadata={"agent_turn_id": its.asleep, "agent_id": its.agent, "box_id": its.output_box, "card_id": its.card}
    ),
    "under a parent": lambda _, its: action({headers.PARENT_TURN_ID: its.asleep, headers.PARENT_AGENT_ID: its.agent}),
    "for a thread": lambda _, its: action({headers.THREAD_ID: its.thread}),
    "turn in the header": lambda _, its: action({headers.TURN_ID: its.asleep, headers.TURN_EPOCH: "1"}),
    "project in the header": lambda _, its: action({headers.PROJECT_ID: its.project}),
}
"""The same for UI actions, which are commands without a verb."""
NAME_NOTHING = {
    "listener.list",
    "schedule.list",
    "webhook.list",
    "agent.list",
    "profile.list",
    "profile.put",
    "tool.list",
    "tool.put",
    "limit_project",
}
"""Verbs whose arguments name nothing that is there: they list or store what is the subject's project's."""
REQUESTS = {verb.name: verb.request for verb in VERBS if verb.name not in NAME_NOTHING}
DURABLE = {verb.name for verb in VERBS if verb.durable}
NAMES_NOTHING = {
    *("instruction", "result_fields", "runtime_config", "message_type", "metadata", "status", "after_execution"),
    *("result", "error", "reason", "payload"),
    *("secret", "events", "webhook_id"),
    *("cron", "timezone", "every_seconds", "at", "start_at", "end_at", "new_conversations", "overlap"),
    *("catchup_seconds", "paused", "after", "schedule_id"),
    *("key", "tool", "text", "priority", "from_step", "model", "multitask_strategy"),
    *("worker_target", "display_name", "tags", "only_new", "payloads"),
    *("decision", "response", "message", "limit"),
    *("budget", "kind", "max_tokens", "max_cost_usd", "max_turns"),
    *("progress", "total", "url", "token", "receiver_id", "outcome", "after"),
    *("filename", "mime", "size", "sha256"),
    "removed",
    "begins",  # a name of its own, beside the call
    "to",  # a listener: those of a worker are every project's
    "reply_to",  # an inbox: whose it is, only NATS knows
}
"""Arguments that name nothing of a project."""


@dataclass(frozen=True)
class Both:
    """Two projects of one stack, with something of everything in each; one more that sends commands."""

    own: Tenant
    ids: Ids
    commander: Tenant
    commands: Ids
    other: Tenant
    its: Ids

    def sender(self, way: str) -> tuple[Tenant, Ids]:
        """Who tries it this way: a correlation that was used is not new a second time."""
        return (self.own, self.ids) if way == "request" else (self.commander, self.commands)


@pytest.fixture(scope="module")
async def stack(stacks: Stacks) -> AsyncIterator[Stack]:
    """Worker and bridge, whose net does not look: what a project has in hand stays as it is."""
    config = pump_config({**STILL, "bridge": {**STILL["bridge"], "ui_actions": True}})
    async with stacks.open(config) as opened, running_here(opened):
        yield opened


@pytest.fixture(scope="module")
async def both(stack: Stack) -> Both:
    """All lived in."""
    own, commander, other = (new_tenant(stack) for _ in range(3))
    ids, commands, its = await asyncio.gather(live(own), live(commander), live(other))
    return Both(own, ids, commander, commands, other, its)


async def live(tenant: Tenant) -> Ids:
    """A turn that ended, one asleep, one queued, one that nobody was told of, and a conversation."""
    mine = f"only-{tenant.project}"
    words = secret(tenant)
    limits: JsonObject = {"period": "day", "limits": {"max_turns": 1_000_000}}
    await tenant.client.request("limit_project", limits, caller=OPERATOR)
    long = definition(options={"suspend_timeout_seconds": 600})
    held = definition("held", options={"interrupt_on": True})
    async with hand_of(tenant, long, held) as hand:
        ended = await hand.suspended(calling(("search", {"q": words})), {"text": words}, correlation_id=mine)
        await hand.report(call_of(ended), words)
        view = (await hand.ended(ended)).view
        calls = json.dumps({"steps": [calling("search", "held")]})
        asked: JsonObject = {"agent_id": ALICE, "instruction": calls, "budget": {"max_tokens": 1_000_000}}
        asleep = turn_of(await tenant.ask(asked, headers={headers.DEPTH: "7"}))
        await hand.called(call_of(asleep))
        queued = await hand.start({"text": words}, correlation_id=f"t-{mine}")
    for name in (mine, f"s-{mine}", f"d-{mine}"):
        await tenant.enqueue(ALICE, words, conversation_id=name, end_user=mine)
    for number in range(1, 5):
        await tenant.client.request("conversation.put", {"conversation_id": f"c{number}-{mine}"})
    await put_tool(tenant.pool, tenant.project, definition(f"vault-{tenant.project}"[:60]))
    await tenant.agent("player", AgentId(mine))
    for agent in (MALLORY, BOB):
        await add_agent(tenant.pool, tenant.project, agent, f"{mine}-profile")
    for name in (BUTTON, f"button-{tenant.project}"):
        await put_tool(tenant.pool, tenant.project, allowed(name, options={"suspend_timeout_seconds": 600}))
    for pressed in (action(agent_id=mine, action_id=f"a-{mine}"), action(agent_id=mine, message_id=f"m-{mine}")):
        told = await by_action(tenant, pressed)
        assert told["status"] == "done", told
    fork: JsonObject = {"box_id": view.context_box_id, "correlation_id": mine}
    forked = await tenant.client.request("box_fork", fork)
    await tenant.client.request("box_replace", {"agent_id": mine, "memory_context_box_id": forked["box_id"]})
    kept = await tenant.client.request("artifact.create", {"correlation_id": mine}, caller=OPERATOR)
    file = str(kept["artifact_id"])
    empty: JsonObject = {"artifact_id": file, "size": 0, "sha256": hashlib.sha256(b"").hexdigest()}
    await tenant.client.request("artifact.commit", empty, caller=OPERATOR)
    due = await unheard(tenant, BOB, json.dumps({"steps": [{"text": words}]}))
    answer = await tenant.client.send("shouter", {"text": words}, correlation_id=mine)
    return Ids(
        agent=mine,
        profile=f"{mine}-profile",
        context_box=str(view.context_box_id),
        output_box=str(view.output_box_id),
        card=str(view.deliverable_card_id),
        result_card=f"{call_of(ended)}-result",
        asleep=asleep,
        asleep_box=await held_box(tenant, asleep),
        action=f"a-{mine}",
        message=f"m-{mine}",
        named=f"t-{mine}",
        queued=queued,
        due=due,
        ended=ended,
        call=call_of(asleep),
        thread=str(answer.thread_id),
        correlation=mine,
        project=tenant.project,
        interrupt=interrupt_id(call_of(asleep, 1)),
        digest=await digest_of(tenant, interrupt_id(call_of(asleep, 1))),
        file=file,
    )


async def digest_of(tenant: Tenant, interrupt: str) -> str:
    """What a decision about it must name."""
    [row] = await tenant.rows("SELECT action_digest FROM state.interrupts WHERE interrupt_id = $1", interrupt)
    return row["action_digest"]


def secret(tenant: Tenant) -> str:
    """What only this project may read."""
    return f"{SECRET}: {hashlib.sha256(tenant.project.encode()).hexdigest()[:12]}"


async def held_box(tenant: Tenant, turn: str) -> str:
    """The box that a turn in hand writes."""
    statement = "SELECT output_box_id::text AS box FROM state.agent_state_head WHERE active_agent_turn_id = $1"
    [row] = await tenant.rows(statement, turn)
    return row["box"]


async def rows_of(tenant: Tenant) -> dict[str, str]:
    """A digest of each table's rows of a project."""
    owned = {row["relation"]: f"{row['owner']} = $1" for row in await tenant.rows(OWNED)} | BY_THEIR_OWNER
    found: dict[str, str] = {}
    for relation, condition in owned.items():
        digest = "count(*) || coalesce(md5(string_agg(t::text, '|' ORDER BY t::text)), '')"
        text = f"SELECT {digest} AS digest FROM {relation} t WHERE {condition}"  # noqa: S608 -- words of tests
        [row] = await tenant.rows(text, tenant.project)
        found[relation] = row["digest"]
    return found


async def messages_of(tenant: Tenant) -> dict[str, int]:
    """How many messages the streams hold on each subject of a project."""
    found: dict[str, int] = {}
    for stream in STREAMS:
        info = await tenant.stack.conn.js.stream_info(stream, subjects_filter=f"cg.v1r4.{tenant.project}.>")
        found |= info.state.subjects or {}
    return found


async def by_request(tenant: Tenant, case: Case) -> JsonObject:
    """The reply to a request."""
    declared = verb_named(case.verb)
    caller = Caller("somebody") if declared is not None and declared.caller == "must" else None
    if caller is not None and declared is not None and Party.OPERATOR in declared.callers:  # nobody else may
        caller = OPERATOR
    subject = subjects.bridge_request(tenant.project, CHANNEL, case.verb, caller)
    answer = await tenant.stack.conn.request(subject, encode(case.arguments), timeout=25, headers=dict(case.told))
    return decode_object(answer.data)


async def by_command(tenant: Tenant, case: Case) -> JsonObject:
    """The ack of a durable command."""
    subject, request_id = subjects.bridge_command(tenant.project, CHANNEL, case.verb), uuid7()
    async with tenant.client.watching() as events:
        payload = encode({**case.arguments, "request_id": request_id})
        await tenant.stack.conn.store(subject, payload, headers=dict(case.told))
        return await anext(event.payload async for event in events if event.payload.get("request_id") == request_id)


async def by_action(tenant: Tenant, case: Case) -> JsonObject:
    """The last ack of a UI action, whose call is answered if it comes to one, and what its turn was."""
    subject, sent = subjects.ui_action(tenant.project, CHANNEL), {headers.MSG_ID: uuid7(), **case.told}
    async with tenant.client.watching() as events:
        await tenant.stack.conn.store(subject, encode(case.arguments), headers=sent)
        acks = (event async for event in events if event.payload.get("action_id") == case.arguments["action_id"])
        while (ack := await anext(acks)).payload["status"] == "accepted":
            await answered(tenant, call_of(AgentTurnId(ack.headers[headers.TURN_ID])))
    done = ack.payload["status"] == "done"
    return ack.payload | (await seen(tenant, AgentTurnId(ack.headers[headers.TURN_ID])) if done else {})


async def answered(tenant: Tenant, call: str) -> None:
    """A call that is answered, now or before."""
    report: JsonObject = {"tool_call_id": call, "status": "success", "result": {"hits": 1}}

    async def taken() -> bool:
        return (await tenant.client.request("report", report))["error_code"] != "unknown_call"

    await until(taken, 25, f"{call} is out")


async def seen(tenant: Tenant, turn: AgentTurnId) -> JsonObject:
    """What a turn delivered, and how deep it was."""
    ended = await tenant.ended(turn)
    [row] = await tenant.rows(
        "SELECT context_headers ->> 'CG-Recursion-Depth' AS depth FROM state.agent_inbox WHERE agent_turn_id = $1"
        " AND message_type IN ('turn', 'ui_action')",
        turn,
    )
    return {"deliverable": ended.deliverable(), "depth": row["depth"]}


WAYS = {"request": by_request, "command": by_command, "action": by_action}


async def outcome(tenant: Tenant, way: str, case: Case, used: Ids) -> JsonObject:
    """What a request comes to, without what is drawn anew each time."""
    reply = await WAYS[way](tenant, case)
    if reply["status"] == "accepted" and case.verb in ("enqueue", "rerun"):
        reply |= await seen(tenant, AgentTurnId(str(reply["agent_turn_id"])))
    for drawn in ("turn_epoch", "inbox_status", "request_id", "created_at", "correlation_id", "budget"):
        reply.pop(drawn, None)
    text = json.dumps(reply)
    for each in sorted(vars(used).values(), key=len, reverse=True):
        text = text.replace(each, "ID")
    return decode_object(WORD.sub("ID", text).encode())


@pytest.mark.parametrize(
    ("way", "case"),
    [
        *(("request", case) for case in MATRIX),
        *(("command", case) for case in MATRIX if case.split()[0].rstrip(",") in DURABLE),
        *(("action", case) for case in ACTIONS),
    ],
)
async def test_an_id_of_another_project_is_an_id_of_nobody(both: Both, way: str, case: str) -> None:
    make, nobody = (ACTIONS if way == "action" else MATRIX)[case], of_nobody()
    tenant, ids = both.sender(way)
    asked = make(ids, both.its)
    before = await rows_of(both.other), await messages_of(both.other)
    told = await outcome(tenant, way, asked, both.its)
    assert told == await outcome(tenant, way, make(ids, nobody), nobody)
    assert secret(both.other) not in json.dumps(told)
    assert (await rows_of(both.other), await messages_of(both.other)) == before


async def test_its_own_project_knows_each_of_them(both: Both) -> None:
    """Else the matrix would prove nothing."""
    its = both.its
    turns = [Case("describe", {"agent_turn_id": turn}) for turn in (its.asleep, its.queued, its.due, its.ended)]
    cards = [Case("describe", {"card_id": card}) for card in (its.card, its.result_card)]
    rest = [Case("describe", {"tool_call_id": its.call}), Case("thread.describe", {"thread_id": its.thread})]
    rest.append(Case("interrupt.get", {"interrupt_id": its.interrupt}))
    rest += [Case("budget.get", {"budget_id": each}) for each in (its.asleep, day_of(its.project))]
    fork = Case("box_fork", {"box_id": its.context_box, "correlation_id": its.correlation})
    boxes = [fork, replaced(its.output_box, agent_id=its.agent), replaced(its.context_box, agent_id=its.agent)]
    replies = [await by_request(both.other, case) for case in (*turns, *cards, *rest, *boxes)]
    assert [reply["status"] for reply in replies] == ["accepted"] * 14
    reads = [make(both.ids, its) for name, make in MATRIX.items() if name.startswith("ledger.read")]
    assert [(await by_request(both.other, case))["status"] for case in reads] == ["accepted"] * len(reads)
    assert replies[11]["duplicate"]
    busy = await by_request(both.other, replaced(its.asleep_box))
    assert busy["error_code"] == "output_box_busy"
    pressed = [await by_action(both.other, action(agent_id=its.agent, action_id=its.action))]
    pressed.append(await by_action(both.other, action(agent_id=its.agent, message_id=its.named)))
    assert [each.get("error_code") for each in pressed] == [None, "correlation_conflict"]
    assert (await by_request(both.other, decide(replace(its, digest="0" * 64))))["error_code"] == "digest_mismatch"
    assert secret(both.other) in json.dumps(replies)
    there = "SELECT box_id FROM public.boxes WHERE tenant_id = $1 AND box_id = ANY ($2::text[]::uuid[])"
    assert len(await both.other.rows(there, its.project, [its.context_box, its.output_box])) == 2
    for name, rows in (await rows_of(both.other)).items():
        assert rows != "0" or name in EMPTY, name


async def test_the_matrix_has_every_verb_and_every_argument(both: Both) -> None:
    told = await both.own.stack.conn.request("$SRV.INFO.turnstile", b"", timeout=25)
    endpoints = json.loads(told.data)["endpoints"]
    made = [make(both.ids, both.its) for make in MATRIX.values()]
    assert {case.verb for case in made} == set(REQUESTS)
    assert {each["name"] for each in endpoints} == set(REQUESTS) | NAME_NOTHING
    for verb, model in REQUESTS.items():
        tried = {name for case in made if case.verb == verb for name in case.arguments}
        assert model.model_fields.keys() - tried <= NAMES_NOTHING, verb
    pressed = [make(both.ids, both.its) for make in ACTIONS.values()]
    assert {name for case in pressed for name in case.arguments} == UiAction.model_fields.keys()


async def test_the_digests_are_of_every_table(both: Both) -> None:
    tables = await both.own.rows(
        "SELECT table_schema || '.' || table_name AS name FROM information_schema.tables"
        " WHERE table_schema IN ('public', 'resource', 'state') AND table_type = 'BASE TABLE'"
    )
    assert {row["name"] for row in tables} == (await rows_of(both.other)).keys() | NO_PROJECTS


async def test_a_doorbell_rings_for_its_own_project_only(both: Both) -> None:
    """Both have a turn of `bob` that nobody was told of; the sender's is the proof that the doorbell was heard."""
    before = await rows_of(both.other)
    [target] = both.own.stack.settings.worker.worker_targets
    payload = encode({"agent_id": BOB, "inbox_id": both.its.due, "reason": "forged"})
    await both.own.stack.conn.store(subjects.wakeup(both.own.project, CHANNEL, target), payload)
    await both.own.ended(AgentTurnId(both.ids.due))
    assert await rows_of(both.other) == before


async def test_a_tool_of_another_project_is_no_tool(both: Both) -> None:
    """A profile may name it and a model may call it: nothing is sent."""
    before = await rows_of(both.other), await messages_of(both.other)
    vault = f"vault-{both.other.project}"[:60]
    agent = await both.own.agent("player", AgentId("thief"), allowed_tools=[vault])
    ended = await both.own.turn(agent, json.dumps({"steps": [calling(vault), DONE]}))
    assert [(status, code) for status, code, _ in ended.results()] == [("failed", "unknown_tool")]
    assert (await rows_of(both.other), await messages_of(both.other)) == before


async def test_an_acknowledgement_sent_elsewhere_is_no_request_there(both: Both) -> None:
    """JetStream acknowledges wherever it is asked to, other projects' commands too: what lands there is refused."""
    before = await rows_of(both.other)
    subject = subjects.bridge_command(both.own.project, CHANNEL, "stop")
    async with both.other.client.watching() as events:
        for verb in REQUESTS:
            if "." not in verb:
                forged = subjects.bridge_command(both.other.project, CHANNEL, verb)
                await both.own.stack.conn.send(subject, b"{}", reply=forged)
                ack = await anext(event async for event in events if event.suffix == f"{verb}_ack")
                assert (ack.payload["status"], ack.payload["error_code"]) == ("rejected", "bad_request")
    del before["state.rejections"]  # a report that cannot be read is noted
    after = await rows_of(both.other)
    assert {name: after[name] for name in before} == before
