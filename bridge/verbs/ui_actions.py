"""UI actions: `cmd.sys.ui.action`, answered by `evt.sys.ui.action_ack` (protocol §7.10). Off unless configured.

A command is settled only after its acks are in the event stream, each under a message id made of the command and what
it says, so a redelivery tells nothing twice. An action has one turn however often it is asked for: a repeat hears
`accepted` and, if the turn is over, how it ended. What cannot be read is recorded, answered where it says whose it is,
and terminated. The end of a turn is told by whoever ends it, beside its `task` event.
"""

import asyncio
import logging
from dataclasses import dataclass, replace
from functools import partial

from nats.aio.msg import Msg
from pydantic import Field

from turnstile.activities.calls.action_turn import ActionCall, action_call
from turnstile.activities.calls.outgoing import Place
from turnstile.bridge.publishing.best_effort import SENDER
from turnstile.bridge.verbs.handlers import dispatched
from turnstile.bridge.verbs.instrumented import observed
from turnstile.bridge.verbs.micro_service import Payload, VerbRequest, read_request
from turnstile.bridge.verbs.rate_limits import Throttle
from turnstile.ledger.operations.sweep import reject
from turnstile.ledger.pool import Pool
from turnstile.ledger.turns.action_lookup import ActionTurn, find_action
from turnstile.ledger.turns.intake import enqueue_action
from turnstile.ledger.turns.lease import Lease
from turnstile.runtime.faults import Fault, hit
from turnstile.runtime.ports import Publisher
from turnstile.runtime.telemetry import SILENT, Metric, Telemetry
from turnstile.schema.base import JsonObject
from turnstile.schema.errors import BadRequest, Limited, Refused, ServerUnavailable, TurnstileError
from turnstile.schema.ids import AgentId, new_box_id, step_id, token, uuid7
from turnstile.schema.states import ActionStatus, ReplyStatus
from turnstile.schema.turns import TurnRef
from turnstile.schema.wire import headers, subjects
from turnstile.schema.wire.events import Address, Message
from turnstile.schema.wire.inbox import EnqueueReply
from turnstile.schema.wire.limits import UNLIMITED, Admission, rate_limited
from turnstile.schema.wire.ui_actions import ActionAck, UiAction
from turnstile.transport.connection import NatsConnection
from turnstile.transport.durable import CommandQueue, Disposition, Done, Reject, command_id, deferred
from turnstile.transport.json_messages import decode_object, headers_of
from turnstile.transport.limited_log import LimitedLog
from turnstile.transport.streams import UI_ACTIONS_CONSUMER, declare_ui_actions

VERB = "ui.action"
_ID_LIMIT = 256
_TOLD_LIMIT = 1_000

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _ReceivedAction:
    """A delivered action; `fault` says why it cannot be done."""

    request: VerbRequest
    blank: ActionAck | None
    """An ack about it, to be filled in; None where it does not say whose it is."""
    fault: BadRequest | None = None


class ActionReply(EnqueueReply):
    """What came of an action: its turn, the lease to ring for, and how the turn ended if it is over."""

    lease: Lease | None = None
    final: ActionAck | None = None
    context: dict[str, str] = Field(default_factory=dict)
    """The turn's `context_headers`, as far as they are known."""


def read_action(msg: Msg) -> _ReceivedAction:
    """The action in a message; raises `BadRequest` if not even its subject can be read, so nobody can be answered."""
    subject = subjects.parse(msg.subject)
    request = VerbRequest(VERB, subject.project_id, subject.channel_id, Payload(b""), {}, "command", command_id(msg))
    try:
        payload = decode_object(msg.data)
    except BadRequest as error:
        return _ReceivedAction(request, None, error)
    given = headers_of(msg)
    payload.setdefault("agent_id", given.get(headers.AGENT_ID))
    blank = _blank(payload)
    try:
        read = read_request(msg, "command", payload)
        request = replace(request, payload=read.payload, headers=_agreed(read.headers, payload))
        request.parse(UiAction)
    except BadRequest as error:
        return _ReceivedAction(request, blank, error)
    return _ReceivedAction(request, blank)


def _agreed(given: dict[str, str], payload: JsonObject) -> dict[str, str]:
    """The headers with what the payload says; raises `BadRequest` where they name different things (protocol §5)."""
    for header, name in ((headers.AGENT_ID, "agent_id"), (headers.PARENT_STEP_ID, "parent_step_id")):
        said = payload.get(name)
        if isinstance(said, str) and given.setdefault(header, said) != said:
            raise BadRequest(f"header {header} and the payload name different things")
    return given


def _blank(payload: JsonObject) -> ActionAck | None:
    action, agent, message = (payload.get(name) for name in ("action_id", "agent_id", "message_id"))
    if not isinstance(action, str) or not isinstance(agent, str) or not 0 < len(action) <= _ID_LIMIT:
        return None
    try:
        agent_id = AgentId(token(agent, "agent_id"))
    except BadRequest:
        return None
    said = message if isinstance(message, str) and len(message) <= _ID_LIMIT else None
    return ActionAck(action_id=action, agent_id=agent_id, status=ActionStatus.REJECTED, message_id=said)


