"""Push notifications of A2A: told at least once, signed, never to where they must not go (protocol §17.3)."""

import base64
import hashlib
import hmac
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from a2a.client import Client
from a2a.types import (
    AuthenticationInfo,
    CancelTaskRequest,
    DeleteTaskPushNotificationConfigRequest,
    GetTaskPushNotificationConfigRequest,
    ListTaskPushNotificationConfigsRequest,
    Task,
    TaskPushNotificationConfig,
)
from a2a.utils.errors import InvalidParamsError, TaskNotFoundError

from tests.support.a2a.clients import a2a_client, ask, state_of
from tests.support.a2a.receivers import Note, Receiver, receiving
from tests.support.conditions import until
from tests.support.gateway import serving, token_of
from tests.support.processes.stack import QUICK
from tests.support.tenants import Tenant
from tests.support.tools import calling

# A stack whose notifications may go to loopback.
pytestmark = pytest.mark.stack({**QUICK, "gateway": {"push_to_private_addresses": True}})

HELLO = json.dumps({"steps": [{"text": "hello"}]})
SLOW = json.dumps({"steps": [{"text": "All of this takes long. " * 5, "chunks": 100, "delay_seconds": 0.5}]})
ASKS = json.dumps({"steps": [calling(("ask_human", {"question": "Which?", "choices": ["a", "b"]}))]})
TOKEN = "the-receivers-own"
MOVED = b"HTTP/1.1 307 Temporary Redirect\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n"
GONE = b"HTTP/1.1 410 Gone\r\ncontent-length: 0\r\n\r\n"
BUSY = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n"
OK = b"HTTP/1.1 204 No Content\r\n\r\n"


@pytest.fixture
async def token(tenant: Tenant) -> str:
    await tenant.agent("player", allowed_tools=["ask_human"])
    return await token_of(tenant.stack, tenant.project)


@pytest.fixture
async def client(url: str, token: str) -> AsyncIterator[Client]:
    async with a2a_client(url, token, streaming=False) as (made, _):
        yield made


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as made:
        yield made


def config(url: str, task: Task | None = None, **fields: Any) -> TaskPushNotificationConfig:
    return TaskPushNotificationConfig(url=url, task_id="" if task is None else task.id, **fields)


async def test_a_receiver_is_told_of_each_state_with_a_signature(client: Client, receiver: Receiver) -> None:
    wanted = config(receiver.url, id="mine", token=TOKEN)
    task = await ask(client, ASKS, task_push_notification_config=wanted)
    note = await receiver.told(task.id, "INPUT_REQUIRED")
    assert (note.path, note.update["contextId"]) == ("/hook?n=1", task.context_id)
    assert note.headers["x-a2a-notification-token"] == TOKEN
    assert note.headers["content-type"] == "application/a2a+json"
    sent = note.headers["webhook-timestamp"]
    signed = hmac.new(TOKEN.encode(), f"{note.id}.{sent}.".encode() + note.body, hashlib.sha256).digest()
    assert note.headers["webhook-signature"] == "v1," + base64.b64encode(signed).decode()
    assert abs(time.time() - int(sent)) < 60
    assert b"Which" not in note.body
    assert state_of(await ask(client, "a", task=task)) == "TASK_STATE_COMPLETED"
    await receiver.told(task.id, "COMPLETED")
    assert len({n.id for n in receiver.notes}) == len(receiver.notes)


