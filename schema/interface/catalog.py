"""Every subject and every document of the protocol, with its models, as `turnstile schema export` writes them.

Each kind of message has a model of its headers (protocol §5); code makes messages with the names in
`turnstile.schema.wire.headers`. An entry has senders, receivers, transport, payload and reply of a subject. Nothing
reads the catalog at run time; tests compare it with the code: a verb, a subject or an event without an entry fails.
To add one:

    a verb       its declaration in schema/verbs.py: request/reply, durable command and ack follow from it
    a subject    an `Entry` in `_SUBJECTS`
    a document   a line in `DOCUMENTS`
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, create_model

from turnstile.schema import cards
from turnstile.schema.interface.entries import Entry, Transport
from turnstile.schema.people.interrupts import InterruptEvent
from turnstile.schema.people.steers import SteerEvent
from turnstile.schema.profiles import Profile
from turnstile.schema.pump.listeners import ListenerFile
from turnstile.schema.tools import ToolCallHolder, ToolCommandPayload, ToolDefinition
from turnstile.schema.verbs import VERBS, Party, Verb
from turnstile.schema.wire import events, headers, inbox, ui_actions

_TRACEPARENT = r"^00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$"
_NUMBER = r"^[0-9]+$"


class Headers(BaseModel):
    """Headers of any message. Every value is text; NATS servers and clients may add headers of their own."""

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


class CallerHeaders(Headers):
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


class _KernelHeaders(Headers):
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


def _entries(verb: Verb[Any, Any]) -> Iterator[Entry]:
    """The verb's subjects: request/reply, and for a durable one the command and its ack."""
    yield Entry(
        subject=f"req.sys.bridge.{verb.name}{'.{principal}' if verb.caller == 'must' else ''}",
        summary=verb.summary,
        may_name_caller=verb.caller == "may",
        transport=Transport.MICRO,
        section=verb.section,
        payload=verb.request,
        headers=CallerHeaders,
        senders=verb.callers,
        receivers=(Party.BRIDGE,),
        reply=verb.reply,
    )
    if not verb.durable:
        return
    ack = f"evt.sys.bridge.{verb.name}_ack"
    yield Entry(
        subject=f"cmd.sys.bridge.{verb.name}",
        summary=f"The verb `{verb.name}` as a durable command: it waits for a bridge; the answer is `{ack}`.",
        payload=_with_request_id(verb.request, "Command", f"Arguments of `{verb.name}` as a durable command."),
        headers=CommandHeaders,
        senders=verb.callers,
        receivers=(Party.BRIDGE,),
    )
    yield Entry(
        subject=ack,
        summary=f"The answer to the durable command `{verb.name}`.",
        payload=_with_request_id(verb.reply, "Ack", f"Answer to the durable command `{verb.name}`."),
        headers=AckHeaders,
        senders=(Party.BRIDGE,),
        receivers=verb.callers,
    )


def _with_request_id(model: type[BaseModel], suffix: str, doc: str) -> type[BaseModel]:
    name = f"{model.__name__.removesuffix('Request').removesuffix('Reply')}{suffix}"
    about = "The caller's own name for the command; its answer repeats it."
    field: Any = (str | None, Field(default=None, max_length=inbox.REQUEST_ID_LIMIT, description=about))
    return create_model(name, __base__=model, __doc__=doc, request_id=field)


_CLIENT, _TOOL = (Party.CLIENT,), (Party.TOOL,)
_KERNEL = (Party.BRIDGE, Party.WORKER)

