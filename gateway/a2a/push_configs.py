"""Receivers of a task's notifications: set and removed by the bridge's verbs, read from the ledger (protocol §17.3).

A receiver has a token of its own, if any, and no other credentials: the ledger keeps none that could be used elsewhere.
The token is never returned.
"""

import hashlib
import re

from a2a.types import (
    DeleteTaskPushNotificationConfigRequest,
    GetTaskPushNotificationConfigRequest,
    ListTaskPushNotificationConfigsRequest,
    SendMessageConfiguration,
    TaskPushNotificationConfig,
)
from a2a.utils.errors import InvalidParamsError, TaskNotFoundError
from pydantic import BaseModel

from turnstile.gateway.a2a.a2a_request import A2aRequest
from turnstile.gateway.a2a.objects import PushConfig, PushConfigList
from turnstile.ledger.access.tasks import TaskRow
from turnstile.ledger.pushes.receivers import list_receivers
from turnstile.runtime.outbound import destination
from turnstile.schema import verbs
from turnstile.schema.access import Right
from turnstile.schema.base import JsonObject
from turnstile.schema.ids import ReceiverId
from turnstile.schema.wire.push_requests import PushReply

_ID = re.compile(r"[A-Za-z0-9_.:-]{1,128}")


async def checked_receiver(
    a2a: A2aRequest, configuration: SendMessageConfiguration
) -> TaskPushNotificationConfig | None:
    """The receiver that a message names, checked before there is a task; raises `InvalidParamsError`, `Refused`."""
    if not configuration.HasField("task_push_notification_config"):
        return None
    a2a.needs(Right.ASK)
    receiver = configuration.task_push_notification_config
    _check(receiver)
    project = a2a.call.principal.project_id
    await destination(receiver.url, a2a.names, project, private=a2a.private_receivers)
    return receiver


async def add_receiver(a2a: A2aRequest, row: TaskRow, receiver: TaskPushNotificationConfig) -> PushConfig:
    """Notify a receiver of a task from now on."""
    a2a.needs(Right.ASK)
    _check(receiver)
    name = receiver.id or "r-" + hashlib.sha256(receiver.url.encode()).hexdigest()[:16]
    fields: JsonObject = {"url": receiver.url}
    if receiver.token:
        fields["token"] = receiver.token
    await _verb(a2a, row, verbs.PUSH_SET, name, fields)
    return PushConfig(id=name, task_id=row.agent_turn_id, url=receiver.url)


async def create(a2a: A2aRequest, request: TaskPushNotificationConfig) -> PushConfig:
    """Notify a receiver of an existing task from now on."""
    return await add_receiver(a2a, await a2a.row(request.task_id), request)


async def get(a2a: A2aRequest, request: GetTaskPushNotificationConfigRequest) -> PushConfig:
    """A receiver; raises `TaskNotFoundError` if the task has none of this id."""
    for receiver in await _receivers(a2a, request.task_id):
        if receiver.id == request.id:
            return receiver
    raise TaskNotFoundError("the task has no such push notification config")


async def list_all(a2a: A2aRequest, request: ListTaskPushNotificationConfigsRequest) -> PushConfigList:
    """All receivers of a task: there are few."""
    return PushConfigList(configs=await _receivers(a2a, request.task_id), next_page_token="")


async def delete(a2a: A2aRequest, request: DeleteTaskPushNotificationConfigRequest) -> None:
    """Remove a receiver; a second time does nothing."""
    a2a.needs(Right.ASK)
    row = await a2a.row(request.task_id)
    if _ID.fullmatch(request.id):
        await _verb(a2a, row, verbs.PUSH_REMOVE, request.id, {})


async def _receivers(a2a: A2aRequest, task_id: str) -> list[PushConfig]:
    row = await a2a.row(task_id)
    project, turn = a2a.call.principal.project_id, row.agent_turn_id
    receivers = await a2a.kernel.pool.run(lambda conn: list_receivers(conn, project, turn))
    return [PushConfig(id=r.receiver_id, task_id=turn, url=r.url) for r in receivers]


async def _verb(
    a2a: A2aRequest, row: TaskRow, verb: verbs.Verb[BaseModel, PushReply], name: str, fields: JsonObject
) -> None:
    asking, call = a2a.kernel.turns.asking, a2a.call
    payload: JsonObject = {"agent_turn_id": row.agent_turn_id, "receiver_id": ReceiverId(name), **fields}
    await asking.ask(call.principal, row.channel_id, verb, payload, call.headers)


def _check(receiver: TaskPushNotificationConfig) -> None:
    if receiver.HasField("authentication"):
        raise InvalidParamsError(
            "authentication: not supported, because the gateway stores no credentials; set `token` instead"
        )
    if receiver.id and not _ID.fullmatch(receiver.id):
        raise InvalidParamsError("id: 1 to 128 letters, digits and _ . : -")
