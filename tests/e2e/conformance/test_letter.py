"""The documents, read aloud to an observer: what they say of a turn, and what is seen of it from outside.

Quoted, after `>`, are CommonGround v1r4's *Agent worker* and *State machine and lifecycle*. The observer has a NATS
client and a Postgres connection; of ours it has only what starts the system. Where we differ by name, a line cites the
section of docs/protocol.md that says so.
"""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.e2e.conformance.observer import Observer, calls, changed, observing
from tests.support.processes.stack import QUICK, Config, Stack

CONFIG: Config = {
    **QUICK,
    "bridge": {**QUICK["bridge"], "ui_actions": True},
    "tools": {"suspend_timeout_seconds": 1.0},
}
# A stack that serves UI actions.
pytestmark = pytest.mark.stack(CONFIG)
PATIENT = {"suspend_timeout_seconds": 60}
BEGUN = ["state dispatched", "state running", "step started", "step planning"]
ENDED = ["state idle", "step completed", "task success"]
SLEEPS = ["state suspended", "step executing", "step completed"]
SLOW = {"text": "a draft", "delay_seconds": 1.0}
PINNED = ["sys.rendered_prompt", "sys.tools"]


@pytest.fixture
async def observer(here: Stack) -> AsyncIterator[Observer]:
    """An observer of a new project of the running system."""
    [target] = here.settings.worker.worker_targets
    async with observing(here.endpoints.nats_url, here.endpoints.database_url, target) as found:
        yield found


async def delivered(observer: Observer, agent: str, turn: dict[str, Any], status: str = "success") -> dict[str, Any]:
    """What holds of every turn that is over; returns its deliverable card."""
    # > Each Turn emits exactly one evt.agent.*.task.
    event = await observer.task(agent, turn["agent_turn_id"])
    # > evt.agent.{agent_id}.task: agent_turn_id/status/output_box_id/deliverable_card_id.
    # > evt.agent.*.task does not carry derived semantic content (summary/fields/links, etc.)
    ours = {"tool_result_card_id", "error", "error_code", "stats"}
    assert event.keys() - ours == {"agent_turn_id", "status", "output_box_id", "deliverable_card_id"}
    assert event["status"] == status
    # > deliverable_card_id must be one of the cards in output_box_id.
    made = [c for c in await observer.cards(event["output_box_id"]) if c["agent_turn_id"] == turn["agent_turn_id"]]
    [card] = [each for each in made if each["type"] == "task.deliverable"]
    assert card["card_id"] == event["deliverable_card_id"]
    # > clear active_agent_turn_id, and return status to idle.
    head = await observer.head(agent)
    assert (head["status"], head["active_agent_turn_id"]) == ("idle", None)
    # > Worker is forbidden from writing cards into context_box_id; all new cards must be written to output_box_id.
    if turn.get("context_box_id"):
        types = await observer.types(turn["context_box_id"])
        assert set(types) <= {"task.instruction", "task.result_fields", "meta.parent_pointer"}
    return card


async def enqueued(observer: Observer, agent: str, turn: dict[str, Any]) -> None:
    """What is seen of each enqueue of an idle agent."""
    ids = {"inbox_id": turn["inbox_id"], "agent_turn_id": turn["agent_turn_id"]}
    # > Write to state.agent_inbox (pointerized payload + trace/lineage).
    [row, *_] = await observer.changes("agent_inbox", **ids)
    assert {"profile_box_id", "context_box_id", "output_box_id"} <= row["payload"].keys()
    assert turn["trace_id"] in row["context_headers"]["traceparent"]
    # > Record in state.execution_edges (primitive="enqueue", edge_phase="request").
    assert await observer.edges(row["correlation_id"]) == [("enqueue", "request")]
    # > Publish cmd.agent.{target}.wakeup (control-plane doorbell): agent_id (optional inbox_id/metadata).
    assert turn["inbox_id"] in [wakeup.get("inbox_id") for wakeup in observer.wakeups(agent)]
    # > when the agent is idle, L0 will lease it to dispatched and promote the queue status from queued to pending
    # > (while writing back turn_epoch). Here by the statement that writes the row, which may claim it, too (§10.13).
    statuses = await observer.inbox(**ids)
    assert statuses in (["pending", "processing", "consumed"], ["processing", "consumed"])
    assert (turn["turn_epoch"], turn["inbox_status"]) == (row["turn_epoch"], statuses[0])


