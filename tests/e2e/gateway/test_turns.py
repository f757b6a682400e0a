"""Turns over HTTP: made, waited for, read, listed and stopped."""

import asyncio
import json
from contextlib import AsyncExitStack

import httpx
import pytest

import turnstile
from tests.support.conditions import until
from tests.support.gateway import client, token_of
from tests.support.tenants import ALICE, Tenant
from turnstile.ledger.turns.views import describe_turn
from turnstile.schema.access import GatewayRole
from turnstile.schema.ids import AgentTurnId

pytestmark = pytest.mark.shared_stack

SLOW = json.dumps({"steps": [{"text": "All of this takes long. " * 5, "chunks": 100, "delay_seconds": 0.5}]})


def says(text: str) -> str:
    """An instruction for a scripted player."""
    return json.dumps({"steps": [{"text": text}]})


async def test_a_turn_is_made_waited_for_and_read(web: httpx.AsyncClient, tenant: Tenant) -> None:
    await tenant.agent("player")
    made = await web.post(
        "/v1/turns", json={"agent_id": ALICE, "instruction": says("so it is")}, headers={"Prefer": "wait=20"}
    )
    assert made.status_code == 201, made.text
    turn = made.json()
    assert (turn["status"], turn["output"]["text"], turn["duplicate"]) == ("success", "so it is", False)
    assert made.headers["location"] == f"/v1/turns/{turn['agent_turn_id']}"
    assert made.headers["preference-applied"] == "wait=20"
    again = await web.get(made.headers["location"])
    assert again.status_code == 200
    assert {**again.json(), "duplicate": False, "announced_at": None} == {**turn, "announced_at": None}


async def test_the_same_key_is_the_same_turn(web: httpx.AsyncClient, tenant: Tenant) -> None:
    await tenant.agent("player")
    body = {"agent_id": ALICE, "instruction": says("once")}
    first, second = await asyncio.gather(
        *(web.post("/v1/turns", json=body, headers={"Idempotency-Key": '"k-1"', "Prefer": "wait=20"}) for _ in range(2))
    )
    assert first.json()["agent_turn_id"] == second.json()["agent_turn_id"]
    assert sorted([first.json()["duplicate"], second.json()["duplicate"]]) == [False, True]
    other = await web.post(
        "/v1/turns", json={"agent_id": ALICE, "instruction": says("twice")}, headers={"Idempotency-Key": "k-1"}
    )
    assert (other.status_code, other.json()["code"]) == (409, "correlation_conflict")
    assert other.headers["content-type"] == "application/problem+json"


async def test_turns_are_listed_a_page_at_a_time(web: httpx.AsyncClient, tenant: Tenant) -> None:
    await tenant.agent("player")
    made: list[AgentTurnId] = []
    for number in range(5):
        answer = await web.post("/v1/turns", json={"agent_id": ALICE, "instruction": says(str(number))})
        assert answer.status_code in (201, 202)
        made.append(AgentTurnId(answer.json()["agent_turn_id"]))
    seen: list[str] = []
    query: dict[str, str] = {"limit": "2"}
    while True:
        page = (await web.get("/v1/turns", params=query)).json()
        seen += [turn["agent_turn_id"] for turn in page["turns"]]
        if page["next"] is None:
            break
        query = {"limit": "2", "cursor": page["next"]}
    assert seen == made[::-1]
    for turn in made:
        await tenant.ended(turn)


async def test_a_running_turn_is_stopped(web: httpx.AsyncClient, tenant: Tenant) -> None:
    await tenant.agent("player")
    made = await web.post("/v1/turns", json={"agent_id": ALICE, "instruction": SLOW})
    assert made.status_code == 202
    turn = made.json()["agent_turn_id"]
    stopped = await web.post(f"/v1/turns/{turn}/stop", json={"reason": "enough"})
    assert (stopped.status_code, stopped.json()["already_final"]) == (202, False)
    waited = await web.get(f"/v1/turns/{turn}", headers={"Prefer": "wait=20"})
    assert (waited.json()["status"], waited.json()["error_code"]) == ("canceled", "stopped")
    again = await web.post(f"/v1/turns/{turn}/stop", json={})
    assert again.json()["already_final"] is True
    tree = (await web.get(f"/v1/turns/{turn}/tree")).json()
    assert [each["agent_turn_id"] for each in tree["turns"]] == [turn]


async def test_a_running_turn_is_steered_and_its_stream_tells(web: httpx.AsyncClient, tenant: Tenant) -> None:
    await tenant.agent("player")
    line = json.dumps({"steps": [{"text": "a draft", "delay_seconds": 1}, {"text": "done"}]})
    turn = (await web.post("/v1/turns", json={"agent_id": ALICE, "instruction": line})).json()["agent_turn_id"]

    async def runs() -> bool:
        return (await web.get(f"/v1/turns/{turn}")).json()["status"] == "running"

    await until(runs, 25, "the turn runs")
    body, key = {"text": "use Python"}, {"Idempotency-Key": "s-1"}
    said = [await web.post(f"/v1/turns/{turn}/steer", json=body, headers=key) for _ in range(2)]
    assert [(each.status_code, each.json()["duplicate"]) for each in said] == [(202, False), (202, True)]
    streamed = (await web.get(f"/v1/turns/{turn}/events")).text
    cards = [
        json.loads(line[6:]) for line in streamed.splitlines() if line.startswith("data: ") and '"card_id"' in line
    ]
    kinds = [card["type"] for card in cards if "type" in card]
    assert kinds == ["agent.thought", "task.steer", "agent.thought", "task.deliverable"]
    [steer] = (await web.get(f"/v1/turns/{turn}")).json()["steers"]
    assert (steer["steer_id"], steer["status"], steer["step_id"]) == (
        said[0].json()["steer_id"],
        "applied",
        f"{turn}-s2",
    )
    late = await web.post(f"/v1/turns/{turn}/steer", json=body)
    assert (late.status_code, late.json()["code"]) == (409, "already_final")


