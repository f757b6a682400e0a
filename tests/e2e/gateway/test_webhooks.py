"""Webhooks: each end, question and warning is sent once it is committed, signed, until it is taken (protocol §17.6)."""

import asyncio
import base64
import hashlib
import hmac
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tests.support.a2a.receivers import Note, Receiver, receiving
from tests.support.conditions import until
from tests.support.gateway import client, serving, token_of
from tests.support.processes.stack import QUICK, Stack
from tests.support.processes.stacks import Stacks
from tests.support.tenants import Tenant
from tests.support.tools import calling
from turnstile.ledger.operations.audit import Bounds, Scope, audit
from turnstile.schema.access import GatewayRole
from turnstile.schema.ids import AgentId

ASKS = json.dumps({"steps": [calling(("ask_human", {"question": "Which?", "choices": ["a", "b"]}))]})
HELLO = json.dumps({"steps": [{"text": "hello"}]})
BUSY = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n"
GONE = b"HTTP/1.1 410 Gone\r\ncontent-length: 0\r\n\r\n"
OK = b"HTTP/1.1 204 No Content\r\n\r\n"


@pytest.fixture(scope="module")
async def stack(stacks: Stacks) -> AsyncIterator[Stack]:
    """A stack whose notifications may go to loopback."""
    async with stacks.open({**QUICK, "gateway": {"push_to_private_addresses": True}}) as opened:
        yield opened


@pytest.fixture(scope="module")
async def url(stack: Stack) -> AsyncIterator[str]:
    async with serving(stack) as address:
        yield address


@pytest.fixture
async def web(url: str, tenant: Tenant) -> AsyncIterator[httpx.AsyncClient]:
    """An operator."""
    await tenant.agent("player", AgentId("player"), allowed_tools=["ask_human"])
    async with client(url, await token_of(tenant.stack, tenant.project)) as made:
        yield made


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as made:
        yield made


