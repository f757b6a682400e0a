"""`/agui/{agent}`: turns as runs of AG-UI, streamed (protocol §17.4).

A client that goes away stops nothing, unless it asked for `on_disconnect=cancel`; a repeated run is the same turn,
streamed from its begin. A run ends when its turn is over or waits for a person, and then goes on as another run. What
AG-UI calls an error of a run ends its stream; an error of the request itself is a problem, as everywhere.
"""

import contextlib
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import Final

from ag_ui.core import BaseEvent, RunAgentInput, RunErrorEvent, TokenUsage
from ag_ui.encoder import EventEncoder

from turnstile.gateway.addressed import look_up
from turnstile.gateway.agui.answers import interrupt_of
from turnstile.gateway.agui.begins import Thread
from turnstile.gateway.agui.run_input import RunQuery, cancels, check_supported, client_tools_in, outputs_in
from turnstile.gateway.agui.run_stream import Run, RunStream
from turnstile.gateway.events.frames import HEARTBEAT
from turnstile.gateway.events.positions import BEGIN
from turnstile.gateway.events.reading import Reader, reader_of
from turnstile.gateway.events.stream import EventStream
from turnstile.gateway.http.endpoints import Answer, Call, Endpoint
from turnstile.gateway.http.problems import Forbidden, problem_of
from turnstile.gateway.kernel import Kernel
from turnstile.ledger.people.interrupt_views import get_interrupt
from turnstile.ledger.turns.usage import sum_turn_usage
from turnstile.runtime.telemetry import Metric
from turnstile.schema.access import Principal, Right
from turnstile.schema.errors import BadRequest, Refused, ServerUnavailable, TurnstileError
from turnstile.schema.people.interrupt_requests import InterruptView
from turnstile.schema.people.interrupts import Interrupt
from turnstile.schema.wire.descriptions import TurnView

_ENCODER: Final = EventEncoder()
_STOPS: Final = "the gateway is stopping: request the same run again"


def agui_endpoints(kernel: Kernel) -> list[Endpoint]:
    """The one address; `/v1/openapi.json` has it not, since AG-UI describes it."""
    return [
        Endpoint(
            name="agui_run",
            method="POST",
            path="/agui/{agent:path}",
            right=frozenset({Right.ASK, Right.DECIDE}),  # which of them depends on what it says
            summary="Run a turn of an agent, or of `profile:NAME`, and stream it as AG-UI events.",
            handler=Runs(kernel).run,
            query=RunQuery,
            body=RunAgentInput,
        )
    ]


@dataclass(frozen=True, slots=True)
class Runs:
    """The handler."""

    kernel: Kernel

    async def run(self, call: Call[RunQuery, RunAgentInput]) -> Answer:
        """Run a turn, or go on with one that waited for people; answers its events."""
        kernel, run_input = self.kernel, call.body
        check_supported(run_input)
        stops, entries, outputs = cancels(run_input, call.query), run_input.resume or [], outputs_in(run_input)
        client_tools_in(run_input)
        _admit(call.principal, Right.DECIDE if entries else Right.ASK)
        if stops or outputs:
            _admit(call.principal, Right.ASK)
        with ExitStack() as stack:
            stack.enter_context(kernel.access.streaming(call.principal))  # refused before there is a turn
            target = await look_up(kernel.pool, call.principal.project_id, call.path["agent"])
            if target is None:
                raise Refused("unknown_agent", "the project has no such agent, and no such profile with instances")
            thread = Thread(kernel, call, target, kernel.turns.asking.channel(call.principal, None))
            try:
                going_on = await thread.went_on(outputs) if outputs else None
                if entries:
                    going_on = await thread.answered(entries)
                view, begin = going_on or (await thread.begun(), BEGIN)
            except (Refused, BadRequest) as error:
                if not entries and not outputs and error.code != "interrupts_pending":
                    raise
                return Answer(self._streamed(_only(_failed(error)), stack.pop_all()))
            reader = reader_of(kernel.access, call.secret, kernel.heartbeat_seconds)
            run = Run(view.agent_turn_id, run_input.thread_id, run_input.run_id, run_input.messages, begin)
            events = _ending_well(_Telling(kernel, view, run, call.principal).events(reader))
            return Answer(self._streamed(events, stack.pop_all(), (call.principal, view) if stops else None))

    def _streamed(
        self,
        events: AsyncGenerator[bytes],
        counted: AbstractContextManager[object],
        abandoned: tuple[Principal, TurnView] | None = None,
    ) -> EventStream:
        streaming, turns = self.kernel.streaming, self.kernel.turns
        streaming.meter.count(Metric.HTTP_STREAMS, resumed="no")

        async def stop() -> None:
            if abandoned is not None:
                await turns.abandon(*abandoned)

        return EventStream(events, streaming, counted, stop, farewell=_failed(ServerUnavailable(_STOPS)))


