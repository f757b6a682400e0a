"""The verbs of a tool that runs a call: `delegate`, `progress`, `call.step`, `call.history` (protocol §6, §12, §21).

Who the caller is, with its policy, boxes and depth, is read from the call's waiting row, never from the request. A
request makes one batch, named by the call and the tool's key; a repeat returns its state, and goes on with children
that were not enqueued. The batch neither holds nor answers the call: the tool reports it as any other. Costs two
statements for a repeat.

`progress` publishes how far the tool is, as `step` events of the call's turn: best effort, and nothing is written. What
comes faster than `PROGRESS_RATE` is dropped before anything is read; else it costs the look at the call.

`call.step` and `call.history` cost that look, and one statement.
"""

from dataclasses import dataclass, field

from turnstile.bridge.delegation.handlers import Delegation
from turnstile.bridge.people.tool_questions import ToolQuestions
from turnstile.bridge.publishing.best_effort import SENDER, publish_best_effort
from turnstile.bridge.serving.micro_service import VerbRequest
from turnstile.ledger.pool import Pool
from turnstile.ledger.trees.batches import OwnBatch, ParentCall, find_call, find_own_batch
from turnstile.ledger.turns.call_steps import page_call_history, step_of_call
from turnstile.runtime.faults import Fault, hit
from turnstile.runtime.ports import Publisher
from turnstile.runtime.telemetry import SILENT, Meter, Metric
from turnstile.runtime.throttle import Throttle
from turnstile.schema.base import JsonObject
from turnstile.schema.delegation.refusals import DelegationRefused
from turnstile.schema.delegation.requests import DelegateReply, DelegateRequest
from turnstile.schema.errors import Refused
from turnstile.schema.ids import StepId, ToolCallId
from turnstile.schema.states import ReplyStatus, StepPhase
from turnstile.schema.tools import PMO_TOOLS, PmoTool
from turnstile.schema.wire import headers
from turnstile.schema.wire.call_requests import (
    CallHistoryReply,
    CallHistoryRequest,
    CallStepReply,
    CallStepRequest,
    StepUse,
)
from turnstile.schema.wire.events import StepEvent, TurnAddress
from turnstile.schema.wire.limits import rate_limited
from turnstile.schema.wire.progress import PROGRESS_RATE, ProgressReply, ProgressRequest


@dataclass
class ToolRequests:
    """The verb over one ledger."""

    pool: Pool
    delegation: Delegation
    people: ToolQuestions

    async def delegate(self, request: VerbRequest) -> DelegateReply:
        """Make the children, or return the state of those there are; raises `Refused` if there will be none."""
        body = request.parse(DelegateRequest)
        parent = await self.pool.run(lambda conn: find_call(conn, request.project_id, body.tool_call_id))
        call = checked_call(request, parent).under(body.key, body.tool, _arguments(body))
        if body.tool == "ask_human":
            return await self.people.ask(call, request.wait_seconds)
        earlier = await self.pool.run(lambda conn: find_own_batch(conn, call))
        if earlier is not None and earlier.call_digest != call.call_digest:
            raise Refused("key_conflict", "the call has asked for something else by this key: give each its own")
        if earlier is None or (earlier.status == "running" and earlier.pending):
            _check_open(call)
            if request.wait_seconds:
                raise rate_limited(request.wait_seconds)
            try:
                await self.delegation.run(PmoTool(body.tool), call)
            except DelegationRefused as error:
                raise Refused(error.reason, str(error)) from None
        batch = await self.pool.run(lambda conn: find_own_batch(conn, call))
        if batch is None:
            raise Refused("unknown_call", "the call is removed")
        return _reply(call, batch, duplicate=earlier is not None)


def checked_call(request: VerbRequest, call: ParentCall | None) -> ParentCall:
    """The call that the request is for; raises `Refused` if there is none, or if it is no tool's of this channel."""
    if call is None or call.channel_id != request.channel_id:
        raise Refused("unknown_call", "the channel has no such call")
    named = (
        (headers.TOOL_CALL_ID, call.tool_call_id),
        (headers.AGENT_ID, call.agent_id),
        (headers.TURN_ID, call.agent_turn_id),
    )
    if any(request.headers.get(header, value) != value for header, value in named):
        raise Refused("not_your_call", "the call belongs to another turn or agent than the headers say")
    if call.tool_name in PMO_TOOLS:
        raise Refused("not_your_call", "the call is a delegating one, which no tool runs")
    return call


def _check_open(call: ParentCall) -> None:
    """Raise `Refused` unless the call waits, so that it may have children."""
    if not call.waits:
        raise Refused("parent_over", "the call waits no more: its turn is over, or it was answered")
    if call.stopping:
        raise Refused("parent_stopping", "the turn that asks is being stopped: it gets no more children")


