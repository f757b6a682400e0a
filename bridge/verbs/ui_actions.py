"""UI actions: `cmd.sys.ui.action`, answered by `evt.sys.ui.action_ack` (protocol §7.10). Off unless configured.

A command is settled only after its acks are in the event stream. The message id of an ack is made of the command and
the ack's status, so a redelivery stores no ack twice. An action has one turn however often it is sent: a repeat is
acked as `accepted` and, if the turn is over, gets the final ack. An unreadable command is recorded, acked as `rejected`
if it names its action and agent, and terminated. Whoever ends the turn publishes the final ack with the `task` event.
"""

import asyncio
import logging
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial

from nats.aio.msg import Msg
from pydantic import Field

from turnstile.bridge.publishing.best_effort import SENDER
from turnstile.bridge.serving.instrumented import instrumented
from turnstile.bridge.serving.micro_service import RequestPayload, VerbRequest, read_request
from turnstile.bridge.serving.rate_limits import Throttle
from turnstile.ledger.operations.sweep import reject
from turnstile.ledger.pool import Pool
from turnstile.ledger.turns.action_lookup import ActionTurn, find_action
from turnstile.ledger.turns.intake import enqueue
from turnstile.rules.action_turn import ActionCall, action_call
from turnstile.rules.arguments import Patience
from turnstile.rules.outgoing import CallOrigin
from turnstile.rules.turn_ends import NewLease
from turnstile.runtime.faults import Fault, hit
from turnstile.runtime.ports import Publisher
from turnstile.runtime.telemetry import SILENT, Metric, Telemetry
from turnstile.schema.base import JsonObject
from turnstile.schema.errors import BadRequest, Limited, Refused, ServerUnavailable, TurnstileError
from turnstile.schema.ids import AgentId, new_box_id, step_id, token, uuid7
from turnstile.schema.json_reading import read_json_object
from turnstile.schema.states import ActionStatus, ReplyStatus
from turnstile.schema.turns import TurnRef
from turnstile.schema.wire import headers, subjects
from turnstile.schema.wire.events import Message, TurnAddress
from turnstile.schema.wire.inbox import EnqueueReply
from turnstile.schema.wire.limits import UNLIMITED, Admission, rate_limited
from turnstile.schema.wire.ui_actions import ActionAck, UiAction
from turnstile.transport.connection import NatsConnection
from turnstile.transport.durable import CommandQueue, Disposition, Done, Reject, command_id, deferred
from turnstile.transport.json_messages import headers_of
from turnstile.transport.limited_log import LimitedLog
from turnstile.transport.streams import UI_ACTIONS_CONSUMER, declare_ui_actions

VERB = "ui.action"
_ID_LIMIT = 256
_ERROR_LIMIT = 1_000

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _ReceivedAction:
    """A delivered action; `fault` is set if it cannot be done."""

    request: VerbRequest
    blank: ActionAck | None
    """An ack for it without status and error; None if the command does not name its action and agent."""
    fault: BadRequest | None = None


class ActionReply(EnqueueReply):
    """The result of an action: its turn, the lease whose doorbell is due, and the final ack if the turn is over."""

    lease: NewLease | None = None
    final: ActionAck | None = None
    context: dict[str, str] = Field(default_factory=dict)
    """The turn's `context_headers`; empty if they are not known."""


def read_action(msg: Msg) -> _ReceivedAction:
    """The action in a message; raises `BadRequest` if its subject cannot be read, so no ack can be addressed."""
    subject = subjects.parse(msg.subject)
    request = VerbRequest(
        VERB, subject.project_id, subject.channel_id, RequestPayload(b""), {}, "command", command_id(msg)
    )
    try:
        payload = read_json_object(msg.data)
    except BadRequest as error:
        return _ReceivedAction(request, None, error)
    sent = headers_of(msg)
    payload.setdefault("agent_id", sent.get(headers.AGENT_ID))
    blank = _blank_ack(payload)
    try:
        read = read_request(msg, "command", payload)
        request = replace(request, payload=read.payload, headers=_merged_headers(read.headers, payload))
        request.parse(UiAction)
    except BadRequest as error:
        return _ReceivedAction(request, blank, error)
    return _ReceivedAction(request, blank)


