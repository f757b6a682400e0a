"""What a decision must bring, and what it must not."""

import json
from datetime import UTC, datetime

import pytest
from pydantic import ValidationError

from turnstile.schema.ids import AgentId, AgentTurnId, ChannelId, ProjectId, StepId, ToolCallId, interrupt_id
from turnstile.schema.people.interrupts import DecideRequest, InterruptEvent, InterruptReason
from turnstile.schema.wire import headers
from turnstile.schema.wire.events import TurnAddress

BASE = {"interrupt_id": "int-call_1-1", "action_digest": "d"}


@pytest.mark.parametrize(
    "more",
    [
        {"decision": "approve"},
        {"decision": "edit", "arguments": {"a": 1}},
        {"decision": "reject", "message": "no"},
        {"decision": "respond", "response": None},
        {"decision": "respond", "response": {"a": [1]}},
    ],
)
def test_each_decision_has_what_it_needs(more: dict[str, object]) -> None:
    assert DecideRequest.model_validate(BASE | more).decision == more["decision"]


@pytest.mark.parametrize(
    "more",
    [
        {"decision": "edit"},
        {"decision": "approve", "arguments": {}},
        {"decision": "respond"},
        {"decision": "reject", "response": "yes"},
        {"decision": "delete"},
        {"decision": "approve", "by": "alice"},
    ],
)
def test_what_belongs_to_another_decision_is_refused(more: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        DecideRequest.model_validate(BASE | more)


def test_the_event_has_ids_and_digest_and_neither_question_nor_arguments() -> None:
    event = InterruptEvent(
        interrupt_id=interrupt_id(ToolCallId("call_1")),
        agent_id=AgentId("a"),
        agent_turn_id=AgentTurnId("t"),
        step_id=StepId("t-s1"),
        tool_call_id=ToolCallId("call_1"),
        tool_name="pay",
        reason=InterruptReason.TOOL_CALL,
        action_digest="d",
        expires_at=datetime(2026, 1, 1, tzinfo=UTC),
    )
    address = TurnAddress(
        ProjectId("p"), ChannelId("public"), AgentId("a"), AgentTurnId("t"), 1, {}, "turnstile.worker"
    )
    sent = address.interrupt(event)
    assert sent.subject == "cg.v1r4.p.public.evt.agent.a.interrupt"
    assert (sent.headers[headers.STEP_ID], sent.headers[headers.TOOL_CALL_ID]) == ("t-s1", "call_1")
    assert set(json.loads(sent.payload)) == {
        "interrupt_id", "agent_id", "agent_turn_id", "step_id", "tool_call_id", "tool_name", "reason",
        "action_digest", "expires_at",
    }  # fmt: skip
