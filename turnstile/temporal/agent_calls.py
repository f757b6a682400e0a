"""`run_agent`: a turn of an agent, asked for by a workflow of one's own (docs/temporal.md, protocol §17.5).

It imports the standard library and temporalio alone, so that a workflow's sandbox may load it. One call is one turn:
its request is named after the activity that makes it, so attempts and replays ask for the same turn. A call is two
activities, which `TurnstileAgents` serves: one enqueues the turn, on the workflow's own task queue; the other waits for
its end, on a task queue beside it, so that waits of days take no place from other activities. A third one stops the
turn of a call that is cancelled. The workflow's history holds what the call is given and what it returns.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

from temporalio import exceptions, workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError

ENQUEUE, WAIT, STOP = "turnstile_enqueue_turn", "turnstile_wait_for_turn", "turnstile_stop_turn"
"""Names of the activities."""
WAITS_SUFFIX = "-agent-turns"
"""Of the task queue of waits, after the name of the one beside it."""

_FOREVER = timedelta(days=3650)
_ATTEMPT = timedelta(seconds=30)
_RETRY = RetryPolicy(initial_interval=timedelta(seconds=1), maximum_interval=timedelta(seconds=10))
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class AgentCall:
    """What a turn is asked with. A dataclass, as are the others here: every data converter can carry it."""

    agent_id: str | None = None
    profile_name: str | None = None
    instruction: str | None = None
    context_box_id: str | None = None
    output_box_id: str | None = None
    conversation_id: str | None = None
    result_fields: dict[str, str] = field(default_factory=dict[str, str])
    model: str | None = None
    remember: bool = False
    multitask_strategy: str | None = None
    budget: dict[str, Any] | None = None  # of numbers; errors in it are named
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])  # any JSON
    correlation_id: str | None = None


@dataclass(frozen=True, kw_only=True)
class EnqueuedTurn:
    """A turn that was asked for, and what a wait for it shall bring."""

    agent_turn_id: str
    agent_id: str
    output_box_id: str | None
    with_value: bool = False


@dataclass(frozen=True, kw_only=True)
class AgentResult:
    """What a turn came to."""

    agent_turn_id: str
    agent_id: str
    status: str
    """`success`, `failed`, `timeout`, `canceled`, …"""
    card_id: str | None = None
    """The card that holds the deliverable."""
    output_box_id: str | None = None
    """The box with all that the turn wrote, the deliverable too: the `context_box_id` of the next call, say."""
    partial: bool = False
    """Whether the deliverable is what was there when the turn was ended."""
    error_code: str | None = None
    """What went wrong, as a stable word."""
    value: Any = None  # JSON of any form
    """The deliverable, if it was asked for: a text, an object, or `{"fields": [{"name": …, "value": …}]}`."""

    @property
    def ok(self) -> bool:
        """Whether the turn succeeded."""
        return self.status == "success"

    @property
    def fields(self) -> dict[str, Any]:
        """The fields that were asked for, by name, if the value was asked for."""
        fields: object = self.value.get("fields") if isinstance(self.value, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]  # any JSON
        return {field["name"]: field["value"] for field in fields} if isinstance(fields, list) else {}  # pyright: ignore[reportUnknownVariableType]  # as above


class AgentCanceled(asyncio.CancelledError):
    """The call was cancelled. The turn was stopped, and is over: `result` says with what."""

    def __init__(self, result: AgentResult) -> None:
        super().__init__(f"turn {result.agent_turn_id} was stopped: {result.status}")
        self.result = result


async def run_agent(
    *,
    agent_id: str | None = None,
    profile_name: str | None = None,
    instruction: str | None = None,
    context_box_id: str | None = None,
    output_box_id: str | None = None,
    conversation_id: str | None = None,
    result_fields: Sequence[str] | Mapping[str, str] = (),
    model: str | None = None,
    remember: bool = False,
    multitask_strategy: str | None = None,
    budget: Mapping[str, Any] | None = None,
    metadata: Mapping[str, Any] | None = None,
    correlation_id: str | None = None,
    with_value: bool = False,
    schedule_to_close_timeout: timedelta = _FOREVER,
    heartbeat_timeout: timedelta = timedelta(seconds=60),
    task_queue: str | None = None,
) -> AgentResult:
    """Run a turn to its end, whatever its status; the arguments are those of `turnstile.Client.ask`.

    The result has ids; `with_value` puts the deliverable into it, and so into the workflow's history. The turn is
    stopped after `schedule_to_close_timeout`. Where a worker dies, another goes on within `heartbeat_timeout`. The
    activities run on the workflow's task queue or, if given, on `task_queue`.

    Raises `ActivityError`: its cause is an `ApplicationError` whose type is the code of the refusal (`unknown_agent`,
    `budget_exceeded`, …), or a `TimeoutError`. If the workflow or the task that awaits it is cancelled, it stops the
    turn, waits for its end and raises `AgentCanceled`.
    """
    described = result_fields if isinstance(result_fields, Mapping) else dict.fromkeys(result_fields, "")
    call = AgentCall(
        agent_id=agent_id,
        profile_name=profile_name,
        instruction=instruction,
        context_box_id=context_box_id,
        output_box_id=output_box_id,
        conversation_id=conversation_id,
        result_fields=dict(described),
        model=model,
        remember=remember,
        multitask_strategy=multitask_strategy,
        budget=None if budget is None else dict(budget),
        metadata=dict(metadata or {}),
        correlation_id=correlation_id,
    )
    queue, summary = task_queue or workflow.info().task_queue, f"agent {agent_id or profile_name}"
    began = workflow.now()
    enqueued, canceled = await _uncancelled(
        workflow.start_activity(
            ENQUEUE,
            call,
            result_type=EnqueuedTurn,
            task_queue=queue,
            start_to_close_timeout=min(_ATTEMPT, heartbeat_timeout),
            schedule_to_close_timeout=schedule_to_close_timeout,
            retry_policy=_RETRY,
            summary=summary,
        )
    )
    turn = EnqueuedTurn(
        agent_turn_id=enqueued.agent_turn_id,
        agent_id=enqueued.agent_id,
        output_box_id=enqueued.output_box_id,
        with_value=with_value,
    )
    waiting = workflow.start_activity(
        WAIT,
        turn,
        result_type=AgentResult,
        task_queue=queue + WAITS_SUFFIX,
        schedule_to_close_timeout=max(schedule_to_close_timeout - (workflow.now() - began), timedelta(seconds=1)),
        heartbeat_timeout=heartbeat_timeout,
        retry_policy=_RETRY,
        summary=summary,
    )
    try:
        result = await asyncio.shield(waiting) if not canceled else None
    except asyncio.CancelledError:
        result = None
    except ActivityError as error:
        if isinstance(error.cause, exceptions.TimeoutError):
            await _stop(enqueued, queue, "the workflow's time for it is over")
        raise
    if result is None:
        await _stop(enqueued, queue, "the workflow was cancelled")
        raise AgentCanceled((await _uncancelled(waiting))[0])
    return result


async def _stop(turn: EnqueuedTurn, queue: str, reason: str) -> None:
    await _uncancelled(
        workflow.start_activity(
            STOP,
            args=[turn.agent_turn_id, reason],
            task_queue=queue,
            start_to_close_timeout=_ATTEMPT,
            retry_policy=_RETRY,
            summary=f"stop turn of {turn.agent_id}",
        )
    )


async def _uncancelled(work: "asyncio.Task[T]") -> tuple[T, bool]:
    """The result of an activity, and whether the caller was cancelled meanwhile; if it fails then, it is cancelled."""
    canceled = False
    while True:
        try:
            return await asyncio.shield(work), canceled
        except asyncio.CancelledError:
            if work.done():
                raise
            canceled = True
        except ActivityError:
            if canceled:
                raise asyncio.CancelledError from None
            raise
