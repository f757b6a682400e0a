"""Delegating calls as commands: `cmd.sys.pmo.internal.{tool}`, answered as any tool answers (protocol §5, §12).

A command is a pointer: who asks, for which turn and with which arguments is read from the call's own row and card, so
that neither its headers nor its payload can make a child for anybody else. A call of a program of v1r4 has a card and
an anchor instead of a row (`peer_calls`). One that fits no call of its project, its channel and its tool is recorded in
`state.rejections` and terminated. A refusal is a failed result of the call, never
an end of its turn. A command is settled only after its call was answered or waits for a batch; one that a bridge took
and did not settle comes again, and makes nothing twice. A call that fails for an unknown reason is tried `failures`
times; then its result is `internal_error`.
"""

import asyncio
import logging
import time
from dataclasses import KW_ONLY, dataclass
from functools import partial

from nats.aio.msg import Msg
from pydantic import ValidationError

from turnstile.bridge.delegation.handlers import Delegation
from turnstile.bridge.publishing.best_effort import SENDER, publish_best_effort
from turnstile.ledger.delegation.peer_calls import answer_peer_call, find_peer_call
from turnstile.ledger.operations.sweep import reject
from turnstile.ledger.pool import Pool
from turnstile.ledger.trees.batches import ParentCall, find_call
from turnstile.ledger.turns.waiting import report
from turnstile.runtime.faults import Fault, hit
from turnstile.runtime.log_context import about
from turnstile.runtime.ports import Publisher
from turnstile.runtime.telemetry import SILENT, Metric, Telemetry
from turnstile.schema.base import JsonObject
from turnstile.schema.cards import ToolError
from turnstile.schema.delegation.provision import ProvisionRefused
from turnstile.schema.delegation.refusals import DelegationRefused
from turnstile.schema.errors import BadRequest, Refused, ServerUnavailable, TurnstileError
from turnstile.schema.ids import ChannelId, ProjectId, ToolCallId, token
from turnstile.schema.json_reading import read_json_object
from turnstile.schema.states import TurnStatus
from turnstile.schema.tools import PmoTool, ToolCommandPayload
from turnstile.schema.wire import headers, subjects
from turnstile.schema.wire.inbox import ReportRequest
from turnstile.transport.connection import NatsConnection
from turnstile.transport.durable import CommandQueue, Disposition, Done, Reject, deferred
from turnstile.transport.json_messages import headers_of
from turnstile.transport.limited_log import LimitedLog
from turnstile.transport.streams import PMO_CONSUMER, declare_pmo

