"""Every subject and every document of the protocol, with its models, as `turnstile schema export` writes them.

An entry has senders, receivers, transport, payload and reply of a subject. Nothing reads the catalog at run time; tests
compare it with the code: a verb, a subject or an event without an entry fails. To add one:

    a verb       a line in `VERBS`: request/reply, durable command and ack follow from it
    a subject    an `Entry` in `_SUBJECTS`
    a document   a line in `DOCUMENTS`
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, Field, create_model

from turnstile.schema import cards
from turnstile.schema.budgets.budget_requests import (
    BudgetListReply,
    BudgetListRequest,
    BudgetRaiseRequest,
    BudgetReply,
    BudgetRequest,
    ProjectLimitRequest,
)
from turnstile.schema.delegation.requests import DelegateReply, DelegateRequest
from turnstile.schema.interface import envelopes
from turnstile.schema.interface.entries import Entry, Role, Transport
from turnstile.schema.people.interrupt_requests import (
    InterruptListReply,
    InterruptListRequest,
    InterruptReply,
    InterruptRequest,
)
from turnstile.schema.people.interrupts import DecideReply, DecideRequest, InterruptEvent
from turnstile.schema.people.reruns import RerunReply, RerunRequest
from turnstile.schema.people.steers import SteerEvent, SteerReply, SteerRequest
from turnstile.schema.profiles import Profile
from turnstile.schema.pump.listeners import ListenerFile
from turnstile.schema.tools import ToolCallHolder, ToolCommandPayload, ToolDefinition
from turnstile.schema.wire import events, inbox, subjects, ui_actions
from turnstile.schema.wire import roster_requests as roster
from turnstile.schema.wire.box_requests import (
    BoxForkReply,
    BoxForkRequest,
    BoxMakeReply,
    BoxMakeRequest,
    BoxReplaceReply,
    BoxReplaceRequest,
)
from turnstile.schema.wire.descriptions import DescribeReply, ListenerListReply, ThreadDescribeReply
from turnstile.schema.wire.progress import ProgressReply, ProgressRequest
from turnstile.schema.wire.push_requests import PushRemoveRequest, PushReply, PushSetRequest


@dataclass(frozen=True)
class Verb:
    """A verb of the bridge; a `durable` one is also a command."""

    name: str
    summary: str
    section: str
    request: type[BaseModel]
    reply: type[BaseModel]
    callers: tuple[Role, ...]
    durable: bool = True

    def entries(self) -> Iterator[Entry]:
        """The verb's subjects: request/reply, and for a durable one the command and its ack."""
        must_name_caller = subjects.CALLED_BY.get(self.name)
        yield Entry(
            subject=f"req.sys.bridge.{self.name}{'.{principal}' if must_name_caller else ''}",
            summary=self.summary,
            may_name_caller=must_name_caller is False,
            transport=Transport.MICRO,
            section=self.section,
            payload=self.request,
            headers=envelopes.CallerHeaders,
            senders=self.callers,
            receivers=(Role.BRIDGE,),
            reply=self.reply,
        )
        if not self.durable:
            return
        ack = f"evt.sys.bridge.{self.name}_ack"
        yield Entry(
            subject=f"cmd.sys.bridge.{self.name}",
            summary=f"The verb `{self.name}` as a durable command: it waits for a bridge; the answer is `{ack}`.",
            payload=_with_request_id(self.request, "Command", f"Arguments of `{self.name}` as a durable command."),
            headers=envelopes.CommandHeaders,
            senders=self.callers,
            receivers=(Role.BRIDGE,),
        )
        yield Entry(
            subject=ack,
            summary=f"The answer to the durable command `{self.name}`.",
            payload=_with_request_id(self.reply, "Ack", f"Answer to the durable command `{self.name}`."),
            headers=envelopes.AckHeaders,
            senders=(Role.BRIDGE,),
            receivers=self.callers,
        )


def _with_request_id(model: type[BaseModel], suffix: str, doc: str) -> type[BaseModel]:
    name = f"{model.__name__.removesuffix('Request').removesuffix('Reply')}{suffix}"
    about = "The caller's own name for the command; its answer repeats it."
    field: Any = (str | None, Field(default=None, max_length=inbox.REQUEST_ID_LIMIT, description=about))
    return create_model(name, __base__=model, __doc__=doc, request_id=field)


_CLIENT, _TOOL = (Role.CLIENT,), (Role.TOOL,)
_KERNEL = (Role.BRIDGE, Role.WORKER)

