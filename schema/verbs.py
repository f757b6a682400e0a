"""The verbs of the bridge, each declared once: name, arguments, reply, and who may ask (protocol §6).

Bridge, gateway and clients read these declarations, and the AsyncAPI document is made of them. To add a verb: its
declaration here, its handler in the bridge, and where it has them its endpoint and its command.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic, Literal, TypeVar

from pydantic import BaseModel

from turnstile.schema.base import Reply
from turnstile.schema.budgets.budget_requests import (
    BudgetListReply,
    BudgetListRequest,
    BudgetRaiseRequest,
    BudgetReply,
    BudgetRequest,
    ProjectLimitRequest,
)
from turnstile.schema.delegation.requests import DelegateReply, DelegateRequest
from turnstile.schema.people.interrupt_requests import (
    InterruptListReply,
    InterruptListRequest,
    InterruptReply,
    InterruptRequest,
)
from turnstile.schema.people.interrupts import DecideReply, DecideRequest
from turnstile.schema.people.reruns import RerunReply, RerunRequest
from turnstile.schema.people.steers import SteerReply, SteerRequest
from turnstile.schema.wire.box_requests import (
    BoxForkReply,
    BoxForkRequest,
    BoxMakeReply,
    BoxMakeRequest,
    BoxReplaceReply,
    BoxReplaceRequest,
)
from turnstile.schema.wire.conversation_requests import ConversationPutReply, ConversationPutRequest
from turnstile.schema.wire.descriptions import DescribeReply, ListenerListReply, ThreadDescribeReply
from turnstile.schema.wire.inbox import (
    DescribeRequest,
    EnqueueReply,
    EnqueueRequest,
    ListenerListRequest,
    ReportReply,
    ReportRequest,
    SendReply,
    SendRequest,
    StopReply,
    StopRequest,
    ThreadDescribeRequest,
)
from turnstile.schema.wire.progress import ProgressReply, ProgressRequest
from turnstile.schema.wire.push_requests import PushRemoveRequest, PushReply, PushSetRequest
from turnstile.schema.wire.roster_requests import (
    AgentListReply,
    AgentPutReply,
    AgentPutRequest,
    AgentRequest,
    AgentStatusReply,
    ListRequest,
    ProfileListReply,
    ProfilePutReply,
    ProfilePutRequest,
    ToolListReply,
    ToolPutReply,
    ToolPutRequest,
    ToolRemoveReply,
    ToolRemoveRequest,
)

Request_co = TypeVar("Request_co", bound=BaseModel, covariant=True)
Answer_co = TypeVar("Answer_co", bound=Reply, covariant=True)


class Role(StrEnum):
    """The parties on NATS."""

    CLIENT = "client"
    """Enqueues turns, sends messages, and watches events."""
    OPERATOR = "operator"
    """A client with more rights."""
    TOOL = "tool"
    """Answers calls."""
    BRIDGE = "bridge"
    """The kernel's process that answers verbs and rings for turns."""
    WORKER = "worker"
    """The kernel's process that runs turns."""


@dataclass(frozen=True, slots=True)
class Verb(Generic[Request_co, Answer_co]):
    """A verb of the bridge."""

    name: str
    summary: str
    section: str
    """Of docs/protocol.md."""
    request: type[Request_co]
    reply: type[Answer_co]
    callers: tuple[Role, ...]
    durable: bool = False
    """Whether it is also a durable command `cmd.sys.bridge.{name}`, answered by the event `{name}_ack`."""
    caller: Literal["none", "may", "must"] = "none"
    """Whether the subject may or must name the caller at its end, as NATS permissions fix it."""


_CLIENT, _TOOL, _OPERATOR = (Role.CLIENT,), (Role.TOOL,), (Role.OPERATOR,)

