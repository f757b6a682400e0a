"""Bad input to verbs, on doorbells and in the inbox: a stable code, nothing lost, nothing half-written."""

import asyncio
import json
import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.conditions import until
from tests.support.processes.stack import Stack
from tests.support.tenants import ALICE, CHANNEL, Tenant, new_tenant, turn_of
from turnstile.schema.base import JsonObject
from turnstile.schema.errors import BadRequest
from turnstile.schema.ids import AgentId, new_box_id, uuid7
from turnstile.schema.wire import headers, subjects
from turnstile.schema.wire.inbox import TEXT_LIMIT_BYTES, EnqueueReply
from turnstile.transport.json_messages import decode_object
from turnstile.transport.streams import wakeup_consumer

BOB = AgentId("bob")
DEEP = "[" * 20_000 + "]" * 20_000


@pytest.fixture
async def client(here: Stack) -> Tenant:
    """A project with alice, who answers, and bob, who is not active."""
    tenant = new_tenant(here)
    await tenant.agent("plain", ALICE)
    await tenant.agent("plain", BOB)
    await tenant.rows("UPDATE resource.project_agents SET status = 'inactive' WHERE agent_id = $1", BOB)
    return tenant


async def counts(tenant: Tenant) -> dict[str, int]:
    """Rows of every table of the database that requests write; what worker and bridge note of themselves is not."""
    tables = await tenant.rows(
        "SELECT schemaname || '.' || tablename AS name FROM pg_tables"
        " WHERE schemaname IN ('public', 'state', 'resource') AND tablename NOT IN ('duties', 'repairs', 'workers')"
    )
    assert len(tables) > 15
    selects = (f"SELECT '{table['name']}' AS name, count(*) AS n FROM {table['name']}" for table in tables)  # noqa: S608
    return {row["name"]: row["n"] for row in await tenant.rows(" UNION ALL ".join(selects))}


@dataclass(frozen=True)
class Sent:
    """A message to the verb `enqueue` as it goes over the wire."""

    payload: bytes
    headers: dict[str, str] = field(default_factory=dict[str, str])
    project: str | None = None
    verb: str = "enqueue"

    def subject(self, tenant: Tenant, category: str) -> str:
        """Its subject, whatever may be in it."""
        return f"cg.v1r4.{self.project or tenant.project}.{CHANNEL}.{category}.sys.bridge.{self.verb}"


def enqueue(*, told: dict[str, str] | None = None, project: str | None = None, **fields: Any) -> Sent:
    """An enqueue to alice, good but for what is given."""
    payload = {"agent_id": ALICE, "instruction": "hello", **fields}
    return Sent(json.dumps(payload).encode(), told or {}, project)


def raw(text: str) -> Sent:
    """An enqueue to alice with this JSON in its metadata."""
    return Sent(f'{{"agent_id": "alice", "instruction": "hello", "metadata": {{"x": {text}}}}}'.encode())


