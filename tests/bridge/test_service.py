"""Verbs over request/reply: concurrency, forged replies, errors, sizes, draining and discovery."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from nats.aio.msg import Msg

from lab.support.nats_server import NatsServer
from tests.support.processes.nats_server import CHANNEL, eventually
from turnstile.bridge.serving.micro_service import VerbHandler, VerbRequest, VerbService
from turnstile.schema.access import Caller
from turnstile.schema.base import Reply
from turnstile.schema.errors import BadRequest, Refused, ServerUnavailable
from turnstile.schema.ids import ProjectId
from turnstile.schema.states import ReplyStatus
from turnstile.schema.wire import subjects
from turnstile.schema.wire.headers import PROJECT_ID, SENDER
from turnstile.schema.wire.inbox import DescribeRequest
from turnstile.sdk.client import BridgeClient
from turnstile.transport.connection import NatsConnection, connect
from turnstile.transport.json_messages import decode_object, encode


class DatabaseAway(Exception):
    """What a driver might raise."""


class EchoReply(Reply):
    text: str


def raising(error: Exception) -> VerbHandler:
    async def handler(_: VerbRequest) -> Reply:
        raise error

    return handler


async def slow(_: VerbRequest) -> Reply:
    await asyncio.sleep(0.05)
    return Reply(status=ReplyStatus.ACCEPTED)


def together(count: int) -> VerbHandler:
    """Answers once so many requests are in hand."""
    barrier = asyncio.Barrier(count)

    async def handler(_: VerbRequest) -> Reply:
        await barrier.wait()
        return Reply(status=ReplyStatus.ACCEPTED)

    return handler


async def echo(request: VerbRequest) -> Reply:
    told = f"{request.project_id} {request.channel_id} {request.source} {request.command_id}"
    return EchoReply(status=ReplyStatus.ACCEPTED, text=f"{told} {encode(request.payload.read()).decode()}")


async def who(request: VerbRequest) -> Reply:
    caller = request.named_caller()
    told = f"{request.verb} {caller.name} {caller.operates} {request.headers[SENDER]}"
    return EchoReply(status=ReplyStatus.ACCEPTED, text=told)


async def large(_: VerbRequest) -> Reply:
    return EchoReply(status=ReplyStatus.ACCEPTED, text="x" * 1_048_000)


async def parsing(request: VerbRequest) -> Reply:
    request.parse(DescribeRequest)
    return Reply(status=ReplyStatus.ACCEPTED)


VERBS: dict[str, VerbHandler] = {
    "slow": slow,
    "together": together(20),
    "echo": echo,
    "stop": who,
    "steer": who,
    "large": large,
    "parsing": parsing,
    "bad": raising(BadRequest("that was wrong")),
    "refused": raising(Refused("agent_inactive", "the agent sleeps")),
    "away": raising(ServerUnavailable("Postgres is away")),
    "database": raising(DatabaseAway("secret dsn")),
    "bug": raising(RuntimeError("secret detail")),
}


@asynccontextmanager
async def serving(conn: NatsConnection, concurrency: int = 64) -> AsyncGenerator[VerbService]:
    service = VerbService(conn, VERBS, concurrency=concurrency, unavailable=(DatabaseAway,))
    await service.start()
    await conn.verify()
    yield service
    await service.stop()


@pytest.fixture
async def service(conn: NatsConnection) -> AsyncIterator[VerbService]:
    async with serving(conn) as service:
        yield service


@pytest.fixture
def client(other: NatsConnection, project: ProjectId) -> BridgeClient:
    return BridgeClient(other, project, CHANNEL)


@pytest.mark.usefixtures("service")
async def test_a_verb_knows_who_asked(client: BridgeClient, project: ProjectId) -> None:
    reply = await client.request("echo", {"a": 1})
    assert reply == {
        "status": "accepted",
        "error_code": None,
        "error": None,
        "text": f'{project} {CHANNEL} request None {{"a":1}}',
    }


@pytest.mark.usefixtures("service")
@pytest.mark.parametrize("name", ["alice", "operator.alice", "token.0a1b", "operator.token.0a1b"])
async def test_the_end_of_a_subject_names_the_caller_and_no_header_does(client: BridgeClient, name: str) -> None:
    caller = Caller.read(name.split("."))
    for verb in ("stop", "steer"):
        reply = await client.request(verb, {}, headers={SENDER: "mallory"}, caller=caller)
        plain = name.removeprefix("operator.")
        assert reply["text"] == f"{verb} {plain} {plain != name} {plain}"


@pytest.mark.usefixtures("service")
async def test_a_client_asks_as_its_environment_says(client: BridgeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TURNSTILE_PRINCIPAL", raising=False)
    assert (await client.request("steer", {}))["text"] == f"steer {client.caller.name} True {client.caller.name}"
    assert (await client.request("stop", {}))["error_code"] == "bad_request", "it may name nobody"
    monkeypatch.setenv("TURNSTILE_PRINCIPAL", "alice")
    assert (await client.request("stop", {}))["text"] == "stop alice False alice"
    for wrong in ("operator", "a..b", "a b", "a*", "x" * 129):
        monkeypatch.setenv("TURNSTILE_PRINCIPAL", wrong)
        with pytest.raises(BadRequest):
            await client.request("steer", {})


@pytest.mark.usefixtures("service")
async def test_a_subject_whose_end_names_nobody_is_refused(other: NatsConnection, project: ProjectId) -> None:
    subject = subjects.bridge_request(project, CHANNEL, "steer")
    for end in ("", ".operator", f".{'x' * 128}.y"):
        answer = await other.request(subject + end, b"{}", timeout=25)
        assert decode_object(answer.data)["error_code"] == "bad_request", end


@pytest.mark.usefixtures("service")
async def test_requests_run_side_by_side(client: BridgeClient) -> None:
    replies = await asyncio.gather(*(client.request("together", {}) for _ in range(20)))
    assert all(reply["status"] == "accepted" for reply in replies)


@pytest.mark.usefixtures("service")
async def test_two_hundred_at_once_are_all_served(client: BridgeClient) -> None:
    replies = await asyncio.gather(*(client.request("slow", {}) for _ in range(200)))
    assert all(reply["status"] == "accepted" for reply in replies)


async def test_too_many_hear_busy(conn: NatsConnection, client: BridgeClient) -> None:
    async with serving(conn, concurrency=2):
        replies = await asyncio.gather(*(client.request("slow", {}) for _ in range(20)))
    assert [reply["status"] for reply in replies].count("accepted") == 10
    assert [reply["error_code"] for reply in replies].count("overloaded") == 10


async def test_one_project_does_not_take_all_places(conn: NatsConnection, client: BridgeClient) -> None:
    other = BridgeClient(conn, ProjectId("other"), CHANNEL)
    async with serving(conn, concurrency=2):
        flood = [asyncio.create_task(client.request("slow", {})) for _ in range(20)]
        replies = await asyncio.gather(*(other.request("slow", {}) for _ in range(5)))
        await asyncio.gather(*flood)
    assert [reply["status"] for reply in replies] == ["accepted"] * 5


@pytest.mark.usefixtures("service")
@pytest.mark.parametrize(
    ("verb", "status", "code", "error"),
    [
        ("bad", "rejected", "bad_request", "that was wrong"),
        ("refused", "rejected", "agent_inactive", "the agent sleeps"),
        ("away", "error", "server_unavailable", "Postgres is away"),
        ("database", "error", "server_unavailable", "a server the bridge needs does not answer; try again"),
        ("bug", "error", "internal_error", "the bridge failed; see its log"),
        (
            "parsing",
            "rejected",
            "bad_request",
            "secret_field: there is no such field; there are agent_turn_id, card_id, tool_call_id, tree, begins",
        ),
    ],
)
async def test_errors_become_replies(client: BridgeClient, verb: str, status: str, code: str, error: str) -> None:
    reply = await client.request(verb, {"secret_field": "hidden"})
    assert reply == {"status": status, "error_code": code, "error": error}


@pytest.mark.usefixtures("service")
async def test_an_unknown_verb_is_rejected(client: BridgeClient) -> None:
    reply = await client.request("nonsense", {})
    assert (reply["status"], reply["error_code"]) == ("rejected", "bad_request")


@pytest.mark.usefixtures("service")
async def test_another_projects_header_is_rejected(client: BridgeClient) -> None:
    reply = await client.request("echo", {}, headers={PROJECT_ID: "another"})
    assert (reply["status"], reply["error_code"]) == ("rejected", "bad_request")


@pytest.mark.usefixtures("service")
async def test_a_reply_that_would_close_the_connection(client: BridgeClient, conn: NatsConnection) -> None:
    reply = await client.request("large", {})
    assert (reply["status"], reply["error_code"]) == ("error", "result_too_large")
    assert conn.connected.is_set()


async def test_a_forged_reply_subject_gets_no_answer(
    service: VerbService, other: NatsConnection, client: BridgeClient, project: ProjectId
) -> None:
    heard: list[bytes] = []

    async def on_event(msg: Msg) -> None:
        heard.append(msg.data)

    await other.subscribe("cg.v1r4.p2.>", on_event)
    subject = subjects.bridge_request(project, CHANNEL, "echo")
    for forged in ("cg.v1r4.p2.c.evt.agent.a.task", "_INBOX", "x._INBOX.y", ""):
        await other.send(subject, b"{}", reply=forged)
    await other.send("$SRV.PING", b"", reply="cg.v1r4.p2.c.evt.agent.a.task")
    await client.request("echo", {})  # answered after them
    await other.verify()
    assert service.dropped == 4
    assert heard == []
    assert service.card.stats["echo"].num_requests == 1


async def test_stopping_answers_all_in_flight(server: NatsServer, client: BridgeClient) -> None:
    conn = await connect(server.url, name="bridge")
    service = VerbService(conn, VERBS)
    await service.start()
    await conn.verify()
    asking = [asyncio.create_task(client.request("slow", {})) for _ in range(300)]
    await eventually(lambda: len(service._tasks) >= 100)
    await service.stop()
    await conn.drain()
    answers = await asyncio.gather(*asking, return_exceptions=True)
    told = [answer for answer in answers if isinstance(answer, dict)]
    print(f"answered on drain: {len(told)} of 300")  # noqa: T201 - shown with -s
    assert len(told) == 300


async def test_nobody_there(client: BridgeClient) -> None:
    with pytest.raises(ServerUnavailable, match="no bridge is running"):
        await client.request("echo", {})


async def test_it_is_discovered_as_a_micro_service(
    service: VerbService, client: BridgeClient, other: NatsConnection
) -> None:
    await client.request("echo", {})
    await client.request("bug", {})

    async def ask(subject: str) -> dict[str, Any]:
        return cast("dict[str, Any]", decode_object((await other.request(subject, b"", timeout=2)).data))

    for subject in ("$SRV.PING", "$SRV.PING.turnstile", f"$SRV.PING.turnstile.{service.card.id}"):
        ping = await ask(subject)
        assert ping["type"] == "io.nats.micro.v1.ping_response"
        assert (ping["name"], ping["id"]) == ("turnstile", service.card.id)
    info = await ask("$SRV.INFO.turnstile")
    assert info["type"] == "io.nats.micro.v1.info_response"
    assert {endpoint["name"] for endpoint in info["endpoints"]} == set(VERBS)
    assert info["endpoints"][0]["subject"] == "cg.v1r4.*.*.req.sys.bridge.slow"
    stats = await ask("$SRV.STATS")
    assert stats["type"] == "io.nats.micro.v1.stats_response"
    counts = {endpoint["name"]: endpoint for endpoint in stats["endpoints"]}
    assert (counts["echo"]["num_requests"], counts["echo"]["num_errors"]) == (1, 0)
    assert (counts["bug"]["num_errors"], counts["bug"]["last_error"]) == (1, "internal_error")
    assert counts["echo"]["processing_time"] > 0
