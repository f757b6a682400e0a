"""JSON-RPC of A2A: a request read, checked, done and answered, and the operations on tasks (protocol §17.3).

The SDK's dispatcher keeps what runs in its process, logs what strangers send, and answers exceptions with their text;
its request types and checks are used here, and no more.
"""

import asyncio
import contextlib
import json
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC
from typing import Any, Final
from urllib.parse import quote

from a2a import types
from a2a.types import AgentCard, CancelTaskRequest, GetTaskRequest, ListTasksRequest, SendMessageRequest, TaskState
from a2a.utils import constants, errors
from a2a.utils.errors import InvalidParamsError, TaskNotCancelableError
from a2a.utils.proto_utils import validate_proto_required_fields
from google.protobuf.json_format import MessageToDict, ParseDict, ParseError
from google.protobuf.message import Message
from pydantic import JsonValue
from starlette.responses import Response

from turnstile.gateway.a2a import push_configs, streaming
from turnstile.gateway.a2a.a2a_request import A2aRequest
from turnstile.gateway.a2a.delivery import deliver
from turnstile.gateway.a2a.faults import error_answer
from turnstile.gateway.a2a.objects import A2aObject, SentMessage, Task, TaskPage
from turnstile.gateway.a2a.push_configs import add_receiver, checked_receiver
from turnstile.gateway.a2a.refusals import CARD, RequestId
from turnstile.gateway.a2a.tasks import moment_of, state_of, task_of
from turnstile.gateway.addressed import AddressedTarget, look_up
from turnstile.gateway.bounds import About
from turnstile.gateway.events.stream import attend
from turnstile.gateway.http.bearers import Access
from turnstile.gateway.http.endpoints import Answer, Call, Endpoint
from turnstile.gateway.kernel import Kernel
from turnstile.gateway.v1.cursors import cursor_of, place_of
from turnstile.ledger.access.pages import PageCursor
from turnstile.ledger.access.tasks import (
    TargetDescription,
    TaskRow,
    count_tasks,
    describe_target,
    page_tasks,
    read_tasks,
)
from turnstile.runtime.outbound import Names
from turnstile.schema.access import Right
from turnstile.schema.api import TurnStop
from turnstile.schema.base import JsonObject
from turnstile.schema.errors import BadRequest, Refused, TurnstileError
from turnstile.schema.ids import AgentId, ConversationId
from turnstile.schema.json_reading import read_json

_STOP_SECONDS: Final = 10.0
"""How long a cancel waits for the end of its turn."""
_PAGE: Final = 50
_LARGEST_PAGE: Final = 100
_SCANS: Final = 10
"""The most pages of turns that are read for one page of tasks in a state."""
_COUNTED: Final = 10_000
"""Tasks are counted up to so many."""


async def send(a2a: A2aRequest, request: SendMessageRequest) -> SentMessage:
    """Deliver a message; answers its task once that is over or asks a person, or at once if that is wanted."""
    configuration = request.configuration
    receiver = await checked_receiver(a2a, configuration)
    with contextlib.ExitStack() as stack:
        if not configuration.return_immediately:
            stack.enter_context(a2a.kernel.access.streaming(a2a.call.principal))  # refused before there is a turn
        row = await deliver(a2a, request)
        if receiver is not None:
            await add_receiver(a2a, row, receiver)
        if not configuration.return_immediately:
            row = await _settled(a2a, row)
    length = configuration.history_length if configuration.HasField("history_length") else None
    return SentMessage(task=await a2a.shown(row, length))


async def _settled(a2a: A2aRequest, row: TaskRow) -> TaskRow:
    """The task once it is over or asks; as it is if its client goes away or the gateway stops, since it goes on."""
    waiting = asyncio.create_task(a2a.settled(row))
    receive, closing = a2a.call.request.receive, a2a.kernel.streaming.closing
    ending = await attend(waiting, receive, closing, holds=a2a.still)
    return waiting.result() if ending == "done" else await a2a.row(row.agent_turn_id)


async def get(a2a: A2aRequest, request: GetTaskRequest) -> Task:
    """A task."""
    row = await a2a.row(request.id)
    return await a2a.shown(row, _history_length(request))


async def cancel(a2a: A2aRequest, request: CancelTaskRequest) -> Task:
    """Stop a task, and wait a moment for its end."""
    a2a.needs(Right.ASK)
    row = await a2a.row(request.id)
    if row.ended_at is not None:
        raise TaskNotCancelableError("the task is over")
    kernel, call = a2a.kernel, a2a.call
    view = await a2a.view(row)
    await kernel.turns.stop_turn(call.principal, view, TurnStop(reason="canceled"), call.headers)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_STOP_SECONDS):
            await kernel.feeds.until_over(view)
    await a2a.still()
    return await a2a.shown(await a2a.row(row.agent_turn_id))


