"""The verbs of the bridge, each declared once: name, arguments, reply, who may ask, and its endpoint (protocol §6).

Bridge, gateway and clients read these declarations; the AsyncAPI and OpenAPI documents are made of them. To add a verb:
its declaration here and its handler in the bridge; where people use it, a method of `Client` and a command.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, Generic, Literal, TypeVar, cast

from pydantic import BaseModel

from turnstile.schema import api
from turnstile.schema.access import Right
from turnstile.schema.amounts import amount
from turnstile.schema.base import Reply
from turnstile.schema.budgets.budget_requests import (
    BudgetListReply,
    BudgetListRequest,
    BudgetRaiseRequest,
    BudgetReply,
    BudgetRequest,
    ProjectLimitRequest,
)
from turnstile.schema.budgets.views import BudgetView
from turnstile.schema.delegation.requests import DelegateReply, DelegateRequest
from turnstile.schema.ledger_reads import ReadReply, ReadRequest
from turnstile.schema.people.interrupt_requests import (
    InterruptListReply,
    InterruptListRequest,
    InterruptReply,
    InterruptRequest,
    InterruptView,
)
from turnstile.schema.people.interrupts import DecideReply, DecideRequest
from turnstile.schema.people.reruns import RerunRequest
from turnstile.schema.people.steers import SteerReply, SteerRequest
from turnstile.schema.wire.box_requests import (
    BoxForkReply,
    BoxForkRequest,
    BoxMakeReply,
    BoxMakeRequest,
    BoxReplaceReply,
    BoxReplaceRequest,
)
from turnstile.schema.wire.call_requests import CallHistoryReply, CallHistoryRequest, CallStepReply, CallStepRequest
from turnstile.schema.wire.conversation_requests import (
    ConversationPutReply,
    ConversationPutRequest,
    ConversationStop,
    ConversationStopped,
    ConversationStopReply,
    ConversationStopRequest,
)
from turnstile.schema.wire.deletion_requests import (
    ConversationDeleteRequest,
    DeleteReply,
    Deletion,
    DeletionReply,
    DeletionRequest,
    EndUserDeleteRequest,
    RequestedDeletion,
)
from turnstile.schema.wire.descriptions import DescribeReply, ListenerListReply, ThreadDescribeReply
from turnstile.schema.wire.file_requests import FileBegin, FileCommit, FileRemove, FileReply
from turnstile.schema.wire.inbox import (
    DescribeRequest,
    EnqueueReply,
    EnqueueRequest,
    ListenerListRequest,
    ReportReply,
    ReportRequest,
    RerunReply,
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
from turnstile.schema.wire.schedule_requests import (
    ScheduleListReply,
    ScheduleListRequest,
    SchedulePutReply,
    SchedulePutRequest,
    ScheduleReply,
    ScheduleRequest,
    ScheduleSettings,
    ScheduleTriggerReply,
    ScheduleTriggerRequest,
    ScheduleView,
)
from turnstile.schema.wire.webhook_requests import (
    ProjectWebhookSettings,
    TurnWebhookRequest,
    WebhookListReply,
    WebhookListRequest,
    WebhookPutRequest,
    WebhookRemoveRequest,
    WebhookReply,
    WebhookSettings,
)

Request_co = TypeVar("Request_co", bound=BaseModel, covariant=True)
Answer_co = TypeVar("Answer_co", bound=Reply, covariant=True)


class Party(StrEnum):
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


IDEMPOTENT = {"Idempotency-Key": "The caller's own name for the request: 1 to 256 ASCII characters."}
"""The header of requests with a correlation id."""
LONGEST_WAIT: Final = 300.0
WAITING = {
    "Prefer": f"`wait=SECONDS`: respond when the turn is over, or after this time (at most {amount(LONGEST_WAIT)})."
}
"""The header of requests that may wait for a turn's end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """The endpoint of a verb in `/v1`."""

    name: str
    """Its operation id."""
    method: Literal["GET", "POST", "PUT", "DELETE"]
    path: str
    right: Right | frozenset[Right]
    """What a token needs; of several one is enough, and which depends on what is asked about."""
    summary: str
    key: str | None = None
    """The argument that the path names. The gateway looks its owner up, whose channel is asked."""
    query: type[BaseModel] | None = None
    body: type[BaseModel] | None = None
    answer: type[BaseModel]
    part: str | None = None
    """The field of the reply that is the whole answer; None: the answer has fields of the reply."""
    statuses: Mapping[int, str] = field(default_factory=lambda: {200: "Done."})
    request_headers: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class Verb(Generic[Request_co, Answer_co]):
    """A verb of the bridge."""

    name: str
    summary: str
    section: str
    """Of docs/protocol.md."""
    request: type[Request_co]
    reply: type[Answer_co]
    callers: tuple[Party, ...]
    durable: bool = False
    """Whether it is also a durable command `cmd.sys.bridge.{name}`, answered by the event `{name}_ack`."""
    caller: Literal["none", "may", "must"] = "none"
    """Whether the subject may or must name the caller at its end, as NATS permissions fix it."""
    counted: Literal["all", "new", "none"] = "all"
    """Which of its requests the project's rate limits. `new`: above the rate the handler answers repeats, and refuses
    others itself. `none`: it ends work that was admitted before, or has a rate of its own."""
    route: Route | None = None
    """Its endpoint, if it has one."""
    by_gateway: bool = False
    """Whether a gateway asks it without an endpoint in `/v1`: for the console, or for another protocol."""