async def test_a_plain_turn(observer: Observer) -> None:
    await observer.hire("ann")
    turn = await observer.enqueue("ann", {"text": "It is done."})
    card = await delivered(observer, "ann", turn)
    await enqueued(observer, "ann", turn)
    # > If must_end_with is empty/missing: automatically write this turn's assistant content as task.deliverable.
    assert card["content"]["text"] == "It is done."
    # > L0 increments turn_epoch and sets status=dispatched; transition to running when entering processing.
    assert await observer.heads("ann") == [("idle", 0), ("dispatched", 1), ("running", 1), ("idle", 1)]
    # > following "write card → write state → emit event"; step: phase event (started/planning/executing/completed).
    assert observer.told("ann", turn["agent_turn_id"]) == [*BEGUN, *ENDED]
    progress = observer.of("evt.agent.ann.inbox_progress")
    assert [(each["inbox_id"], each["status"]) for each in progress] == [(turn["inbox_id"], "consumed")]
    # > context_box_id: read-only input snapshot. output_box_id: write-only output container.
    assert await observer.types(turn["context_box_id"]) == ["task.instruction"]
    assert await observer.types(turn["output_box_id"]) == [*PINNED, "agent.thought", "task.deliverable"]


async def test_a_queued_turn(observer: Observer) -> None:
    await observer.hire("ann")
    first = await observer.enqueue("ann", SLOW)
    second = await observer.enqueue("ann", {"text": "next"})
    # > initial inbox write uses status='queued' with no turn_epoch available.
    assert (second["inbox_status"], second["turn_epoch"]) == ("queued", 0)
    await observer.task("ann", first["agent_turn_id"])
    await delivered(observer, "ann", second)
    # > promote the queue status from queued to pending (while writing back turn_epoch).
    rows = await observer.changes("agent_inbox", inbox_id=second["inbox_id"])
    found = changed((row["status"], row["turn_epoch"]) for row in rows)
    assert found == [("queued", 0), ("pending", 2), ("processing", 2), ("consumed", 2)]
    assert second["inbox_id"] in [wakeup.get("inbox_id") for wakeup in observer.wakeups("ann")]
    # > Concurrent execution for the same agent_id is forbidden (single active Turn).
    # > The Worker consumes that Turn, completes delivery, returns to idle, and then processes the next Enqueue.
    # Here the statement of the delivery leases the next (protocol §3).
    states = ["dispatched", "running"]
    expected = [("idle", 0), *((status, epoch) for epoch in (1, 2) for status in states), ("idle", 2)]
    assert await observer.heads("ann") == expected


