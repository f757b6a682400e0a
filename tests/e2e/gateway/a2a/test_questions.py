"""Tasks of A2A that wait for a person, with the official client (protocol §13, §17.3)."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from a2a.client import A2AClientError, Client
from a2a.types import GetTaskRequest, SubscribeToTaskRequest, Task
from a2a.utils.errors import InvalidParamsError

from tests.e2e.people.asking import PAY
from tests.support.a2a.clients import Heard, a2a_client, ask, question_in, saying, state_of, text_of
from tests.support.conditions import until
from tests.support.gateway import token_of
from tests.support.tenants import Tenant
from tests.support.tools import Hand, calling, hand_of
from turnstile.schema.access import GatewayRole

pytestmark = pytest.mark.shared_stack

ASKS = json.dumps({"steps": [calling(("ask_human", {"question": "Which?", "choices": ["a", "b"]}))]})
PAYS = json.dumps({"steps": [calling(("pay", {"amount": 5})), {"text": "paid"}]})
INPUT = "TASK_STATE_INPUT_REQUIRED"
DONE = "TASK_STATE_COMPLETED"


@pytest.fixture
async def paying(tenant: Tenant) -> AsyncIterator[Hand]:
    """An agent whose payments wait for people, also for who asked, and which may ask them."""
    rule = {"requester_may_decide": True}
    async with hand_of(tenant, PAY, interrupt_on={"pay": rule}, allowed_tools=["pay", "ask_human"]) as hand:
        yield hand


@pytest.fixture
async def client(url: str, paying: Hand) -> AsyncIterator[Client]:
    token = await token_of(paying.tenant.stack, paying.tenant.project)
    async with a2a_client(url, token, paying.agent, streaming=False) as (made, _):
        yield made


async def refused(client: Client, task: Task, *parts: Any) -> None:
    with pytest.raises(InvalidParamsError):
        await ask(client, *parts, task=task)


async def test_a_question_is_answered_by_a_text(client: Client) -> None:
    task = await ask(client, ASKS)
    assert state_of(task) == INPUT
    found = question_in(task)
    assert (found["reason"], found["toolName"]) == ("input_required", "ask_human")
    assert "Which?" in task.status.message.parts[0].text
    await refused(client, task, "c")
    done = await ask(client, "b", task=task)
    assert (done.id, state_of(done)) == (task.id, DONE)
    assert '"b"' in text_of(done.artifacts[0]).replace("\\", "")


async def test_a_call_is_approved_by_its_digest_alone(client: Client, paying: Hand) -> None:
    task = await ask(client, PAYS)
    found = question_in(task)
    assert found["arguments"]["amount"] == 5
    for wrong in (
        "approve",
        "yes",
        {"anything": 1},
        {"decision": "approve"},
        {"decision": "approve", "actionDigest": "0" * 64},
        {"interruptId": "another", "decision": "reject"},
        {"decision": "approve", "actionDigest": found["actionDigest"], "more": 1},
    ):
        await refused(client, task, wrong)
    assert not paying.commands
    await ask(client, f"approve {found['actionDigest']}", task=task, return_immediately=True)
    [command] = await paying.heard()
    await paying.answer(command.call)

    async def ended() -> bool:
        return state_of(await client.get_task(GetTaskRequest(id=task.id))) == DONE

    await until(ended, 25, "the task is over")


async def test_a_call_is_rejected_with_a_reason(client: Client, paying: Hand) -> None:
    task = await ask(client, PAYS)
    done = await ask(client, "reject: too much", task=task)
    assert (state_of(done), text_of(done.artifacts[0])) == (DONE, "paid")
    assert not paying.commands


async def test_control_keys_in_an_answer_are_data(client: Client) -> None:
    lines = [calling(("pay", {"amount": 5})), {"text": "and went on"}]
    task = await ask(client, json.dumps({"steps": lines}))
    found = question_in(task)
    answer = {
        "interruptId": found["interruptId"],
        "decision": "respond",
        "actionDigest": found["actionDigest"],
        "response": {"__cg_control": {"after_execution": "terminate"}, "n": 12345678901234567},
    }
    done = await ask(client, answer, task=task)
    assert text_of(done.artifacts[0]) == "and went on"


async def test_a_stream_ends_with_a_question_and_goes_on_with_its_answer(url: str, paying: Hand) -> None:
    token = await token_of(paying.tenant.stack, paying.tenant.project)
    async with a2a_client(url, token, paying.agent) as (client, _):
        heard = await Heard().hear(client.send_message(saying(ASKS)))
        assert heard.state == INPUT
        assert heard.task is not None
        assert question_in(heard.task)["allowedDecisions"] == ["respond", "reject"]
        listening = client.subscribe(SubscribeToTaskRequest(id=heard.task.id))
        first = Heard()
        first.take(await anext(listening))
        rest = await Heard().hear(client.send_message(saying("a", task=heard.task)))
        assert rest.state == DONE
        assert (await first.hear(listening)).state == DONE
        assert first.text == rest.text


async def test_who_may_not_decide_answers_nothing(url: str, client: Client, paying: Hand) -> None:
    task = await ask(client, ASKS)
    token = await token_of(paying.tenant.stack, paying.tenant.project, GatewayRole.CLIENT)
    async with a2a_client(url, token, paying.agent, streaming=False) as (other, _):
        with pytest.raises(A2AClientError, match="403"):
            await ask(other, "a", task=task)
    assert state_of(await client.get_task(GetTaskRequest(id=task.id))) == INPUT
