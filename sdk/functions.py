"""Functions of a program that the model of its turn calls, and the program runs (protocol §19, docs/client-tools.md).

While the program reads a turn or waits for it, each call is run once here: an async function as a task, which is
cancelled at the call's deadline, a sync one in a thread of its own, off the event loop. What a function raises is the
answer `reject` with a message of at most 500 characters. A call that the program does not answer, since it has ended,
stays open until its deadline: the same request made again runs what is open. Costs one look at the turn's open calls
whenever the turn sleeps, and every few seconds, then two requests for each call.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Final, Never, Protocol, TypeVar, assert_never

from pydantic import BaseModel, JsonValue

from turnstile.schema import verbs
from turnstile.schema.base import JsonObject, Reply
from turnstile.schema.errors import BadRequest, Limited, Refused, ServerUnavailable
from turnstile.schema.ids import AgentTurnId, InterruptId
from turnstile.schema.people.approvals import Decision
from turnstile.schema.people.interrupt_requests import InterruptListRequest, InterruptRequest, InterruptView
from turnstile.schema.people.interrupts import DecideRequest, Interrupt, InterruptReason, InterruptStatus
from turnstile.schema.verbs import Verb
from turnstile.sdk.requests import parse_request
from turnstile.sdk.tools.answer import ToolFailed, ToolReport, answer, failed, prepare
from turnstile.sdk.tools.function_run import FunctionRaised, FunctionReturned, RunTime, TimedOut, ToolRun
from turnstile.sdk.tools.spec import ToolFunction, ToolSpec, ToolTerms, read_spec

Request = TypeVar("Request", bound=BaseModel)
Answer = TypeVar("Answer", bound=Reply)
_TERMS: Final = ToolTerms(target="client", suffix="run")
_AT_ONCE: Final = 16
"""Functions that run at the same time, as of a tool service."""
_LOOK_SECONDS: Final = 2.0
"""How often is looked for calls of which no event came."""
_AGAIN_SECONDS: Final = 0.5
_PAST: Final = frozenset({"already_decided", "expired", "withdrawn"})
"""Codes of answers that came after another end of their call."""
_MOST_CALLS: Final = 500
"""Calls that one look reads: those that are open later are read by the next one."""

Result = TypeVar("Result")
logger: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Answering:
    """The running of calls. It ends only by raising: where a call cannot be answered, as by another token."""

    task: asyncio.Task[Never]

    async def meanwhile(self, work: Awaitable[Result]) -> Result:
        """What `work` comes to; raises what ends the running of calls, if that is first."""
        working = asyncio.ensure_future(work)
        try:
            await asyncio.wait({working, self.task}, return_when=asyncio.FIRST_COMPLETED)
            return await (working if working.done() else self.task)
        finally:
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)


class CallingTurn(Protocol):
    """What is used here of a turn whose model calls functions of its client."""

    @property
    def closed(self) -> bool:
        """Whether the connection is closed for good."""
        ...

    async def start(self) -> AgentTurnId:
        """Enqueue the turn unless that was done, and return its id."""
        ...

    def hints(self) -> AbstractAsyncContextManager[asyncio.Event]:
        """An event that is set when a call of the started turn may wait for its client."""
        ...

    async def call(self, verb: Verb[Request, Answer], request: Request) -> Answer:
        """The accepted reply to a verb about the turn."""
        ...


class ClientFunctions:
    """The functions of one turn, and their calls. Raises `ConfigError` for a function that cannot be a tool.

    Raises `BadRequest` for one that takes a `ToolCall`, and for two of one name.
    """

    def __init__(self, functions: Sequence[ToolFunction]) -> None:
        self._specs: dict[str, ToolSpec] = {}
        for function in functions:
            spec = read_spec(function, _TERMS)
            if spec.call_parameter is not None:
                raise BadRequest(f"tools: {spec.name} takes a ToolCall, which a function of a client does not get")
            if spec.name in self._specs:
                raise BadRequest(f"tools: two functions are called {spec.name}: give one another name")
            self._specs[spec.name] = spec
        self._runs: dict[InterruptId, asyncio.Task[None]] = {}
        self._room = asyncio.Semaphore(_AT_ONCE)

    def offered(self) -> list[JsonValue]:
        """`client_tools` of the request."""
        return [
            spec.definition.model_dump(mode="json", include={"description", "parameters"}) | {"name": name}
            for name, spec in self._specs.items()
        ]

    @asynccontextmanager
    async def answering(self, turn: CallingTurn) -> AsyncGenerator["Answering"]:
        """Run the calls of a started turn while inside. What runs at the exit goes on: `cancel` ends it."""
        task = asyncio.create_task(self._answer(turn), name="functions of a turn")
        try:
            yield Answering(task)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def cancel(self) -> None:
        """Cancel what runs: the turn is over. A thread runs on, and its result is dropped."""
        for run in self._runs.values():
            run.cancel()

    async def _answer(self, turn: CallingTurn) -> Never:
        async with turn.hints() as hint:
            while True:
                hint.clear()
                with suppress(Limited, ServerUnavailable):  # repeated with the next look
                    await self._begin_open(turn)
                running = {run for run in self._runs.values() if not run.done()}
                for run in self._runs.values():
                    if run.done() and not run.cancelled():
                        run.result()
                hinted = asyncio.ensure_future(hint.wait())
                await asyncio.wait({hinted, *running}, timeout=_LOOK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                hinted.cancel()
                if turn.closed:
                    raise ServerUnavailable("the client is closed")

    async def _begin_open(self, turn: CallingTurn) -> None:
        """Begin to run the open calls that do not run yet."""
        fields: JsonObject = {
            "agent_turn_id": await turn.start(),
            "reason": InterruptReason.CLIENT_TOOL,
            "status": InterruptStatus.OPEN,
            "limit": _MOST_CALLS,
        }
        reply = await turn.call(verbs.INTERRUPT_LIST, parse_request(InterruptListRequest, fields))
        for interrupt in reversed(reply.interrupts):
            if interrupt.interrupt_id not in self._runs:
                run = asyncio.create_task(self._run(turn, interrupt), name=f"call of {interrupt.tool_name}")
                self._runs[interrupt.interrupt_id] = run

    async def _run(self, turn: CallingTurn, interrupt: Interrupt) -> None:
        async with self._room:
            view = await self._seen(turn, interrupt)
            report = await self._report(view)
        if report is not None:
            await self._decide(turn, interrupt.interrupt_id, report)

    async def _report(self, view: InterruptView) -> ToolReport | None:
        """What the function came to; None if it did not end before the call's deadline."""
        spec = self._specs.get(view.tool_name)
        if spec is None:  # the same correlation id with other functions
            return failed("unknown_tool", f"the program has no function {view.tool_name}")
        try:
            prepared = prepare(spec, view.arguments or {}, None, {})
        except ToolFailed as error:
            return failed(error.code, str(error))
        run = ToolRun(spec.function, prepared.arguments)
        try:
            outcome = await run.outcome(RunTime((view.expires_at - view.created_at).total_seconds()))
        finally:
            run.cancel()
        match outcome:
            case FunctionReturned(value):
                return answer(value, frozenset())
            case FunctionRaised(error):
                logger.warning("function %s, call %s failed", spec.name, view.tool_call_id, exc_info=error)
                return failed("client_tool_failed", str(error) or type(error).__name__)
            case TimedOut():
                logger.warning("function %s, call %s did not end in its time", spec.name, view.tool_call_id)
                return None
            case _:
                assert_never(outcome)

    async def _seen(self, turn: CallingTurn, interrupt: Interrupt) -> InterruptView:
        """The call with its arguments."""
        request = parse_request(InterruptRequest, {"interrupt_id": interrupt.interrupt_id})
        while True:
            try:
                reply = await turn.call(verbs.INTERRUPT_GET, request)
            except (Limited, ServerUnavailable) as error:
                await _pause(turn, error)
                continue
            if reply.interrupt is None:
                raise Refused("internal_error", "the bridge found a call and showed none")
            return reply.interrupt

    async def _decide(self, turn: CallingTurn, interrupt_id: InterruptId, report: ToolReport) -> None:
        """Answer the call, repeated until it is taken; an answer that is refused for what it holds becomes `reject`."""
        error = report.error
        decision: JsonObject = (
            {"decision": Decision.RESPOND, "response": report.result}
            if error is None
            else {"decision": Decision.REJECT, "message": error.message}
        )
        while True:
            try:
                request = parse_request(DecideRequest, {"interrupt_id": interrupt_id, **decision})
                await turn.call(verbs.DECIDE, request)
            except (Limited, ServerUnavailable) as again:
                await _pause(turn, again)
            except (BadRequest, Refused) as refused:
                if refused.code in _PAST:
                    return
                if error is not None:
                    raise
                await self._decide(turn, interrupt_id, failed(refused.code, f"the result is refused: {refused}"))
                return
            else:
                return


async def _pause(turn: CallingTurn, error: Limited | ServerUnavailable) -> None:
    """Wait before a request is repeated; raises the error if the client is closed."""
    if turn.closed:
        raise error
    await asyncio.sleep((error.retry_after if isinstance(error, Limited) else None) or _AGAIN_SECONDS)