ENQUEUE = Verb(
    name="enqueue",
    summary="Ask an agent for a turn.",
    section="6",
    request=EnqueueRequest,
    reply=EnqueueReply,
    callers=_CLIENT,
    durable=True,
    caller="may",
)
REPORT = Verb("report", "Answer a call.", "6", ReportRequest, ReportReply, _TOOL, durable=True)
STOP = Verb("stop", "End a turn.", "6", StopRequest, StopReply, _CLIENT, durable=True, caller="may")
STEER = Verb("steer", "Say something to a turn while it runs.", "6", SteerRequest, SteerReply, _CLIENT, caller="must")
DESCRIBE = Verb(
    name="describe",
    summary="Look at a turn, a card or a call.",
    section="6",
    request=DescribeRequest,
    reply=DescribeReply,
    callers=_CLIENT + _TOOL,
    durable=True,
)
RERUN = Verb("rerun", "Run a turn again from one of its steps.", "6", RerunRequest, RerunReply, _CLIENT, caller="must")
BOX_FORK = Verb("box_fork", "Copy a box.", "6", BoxForkRequest, BoxForkReply, _CLIENT, durable=True)
BOX_MAKE = Verb("box_make", "Make a box of parts.", "6", BoxMakeRequest, BoxMakeReply, _CLIENT, durable=True)
BOX_REPLACE = Verb(
    name="box_replace",
    summary="Set an agent's boxes.",
    section="6",
    request=BoxReplaceRequest,
    reply=BoxReplaceReply,
    callers=_CLIENT,
    durable=True,
)
CONVERSATION_PUT = Verb(
    name="conversation.put",
    summary="Make a conversation, or change it between turns.",
    section="6",
    request=ConversationPutRequest,
    reply=ConversationPutReply,
    callers=_CLIENT,
)
DELEGATE = Verb(
    name="delegate",
    summary="Ask other agents, or a person, under a call that the tool runs; asked again, how they stand.",
    section="12",
    request=DelegateRequest,
    reply=DelegateReply,
    callers=_TOOL,
)
PROGRESS = Verb(
    name="progress",
    summary="Say how far a tool is with a call that it runs.",
    section="6",
    request=ProgressRequest,
    reply=ProgressReply,
    callers=_TOOL,
)
DECIDE = Verb(
    name="decide",
    summary="Decide about a call that waits for a person.",
    section="13",
    request=DecideRequest,
    reply=DecideReply,
    callers=_CLIENT,
    caller="must",
)
INTERRUPT_LIST = Verb(
    name="interrupt.list",
    summary="List what people are asked.",
    section="13",
    request=InterruptListRequest,
    reply=InterruptListReply,
    callers=_CLIENT,
)
INTERRUPT_GET = Verb("interrupt.get", "See a question with its call.", "13", InterruptRequest, InterruptReply, _CLIENT)
BUDGET_LIST = Verb(
    name="budget.list",
    summary="List budgets, and what the project may spend.",
    section="6",
    request=BudgetListRequest,
    reply=BudgetListReply,
    callers=_CLIENT,
)
BUDGET_GET = Verb("budget.get", "See a budget.", "6", BudgetRequest, BudgetReply, _CLIENT)
RAISE_BUDGET = Verb(
    name="raise_budget",
    summary="Give a budget more, or take back what is free.",
    section="6",
    request=BudgetRaiseRequest,
    reply=BudgetReply,
    callers=_OPERATOR,
    caller="must",
)
LIMIT_PROJECT = Verb(
    name="limit_project",
    summary="Say what a project may spend in a day or month.",
    section="6",
    request=ProjectLimitRequest,
    reply=BudgetReply,
    callers=_OPERATOR,
    caller="must",
)
PUSH_SET = Verb(
    name="push.set",
    summary="Tell a receiver by HTTP when a turn comes into another state.",
    section="17.3",
    request=PushSetRequest,
    reply=PushReply,
    callers=_CLIENT,
)
PUSH_REMOVE = Verb("push.remove", "Tell a receiver no more.", "17.3", PushRemoveRequest, PushReply, _CLIENT)
SEND = Verb("send", "Send a message to a listener.", "9", SendRequest, SendReply, _CLIENT, durable=True)
AGENT_PUT = Verb("agent.put", "Add an agent, or change it.", "6", AgentPutRequest, AgentPutReply, _OPERATOR)
AGENT_LIST = Verb("agent.list", "List the agents of a project.", "6", ListRequest, AgentListReply, _OPERATOR)
AGENT_PAUSE = Verb(
    name="agent.pause",
    summary="Let an agent take no further turn; what waits stays queued.",
    section="6",
    request=AgentRequest,
    reply=AgentStatusReply,
    callers=_OPERATOR,
)
AGENT_RESUME = Verb(
    name="agent.resume",
    summary="Make a paused or retired agent active.",
    section="6",
    request=AgentRequest,
    reply=AgentStatusReply,
    callers=_OPERATOR,
)
AGENT_RETIRE = Verb(
    name="agent.retire",
    summary="Let an agent take no further enqueue; what waits still runs.",
    section="6",
    request=AgentRequest,
    reply=AgentStatusReply,
    callers=_OPERATOR,
)
PROFILE_PUT = Verb("profile.put", "Store a profile.", "6", ProfilePutRequest, ProfilePutReply, _OPERATOR)
PROFILE_LIST = Verb("profile.list", "List the profiles of a project.", "6", ListRequest, ProfileListReply, _OPERATOR)
TOOL_PUT = Verb("tool.put", "Store a tool.", "6", ToolPutRequest, ToolPutReply, _OPERATOR)
TOOL_LIST = Verb("tool.list", "List the tools of a project.", "6", ListRequest, ToolListReply, _OPERATOR)
TOOL_REMOVE = Verb("tool.remove", "Remove a tool.", "6", ToolRemoveRequest, ToolRemoveReply, _OPERATOR)
THREAD_DESCRIBE = Verb(
    name="thread.describe",
    summary="Look at a thread with its real chains.",
    section="9",
    request=ThreadDescribeRequest,
    reply=ThreadDescribeReply,
    callers=_OPERATOR,
)
LISTENER_LIST = Verb(
    name="listener.list",
    summary="List listeners with their peers and the XML schemas of their payloads.",
    section="9",
    request=ListenerListRequest,
    reply=ListenerListReply,
    callers=_OPERATOR,
)

VERBS: tuple[Verb[Any, Any], ...] = (
    ENQUEUE,
    REPORT,
    STOP,
    STEER,
    DESCRIBE,
    RERUN,
    BOX_FORK,
    BOX_MAKE,
    BOX_REPLACE,
    CONVERSATION_PUT,
    DELEGATE,
    PROGRESS,
    DECIDE,
    INTERRUPT_LIST,
    INTERRUPT_GET,
    BUDGET_LIST,
    BUDGET_GET,
    RAISE_BUDGET,
    LIMIT_PROJECT,
    PUSH_SET,
    PUSH_REMOVE,
    SEND,
    AGENT_PUT,
    AGENT_LIST,
    AGENT_PAUSE,
    AGENT_RESUME,
    AGENT_RETIRE,
    PROFILE_PUT,
    PROFILE_LIST,
    TOOL_PUT,
    TOOL_LIST,
    TOOL_REMOVE,
    THREAD_DESCRIBE,
    LISTENER_LIST,
)

_BY_NAME = {verb.name: verb for verb in VERBS}


def verb_named(name: str) -> Verb[Any, Any] | None:
    """The verb of this name; None if there is none."""
    return _BY_NAME.get(name)