async def list_tasks(a2a: A2aRequest, request: ListTasksRequest) -> TaskPage:
    """A page of tasks, the last begun first; a page may be short, and the last one has no `nextPageToken`."""
    size = request.page_size if request.HasField("page_size") else _PAGE
    if not 1 <= size <= _LARGEST_PAGE:
        raise InvalidParamsError(f"pageSize: 1 to {_LARGEST_PAGE}")
    state = a2a.params.get("status")
    names = list(TaskState.keys())
    if request.status not in TaskState.values() or (isinstance(state, str) and state not in names):
        raise InvalidParamsError(f"status: one of {', '.join(names[1:])}")
    length = _history_length(request)
    context = ConversationId(request.context_id) if request.context_id else None
    rows, after = await _scanned(a2a, request, context, size, with_history=length != 0)
    total = await a2a.kernel.pool.run(lambda conn: count_tasks(conn, a2a.scope, conversation=context, most=_COUNTED))
    return TaskPage(
        tasks=[_listed(row, length, with_artifacts=request.include_artifacts) for row in rows],
        next_page_token="" if after is None else cursor_of(after),
        page_size=size,
        total_size=total,
    )


async def _scanned(
    a2a: A2aRequest, request: ListTasksRequest, context: ConversationId | None, size: int, *, with_history: bool
) -> tuple[list[TaskRow], PageCursor | None]:
    """The tasks of a page, and the place behind which the next begins; None if there is none.

    Where not all fit, `_SCANS` pages are looked through without what the tasks hold, which is read of those that fit.
    """
    fits, begin = _filter(request), place_of(request.page_token or None)
    with_artifacts = request.include_artifacts or with_history
    most = size if fits is None else size * _SCANS

    rows = await a2a.kernel.pool.run(
        lambda conn: page_tasks(
            conn,
            a2a.scope,
            conversation=context,
            before=begin,
            with_artifacts=with_artifacts and fits is None,
            with_history=with_history and fits is None,
            row_limit=most + 1,
        )
    )
    matches = [row for row in rows[:most] if fits is None or fits(row)][:size]
    last = matches[-1] if len(matches) == size else rows[:most][-1] if rows else None
    place = None if last is None or last is rows[-1] else PageCursor(last.created_at, last.agent_turn_id)
    if fits is not None and with_artifacts and matches:
        project, turns = a2a.scope.project_id, [row.agent_turn_id for row in matches]
        matches = await a2a.kernel.pool.run(lambda conn: read_tasks(conn, project, turns, with_history=with_history))
    return matches, place


def _filter(request: ListTasksRequest) -> Callable[[TaskRow], bool] | None:
    """Whether a task is one of those that are wanted; None if all are."""
    since = request.status_timestamp_after.ToDatetime(UTC) if request.HasField("status_timestamp_after") else None
    state = TaskState.Name(request.status) if request.status else None
    if state is None and since is None:
        return None
    return lambda row: state in (None, state_of(row)) and (since is None or moment_of(row) > since)


def _listed(row: TaskRow, length: int | None, *, with_artifacts: bool) -> Task:
    task = task_of(row, history_length=length)
    if with_artifacts:
        return task
    return Task(
        id=task.id, context_id=task.context_id, status=task.status, history=task.history, metadata=task.metadata
    )


def _history_length(request: GetTaskRequest | ListTasksRequest) -> int | None:
    if not request.HasField("history_length"):
        return None
    if request.history_length < 0:
        raise InvalidParamsError("historyLength: it cannot be negative")
    return request.history_length


MOST_VALUES: Final = 2_000
"""Of one request, besides its data parts and metadata."""
_LONGEST_ID: Final = 256
_VERSION: Final = re.compile(r"1(\.\d{1,4}){0,2}")
_SPEAKS: Final = frozenset({Right.ASK, Right.DECIDE})
"""A message asks for a turn, or answers what one asks."""
_Operation = Callable[[A2aRequest, Any], Awaitable[A2aObject | Response | None]]
OPERATIONS: Final[Mapping[str, tuple[Right | frozenset[Right], type[Message], _Operation]]] = {
    "SendMessage": (_SPEAKS, types.SendMessageRequest, send),
    "SendStreamingMessage": (_SPEAKS, types.SendMessageRequest, streaming.send_stream),
    "GetTask": (Right.READ, types.GetTaskRequest, get),
    "ListTasks": (Right.READ, types.ListTasksRequest, list_tasks),
    "CancelTask": (Right.ASK, types.CancelTaskRequest, cancel),
    "SubscribeToTask": (Right.READ, types.SubscribeToTaskRequest, streaming.subscribe),
    "CreateTaskPushNotificationConfig": (Right.ASK, types.TaskPushNotificationConfig, push_configs.create),
    "GetTaskPushNotificationConfig": (Right.READ, types.GetTaskPushNotificationConfigRequest, push_configs.get),
    "ListTaskPushNotificationConfigs": (
        Right.READ,
        types.ListTaskPushNotificationConfigsRequest,
        push_configs.list_all,
    ),
    "DeleteTaskPushNotificationConfig": (Right.ASK, types.DeleteTaskPushNotificationConfigRequest, push_configs.delete),
}