async def test_a_turn_with_a_tool(observer: Observer) -> None:
    await observer.tool("search", options=PATIENT)
    await observer.hire("ann", allowed_tools=["search"])
    turn = await observer.enqueue("ann", calls("search", q="it"), {"text": "found"})
    command = await observer.command("search")
    head = await observer.suspended("ann")
    call = command.headers["CG-Tool-Call-Id"]
    # > Write tool.call card. > transactionally write execution_edges(primitive=tool_call,edge_phase=request), then
    # > publish cmd.tool.* after commit.
    assert await observer.types(turn["output_box_id"]) == [*PINNED, "agent.thought", "tool.call"]
    assert await observer.edges(call) == [("tool_call", "request")]
    assert command.payload == {
        "tool_call_card_id": (await observer.cards(turn["output_box_id"]))[-1]["card_id"],
        "tool_name": "search",
        "after_execution": "suspend",
    }
    # > set waiting_tool_count, record resume_deadline.
    # > write/update turn_waiting_tools (tool_call_id and step_id) as the resume set.
    # > normally clear expecting_correlation_id.
    assert (head["waiting_tool_count"], head["expecting_correlation_id"]) == (1, None)
    assert head["resume_deadline"] > head["updated_at"]
    [wait] = await observer.rows("SELECT * FROM state.turn_waiting_tools WHERE tool_call_id = $1", call)
    assert (wait["wait_status"], wait["step_id"]) == ("waiting", f"{turn['agent_turn_id']}-s1")
    # > record tool_call_id within the step, and set activity=executing_tool (LLM step metadata).
    [step] = await observer.changes("agent_steps", agent_turn_id=turn["agent_turn_id"])
    assert (step["tool_call_ids"], step["metadata"]["activity"]) == ([call], "executing_tool")
    [state] = observer.of("evt.agent.ann.state", status="suspended")
    assert state["metadata"] == {"activity": "awaiting_tool_result", "current_tool": "search", "waiting_tool_count": 1}

    # > Report is written to state.agent_inbox (message_type semanticized as tool_result, carrying correlation_id).
    rung = len(observer.wakeups("ann"))
    report = await observer.must("report", {"tool_call_id": call, "status": "success", "result": {"hits": 2}})
    await delivered(observer, "ann", turn)
    [row, *_] = await observer.changes("agent_inbox", inbox_id=report["inbox_id"])
    assert (row["message_type"], row["correlation_id"]) == ("tool_result", call)
    # > Inbox tool_result: agent_turn_id/agent_id/turn_epoch/tool_call_id/status/after_execution/tool_result_card_id.
    assert (row["agent_turn_id"], row["agent_id"], row["turn_epoch"]) == (turn["agent_turn_id"], "ann", 1)
    assert row["payload"].keys() == {"status", "after_execution", "tool_result_card_id"}
    # > report (primitive="report", edge_phase="response"): records report ingestion such as tool_result/timeout.
    assert await observer.edges(call) == [("tool_call", "request"), ("report", "response")]
    # > The semantic source of truth is the inbox record; wake processing by the doorbell.
    assert [wakeup["inbox_id"] for wakeup in observer.wakeups("ann")[rung:]] == [report["inbox_id"]]
    assert await observer.inbox(inbox_id=report["inbox_id"]) == ["pending", "processing", "consumed"]
    # > apply is single-winner on the waiting row. > turn_waiting_tools rows in waiting/received state.
    assert await observer.waits(call) == ["waiting", "received", "applied"]
    # > idle → dispatched → running ↔ suspended → idle; a resume keeps the epoch (protocol §10.4).
    heads = ["idle", "dispatched", "running", "suspended", "running", "idle"]
    assert await observer.heads("ann") == list(zip(heads, [0, *[1] * 5], strict=True))
    again = ["state running", "step started", "step planning"]
    assert observer.told("ann", turn["agent_turn_id"]) == [*BEGUN, *SLEEPS, *again, *ENDED]
    made = ["agent.thought", "tool.call", "tool.result", "agent.thought", "task.deliverable"]
    assert await observer.types(turn["output_box_id"]) == [*PINNED, *made]
    # > later duplicates converge as idempotent consume rather than duplicate append.
    twice = await observer.must("report", {"tool_call_id": call, "status": "success", "result": {"hits": 3}})
    assert (twice["duplicate"], twice["inbox_id"]) == (True, report["inbox_id"])