def _arguments(request: DelegateRequest) -> JsonObject:
    """The tool's arguments; a tool always waits for what it asks."""
    takes_wait = request.tool in ("delegate_async", "ask_expert")
    return request.arguments | {"wait": True} if takes_wait else request.arguments


def _reply(call: ParentCall, batch: OwnBatch, *, duplicate: bool) -> DelegateReply:
    """The state of the batch; raises `Refused` if its result has no receiver."""
    if batch.status == "withdrawn":
        raise Refused("parent_over", "the call waits no more, and its children were stopped")
    if batch.status == "running":
        _check_open(call)
    return DelegateReply(
        status=ReplyStatus.ACCEPTED,
        tool_call_id=call.tool_call_id,
        batch_id=batch.batch_id,
        batch_status=batch.status,
        duplicate=duplicate,
        answer=batch.result,
    )


@dataclass
class ToolProgress:
    """The verb over one ledger. It holds how often each call has published progress."""

    pool: Pool
    publisher: Publisher
    throttle: Throttle = field(default_factory=lambda: Throttle(PROGRESS_RATE, int(PROGRESS_RATE)))

    async def progress(self, request: VerbRequest) -> ProgressReply:
        """Publish the event, or drop it; raises `Refused` if the call is not the sender's, or waits no more."""
        body = request.parse(ProgressRequest)
        if self.throttle.take(f"{request.project_id}/{request.channel_id}/{body.tool_call_id}"):
            return ProgressReply(status=ReplyStatus.ACCEPTED, tool_call_id=body.tool_call_id)
        parent = await self.pool.run(lambda conn: find_call(conn, request.project_id, body.tool_call_id))
        call = checked_call(request, parent)
        if not call.waits:
            raise Refused("parent_over", "the call waits no more: its turn is over, or it was answered")
        event = StepEvent(
            agent_turn_id=call.agent_turn_id,
            step_id=StepId(call.step_id),
            phase=StepPhase.TOOL_PROGRESS,
            metadata=body.shown(call.tool_name),
        )
        message = TurnAddress.of(call, call.context_headers, SENDER).step(event)
        published = await publish_best_effort(self.publisher, message)
        return ProgressReply(status=ReplyStatus.ACCEPTED, tool_call_id=body.tool_call_id, published=published)


@dataclass(frozen=True, slots=True)
class CallMemory:
    """What a program records and reads under its call, over one ledger; what its models used is counted."""

    pool: Pool
    meter: Meter = SILENT.meter

    async def call_step(self, request: VerbRequest) -> CallStepReply:
        """Record a step of the call, or look for it; raises `Refused` if it may not run."""
        body = request.parse(CallStepRequest)
        call = await self._call(request, body.tool_call_id)
        step = await self.pool.run(
            lambda conn: step_of_call(conn, call.project_id, call.tool_call_id, body.key, body.outcome)
        )
        if body.outcome is not None:
            hit(Fault.CALL_STEPPED)
            if step.verdict == "recorded" and (use := body.outcome.usage) is not None:
                self._count(use)
        return CallStepReply(
            status=ReplyStatus.ACCEPTED,
            tool_call_id=call.tool_call_id,
            recorded=step.verdict != "absent",
            duplicate=step.verdict == "duplicate",
            value=step.value,
        )

    async def call_history(self, request: VerbRequest) -> CallHistoryReply:
        """The next cards that the call's turn may read; raises `Refused` if the call waits no more."""
        body = request.parse(CallHistoryRequest)
        call = await self._call(request, body.tool_call_id)
        if not call.waits:
            raise Refused("parent_over", "the call waits no more: its turn is over, or it was answered")
        part, _, position = (body.after or "0:0").partition(":")
        after = int(part), int(position)
        cards = await self.pool.run(lambda conn: page_call_history(conn, call, after, body.limit))
        return CallHistoryReply(status=ReplyStatus.ACCEPTED, tool_call_id=call.tool_call_id, cards=tuple(cards))

    def _count(self, use: StepUse) -> None:
        for direction, count in (("input", use.tokens - use.written), ("output", use.written)):
            self.meter.count(Metric.MODEL_TOKENS, count, model=use.model, direction=direction)
        if use.cost:
            self.meter.count(Metric.MODEL_COST, use.cost, model=use.model)

    async def _call(self, request: VerbRequest, call: ToolCallId) -> ParentCall:
        return checked_call(request, await self.pool.run(lambda conn: find_call(conn, request.project_id, call)))
