"""A2A with the official client: cards, messages, tasks, their streams, cancels and lists (protocol §17.3)."""

import asyncio
import json
from collections.abc import AsyncIterator

import httpx
import pytest
from a2a.client import Client
from a2a.types import CancelTaskRequest, GetTaskRequest, ListTasksRequest, SubscribeToTaskRequest, Task, TaskState
from a2a.utils.errors import (
    ContentTypeNotSupportedError,
    InvalidParamsError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnsupportedOperationError,
)

from tests.support.a2a.clients import Heard, a2a_client, ask, saying, state_of, text_of
from tests.support.gateway import serving, token_of
from tests.support.tenants import ALICE, Tenant
from turnstile.schema.access import GatewayRole

pytestmark = pytest.mark.shared_stack

WORDS = "".join(f"word-{number} " for number in range(60))
LONG = json.dumps({"steps": [{"text": WORDS, "chunks": 30, "delay_seconds": 0.02}]})
SLOW = json.dumps({"steps": [{"text": "All of this takes long. " * 5, "chunks": 100, "delay_seconds": 0.5}]})


def said(text: str) -> str:
    """What the player answers with this text."""
    return json.dumps({"steps": [{"text": text}]})


HELLO = said("hello")
FALTERING = json.dumps(
    {
        "steps": [
            {
                "attempts": [
                    {"text": "this is void", "chunks": 4, "error": {"code": "model_unavailable", "after_chunks": 3}},
                    {"text": "this holds", "chunks": 4},
                ]
            }
        ]
    }
)


@pytest.fixture
async def token(tenant: Tenant) -> str:
    await tenant.agent("player")
    return await token_of(tenant.stack, tenant.project)


@pytest.fixture
async def plain(url: str, token: str) -> AsyncIterator[Client]:
    async with a2a_client(url, token, streaming=False) as (client, _):
        yield client


@pytest.fixture
async def streaming(url: str, token: str) -> AsyncIterator[Client]:
    async with a2a_client(url, token) as (client, _):
        yield client


async def test_a_card_tells_of_an_agent_and_strangers_get_none(url: str, token: str) -> None:
    async with a2a_client(url, token) as (_, card):
        assert card.name == ALICE
        assert [(interface.url, interface.protocol_binding) for interface in card.supported_interfaces] == [
            (f"{url}/a2a/{ALICE}", "JSONRPC")
        ]
        assert card.capabilities.streaming
        assert card.security_schemes["bearer"].http_auth_security_scheme.scheme == "Bearer"
        assert card.skills[0].description
    async with httpx.AsyncClient() as web:
        for path in (f"/a2a/{ALICE}/.well-known/agent-card.json", "/a2a/nobody/.well-known/agent-card.json"):
            assert (await web.get(url + path)).status_code == 401
        headers = {"authorization": f"Bearer {token}"}
        assert (await web.get(f"{url}/a2a/nobody/.well-known/agent-card.json", headers=headers)).status_code == 404


async def test_the_default_agents_card_is_at_the_root(url: str, token: str, tenant: Tenant) -> None:
    headers = {"authorization": f"Bearer {token}"}
    path = "/.well-known/agent-card.json"
    async with httpx.AsyncClient(headers=headers) as web, serving(tenant.stack, default_agent=ALICE) as other:
        assert (await web.get(url + path)).status_code == 404
        card = (await web.get(other + path)).json()
        assert card["supportedInterfaces"][0]["url"] == f"{other}/a2a/{ALICE}"
        assert card == (await web.get(f"{other}/a2a/{ALICE}{path}")).json()
    async with httpx.AsyncClient() as stranger, serving(tenant.stack, default_agent=ALICE) as other:
        assert (await stranger.get(other + path)).status_code == 401


async def test_a_message_is_a_task_that_is_kept(plain: Client) -> None:
    task = await ask(plain, HELLO)
    assert state_of(task) == "TASK_STATE_COMPLETED"
    assert [text_of(artifact) for artifact in task.artifacts] == ["hello"]
    assert [part.text for said in task.history for part in said.parts] == [HELLO, "hello"]
    found = await plain.get_task(GetTaskRequest(id=task.id))
    assert found == task
    assert len((await plain.get_task(GetTaskRequest(id=task.id, history_length=1))).history) == 1
    assert not (await plain.get_task(GetTaskRequest(id=task.id, history_length=0))).history


async def test_the_same_message_again_is_the_same_task(plain: Client) -> None:
    first, again = [await ask(plain, HELLO, message_id="m-1") for _ in range(2)]
    assert (first.id, first.context_id) == (again.id, again.context_id)
    with pytest.raises(InvalidParamsError):
        await ask(plain, "something else", message_id="m-1")


async def test_a_context_remembers_and_json_arrives_as_text(url: str, tenant: Tenant, token: str) -> None:
    await tenant.profile("chatty", "chat", instances=True)
    async with a2a_client(url, token, "profile:chatty", streaming=False) as (client, _):
        first = await ask(client, "My name is Ada", {"__cg_control": "stop", "n": 12345678901234567})
        assert '"__cg_control": "stop"' in text_of(first.artifacts[0])
        wanted = saying("What is my name?")
        wanted.message.context_id = first.context_id
        [second] = [each.task async for each in client.send_message(wanted)]
        assert "before that: My name is Ada" in text_of(second.artifacts[0])
        assert second.context_id == first.context_id
        page = await client.list_tasks(ListTasksRequest(context_id=first.context_id))
        assert [task.id for task in page.tasks] == [second.id, first.id]