async def test_a_suspended_turn_that_nobody_answers(observer: Observer) -> None:
    await observer.tool("search")
    await observer.hire("ann", allowed_tools=["search"])
    turn = await observer.enqueue("ann", calls("search"), {"text": "in vain"})
    call = (await observer.command("search")).headers["CG-Tool-Call-Id"]
    await delivered(observer, "ann", turn)
    # > constructs a Report with message_type=timeout (correlation_id = timed-out tool_call_id), and writes to
    # > state.agent_inbox.
    [row, *_] = await observer.changes("agent_inbox", correlation_id=call, message_type="timeout")
    assert (row["agent_turn_id"], row["turn_epoch"]) == (turn["agent_turn_id"], 1)
    statuses = await observer.inbox(inbox_id=row["inbox_id"])
    assert (statuses[0], statuses[-1]) == ("pending", "consumed")
    assert await observer.edges(call) == [("tool_call", "request"), ("report", "response")]
    # > synchronize cleanup/recording of resume_deadline; the resume flow then continues processing.
    assert await observer.waits(call) == ["waiting", "expired"]
    assert (await observer.head("ann"))["resume_deadline"] is None
    [result] = [card for card in await observer.cards(turn["output_box_id"]) if card["type"] == "tool.result"]
    assert (result["content"]["status"], result["content"]["error"]["code"]) == ("timeout", "tool_timeout")


async def test_a_stopped_turn(observer: Observer) -> None:
    await observer.tool("search", options=PATIENT)
    await observer.hire("ann", allowed_tools=["search"])
    turn = await observer.enqueue("ann", calls("search"))
    call = (await observer.command("search")).headers["CG-Tool-Call-Id"]
    await observer.suspended("ann")
    rung = len(observer.wakeups("ann"))
    stop = await observer.must("stop", {"agent_turn_id": turn["agent_turn_id"], "reason": "enough"})
    # > Non-normal termination paths (stop/watchdog) must best-effort append deliverable and return deliverable_card_id.
    card = await delivered(observer, "ann", turn, "canceled")
    assert card["content"]["data"]["terminal_status"] == "canceled"
    # > Report is written to state.agent_inbox (message_type semanticized as tool_result/timeout/stop).
    [row, *_] = await observer.changes("agent_inbox", inbox_id=stop["inbox_id"])
    assert (row["message_type"], row["agent_turn_id"]) == ("stop", turn["agent_turn_id"])
    assert (await observer.inbox(inbox_id=stop["inbox_id"]))[-1] == "consumed"
    assert ("report", "response") in await observer.edges(row["correlation_id"])
    assert [wakeup["inbox_id"] for wakeup in observer.wakeups("ann")[rung:]] == [stop["inbox_id"]]
    # > Worker crash or forced end increments turn_epoch to invalidate old instructions.
    assert (await observer.heads("ann"))[-2:] == [("suspended", 1), ("idle", 2)]
    assert await observer.waits(call) == ["waiting", "dropped"]
    assert observer.told("ann", turn["agent_turn_id"])[-2:] == ["state idle", "task canceled"]


async def test_a_steered_turn(observer: Observer) -> None:
    await observer.hire("ann")
    turn = await observer.enqueue("ann", SLOW, {"text": "better"})

    async def is_running() -> bool:
        return (await observer.head("ann"))["status"] == "running"

    await observer.until(is_running)
    steer = await observer.must("steer", {"agent_turn_id": turn["agent_turn_id"], "text": "be brief"}, caller="alice")
    card = await delivered(observer, "ann", turn)
    assert card["content"]["text"] == "better"
    # > Inbox is the execution-side source of truth: execution requests/receipts must be written to state.agent_inbox.
    [row, *_] = await observer.changes("agent_inbox", message_type="steer")
    assert (row["agent_id"], row["agent_turn_id"], row["turn_epoch"]) == ("ann", turn["agent_turn_id"], 1)
    assert "be brief" not in json.dumps(row["payload"])
    assert (await observer.inbox(inbox_id=row["inbox_id"]))[-1] == "consumed"
    # > report (primitive="report", edge_phase="response"): records report ingestion.
    assert ("report", "response") in await observer.edges(row["correlation_id"])
    # > When processing each step, new input and output cards are incrementally appended to context.
    made = ["agent.thought", "task.steer", "agent.thought", "task.deliverable"]
    assert await observer.types(turn["output_box_id"]) == [*PINNED, *made]
    told = [each for each in observer.told("ann", turn["agent_turn_id"]) if each.startswith("steer")]
    assert told == ["steer waiting", "steer taken", "steer applied"]
    assert observer.of("evt.agent.ann.steer")[0]["steer_id"] == steer["steer_id"]


