"""Nothing of another project or channel comes out over HTTP, or changes (protocol §14.3).

The matrix: every endpoint of the application, with an id of the other in every parameter, field and header that takes
one. Each is answered like an id that nobody has: status, headers, body, and as many statements in the ledger.
"""

import asyncio
import base64
import hashlib
import json
import re
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from pydantic import JsonValue

from tests.e2e.projects.test_tenants import rows_of
from tests.support.conditions import until
from tests.support.gateway import asking, composed, token_of
from tests.support.processes.stack import Stack
from tests.support.tenants import Tenant, new_tenant
from tests.support.tools import call_of, calling, definition
from turnstile.gateway.app import Gateway
from turnstile.gateway.http import bearers
from turnstile.gateway.v1.cursors import cursor_of
from turnstile.ledger.access.pages import PageCursor
from turnstile.ledger.roster import put_tool
from turnstile.schema.access import GatewayRole
from turnstile.schema.ids import AgentId, AgentTurnId, interrupt_id, new_box_id, uuid7
from turnstile.schema.verbs import VERBS, Route

SECRET = "the secret of another"
WORD = re.compile(r"[0-9a-f]{8}-?([0-9a-f]{4}-?){3}[0-9a-f]{12}")
TIMES = re.compile(r"\d{4}-\d\d-\d\dT[0-9:.]+(Z|\+00:00)?")
UNLIKE = ("content-length", "location", "x-request-id")
"""Headers that differ between two equal answers."""


@dataclass(frozen=True)
class Ids:
    """An id of each kind."""

    agent: str
    turn: str
    conversation: str
    context_box: str
    output_box: str
    key: str
    channel: str
    profile: str
    tool: str
    cursor: str
    boxes_cursor: str
    interrupt: str
    waiting: str
    """The turn that asked."""
    file: str


@dataclass(frozen=True)
class Asked:
    """A request with a foreign id."""

    path: str
    query: Mapping[str, str] = field(default_factory=dict[str, str])
    body: Mapping[str, Any] | None = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


DIGEST = f"sha-256=:{base64.b64encode(hashlib.sha256(b'{}').digest()).decode()}:"
"""Of an empty object."""
Make = Callable[[Ids, Ids], Asked]
"""Of one's own ids and the foreign ones."""


SCHEDULE: dict[str, Any] = {"instruction": "hi", "every_seconds": 9999}
SAID = [
    {"role": "user", "content": "hello"},
    {"role": "user", "content": json.dumps({"steps": [{"text": "done"}]})},
]


def create(own: Ids, headers: Mapping[str, str] | None = None, **fields: JsonValue) -> Asked:
    """A turn that would be accepted."""
    body = {"agent_id": own.agent, "instruction": json.dumps({"steps": [{"text": "done"}]}), **fields}
    return Asked("/v1/turns", body=body, headers={"prefer": "wait=20", **(headers or {})})


def decided(its: Ids, **body: Any) -> Asked:
    """A decision about what another asks."""
    return Asked(f"/v1/interrupts/{its.interrupt}/decision", body=body)


def again(own: Ids, key: str) -> Asked:
    """A turn that would be run again."""
    return Asked(f"/v1/turns/{own.turn}/rerun", body={}, headers={"prefer": "wait=20", "idempotency-key": key})


def last_id(turn: str) -> dict[str, str]:
    """The header of a client that goes on."""
    return {"last-event-id": f"{turn}:1.0.1.1"}


def rpc(agent: str, method: str, **params: Any) -> Asked:
    """A request of A2A."""
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    return Asked(f"/a2a/{agent}", body=body, headers={"a2a-version": "1.0"})


def to_task(task: str) -> dict[str, Any]:
    """A message to a task."""
    return {"messageId": "m", "role": "ROLE_USER", "taskId": task, "parts": [{"text": "go on"}]}


