"""What comes in from outside: `send` over request/reply and as a command, good, doubled, joined and hostile."""

import base64
import json
from typing import Any

import pytest
from nats.aio.msg import Msg

from tests.support.conditions import until
from tests.support.pump.organism import Order, Shout
from tests.support.pump.pump import (
    Caller,
    noting_messages,
    noting_statements,
    pump_config,
)
from tests.support.tenants import CHANNEL
from turnstile.schema.base import JsonObject
from turnstile.schema.errors import Refused
from turnstile.schema.ids import uuid7
from turnstile.schema.pump.primitives import CORE_NAMESPACE, INVALID_STRUCTURE
from turnstile.schema.wire import headers, subjects
from turnstile.schema.wire.inbox import TEXT_LIMIT_BYTES, SendReply

pytestmark = pytest.mark.stack(pump_config())

SHOUTED = "<shouted><text>HI</text></shouted>"


@pytest.mark.parametrize(
    "payload",
    [
        "<shout><text>hi</text></shout>",
        {"text": "hi"},
        '{"text": "hi"}',
        "\ufeff<shout><text>hi</text></shout>",
        "```xml\n<shout><text>hi</text></shout>\n```",
        "\n\n  <?xml version='1.0' encoding='utf-8'?>\n<!-- a comment --><shout>\n  <text>hi</text>\n</shout>  ",
        "<shout><text><![CDATA[hi]]></text></shout>",
    ],
    ids=["XML", "an object", "JSON text", "BOM", "fence", "declaration and white space", "CDATA"],
)
async def test_forms_of_one_payload(caller: Caller, payload: str | JsonObject) -> None:
    assert (await caller.ask("shouter", payload)).payload == SHOUTED


