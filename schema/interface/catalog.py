"""Every subject and every document of the protocol, with its models, as `turnstile schema export` writes them.

An entry has senders, receivers, transport, payload and reply of a subject. Nothing reads the catalog at run time; tests
compare it with the code: a verb, a subject or an event without an entry fails. To add one:

    a verb       its declaration in schema/verbs.py: request/reply, durable command and ack follow from it
    a subject    an `Entry` in `_SUBJECTS`
    a document   a line in `DOCUMENTS`
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, Field, create_model

from turnstile.schema import cards
from turnstile.schema.interface import envelopes
from turnstile.schema.interface.entries import Entry, Transport
from turnstile.schema.people.interrupts import InterruptEvent
from turnstile.schema.people.steers import SteerEvent
from turnstile.schema.profiles import Profile
from turnstile.schema.pump.listeners import ListenerFile
from turnstile.schema.tools import ToolCallHolder, ToolCommandPayload, ToolDefinition
from turnstile.schema.verbs import VERBS, Role, Verb
from turnstile.schema.wire import events, inbox, ui_actions


def _entries(verb: Verb[Any, Any]) -> Iterator[Entry]:
    """The verb's subjects: request/reply, and for a durable one the command and its ack."""
    yield Entry(
        subject=f"req.sys.bridge.{verb.name}{'.{principal}' if verb.caller == 'must' else ''}",
        summary=verb.summary,
        may_name_caller=verb.caller == "may",
        transport=Transport.MICRO,
        section=verb.section,
        payload=verb.request,
        headers=envelopes.CallerHeaders,
        senders=verb.callers,
        receivers=(Role.BRIDGE,),
        reply=verb.reply,
    )
    if not verb.durable:
        return
    ack = f"evt.sys.bridge.{verb.name}_ack"
    yield Entry(
        subject=f"cmd.sys.bridge.{verb.name}",
        summary=f"The verb `{verb.name}` as a durable command: it waits for a bridge; the answer is `{ack}`.",
        payload=_with_request_id(verb.request, "Command", f"Arguments of `{verb.name}` as a durable command."),
        headers=envelopes.CommandHeaders,
        senders=verb.callers,
        receivers=(Role.BRIDGE,),
    )
    yield Entry(
        subject=ack,
        summary=f"The answer to the durable command `{verb.name}`.",
        payload=_with_request_id(verb.reply, "Ack", f"Answer to the durable command `{verb.name}`."),
        headers=envelopes.AckHeaders,
        senders=(Role.BRIDGE,),
        receivers=verb.callers,
    )


def _with_request_id(model: type[BaseModel], suffix: str, doc: str) -> type[BaseModel]:
    name = f"{model.__name__.removesuffix('Request').removesuffix('Reply')}{suffix}"
    about = "The caller's own name for the command; its answer repeats it."
    field: Any = (str | None, Field(default=None, max_length=inbox.REQUEST_ID_LIMIT, description=about))
    return create_model(name, __base__=model, __doc__=doc, request_id=field)


_CLIENT, _TOOL = (Role.CLIENT,), (Role.TOOL,)
_KERNEL = (Role.BRIDGE, Role.WORKER)

_SUBJECTS = (
    Entry(
        subject="cmd.agent.{worker_target}.wakeup",
        summary="A doorbell: look at the agent's inbox. The agent may be named by its header alone.",
        payload=events.Wakeup,
        headers=envelopes.CommandHeaders,
        senders=(*_KERNEL, Role.TOOL),
        receivers=(Role.BRIDGE,),
    ),
    Entry(
        subject="cmd.tool.{target}.{suffix}",
        summary="A call of a tool. The tool reads the arguments with `describe`, and answers with `report`.",
        payload=ToolCommandPayload,
        headers=envelopes.ToolCommandHeaders,
        receivers=_TOOL,
    ),
    Entry(
        subject="cmd.sys.pmo.internal.{tool}",
        summary="A call by which an agent asks others. Who asks for what is read from the ledger alone.",
        section="12",
        payload=ToolCommandPayload,
        headers=envelopes.ToolCommandHeaders,
        receivers=(Role.BRIDGE,),
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
        headers=envelopes.AgentHeaders,
    ),
    Entry(
        subject="evt.agent.{agent_id}.step",
        summary="The phase of a step. Best effort.",
        payload=events.StepEvent,
        headers=envelopes.StepHeaders,
    ),
    Entry(
        subject="evt.agent.{agent_id}.task",
        summary="A turn has ended: exactly one per turn in the stream, published until it is acknowledged.",
        payload=events.TaskEvent,
        headers=envelopes.TaskHeaders,
        receivers=(Role.CLIENT, Role.BRIDGE),
    ),
    Entry(
        subject="evt.agent.{agent_id}.inbox_progress",
        summary="The new status of a row of an agent's inbox. Published without waiting, best effort.",
        payload=events.InboxProgress,
        headers=envelopes.AgentHeaders,
    ),
    Entry(
        subject="evt.agent.{agent_id}.steer",
        summary="Where a steer of a turn stands: it waits, a step takes it, it is applied, or skipped. Best effort.",
        payload=SteerEvent,
        headers=envelopes.AgentHeaders,
    ),
    Entry(
        subject="evt.agent.{agent_id}.interrupt",
        summary="A turn asks a person. Without arguments or question; best effort: the list of interrupts has all.",
        section="13",
        payload=InterruptEvent,
        headers=envelopes.InterruptHeaders,
    ),
    Entry(
        subject="cmd.sys.ui.action",
        summary="A user's action: one call of a tool, as a turn. Served if configured; a header may name the agent.",
        section="7.10",
        payload=ui_actions.UiAction,
        headers=envelopes.CommandHeaders,
        senders=_CLIENT,
        receivers=(Role.BRIDGE,),
    ),
    Entry(
        subject="evt.sys.ui.action_ack",
        summary="The status of a user's action: `accepted`, `busy` or `rejected` at once, then `done` or `rejected`.",
        section="7.10",
        payload=ui_actions.ActionAck,
        headers=envelopes.ActionAckHeaders,
    ),
    Entry(
        subject="evt.sys.pump.reply",
        summary="The answer to a message from outside, exactly one; a copy goes to the `reply_to` of its `send`.",
        section="9",
        payload=events.ReplyEvent,
        headers=envelopes.PumpReplyHeaders,
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
        senders=(Role.WORKER,),
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