async def test_an_enqueue_that_a_running_turn_hears(observer: Observer) -> None:
    await observer.hire("ann")
    turn = await observer.enqueue("ann", SLOW, {"text": "better"}, conversation_id="c")

    async def is_running() -> bool:
        return (await observer.head("ann"))["status"] == "running"

    await observer.until(is_running)
    said = {"agent_id": "ann", "instruction": "be brief", "conversation_id": "c", "multitask_strategy": "steer"}
    reply = await observer.ask("enqueue", {**said, "correlation_id": "s-1"}, caller="alice")
    # > One Enqueue equals one Turn. This one made none, and says so (protocol §10.17).
    assert (reply["status"], reply["agent_turn_id"]) == ("steered", None)
    assert reply["steered_turn_id"] == turn["agent_turn_id"]
    await delivered(observer, "ann", turn)
    turns = await observer.rows(
        "SELECT DISTINCT agent_turn_id FROM state.agent_inbox WHERE project_id = $1", observer.project
    )
    assert [t["agent_turn_id"] for t in turns] == [turn["agent_turn_id"]]
    # > execution requests/receipts must be written to state.agent_inbox.
    [row, *_] = await observer.changes("agent_inbox", inbox_id=reply["inbox_id"])
    assert (row["message_type"], row["agent_turn_id"]) == ("steer", turn["agent_turn_id"])
    assert (await observer.inbox(inbox_id=row["inbox_id"]))[-1] == "consumed"
    assert ("report", "response") in await observer.edges(row["correlation_id"])


async def test_an_approved_turn(observer: Observer) -> None:
    await observer.tool("pay", options=PATIENT)
    await observer.hire("ann", allowed_tools=["pay"], interrupt_on={"pay": True})
    turn = await observer.enqueue("ann", calls("pay", amount=7), {"text": "paid"})
    head = await observer.suspended("ann")
    assert head["waiting_tool_count"] == 1

    async def asked() -> list[dict[str, Any]]:
        return observer.of("evt.agent.ann.interrupt", agent_turn_id=turn["agent_turn_id"])

    [question] = await observer.until(asked)
    assert observer.of("cmd.tool.pay.run") == []
    decision = {"interrupt_id": question["interrupt_id"], "action_digest": question["action_digest"]}
    await observer.must("decide", {**decision, "decision": "approve"}, caller="dora")
    # > publish cmd.tool.*: once a person lets it (protocol §13).
    call = (await observer.command("pay")).headers["CG-Tool-Call-Id"]
    assert call == question["tool_call_id"]
    # > execution requests/receipts must be written to state.agent_inbox.
    [row, *_] = await observer.changes("agent_inbox", message_type="decision")
    assert (row["agent_id"], row["agent_turn_id"], row["turn_epoch"]) == ("ann", turn["agent_turn_id"], 1)
    assert (await observer.inbox(inbox_id=row["inbox_id"]))[-1] == "consumed"
    assert ("report", "response") in await observer.edges(row["correlation_id"])
    await observer.must("report", {"tool_call_id": call, "status": "success", "result": "paid"})
    await delivered(observer, "ann", turn)
    assert await observer.waits(call) == ["waiting", "received", "applied"]


