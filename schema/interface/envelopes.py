"""Which headers a message carries, as models: one class for each kind of message (protocol §5).

For descriptions and checks; messages are made with the names of `turnstile.schema.wire.headers`. Every value is
text. More headers may be there: a NATS server and its clients add their own.
"""

from pydantic import BaseModel, ConfigDict, Field

from turnstile.schema.wire import headers

_TRACEPARENT = r"^00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$"
_NUMBER = r"^[0-9]+$"


class _Headers(BaseModel):
    model_config = ConfigDict(frozen=True, extra="allow")

    tracestate: str | None = Field(default=None, alias=headers.TRACESTATE)
    """W3C Trace Context: passed through."""
    parent_agent_id: str | None = Field(default=None, alias=headers.PARENT_AGENT_ID)
    """The agent on whose behalf this happens."""
    parent_turn_id: str | None = Field(default=None, alias=headers.PARENT_TURN_ID)
    """The turn on whose behalf this happens; it bounds the recursion depth."""
    parent_step_id: str | None = Field(default=None, alias=headers.PARENT_STEP_ID)
    """The step on whose behalf this happens."""


class CallerHeaders(_Headers):
    """What a caller may send with a request; whatever is missing is made or read from the subject."""

    thread_id: str | None = Field(default=None, alias=headers.THREAD_ID)
    """The root thread of the message pump that this is for."""
    traceparent: str | None = Field(default=None, alias=headers.TRACEPARENT)
    """W3C Trace Context: the trace that the request joins. A malformed one starts a new trace."""
    recursion_depth: str | None = Field(default=None, alias=headers.DEPTH, pattern=_NUMBER)
    """How deep in a chain of agents the caller is; 0 when missing."""
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
    """What it is, such as the verb."""
    sender: str | None = Field(default=None, alias=headers.SENDER)
    """Who sends it, such as `client` or `tool.NAME`; for people and for audit."""


class CommandHeaders(CallerHeaders):
    """What a caller may send with a durable command or a doorbell."""

    message_id: str | None = Field(default=None, alias=headers.MSG_ID)
    """A repeat under the same id, within the stream's duplicate window, is stored once."""


class _KernelHeaders(_Headers):
    traceparent: str = Field(alias=headers.TRACEPARENT, pattern=_TRACEPARENT)
    """W3C Trace Context: a span of the message's own in the turn's trace."""
    recursion_depth: str = Field(alias=headers.DEPTH, pattern=_NUMBER)
    """How deep in a chain of agents the turn is; 0 for what came from outside."""
    project_id: str = Field(alias=headers.PROJECT_ID)
    """The subject's project."""
    channel_id: str = Field(alias=headers.CHANNEL_ID)
    """The subject's channel."""
    timestamp: str = Field(alias=headers.TIMESTAMP, pattern=_NUMBER)
    """When it was made: milliseconds since 1970."""
    version: str = Field(alias=headers.VERSION)
    """The protocol's version, `v1r4`."""
    msg_type: str = Field(alias=headers.MSG_TYPE)
    """What it is, such as the event's last token."""
    sender: str = Field(alias=headers.SENDER)
    """Which process made it, such as `turnstile.worker`."""


class AgentHeaders(_KernelHeaders):
    """What every event of an agent carries."""

    thread_id: str | None = Field(default=None, alias=headers.THREAD_ID)
    """The root thread of the message pump that this is for."""
    agent_id: str = Field(alias=headers.AGENT_ID)
    """The agent that it is about."""
    turn_id: str | None = Field(default=None, alias=headers.TURN_ID)
    """The turn that it is about."""
    turn_epoch: str = Field(alias=headers.TURN_EPOCH, pattern=_NUMBER)
    """The fencing number of the turn's lease."""


class StepHeaders(AgentHeaders):
    """What a `step` event carries."""

    step_id: str = Field(alias=headers.STEP_ID)
    """The step that it is about."""


class TaskHeaders(AgentHeaders):
    """What a `task` event carries."""

    message_id: str = Field(alias=headers.MSG_ID, pattern=r"^task-")
    """`task-{agent_turn_id}`, however often it is announced: the stream keeps one."""


class ActionAckHeaders(AgentHeaders):
    """What the ack of a UI action carries."""

    message_id: str = Field(alias=headers.MSG_ID, pattern=r"^action-")
    """Derived from the action or its turn, however often it is announced: the stream keeps one."""


class ToolCommandHeaders(StepHeaders):
    """What a command to a tool carries: the identity of the call."""

    tool_call_id: str = Field(alias=headers.TOOL_CALL_ID)
    """The call: the same however often its command is sent, so the tool's key for doing it once."""
    message_id: str = Field(alias=headers.MSG_ID, pattern=r"^tool-")
    """`tool-{tool_call_id}`; a repeat ends with `-{n}`, or the stream would swallow it."""


class AckHeaders(_KernelHeaders):
    """What the answer to a durable command carries."""

    thread_id: str | None = Field(default=None, alias=headers.THREAD_ID)
    """The root thread of the message pump that this is for."""
    agent_id: str | None = Field(default=None, alias=headers.AGENT_ID)
    """The agent that the command named."""
    turn_id: str | None = Field(default=None, alias=headers.TURN_ID)
    """The turn that the answer names."""
    turn_epoch: str | None = Field(default=None, alias=headers.TURN_EPOCH, pattern=_NUMBER)
    """The fencing number of the turn's lease; 0 while the turn is queued."""
    message_id: str = Field(alias=headers.MSG_ID, pattern=r"^ack-")
    """The same for every delivery of the command: the stream keeps one answer."""


class PumpReplyHeaders(_KernelHeaders):
    """What an answer to a requester of the message pump carries."""

    thread_id: str = Field(alias=headers.THREAD_ID)
    """The root thread of the conversation."""
    message_id: str | None = Field(default=None, alias=headers.MSG_ID, pattern=r"^reply-")
    """`reply-{message_id}`, however often it is announced; the copy in a reply inbox has none."""
