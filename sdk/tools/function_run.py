"""One run of a tool's function, bounded in time.

An async function runs as a task and is cancelled at its timeout. A sync function runs in a daemon thread, which cannot
be cancelled: `outcome` returns at the timeout all the same, and `ended` when the thread has ended. A hung thread does
not keep the process alive. While a function waits for a person its time stands still. Costs one task, and one thread
for a sync function.

A run has the span `tool`, a child of the command's span, and in it one span for each part of the work. Requests to the
bridge, and turns that the function enqueues, become children of the part that makes them. If telemetry is off, they are
children of the command's span.
"""

import asyncio
import contextlib
import contextvars
import inspect
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

from turnstile.runtime import gen_ai
from turnstile.runtime.gen_ai import Attributes
from turnstile.runtime.telemetry import Metric, Span, SpanKind, Telemetry
from turnstile.schema.wire import headers
from turnstile.sdk.tools.commands import CallCommand
from turnstile.sdk.tools.spec import ToolFunction


@dataclass(slots=True)
class CallTrace:
    """The spans of one run of one call. `error_code` is set if it failed."""

    telemetry: Telemetry
    command: CallCommand
    traceparent: str = ""
    error_code: str | None = None
    running: str = ""
    """The span of the function's run."""
    started: int = field(default_factory=time.time_ns)

    def __post_init__(self) -> None:
        received = self.command.headers.get(headers.TRACEPARENT, "")
        if self.telemetry.tracer.enabled and headers.span_id(received):
            self.traceparent = headers.child_span(received)

    @contextmanager
    def part(self, name: str, kind: SpanKind = "internal") -> Generator[CallCommand]:
        """Record the block as a part of the work; yields the command under the part's span."""
        if not self.traceparent:
            yield self.command
            return
        place, started, code = headers.child_span(self.traceparent), time.time_ns(), "failed"
        try:
            yield self.command.under(place)
            code = None
        finally:
            self._record(name, place, headers.span_id(self.traceparent), started, code, kind)

    @contextmanager
    def step(self, key: str) -> Generator[Attributes]:
        """Record the block as a step of the program, under the run of its function; yields what else the span says."""
        attributes: Attributes = {"turnstile.step_key": key}
        if not self.traceparent:
            yield attributes
            return
        started, code = time.time_ns(), "failed"
        try:
            yield attributes
            code = None
        finally:
            under = self.running or self.traceparent
            self._record(
                "step", headers.child_span(under), headers.span_id(under), started, code, "internal", attributes
            )

    def ended(self) -> None:
        """Record the `tool` span: this replica's work on the call has ended."""
        if self.traceparent:
            parent = headers.span_id(self.command.headers[headers.TRACEPARENT])
            self._record("tool", self.traceparent, parent, self.started, self.error_code, "consumer")

    def ran(self, status: str, error_code: str | None) -> None:
        """Count a run of the function, or a failure to prepare its arguments."""
        self.error_code = error_code
        meter, tool = self.telemetry.meter, self.command.tool_name
        meter.count(Metric.TOOL_RUNS, tool=tool, status=status)
        meter.observe(Metric.TOOL_RUN_SECONDS, (time.time_ns() - self.started) / 1e9, tool=tool)

    def _record(
        self,
        name: str,
        place: str,
        parent: str,
        started: int,
        code: str | None,
        kind: SpanKind,
        more: Attributes | None = None,
    ) -> None:
        received = self.command.headers
        attributes: Attributes = {
            **gen_ai.tool(self.command.tool_name, self.command.tool_call_id),
            **gen_ai.conversation(received, None),
            "turnstile.project_id": self.command.project_id,
            "turnstile.delivery": self.command.delivery,
            **(more or {}),
        }
        if agent := received.get(headers.AGENT_ID):
            attributes |= gen_ai.agent(agent)
        if turn := received.get(headers.TURN_ID):
            attributes["turnstile.agent_turn_id"] = turn
        self.telemetry.tracer.record(Span(name, place, parent, started, time.time_ns(), attributes, code, kind))


_LOOK_SECONDS = 1.0
"""How often at most is looked whether a person has answered: a run may take so much longer than it may."""


@dataclass(frozen=True, slots=True)
class FunctionReturned:
    """The function returned."""

    value: object


@dataclass(frozen=True, slots=True)
class FunctionRaised:
    """The function raised."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class TimedOut:
    """The function did not end in time."""


Finished: TypeAlias = FunctionReturned | FunctionRaised
Outcome: TypeAlias = Finished | TimedOut


class RunTime:
    """The time that a run may take, from `begin` on. It stands still while the run waits for people."""

    def __init__(self, seconds: float) -> None:
        self._left = seconds
        self._since = time.monotonic()
        self._waits = 0

    def begin(self) -> None:
        """From now on."""
        self._since = time.monotonic()

    @property
    def left(self) -> float:
        """Seconds that are left."""
        return self._left if self._waits else self._left - (time.monotonic() - self._since)

    @property
    def stands_still(self) -> bool:
        """Whether the run waits for a person."""
        return self._waits > 0

    @contextlib.contextmanager
    def standing_still(self) -> Generator[None]:
        """Not counted, by however many at once."""
        self._left = self.left
        self._waits += 1
        try:
            yield
        finally:
            self._waits -= 1
            self._since = time.monotonic()


class ToolRun:
    """A function that was started. Create it in a running event loop."""

    def __init__(self, function: ToolFunction, arguments: dict[str, object]) -> None:
        self._cancellable = inspect.iscoroutinefunction(function)
        self._task = asyncio.create_task(_call(function, arguments), name=f"tool {function.__name__}")

    async def outcome(self, time_left: RunTime) -> Outcome:
        """Wait for the outcome, until no time is left; an async function is cancelled then."""
        while not self._task.done() and (left := time_left.left) > 0:
            await asyncio.wait({self._task}, timeout=max(left, _LOOK_SECONDS) if time_left.stands_still else left)
        if not self._task.done():
            if self._cancellable:
                self._task.cancel()
            return TimedOut()
        if self._task.cancelled():
            return FunctionRaised(RuntimeError("the tool cancelled itself"))
        return self._task.result()

    async def ended(self) -> None:
        """Return when neither task nor thread runs any more; never raises."""
        await asyncio.wait({self._task})

    def cancel(self) -> None:
        """Cancel the task; a thread runs on, and its result is dropped."""
        self._task.cancel()


async def _call(function: ToolFunction, arguments: dict[str, object]) -> Finished:
    try:
        if inspect.iscoroutinefunction(function):
            return FunctionReturned(await function(**arguments))
        finished = await _in_thread(partial(function, **arguments))
        if isinstance(finished, FunctionReturned) and inspect.isawaitable(finished.value):
            return FunctionReturned(await finished.value)
    except (Exception, SystemExit) as error:  # noqa: BLE001 -- anything a tool raises becomes its result
        return FunctionRaised(error)
    return finished


def _in_thread(work: Callable[[], object]) -> asyncio.Future[Finished]:
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Finished] = loop.create_future()
    context = contextvars.copy_context()

    def settle(finished: Finished) -> None:
        if not future.done():
            future.set_result(finished)

    def body() -> None:
        try:
            finished: Finished = FunctionReturned(context.run(work))
        except BaseException as error:  # noqa: BLE001 -- the outcome carries it to the event loop
            finished = FunctionRaised(error)
        with contextlib.suppress(RuntimeError):  # the loop is closed: the service ended before the thread
            loop.call_soon_threadsafe(settle, finished)

    threading.Thread(target=body, name="turnstile-tool", daemon=True).start()
    return future