def _merged_headers(sent: dict[str, str], payload: JsonObject) -> dict[str, str]:
    """The headers, completed from the payload; raises `BadRequest` if they name different things (protocol §5)."""
    for header, name in ((headers.AGENT_ID, "agent_id"), (headers.PARENT_STEP_ID, "parent_step_id")):
        value = payload.get(name)
        if isinstance(value, str) and sent.setdefault(header, value) != value:
            raise BadRequest(f"header {header} and the payload name different things")
    return sent


def _blank_ack(payload: JsonObject) -> ActionAck | None:
    action, agent, message = (payload.get(name) for name in ("action_id", "agent_id", "message_id"))
    if not isinstance(action, str) or not isinstance(agent, str) or not 0 < len(action) <= _ID_LIMIT:
        return None
    try:
        agent_id = AgentId(token(agent, "agent_id"))
    except BadRequest:
        return None
    message_id = message if isinstance(message, str) and len(message) <= _ID_LIMIT else None
    return ActionAck(action_id=action, agent_id=agent_id, status=ActionStatus.REJECTED, message_id=message_id)


@dataclass
class UiActions:
    """Serves UI actions until stopped; replicas share the consumer."""

    conn: NatsConnection
    pool: Pool
    publisher: Publisher
    _: KW_ONLY
    depth_limit: int
    admission: Admission = UNLIMITED
    throttle: Throttle | None = None
    telemetry: Telemetry = SILENT
    concurrency: int = 64
    unreadable: int = 0

    def __post_init__(self) -> None:
        ensure = partial(declare_ui_actions, self.conn)
        self._queue = CommandQueue(self.conn, UI_ACTIONS_CONSUMER, ensure, self._dispose, self.concurrency)
        self._act = instrumented({VERB: self._find_or_enqueue}, self.telemetry)[VERB]
        self._log = LimitedLog(logger)

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set and every received action is settled; raises as `ContinuousPull.run` does."""
        await self._queue.run(stop)

    async def _dispose(self, msg: Msg) -> Disposition:
        try:
            received = read_action(msg)
        except BadRequest as error:
            self.unreadable += 1
            self._log.warning("subject", "a UI action with an unreadable subject is dropped: %s", error)
            return Reject()
        try:
            await self.publisher.publish(await self._answer(received))
        except TurnstileError as error:
            self._log.warning("answer", "a UI action will be redelivered: %s", error)
            return deferred(msg.metadata.num_delivered)
        except Exception:  # a bug must not end the bridge; the next delivery finds the turn if there is one
            logger.exception("a UI action failed and will be redelivered")
            return deferred(msg.metadata.num_delivered)
        hit(Fault.ENQUEUE_PUBLISHED)
        return Reject() if received.fault else Done()

    async def _answer(self, received: _ReceivedAction) -> list[Message]:
        """The messages to publish for the action; raises `ServerUnavailable` if it must be redelivered."""
        request = received.request
        if received.fault is not None:
            self.unreadable += 1
            self.telemetry.meter.count(Metric.VERBS, verb=VERB, status="rejected")
            return await self._refuse(received, received.fault)
        try:
            acted = ActionReply.model_validate(await self._act(request))
        except ServerUnavailable:
            raise
        except Limited as error:
            return _messages(received, ActionReply(status=ReplyStatus.BUSY, error_code=error.code, error=str(error)))
        except TurnstileError as error:
            return await self._refuse(received, error)
        return _messages(received, acted)

    async def _find_or_enqueue(self, request: VerbRequest) -> ActionReply:
        """Create the action's turn, or find it; raises `TurnstileError` if the action is refused."""
        action = request.parse(UiAction)
        project, channel = request.project_id, request.channel_id
        tool, turn = await self.pool.run(lambda conn: find_action(conn, project, action))
        if turn is None:
            if self.throttle is not None and (wait := self.throttle.take(project)):
                raise rate_limited(wait)
            _check(request, action, tool)
            enqueued = await enqueue(
                self.pool,
                project,
                channel,
                action,
                request.headers,
                depth_limit=self.depth_limit,
                sender=request.headers.get(headers.SENDER, "client")[:128],
                admission=self.admission,
            )
            hit(Fault.ENQUEUE_COMMITTED)
            if not enqueued.reply.duplicate:
                context = {} if enqueued.lease is None else enqueued.lease.context_headers
                return ActionReply(**enqueued.reply.model_dump(), lease=enqueued.lease, context=context)
            _, turn = await self.pool.run(lambda conn: find_action(conn, project, action))
        if turn is None:
            raise ServerUnavailable("the action's turn cannot be found now: try again")
        return _repeated(action, turn)

    async def _refuse(self, received: _ReceivedAction, error: TurnstileError) -> list[Message]:
        """Record the refusal; returns its ack if the command names its action and agent."""
        await self._record(received, error)
        return _messages(
            received, ActionReply(status=ReplyStatus.REJECTED, error_code=error.code, error=str(error)[:_ERROR_LIMIT])
        )

    async def _record(self, received: _ReceivedAction, error: TurnstileError) -> None:
        request, blank = received.request, received.blank
        source = f"command:{request.headers.get(headers.SENDER, 'client')}".replace("\0", "")
        ids = {} if blank is None else {"action_id": blank.action_id, "agent_id": blank.agent_id}
        ids = {name: value.replace("\0", "") for name, value in ids.items()}
        await self.pool.run(
            lambda conn: reject(conn, request.project_id, source, error.code, f"{VERB}: {error}".replace("\0", ""), ids)
        )