async def put(web: httpx.AsyncClient, path: str, receiver: Receiver, **fields: Any) -> dict[str, Any]:
    answer = await web.put(path, json={"url": receiver.url, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def ask(web: httpx.AsyncClient, instruction: str, *, wait: bool = True, **fields: Any) -> str:
    headers = {"Prefer": "wait=60"} if wait else {}
    answer = await web.post(
        "/v1/turns", json={"agent_id": "player", "instruction": instruction, **fields}, headers=headers
    )
    assert answer.status_code in {201, 202}, answer.text
    return answer.json()["agent_turn_id"]


def event_of(note: Note) -> dict[str, Any]:
    return json.loads(note.body)


async def sent(receiver: Receiver, turn: str, kind: str) -> Note:
    """The first event of a kind about a turn."""

    async def there() -> Note | None:
        return next(
            (n for n in receiver.notes if (e := event_of(n))["type"] == kind and e["data"]["agent_turn_id"] == turn),
            None,
        )

    return await until(there, 25, f"{kind} of {turn} is sent")


def assert_signed(note: Note, secret: str) -> None:
    at = note.headers["webhook-timestamp"]
    key = base64.b64decode(secret.removeprefix("whsec_"))
    mac = hmac.new(key, f"{note.id}.{at}.".encode() + note.body, hashlib.sha256).digest()
    assert note.headers["webhook-signature"] == "v1," + base64.b64encode(mac).decode()
    assert abs(time.time() - int(at)) < 60


async def test_a_project_s_webhook_gets_questions_and_ends_signed_and_without_content(
    web: httpx.AsyncClient, receiver: Receiver
) -> None:
    secret = (await put(web, "/v1/webhooks/all", receiver))["secret"]
    turn = await ask(web, ASKS, wait=False)
    asked = await sent(receiver, turn, "interrupt.opened")
    interrupt = event_of(asked)["data"]["interrupt_id"]
    decision = {"decision": "respond", "response": "a"}
    assert (await web.post(f"/v1/interrupts/{interrupt}/decision", json=decision)).status_code == 200
    end = await sent(receiver, turn, "turn.ended")
    data = event_of(end)["data"]
    assert (data["status"], data["agent_id"]) == ("success", "player")
    for note in (asked, end):
        assert_signed(note, secret)
        assert note.headers["content-type"] == "application/json"
        assert b"Which" not in note.body
    assert len({note.id for note in receiver.notes}) == len(receiver.notes) == 2


async def test_a_budget_s_warning_is_sent_once(web: httpx.AsyncClient, receiver: Receiver, tenant: Tenant) -> None:
    agent = await tenant.agent("player", AgentId("spender"), llm={"max_tokens": 200})
    await put(web, "/v1/webhooks/money", receiver, events=["budget.warned"])
    uses = {"prompt_tokens": 300, "completion_tokens": 100, "total_tokens": 400}
    steps = json.dumps({"steps": [*[{**calling("nosuch"), "usage": uses}] * 2, {"text": "done"}]})
    turn = await ask(web, steps, agent_id=agent, budget={"max_tokens": 1000, "warn_percent": 60})
    data = event_of(await sent(receiver, turn, "budget.warned"))["data"]
    assert (data["budget_id"], data["kind"], data["warn_percent"]) == (turn, "turn", 60)
    assert len(receiver.notes) == 1


async def test_an_event_is_repeated_with_its_id_until_it_is_taken(web: httpx.AsyncClient, receiver: Receiver) -> None:
    answers = [BUSY, BUSY, OK]
    receiver.answer = lambda _: answers.pop(0)
    await put(web, "/v1/webhooks/all", receiver)
    turn = await ask(web, HELLO)
    await until(lambda: _taken(web), 25, "the event is taken")
    assert [event_of(note)["data"]["agent_turn_id"] for note in receiver.notes] == [turn] * 3
    assert len({note.id for note in receiver.notes}) == 1


async def _taken(web: httpx.AsyncClient) -> bool:
    [shown] = (await web.get("/v1/webhooks")).json()["webhooks"]
    return shown["waiting"] == 0 and shown["last_error"] is None


async def test_a_turn_s_webhook_is_sent_its_end_whichever_comes_first(
    web: httpx.AsyncClient, receiver: Receiver, tenant: Tenant
) -> None:
    """Set after the end, and while many turns end: none is left out."""
    over = await ask(web, HELLO)
    secret = "whsec_" + base64.b64encode(b"k" * 32).decode()
    assert (await put(web, f"/v1/turns/{over}/webhook", receiver, secret=secret))["secret"] is None
    assert_signed(await sent(receiver, over, "turn.ended"), secret)
    turns = [await ask(web, HELLO, wait=False) for _ in range(12)]
    await asyncio.gather(*(put(web, f"/v1/turns/{turn}/webhook", receiver) for turn in turns))
    for turn in turns:
        await sent(receiver, turn, "turn.ended")
    assert len(receiver.notes) == 13
    assert (await web.put("/v1/turns/none/webhook", json={"url": receiver.url})).status_code == 404
    assert (await audit(tenant.pool, Scope(tenant.project), Bounds(), row_limit=10)).violations == []


async def test_a_profile_s_webhook_gets_its_turns_alone_and_a_removed_one_none(
    web: httpx.AsyncClient, receiver: Receiver, tenant: Tenant
) -> None:
    await tenant.agent("player", AgentId("other"))
    await put(web, "/v1/webhooks/of.player", receiver, profile_name="player-profile", events=["turn.ended"])
    await ask(web, HELLO, agent_id="other")
    turn = await ask(web, HELLO)
    await sent(receiver, turn, "turn.ended")
    assert (await web.delete("/v1/webhooks/of.player")).status_code == 200
    assert (await web.delete("/v1/webhooks/of.player")).status_code == 404
    await ask(web, HELLO)
    assert [event_of(note)["data"]["agent_turn_id"] for note in receiver.notes] == [turn]


async def test_a_webhook_that_answers_gone_gets_nothing_until_it_is_put_again(
    web: httpx.AsyncClient, receiver: Receiver
) -> None:
    receiver.answer = lambda _: GONE
    await put(web, "/v1/webhooks/all", receiver)
    await ask(web, HELLO)

    async def gone() -> bool:
        [shown] = (await web.get("/v1/webhooks")).json()["webhooks"]
        assert "secret" not in shown
        return shown["status"] == "gone"

    await until(gone, 25, "it is gone")
    await ask(web, HELLO)
    receiver.answer = lambda _: OK
    await put(web, "/v1/webhooks/all", receiver)
    turn = await ask(web, HELLO)
    await sent(receiver, turn, "turn.ended")
    assert len(receiver.notes) == 2


@pytest.mark.parametrize(
    ("path", "body", "status", "code"),
    [
        ("/v1/webhooks/x", {"url": "ftp://example.com"}, 400, "push_url_refused"),
        ("/v1/webhooks/x", {"url": "https://example.com", "secret": "short"}, 400, "bad_request"),
        ("/v1/webhooks/x", {"url": "https://example.com", "events": ["turn.begun"]}, 400, "bad_request"),
        ("/v1/webhooks/x", {"url": "http://127.0.0.1:1/", "profile_name": "nobody"}, 404, "unknown_profile"),
        ("/v1/webhooks/%20", {"url": "http://127.0.0.1:1/"}, 400, "bad_request"),
    ],
)
async def test_bad_input_has_a_code(
    web: httpx.AsyncClient, path: str, body: dict[str, Any], status: int, code: str
) -> None:
    answer = await web.put(path, json=body)
    assert (answer.status_code, answer.json()["code"]) == (status, code)


async def test_only_operators_of_the_whole_project_set_its_webhooks(
    url: str, web: httpx.AsyncClient, tenant: Tenant
) -> None:
    for role, channel in ((GatewayRole.CLIENT, None), (GatewayRole.OPERATOR, "blue")):
        async with client(url, await token_of(tenant.stack, tenant.project, role, channel)) as other:
            for method, path in (("PUT", "/v1/webhooks/x"), ("GET", "/v1/webhooks"), ("DELETE", "/v1/webhooks/x")):
                body = {"url": "http://127.0.0.1:1/"} if method == "PUT" else None
                assert (await other.request(method, path, json=body)).status_code == 403


async def test_a_project_has_twenty_at_most(web: httpx.AsyncClient, receiver: Receiver) -> None:
    made = [await web.put(f"/v1/webhooks/n{number}", json={"url": receiver.url}) for number in range(21)]
    assert [answer.status_code for answer in made] == [200] * 20 + [409]
    assert made[-1].json()["code"] == "too_many_webhooks"
