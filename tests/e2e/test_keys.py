"""A, B, then A again: whatever takes a key does one thing once, however many other things came between.

One table for the verbs whose request has a `correlation_id`, one for the requests of HTTP that read an
`Idempotency-Key`. Both are compared with the catalogs, so that what is new must come here.
"""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from tests.support.gateway import client, composed, serving, token_of
from tests.support.processes.stack import Stack
from tests.support.pump.pump import pump_config
from tests.support.tenants import ALICE, Tenant, turn_of
from turnstile.schema.base import JsonObject
from turnstile.schema.ids import AgentTurnId
from turnstile.schema.interface.catalog import VERBS

# A stack with listeners, to which `send` may send.
pytestmark = pytest.mark.stack(pump_config())

Subject = Callable[[Tenant], Awaitable[JsonObject]]
WRITTEN = ("state.agent_inbox", "state.steers", "state.budget_raises", "state.thread_messages", "state.turn_nodes")
BOXES = "SELECT count(*) AS n FROM public.boxes WHERE tenant_id = $1"
BOOKS = "SELECT budget_id, max_tokens, max_cost, max_turns FROM state.budgets WHERE project_id = $1 ORDER BY budget_id"


@pytest.fixture(scope="module")
async def url(here: Stack) -> AsyncIterator[str]:
    """Where the module's gateway serves."""
    async with serving(here) as address:
        yield address


async def nothing(tenant: Tenant) -> JsonObject:
    return {}


async def over(tenant: Tenant) -> JsonObject:
    """A turn that is over."""
    await tenant.agent("echo")
    return {"agent_turn_id": (await tenant.turn(ALICE)).view.agent_turn_id}


async def running(tenant: Tenant) -> JsonObject:
    """A turn that speaks for a while."""
    await tenant.agent("player")
    slow = json.dumps({"steps": [{"text": "a long tale", "chunks": 10, "delay_seconds": 0.1}]})
    return {"agent_turn_id": turn_of(await tenant.enqueue(ALICE, slow))}


async def agent(tenant: Tenant) -> JsonObject:
    return {"agent_id": await tenant.agent("echo")}


async def talk(tenant: Tenant) -> JsonObject:
    await tenant.client.request("conversation.put", {"conversation_id": "talk"})
    return {}


async def box(tenant: Tenant) -> JsonObject:
    made = await tenant.client.request("box_make", {"parts": [{"text": "a part"}]})
    return {"box_id": made["box_id"]}


async def day(tenant: Tenant) -> JsonObject:
    """A day's budget, which may be raised."""
    limits: JsonObject = {"period": "day", "limits": {"max_tokens": 1000}}
    limited: Any = await tenant.client.request("limit_project", limits)
    return {"budget_id": limited["budget"]["budget_id"]}


async def schedule(tenant: Tenant) -> JsonObject:
    """A schedule whose own time does not come."""
    named: JsonObject = {"schedule_id": "hourly"}
    asked: JsonObject = {**named, "agent_id": await tenant.agent("echo"), "instruction": "hi", "every_seconds": 9999}
    await tenant.client.request("schedule.put", asked)
    return named


TWO_TEXTS: tuple[JsonObject, JsonObject] = ({"text": "one"}, {"text": "two"})
VERB_TABLE: dict[str, tuple[Subject, JsonObject, JsonObject]] = {
    "enqueue": (agent, {"instruction": "one"}, {"instruction": "two"}),
    "steer": (running, *TWO_TEXTS),
    "rerun": (over, {"from_step": 1}, {"from_step": 1}),
    "box_fork": (box, {}, {}),
    "box_make": (nothing, {"parts": [{"text": "one"}]}, {"parts": [{"text": "two"}]}),
    "send": (
        nothing,
        {"to": "shout", "payload": "<shout><text>one</text></shout>"},
        {"to": "shout", "payload": "<shout><text>two</text></shout>"},
    ),
    "raise_budget": (day, {"max_tokens": 100}, {"max_tokens": 50}),
    "schedule.trigger": (schedule, {}, {}),
}
"""By verb: what it is about, and two requests."""
HTTP_TABLE: dict[str, tuple[Subject, str, JsonObject, JsonObject]] = {
    "create_turn": (agent, "/v1/turns", {"instruction": "one"}, {"instruction": "two"}),
    "steer_turn": (running, "/v1/turns/{agent_turn_id}/steer", *TWO_TEXTS),
    "rerun_turn": (over, "/v1/turns/{agent_turn_id}/rerun", {"from_step": 1}, {"from_step": 1}),
    "raise_budget": (day, "/v1/budgets/day/raise", {"max_tokens": 100}, {"max_tokens": 50}),
    "trigger_schedule": (schedule, "/v1/schedules/{schedule_id}/trigger", {}, {}),
    "create_artifact": (nothing, "/v1/artifacts", {"text": "one"}, {"text": "two"}),
    "openai_create_response": (
        agent,
        "/openai/v1/responses",
        {"model": "alice", "input": "one"},
        {"model": "alice", "input": "two"},
    ),
    "openai_create_conversation": (
        nothing,
        "/openai/v1/conversations",
        {"items": [{"role": "user", "content": "one"}]},
        {"items": [{"role": "user", "content": "two"}]},
    ),
    "openai_create_conversation_items": (
        talk,
        "/openai/v1/conversations/talk/items",
        {"items": [{"role": "user", "content": "one"}]},
        {"items": [{"role": "user", "content": "two"}]},
    ),
    "openai_create_chat_completion": (
        agent,
        "/openai/v1/chat/completions",
        {"model": "alice", "messages": [{"role": "user", "content": "one"}]},
        {"model": "alice", "messages": [{"role": "user", "content": "two"}]},
    ),
}