REFUSED: dict[str, tuple[str, Sent]] = {
    "unknown agent": ("unknown_agent", enqueue(agent_id="nobody")),
    "unknown project": ("unknown_project", enqueue(project="p-nowhere")),
    "unknown profile": ("unknown_profile", enqueue(profile_name="nosuch")),
    "unknown verb": ("bad_request", Sent(b"{}", verb="nosuch")),
    "unknown setting": ("bad_request", enqueue(runtime_config={"colour": "red"})),
    "setting out of range": ("bad_request", enqueue(runtime_config={"max_steps": 0})),
    "unknown field": ("bad_request", enqueue(urgent=True)),
    "wrong type": ("bad_request", enqueue(instruction=["hello"])),
    "nothing to do": ("bad_request", enqueue(instruction=None)),
    "inactive agent": ("agent_inactive", enqueue(agent_id=BOB)),
    "agent with a dot": ("bad_request", enqueue(agent_id="a.b")),
    "agent with a star": ("bad_request", enqueue(agent_id="*")),
    "agent with a blank": ("bad_request", enqueue(agent_id="a b")),
    "agent without letters": ("bad_request", enqueue(agent_id="")),
    "agent too long": ("bad_request", enqueue(agent_id="a" * 129)),
    "agent with a newline": ("bad_request", enqueue(agent_id="alice\n")),
    "project with a sign": ("bad_request", enqueue(project="p$1")),
    "text too long": ("text_too_large", enqueue(instruction="x" * (TEXT_LIMIT_BYTES + 1))),
    "text of too many bytes": ("text_too_large", enqueue(instruction="ä" * (TEXT_LIMIT_BYTES // 2 + 1))),
    "fields of too many bytes": (
        "text_too_large",
        enqueue(result_fields=[{"name": "a", "description": "x" * TEXT_LIMIT_BYTES}]),
    ),
    "no JSON": ("bad_request", Sent(b'{"agent_id": "alice", "instruction": "he')),
    "no text": ("bad_request", Sent(b"\xff\xfe\x00\x01")),
    "nothing": ("bad_request", Sent(b"")),
    "no object": ("bad_request", Sent(b'["alice"]')),
    "deep JSON": ("bad_request", raw(DEEP)),
    "not a number": ("bad_request", raw("NaN")),
    "an infinite number": ("bad_request", raw("1e999")),
    "a number of many digits": ("bad_request", raw("1" + "0" * 5_000)),
    "half a character": ("bad_request", raw('"\\ud800"')),
    "NUL in the text": ("bad_request", enqueue(instruction="a\0b")),
    "NUL in the metadata": ("bad_request", enqueue(metadata={"x": "a\0b"})),
    "NUL in the correlation": ("bad_request", enqueue(correlation_id="a\0b")),
    "NUL in a field": ("bad_request", enqueue(result_fields=[{"name": "a\0b"}])),
    "NUL in the profile": ("bad_request", enqueue(profile_name="a\0b")),
    "epoch in the payload": ("bad_request", enqueue(turn_epoch=7)),
    "turn in the payload": ("bad_request", enqueue(agent_turn_id=uuid7())),
    "depth in the payload": ("bad_request", enqueue(recursion_depth=1)),
    "trace in the payload": ("bad_request", enqueue(traceparent=headers.new_traceparent())),
    "box that is none": ("bad_request", enqueue(context_box_id="box")),
    "box without a name": ("bad_request", enqueue(context_box_id="")),
    "unknown context box": ("unknown_context_box", enqueue(context_box_id=new_box_id())),
    "unknown output box": ("unknown_output_box", enqueue(output_box_id=new_box_id())),
    "other agent in the header": ("bad_request", enqueue(told={headers.AGENT_ID: BOB})),
    "other project in the header": ("bad_request", enqueue(told={headers.PROJECT_ID: "p-other"})),
    "other channel in the header": ("bad_request", enqueue(told={headers.CHANNEL_ID: "u_other"})),
    "depth that is none": ("bad_request", enqueue(told={headers.DEPTH: "-1"})),
    "depth at the limit": ("recursion_depth_exceeded", enqueue(told={headers.DEPTH: "20"})),
    "parent that breaks subjects": ("bad_request", enqueue(told={headers.PARENT_AGENT_ID: "a.b"})),
}


async def by_request(tenant: Tenant, sent: Sent) -> JsonObject:
    """The reply to a request."""
    answer = await tenant.stack.conn.request(
        sent.subject(tenant, "req"), sent.payload, timeout=10, headers=dict(sent.headers)
    )
    return decode_object(answer.data)


async def by_command(tenant: Tenant, sent: Sent) -> JsonObject:
    """The ack of a durable command."""
    reader = tenant if sent.project is None else tenant.named(sent.project)
    seen = len(await reader.events(f"sys.bridge.{sent.verb}_ack"))
    await tenant.stack.conn.store(sent.subject(tenant, "cmd"), sent.payload, headers=dict(sent.headers))

    async def answered() -> JsonObject | None:
        acks = await reader.events(f"sys.bridge.{sent.verb}_ack")
        return acks[seen].payload if len(acks) > seen else None

    return await until(answered, 25, "the command is answered")


@pytest.mark.parametrize("case", REFUSED)
async def test_a_refused_request_writes_nothing(client: Tenant, case: str) -> None:
    code, sent = REFUSED[case]
    before = await counts(client)
    reply = await by_request(client, sent)
    assert (reply["status"], reply["error_code"]) == ("rejected", code), reply
    assert reply["error"]
    assert await counts(client) == before


@pytest.mark.parametrize("case", [case for case in REFUSED if case != "project with a sign"])
async def test_a_refused_command_writes_nothing(client: Tenant, case: str) -> None:
    code, sent = REFUSED[case]
    before = await counts(client)
    ack = await by_command(client, sent)
    assert (ack["status"], ack["error_code"]) == ("rejected", code), ack
    assert ack["error"]
    assert await counts(client) == before


async def test_an_error_does_not_quote_what_was_sent(client: Tenant) -> None:
    secret = "sk-secret-of-a-client"
    for sent in (enqueue(urgent=secret), enqueue(runtime_config={"model": [secret]}), raw(f'"{secret}" {secret}')):
        assert secret not in json.dumps(await by_request(client, sent))


async def test_a_message_too_large_for_nats_is_refused_before_it_is_sent(client: Tenant) -> None:
    with pytest.raises(BadRequest, match="at most"):
        await client.ask({"agent_id": ALICE, "instruction": "x" * client.stack.conn.size_limit})


async def test_a_repeated_correlation_answers_the_first_turn(client: Tenant) -> None:
    sent = enqueue(correlation_id="c-1", metadata={"a": 1})
    first = EnqueueReply.model_validate(await by_request(client, sent))
    await client.ended(turn_of(first))
    before = await counts(client)
    for way in (by_request, by_command):
        again = EnqueueReply.model_validate(await way(client, sent))
        assert (again.duplicate, first.duplicate) == (True, False)
        same = {"agent_turn_id", "inbox_id", "context_box_id", "output_box_id", "trace_id", "turn_epoch"}
        assert again.model_dump(include=same) == first.model_dump(include=same)
    assert await counts(client) == before


async def test_a_correlation_with_other_content_is_a_conflict(client: Tenant) -> None:
    first = EnqueueReply.model_validate(await by_request(client, enqueue(correlation_id="c-2")))
    await client.ended(turn_of(first))
    before = await counts(client)
    for way in (by_request, by_command):
        for changed in (
            enqueue(correlation_id="c-2", instruction="other"),
            enqueue(correlation_id="c-2", runtime_config={"max_steps": 1}),
        ):
            assert (await way(client, changed))["error_code"] == "correlation_conflict"
    assert await counts(client) == before


async def test_the_bridge_serves_on_after_all_of_it(client: Tenant) -> None:
    for _, sent in REFUSED.values():
        await by_request(client, sent)
    ended = await client.turn(ALICE)
    assert ended.deliverable() == "It is done."


async def test_doorbells_that_cannot_be_read_are_dropped(client: Tenant, caplog: pytest.LogCaptureFixture) -> None:
    conn, [target] = client.stack.conn, client.stack.settings.worker.worker_targets
    subject = subjects.wakeup(client.project, CHANNEL, target)
    bells: list[tuple[bytes, dict[str, str]]] = [
        (b"", {}),
        (b"\xff", {}),
        (b'{"agent_id": 7}', {}),
        (b'{"agent_id": "a.b"}', {}),
        (b'{"agent_id": "alice"}', {headers.AGENT_ID: "bob"}),
        (DEEP.encode(), {}),
    ]
    before = await counts(client)
    with caplog.at_level(logging.WARNING, "turnstile.bridge.inbox.doorbells"):
        for payload, told in bells:
            await conn.store(subject, payload, headers=told)
        await conn.store(subject, b'{"agent_id": "stranger"}')  # one that can be read, and rings for nobody
        await until(lambda: drained(client.stack, target), 25, "all doorbells are settled")
    unread = [record for record in caplog.records if record.name == "turnstile.bridge.inbox.doorbells"]
    assert len(unread) == len(bells)
    assert await counts(client) == before
    assert (await client.turn(ALICE)).deliverable() == "It is done."


async def drained(stack: Stack, target: str) -> bool:
    """Whether the consumer of a worker target has nothing left."""
    info = await stack.conn.js.consumer_info(subjects.CMD_STREAM, wakeup_consumer(target))
    return info.num_pending == 0 and info.num_ack_pending == 0


async def insert(tenant: Tenant, **columns: object) -> str:
    """An inbox row as a stranger writes it; returns its id."""
    row: dict[str, object] = {
        "inbox_id": uuid7(),
        "project_id": tenant.project,
        "agent_id": ALICE,
        "message_type": "turn",
        "correlation_id": uuid7(),
        **columns,
    }
    places = ", ".join(f"${number}" for number in range(1, len(row) + 1))
    await tenant.rows(f"INSERT INTO state.agent_inbox ({', '.join(row)}) VALUES ({places})", *row.values())  # noqa: S608
    return str(row["inbox_id"])


async def settled(tenant: Tenant, inbox_id: str) -> dict[str, Any]:
    """The row once it is final."""

    async def final() -> dict[str, Any] | None:
        [row] = await tenant.rows("SELECT * FROM state.agent_inbox WHERE inbox_id = $1", inbox_id)
        return row if row["archived_at"] is not None else None

    return await until(final, 25, "the row is settled")


@pytest.mark.parametrize(
    "columns",
    [
        {},
        {"agent_turn_id": "t-1"},
        {"turn_epoch": 1},
        {"agent_turn_id": "t-1", "turn_epoch": -1},
        {"message_type": "banana", "agent_turn_id": "t-1", "turn_epoch": 1},
    ],
    ids=["neither turn nor epoch", "no epoch", "no turn", "epoch below one", "unknown type"],
)
async def test_an_illegal_row_becomes_an_error(
    client: Tenant, columns: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    inbox_id = await insert(client, **columns)
    before = await counts(client)
    row = await settled(client, inbox_id)
    assert (row["status"], row["last_error"]) == ("error", "protocol_violation")
    progress = await until(lambda: told(client, inbox_id), 25, "it is told")
    assert (progress["status"], progress["reason"]) == ("error", "protocol_violation")
    told_of = "SELECT error_code, error FROM state.rejections WHERE ids ->> 'inbox_id' = $1"
    [refused] = await client.rows(told_of, inbox_id)
    assert f"inbox row {inbox_id} by " in caplog.text, "operators are warned"
    assert (refused["error_code"], refused["error"].startswith("it")) == ("protocol_violation", True)
    assert (await counts(client)) | {"state.rejections": 0} == before | {"state.rejections": 0}
    assert (await client.turn(ALICE)).deliverable() == "It is done."


async def told(tenant: Tenant, inbox_id: str) -> JsonObject | None:
    """The `inbox_progress` event of a row."""
    found = [event.payload for event in await tenant.events("agent.*.inbox_progress")]
    return next((payload for payload in found if payload["inbox_id"] == inbox_id), None)


async def test_a_row_of_an_old_turn_is_skipped(client: Tenant) -> None:
    ended = await client.turn(ALICE)
    old = ended.view.agent_turn_id
    row = await settled(client, await insert(client, agent_turn_id=old, turn_epoch=ended.view.turn_epoch))
    assert (row["status"], row["last_error"]) == ("skipped", "stale_turn")
    assert await client.task_events() == {old: 1}


async def test_an_illegal_row_that_names_a_turn_in_hand_ends_it(client: Tenant, tmp_path: Path) -> None:
    carol = await client.agent("gated", AgentId("carol"))
    turn = turn_of(await client.enqueue(carol, str(tmp_path)))

    async def asked() -> bool:
        return tmp_path.joinpath("asked-1-1").exists()

    await until(asked, 25, "the turn runs")
    await insert(client, agent_id=carol, agent_turn_id=turn, turn_epoch=0)
    ended = await client.ended(turn)
    assert (ended.view.status, ended.view.error_code) == ("failed", "protocol_violation")
    tmp_path.joinpath("1").touch()
    handle = client.stack.temporal.get_workflow_handle(f"turn-{turn}")
    result = await asyncio.wait_for(handle.result(), 25)
    assert result["outcome"] is None  # the step that woke late has found its gate gone
    assert await client.task_events() == {turn: 1}
    assert [card.type for card in ended.cards] == ["task.deliverable"]
