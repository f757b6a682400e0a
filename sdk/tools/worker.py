"""Runs the calls of one tool in one process: at most `concurrency` at a time, each once, and answers each.

A command is kept from redelivery while its call runs, and acknowledged only once a bridge or the stream has its report;
if the replica dies, another gets it. A command delivered again runs nothing while its call runs, here or elsewhere,
while its report waits in the stream, or after it was answered. Messages wait in the consumer, never here. The last
answered calls are kept in memory to save a round trip; the ledger knows the others.

While a replica runs a call it replies on a core subject of that call. A replica that gets a command delivered before,
or repeated by the safety net, sends a request there first. If no replica subscribes, the server says so at once, so a
dead replica costs no waiting; a stuck one that is still connected counts as running the call. The first delivery of a
command needs no request. Costs one subscription per running call. Two replicas that ask within the same millisecond
may both find none.
"""

import asyncio
import logging
import os
import re
import traceback
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar, assert_never

import nats.errors
from nats.aio.msg import Msg
from pydantic import ValidationError

from turnstile.rules.text import cleared
from turnstile.runtime.gen_ai import Attributes
from turnstile.runtime.log_context import about
from turnstile.runtime.telemetry import SILENT, Telemetry
from turnstile.schema.amounts import amount
from turnstile.schema.base import JsonObject
from turnstile.schema.delegation.requests import DelegateRequest
from turnstile.schema.errors import BadRequest, ConfigError, Refused, ServerUnavailable
from turnstile.schema.ids import ChannelId, ProjectId, ToolCallId
from turnstile.schema.states import TurnStatus
from turnstile.schema.tools import ToolCallHolder
from turnstile.schema.wire import headers, subjects
from turnstile.schema.wire.call_requests import CallHistoryReply, CallHistoryRequest, CallStepReply, CallStepRequest
from turnstile.sdk.tools.answer import DescribedCall, Prepared, ToolFailed, ToolReport, answer, failed, prepare
from turnstile.sdk.tools.call import ToolCall
from turnstile.sdk.tools.commands import BridgeFailed, CallClient, CallCommand, read_command
from turnstile.sdk.tools.function_run import (
    CallTrace,
    FunctionRaised,
    FunctionReturned,
    Outcome,
    RunTime,
    TimedOut,
    ToolRun,
)
from turnstile.sdk.tools.spec import ToolSpec
from turnstile.transport.connection import NATS_TROUBLE, NatsConnection
from turnstile.transport.durable import Defer, Disposition, Done, Reject, deferred, settle
from turnstile.transport.json_messages import encode
from turnstile.transport.limited_log import LimitedLog
from turnstile.transport.pull import ContinuousPull
from turnstile.transport.streams import declare_consumer

_ASK_SECONDS = 2.0
_REPLY = re.compile(r"(_INBOX[A-Za-z0-9_-]*|_R_)\.[A-Za-z0-9_.-]+\Z")


@dataclass(frozen=True, slots=True)
class NotRunning:
    """No connected replica runs it."""


@dataclass(frozen=True, slots=True)
class NoReply:
    """Unknown: a replica subscribes and does not reply, or NATS is down."""