def _check(request: VerbRequest, action: UiAction, tool: JsonObject | None) -> None:
    """Raise `Refused` if the turn's step would refuse the action; checks it with a placeholder turn."""
    turn = TurnRef.model_validate(
        {
            "project_id": request.project_id,
            "channel_id": request.channel_id,
            "agent_id": action.agent_id,
            "agent_turn_id": uuid7(),
            "turn_epoch": 1,
            "inbox_id": "",
            "worker_target": "",
            "profile_box_id": "",
            "context_box_id": new_box_id(),
            "output_box_id": "",
            "trace_id": headers.trace_id(headers.new_traceparent()),
        }
    )
    place = CallOrigin(turn, step_id(turn.agent_turn_id, 1), action.parent_step_id or "", Patience())
    call = ActionCall(tool_name=action.tool_name, arguments=action.args)
    action_call(place, call, [] if tool is None else [tool])


def _repeated(action: UiAction, turn: ActionTurn) -> ActionReply:
    if turn.request_digest != action.digest():
        raise Refused("correlation_conflict", "this message_id or action_id was used before, with other content")
    return ActionReply(
        status=ReplyStatus.ACCEPTED,
        agent_turn_id=turn.agent_turn_id,
        turn_epoch=turn.turn_epoch,
        duplicate=True,
        final=turn.final_ack(action),
        context=turn.context_headers,
    )


def _messages(received: _ReceivedAction, acted: ActionReply) -> list[Message]:
    """The ack first, then the messages that make the turn run, or the final ack if it is over."""
    request, blank = received.request, received.blank
    if blank is None:
        return []
    address = TurnAddress(
        project_id=request.project_id,
        channel_id=request.channel_id,
        agent_id=blank.agent_id,
        agent_turn_id=acted.agent_turn_id,
        turn_epoch=acted.turn_epoch or 0,
        context=acted.context or {headers.TRACEPARENT: request.headers.get(headers.TRACEPARENT, "")},
        sender=SENDER,
    )
    status = ActionStatus(acted.status.value)
    first = blank.model_copy(update={"status": status, "error_code": acted.error_code, "error": acted.error})
    messages = [_ack(received, first, address)]
    if acted.lease is not None:
        messages += [acted.lease.dispatched(SENDER), acted.lease.doorbell(SENDER, "ui_action")]
    if acted.final is not None:
        messages.append(_ack(received, acted.final, address, "final"))
    return messages


def _ack(received: _ReceivedAction, ack: ActionAck, address: TurnAddress, name: str | None = None) -> Message:
    """An ack; its message id contains the status, since a `busy` command may be `accepted` when redelivered."""
    return address.action_ack(ack, f"action-{received.request.command_id}-{name or ack.status}")