_SUBJECTS = (
    Entry(
        subject="cmd.agent.{worker_target}.wakeup",
        summary="A doorbell: look at the agent's inbox. The agent may be named by its header alone.",
        payload=events.Wakeup,
        headers=CommandHeaders,
        senders=(*_KERNEL, Party.TOOL),
        receivers=(Party.BRIDGE,),
    ),
    Entry(
        subject="cmd.tool.{target}.{suffix}",
        summary="A call of a tool. The tool reads the arguments with `describe`, and answers with `report`.",
        payload=ToolCommandPayload,
        headers=ToolCommandHeaders,
        receivers=_TOOL,
    ),
    Entry(
        subject="cmd.sys.pmo.internal.{tool}",
        summary="A call by which an agent asks others. Who asks for what is read from the ledger alone.",
        section="12",
        payload=ToolCommandPayload,
        headers=ToolCommandHeaders,
        receivers=(Party.BRIDGE,),
    ),
    Entry(
        subject="req.tool.{target}.{suffix}.{tool_call_id}",
        summary="Asks which replica runs a call, after a command was delivered again; no responders means: none.",
        transport=Transport.REQUEST,
        payload=None,
        headers=None,
        senders=_TOOL,
        receivers=_TOOL,
        reply=ToolCallHolder,
    ),
    Entry(
        subject="evt.agent.{agent_id}.state",
        summary="The status of an agent. Best effort: do not rely on it.",
        payload=events.StateEvent,
        headers=AgentHeaders,
    ),
    Entry(
        subject="evt.agent.{agent_id}.step",
        summary="The phase of a step. Best effort.",
        payload=events.StepEvent,
        headers=StepHeaders,
    ),
    Entry(
        subject="evt.agent.{agent_id}.task",
        summary="A turn has ended: exactly one per turn in the stream, published until it is acknowledged.",
        payload=events.TaskEvent,
        headers=TaskHeaders,
        receivers=(Party.CLIENT, Party.BRIDGE),
    ),
    Entry(
        subject="evt.agent.{agent_id}.inbox_progress",
        summary="The new status of a row of an agent's inbox. Published without waiting, best effort.",
        payload=events.InboxProgress,
        headers=AgentHeaders,
    ),
    Entry(
        subject="evt.agent.{agent_id}.steer",
        summary="Where a steer of a turn stands: it waits, a step takes it, it is applied, or skipped. Best effort.",
        payload=SteerEvent,
        headers=AgentHeaders,
    ),
    Entry(
        subject="evt.agent.{agent_id}.interrupt",
        summary="A turn asks a person. Without arguments or question; best effort: the list of interrupts has all.",
        section="13",
        payload=InterruptEvent,
        headers=InterruptHeaders,
    ),
    Entry(
        subject="cmd.sys.ui.action",
        summary="A user's action: one call of a tool, as a turn. Served if configured; a header may name the agent.",
        section="7.10",
        payload=ui_actions.UiAction,
        headers=CommandHeaders,
        senders=_CLIENT,
        receivers=(Party.BRIDGE,),
    ),
    Entry(
        subject="evt.sys.ui.action_ack",
        summary="The status of a user's action: `accepted`, `busy` or `rejected` at once, then `done` or `rejected`.",
        section="7.10",
        payload=ui_actions.ActionAck,
        headers=ActionAckHeaders,
    ),
    Entry(
        subject="evt.sys.pump.reply",
        summary="The answer to a message from outside, exactly one; a copy goes to the `reply_to` of its `send`.",
        section="9",
        payload=events.ReplyEvent,
        headers=PumpReplyHeaders,
    ),
    Entry(
        subject="evt.sys.probe",
        summary="Checks that the stream stores messages; in a project of its own. No consumer acts on it.",
        payload=None,
        headers=None,
        receivers=_KERNEL,
    ),
    Entry(
        subject="str.agent.{agent_id}.chunk",
        summary="Streamed text of a turn, as the model writes it. For display only.",
        transport=Transport.CORE,
        payload=events.Chunk,
        headers=None,
        senders=(Party.WORKER,),
    ),
)

ENTRIES: tuple[Entry, ...] = (*(entry for verb in VERBS for entry in _entries(verb)), *_SUBJECTS)

NOT_SPOKEN = frozenset[str]()
"""Subjects of protocol §5 that are not implemented yet."""


@dataclass(frozen=True)
class Document:
    """A document that is stored rather than sent: a file, a row's payload, a card's content."""

    name: str
    form: Any
    """A model, or a union of models."""


DOCUMENTS = (
    *(Document(model.__name__, model) for model in (Profile, ToolDefinition, ListenerFile)),
    *(
        Document(model.__name__, model)
        for model in (
            inbox.TurnPayload,
            inbox.ReportPayload,
            inbox.StopPayload,
            inbox.SteerPayload,
            inbox.DecisionPayload,
        )
    ),
    Document("Card", cards.Card),
    Document("CardContent", cards.CardContent),
    Document("FallbackDeliverable", cards.FallbackDeliverable),
)


def find(subject: str) -> Entry | None:
    """The entry of a subject; None if the protocol has no such subject."""
    return next((entry for entry in ENTRIES if entry.pattern.fullmatch(subject)), None)