VERBS = (
    Verb("enqueue", "Ask an agent for a turn.", "6", inbox.EnqueueRequest, inbox.EnqueueReply, _CLIENT),
    Verb("report", "Answer a call.", "6", inbox.ReportRequest, inbox.ReportReply, _TOOL),
    Verb("stop", "End a turn.", "6", inbox.StopRequest, inbox.StopReply, _CLIENT),
    Verb(
        name="steer",
        summary="Say something to a turn while it runs.",
        section="6",
        request=SteerRequest,
        reply=SteerReply,
        callers=_CLIENT,
        durable=False,
    ),
    Verb("describe", "Look at a turn, a card or a call.", "6", inbox.DescribeRequest, DescribeReply, _CLIENT + _TOOL),
    Verb("rerun", "Run a turn again from one of its steps.", "6", RerunRequest, RerunReply, _CLIENT, durable=False),
    Verb("box_fork", "Copy a box.", "6", BoxForkRequest, BoxForkReply, _CLIENT),
    Verb("box_make", "Make a box of parts.", "6", BoxMakeRequest, BoxMakeReply, _CLIENT),
    Verb("box_replace", "Set an agent's boxes.", "6", BoxReplaceRequest, BoxReplaceReply, _CLIENT),
    Verb(
        name="delegate",
        summary="Ask other agents, or a person, under a call that the tool runs; asked again, how they stand.",
        section="12",
        request=DelegateRequest,
        reply=DelegateReply,
        callers=_TOOL,
        durable=False,
    ),
    Verb(
        name="progress",
        summary="Say how far a tool is with a call that it runs.",
        section="6",
        request=ProgressRequest,
        reply=ProgressReply,
        callers=_TOOL,
        durable=False,
    ),
    Verb(
        name="decide",
        summary="Decide about a call that waits for a person.",
        section="13",
        request=DecideRequest,
        reply=DecideReply,
        callers=_CLIENT,
        durable=False,
    ),
    *(
        Verb(name, summary, "13", request, reply, _CLIENT, durable=False)
        for name, summary, request, reply in (
            ("interrupt.list", "List what people are asked.", InterruptListRequest, InterruptListReply),
            ("interrupt.get", "See a question with its call.", InterruptRequest, InterruptReply),
        )
    ),
    *(
        Verb(name, summary, "6", request, reply, _CLIENT, durable=False)
        for name, summary, request, reply in (
            ("budget.list", "List budgets, and what the project may spend.", BudgetListRequest, BudgetListReply),
            ("budget.get", "See a budget.", BudgetRequest, BudgetReply),
        )
    ),
    *(
        Verb(name, summary, "6", request, BudgetReply, (Role.OPERATOR,), durable=False)
        for name, summary, request in (
            ("raise_budget", "Give a budget more, or take back what is free.", BudgetRaiseRequest),
            ("limit_project", "Say what a project may spend in a day or month.", ProjectLimitRequest),
        )
    ),
    *(
        Verb(name, summary, "17.3", request, PushReply, _CLIENT, durable=False)
        for name, summary, request in (
            ("push.set", "Tell a receiver by HTTP when a turn comes into another state.", PushSetRequest),
            ("push.remove", "Tell a receiver no more.", PushRemoveRequest),
        )
    ),
    Verb("send", "Send a message to a listener.", "9", inbox.SendRequest, inbox.SendReply, _CLIENT),
    *(
        Verb(name, summary, "6", request, reply, (Role.OPERATOR,), durable=False)
        for name, summary, request, reply in (
            ("agent.put", "Add an agent, or change it.", roster.AgentPutRequest, roster.AgentPutReply),
            ("agent.list", "List the agents of a project.", roster.ListRequest, roster.AgentListReply),
            (
                "agent.pause",
                "Let an agent take no further turn; what waits stays queued.",
                roster.AgentRequest,
                roster.AgentStatusReply,
            ),
            (
                "agent.resume",
                "Make a paused or retired agent active.",
                roster.AgentRequest,
                roster.AgentStatusReply,
            ),
            (
                "agent.retire",
                "Let an agent take no further enqueue; what waits still runs.",
                roster.AgentRequest,
                roster.AgentStatusReply,
            ),
            ("profile.put", "Store a profile.", roster.ProfilePutRequest, roster.ProfilePutReply),
            ("profile.list", "List the profiles of a project.", roster.ListRequest, roster.ProfileListReply),
            ("tool.put", "Store a tool.", roster.ToolPutRequest, roster.ToolPutReply),
            ("tool.list", "List the tools of a project.", roster.ListRequest, roster.ToolListReply),
            ("tool.remove", "Remove a tool.", roster.ToolRemoveRequest, roster.ToolRemoveReply),
        )
    ),
    Verb(
        name="thread.describe",
        summary="Look at a thread with its real chains.",
        section="9",
        request=inbox.ThreadDescribeRequest,
        reply=ThreadDescribeReply,
        callers=(Role.OPERATOR,),
        durable=False,
    ),
    Verb(
        name="listener.list",
        summary="List listeners with their peers and the XML schemas of their payloads.",
        section="9",
        request=inbox.ListenerListRequest,
        reply=ListenerListReply,
        callers=(Role.OPERATOR,),
        durable=False,
    ),
)

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

ENTRIES: tuple[Entry, ...] = (*(entry for verb in VERBS for entry in verb.entries()), *_SUBJECTS)

NOT_SPOKEN = frozenset[str]()
"""Subjects of protocol §5 that are not implemented yet."""


@dataclass(frozen=True)
class Document:
    """A document that is stored rather than sent: a file, a row's payload, a card's content."""

    name: str
    form: Any
    """A model, or a union of models."""


DOCUMENTS = (
    *(Document(each.__name__, each) for each in (Profile, ToolDefinition, ListenerFile)),
    *(
        Document(each.__name__, each)
        for each in (
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
