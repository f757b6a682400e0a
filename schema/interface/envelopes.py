"""Models of message headers: one class for each kind of message (protocol §5).

They serve documentation and tests; code makes messages with the names in `turnstile.schema.wire.headers`. Every value
is text. Messages may have more headers: NATS servers and clients add their own.
"""

from pydantic import BaseModel, ConfigDict, Field

from turnstile.schema.wire import headers

_TRACEPARENT = r"^00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$"
_NUMBER = r"^[0-9]+$"


class _Headers(BaseModel):
    model_config = ConfigDict(frozen=True, extra="allow")

    tracestate: str | None = Field(default=None, alias=headers.TRACESTATE)
    """W3C Trace Context; passed on."""
    parent_agent_id: str | None = Field(default=None, alias=headers.PARENT_AGENT_ID)
    """The agent on whose behalf this happens."""
    parent_turn_id: str | None = Field(default=None, alias=headers.PARENT_TURN_ID)
    """The turn on whose behalf this happens; it bounds the recursion depth."""
    parent_step_id: str | None = Field(default=None, alias=headers.PARENT_STEP_ID)
    """The step on whose behalf this happens."""
    conversation_id: str | None = Field(default=None, alias=headers.CONVERSATION_ID)
    """The conversation that this belongs to, for traces; a turn outside of any has its output box."""


class CallerHeaders(_Headers):
    """Headers that a caller may send with a request; missing ones are made or read from the subject."""

    thread_id: str | None = Field(default=None, alias=headers.THREAD_ID)
    """The root thread of the message pump that this is for."""
    traceparent: str | None = Field(default=None, alias=headers.TRACEPARENT)
    """W3C Trace Context: the trace that the request joins. A malformed one starts a new trace."""
    recursion_depth: str | None = Field(default=None, alias=headers.DEPTH, pattern=_NUMBER)
    """The caller's depth in a chain of agents; by default 0."""
    project_id: str | None = Field(default=None, alias=headers.PROJECT_ID)
    """The subject's project, if given."""
    channel_id: str | None = Field(default=None, alias=headers.CHANNEL_ID)
    """The subject's channel, if given."""
    agent_id: str | None = Field(default=None, alias=headers.AGENT_ID)
    """The agent that the request names, if given."""
    turn_id: str | None = Field(default=None, alias=headers.TURN_ID)
    """The turn that the request names, if given."""
    turn_epoch: str | None = Field(default=None, alias=headers.TURN_EPOCH, pattern=_NUMBER)
    """The fencing number of the turn's lease."""
    tool_call_id: str | None = Field(default=None, alias=headers.TOOL_CALL_ID)
    """The call that a report names, if given."""
    timestamp: str | None = Field(default=None, alias=headers.TIMESTAMP, pattern=_NUMBER)
    """When it was sent: milliseconds since 1970."""
    version: str | None = Field(default=None, alias=headers.VERSION)
    """The protocol's version, `v1r4`."""
    msg_type: str | None = Field(default=None, alias=headers.MSG_TYPE)
    """The type of the message, such as the verb."""
    sender: str | None = Field(default=None, alias=headers.SENDER)
    """The sender, such as `client` or `tool.NAME`; for people and for audit."""


class CommandHeaders(CallerHeaders):
    """Headers that a caller may send with a durable command or a doorbell."""

    message_id: str | None = Field(default=None, alias=headers.MSG_ID)
    """The stream stores one of several messages with the same id within its duplicate window."""


class _KernelHeaders(_Headers):
    traceparent: str = Field(alias=headers.TRACEPARENT, pattern=_TRACEPARENT)
    """W3C Trace Context: the message's own span in the turn's trace."""
    recursion_depth: str = Field(alias=headers.DEPTH, pattern=_NUMBER)
    """The turn's depth in a chain of agents; 0 for a request from outside."""
    project_id: str = Field(alias=headers.PROJECT_ID)
    """The subject's project."""
    channel_id: str = Field(alias=headers.CHANNEL_ID)
    """The subject's channel."""
    timestamp: str = Field(alias=headers.TIMESTAMP, pattern=_NUMBER)
    """When it was made: milliseconds since 1970."""
    version: str = Field(alias=headers.VERSION)
    """The protocol's version, `v1r4`."""
    msg_type: str = Field(alias=headers.MSG_TYPE)
    """The type of the message, such as the event's last token."""
    sender: str = Field(alias=headers.SENDER)
    """The process that made it, such as `turnstile.worker`."""


class AgentHeaders(_KernelHeaders):
    """Headers of every event of an agent."""

    thread_id: str | None = Field(default=None, alias=headers.THREAD_ID)
    """The root thread of the message pump that this is for."""
    agent_id: str = Field(alias=headers.AGENT_ID)
    """The agent that it is about."""
    turn_id: str | None = Field(default=None, alias=headers.TURN_ID)
    """The turn that it is about."""
    turn_epoch: str = Field(alias=headers.TURN_EPOCH, pattern=_NUMBER)
    """The fencing number of the turn's lease."""


class StepHeaders(AgentHeaders):
    """Headers of a `step` event."""

    step_id: str = Field(alias=headers.STEP_ID)
    """The step that it is about."""


class InterruptHeaders(StepHeaders):
    """Headers of an `interrupt` event."""

    tool_call_id: str = Field(alias=headers.TOOL_CALL_ID)
    """The call that waits."""


class TaskHeaders(AgentHeaders):
    """Headers of a `task` event."""

    message_id: str = Field(alias=headers.MSG_ID, pattern=r"^task-")
    """`task-{agent_turn_id}`, also in repeats, so that the stream stores one."""


class ActionAckHeaders(AgentHeaders):
    """Headers of the ack of a UI action."""

    message_id: str = Field(alias=headers.MSG_ID, pattern=r"^action-")
    """Derived from the action or its turn, also in repeats, so that the stream stores one."""


class ToolCommandHeaders(StepHeaders):
    """Headers of a command to a tool, which identify the call."""

    tool_call_id: str = Field(alias=headers.TOOL_CALL_ID)
    """The call. It is the same in every repeat of the command: the tool uses it as its idempotency key."""
    message_id: str = Field(alias=headers.MSG_ID, pattern=r"^tool-")
    """`tool-{tool_call_id}`; a repeat ends with `-{n}`, since the stream would drop a duplicate."""


class AckHeaders(_KernelHeaders):
    """Headers of the answer to a durable command."""

    thread_id: str | None = Field(default=None, alias=headers.THREAD_ID)
    """The root thread of the message pump that this is for."""
    agent_id: str | None = Field(default=None, alias=headers.AGENT_ID)
    """The agent that the command named."""
    turn_id: str | None = Field(default=None, alias=headers.TURN_ID)
    """The turn that the answer names."""
    turn_epoch: str | None = Field(default=None, alias=headers.TURN_EPOCH, pattern=_NUMBER)
    """The fencing number of the turn's lease; 0 while the turn is queued."""
    message_id: str = Field(alias=headers.MSG_ID, pattern=r"^ack-")
    """The same for every delivery of the command, so that the stream stores one answer."""


class PumpReplyHeaders(_KernelHeaders):
    """Headers of an answer of the message pump."""

    thread_id: str = Field(alias=headers.THREAD_ID)
    """The root thread of the pump."""
    message_id: str | None = Field(default=None, alias=headers.MSG_ID, pattern=r"^reply-")
    """`reply-{message_id}`, also in repeats; the copy to a reply inbox has none."""