async def test_receivers_are_set_listed_and_removed_and_show_no_token(client: Client, receiver: Receiver) -> None:
    task = await ask(client, SLOW, return_immediately=True)
    first = await client.create_task_push_notification_config(config(receiver.url, task, id="one", token=TOKEN))
    second = await client.create_task_push_notification_config(config(receiver.url, task))
    found = await client.list_task_push_notification_configs(ListTaskPushNotificationConfigsRequest(task_id=task.id))
    assert {c.id for c in found.configs} == {"one", second.id}
    assert not any(c.token for c in (first, *found.configs))
    named = {"task_id": task.id, "id": "one"}
    assert (await client.get_task_push_notification_config(GetTaskPushNotificationConfigRequest(**named))) == first
    for _ in range(2):
        await client.delete_task_push_notification_config(DeleteTaskPushNotificationConfigRequest(**named))
    with pytest.raises(TaskNotFoundError):
        await client.get_task_push_notification_config(GetTaskPushNotificationConfigRequest(**named))
    await client.cancel_task(CancelTaskRequest(id=task.id))
    await receiver.told(task.id, "CANCELED")
    assert {note.id.split(".")[1] for note in receiver.notes if note.state == "CANCELED"} == {second.id}


async def test_a_receiver_of_a_task_that_is_over_is_told_its_end(client: Client, receiver: Receiver) -> None:
    task = await ask(client, HELLO)
    await client.create_task_push_notification_config(config(receiver.url, task))
    await receiver.told(task.id, "COMPLETED")


async def test_a_notification_is_repeated_with_its_id_until_it_is_taken(
    client: Client, receiver: Receiver, tenant: Tenant
) -> None:
    answers = [BUSY, MOVED, OK]
    receiver.answer = lambda _: answers.pop(0)
    task = await ask(client, HELLO)
    await client.create_task_push_notification_config(config(receiver.url, task, id="slow", token=TOKEN))
    await until(lambda: _status(tenant, "done"), 25, "the receiver is told")
    assert len({note.id for note in receiver.notes}) == 1
    assert receiver.states(task.id) == ["COMPLETED"] * 3
    assert await tenant.count("state.push_receivers", "token IS NOT NULL") == 0


async def _status(tenant: Tenant, status: str) -> bool:
    return await tenant.count("state.push_receivers", f"status = '{status}'") == 1


async def test_a_receiver_that_is_gone_is_given_up_and_told(client: Client, receiver: Receiver, tenant: Tenant) -> None:
    receiver.answer = lambda _: GONE
    task = await ask(client, HELLO)
    await client.create_task_push_notification_config(config(receiver.url, task))
    await until(lambda: _status(tenant, "given_up"), 25, "the receiver is given up")
    assert await tenant.count("state.rejections", "error_code = 'receiver_given_up'") == 1


async def test_hostile_receivers_delay_nobody_else(client: Client, receiver: Receiver) -> None:
    async with receiving() as hanging, receiving() as flooding:
        hanging.hangs = flooding.floods = True
        task = await ask(client, HELLO)
        for each in (hanging, flooding, receiver):
            await client.create_task_push_notification_config(config(each.url, task))
        await receiver.told(task.id, "COMPLETED", timeout=8)
        await flooding.told(task.id, "COMPLETED")


async def test_addresses_that_are_not_public_are_refused(token: str, tenant: Tenant) -> None:
    async with (
        serving(tenant.stack, push_to_private_addresses=False) as strict,
        a2a_client(strict, token, streaming=False) as (client, _),
    ):
        for wrong in (
            "https://127.0.0.1/",
            "https://localhost:8700/",
            "https://[::1]/",
            "https://10.0.0.1/",
            "https://169.254.169.254/latest/meta-data",
            "https://[::ffff:127.0.0.1]/",
            "https://0/",
            "https://2130706433/",
            "http://93.184.216.34/",
            "https://user:secret@93.184.216.34/",
            "file:///etc/passwd",
            "https://",
            "gopher://93.184.216.34/",
        ):
            with pytest.raises(InvalidParamsError):
                await ask(client, HELLO, task_push_notification_config=config(wrong))
    assert await tenant.count("state.agent_inbox") == 0


async def test_credentials_are_not_taken(client: Client, receiver: Receiver) -> None:
    wanted = config(receiver.url)
    wanted.authentication.CopyFrom(AuthenticationInfo(scheme="Bearer", credentials="secret"))
    with pytest.raises(InvalidParamsError, match="token"):
        await ask(client, HELLO, task_push_notification_config=wanted)
    assert receiver.notes == list[Note]()
