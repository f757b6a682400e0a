"""Reads commands to a tool, and calls the verbs that a tool needs (protocol §5, §6).

A report is first sent as a request. If no bridge replies, or the bridge's database is down, it is published as a
durable command, which a bridge applies later. Both are idempotent by call: a second report is a duplicate. Only
`rejected` refuses a report for good; after an internal error of a bridge the same report may succeed later.
"""

import logging
from dataclasses import dataclass, replace
from typing import TypeVar

from nats.aio.msg import Msg
from pydantic import BaseModel, ValidationError

from turnstile.runtime.throttle import Throttle
from turnstile.schema.base import JsonObject, Reply
from turnstile.schema.delegation.requests import DelegateReply, DelegateRequest
from turnstile.schema.errors import BadRequest, Refused, ServerUnavailable, TurnstileError
from turnstile.schema.ids import CardId, ChannelId, ProjectId, ToolCallId, token
from turnstile.schema.states import ReplyStatus
from turnstile.schema.tools import ToolCommandPayload
from turnstile.schema.wire import headers, subjects
from turnstile.schema.wire.call_requests import CallHistoryReply, CallHistoryRequest, CallStepReply, CallStepRequest
from turnstile.schema.wire.progress import PROGRESS_RATE, ProgressRequest
from turnstile.sdk.client import BridgeClient
from turnstile.sdk.tools.answer import DescribedCall, ToolReport, failed, too_large
from turnstile.sdk.tools.call import CallRequests, SendProgress, ToolCall
from turnstile.transport.connection import NatsConnection
from turnstile.transport.json_messages import headers_of
from turnstile.transport.limited_log import LimitedLog

_REQUEST_SECONDS = 10.0
_PROGRESS_SECONDS = 1.0
_DELEGATE_SECONDS = 3.0
"""Less, since it is repeated anyway."""
_RESULT_AT_FAULT = (BadRequest.code, "result_too_large")
_PASSED_ON = (
    *(headers.TRACEPARENT, headers.TRACESTATE, headers.DEPTH),
    *(headers.AGENT_ID, headers.TURN_ID, headers.CONVERSATION_ID),
)

logger = logging.getLogger(__name__)
Answer = TypeVar("Answer", bound=Reply)


class BridgeFailed(TurnstileError):
    """A bridge replied `internal_error`: whether it carried out the request is unknown."""


@dataclass(frozen=True, slots=True)
class CallCommand:
    """A command and the message that carried it."""

    project_id: ProjectId
    channel_id: ChannelId
    tool_call_id: ToolCallId
    tool_name: str
    tool_call_card_id: CardId
    subject: str
    headers: dict[str, str]
    stream_seq: int
    delivery: int

    @property
    def key(self) -> tuple[ProjectId, ToolCallId]:
        """Identifies the call: ids of calls are unique in their project."""
        return self.project_id, self.tool_call_id

    @property
    def fresh(self) -> bool:
        """True for the first delivery of the call's first command: no other replica can have it."""
        first = f"tool-{self.tool_call_id}"
        return self.delivery == 1 and self.headers.get(headers.MSG_ID, first) == first

    def under(self, traceparent: str) -> "CallCommand":
        """The same command under another span of its trace."""
        return replace(self, headers={**self.headers, headers.TRACEPARENT: traceparent})

    def context(self, described: DescribedCall, requests: CallRequests, send_progress: SendProgress) -> ToolCall:
        """The call as it is passed to the tool's function."""
        return ToolCall(
            tool_call_id=self.tool_call_id,
            tool_name=described.tool_name,
            project_id=self.project_id,
            channel_id=self.channel_id,
            agent_id=described.agent_id,
            agent_turn_id=described.agent_turn_id,
            step_id=described.step_id,
            traceparent=self.headers.get(headers.TRACEPARENT),
            delivery=self.delivery,
            resume_deadline=described.resume_deadline,
            requests=requests,
            send_progress=send_progress,
        )


def read_command(msg: Msg, project: ProjectId | None) -> CallCommand:
    """The command in a message; raises `BadRequest` if it is none or belongs to another project."""
    subject = subjects.parse(msg.subject)
    if project is not None and subject.project_id != project:
        raise BadRequest(f"a command of project {subject.project_id} reached the tools of {project}")
    sent = headers_of(msg)
    try:
        payload = ToolCommandPayload.model_validate_json(msg.data)
    except ValidationError:
        raise BadRequest("the payload is not exactly tool_call_card_id, tool_name and after_execution") from None
    place = msg.metadata
    return CallCommand(
        project_id=subject.project_id,
        channel_id=subject.channel_id,
        tool_call_id=ToolCallId(token(sent.get(headers.TOOL_CALL_ID, ""), headers.TOOL_CALL_ID)),
        tool_name=payload.tool_name,
        tool_call_card_id=payload.tool_call_card_id,
        subject=msg.subject,
        headers=sent,
        stream_seq=place.sequence.stream,
        delivery=place.num_delivered,
    )


