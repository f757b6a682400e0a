"""The call that a tool's function answers, and what it may ask of agents and people meanwhile (protocol §12, §13).

What it asks is asked as the agent that made the call: under that turn's delegation policy, boxes and depth. The
children are waited for, and a stop of the turn reaches them. What is asked is named by the call and a key, by default
its place among what the function asks (`1`, `2`, …): a function that is run again asks the same, and finds the same
children, or the same answer of a person. A function whose order is not the same in every run gives each a `key` of its
own.
"""

import asyncio
import inspect
import itertools
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, Literal, Protocol, TypeAlias, TypeVar, cast

from pydantic import JsonValue, ValidationError
from pydantic_core import PydanticSerializationError, to_json, to_jsonable_python

from turnstile.runtime.gen_ai import Attributes, used
from turnstile.schema.base import JsonObject
from turnstile.schema.cards import ResultField
from turnstile.schema.delegation.arguments import Join, Losers
from turnstile.schema.delegation.requests import AskedTool, ChildAnswer, DelegateRequest, HumanReply, JoinAnswer
from turnstile.schema.errors import BadRequest, ConfigError, Refused
from turnstile.schema.ids import AgentId, AgentTurnId, ChannelId, ProjectId, StepId, ToolCallId
from turnstile.schema.validation import describe_faults
from turnstile.schema.wire.call_requests import (
    VALUE_BYTES,
    CallHistoryReply,
    CallHistoryRequest,
    CallStepReply,
    CallStepRequest,
    HistoryCard,
    StepOutcome,
    StepUse,
)
from turnstile.schema.wire.progress import MESSAGE_CHARACTERS, ProgressRequest
from turnstile.sdk.requests import Budget, budget_of

Value = TypeVar("Value")


class CallRequests(Protocol):
    """Sends the requests of one call, for children or to people, and repeats each until it has its result."""

    async def __call__(self, request: DelegateRequest) -> JsonObject:
        """Return what they came to; raise `Refused` with the code of why there are none."""
        ...

    async def step(self, request: CallStepRequest) -> CallStepReply:
        """Record a step, or look for it; raise `Refused` with the code of why it may not run."""
        ...

    async def history(self, request: CallHistoryRequest) -> CallHistoryReply:
        """Return a page of what the call's turn may read; raise `Refused` if the call waits no more."""
        ...

    async def waits(self) -> bool:
        """Whether the call still waits for its result."""
        ...

    def standing_still(self) -> AbstractContextManager[None]:
        """Around what is not the call's own time."""
        ...

    def traced(self, key: str) -> AbstractContextManager[Attributes]:
        """Around a step: its span, and what else that shall say."""
        ...


SendProgress: TypeAlias = Callable[[ProgressRequest], Awaitable[None]]
"""Publishes how far a call is, best effort."""


@dataclass(frozen=True, slots=True)
class HumanAnswer:
    """What a person answered."""

    decision: Literal["respond", "reject"]
    response: JsonValue = None
    """With `respond`: the answer; one of the choices, of the schema that was asked for, or a text."""
    message: str = ""
    """With `reject`: why."""


@dataclass(frozen=True, slots=True)
class Used(Generic[Value]):
    """Return it from the function of a step to say what a model used for the value, besides the value."""

    value: Value
    model: str
    tokens: int
    """All that it read and wrote."""
    cost: float = 0.0
    """In US dollars."""
    written: int = 0
    """Of the tokens, those that it wrote."""