MATRIX: dict[str, list[Make]] = {
    "create_turn": [
        lambda own, its: create(own, agent_id=its.agent),
        lambda own, its: create(own, profile_name=its.profile),
        lambda own, its: create(own, context_box_id=its.context_box),
        lambda own, its: create(own, context_box_id=its.output_box),
        lambda own, its: create(own, output_box_id=its.output_box),
        lambda own, its: create(own, output_box_id=its.output_box.upper()),
        lambda own, its: create(own, conversation_id=its.conversation),
        lambda own, its: create(own, conversation_id=its.conversation, multitask_strategy="interrupt"),
        lambda own, its: create(own, {"idempotency-key": its.key}),
        lambda own, its: create(own, channel_id=its.channel),
        lambda own, its: create(own, end_user=its.key),
        lambda own, its: create(own, files=[its.file]),
    ],
    "list_turns": [
        lambda _, its: Asked("/v1/turns", {"end_user": its.key}),
        lambda _, its: Asked("/v1/turns", {"channel_id": its.channel}),
        lambda _, its: Asked("/v1/turns", {"conversation_id": its.conversation}),
        lambda _, its: Asked("/v1/turns", {"agent_id": its.agent}),
        lambda _, its: Asked("/v1/turns", {"cursor": its.cursor}),
    ],
    "get_turn": [
        lambda _, its: Asked(f"/v1/turns/{its.turn}"),
        lambda _, its: Asked(f"/v1/turns/{its.turn}", headers={"prefer": "wait=1"}),
    ],
    "stop_turn": [
        lambda _, its: Asked(f"/v1/turns/{its.turn}/stop", body={}),
        lambda _, its: Asked(f"/v1/turns/{its.turn}/stop", body={"cascade": "all"}),
    ],
    "steer_turn": [
        lambda _, its: Asked(f"/v1/turns/{its.turn}/steer", body={"text": "go on"}),
        lambda _, its: Asked(f"/v1/turns/{its.turn}/steer", body={"text": "go on", "priority": "when_idle"}),
        lambda own, its: Asked(
            f"/v1/turns/{own.turn}/steer", body={"text": "go on"}, headers={"idempotency-key": f"steer-{its.key}"}
        ),
    ],
    "rerun_turn": [
        lambda _, its: Asked(f"/v1/turns/{its.turn}/rerun", body={}),
        lambda _, its: Asked(f"/v1/turns/{its.turn}/rerun", body={"from_step": 1}),
        lambda own, its: again(own, f"rerun-{its.key}"),
    ],
    "get_turn_tree": [
        lambda _, its: Asked(f"/v1/turns/{its.turn}/tree"),
        lambda own, its: Asked(f"/v1/turns/{own.turn}/tree", {"cursor": its.turn}),
    ],
    "stream_turn": [
        lambda _, its: Asked(f"/v1/turns/{its.turn}/events"),
        lambda _, its: Asked(f"/v1/turns/{its.turn}/events", {"on_disconnect": "cancel"}),
        lambda _, its: Asked(f"/v1/turns/{its.turn}/events", headers=last_id(its.turn)),
        lambda own, its: Asked(f"/v1/turns/{own.turn}/events", headers=last_id(its.turn)),
    ],
    "list_conversations": [
        lambda _, its: Asked("/v1/conversations", {"channel_id": its.channel}),
        lambda _, its: Asked("/v1/conversations", {"agent_id": its.agent}),
        lambda _, its: Asked("/v1/conversations", {"cursor": its.boxes_cursor}),
    ],
    "get_conversation": [
        lambda _, its: Asked(f"/v1/conversations/{its.conversation}"),
        lambda _, its: Asked(f"/v1/conversations/{its.conversation}", {"agent_id": its.agent}),
        lambda _, its: Asked(f"/v1/conversations/{its.conversation}", {"channel_id": its.channel}),
    ],
    "stream_conversation": [
        lambda _, its: Asked(f"/v1/conversations/{its.conversation}/events"),
        lambda _, its: Asked(f"/v1/conversations/{its.conversation}/events", {"channel_id": its.channel}),
        lambda _, its: Asked(f"/v1/conversations/{its.conversation}/events", {"agent_id": its.agent}),
        lambda _, its: Asked(f"/v1/conversations/{its.conversation}/events", headers=last_id(its.turn)),
        lambda own, its: Asked(f"/v1/conversations/{own.conversation}/events", headers=last_id(its.turn)),
    ],
    "list_interrupts": [
        lambda _, its: Asked("/v1/interrupts", {"channel_id": its.channel}),
        lambda _, its: Asked("/v1/interrupts", {"agent_turn_id": its.waiting}),
        lambda _, its: Asked("/v1/interrupts", {"agent_id": its.agent, "status": "withdrawn"}),
        lambda _, its: Asked("/v1/interrupts", {"cursor": its.interrupt}),
    ],
    "get_interrupt": [lambda _, its: Asked(f"/v1/interrupts/{its.interrupt}")],
    "decide_interrupt": [
        lambda _, its: decided(its, decision="approve", action_digest="0" * 64),
        lambda _, its: decided(its, decision="edit", arguments={"q": "forged"}),
        lambda _, its: decided(its, decision="respond", response="forged", message="mine"),
    ],
    "list_budgets": [
        lambda _, its: Asked("/v1/budgets", {"channel_id": its.channel}),
        lambda _, its: Asked("/v1/budgets", {"cursor": its.turn}),
        lambda _, __: Asked("/v1/budgets", {"kind": "turn", "status": "closed"}),
    ],
    "get_budget": [lambda _, its: Asked(f"/v1/budgets/{its.turn}")],
    "raise_budget": [
        lambda _, its: Asked(f"/v1/budgets/{its.turn}/raise", body={"max_tokens": 1}),
        lambda _, its: Asked(
            f"/v1/budgets/{its.turn}/raise", body={"max_tokens": 1}, headers={"idempotency-key": its.key}
        ),
        lambda _, its: Asked(f"/v1/budgets/{its.waiting}/raise", body={"max_tokens": -1, "correlation_id": its.key}),
    ],
    "limit_project": [lambda _, __: Asked("/v1/budgets/week/limit", body={"limits": None})],
    "put_schedule": [
        lambda _, its: Asked(f"/v1/schedules/{its.key}", body=SCHEDULE | {"agent_id": its.agent}),
        lambda _, its: Asked(f"/v1/schedules/{its.key}", body=SCHEDULE | {"profile_name": its.profile}),
        lambda own, its: Asked(
            f"/v1/schedules/{its.key}",
            {"channel_id": its.channel},
            body=SCHEDULE | {"agent_id": its.agent, "conversation_id": its.key},
        ),
    ],
    "list_schedules": [lambda _, its: Asked("/v1/schedules", {"channel_id": its.channel, "cursor": "zzz"})],
    **{
        f"{verb}_schedule": [
            lambda _, its, path=path: Asked(f"/v1/schedules/{its.turn}{path}", {"channel_id": its.channel}),
            lambda _, its, path=path: Asked(
                f"/v1/schedules/{its.turn}{path}", headers={"idempotency-key": its.key} if path == "/trigger" else {}
            ),
        ]
        for verb, path in (
            *(("get", ""), ("remove", "")),
            *((verb, f"/{verb}") for verb in ("pause", "resume", "trigger")),
        )
    },
    "put_webhook": [
        lambda own, its: Asked("/v1/webhooks/forged", body={"url": "http://127.0.0.1:1/", "profile_name": its.profile})
    ],
    "delete_conversation": [
        lambda _, its: Asked(f"/v1/conversations/{its.conversation}"),
        lambda _, its: Asked(f"/v1/conversations/{its.conversation}", {"channel_id": its.channel}),
        lambda _, its: Asked(f"/v1/conversations/{its.conversation}", {"last_turn_id": its.turn}),
        lambda _, its: Asked(f"/v1/conversations/{its.conversation}", {"agent_id": its.agent}),
    ],
    "delete_end_user": [lambda _, its: Asked("/v1/end_users", {"end_user": its.key})],
    "get_deletion": [lambda _, its: Asked(f"/v1/deletions/{its.turn}")],
    "list_webhooks": [lambda _, __: Asked("/v1/webhooks")],
    "remove_webhook": [lambda _, its: Asked(f"/v1/webhooks/{its.turn}")],
    "put_turn_webhook": [lambda _, its: Asked(f"/v1/turns/{its.turn}/webhook", body={"url": "http://127.0.0.1:1/"})],
    "create_artifact": [
        lambda _, its: Asked("/v1/artifacts", {"channel_id": its.channel}, {}),
        lambda _, its: Asked("/v1/artifacts", {}, {}, {"idempotency-key": its.key, "content-digest": DIGEST}),
    ],
    "list_artifacts": [
        lambda _, its: Asked("/v1/artifacts", {"channel_id": its.channel}),
        lambda _, its: Asked("/v1/artifacts", {"cursor": its.cursor}),
    ],
    "get_artifact": [lambda _, its: Asked(f"/v1/artifacts/{its.file}")],
    "get_artifact_content": [
        lambda _, its, headers=headers: Asked(f"/v1/artifacts/{its.file}/content", headers=headers)
        for headers in ({}, {"range": "bytes=0-1"}, {"if-none-match": f'"{DIGEST}"'})
    ],
    "openai_create_file": [lambda _, its: Asked("/openai/v1/files", body={}, headers={"idempotency-key": its.key})],
    "openai_list_files": [
        lambda _, __: Asked("/openai/v1/files"),
        lambda _, its: Asked("/openai/v1/files", {"after": its.file}),
    ],
    "openai_get_file": [lambda _, its: Asked(f"/openai/v1/files/{its.file}")],
    "openai_get_file_content": [lambda _, its: Asked(f"/openai/v1/files/{its.file}/content")],
    "openai_delete_file": [lambda _, its: Asked(f"/openai/v1/files/{its.file}")],
    "openai_list_models": [lambda _, __: Asked("/openai/v1/models")],
    "openai_get_model": [
        lambda _, its: Asked(f"/openai/v1/models/{its.agent}"),
        lambda _, its: Asked(f"/openai/v1/models/{its.profile}"),
    ],
    "openai_create_chat_completion": [
        lambda _, its: Asked("/openai/v1/chat/completions", body={"model": its.profile, "messages": SAID}),
    ],
    "openai_create_response": [
        lambda _, its: Asked("/openai/v1/responses", body={"model": its.profile, "input": "x"}),
        lambda own, its: Asked(
            "/openai/v1/responses",
            body={"model": own.agent, "input": "x", "previous_response_id": f"resp_{its.turn}"},
        ),
    ],
    "openai_get_response": [
        lambda _, its: Asked(f"/openai/v1/responses/resp_{its.turn}"),
        lambda _, its: Asked(f"/openai/v1/responses/resp_{its.turn}", {"stream": "true"}),
    ],
    "a2a_card": [lambda _, its: Asked(f"/a2a/{its.agent}/.well-known/agent-card.json")],
    "a2a": [
        *(
            lambda _, its, method=method: rpc(its.agent, method, id=its.turn)
            for method in ("GetTask", "CancelTask", "SubscribeToTask")
        ),
        lambda own, its: rpc(own.agent, "GetTask", id=its.turn),
        lambda _, its: rpc(f"profile:{its.profile}", "GetTask", id=its.turn),
        lambda own, its: rpc(own.agent, "ListTasks", contextId=its.conversation),
        lambda own, its: rpc(own.agent, "SendMessage", message=to_task(its.turn)),
        lambda own, its: rpc(own.agent, "SendStreamingMessage", message=to_task(its.turn)),
        lambda own, its: rpc(
            own.agent, "CreateTaskPushNotificationConfig", taskId=its.turn, url="https://93.184.216.34/"
        ),
        lambda own, its: rpc(own.agent, "ListTaskPushNotificationConfigs", taskId=its.turn),
        lambda own, its: rpc(own.agent, "GetTaskPushNotificationConfig", taskId=its.turn, id="x"),
        lambda own, its: rpc(own.agent, "DeleteTaskPushNotificationConfig", taskId=its.turn, id="x"),
    ],
    "openai_list_input_items": [lambda _, its: Asked(f"/openai/v1/responses/resp_{its.turn}/input_items")],
    "openai_create_conversation": [
        lambda _, its: Asked(
            "/openai/v1/conversations", body={"items": [{"type": "item_reference", "id": f"msg_{its.turn}-s1-thought"}]}
        ),
    ],
    "openai_get_conversation": [lambda _, its: Asked(f"/openai/v1/conversations/{its.conversation}")],
    "openai_update_conversation": [
        lambda _, its: Asked(f"/openai/v1/conversations/{its.conversation}", body={"metadata": {"a": "b"}}),
    ],
    "openai_delete_conversation": [
        lambda _, its: Asked(f"/openai/v1/conversations/{its.conversation}", body={}),
    ],
    "openai_list_conversation_items": [lambda _, its: Asked(f"/openai/v1/conversations/{its.conversation}/items")],
    "openai_create_conversation_items": [
        lambda _, its: Asked(
            f"/openai/v1/conversations/{its.conversation}/items", body={"items": [{"role": "user", "content": "x"}]}
        ),
    ],
    "openai_get_conversation_item": [
        lambda _, its: Asked(f"/openai/v1/conversations/{its.conversation}/items/msg_{its.turn}-s1-thought"),
    ],
    "openai_delete_conversation_item": [
        lambda _, its: Asked(f"/openai/v1/conversations/{its.conversation}/items/msg_{its.turn}-s1-thought", body={}),
    ],
    "openai_cancel_response": [lambda _, its: Asked(f"/openai/v1/responses/resp_{its.turn}/cancel", body={})],
    "list_agents": [lambda _, __: Asked("/v1/agents")],
    "list_profiles": [lambda _, __: Asked("/v1/profiles")],
    "list_tools": [lambda _, __: Asked("/v1/tools")],
    "get_usage": [lambda _, __, by=by: Asked("/v1/usage", {"by": by}) for by in ("agent", "model", "day")],
}
"""By the endpoint's name. An endpoint that takes no id is asked as it is."""
NAMED_BY = {
    "conversation_id": "conversation",
    "agent_turn_id": "turn",
    "interrupt_id": "interrupt",
    "artifact_id": "file",
}
"""The id of `Ids` that a path names, by the argument of a verb."""


