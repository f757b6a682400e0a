"""Whom to tell of a task: set and removed by the bridge's verbs, read of the ledger (protocol §17.3).

A receiver has a token of its own, if any, and no other credentials: the ledger keeps none that could be used elsewhere.
The token is never given back.
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

from turnstile.gateway.a2a.asked import Asked
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


async def checked_receiver(asked: Asked, configuration: SendMessageConfiguration) -> TaskPushNotificationConfig | None:
    """The receiver that a message names, checked before there is a task; raises `InvalidParamsError`, `Refused`."""
    if not configuration.HasField("task_push_notification_config"):
        return None
    asked.needs(Right.ASK)
    receiver = configuration.task_push_notification_config
    _check(receiver)
    project = asked.call.principal.project_id
    await destination(receiver.url, asked.names, project, private=asked.private_receivers)
    return receiver


async def add_receiver(asked: Asked, row: TaskRow, receiver: TaskPushNotificationConfig) -> PushConfig:
    """Tell a receiver of a task."""
    asked.needs(Right.ASK)
    _check(receiver)
    name = receiver.id or "r-" + hashlib.sha256(receiver.url.encode()).hexdigest()[:16]
    fields: JsonObject = {"url": receiver.url}
    if receiver.token:
        fields["token"] = receiver.token
    await _verb(asked, row, verbs.PUSH_SET, name, fields)
    return PushConfig(id=name, task_id=row.agent_turn_id, url=receiver.url)


async def create(asked: Asked, request: TaskPushNotificationConfig) -> PushConfig:
    """Tell a receiver of a task that is there."""
    return await add_receiver(asked, await asked.row(request.task_id), request)


async def get(asked: Asked, request: GetTaskPushNotificationConfigRequest) -> PushConfig:
    """A receiver; raises `TaskNotFoundError` if the task has none of this id."""
    for receiver in await _receivers(asked, request.task_id):
        if receiver.id == request.id:
            return receiver
    raise TaskNotFoundError("the task has no such push notification config")


async def list_all(asked: Asked, request: ListTaskPushNotificationConfigsRequest) -> PushConfigList:
    """All receivers of a task: there are few."""
    return PushConfigList(configs=await _receivers(asked, request.task_id), next_page_token="")


async def delete(asked: Asked, request: DeleteTaskPushNotificationConfigRequest) -> None:
    """Tell a receiver no more; a second time does nothing."""
    asked.needs(Right.ASK)
    row = await asked.row(request.task_id)
    if _ID.fullmatch(request.id):
        await _verb(asked, row, verbs.PUSH_REMOVE, request.id, {})


async def _receivers(asked: Asked, task_id: str) -> list[PushConfig]:
    row = await asked.row(task_id)
    project, turn = asked.call.principal.project_id, row.agent_turn_id
    receivers = await asked.kernel.pool.run(lambda conn: list_receivers(conn, project, turn))
    return [PushConfig(id=r.receiver_id, task_id=turn, url=r.url) for r in receivers]


async def _verb(
    asked: Asked, row: TaskRow, verb: verbs.Verb[BaseModel, PushReply], name: str, fields: JsonObject
) -> None:
    asking, call = asked.kernel.turns.asking, asked.call
    payload: JsonObject = {"agent_turn_id": row.agent_turn_id, "receiver_id": ReceiverId(name), **fields}
    await asking.ask(call.principal, row.channel_id, verb, payload, call.headers)


def _check(receiver: TaskPushNotificationConfig) -> None:
    if receiver.HasField("authentication"):
        raise InvalidParamsError(
            "authentication: not supported, because the gateway stores no credentials; set `token` instead"
        )
    if receiver.id and not _ID.fullmatch(receiver.id):
        raise InvalidParamsError("id: 1 to 128 letters, digits and _ . : -")