class CallClient:
    """Calls the verbs for calls."""

    def __init__(self, conn: NatsConnection) -> None:
        self._conn = conn
        self._log = LimitedLog(logger)
        self._rates = Throttle(PROGRESS_RATE, int(PROGRESS_RATE))

    async def describe(self, command: CallCommand, begins: str | None = None) -> DescribedCall:
        """Describe the call, which the run `begins` would begin now.

        Raises `Refused` if the project has no such call, `ServerUnavailable` or `BridgeFailed`.

        Also raises `Refused` if the command does not match the call: the kernel did not send it.
        """
        arguments: JsonObject = {"tool_call_id": command.tool_call_id, **({} if begins is None else {"begins": begins})}
        sent = self._headers(command)
        reply = await self._client(command).request("describe", arguments, headers=sent, timeout=_REQUEST_SECONDS)
        _raise_unless_accepted(reply)
        try:
            call = DescribedCall.model_validate(reply.get("call"))
        except ValidationError:
            raise Refused("bad_request", "the bridge's description of the call cannot be read") from None
        if call.content is None or call.tool_call_card_id != command.tool_call_card_id:
            raise Refused("unknown_card", "the call has no such card")
        if call.tool_name != command.tool_name or call.content.target_subject not in (None, command.subject):
            raise Refused("not_your_call", "the command names another tool than the call")
        return call

    async def waits(self, command: CallCommand) -> bool:
        """False once the call needs no answer any more; True if no bridge can say."""
        try:
            return (await self.describe(command)).waits
        except (ServerUnavailable, BridgeFailed):
            return True
        except Refused:
            return False

    async def delegate(self, command: CallCommand, request: DelegateRequest) -> JsonObject | None:
        """Ask for children of the call, or how they stand; returns what they came to, None while they run.

        Raises `Refused` if there will be none, else as `describe` does.
        """
        reply = await self._under_call(command, "delegate", request, DelegateReply, _DELEGATE_SECONDS)
        return reply.answer

    async def step(self, command: CallCommand, request: CallStepRequest) -> CallStepReply:
        """Record a step of the call, or look for it; raises as `delegate` does."""
        return await self._under_call(command, "call.step", request, CallStepReply)

    async def history(self, command: CallCommand, request: CallHistoryRequest) -> CallHistoryReply:
        """A page of what the call's turn may read; raises as `delegate` does."""
        return await self._under_call(command, "call.history", request, CallHistoryReply)

    async def _under_call(
        self, command: CallCommand, verb: str, request: BaseModel, form: type[Answer], seconds: float = _REQUEST_SECONDS
    ) -> Answer:
        arguments, sent = request.model_dump(mode="json"), self._headers(command)
        reply = await self._client(command).request(verb, arguments, headers=sent, timeout=seconds)
        _raise_unless_accepted(reply)
        try:
            return form.model_validate(reply)
        except ValidationError:
            raise BridgeFailed("the bridge's answer cannot be read") from None

    async def progress(self, command: CallCommand, request: ProgressRequest) -> None:
        """Say how far the call is, best effort: what comes too fast is dropped, trouble is logged."""
        if self._rates.take(f"{command.project_id}/{command.tool_call_id}"):
            return
        arguments, sent = request.model_dump(mode="json"), self._headers(command)
        try:
            reply = await self._client(command).request("progress", arguments, headers=sent, timeout=_PROGRESS_SECONDS)
            _raise_unless_accepted(reply)
        except (ServerUnavailable, BridgeFailed, Refused, BadRequest) as error:
            self._log.warning("progress", "the progress of a call was not published: %s", error)

    async def report(self, command: CallCommand, report: ToolReport) -> bool:
        """Report; returns True if a bridge has accepted it, False if it is in the stream for a bridge to apply later.

        A result that the bridge refuses is replaced by a failed one that says so. Raises `Refused` if the call cannot
        be reported at all, `ServerUnavailable` if neither way works now, `BridgeFailed` after an internal error of a
        bridge: a durable command is not tried then, since bridges give one up after some failures.
        """
        try:
            return await self._send(command, report)
        except Refused as error:
            if report.files and error.code == "unknown_artifact":
                return await self._send(command, failed(error.code, f"a file that the tool attached: {error}"))
            if report.result is None or error.code not in _RESULT_AT_FAULT:
                raise
            instead = too_large() if error.code == "result_too_large" else failed("tool_error", f"refused: {error}")
            return await self._send(command, instead)
        except BadRequest:  # more bytes than NATS takes in one message
            return await self._send(command, too_large())

    async def _send(self, command: CallCommand, report: ToolReport) -> bool:
        client, sent = self._client(command), self._headers(command)
        payload = report.payload(command.tool_call_id)
        try:
            _raise_unless_accepted(await client.request("report", payload, headers=sent, timeout=_REQUEST_SECONDS))
        except ServerUnavailable as error:
            self._log.warning("report", "a report is published as a durable command: %s", error)
            await client.command("report", payload, f"{command.tool_call_id}", headers=sent)
            return False
        return True

    def _client(self, command: CallCommand) -> BridgeClient:
        return BridgeClient(self._conn, command.project_id, command.channel_id)

    def _headers(self, command: CallCommand) -> dict[str, str]:
        """Trace, depth, agent and turn of the call; the ledger checks the report against them."""
        kept = {name: value for name in _PASSED_ON if (value := command.headers.get(name))}
        return kept | {headers.TOOL_CALL_ID: command.tool_call_id, headers.SENDER: f"tool.{command.tool_name}"}


def _raise_unless_accepted(reply: JsonObject) -> None:
    code, message = str(reply.get("error_code")), str(reply.get("error"))
    match reply.get("status"):
        case ReplyStatus.ACCEPTED.value:
            return
        case ReplyStatus.REJECTED.value:
            raise Refused(code, message)
        case _ if code == BridgeFailed.code:
            raise BridgeFailed(message)
        case _:  # busy, or a server of the bridge is down
            raise ServerUnavailable(message)