class UiActions:
    """Serves UI actions until told to stop; replicas share the consumer."""

    def __init__(
        self,
        conn: NatsConnection,
        pool: Pool,
        publisher: Publisher,
        *,
        depth_limit: int,
        admission: Admission = UNLIMITED,
        throttle: Throttle | None = None,
        telemetry: Telemetry = SILENT,
        concurrency: int = 64,
    ) -> None:
        ensure = partial(declare_ui_actions, conn)
        self._queue = CommandQueue(conn, UI_ACTIONS_CONSUMER, ensure, self._dispose, concurrency)
        self._pool = pool
        self._publisher = publisher
        self._depth_limit = depth_limit
        self._admission = admission
        self._throttle = throttle
        self._telemetry = telemetry
        self._act = observed({VERB: self._acted}, telemetry)[VERB]
        self._log = LimitedLog(logger)
        self.unreadable = 0

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set and every action taken is settled; raises as `ContinuousPull.run` does."""
        await self._queue.run(stop)

    async def _dispose(self, msg: Msg) -> Disposition:
        try:
            pressed = read_action(msg)
        except BadRequest as error:
            self.unreadable += 1
            self._log.warning("subject", "a UI action that cannot be answered is dropped: %s", error)
            return Reject()
        try:
            await self._publisher.publish(await self._answer(pressed))
        except TurnstileError as error:
            self._log.warning("answer", "a UI action is left for later: %s", error)
            return deferred(msg.metadata.num_delivered)
        except Exception:  # a bug must not end the bridge; whether there is a turn now, the next delivery finds out
            logger.exception("a UI action failed and is left for later")
            return deferred(msg.metadata.num_delivered)
        hit(Fault.ENQUEUE_PUBLISHED)
        return Reject() if pressed.fault else Done()

    async def _answer(self, pressed: _ReceivedAction) -> list[Message]:
        """What is told of the action now; raises `ServerUnavailable`, and then it is to come again."""
        request = pressed.request
        if pressed.fault is not None:
            self.unreadable += 1
            self._telemetry.meter.count(Metric.VERBS, verb=VERB, status="rejected")
            return await self._refused(pressed, pressed.fault)
        try:
            acted = ActionReply.model_validate(await self._act(request))
        except ServerUnavailable:
            raise
        except Limited as error:
            return _told(pressed, ActionReply(status=ReplyStatus.BUSY, error_code=error.code, error=str(error)))
        except TurnstileError as error:
            return await self._refused(pressed, error)
        return _told(pressed, acted)

    async def _acted(self, request: VerbRequest) -> ActionReply:
        """Make the action's turn, or find it; raises what refuses it."""
        action = request.parse(UiAction)
        project, channel = request.project_id, request.channel_id
        tool, turn = await self._pool.run(lambda conn: find_action(conn, project, action))
        if turn is None:
            if self._throttle is not None and (wait := self._throttle.take(project)):
                raise rate_limited(wait)
            _check(request, action, tool)
            done = await enqueue_action(
                self._pool,
                project,
                channel,
                action,
                request.headers,
                depth_limit=self._depth_limit,
                sender=request.headers.get(headers.SENDER, "client")[:128],
                admission=self._admission,
            )
            hit(Fault.ENQUEUE_COMMITTED)
            if not done.reply.duplicate:
                context = {} if done.lease is None else done.lease.context_headers
                return ActionReply(**done.reply.model_dump(), lease=done.lease, context=context)
            _, turn = await self._pool.run(lambda conn: find_action(conn, project, action))
        if turn is None:
            raise ServerUnavailable("the action's turn cannot be found now: try again")
        return _repeated(action, turn)

    async def _refused(self, pressed: _ReceivedAction, error: TurnstileError) -> list[Message]:
        """Record the refusal, and say so where it is known to whom."""
        await self._record(pressed, error)
        return _told(
            pressed, ActionReply(status=ReplyStatus.REJECTED, error_code=error.code, error=str(error)[:_TOLD_LIMIT])
        )

    async def _record(self, pressed: _ReceivedAction, error: TurnstileError) -> None:
        request, blank = pressed.request, pressed.blank
        source = f"command:{request.headers.get(headers.SENDER, 'client')}".replace("\0", "")
        ids = {} if blank is None else {"action_id": blank.action_id, "agent_id": blank.agent_id}
        told = {name: each.replace("\0", "") for name, each in ids.items()}
        await self._pool.run(
            lambda conn: reject(
                conn, request.project_id, source, error.code, f"{VERB}: {error}".replace("\0", ""), told
            )
        )


def _check(request: VerbRequest, action: UiAction, tool: JsonObject | None) -> None:
    """Raises `Refused` for what the turn's step would refuse, in a turn like the one it will have."""
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
    place = Place(turn, step_id(turn.agent_turn_id, 1), action.parent_step_id or "", 0.0)
    wanted = ActionCall(tool_name=action.tool_name, arguments=action.args)
    action_call(place, wanted, [] if tool is None else [tool])


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


def _told(pressed: _ReceivedAction, acted: ActionReply) -> list[Message]:
    """The ack, before anything that makes the turn run; then its doorbell, or how it ended."""
    request, blank = pressed.request, pressed.blank
    if blank is None:
        return []
    address = Address(
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
    messages = [_ack(pressed, first, address)]
    if acted.lease is not None:
        messages += [dispatched(acted.lease), acted.lease.doorbell(SENDER, "ui_action")]
    if acted.final is not None:
        messages.append(_ack(pressed, acted.final, address, "final"))
    return messages


def _ack(pressed: _ReceivedAction, ack: ActionAck, address: Address, name: str | None = None) -> Message:
    """An ack under an id of its own: a command that was `busy` and comes again may be `accepted`."""
    return address.action_ack(ack, f"action-{pressed.request.command_id}-{name or ack.status}")