_CLIENT, _TOOL, _OPERATOR = (Party.CLIENT,), (Party.TOOL,), (Party.OPERATOR,)

ENQUEUE = Verb(
    name="enqueue",
    summary="Ask an agent for a turn.",
    section="6",
    request=EnqueueRequest,
    reply=EnqueueReply,
    callers=_CLIENT,
    durable=True,
    caller="may",
    counted="new",
    route=Route(
        name="create_turn",
        method="POST",
        path="/v1/turns",
        right=Right.ASK,
        summary="Enqueue a turn. The same Idempotency-Key with the same body returns the same turn.",
        body=api.TurnCreate,
        answer=api.Turn,
        statuses={201: "The turn is over.", 202: "The turn is queued or running."},
        request_headers=IDEMPOTENT | WAITING,
    ),
)
REPORT = Verb(
    "report", "Answer a call.", "6", ReportRequest, ReportReply, _TOOL, durable=True, counted="none", by_gateway=True
)
STOP = Verb(
    name="stop",
    summary="End a turn.",
    section="6",
    request=StopRequest,
    reply=StopReply,
    callers=_CLIENT,
    durable=True,
    caller="may",
    counted="none",
    route=Route(
        name="stop_turn",
        method="POST",
        path="/v1/turns/{turn_id}/stop",
        key="agent_turn_id",
        right=Right.ASK,
        summary="Stop a turn and the turns below it that it waits for.",
        body=api.TurnStop,
        answer=api.StopAnswer,
        statuses={202: "The turn will end."},
    ),
)
STEER = Verb(
    name="steer",
    summary="Say something to a turn while it runs.",
    section="6",
    request=SteerRequest,
    reply=SteerReply,
    callers=_CLIENT,
    caller="must",
    route=Route(
        name="steer_turn",
        method="POST",
        path="/v1/turns/{turn_id}/steer",
        key="agent_turn_id",
        right=Right.ASK,
        summary="Steer a running turn. The same Idempotency-Key with the same body returns the same steer.",
        body=api.TurnSteer,
        answer=api.SteerAnswer,
        statuses={202: "The turn reads the steer in its next step."},
        request_headers=IDEMPOTENT,
    ),
)
DESCRIBE = Verb(
    name="describe",
    summary="Look at a turn, a card or a call.",
    section="6",
    request=DescribeRequest,
    reply=DescribeReply,
    callers=_CLIENT + _TOOL,
    durable=True,
)
RERUN = Verb(
    name="rerun",
    summary="Run a turn again from one of its steps.",
    section="6",
    request=RerunRequest,
    reply=RerunReply,
    callers=_CLIENT,
    caller="must",
    route=Route(
        name="rerun_turn",
        method="POST",
        path="/v1/turns/{turn_id}/rerun",
        key="agent_turn_id",
        right=Right.ASK,
        summary="Rerun a finished turn from one of its steps: a new turn runs with copies of its boxes.",
        body=api.TurnRerun,
        answer=api.Turn,
        statuses={201: "The new turn is over.", 202: "The new turn is queued or running."},
        request_headers=IDEMPOTENT | WAITING,
    ),
)
BOX_FORK = Verb("box_fork", "Copy a box.", "6", BoxForkRequest, BoxForkReply, _CLIENT, durable=True, caller="may")
BOX_MAKE = Verb(
    name="box_make",
    summary="Make a box of parts.",
    section="6",
    request=BoxMakeRequest,
    reply=BoxMakeReply,
    callers=_CLIENT,
    durable=True,
    caller="may",
    by_gateway=True,
)
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
    caller="may",
    by_gateway=True,
)
CONVERSATION_STOP = Verb(
    name="conversation.stop",
    summary="Stop the turns of a conversation that are not over, the queued ones too.",
    section="6",
    request=ConversationStopRequest,
    reply=ConversationStopReply,
    callers=_CLIENT,
    caller="must",
    counted="none",
    route=Route(
        name="stop_conversation",
        method="POST",
        path="/v1/conversations/{conversation_id}/stop",
        key="conversation_id",
        right=Right.ASK,
        summary="Stop the turns of a conversation that are running or queued.",
        query=api.ChannelQuery,
        body=ConversationStop,
        answer=ConversationStopped,
        statuses={202: "The turns will end."},
    ),
)
CONVERSATION_DELETE = Verb(
    name="conversation.delete",
    summary="Delete a conversation with its turns, the running ones too, and all that only they reach.",
    section="6",
    request=ConversationDeleteRequest,
    reply=DeleteReply,
    callers=_OPERATOR,
    caller="must",
    counted="none",
    route=Route(
        name="delete_conversation",
        method="DELETE",
        path="/v1/conversations/{conversation_id}",
        key="conversation_id",
        right=Right.OPERATE,
        summary="Delete a conversation for good: its turns are stopped, and all that only they reach is removed.",
        query=api.ConversationDeleteQuery,
        answer=RequestedDeletion,
        statuses={202: "It will be gone: see GET /v1/deletions/{deletion_id}."},
    ),
)
END_USER_DELETE = Verb(
    name="end_user.delete",
    summary="Delete an end user with all their turns, the running ones too, and all that only they reach.",
    section="6",
    request=EndUserDeleteRequest,
    reply=DeleteReply,
    callers=_OPERATOR,
    caller="must",
    counted="none",
    route=Route(
        name="delete_end_user",
        method="DELETE",
        path="/v1/end_users",
        key="end_user",
        right=Right.OPERATE,
        summary="Delete an end user of the project for good, with all their turns and what only these reach.",
        query=api.EndUserQuery,
        answer=RequestedDeletion,
        statuses={202: "They will be gone: see GET /v1/deletions/{deletion_id}."},
    ),
)
DELETION_GET = Verb(
    name="deletion.get",
    summary="See how far a deletion is.",
    section="6",
    request=DeletionRequest,
    reply=DeletionReply,
    callers=_OPERATOR,
    caller="must",
    route=Route(
        name="get_deletion",
        method="GET",
        path="/v1/deletions/{deletion_id}",
        key="deletion_id",
        right=Right.OPERATE,
        summary="How far a deletion is, and what it has removed; it does not say of whom.",
        answer=Deletion,
        part="deletion",
    ),
)
DELEGATE = Verb(
    name="delegate",
    summary="Ask other agents, or a person, under a call that the tool runs; asked again, how they stand.",
    section="12",
    request=DelegateRequest,
    reply=DelegateReply,
    callers=_TOOL,
    counted="new",
)
CALL_STEP = Verb(
    name="call.step",
    summary="Record what a program has done under a call that it runs, once for each key; or look for it.",
    section="21",
    request=CallStepRequest,
    reply=CallStepReply,
    callers=_TOOL,
    counted="none",
)
CALL_HISTORY = Verb(
    name="call.history",
    summary="Read what the turn of a call may read, a page at a time.",
    section="21",
    request=CallHistoryRequest,
    reply=CallHistoryReply,
    callers=_TOOL,
    counted="none",
)
PROGRESS = Verb(
    name="progress",
    summary="Say how far a tool is with a call that it runs.",
    section="6",
    request=ProgressRequest,
    reply=ProgressReply,
    callers=_TOOL,
    counted="none",
)
DECIDE = Verb(
    name="decide",
    summary="Decide about a call that waits for a person.",
    section="13",
    request=DecideRequest,
    reply=DecideReply,
    callers=_CLIENT,
    caller="must",
    route=Route(
        name="decide_interrupt",
        method="POST",
        path="/v1/interrupts/{interrupt_id}/decision",
        key="interrupt_id",
        right=frozenset({Right.ASK, Right.DECIDE}),
        summary="Decide an interrupt: approve, edit, reject or respond. The first decision counts.",
        body=api.InterruptDecision,
        answer=api.Decided,
    ),
)
INTERRUPT_LIST = Verb(
    name="interrupt.list",
    summary="List what people are asked.",
    section="13",
    request=InterruptListRequest,
    reply=InterruptListReply,
    callers=_CLIENT,
    route=Route(
        name="list_interrupts",
        method="GET",
        path="/v1/interrupts",
        right=Right.READ,
        summary="Interrupts: what turns ask people, newest first.",
        query=api.InterruptsQuery,
        answer=api.InterruptPage,
    ),
)
INTERRUPT_GET = Verb(
    name="interrupt.get",
    summary="See a question with its call.",
    section="13",
    request=InterruptRequest,
    reply=InterruptReply,
    callers=_CLIENT,
    route=Route(
        name="get_interrupt",
        method="GET",
        path="/v1/interrupts/{interrupt_id}",
        key="interrupt_id",
        right=Right.READ,
        summary="An interrupt, with the call that it is about.",
        answer=InterruptView,
        part="interrupt",
    ),
)
BUDGET_LIST = Verb(
    name="budget.list",
    summary="List budgets, and what the project may spend.",
    section="6",
    request=BudgetListRequest,
    reply=BudgetListReply,
    callers=_CLIENT,
    route=Route(
        name="list_budgets",
        method="GET",
        path="/v1/budgets",
        right=Right.READ,
        summary="Budgets of turns and of the project, with what is spent, newest first.",
        query=api.BudgetsQuery,
        answer=api.BudgetPage,
    ),
)
BUDGET_GET = Verb(
    name="budget.get",
    summary="See a budget.",
    section="6",
    request=BudgetRequest,
    reply=BudgetReply,
    callers=_CLIENT,
    route=Route(
        name="get_budget",
        method="GET",
        path="/v1/budgets/{budget_id}",
        key="budget_id",
        right=Right.READ,
        summary="A budget: a turn's id, or the project's: `day`, `month`, `2026-11-23` or `2026-11`.",
        answer=BudgetView,
        part="budget",
    ),
)
RAISE_BUDGET = Verb(
    name="raise_budget",
    summary="Give a budget more, or take back what is free.",
    section="6",
    request=BudgetRaiseRequest,
    reply=BudgetReply,
    callers=_OPERATOR,
    caller="must",
    route=Route(
        name="raise_budget",
        method="POST",
        path="/v1/budgets/{budget_id}/raise",
        key="budget_id",
        right=Right.OPERATE,
        summary="Raise a budget, or take back what is unused with a negative amount; once per Idempotency-Key.",
        body=api.BudgetRaise,
        answer=BudgetView,
        part="budget",
        request_headers=IDEMPOTENT,
    ),
)
LIMIT_PROJECT = Verb(
    name="limit_project",
    summary="Say what a project may spend in a day or month.",
    section="6",
    request=ProjectLimitRequest,
    reply=BudgetReply,
    callers=_OPERATOR,
    caller="must",
    route=Route(
        name="limit_project",
        method="POST",
        path="/v1/budgets/{period}/limit",
        key="period",
        right=Right.OPERATE,
        summary="Limit what the project may spend per `day` or `month` from now on.",
        body=api.BudgetLimitation,
        answer=BudgetView,
        part="budget",
    ),
)
PUSH_SET = Verb(
    name="push.set",
    summary="Notify a receiver by HTTP when the state of a turn changes.",
    section="17.3",
    request=PushSetRequest,
    reply=PushReply,
    callers=_CLIENT,
    caller="may",
    by_gateway=True,
)
PUSH_REMOVE = Verb(
    "push.remove", "Tell a receiver no more.", "17.3", PushRemoveRequest, PushReply, _CLIENT, by_gateway=True
)
WEBHOOK_PUT = Verb(
    name="webhook.put",
    summary="Send the ends, questions and warnings of a project's turns to an address.",
    section="17.6",
    request=WebhookPutRequest,
    reply=WebhookReply,
    callers=_OPERATOR,
    caller="must",
    route=Route(
        name="put_webhook",
        method="PUT",
        path="/v1/webhooks/{webhook_id}",
        key="webhook_id",
        right=Right.OPERATE,
        summary="Set a webhook of the project, or of a profile's turns. The same id again replaces it.",
        body=ProjectWebhookSettings,
        answer=api.Webhook,
    ),
)
WEBHOOK_LIST = Verb(
    name="webhook.list",
    summary="List a project's webhooks.",
    section="17.6",
    request=WebhookListRequest,
    reply=WebhookListReply,
    callers=_OPERATOR,
    caller="must",
    route=Route(
        name="list_webhooks",
        method="GET",
        path="/v1/webhooks",
        right=Right.OPERATE,
        summary="The webhooks of the project and its profiles, without their secrets.",
        answer=api.WebhookPage,
    ),
)
WEBHOOK_REMOVE = Verb(
    name="webhook.remove",
    summary="Remove a webhook.",
    section="17.6",
    request=WebhookRemoveRequest,
    reply=WebhookReply,
    callers=_OPERATOR,
    caller="must",
    route=Route(
        name="remove_webhook",
        method="DELETE",
        path="/v1/webhooks/{webhook_id}",
        key="webhook_id",
        right=Right.OPERATE,
        summary="Remove a webhook; what was still to be sent to it is not sent.",
        answer=api.Webhook,
    ),
)
TURN_WEBHOOK = Verb(
    name="turn.webhook",
    summary="Send a turn's end, questions and warnings to an address.",
    section="17.6",
    request=TurnWebhookRequest,
    reply=WebhookReply,
    callers=_CLIENT,
    caller="may",
    route=Route(
        name="put_turn_webhook",
        method="PUT",
        path="/v1/turns/{turn_id}/webhook",
        key="agent_turn_id",
        right=Right.ASK,
        summary="Set the webhook of a turn. If the turn is over, its end is sent.",
        body=WebhookSettings,
        answer=api.Webhook,
    ),
)
SCHEDULE_PUT = Verb(
    name="schedule.put",
    summary="Ask for a turn at times: by cron, at intervals, or once.",
    section="20",
    request=SchedulePutRequest,
    reply=SchedulePutReply,
    callers=_CLIENT,
    caller="must",
    route=Route(
        name="put_schedule",
        method="PUT",
        path="/v1/schedules/{schedule_id}",
        key="schedule_id",
        right=Right.ASK,
        summary="Put a schedule, whose turns the token asks for. The same id again replaces it.",
        query=api.SchedulesQuery,
        body=ScheduleSettings,
        answer=ScheduleView,
        part="schedule",
    ),
)
SCHEDULE_LIST = Verb(
    name="schedule.list",
    summary="List the schedules of a channel, each with its last firing.",
    section="20",
    request=ScheduleListRequest,
    reply=ScheduleListReply,
    callers=_CLIENT,
    route=Route(
        name="list_schedules",
        method="GET",
        path="/v1/schedules",
        right=Right.READ,
        summary="The schedules of a channel by their ids, each with its last firing.",
        query=api.SchedulePageQuery,
        answer=api.SchedulePage,
    ),
)
SCHEDULE_GET = Verb(
    name="schedule.get",
    summary="See a schedule with its next times and last firings.",
    section="20",
    request=ScheduleRequest,
    reply=ScheduleReply,
    callers=_CLIENT,
    route=Route(
        name="get_schedule",
        method="GET",
        path="/v1/schedules/{schedule_id}",
        key="schedule_id",
        right=Right.READ,
        summary="A schedule with its next times and last firings.",
        query=api.SchedulesQuery,
        answer=ScheduleView,
        part="schedule",
    ),
)
SCHEDULE_PAUSE = Verb(
    name="schedule.pause",
    summary="Let a schedule fire no more until it is resumed.",
    section="20",
    request=ScheduleRequest,
    reply=ScheduleReply,
    callers=_CLIENT,
    caller="must",
    route=Route(
        name="pause_schedule",
        method="POST",
        path="/v1/schedules/{schedule_id}/pause",
        key="schedule_id",
        right=Right.ASK,
        summary="Pause a schedule: it fires no more until it is resumed.",
        query=api.SchedulesQuery,
        answer=ScheduleView,
        part="schedule",
    ),
)
SCHEDULE_RESUME = Verb(
    name="schedule.resume",
    summary="Let a paused schedule fire from its next time on.",
    section="20",
    request=ScheduleRequest,
    reply=ScheduleReply,
    callers=_CLIENT,
    caller="must",
    route=Route(
        name="resume_schedule",
        method="POST",
        path="/v1/schedules/{schedule_id}/resume",
        key="schedule_id",
        right=Right.ASK,
        summary="Resume a paused schedule: it fires from its next time on.",
        query=api.SchedulesQuery,
        answer=ScheduleView,
        part="schedule",
    ),
)
SCHEDULE_TRIGGER = Verb(
    name="schedule.trigger",
    summary="Enqueue a turn of a schedule now, paused or not.",
    section="20",
    request=ScheduleTriggerRequest,
    reply=ScheduleTriggerReply,
    callers=_CLIENT,
    caller="must",
    route=Route(
        name="trigger_schedule",
        method="POST",
        path="/v1/schedules/{schedule_id}/trigger",
        key="schedule_id",
        right=Right.ASK,
        summary="Enqueue a turn of a schedule now. The same Idempotency-Key returns the same turn.",
        query=api.SchedulesQuery,
        answer=api.ScheduleTriggered,
        statuses={202: "The turn is queued or running."},
        request_headers=IDEMPOTENT,
    ),
)
SCHEDULE_REMOVE = Verb(
    name="schedule.remove",
    summary="Remove a schedule with its firings; its turns stay.",
    section="20",
    request=ScheduleRequest,
    reply=ScheduleReply,
    callers=_CLIENT,
    caller="must",
    route=Route(
        name="remove_schedule",
        method="DELETE",
        path="/v1/schedules/{schedule_id}",
        key="schedule_id",
        right=Right.ASK,
        summary="Remove a schedule with its firings; its turns stay.",
        query=api.SchedulesQuery,
        answer=ScheduleView,
        part="schedule",
    ),
)
ARTIFACT_CREATE = Verb(
    name="artifact.create",
    summary="Announce a file, whose bytes go to the store.",
    section="22",
    request=FileBegin,
    reply=FileReply,
    callers=_CLIENT,
    caller="may",
    by_gateway=True,
)
ARTIFACT_COMMIT = Verb(
    name="artifact.commit",
    summary="Make a file ready, whose bytes are in the store.",
    section="22",
    request=FileCommit,
    reply=FileReply,
    callers=_CLIENT,
    caller="may",
    counted="none",
    by_gateway=True,
)
ARTIFACT_REMOVE = Verb(
    name="artifact.remove",
    summary="Remove a file; who operates removes any, others what they upload.",
    section="22",
    request=FileRemove,
    reply=FileReply,
    callers=_CLIENT,
    caller="must",
    route=Route(
        name="remove_artifact",
        method="DELETE",
        path="/v1/artifacts/{artifact_id}",
        key="artifact_id",
        right=Right.OPERATE,
        summary="Remove a file: nobody can read it any more, and its bytes are removed soon after.",
        answer=api.FileRemoved,
    ),
)
SEND = Verb("send", "Send a message to a listener.", "9", SendRequest, SendReply, _CLIENT, durable=True, counted="new")
AGENT_PUT = Verb(
    name="agent.put",
    summary="Add an agent, or change it.",
    section="6",
    request=AgentPutRequest,
    reply=AgentPutReply,
    callers=_OPERATOR,
    caller="may",
)
AGENT_LIST = Verb("agent.list", "List the agents of a project.", "6", ListRequest, AgentListReply, _OPERATOR)
AGENT_PAUSE = Verb(
    name="agent.pause",
    summary="Let an agent take no further turn; what waits stays queued.",
    section="6",
    request=AgentRequest,
    reply=AgentStatusReply,
    callers=_OPERATOR,
    by_gateway=True,
)
AGENT_RESUME = Verb(
    name="agent.resume",
    summary="Make a paused or retired agent active.",
    section="6",
    request=AgentRequest,
    reply=AgentStatusReply,
    callers=_OPERATOR,
    by_gateway=True,
)
AGENT_RETIRE = Verb(
    name="agent.retire",
    summary="Let an agent take no further enqueue; what waits still runs.",
    section="6",
    request=AgentRequest,
    reply=AgentStatusReply,
    callers=_OPERATOR,
    by_gateway=True,
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
LEDGER_READ = Verb(
    name="ledger.read",
    summary="Read rows of a project, of all its channels.",
    section="6",
    request=ReadRequest,
    reply=ReadReply,
    callers=_OPERATOR,
)

VERBS: tuple[Verb[Any, Any], ...] = tuple(cast("Verb[Any, Any]", v) for v in globals().values() if isinstance(v, Verb))
"""The declarations above, in their order."""

_BY_NAME = {verb.name: verb for verb in VERBS}


def verb_named(name: str) -> Verb[Any, Any] | None:
    """The verb of this name; None if there is none."""
    return _BY_NAME.get(name)