@dataclass(frozen=True, slots=True)
class Agents:
    """The handlers, for all agents of a gateway."""

    kernel: Kernel
    about: About
    names: Names = field(default_factory=Names)

    async def card(self, call: Call[Any, Any]) -> Answer:
        """The card of an agent."""
        target = await self._target(call)
        name, project = target.name, call.principal.project_id
        agent, profile = (None, name) if target.is_profile else (AgentId(name), None)
        description = await self.kernel.pool.run(
            lambda conn: describe_target(conn, project, agent=agent, profile=profile)
        )
        if description is None:
            raise _unknown()
        card = agent_card(description, target, self.about)
        return Answer(Response(json.dumps(card), media_type="application/json"))

    async def ask(self, call: Call[Any, bytes]) -> Answer:
        """One request of JSON-RPC."""
        request_id: RequestId = None
        try:
            fields = _read(call.body)
            request_id = _id_in(fields)
            request, operation, params = _asked(fields, call, self.kernel.access)
            target, private = await self._target(call), self.about.private_receivers
            a2a = A2aRequest(self.kernel, call, target, request_id, params, self.names, private)
            result = await operation(a2a, request)
        except (errors.A2AError, TurnstileError) as error:
            return Answer(error_answer(request_id, error))
        if isinstance(result, Response):
            return Answer(result)
        text = "null" if result is None else result.json_text()
        body = f'{{"jsonrpc":"2.0","id":{json.dumps(request_id)},"result":{text}}}'
        return Answer(Response(body.encode("utf-8", "replace"), media_type="application/json"))

    async def _target(self, call: Call[Any, Any]) -> AddressedTarget:
        named = call.path.get("agent", self.about.default_agent)  # the card at the root is of the default agent
        target = await look_up(self.kernel.pool, call.principal.project_id, named)
        if target is None:
            raise _unknown()
        return target


def _unknown() -> Refused:
    return Refused("unknown_agent", "the project has no such agent, and no such profile with instances")


def _read(body: bytes) -> JsonObject:
    try:
        request = read_json(body)
    except BadRequest as error:
        raise errors.JSONParseError(str(error)) from None
    if not isinstance(request, dict):
        raise errors.InvalidRequestError("the body must be one JSON-RPC request object; batches are not supported")
    return request


def _id_in(request: JsonObject) -> RequestId:
    request_id = request.get("id")
    if (
        isinstance(request_id, bool)
        or not isinstance(request_id, str | int | None)
        or len(str(request_id)) > _LONGEST_ID
    ):
        raise errors.InvalidRequestError(
            f"id: must be a string of at most {_LONGEST_ID} characters, an integer or null"
        )
    return request_id


def _asked(envelope: JsonObject, call: Call[Any, bytes], access: Access) -> tuple[Message, _Operation, JsonObject]:
    """The request, how it is done, and its parameters as they were sent; raises A2A's errors."""
    method, params = envelope.get("method"), envelope.get("params", {})
    if envelope.get("jsonrpc") != "2.0" or not isinstance(method, str):
        raise errors.InvalidRequestError('a request needs "jsonrpc": "2.0" and a method')
    if method == "GetExtendedAgentCard":
        raise errors.UnsupportedOperationError("this agent has no extended card; its public card is complete")
    if method not in OPERATIONS:
        raise errors.MethodNotFoundError
    right, kind, operation = OPERATIONS[method]
    access.check(call.principal, right)  # before its parameters are read
    if not _VERSION.fullmatch(call.headers.get(constants.VERSION_HEADER, "")):
        raise errors.VersionNotSupportedError(f"{constants.VERSION_HEADER}: this gateway supports version 1.0")
    if not isinstance(params, dict):
        raise errors.InvalidParamsError("params: must be an object")
    return read_params(kind, params), operation, params


