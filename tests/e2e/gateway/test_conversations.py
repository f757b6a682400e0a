"""`/openai/v1/conversations` over plain HTTP: shapes, paging, edits that change nothing written, and one agent each."""

import json
from typing import Any

import httpx
import pytest
from openai.types.conversations import Conversation, ConversationDeletedResource, ConversationItemList
from openai.types.conversations.conversation_item import ConversationItem
from pydantic import TypeAdapter

from tests.support.ledger.invariants import assert_invariants
from tests.support.tenants import ALICE, Tenant
from tests.support.tools import calling, hand_of
from turnstile.ledger.roster import add_agent
from turnstile.schema.ids import AgentId

pytestmark = pytest.mark.shared_stack

BOB = AgentId("bob")
ROOT = "/openai/v1"
ITEM: TypeAdapter[Any] = TypeAdapter(ConversationItem)


def user(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


async def made(web: httpx.AsyncClient, **body: Any) -> str:
    answer = await web.post(f"{ROOT}/conversations", json=body)
    assert answer.status_code == 200, answer.text
    return Conversation.model_validate(answer.json(), strict=True).id


async def texts(web: httpx.AsyncClient, conversation: str, **query: Any) -> list[str]:
    """What its items say, oldest first."""
    got = await web.get(f"{ROOT}/conversations/{conversation}/items", params={"order": "asc", "limit": 100, **query})
    assert got.status_code == 200, got.text
    ConversationItemList.model_validate(got.json(), strict=True)
    return [
        "".join(part["text"] for part in item.get("content", ())).strip() or item["name"] for item in got.json()["data"]
    ]


async def answered(web: httpx.AsyncClient, conversation: Any, text: str, model: str = ALICE) -> dict[str, Any]:
    answer = await web.post(f"{ROOT}/responses", json={"model": model, "input": text, "conversation": conversation})
    assert answer.status_code == 200, answer.text
    return answer.json()


def refused(answer: httpx.Response, status: int, code: str) -> str:
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (status, code), answer.text
    return error["message"]


async def test_a_conversation_is_made_read_changed_and_deleted(web: httpx.AsyncClient, tenant: Tenant) -> None:
    one = await made(web, metadata={"topic": "tea"})
    assert (await web.get(f"{ROOT}/conversations/{one}")).json()["metadata"] == {"topic": "tea"}
    changed = await web.post(f"{ROOT}/conversations/{one}", json={"metadata": {"topic": "coffee", "n": "2"}})
    assert Conversation.model_validate(changed.json(), strict=True).metadata == {"topic": "coffee", "n": "2"}
    empty = (await web.get(f"{ROOT}/conversations/{one}/items")).json()
    assert empty == {"object": "list", "data": [], "first_id": "", "last_id": "", "has_more": False}
    gone = await web.request("DELETE", f"{ROOT}/conversations/{one}", json={})
    assert ConversationDeletedResource.model_validate(gone.json(), strict=True).id == one
    asked: list[tuple[str, str, dict[str, Any] | None]] = [
        ("GET", one, None),
        ("POST", one, {"metadata": {}}),
        ("DELETE", one, {}),
        ("GET", f"{one}/items", None),
        ("POST", f"{one}/items", {"items": [user("hi")]}),
        ("GET", f"{one}/items/msg_1", None),
        ("GET", "conv_" + "0" * 32, None),
        ("GET", "nobody-has-it", None),
    ]
    for method, path, body in asked:
        refused(await web.request(method, f"{ROOT}/conversations/{path}", json=body), 404, "unknown_conversation")
    await tenant.agent("echo")
    for name in (one, "conv_" + "0" * 32):
        answer = await web.post(f"{ROOT}/responses", json={"model": ALICE, "input": "hi", "conversation": name})
        refused(answer, 404, "unknown_conversation")
    twice, key = {"items": [user("once")]}, {"Idempotency-Key": "c1"}
    first, second = [(await web.post(f"{ROOT}/conversations", json=twice, headers=key)).json() for _ in range(2)]
    assert first == second
    assert await texts(web, first["id"]) == ["once"]
    listed = (await web.get("/v1/conversations")).json()["conversations"]
    assert listed == []  # no agent has had a turn in them


async def test_items_are_what_the_agent_reads(web: httpx.AsyncClient, tenant: Tenant) -> None:
    """The mirror repeats what it has read: items before the first turn, added between, deleted, and of turns."""
    await tenant.agent("mirror")
    one = await made(web, items=[user("I am Ada"), assistant("Hello Ada")])
    first = await answered(web, one, "who am I?")
    assert first["conversation"] == {"id": one}
    said = json.dumps(first["output"])
    assert "I am Ada" in said
    assert "Hello Ada" in said
    assert (await texts(web, one))[:3] == ["I am Ada", "Hello Ada", "who am I?"]
    added = await web.post(f"{ROOT}/conversations/{one}/items", json={"items": [user("I like tea")]})
    [item] = ConversationItemList.model_validate(added.json(), strict=True).data
    got = await web.get(f"{ROOT}/conversations/{one}/items/{item.id}")
    assert ITEM.validate_python(got.json()).content[0].text == "I like tea"
    [ada, *_] = (await web.get(f"{ROOT}/conversations/{one}/items", params={"order": "asc"})).json()["data"]
    dropped = await web.request("DELETE", f"{ROOT}/conversations/{one}/items/{ada['id']}", json={})
    assert Conversation.model_validate(dropped.json(), strict=True).id == one
    refused(await web.get(f"{ROOT}/conversations/{one}/items/{ada['id']}"), 404, "unknown_item")
    refused(await web.request("DELETE", f"{ROOT}/conversations/{one}/items/{ada['id']}", json={}), 404, "unknown_item")
    stay = [text for text in await texts(web, one) if text != first["output"][0]["content"][0]["text"]]
    assert stay == ["Hello Ada", "who am I?", "I like tea"]
    whole = (await web.get(f"{ROOT}/conversations/{one}/items", params={"order": "asc"})).json()["data"]
    spoken = next(each["id"] for each in whole if each["role"] == "assistant" and "I am Ada" in json.dumps(each))
    await web.request("DELETE", f"{ROOT}/conversations/{one}/items/{spoken}", json={})
    assert await texts(web, one) == ["Hello Ada", "who am I?", "I like tea"]  # with what had only repeated it
    second = json.dumps((await answered(web, {"id": one}, "and now?"))["output"])
    assert "I like tea" in second
    assert "I am Ada" not in second
    pages, after = list[str](), ""
    while True:
        page = (
            await web.get(
                f"{ROOT}/conversations/{one}/items", params={"limit": 2, **({"after": after} if after else {})}
            )
        ).json()
        pages += [each["id"] for each in page["data"]]
        assert (page["first_id"], page["last_id"]) == (page["data"][0]["id"], page["data"][-1]["id"])
        if not page["has_more"]:
            break
        after = page["last_id"]
    whole = (await web.get(f"{ROOT}/conversations/{one}/items", params={"limit": 100})).json()["data"]
    assert pages == [each["id"] for each in whole]
    assert len(pages) == len(set(pages)) == 5
    refused(await web.get(f"{ROOT}/conversations/{one}/items", params={"after": "msg_0"}), 400, "bad_request")
    await tenant.pool.run(assert_invariants)


async def test_a_conversation_is_one_agents(web: httpx.AsyncClient, tenant: Tenant) -> None:
    await tenant.agent("echo")
    await add_agent(tenant.pool, tenant.project, BOB, "alice-profile")
    one, two = await made(web), await made(web)
    await answered(web, one, "hi")
    body = {"model": BOB, "input": "hi", "conversation": one}
    refused(await web.post(f"{ROOT}/responses", json=body), 422, "conversation_of_another")
    await answered(web, two, "hi", BOB)
    free = [await answered(web, "my-own-name", "hi", model) for model in (ALICE, BOB)]  # begun by turns: one for each
    assert [each["conversation"] for each in free] == [{"id": "my-own-name"}] * 2
    refused(await web.get(f"{ROOT}/conversations/my-own-name"), 422, "ambiguous")


async def test_what_cannot_be_done_is_refused_by_name(web: httpx.AsyncClient, tenant: Tenant) -> None:
    """System messages, items of a step that go together, and changes while a turn of the conversation runs."""
    async with hand_of(tenant) as hand:
        one = await made(web)
        for body in ({"items": [{"role": "system", "content": "be brief"}]}, {"items": [{"type": "image"}]}):
            refused(await web.post(f"{ROOT}/conversations", json=body), 400, "unsupported_parameter")
            refused(await web.post(f"{ROOT}/conversations/{one}/items", json=body), 400, "unsupported_parameter")
        many = {"items": [user(str(number)) for number in range(21)]}
        refused(await web.post(f"{ROOT}/conversations/{one}/items", json=many), 400, "bad_request")
        script = json.dumps({"steps": [{"text": "I look", **calling("search", "search")}, {"text": "found"}]})
        body = {"model": hand.agent, "input": script, "conversation": one, "background": True}
        asked = (await web.post(f"{ROOT}/responses", json=body)).json()
        turn = asked["id"].removeprefix("resp_")
        calls = [each.call for each in await hand.heard(2)]
        add = {"items": [user("more")]}
        message = refused(await web.post(f"{ROOT}/conversations/{one}/items", json=add), 422, "conversation_locked")
        assert "stop it" in message
        for call in calls:
            await hand.report(call, "yes")
        await hand.ended(turn)
        items = (await web.get(f"{ROOT}/conversations/{one}/items", params={"order": "asc"})).json()["data"]
        assert [item["type"] for item in items] == ["message", "message", "mcp_call", "mcp_call", "message"]
        for part in items[1:4]:
            gone = await web.request("DELETE", f"{ROOT}/conversations/{one}/items/{part['id']}", json={})
            assert "new conversation" in refused(gone, 400, "item_not_separable")
        sent = [{"type": "item_reference", "id": item["id"]} for item in items[1:]]
        other = await made(web, items=[user("hello"), *sent])
        assert [text.split("\n")[0] for text in await texts(web, other)] == [
            "hello",
            "I look",
            "search",
            "search",
            "found",
        ]
    await tenant.pool.run(assert_invariants)


async def test_an_item_is_added_once_and_to_what_others_have_added(web: httpx.AsyncClient, tenant: Tenant) -> None:
    one = await made(web)
    keyed = {"Idempotency-Key": "k1"}
    for text, headers in (("a", keyed), ("b", {}), ("a", keyed), ("c", {})):
        answer = await web.post(f"{ROOT}/conversations/{one}/items", json={"items": [user(text)]}, headers=headers)
        assert answer.status_code == 200, answer.text
    assert await texts(web, one) == ["a", "b", "c"]