def about(route: Route) -> list[Make]:
    """A verb about a thing of another, whose body may be empty: by its path alone, and narrowed by each parameter."""
    named = NAMED_BY[str(route.key)]

    def path(its: Ids) -> str:
        return re.sub(r"\{\w+\}", getattr(its, named), route.path)

    narrowed = {"agent_id": "agent", "channel_id": "channel"}
    queries = narrowed.keys() & (route.query.model_fields.keys() if route.query else ())
    return [
        lambda _, its: Asked(path(its), body={}),
        *(lambda _, its, by=by: Asked(path(its), {by: getattr(its, narrowed[by])}, {}) for by in sorted(queries)),
    ]


MAKES = ("create_turn", "create_artifact")
"""What makes something that lists have: tried last."""
ROUTES = [verb.route for verb in VERBS if verb.route is not None]
MATRIX.update({route.name: about(route) for route in ROUTES if route.name not in MATRIX})


@pytest.fixture(scope="module")
async def gateway(here: Stack) -> AsyncIterator[Gateway]:
    """A gateway without a server: its statements can be counted, and a token is looked up once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bearers, "KNOWN_SECONDS", 1000.0)
        async with composed(here) as made:
            yield made


@dataclass(frozen=True)
class Sides:
    """Who asks with which ids for what is whose."""

    gateway: Gateway
    asks: Ids
    token: str
    its: Ids
    its_token: str
    other: Tenant


async def lived(gateway: Gateway, tenant: Tenant, channel: str, agent: AgentId) -> tuple[Ids, str]:
    """A conversation with a turn that ended in this channel, and one that runs; and a token of the channel."""
    token = await token_of(tenant.stack, tenant.project, GatewayRole.OPERATOR, channel=channel)
    name, words = f"only-{uuid7()}", SECRET if channel == "u_bob" else "what is mine"
    async with asking(gateway, token) as web:
        said = json.dumps({"steps": [{"text": words}]})
        body = {"agent_id": agent, "instruction": said, "conversation_id": name, "budget": {"max_tokens": 100_000}}
        key = {"prefer": "wait=20", "idempotency-key": f"key-{name}"}
        made = (await web.post("/v1/turns", json=body, headers=key)).json()
        assert made["status"] == "success", made
        asking_turn = json.dumps({"steps": [calling(("ask_human", {"question": "Which?"}))]})
        asked = {"agent_id": agent, "instruction": asking_turn}
        waiting = (await web.post("/v1/turns", json=asked)).json()["agent_turn_id"]

        async def asked_of_people() -> bool:
            found = (await web.get("/v1/interrupts", params={"agent_turn_id": waiting})).json()
            return bool(found["interrupts"])

        await until(asked_of_people, 25, "the turn asks")
        await web.post(f"/v1/turns/{waiting}/stop", json={})
        hourly = SCHEDULE | {"agent_id": agent, "instruction": words, "paused": True}
        put = await web.put(f"/v1/schedules/{made['agent_turn_id']}", json=hourly)
        assert put.is_success, put.text
        kept = await web.post("/v1/artifacts", content=words.encode(), headers={"idempotency-key": f"key-{name}"})
    await tenant.ended(AgentTurnId(waiting))
    ended = await tenant.ended(AgentTurnId(made["agent_turn_id"]))
    ids = Ids(
        *(agent, made["agent_turn_id"], name, made["context_box_id"], made["output_box_id"], f"key-{name}", channel),
        *(f"{agent}-profile", f"tool-{tenant.project}"[:60]),
        cursor_of(PageCursor(ended.view.created_at + timedelta(days=1), made["agent_turn_id"])),
        cursor_of(PageCursor(ended.view.created_at + timedelta(days=1), made["output_box_id"])),
        interrupt_id(call_of(AgentTurnId(waiting))),
        waiting,
        kept.json()["artifact_id"],
    )
    return ids, token


def nobodys(agent: str, profile: str, its: Ids) -> Ids:
    """Ids that are drawn and not used, in the forms of those that are."""
    return Ids(
        *(agent, uuid7(), f"only-{uuid7()}", new_box_id(), new_box_id(), f"key-{uuid7()}", "u_nobody", profile),
        *(its.tool, its.cursor, its.boxes_cursor, interrupt_id(call_of(AgentTurnId(uuid7()))), uuid7()),
        f"file-{uuid7()}",
    )


@pytest.fixture(scope="module", params=["project", "channel"])
async def sides(request: pytest.FixtureRequest, here: Stack, gateway: Gateway) -> Sides:
    """Two projects, and two channels of one."""
    first = new_tenant(here)
    second = new_tenant(here) if request.param == "project" else first
    agents = AgentId("asker"), AgentId("holder") if request.param == "project" else AgentId("asker")
    for tenant, agent in {first.project: (first, agents[0]), second.project: (second, agents[1])}.values():
        await tenant.agent("player", agent, allowed_tools=["ask_human"])
        await put_tool(tenant.pool, tenant.project, definition(f"tool-{tenant.project}"[:60]))
    asks, token = await lived(gateway, first, "u_ada", agents[0])
    its, its_token = await lived(gateway, second, "u_bob", agents[1])
    if request.param == "project":
        token = await token_of(here, first.project)
    return Sides(gateway, asks, token, its, its_token, second)


async def answer_of(sides: Sides, asked: Asked, method: str, used: Ids) -> tuple[object, ...]:
    """What is answered, without what is drawn anew each time, and the number of statements."""
    before = sides.gateway.pool.round_trips
    async with asyncio.timeout(25), asking(sides.gateway, sides.token) as web:
        answer = await web.request(
            method, asked.path, params=asked.query, json=asked.body, headers=asked.headers, timeout=20
        )
    statements = sides.gateway.pool.round_trips - before
    text = answer.text
    assert SECRET not in text
    for each in sorted(vars(used).values(), key=len, reverse=True):
        text = text.replace(each, "ID").replace(each.lower(), "ID")
    headers = {name: value for name, value in answer.headers.items() if name not in UNLIKE}
    if answer.status_code in (201, 202) and "output" in answer.json():  # a turn of one's own: times and figures differ
        turn = answer.json()
        return answer.status_code, headers, turn["status"], turn["output"]["text"], turn["duplicate"]
    return answer.status_code, headers, TIMES.sub("T", WORD.sub("ID", text)), statements


async def test_what_is_anothers_is_answered_like_what_is_not_there(sides: Sides) -> None:
    methods = {each.name: each.method for each in (*sides.gateway.endpoints, *sides.gateway.openai, *sides.gateway.a2a)}
    same_project = sides.asks.agent == sides.its.agent
    agent, profile = (sides.its.agent, sides.its.profile) if same_project else (f"a-{uuid7()}", f"p-{uuid7()}")
    await answer_of(sides, Asked("/v1/agents"), "GET", sides.its)
    before = await rows_of(sides.other)
    for name, makes in sorted(MATRIX.items(), key=lambda each: each[0] in MAKES):
        for number, make in enumerate(makes):
            nobody = nobodys(agent, profile, sides.its)
            told = await answer_of(sides, make(sides.asks, sides.its), methods[name], sides.its)
            expected = await answer_of(sides, make(sides.asks, nobody), methods[name], nobody)
            assert told == expected, (name, number)
            assert str(told[0])[0] != "5", (name, number, told)
    if not same_project:
        assert await rows_of(sides.other) == before
    async with asking(sides.gateway, sides.its_token) as web:
        assert (await web.get(f"/v1/turns/{sides.its.turn}")).json()["status"] == "success"


async def test_a_channel_sees_its_own_figures_and_turns_only(sides: Sides) -> None:
    async with asking(sides.gateway, sides.token) as web:
        total = (await web.get("/v1/usage")).json()["lines"][-1]
        turns = (await web.get("/v1/turns", params={"limit": "500"})).json()["turns"]
        assert total["turns"] == len(turns) > 0
        assert sides.its.turn not in {turn["agent_turn_id"] for turn in turns}
        for agent in (await web.get("/v1/agents")).json()["agents"]:
            assert agent["active_agent_turn_id"] is None


async def test_both_sides_may_say_several_things_under_one_key(sides: Sides) -> None:
    """A box is made of what was said: that of the one is not that of the other."""
    found: set[str] = set()
    for token, ids in ((sides.token, sides.asks), (sides.its_token, sides.its)):
        async with asking(sides.gateway, token) as web:
            body = {"model": ids.agent, "input": SAID, "background": True, "user": ids.channel}
            answer = await web.post("/openai/v1/responses", json=body, headers={"idempotency-key": "the-same"})
            assert answer.status_code == 200, answer.text
            found.add(answer.json()["id"])
            assert (await web.post(f"/openai/v1/responses/{answer.json()['id']}/cancel", json={})).status_code == 200
    assert len(found) == 2


async def test_its_own_side_knows_each_of_them(sides: Sides) -> None:
    """Else the matrix would prove nothing."""
    its = sides.its
    async with asking(sides.gateway, sides.its_token) as web:
        for path in (f"/v1/turns/{its.turn}", f"/v1/turns/{its.turn}/tree", f"/v1/conversations/{its.conversation}"):
            assert (await web.get(path)).status_code == 200, path
        assert "Which?" in (await web.get(f"/v1/interrupts/{its.interrupt}")).text
        refused = await web.post(f"/v1/interrupts/{its.interrupt}/decision", json={"decision": "reject"})
        assert refused.json()["code"] == "withdrawn"
        assert SECRET in (await web.get(f"/v1/turns/{its.turn}")).text
        assert SECRET in (await web.get(f"/v1/turns/{its.turn}/events")).text
        key = {"idempotency-key": its.key}
        body = {"agent_id": its.agent, "instruction": json.dumps({"steps": [{"text": "other"}]})}
        assert (await web.post("/v1/turns", json=body, headers=key)).json()["code"] == "correlation_conflict"
        for fields in ({"context_box_id": its.output_box}, {"output_box_id": its.output_box}):
            made = await web.post("/v1/turns", json=body | fields, headers={"prefer": "wait=20"})
            assert made.status_code == 201, made.text
        assert SECRET in (await web.get(f"/v1/artifacts/{its.file}/content")).text
        assert SECRET in (await web.get(f"/v1/schedules/{its.turn}")).text
        assert (await web.post("/v1/artifacts", content=b"x", headers=key)).json()["code"] == "key_conflict"
        assert [each["conversation_id"] for each in (await web.get("/v1/conversations")).json()["conversations"]] == [
            its.conversation
        ]


async def test_the_matrix_has_every_endpoint_and_every_parameter(gateway: Gateway) -> None:
    ids = nobodys("a", "p", Ids(*("x",) * 14))
    assert {each.name for each in (*gateway.endpoints, *gateway.openai, *gateway.a2a)} == MATRIX.keys()
    for endpoint in gateway.endpoints:
        made = [make(ids, ids) for make in MATRIX[endpoint.name]]
        assert all(re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", endpoint.path), each.path) for each in made), endpoint.name
        tried = {name for each in made for name in each.query}
        assert endpoint.query.model_fields.keys() - tried <= NAMES_NOTHING, endpoint.name
        if endpoint.body is not None:
            tried = {name for each in made for name in each.body or {}}
            assert endpoint.body.model_fields.keys() - tried <= NAMES_NOTHING, endpoint.name
        tried = {name for each in made for name in each.headers}
        assert {name.lower() for name in endpoint.request_headers} - tried <= {"prefer"}, endpoint.name


NAMES_NOTHING = {
    *("events", "secret", "filename"),
    *("cron", "timezone", "every_seconds", "at", "start_at", "end_at", "new_conversations", "overlap"),
    *("catchup_seconds", "paused"),
    *("limit", "by", "since", "turns", "on_disconnect", "reason", "cascade"),
    *("instruction", "result_fields", "runtime_config", "metadata", "model"),
    *("budget", "kind", "max_tokens", "max_cost_usd", "max_turns", "limits"),
    *("status", "decision", "action_digest", "arguments", "message", "response"),
    "cursor",  # where it is an id or a name of the project's own list; else it is tried
}
"""Parameters and fields that name nothing of a project or channel."""