async def test_conversations_agents_profiles_tools_and_usage_are_read(web: httpx.AsyncClient, tenant: Tenant) -> None:
    await tenant.agent("player")
    for text in ("one", "two"):
        body = {"agent_id": ALICE, "instruction": says(text), "conversation_id": "talk"}
        assert (await web.post("/v1/turns", json=body, headers={"Prefer": "wait=20"})).json()["status"] == "success"
    [line] = (await web.get("/v1/conversations")).json()["conversations"]
    assert (line["conversation_id"], line["turn_count"]) == ("talk", 2)
    assert (await web.get("/v1/conversations/talk")).json() == line
    assert len((await web.get("/v1/turns", params={"conversation_id": "talk"})).json()["turns"]) == 2
    assert [agent["agent_id"] for agent in (await web.get("/v1/agents")).json()["agents"]] == [ALICE]
    assert len((await web.get("/v1/profiles")).json()["profiles"]) == 1
    assert (await web.get("/v1/tools")).json() == {"tools": [], "next": None}
    lines = (await web.get("/v1/usage", params={"by": "agent"})).json()["lines"]
    assert {line["name"]: line["turns"] for line in lines} == {None: 2, ALICE: 2}


async def test_a_client_stops_what_it_has_asked_for_and_an_operator_whatever(
    url: str, web: httpx.AsyncClient, tenant: Tenant
) -> None:
    await tenant.agent("player")
    async with AsyncExitStack() as stack:
        tokens = [await token_of(tenant.stack, tenant.project, GatewayRole.CLIENT) for _ in range(2)]
        mine, theirs = [await stack.enter_async_context(client(url, token)) for token in tokens]
        body = {"agent_id": ALICE, "instruction": SLOW, "conversation_id": "talk"}
        turns = [(await web.post("/v1/turns", json=body)).json() for web in (mine, theirs)]
        [first, second] = [turn["agent_turn_id"] for turn in turns]
        for turn in (first, second):
            other = theirs if turn == first else mine
            refused = await other.post(f"/v1/turns/{turn}/stop", json={})
            assert (refused.status_code, refused.json()["code"]) == (403, "not_yours")
        assert (await theirs.post(f"/v1/turns/{second}/stop", json={})).status_code == 202
        assert (await web.post(f"/v1/turns/{first}/stop", json={})).status_code == 202
        for turn in (first, second):
            assert (await tenant.ended(AgentTurnId(turn))).view.status == "canceled"


async def test_each_strategy_concerns_the_turns_of_the_token(url: str, tenant: Tenant) -> None:
    await tenant.agent("talks")
    async with AsyncExitStack() as stack:
        tokens = [await token_of(tenant.stack, tenant.project, GatewayRole.CLIENT) for _ in range(2)]
        mine, theirs = [await stack.enter_async_context(client(url, token)) for token in tokens]

        async def ask(web: httpx.AsyncClient, strategy: str, text: str = SLOW) -> httpx.Response:
            body = {"agent_id": ALICE, "instruction": text, "conversation_id": "talk", "multitask_strategy": strategy}
            return await web.post("/v1/turns", json=body)

        first, other = (await ask(mine, "reject")).json(), (await ask(theirs, "reject")).json()
        refused = await ask(mine, "reject")
        assert (refused.status_code, refused.json()["code"]) == (409, "turn_in_progress")
        assert first["agent_turn_id"] in refused.json()["detail"]
        told = (await ask(mine, "steer", "be quick")).json()
        assert (told["steered"], told["agent_turn_id"]) == (True, first["agent_turn_id"])
        row = "inbox_id = $1 AND agent_turn_id = $2 AND message_type = 'steer'"
        found = await tenant.rows(
            f"SELECT FROM state.agent_inbox WHERE {row}", told["steer_inbox_id"], told["agent_turn_id"]
        )
        assert len(found) == 1
        made = (await ask(mine, "rollback")).json()
        assert (made["steered"], made["steer_inbox_id"]) == (False, None)
        assert (made["steered"], made["stopped"]) == (False, [first["agent_turn_id"]])
        await tenant.ended(AgentTurnId(first["agent_turn_id"]))  # else it makes way for the next one, too
        async with turnstile.Client(url, token=tokens[0]) as python:
            talk = python.conversation("talk", agent_id=ALICE)
            turn = talk.ask(says("now"), multitask_strategy="interrupt")
            assert (await turn.result()).value == "now"
            assert turn.reply is not None
            assert turn.reply.stopped == (made["agent_turn_id"],)
        untouched = await tenant.pool.run(lambda conn: describe_turn(conn, tenant.project, other["agent_turn_id"]))
        assert untouched is not None
        assert untouched.status in {"queued", "dispatched", "running"}
        assert (await theirs.post(f"/v1/turns/{other['agent_turn_id']}/stop", json={})).status_code == 202
        for each in (first, made, other):
            assert (await tenant.ended(AgentTurnId(each["agent_turn_id"]))).view.status == "canceled"