class Presence:
    """Lets one replica of a tool announce the calls that it runs, and ask about others."""

    def __init__(self, conn: NatsConnection, spec: ToolSpec, instance: str) -> None:
        self._conn = conn
        self._spec = spec
        self._instance = instance

    async def check(self, project: ProjectId | None) -> None:
        """Raises `ConfigError` if this user may not ask or reply: every repeated call would then seem to be running."""
        subject = self._subject(project or ProjectId("any"), ChannelId("any"), ToolCallId("check"))
        subscription = await self._conn.subscribe(subject, _ignore)
        await self._conn.send(subject, b"")
        try:
            await self._conn.verify()
        except ConfigError as error:
            raise ConfigError(
                f"tool {self._spec.name}: {error}; `turnstile docs tools` says which permissions it needs"
            ) from None
        finally:
            await self._conn.unsubscribe(subscription)

    async def holder(self, command: CallCommand) -> ToolCallHolder | NotRunning | NoReply:
        """The replica that runs the call. Ask before entering `held`: inside it this replica would reply to itself."""
        subject = self._subject(command.project_id, command.channel_id, command.tool_call_id)
        try:
            answer = await self._conn.request(subject, b"", timeout=_ASK_SECONDS)
            return ToolCallHolder.model_validate_json(answer.data)
        except nats.errors.NoRespondersError:
            return NotRunning()
        except (*NATS_TROUBLE, ValidationError):
            return NoReply()

    @asynccontextmanager
    async def held(self, command: CallCommand) -> AsyncGenerator[None]:
        """Inside the block, reply to every replica that asks that the call runs here."""
        reply = encode(ToolCallHolder(instance=self._instance, stream_seq=command.stream_seq).model_dump(mode="json"))

        async def on_question(msg: Msg) -> None:
            if _REPLY.match(msg.reply):  # a reply to any other subject could look like an event
                await self._conn.send(msg.reply, reply)

        subject = self._subject(command.project_id, command.channel_id, command.tool_call_id)
        subscription = await self._conn.subscribe(subject, on_question)
        try:
            yield
        finally:
            await self._conn.unsubscribe(subscription)

    def _subject(self, project: ProjectId, channel: ChannelId, call: ToolCallId) -> str:
        terms = self._spec.terms
        return subjects.tool_presence(project, channel, terms.target, terms.suffix, call)


async def _ignore(_: Msg) -> None:
    pass


_REMEMBERED = 10_000
_REPORT_PAUSE_SECONDS = (0.5, 10.0)
_CANCEL_SECONDS = 2.0
_UNNAMED = re.compile(r"[^A-Za-z0-9_-]")
_LINGERING = 1_000
"""Calls with reports in the stream for which this replica still replies that it runs them."""

logger = logging.getLogger(__name__)


FAILURES = 8
Answer = TypeVar("Answer")
_PAUSE_SECONDS = 0.1, 2.0


class RepeatedRequests:
    """Sends the requests of one call to a bridge until each has its result (protocol §12, §13).

    Every request is idempotent by the call and its key, so it is simply repeated: while the children run or nobody has
    answered, while no bridge or no database is there, and by another replica that runs the call again. A bridge that
    fails by itself is asked `FAILURES` times. Costs one request per pause, which grows from 0.1 to 2 s. The time of the
    run stands still while a person is asked.
    """

    def __init__(self, calls: CallClient, command: CallCommand, time: RunTime, trace: CallTrace) -> None:
        self._calls = calls
        self._command = command
        self._time = time
        self._trace = trace
        self._log = LimitedLog(logger)

    async def __call__(self, request: DelegateRequest) -> JsonObject:
        """What it came to; raises `Refused` if nobody is asked, `BridgeFailed` if a bridge keeps failing."""
        with self._time.standing_still() if request.tool == "ask_human" else nullcontext():
            return await self._answer(request)

    def standing_still(self) -> AbstractContextManager[None]:
        """Around what is not the call's own time."""
        return self._time.standing_still()

    def traced(self, key: str) -> AbstractContextManager[Attributes]:
        """Around a step: its span, and what else that shall say."""
        return self._trace.step(key)

    async def waits(self) -> bool:
        """Whether the call still waits for its result; True if no bridge can say."""
        return await self._calls.waits(self._command)

    async def step(self, request: CallStepRequest) -> CallStepReply:
        """Record a step, or look for it; raises as a request for children does."""
        return await self._repeated(lambda: self._calls.step(self._command, request))

    async def history(self, request: CallHistoryRequest) -> CallHistoryReply:
        """A page of what the turn may read; raises as a request for children does."""
        return await self._repeated(lambda: self._calls.history(self._command, request))

    async def _answer(self, request: DelegateRequest) -> JsonObject:
        return await self._repeated(lambda: self._calls.delegate(self._command, request))

    async def _repeated(self, ask: Callable[[], Awaitable[Answer | None]]) -> Answer:
        pause, longest = _PAUSE_SECONDS
        failures = 0
        while True:
            try:
                answer = await ask()
            except ServerUnavailable as error:
                self._log.warning("delegate", "a tool waits for a bridge: %s", error)
            except BridgeFailed as error:
                failures += 1
                if failures == FAILURES:
                    raise
                self._log.warning("delegate", "a bridge failed, and is asked again: %s", error)
            else:
                if answer is not None:
                    return answer
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, longest)