@dataclass(frozen=True, slots=True)
class _Telling:
    """One client's stream of a run."""

    kernel: Kernel
    view: TurnView
    run: Run
    principal: Principal

    async def events(self, reader: Reader) -> AsyncGenerator[bytes]:
        """The run's events to its end; raises `ServerUnavailable` if the turn cannot be followed."""
        kernel, stream = self.kernel, RunStream(self.run)
        yield _frames(stream.begun())
        async with (
            kernel.feeds.following(self.view) as feed,
            contextlib.aclosing(reader.changes(feed, self.run.begin, looks=True)) as changes,
        ):
            async for change in changes:
                if change is None:
                    yield HEARTBEAT
                    continue
                frames = [_frames(stream.take(event)) for event in change.events]
                interrupts: Sequence[InterruptView] = ()
                if (turn := change.outcome) is not None:
                    frames.append(_frames(stream.ended(turn, await self._usage())))
                elif change.looked and change.seen.questions:
                    interrupts = await self._asked(change.seen.questions)
                    frames.append(
                        _frames(stream.asks([interrupt_of(view) for view in interrupts])) if interrupts else b""
                    )
                waits = turn is None and not interrupts and change.looked and change.seen.awaits_client()
                if waits:
                    calls = [call.tool_call_id for call in reversed(change.seen.client_calls)]
                    frames.append(_frames(stream.calls(calls)))
                if any(frames):
                    yield b"".join(frames)
                if turn is not None or interrupts or waits:
                    return
        raise ServerUnavailable("the turn cannot be followed")

    async def _asked(self, questions: Sequence[Interrupt]) -> list[InterruptView]:
        """These questions, the oldest first, with what they are about."""
        project, with_added = self.view.project_id, self.principal.sees_added
        views = [
            await self.kernel.pool.run(
                lambda conn, named=question.interrupt_id: get_interrupt(conn, project, named, with_added=with_added)
            )
            for question in reversed(questions)
        ]
        return [view for view in views if view is not None]

    async def _usage(self) -> list[TokenUsage]:
        """What the run's models used; unknown of a run that goes on with a turn, which has used some before."""
        if self.run.begin != BEGIN:
            return []
        project, turn = self.view.project_id, self.view.agent_turn_id
        usage = await self.kernel.pool.run(lambda conn: sum_turn_usage(conn, project, turn))
        return [
            TokenUsage(
                input_tokens=usage.prompt_tokens,
                output_tokens=usage.completion_tokens,
                total_tokens=usage.prompt_tokens + usage.completion_tokens,
                cached_input_tokens=usage.cached_tokens,
                reasoning_tokens=usage.reasoning_tokens,
            )
        ]


def _admit(principal: Principal, right: Right) -> None:
    if not principal.may(right):
        raise Forbidden(f"a token of role {principal.role} may not {right} here")


def _frames(events: Iterable[BaseEvent]) -> bytes:
    return "".join(map(_ENCODER.encode, events)).encode("utf-8", "replace")


def _failed(error: TurnstileError) -> bytes:
    """The event that ends a run by an error of ours; it needs no begin before it."""
    problem = problem_of(error)
    return _frames([RunErrorEvent(message=problem.detail, code=problem.code)])


async def _only(piece: bytes) -> AsyncGenerator[bytes]:
    yield piece


async def _ending_well(events: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    """The events; an error, which the turn itself has not, is the last one."""
    try:
        async with contextlib.aclosing(events) as pieces:
            async for piece in pieces:
                yield piece
    except TurnstileError as error:
        yield _failed(error)