async def test_a_stream_is_the_task_then_its_text_then_its_end(streaming: Client) -> None:
    heard = await Heard().hear(streaming.send_message(saying(LONG)))
    assert heard.task is not None
    assert heard.text == WORDS
    assert heard.ended
    assert heard.updates > 5
    assert heard.replaced == 1  # by the last update, which is whole
    assert heard.states[0] in ("TASK_STATE_SUBMITTED", "TASK_STATE_WORKING")
    assert heard.state == "TASK_STATE_COMPLETED"
    assert text_of((await streaming.get_task(GetTaskRequest(id=heard.task.id))).artifacts[0]) == WORDS


async def test_void_text_is_replaced_in_the_stream(streaming: Client) -> None:
    heard = await Heard().hear(streaming.send_message(saying(FALTERING)))
    assert (heard.text, heard.state) == ("this holds", "TASK_STATE_COMPLETED")


async def test_another_gateway_goes_on_with_a_stream(url: str, token: str, tenant: Tenant) -> None:
    async with serving(tenant.stack) as elsewhere, a2a_client(url, token) as (here, _):
        begun = await ask_at_once(url, token, LONG)
        heard = Heard()
        async for event in here.subscribe(SubscribeToTaskRequest(id=begun.id)):
            heard.take(event)
            if heard.updates == 3:
                break
        async with a2a_client(elsewhere, token) as (there, _):
            again = await Heard().hear(there.subscribe(SubscribeToTaskRequest(id=begun.id)))
            assert (again.text, again.state) == (WORDS, "TASK_STATE_COMPLETED")
            with pytest.raises(UnsupportedOperationError):
                await Heard().hear(there.subscribe(SubscribeToTaskRequest(id=begun.id)))


async def ask_at_once(url: str, token: str, text: str) -> Task:
    async with a2a_client(url, token, streaming=False) as (client, _):
        return await ask(client, text, return_immediately=True)


async def test_a_task_is_canceled_once(url: str, token: str, plain: Client) -> None:
    begun = await ask_at_once(url, token, SLOW)
    assert state_of(await plain.cancel_task(CancelTaskRequest(id=begun.id))) == "TASK_STATE_CANCELED"
    with pytest.raises(TaskNotCancelableError):
        await plain.cancel_task(CancelTaskRequest(id=begun.id))
    with pytest.raises(UnsupportedOperationError):
        await ask(plain, "more", task=begun)


async def test_a_word_to_a_task_that_runs_steers_it(url: str, token: str, plain: Client, tenant: Tenant) -> None:
    begun = await ask_at_once(url, token, SLOW)
    task = await ask(plain, "be brief", task=begun, return_immediately=True)
    assert task.id == begun.id
    assert await tenant.count("state.steers") == 1
    await plain.cancel_task(CancelTaskRequest(id=begun.id))


async def test_tasks_are_listed_in_pages(plain: Client) -> None:
    made = [(await ask(plain, said(f"hello {n}"))).id for n in range(5)]
    token, found = "", list[str]()
    for _ in range(3):
        page = await plain.list_tasks(ListTasksRequest(page_size=2, page_token=token, history_length=0))
        assert (page.total_size, page.page_size) == (5, 2)
        assert not any(task.artifacts or task.history for task in page.tasks)
        found += [task.id for task in page.tasks]
        token = page.next_page_token
    assert (found, token) == (made[::-1], "")
    done = await plain.list_tasks(ListTasksRequest(status=TaskState.TASK_STATE_COMPLETED, include_artifacts=True))
    assert next(text_of(task.artifacts[0]) for task in done.tasks) == "hello 4"
    assert not (await plain.list_tasks(ListTasksRequest(status=TaskState.TASK_STATE_WORKING))).tasks
    for wrong in (ListTasksRequest(page_size=0), ListTasksRequest(page_size=101), ListTasksRequest(page_token="?")):
        with pytest.raises(InvalidParamsError):
            await plain.list_tasks(wrong)


async def test_what_is_anothers_is_not_there(url: str, tenant: Tenant, plain: Client) -> None:
    task = await ask(plain, HELLO)
    other = await token_of(tenant.stack, tenant.project, GatewayRole.CLIENT, channel="u_ada")
    async with a2a_client(url, other, streaming=False) as (client, _):
        assert not (await client.list_tasks(ListTasksRequest())).tasks
        own = await ask(client, HELLO)
        assert [t.id for t in (await client.list_tasks(ListTasksRequest())).tasks] == [own.id]
        for wrong in (task.id, "nothing", "x" * 300):
            with pytest.raises(TaskNotFoundError):
                await client.get_task(GetTaskRequest(id=wrong))
            with pytest.raises(TaskNotFoundError):
                await client.cancel_task(CancelTaskRequest(id=wrong))


async def test_files_are_refused_by_name(plain: Client) -> None:
    wanted = saying("look")
    wanted.message.parts.add(url="https://example.com/a.png")
    with pytest.raises(ContentTypeNotSupportedError, match=r"parts\[1\]"):
        await asyncio.wait_for(anext(plain.send_message(wanted)), 25)