StepFunction: TypeAlias = Callable[[], object]
"""Returns the value of a step, JSON or what pydantic writes as JSON, or `Used` of it; or an awaitable."""
_LOOK_SECONDS = 5.0
"""How often a step that runs looks whether its call still waits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildTask:
    """A piece of work for another agent: a new one of a `profile`, one that is there (`reuse`), or a `clone` of one."""

    instruction: str
    """What it shall do."""
    profile: str | None = None
    """The profile of the new agent."""
    reuse: str | None = None
    """The id of the agent that is asked itself."""
    clone: str | None = None
    """The id of the agent that a new one is made after."""
    context_box_id: str | None = None
    """A box of the calling turn whose cards the agent reads first."""
    result_fields: Sequence[ResultField | Mapping[str, Any]] | None = None
    """Fields that its deliverable must have; `value` is then an object."""
    output_schema: JsonObject | None = None
    """A JSON schema; `value` is then `{"value": …}`, which matches it (protocol §18)."""
    label: str | None = None
    """In a fork, a name that its result repeats."""
    budget: Budget | None = None
    """What its turn and all below it may use, out of what the calling turn has left; by default all of that."""

    def arguments(self) -> JsonObject:
        """As the delegating tools take it; raises `BadRequest` unless exactly one agent is named."""
        named = (("new", self.profile), ("reuse", self.reuse), ("clone", self.clone))
        targets = [(strategy, ref) for strategy, ref in named if ref is not None]
        if len(targets) != 1:
            raise BadRequest("a task names exactly one of profile, reuse and clone")
        [(strategy, ref)] = targets
        task: JsonObject = {"target_strategy": strategy, "target_ref": ref, "instruction": self.instruction}
        task |= {} if self.context_box_id is None else {"context_box_id": str(self.context_box_id)}
        task |= {} if self.label is None else {"label": self.label}
        task |= {} if self.output_schema is None else {"output_schema": self.output_schema}
        task |= {} if self.budget is None else {"budget": budget_of(self.budget)}
        if self.result_fields is not None:
            task["result_fields"] = [_field(result_field) for result_field in self.result_fields]
        return task


@dataclass(frozen=True, slots=True)
class ToolCall:
    """The call that a function answers. It is passed to a parameter of this type; the model does not see the parameter.

    `tool_call_id` is the same each time the call is run: use it as the idempotency key of what cannot be undone.
    """

    tool_call_id: ToolCallId
    tool_name: str
    project_id: ProjectId
    channel_id: ChannelId
    agent_id: AgentId
    agent_turn_id: AgentTurnId
    step_id: StepId
    traceparent: str | None
    delivery: int
    """1, or more if the command was delivered before."""
    resume_deadline: datetime | None
    """When the turn stops waiting for this call, as the run began; a question to a person puts it off."""
    requests: CallRequests | None = field(default=None, repr=False, compare=False)
    """Set by the service that runs the call."""
    send_progress: SendProgress | None = field(default=None, repr=False, compare=False)
    """As `requests`."""
    _steps: set[str] = field(default_factory=set[str], init=False, repr=False, compare=False)
    files: list[str] = field(default_factory=list[str], init=False, repr=False, compare=False)
    """The ids of the files that its result hands over; see `attach`."""
    _places: Iterator[int] = field(default_factory=lambda: itertools.count(1), init=False, repr=False, compare=False)

    async def delegate(
        self,
        instruction: str,
        *,
        profile: str | None = None,
        reuse: str | None = None,
        clone: str | None = None,
        context_box_id: str | None = None,
        result_fields: Sequence[ResultField | Mapping[str, Any]] | None = None,
        output_schema: JsonObject | None = None,
        budget: Budget | None = None,
        key: str | None = None,
    ) -> ChildAnswer:
        """Let another agent do something, and return what it came to, whether it succeeded or not.

        Raises `Refused` with a code if the agent was not asked: `delegation_denied`, `unknown_profile`,
        `recursion_depth_exceeded`, `queue_full`, `budget_exceeded`, `parent_stopping`, `parent_over`, …
        (docs/tools.md).
        """
        task = ChildTask(
            instruction=instruction,
            profile=profile,
            reuse=reuse,
            clone=clone,
            context_box_id=context_box_id,
            result_fields=result_fields,
            output_schema=output_schema,
            budget=budget,
        )
        return await self._ask_one("delegate_async", task.arguments(), key)

    async def ask_expert(
        self,
        profile: str,
        question: str,
        *,
        include_history: bool = False,
        budget: Budget | None = None,
        key: str | None = None,
    ) -> ChildAnswer:
        """Ask a new agent of a profile, which may read what the calling turn has done; raises as `delegate` does."""
        arguments: JsonObject = {"expert_profile": profile, "question": question, "include_history": include_history}
        arguments |= {} if budget is None else {"budget": budget_of(budget)}
        return await self._ask_one("ask_expert", arguments, key)

    async def fork(
        self,
        tasks: Sequence[ChildTask],
        *,
        join: Join | None = None,
        k: int | None = None,
        fail_fast: bool = False,
        losers: Losers = "stop",
        deadline_seconds: float | None = None,
        key: str | None = None,
    ) -> JoinAnswer:
        """Let several agents work at once, and return what they came to, in the order of the tasks.

        Raises `Refused` as `delegate` does. With `join` a task that is refused fails alone, in its result.
        """
        arguments: JsonObject = {
            "tasks": [task.arguments() for task in tasks],
            "fail_fast": fail_fast,
            "losers": losers,
        }
        arguments |= {} if join is None else {"join": join}
        arguments |= {} if k is None else {"k": k}
        arguments |= {} if deadline_seconds is None else {"deadline_seconds": deadline_seconds}
        return JoinAnswer.model_validate(await self._ask("fork_join", arguments, key))

    async def ask_human(
        self,
        question: str,
        *,
        choices: Sequence[str] | None = None,
        response_schema: JsonObject | None = None,
        expires_after_seconds: float | None = None,
        key: str | None = None,
    ) -> HumanAnswer:
        """Ask a person, and return the answer, or the rejection; the time of the call stands still meanwhile.

        Raises `Refused` with a code: `no_answer` if nobody answered in time (a week, unless the profile or
        `expires_after_seconds` says less), `parent_over`, `parent_stopping`, `key_conflict`, `invalid_arguments`, …
        """
        arguments: JsonObject = {"question": question}
        arguments |= {} if choices is None else {"choices": list(choices)}
        arguments |= {} if response_schema is None else {"response_schema": response_schema}
        arguments |= {} if expires_after_seconds is None else {"expires_after_seconds": expires_after_seconds}
        reply = HumanReply.model_validate(await self._ask("ask_human", arguments, key))
        return HumanAnswer(reply.decision, reply.response, reply.message)

    async def step(self, key: str, function: StepFunction) -> Any:
        """Do something once for the call, whatever becomes of the process, and return its value as JSON has it.

        The first value that is recorded under the key counts for every run of the call, and later ones get it without
        running the function. The function runs at least once, in a thread unless it is async, and is cancelled within
        seconds if the call waits no more. If it raises, nothing is recorded. Costs two requests.

        Raises `Refused` with a code: `parent_over`, `parent_stopping`, `budget_exhausted`, `too_many_steps`,
        `result_too_large` (512 KiB), `key_conflict` if this run has used the key for another step.
        """
        requests = self._requests()
        if key in self._steps:
            raise Refused("key_conflict", f"the key {key[:64]!r} names an earlier step of this run: give each its own")
        self._steps.add(key)
        try:
            with requests.traced(key) as span:
                done = await requests.step(_step_request(self.tool_call_id, key))
                if not done.recorded:
                    outcome = _outcome(await self._while_it_waits(function))
                    if (use := outcome.usage) is not None:
                        span.update(used(use.model, use.tokens - use.written, use.written))
                    done = await requests.step(_step_request(self.tool_call_id, key, outcome))
        except BaseException:
            self._steps.discard(key)  # it may be tried again
            raise
        return done.value

    async def history(self, *, after: str | None = None, limit: int = 100) -> list[HistoryCard]:
        """A page of what the turn may read: earlier turns of its box, then what it was asked; none at the end.

        `after`: the `place` of the last card of the page before. At most 100 cards, fewer where they are large. Raises
        `Refused` (`parent_over`) if the call waits no more.
        """
        requests = self._requests()
        try:
            request = CallHistoryRequest(tool_call_id=self.tool_call_id, after=after, limit=limit)
        except ValidationError:
            raise BadRequest("after is the place of a card, and limit 1 to 100") from None
        return list((await requests.history(request)).cards)

    async def _while_it_waits(self, function: StepFunction) -> object:
        """What the function returns; cancelled, and `Refused`, once the call waits no more."""
        work = asyncio.ensure_future(_run(function))
        try:
            while not (await asyncio.wait({work}, timeout=_LOOK_SECONDS))[0]:
                if not await self.waits():
                    raise Refused("parent_over", "the call waits no more: its turn is over, or is being stopped")
            return work.result()
        finally:
            work.cancel()

    def _requests(self) -> CallRequests:
        if self.requests is None:
            raise ConfigError("only a call that a ToolService runs has steps and a history")
        return self.requests

    async def waits(self) -> bool:
        """Whether the result is still wanted: False once the turn has ended, was stopped, or waits no longer.

        Costs a request. Without a bridge that answers it is True.
        """
        return self.requests is None or await self.requests.waits()

    def standing_still(self) -> AbstractContextManager[None]:
        """Around what is not the call's own time: the service's timeout does not count it, the turn's deadline does."""
        return nullcontext() if self.requests is None else self.requests.standing_still()

    def attach(self, *files: str) -> None:
        """Hand these files over with the result, by their ids: the model sees them, and the turn's answer has them.

        They must be ready and of the turn's channel, else the call fails as `unknown_artifact`. What a failed call
        attaches is left out.
        """
        self.files.extend(file for file in files if file not in self.files)

    async def progress(self, progress: float, *, total: float | None = None, message: str = "") -> None:
        """Tell whoever watches the turn how far the call is, best effort: at most twice a second, the rest is dropped.

        It waits a second at most, and never raises for trouble of servers; `BadRequest` if a number is not finite.
        """
        if self.send_progress is None:
            raise ConfigError("only a call that a ToolService runs can publish progress")
        cut = message if len(message) <= MESSAGE_CHARACTERS else message[: MESSAGE_CHARACTERS - 1] + "…"
        try:
            request = ProgressRequest(tool_call_id=self.tool_call_id, progress=progress, total=total, message=cut)
        except ValidationError:
            raise BadRequest("progress and total are finite numbers") from None
        await self.send_progress(request)

    async def _ask_one(self, tool: AskedTool, arguments: JsonObject, key: str | None) -> ChildAnswer:
        answer = ChildAnswer.model_validate(await self._ask(tool, arguments, key))
        if answer.agent_turn_id is None and answer.error is not None:  # refused as it was enqueued
            why = "" if answer.error_detail is None else f" {json.dumps(answer.error_detail)}"
            raise Refused(answer.error, f"the agent was not asked: {answer.error}{why}")
        return answer

    async def _ask(self, tool: AskedTool, arguments: JsonObject, key: str | None) -> JsonObject:
        place = str(next(self._places))
        if self.requests is None:
            raise ConfigError("only a call that a ToolService runs can ask agents and people")
        try:
            request = DelegateRequest(
                tool_call_id=self.tool_call_id, key=place if key is None else key, tool=tool, arguments=arguments
            )
        except ValidationError:
            raise BadRequest("a key has 1 to 64 characters of A-Z a-z 0-9 _ . : -") from None
        return await self.requests(request)