async def test_a_forked_turn(observer: Observer) -> None:
    await observer.hire("bob", profile="worker", tags=["associate"])
    policy: dict[str, Any] = {"target_profiles": None, "target_tags": []}
    await observer.hire("ann", allowed_tools=["fork_join"], delegation_policy=policy)
    says = json.dumps({"steps": [{"text": "a part"}]})
    tasks = [{"target_strategy": "new", "target_ref": "worker", "instruction": says} for _ in range(2)]
    turn = await observer.enqueue("ann", calls("fork_join", tasks=tasks), {"text": "whole"})
    await delivered(observer, "ann", turn)
    # > publish cmd.sys.pmo.internal.*.
    [command] = [each for each in observer.heard if each.subject == "cmd.sys.pmo.internal.fork_join"]
    call = command.headers["CG-Tool-Call-Id"]
    # > join (primitive="join", edge_phase="request|response"): records join-semantic subtask collaboration.
    assert sorted(await observer.edges(call)) == [("report", "response"), ("tool_call", "request")]
    [batch] = await observer.rows("SELECT * FROM state.pmo_batches WHERE project_id = $1", observer.project)
    assert (batch["parent_tool_call_id"], batch["parent_turn_epoch"], batch["status"]) == (call, 1, "success")
    assert await observer.edges(batch["batch_id"]) == [("join", "request"), ("join", "response")]
    children = await observer.rows(
        "SELECT * FROM state.agent_inbox WHERE project_id = $1 AND message_type = 'turn' AND agent_turn_id <> $2"
        " ORDER BY correlation_id",
        *(observer.project, turn["agent_turn_id"]),
    )
    assert [c["correlation_id"] for c in children] == [f"{call}-0", f"{call}-1"]
    for child in children:
        # > Each Enqueue is assigned a new agent_turn_id/turn_epoch by L0; enqueue: records all enqueue entries.
        assert await observer.edges(child["correlation_id"]) == [("enqueue", "request")]
        assert json.loads(child["context_headers"])["CG-Recursion-Depth"] == "1"
        boxes = json.loads(child["payload"])
        # > cross-agent context sharing must happen explicitly: assembling the required cards into a new context_box_id.
        assert await observer.types(boxes["context_box_id"]) == ["task.instruction", "meta.parent_pointer"]
        assert boxes["context_box_id"] != turn["context_box_id"]
        # > concurrent turns must not share the same output_box_id.
        ids = {"agent_turn_id": child["agent_turn_id"], **boxes}
        await delivered(observer, child["agent_id"], ids)
        assert child["inbox_id"] in [wakeup.get("inbox_id") for wakeup in observer.wakeups(child["agent_id"])]
    assert await observer.waits(call) == ["waiting", "received", "applied"]


async def test_a_ui_turn(observer: Observer) -> None:
    await observer.tool("search", options={**PATIENT, "ui_allowed": True})
    await observer.hire("ann")
    action = {"action_id": "a-1", "tool_name": "search", "args": {"q": "it"}, "agent_id": "ann"}
    subject = f"cg.v1r4.{observer.project}.public.cmd.sys.ui.action"
    await observer.nc.publish(subject, json.dumps(action).encode(), headers={"CG-Agent-Id": "ann"})
    call = (await observer.command("search")).headers["CG-Tool-Call-Id"]
    # > perform lease_agent_turn_with_conn first, set head directly to dispatched, then write to inbox
    # > (typically pending).
    [row, *_] = await observer.changes("agent_inbox", message_type="ui_action")
    assert (row["turn_epoch"], row["status"] in {"pending", "processing"}) == (1, True)
    assert await observer.edges(row["correlation_id"]) == [("enqueue", "request")]
    assert row["inbox_id"] in [wakeup.get("inbox_id") for wakeup in observer.wakeups("ann")]
    turn = {"agent_turn_id": row["agent_turn_id"], **row["payload"]}
    await observer.suspended("ann")
    await observer.must("report", {"tool_call_id": call, "status": "success", "result": {"hits": 2}})
    card = await delivered(observer, "ann", turn)
    # > If after_execution=terminate: continue execution and return to idle after writing delivery.
    assert card["content"]["data"] == {"hits": 2}
    heads = [("idle", 0), ("dispatched", 1), ("running", 1), ("suspended", 1), ("running", 1), ("idle", 1)]
    assert [head for head in await observer.heads("ann") if head != ("running", 1)] == [
        head for head in heads if head != ("running", 1)
    ]
    assert (await observer.inbox(inbox_id=row["inbox_id"]))[-1] == "consumed"
    acks = [each["status"] for each in observer.of("evt.sys.ui.action_ack", action_id="a-1")]
    assert acks == ["accepted", "done"]