@dataclass(slots=True)
class ToolCounts:
    """Counts of a tool's commands since the service started."""

    succeeded: int = 0
    failed: int = 0
    duplicates: int = 0
    """Commands of calls that ran already or were answered."""
    refused: int = 0
    """Unreadable commands, and commands whose call or report the ledger refused."""
    deferred: int = 0
    """Commands postponed because no bridge could describe the call, or the service ended."""


class ToolWorker:
    """Runs one tool's calls. `run` takes calls until stopped; `drain` waits for the running ones."""

    def __init__(
        self,
        conn: NatsConnection,
        spec: ToolSpec,
        project: ProjectId | None,
        *,
        instance: str,
        ack_wait_seconds: int,
        telemetry: Telemetry = SILENT,
    ) -> None:
        self._telemetry = telemetry
        self.spec = spec
        self.counts = ToolCounts()
        self._conn = conn
        self._project = project
        self._calls = CallClient(conn)
        self._presence = Presence(conn, spec, instance)
        self._begins = _UNNAMED.sub("_", instance)[-150:]
        self._filter = spec.filter(project)
        self._consumer = spec.consumer(project)
        ensure = partial(declare_consumer, conn, self._consumer, self._filter, ack_wait_seconds=ack_wait_seconds)
        self._pull = ContinuousPull(
            conn, subjects.CMD_STREAM, self._consumer, ensure, batch=spec.terms.concurrency, free_slots=self._free_slots
        )
        self._tasks: set[asyncio.Task[None]] = set()
        self._lingering: set[asyncio.Task[None]] = set()
        self._held: dict[tuple[ProjectId, ToolCallId], Msg] = {}
        self._answered: OrderedDict[tuple[ProjectId, ToolCallId], None] = OrderedDict()
        self._stop = asyncio.Event()
        self._log = LimitedLog(logger)

    @property
    def running(self) -> int:
        """Calls that run here, functions that still run after their timeout included."""
        return len(self._tasks)

    async def check(self) -> None:
        """Raises `ConfigError` if this user lacks a permission, or if the consumer belongs to another tool."""
        try:
            info = await self._conn.js.consumer_info(subjects.CMD_STREAM, self._consumer)
        except NATS_TROUBLE:  # no consumer yet, or no answer: the pull will declare it, repeatedly if need be
            info = None
        if info is not None and info.config.filter_subject != self._filter:
            raise ConfigError(
                f"tool {self.spec.name}: consumer {self._consumer} belongs to {info.config.filter_subject}; "
                "choose another target or suffix"
            )
        await self._presence.check(self._project)

    async def run(self, stop: asyncio.Event) -> None:
        """Take calls until `stop`; raises `ServerUnavailable` once the connection is closed for good."""
        self._stop = stop
        await self._pull.run(self._take, stop)

    async def drain(self, seconds: float) -> None:
        """Wait for the running calls, at most `seconds`; the rest are released for other replicas."""
        for task in self._lingering:
            task.cancel()
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=seconds)
        if left := set(self._tasks):
            logger.warning(
                "tool %s: %d calls did not end in %g s and are given back", self.spec.name, len(left), seconds
            )
            for task in left:
                task.cancel()
            await asyncio.wait(left, timeout=_CANCEL_SECONDS)

    async def keep(self) -> None:
        """Send an in-progress acknowledgement for each held command, so that it is not delivered again."""
        for msg in list(self._held.values()):
            try:
                await msg.in_progress()
            except NATS_TROUBLE as error:
                self._log.warning("keep", "tool %s: %s", self.spec.name, error)

    def _free_slots(self) -> int:
        return self.spec.terms.concurrency - len(self._tasks)

    async def _take(self, batch: list[Msg]) -> None:
        for msg in batch:
            task = asyncio.create_task(self._serve(msg))
            self._tasks.add(task)
            task.add_done_callback(self._served)

    def _served(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._pull.wake()
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("tool %s: a command failed: %s", self.spec.name, type(error).__name__)

    async def _serve(self, msg: Msg) -> None:
        try:
            command = read_command(msg, self._project)
        except BadRequest as error:
            self.counts.refused += 1
            self._log.warning("command", "tool %s: a message that is no command: %s", self.spec.name, error)
            await self._settle(msg, Reject())
            return
        if self._stop.is_set():
            await self._settle(msg, Defer(2))
        elif (holding := self._held.get(command.key)) is not None:
            self.counts.duplicates += 1
            if holding.metadata.sequence.stream != command.stream_seq:  # another message for the held call
                await self._settle(msg, Done())
        elif command.key in self._answered:
            self.counts.duplicates += 1
            await self._settle(msg, Done())
        else:
            await self._hold(msg, command)

    async def _hold(self, msg: Msg, command: CallCommand) -> None:
        self._held[command.key] = msg
        run: list[ToolRun] = []
        try:
            disposition = await self._dispose(command, run)
        except asyncio.CancelledError:  # `drain` ran out of time
            self.counts.deferred += 1
            disposition = Defer(2)
        finally:
            del self._held[command.key]
        if disposition is not None:
            await self._settle(msg, disposition)
        for r in run:
            await self._await_end(r)

    async def _await_end(self, run: ToolRun) -> None:
        """Wait until a function that exceeded its timeout has ended: it occupies a slot until then."""
        over, stopped = asyncio.create_task(run.ended()), asyncio.create_task(self._stop.wait())
        await asyncio.wait({over, stopped}, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        run.cancel()
        await over

    async def _dispose(self, command: CallCommand, run: list[ToolRun]) -> Disposition | None:
        """Run and answer the call. None leaves the message unsettled: it is delivered again if its holder dies."""
        if not command.fresh:
            match await self._presence.holder(command):
                case ToolCallHolder(stream_seq=seq):
                    self.counts.duplicates += 1
                    return None if seq == command.stream_seq else Done()
                case NoReply():
                    return None
                case NotRunning():
                    pass
        trace = CallTrace(self._telemetry, command)
        try:
            with about(project_id=command.project_id, tool_call_id=command.tool_call_id):
                return await self._answer(command, run, trace)
        except asyncio.CancelledError:
            trace.error_code = "canceled"
            raise
        finally:
            trace.ended()

    async def _answer(self, command: CallCommand, run: list[ToolRun], trace: CallTrace) -> Disposition:
        async with self._presence.held(command):
            try:
                with trace.part("describe call", "client") as asking:
                    described = await self._calls.describe(asking)
            except (ServerUnavailable, BridgeFailed) as error:
                self.counts.deferred += 1
                trace.error_code = error.code
                self._log.warning("describe", "tool %s: a call is postponed: %s", self.spec.name, error)
                return deferred(command.delivery)
            except Refused as error:
                trace.error_code = error.code
                self._refuse(command, error)
                return Reject()
            if not described.waits or described.content is None:
                self.counts.duplicates += 1
                return await self._over(command, described)
            with trace.part("run tool") as running:
                time_left = RunTime(self.spec.terms.timeout_seconds)
                trace.running = running.headers.get(headers.TRACEPARENT, "")
                context = self._context(running, described, time_left, trace)
                try:
                    prepared = prepare(self.spec, described.content.arguments, context, os.environ)
                except ToolFailed as error:
                    report = failed(error.code, str(error))
                else:
                    once = "unsafe" in (described.repeat, self.spec.terms.repeat)
                    if once and not await self._may_run(running, command):
                        self.counts.duplicates += 1
                        return Done()
                    time_left.begin()
                    run.append(ToolRun(self.spec.function, prepared.arguments))
                    report = self._judge(await run[0].outcome(time_left), prepared, command)
                    if report.status is TurnStatus.SUCCESS and context.files:
                        report = replace(report, files=tuple(context.files))
            trace.ran(report.status.value, None if report.error is None else report.error.code)
            with trace.part("report call", "client") as reporting:
                await self._report(reporting, report)
        return Done()

    def _context(
        self, command: CallCommand, described: DescribedCall, time_left: RunTime, trace: CallTrace
    ) -> ToolCall:
        requests = RepeatedRequests(self._calls, command, time_left, trace)
        return command.context(described, requests, partial(self._calls.progress, command))

    async def _over(self, command: CallCommand, described: DescribedCall) -> Disposition:
        """Tell the tool, if it wants to know, of a call that waits no more: a dead replica may have run it."""
        if (on_over := self.spec.terms.on_over) is None:
            return Done()
        try:
            time_left = RunTime(self.spec.terms.timeout_seconds)
            await on_over(self._context(command, described, time_left, CallTrace(SILENT, command)))
        except Exception as error:  # noqa: BLE001 -- a user's function may raise anything; it is called again
            self._log.warning("over", "tool %s: the end of a call: %s", self.spec.name, error)
            return deferred(command.delivery)
        return Done()

    async def _may_run(self, asking: CallCommand, command: CallCommand) -> bool:
        """Say that the call begins here, before its function does; False if it began elsewhere, or needs no run.

        Repeated until there is an answer: whether it was recorded is not known otherwise.
        """
        pause, longest = _REPORT_PAUSE_SECONDS
        begins = f"{self._begins}.{command.stream_seq}"
        while True:
            try:
                described = await self._calls.describe(asking, begins)
            except (ServerUnavailable, BridgeFailed) as error:
                self._log.warning("begin", "tool %s: a call cannot begin yet: %s", self.spec.name, error)
                await asyncio.sleep(pause)
                pause = min(pause * 2, longest)
            except Refused as error:
                self._refuse(command, error)
                return False
            else:
                return described.waits and described.may_run is True

    def _judge(self, outcome: Outcome, prepared: Prepared, command: CallCommand) -> ToolReport:
        match outcome:
            case FunctionReturned(value):
                return answer(value, prepared.secrets)
            case TimedOut():
                message = f"the tool did not end within its {amount(self.spec.terms.timeout_seconds)} s"
                return failed("tool_timeout", message)
            case FunctionRaised((ToolFailed() | Refused()) as error):
                return failed(error.code, str(error), prepared.secrets)
            case FunctionRaised(error):
                # the traceback goes to the log, without env values; the model gets one sentence
                trace = cleared("".join(traceback.format_exception(error)), prepared.secrets)
                logger.warning("tool %s, call %s failed:\n%s", self.spec.name, command.tool_call_id, trace.rstrip())
                return failed("tool_error", str(error) or type(error).__name__, prepared.secrets)
            case _:
                assert_never(outcome)

    async def _report(self, command: CallCommand, report: ToolReport) -> None:
        """Repeat the report until a bridge or the stream has it, a bridge refuses it for good, or the call is over."""
        pause, longest = _REPORT_PAUSE_SECONDS
        while True:
            try:
                taken = await self._calls.report(command, report)
            except (ServerUnavailable, BridgeFailed) as error:
                if isinstance(error, BridgeFailed) and not await self._calls.waits(command):
                    self._refuse(command, Refused(error.code, f"the call waits no more; {error}"))
                    return
                self._log.warning("report", "tool %s: a result cannot be reported yet: %s", self.spec.name, error)
                await asyncio.sleep(pause)
                pause = min(pause * 2, longest)
            except Refused as error:
                self._refuse(command, error)
                break
            else:
                self.counts.succeeded += report.status is TurnStatus.SUCCESS
                self.counts.failed += report.status is TurnStatus.FAILED
                if not taken and len(self._lingering) < _LINGERING:
                    lingering = asyncio.create_task(self._hold_until_applied(command))
                    self._lingering.add(lingering)
                    lingering.add_done_callback(self._lingering.discard)
                break
        self._answered[command.key] = None
        if len(self._answered) > _REMEMBERED:
            self._answered.popitem(last=False)

    async def _hold_until_applied(self, command: CallCommand) -> None:
        """Reply that the call runs here until a bridge has applied its report: else another replica would run it."""
        pause, longest = _REPORT_PAUSE_SECONDS
        async with self._presence.held(command):
            while await self._calls.waits(command):
                await asyncio.sleep(pause)
                pause = min(pause * 2, longest)

    def _refuse(self, command: CallCommand, error: Refused) -> None:
        self.counts.refused += 1
        self._log.warning(error.code, "tool %s, call %s: %s", self.spec.name, command.tool_call_id, error)

    async def _settle(self, msg: Msg, disposition: Disposition) -> None:
        try:
            await settle(msg, disposition)
        except NATS_TROUBLE as error:  # it is delivered again, and found answered then
            self._log.warning("settle", "tool %s: a command could not be settled: %s", self.spec.name, error)