async def _run(function: StepFunction) -> object:
    if inspect.iscoroutinefunction(function):
        return await function()
    value = await asyncio.to_thread(function)
    return await cast("Awaitable[object]", value) if inspect.isawaitable(value) else value


def _step_request(call: ToolCallId, key: str, outcome: StepOutcome | None = None) -> CallStepRequest:
    try:
        return CallStepRequest(tool_call_id=call, key=key, outcome=outcome)
    except ValidationError:
        raise BadRequest("a key of a step has 1 to 128 characters of A-Z a-z 0-9 _ . : / -") from None


def _outcome(value: object) -> StepOutcome:
    """What a function came to, as JSON; raises `BadRequest` for what is none."""
    used = cast("Used[object]", value) if isinstance(value, Used) else None
    try:
        written = to_jsonable_python(value if used is None else used.value, inf_nan_mode="null")
        if (size := len(to_json(written))) > VALUE_BYTES:
            raise Refused("result_too_large", f"the value has {size} bytes; the limit is {VALUE_BYTES}")
        use = (
            None
            if used is None
            else StepUse(model=used.model, tokens=used.tokens, written=used.written, cost=used.cost)
        )
        return StepOutcome(value=written, usage=use)
    except ValidationError as error:
        raise BadRequest(f"a step's value cannot be recorded: {describe_faults(error, StepUse)[:200]}") from None
    except (PydanticSerializationError, ValueError) as error:
        raise BadRequest(f"a step's value cannot be recorded: {str(error).splitlines()[0][:200]}") from None


def _field(field: ResultField | Mapping[str, Any]) -> JsonObject:
    return field.model_dump(mode="json") if isinstance(field, ResultField) else dict(field)
