"""Recorded histories replay: what runs of older workers left behind, this one can go on with."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, cast

import pytest
from pydantic import BaseModel, JsonValue
from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowHistory
from temporalio.worker import (
    Interceptor,
    StartActivityInput,
    WorkflowInboundInterceptor,
    WorkflowInterceptorClassInput,
    WorkflowOutboundInterceptor,
)
from temporalio.workflow import ActivityHandle

from tests.workflows.recordings import (
    EARLY_SHAPE,
    LONG_SHAPES,
    SHAPES,
    THREAD_SHAPES,
    recorded,
    replay,
    replay_sandboxed,
)
from turnstile.schema.pump.threads import AdvanceInput
from turnstile.schema.turns import RunStepInput

PATHS = re.compile(rb"/(home|root|tmp|usr|var|opt|work|Users)/")
HISTORIES = recorded()
INPUTS: dict[str, type[BaseModel]] = {"run_step": RunStepInput, "advance_message": AdvanceInput}


def test_every_shape_is_recorded() -> None:
    runs = {f"{name}-{number}" for name in LONG_SHAPES for number in (1, 2)}
    assert {history.workflow_id for history in HISTORIES} == {
        *SHAPES,
        *THREAD_SHAPES,
        *runs,
        EARLY_SHAPE,
    }


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("thread-handler-let-go", EventType.EVENT_TYPE_ACTIVITY_TASK_CANCEL_REQUESTED),
        ("thread-agent-late", EventType.EVENT_TYPE_TIMER_FIRED),
        ("thread-agent-asked", EventType.EVENT_TYPE_TIMER_CANCELED),
        ("thread-long-1", EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW),
    ],
)
def test_the_shape_of_a_thread_has_what_it_is_recorded_for(name: str, kind: EventType.ValueType) -> None:
    [history] = [history for history in HISTORIES if history.workflow_id == name]
    assert kind in {event.event_type for event in history.events}


async def test_recorded_histories_replay() -> None:
    assert await replay(HISTORIES) == {}


async def test_recorded_histories_replay_in_the_sandbox() -> None:
    assert await replay_sandboxed(HISTORIES) == {}


@pytest.mark.long
@pytest.mark.parametrize("seed", ["0", "4242"])
def test_recorded_histories_replay_whatever_the_hash_seed(seed: str) -> None:
    program = "import asyncio; from tests.workflows.recordings import *; print(asyncio.run(replay(recorded())))"
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, text=True
    )
    assert done.stdout.strip() == "{}", done.stderr


async def test_a_history_that_does_not_fit_is_noticed() -> None:
    text = next(history.to_json() for history in HISTORIES if history.workflow_id == "plain")
    failures = await replay([WorkflowHistory.from_json("other", text.replace("run_step", "run_other"))])
    assert "NondeterminismError" in failures.popitem()[1]


class Inputs(Interceptor):
    """Sees what a workflow gives its activities."""

    def __init__(self) -> None:
        self.seen: list[BaseModel] = []

    def workflow_interceptor_class(self, input: WorkflowInterceptorClassInput) -> type[WorkflowInboundInterceptor]:  # noqa: A002 -- the SDK's name
        """Wrap the workflow."""
        seen = self.seen

        class Outbound(WorkflowOutboundInterceptor):
            def start_activity(self, input: StartActivityInput) -> ActivityHandle[Any]:  # noqa: A002 -- the SDK's name
                seen.append(input.args[0])
                return super().start_activity(input)

        class Inbound(WorkflowInboundInterceptor):
            def init(self, outbound: WorkflowOutboundInterceptor) -> None:
                super().init(Outbound(outbound))

        return Inbound


@pytest.mark.parametrize("history", HISTORIES, ids=lambda history: history.workflow_id)
async def test_activities_are_given_what_was_recorded(history: WorkflowHistory) -> None:
    """The SDK compares the kind of a command, not its input."""
    scheduled = [
        event.activity_task_scheduled_event_attributes
        for event in history.events
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED
    ]
    recorded_inputs = [
        INPUTS[each.activity_type.name].model_validate_json(each.input.payloads[0].data) for each in scheduled
    ]
    inputs = Inputs()
    assert await replay([history], inputs) == {}
    assert inputs.seen == recorded_inputs
    assert recorded_inputs


@pytest.mark.parametrize("history", HISTORIES, ids=lambda history: history.workflow_id)
def test_recorded_histories_name_no_machine(history: WorkflowHistory) -> None:
    names = list(_values(cast("JsonValue", history.to_json_dict()), "identity"))
    assert names
    assert set(names) == {"turnstile@recorder"}
    for event in history.events:
        assert not PATHS.search(event.SerializeToString())


def _values(value: JsonValue, key: str) -> Iterator[JsonValue]:
    """What stands under a key, wherever it is."""
    if isinstance(value, dict):
        if key in value:
            yield value[key]
        for each in value.values():
            yield from _values(each, key)
    elif isinstance(value, list):
        for each in value:
            yield from _values(each, key)