async def written(tenant: Tenant) -> JsonObject:
    """How much of the project the ledger has, and what its budgets have."""
    counts: JsonObject = {table: await tenant.count(table) for table in WRITTEN}
    boxes = (await tenant.rows(BOXES, tenant.project))[0]["n"]
    books: list[Any] = [list(row.values()) for row in await tenant.rows(BOOKS, tenant.project)]
    return {**counts, "boxes": boxes, "books": books}


def test_every_verb_that_takes_a_key_is_in_the_table() -> None:
    keyed = {verb.name for verb in VERBS if "correlation_id" in verb.request.model_fields}
    assert keyed == {*VERB_TABLE, "artifact.create"}  # which makes one file once its bytes are there: create_artifact


async def test_every_endpoint_that_takes_a_key_is_in_the_table(here: Stack) -> None:
    async with composed(here) as gateway:
        named = {
            endpoint.name
            for endpoint in [*gateway.endpoints, *gateway.openai]
            if "Idempotency-Key" in endpoint.request_headers
        }
    assert named == HTTP_TABLE.keys()


@pytest.mark.parametrize("verb", VERB_TABLE)
async def test_a_verb_s_a_b_a_is_a_b(tenant: Tenant, verb: str) -> None:
    subject, *bodies = VERB_TABLE[verb]
    about = await subject(tenant)
    asked: list[JsonObject] = [{**about, **body, "correlation_id": f"key-{n}"} for n, body in enumerate(bodies)]
    replies = [await tenant.client.request(verb, each, timeout=20) for each in asked]
    assert [r["status"] for r in replies] == ["accepted"] * 2, replies
    for reply in replies:
        if "agent_turn_id" in reply:
            await tenant.ended(AgentTurnId(str(reply["agent_turn_id"])))
    before = await written(tenant)
    for each, reply in zip([asked[0], asked[1], asked[0]], [replies[0], replies[1], replies[0]], strict=True):
        again = await tenant.client.request(verb, each)
        assert again["status"] == "accepted", again
        names = {name for name in again if name.endswith("_id") and name != "inbox_id"}
        assert {name: again[name] for name in names} == {name: reply[name] for name in names}
    assert await written(tenant) == before


@pytest.mark.parametrize("name", HTTP_TABLE)
async def test_an_endpoint_s_a_b_a_is_a_b(url: str, tenant: Tenant, name: str) -> None:
    subject, path, *bodies = HTTP_TABLE[name]
    about = await subject(tenant)
    where = path.format(**about)
    bodies = [{**about, **body} if path == "/v1/turns" else body for body in bodies]
    async with client(url, await token_of(tenant.stack, tenant.project)) as web:

        async def ask(number: int) -> JsonObject:
            headers = {"Idempotency-Key": f"key-{number}", "Prefer": "wait=20"}
            answer = await web.post(where, json=bodies[number], headers=headers)
            assert answer.is_success, answer.text
            return answer.json()

        first, second = await ask(0), await ask(1)
        if subject is running:
            await tenant.ended(AgentTurnId(str(about["agent_turn_id"])))
        before = await written(tenant)
        again = [await ask(number) for number in (0, 1, 0)]
        assert await written(tenant) == before
        for name_of in ("agent_turn_id", "steer_id", "id"):
            assert [each.get(name_of) for each in again] == [each.get(name_of) for each in (first, second, first)]
        other = await web.post(where, json={**bodies[0], **bodies[1]}, headers={"Idempotency-Key": "key-0"})
        refused = 422 if name.startswith("openai_") else 409  # their clients repeat a 409
        assert name in ("rerun_turn", "trigger_schedule") or other.status_code == refused, other.text