HOSTILE = {
    "entity": '<!DOCTYPE a [<!ENTITY e "EXPANDED">]><shout><text>&e;</text></shout>',
    "external entity": '<!DOCTYPE a [<!ENTITY e SYSTEM "file:///etc/passwd">]><shout><text>&e;</text></shout>',
    "parameter entity": '<!DOCTYPE a SYSTEM "http://127.0.0.1:1/x.dtd"><shout><text>hi</text></shout>',
    "billion laughs": "<!DOCTYPE a [<!ENTITY a 'ha'>"
    + "".join(f"<!ENTITY {chr(98 + n)} '{f'&{chr(97 + n)};' * 10}'>" for n in range(9))
    + "]><shout><text>&j;</text></shout>",
    "undeclared entity": "<shout><text>&nosuch;</text></shout>",
    "stylesheet": '<?xml-stylesheet href="http://127.0.0.1:1/"?><shout><text>hi</text><text>hi</text></shout>',
    "schema location": '<shout xmlns:x="http://www.w3.org/2001/XMLSchema-instance" x:type="y"><text>a</text></shout>',
    "XInclude": '<shout><include xmlns="http://www.w3.org/2001/XInclude" href="/etc/passwd"/></shout>',
    "attribute": '<shout lang="en"><text>hi</text></shout>',
    "other namespace": '<shout xmlns="urn:x"><text>hi</text></shout>',
    "deep": "<shout>" * 5_000 + "</shout>" * 5_000,
    "wide": "<shout>" + "<text>a</text>" * 20_000 + "</shout>",
    "two roots": "<shout><text>hi</text></shout><shout><text>hi</text></shout>",
    "two fences": "```xml\n<shout><text>hi</text></shout>\n```\n```xml\n<shout><text>hi</text></shout>\n```",
    "UTF-7": '<?xml version="1.0" encoding="utf-7"?><shout><text>hi</text></shout>',
    "a control character": "<shout><text>\x01</text></shout>",
    "huh": f'<huh xmlns="{CORE_NAMESPACE}"><error>x</error><original-attempt>eA==</original-attempt></huh>',
    "SystemError": '<SystemError xmlns=""><code>timeout</code><message>x</message>'
    "<retry-allowed>true</retry-allowed></SystemError>",
    "JSON of another shape": '{"words": ["hi"]}',
    "JSON with more": '{"text": "hi", "extra": 1}',
    "a JSON list": '["hi"]',
    "deep JSON": '{"text":' + "[" * 3_000 + "]" * 3_000 + "}",
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_hostile_documents_are_huh_and_nothing_else(caller: Caller, name: str) -> None:
    payload = HOSTILE[name]
    heard = await caller.ask("shouter", payload)
    attempt = base64.b64encode(payload.encode()[:4096]).decode()
    assert heard.payload == (
        f'<huh xmlns="{CORE_NAMESPACE}"><error>{INVALID_STRUCTURE}</error>'
        f"<original-attempt>{attempt}</original-attempt></huh>"
    )
    assert (heard.kind, heard.reason, heard.sender) == ("reply", "undelivered", "shouter")


REFUSED: dict[str, tuple[str, dict[str, Any], dict[str, str]]] = {
    "no target": ("bad_request", {"to": ""}, {}),
    "a target that is no name": ("bad_request", {"to": "a.b"}, {}),
    "a target with a newline": ("bad_request", {"to": "shouter\n"}, {}),
    "a target too long": ("bad_request", {"to": "x" * 129}, {}),
    "no payload": ("bad_request", {"payload": None}, {}),
    "a list": ("bad_request", {"payload": ["<shout/>"]}, {}),
    "NUL": ("bad_request", {"payload": "<shout><text>a\0</text></shout>"}, {}),
    "more fields": ("bad_request", {"from": "system"}, {}),
    "text too long": ("text_too_large", {"payload": "x" * (TEXT_LIMIT_BYTES + 1)}, {}),
    "a thread of nobody": ("unknown_thread", {"thread_id": uuid7()}, {}),
    "a thread that is none": ("unknown_thread", {"thread_id": "../x"}, {}),
    "an answer to an event": ("bad_request", {"reply_to": "cg.v1r4.p.public.evt.sys.pump.reply"}, {}),
    "a sender of odd letters": ("bad_request", {}, {headers.SENDER: "a b"}),
    "another project": ("bad_request", {}, {headers.PROJECT_ID: "p-other"}),
    "a depth that is none": ("bad_request", {}, {headers.DEPTH: "-1"}),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_what_send_refuses_writes_nothing(caller: Caller, name: str) -> None:
    code, fields, told = REFUSED[name]
    asked: JsonObject = {"to": "shouter", "payload": "<shout><text>hi</text></shout>", **fields}
    reply = SendReply.model_validate(await caller.tenant.client.request("send", asked, headers=told))
    assert (reply.status, reply.error_code) == ("rejected", code), reply
    assert await caller.tenant.count("state.threads") == await caller.tenant.count("state.thread_messages") == 0


@pytest.mark.parametrize(
    ("told", "known_as"),
    [
        ({headers.SENDER: "web.42"}, "external:web.42"),
        ({headers.SENDER: "system"}, "external:system"),
        ({headers.SENDER: "clerk"}, "external:clerk"),
        ({}, "external"),
    ],
)
async def test_from_outside_nobody_passes_for_a_listener_or_the_pump(
    caller: Caller, told: dict[str, str], known_as: str
) -> None:
    subject = subjects.bridge_request(caller.tenant.project, CHANNEL, "send")
    data = json.dumps({"to": "worker", "payload": "<order><do>tell</do></order>"}).encode()
    answer = await caller.tenant.stack.conn.request(subject, data, timeout=25, headers=told)
    heard = await caller.heard(SendReply.model_validate_json(answer.data))
    assert json.loads(heard.said)["from_id"] == known_as


async def test_the_answer_is_copied_to_the_requesters_inbox_once(
    caller: Caller, caplog: pytest.LogCaptureFixture
) -> None:
    conn = caller.tenant.stack.conn
    inbox = conn.nc.new_inbox()
    copies: list[Msg] = []

    async def on_copy(msg: Msg) -> None:
        copies.append(msg)

    watch = await conn.subscribe(inbox, on_copy)
    sent = await caller.send("shouter", Shout(text="hi"), reply_to=inbox)
    heard = await caller.heard(sent)
    await caller.tenant.stack.temporal.get_workflow_handle(f"thread-{sent.thread_id}").result()
    [copy] = copies
    assert json.loads(copy.data) == heard.event
    assert {*(copy.headers or {})} == {*heard.headers} - {headers.MSG_ID}
    assert "was lost" not in caplog.text  # no stream was asked to take it
    await conn.unsubscribe(watch)


async def test_the_client_sends_and_waits(caller: Caller) -> None:
    client = caller.tenant.client
    answer = await client.send("shouter", {"text": "hi"}, correlation_id="c-7")
    assert (answer.payload, answer.sender, answer.correlation_id) == (SHOUTED, "shouter", "c-7")
    with pytest.raises(Refused, match="no such thread"):
        await client.send("shouter", {"text": "hi"}, thread_id="nosuch")
    with pytest.raises(TimeoutError):
        await client.send("worker", "<order><do>sleep</do></order>", timeout=0.2)


async def test_a_command_goes_once_however_often_it_is_delivered(caller: Caller) -> None:
    tenant = caller.tenant
    asked: JsonObject = {"to": "shouter", "payload": "<shout><text>hi</text></shout>"}
    assert await tenant.client.command("send", asked, "r-1")
    assert not await tenant.client.command("send", asked, "r-1")  # swallowed by the stream
    subject = subjects.bridge_command(tenant.project, CHANNEL, "send")
    data = json.dumps({**asked, "correlation_id": "c-1"}).encode()
    for _ in range(3):  # three commands, one correlation
        await tenant.stack.conn.store(subject, data)

    async def acks() -> list[SendReply]:
        found = [SendReply.model_validate(event.payload) for event in await tenant.events("sys.bridge.send_ack")]
        return found if len(found) == 4 else []

    found = await until(acks, 25, "the commands are answered")
    assert {reply.status for reply in found} == {"accepted"}
    assert len({reply.message_id for reply in found}) == len({reply.thread_id for reply in found}) == 2
    assert sorted(reply.duplicate for reply in found) == [False, False, True, True]
    for reply in found:
        assert (await caller.heard(reply)).payload == SHOUTED
    assert await tenant.count("state.threads") == 2
    assert sorted(await caller.stored()) == sorted({str(reply.message_id) for reply in found})


async def test_a_correlation_repeated_is_answered_and_a_conflict_refused(caller: Caller) -> None:
    first = await caller.send("shouter", Shout(text="hi"), correlation_id="c")
    heard = await caller.heard(first)
    assert heard.event["correlation_id"] == "c"
    again = await caller.send("shouter", Shout(text="hi"), correlation_id="c")
    assert (again.duplicate, first.duplicate) == (True, False)
    assert (again.message_id, again.thread_id) == (first.message_id, first.thread_id)
    for changed in (
        caller.request("shouter", Shout(text="bye"), correlation_id="c"),
        caller.request("worker", Shout(text="hi"), correlation_id="c"),
        caller.request("shouter", Shout(text="hi"), correlation_id="c", thread_id=first.thread_id),
        caller.request("shouter", Shout(text="hi"), correlation_id="c", sender="another"),
    ):
        assert (await changed).error_code == "correlation_conflict"
    assert await caller.tenant.count("state.thread_messages") == 1


async def test_joining_a_thread_needs_its_requester(caller: Caller) -> None:
    sent = await caller.send("worker", Order(do="say", what="1"))
    await caller.heard(sent)
    for stranger in (
        caller.request("worker", Order(do="say"), thread_id=sent.thread_id, sender="another"),
        caller.request("worker", Order(do="say"), thread_id=sent.message_id),
    ):
        assert (await stranger).error_code == "unknown_thread"
    other = caller.tenant.named("p-other").client
    asked: JsonObject = {"to": "worker", "payload": "<order><do>say</do></order>", "thread_id": str(sent.thread_id)}
    assert (await other.request("send", asked))["error_code"] == "unknown_thread"
    joined = await caller.send("worker", Order(do="say", what="2"), thread_id=sent.thread_id)
    assert joined.thread_id == sent.thread_id
    assert (await caller.heard(joined)).said == "2"


async def test_nothing_tells_an_unknown_target_from_a_wrong_payload(caller: Caller) -> None:
    """The same text, shape, SQL statements in the same order, and messages on NATS."""
    found: dict[str, tuple[Any, ...]] = {}
    for name, to, payload in (
        ("unknown", "nobody-here", "<shout><text>hi</text></shout>"),
        ("misfit", "shouter", "<order><do>say</do></order>"),
        ("wrong", "shouter", "<shout><words>hi</words></shout>"),
        ("unknown too", "nobody-else", "<nosuch/>"),
    ):
        ours = {str(caller.tenant.project)}
        async with noting_messages(caller) as messages:
            with noting_statements(ours) as statements:
                sent = await caller.send(to, payload)
                ours |= {str(sent.thread_id), str(sent.message_id)}
                heard = await caller.heard(sent)
                await caller.tenant.stack.temporal.get_workflow_handle(f"thread-{sent.thread_id}").result()
        assert heard.payload is not None
        shape = heard.payload.replace(base64.b64encode(payload.encode()).decode(), "ATTEMPT")
        found[name] = (heard.kind, heard.reason, shape, sorted(heard.event), tuple(statements), tuple(messages))
    unknown = found.pop("unknown")
    assert len(unknown[4]) > 10
    told = [subject.rpartition("public.")[2] for subject, _ in unknown[5]]
    assert told == ["req.sys.bridge.send", "evt.sys.pump.reply"]
    for name, each in found.items():
        assert each == unknown, name