def read_params(kind: type[Message], params: JsonObject) -> Message:
    """The parameters without what clients' JSON holds, which is taken from the request as it was sent.

    Protobuf reads a value in 14 us and checks it in as many, so at most `MOST_VALUES` are read besides data parts and
    metadata. Raises A2A's errors.
    """
    try:
        request = ParseDict(_envelope(params), kind(), ignore_unknown_fields=True)
    except (ParseError, ValueError, TypeError, RecursionError, ArithmeticError):
        raise errors.InvalidParamsError(f"params: cannot be read as {kind.DESCRIPTOR.name}") from None
    validate_proto_required_fields(request)
    return request


def _envelope(params: JsonObject) -> JsonObject:
    public = _without_metadata(params)
    if isinstance(message := params.get("message"), dict):
        public_message = public["message"] = _without_metadata(message)
        if isinstance(parts := message.get("parts"), list):
            kept: list[JsonValue] = [_without_data(part) if isinstance(part, dict) else part for part in parts]
            public_message["parts"] = kept
    if not _is_below(public, MOST_VALUES):
        raise errors.InvalidParamsError(
            f"params: more than {MOST_VALUES} values besides data parts and metadata: send fewer parts at a time"
        )
    return public


def _without_metadata(value: JsonObject) -> JsonObject:
    return {name: {} if name == "metadata" and isinstance(item, dict) else item for name, item in value.items()}


def _without_data(part: JsonObject) -> JsonObject:
    return _without_metadata(part) | ({"data": True} if "data" in part else {})


def _is_below(value: JsonValue, most: int) -> bool:
    """Whether it has at most so many values, at any level."""
    level: list[JsonValue] = [value]
    while level and most >= 0:
        most -= len(level)
        level = [part for value_above in level for part in _parts_of(value_above)]
    return most >= 0


def _parts_of(value: JsonValue) -> Iterable[JsonValue]:
    return value if isinstance(value, list) else value.values() if isinstance(value, dict) else ()


VERSION: Final = "1.0"
BINDING: Final = "JSONRPC"
MODES: Final = ["text/plain", "application/json"]
_SCHEME: Final = "bearer"
_MOST_SKILLS: Final = 100


def address_of(base: str, named: str) -> str:
    """Where an agent is reached."""
    return f"{base}/a2a/{quote(named, safe=':')}"


def agent_card(description: TargetDescription, target: AddressedTarget, about: About) -> dict[str, Any]:
    """The card as JSON."""
    text = description.description or f"The agent {description.name}, with the profile {description.profile_name}."
    skill = {
        "id": description.profile_name,
        "name": description.profile_name,
        "description": text,
        "tags": description.tags or ["agent"],
    }
    tools = [
        {
            "id": f"tool:{tool.name}",
            "name": tool.name,
            "description": tool.description or f"The tool {tool.name}.",
            "tags": ["tool"],
        }
        for tool in description.tools[:_MOST_SKILLS]
    ]
    card: dict[str, Any] = {
        "name": description.name,
        "description": text,
        "version": description.since.isoformat(),
        "supportedInterfaces": [
            {"url": address_of(about.url, target.named), "protocolBinding": BINDING, "protocolVersion": VERSION}
        ],
        "capabilities": {"streaming": True, "pushNotifications": True},
        "securitySchemes": {_SCHEME: {"httpAuthSecurityScheme": {"scheme": "Bearer"}}},
        "securityRequirements": [{"schemes": {_SCHEME: {"list": []}}}],
        "defaultInputModes": MODES,
        "defaultOutputModes": MODES,
        "skills": [skill, *tools],
    }
    if about.organization and about.organization_url:
        card["provider"] = {"organization": about.organization, "url": about.organization_url}
    return MessageToDict(ParseDict(card, AgentCard()))


def a2a_endpoints(kernel: Kernel, about: About) -> list[Endpoint]:
    """All of them."""
    agents = Agents(kernel, about)
    root = Endpoint(
        name="a2a_root_card",
        method="GET",
        path=CARD,
        right=Right.READ,
        summary="The card of the default agent, where clients look first.",
        handler=agents.card,
    )
    return [
        *([root] if about.default_agent else []),
        Endpoint(
            name="a2a_card",
            method="GET",
            path=f"/a2a/{{agent:path}}{CARD}",
            right=Right.READ,
            summary="The card of an agent.",
            handler=agents.card,
        ),
        Endpoint(
            name="a2a",
            method="POST",
            path="/a2a/{agent:path}",
            right=Right.READ,
            summary="A request of JSON-RPC.",
            handler=agents.ask,
            raw=True,
        ),
    ]