SOURCE = "command:pmo"
_SETTLED = frozenset({"parent_over", "unknown_call"})
"""Refusals that say that nobody needs an answer any more."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DelegatingCommand:
    """What a command points to."""

    project_id: ProjectId
    channel_id: ChannelId
    tool: PmoTool
    tool_call_id: ToolCallId
    payload: ToolCommandPayload


def read_delegating_command(msg: Msg) -> DelegatingCommand:
    """The command in a message; raises `BadRequest` if it is none."""
    subject = subjects.parse(msg.subject)
    sent = headers_of(msg)
    named = ((headers.PROJECT_ID, subject.project_id), (headers.CHANNEL_ID, subject.channel_id))
    for name, value in named:
        if sent.get(name, value) != value:
            raise BadRequest(f"{name} differs from the subject's {value}")
    try:
        tool = PmoTool(subject.rest[-1])
        payload = ToolCommandPayload.model_validate(read_json_object(msg.data))
    except ValidationError:
        raise BadRequest("the payload has exactly tool_call_card_id, tool_name and after_execution") from None
    except ValueError:
        raise BadRequest(f"there is no delegating tool {subject.rest[-1]}") from None
    if payload.tool_name != tool:
        raise BadRequest(f"the payload names another tool than the subject's {tool}")
    call = ToolCallId(token(sent.get(headers.TOOL_CALL_ID, ""), headers.TOOL_CALL_ID))
    return DelegatingCommand(subject.project_id, subject.channel_id, tool, call, payload)


@dataclass
class DelegatingCommands:
    """Serves delegating calls until stopped; replicas share the consumer."""

    conn: NatsConnection
    pool: Pool
    publisher: Publisher
    delegation: Delegation
    _: KW_ONLY
    telemetry: Telemetry = SILENT
    concurrency: int = 16
    failures: int = 8

    def __post_init__(self) -> None:
        ensure = partial(declare_pmo, self.conn)
        self._queue = CommandQueue(
            self.conn, PMO_CONSUMER, ensure, self._dispose, self.concurrency, subjects.CMD_STREAM
        )
        self._log = LimitedLog(logger)

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set and every command taken is settled; raises as `ContinuousPull.run` does."""
        await self._queue.run(stop)

    async def _dispose(self, msg: Msg) -> Disposition:
        try:
            return await self._serve(msg)
        except ServerUnavailable as error:
            self._log.warning("server", "a delegating call will be redelivered: %s", error)
        except Exception:  # a bug must not end the bridge; a repeat finds what this one made
            logger.exception("a delegating call failed and will be redelivered")
        return deferred(msg.metadata.num_delivered)

    async def _serve(self, msg: Msg) -> Disposition:
        try:
            command = read_delegating_command(msg)
        except BadRequest as error:
            await self._refuse(msg, None, error)
            return Reject()
        with about(project_id=command.project_id, tool_call_id=command.tool_call_id):
            call = await self.pool.run(lambda conn: find_call(conn, command.project_id, command.tool_call_id))
            if call is None:
                card = command.payload.tool_call_card_id
                call = await self.pool.run(
                    lambda conn: find_peer_call(conn, command.project_id, command.tool_call_id, card)
                )
            try:
                call = _checked(command, call, headers_of(msg))
            except TurnstileError as error:
                await self._refuse(msg, command, error)
                return Reject()
            if call.waits:
                await self._answer(command, call, msg.metadata.num_delivered)
        return Done()

    async def _answer(self, command: DelegatingCommand, call: ParentCall, deliveries: int) -> None:
        """Run the call and report its result; raises what may pass."""
        started, status, code = time.perf_counter(), "accepted", ""
        try:
            outcome = await self.delegation.run(command.tool, call)
            if outcome is not None:
                await self._report(command, call, TurnStatus.SUCCESS, outcome, None)
        except ServerUnavailable:
            raise
        except ProvisionRefused as refusal:
            status = "rejected"
            await self._report(command, call, TurnStatus.SUCCESS, refusal.result(), None)
        except DelegationRefused as refusal:
            status, code = "rejected", refusal.reason
            await self._report(command, call, TurnStatus.FAILED, refusal.result(), refusal.error())
        except (Refused, BadRequest) as refusal:
            status, code = "rejected", refusal.code
            if code not in _SETTLED:
                result: JsonObject = {"status": "rejected", "error_code": code, "error_message": str(refusal)}
                error = ToolError(code=code, message=str(refusal))
                await self._report(command, call, TurnStatus.FAILED, result, error)
        except Exception:
            status = "error"
            if deliveries < self.failures:
                raise
            logger.exception("a delegating call is given up after %d tries", deliveries)
            trouble = DelegationRefused("internal_error", f"{command.tool}: the bridge failed; see its log")
            await self._report(command, call, TurnStatus.FAILED, trouble.result(), trouble.error())
        finally:
            verb = f"pmo.{command.tool}"
            self.telemetry.meter.count(Metric.VERBS, verb=verb, status=status)
            self.telemetry.meter.observe(Metric.VERB_SECONDS, time.perf_counter() - started, verb=verb)

    async def _report(
        self,
        command: DelegatingCommand,
        call: ParentCall,
        status: TurnStatus,
        result: JsonObject,
        error: ToolError | None,
    ) -> None:
        """Report the result as any tool does; a call that a batch holds is the batch's to answer."""
        if call.peer_card_id is not None:
            after = command.payload.after_execution
            ring = await self.pool.run(lambda conn: answer_peer_call(conn, call, after, status, result, error))
            if ring is not None:
                await publish_best_effort(self.publisher, ring.doorbell(SENDER, "report"))
            return
        request = ReportRequest(tool_call_id=call.tool_call_id, status=status, result=result, error=error)
        try:
            reported = await report(self.pool, call.project_id, request)
        except Refused as refusal:
            logger.info("the result of call %s is not needed: %s", call.tool_call_id, refusal)
            return
        hit(Fault.REPORT_COMMITTED)
        if reported.ring is not None:
            await publish_best_effort(self.publisher, reported.ring.doorbell(SENDER, "report"))
        hit(Fault.REPORT_PUBLISHED)

    async def _refuse(self, msg: Msg, command: DelegatingCommand | None, error: TurnstileError) -> None:
        """Record a command that is nobody's."""
        self._log.warning("refused", "a delegating command is refused: %s", error)
        try:
            project = subjects.parse(msg.subject).project_id
        except BadRequest:
            return
        ids = {} if command is None else {"tool_call_id": command.tool_call_id}
        why = f"pmo: {error}".replace("\0", "")
        await self.pool.run(lambda conn: reject(conn, project, SOURCE, error.code, why, ids))


def _checked(command: DelegatingCommand, call: ParentCall | None, sent: dict[str, str]) -> ParentCall:
    """The call that the command is for; raises `Refused` if it is for none, or says that it is another's."""
    if call is None:
        raise Refused("unknown_call", "the project has no such call")
    if call.tool_name != command.tool or call.channel_id != command.channel_id:
        raise Refused("not_your_call", "the call is of another tool or channel than the subject's")
    named: list[tuple[str, str]] = [(headers.AGENT_ID, call.agent_id), (headers.TURN_ID, call.agent_turn_id)]
    if call.peer_card_id is None:  # v1r4's bench writes an epoch into its headers alone
        named.append((headers.TURN_EPOCH, str(call.turn_epoch)))
    if any(sent.get(header, value) != value for header, value in named):
        raise Refused("not_your_call", "the call belongs to another turn or agent than the headers say")
    return call
