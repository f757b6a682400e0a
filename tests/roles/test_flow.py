"""Everything that Turnstile does, with each process under its own user of NATS and its own role in PostgreSQL.

Whatever a server refused anybody meanwhile fails the test.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

import nats
import pytest
import yaml

from tests.roles.conftest import BRIDGE, WORKER
from tests.roles.servers import ROOT, GuardedNats, login_url
from tests.support.conditions import until
from tests.support.databases import Databases
from tests.support.ledger.invariants import assert_invariants
from tests.support.processes.net import net_of, terminate
from tests.support.processes.stack import QUICK, Config, Stack, open_stack, running_here
from tests.support.pump.pump import ORGANISM
from tests.support.tenants import CHANNEL, Tenant, turn_of
from tests.support.tools import calling, definition
from tests.turnstile.support import turnstile
from turnstile.embedded import Endpoints
from turnstile.ledger.pool import Pool
from turnstile.ledger.roster import list_tools, put_tool
from turnstile.processes.run import run_bridge, run_worker
from turnstile.schema import verbs
from turnstile.schema.base import JsonObject
from turnstile.schema.errors import Refused
from turnstile.schema.ids import AgentId, AgentTurnId, ProjectId, uuid7
from turnstile.schema.ledger_reads import ReadRequest, ThreadsRead, TurnsRead
from turnstile.schema.tools import ToolDefinition
from turnstile.schema.wire.roster_requests import ListRequest
from turnstile.sdk.client import BridgeClient
from turnstile.transport.connection import connect

DEMO = ProjectId("demo")
EXAMPLE = ROOT / "examples" / "tools" / "word_count"
COUNT = calling(("word_count", {"text": "one two three"}))
SEARCH = calling("search")
CONFIG: Config = {
    **QUICK,
    "bridge": {**QUICK["bridge"], "ui_actions": True},
    "database": {"bridge_role": BRIDGE, "worker_role": WORKER},
    "pump": {"listeners": [ORGANISM]},
    "tools": {"suspend_timeout_seconds": 1.0},
}


@dataclass(frozen=True)
class Cast:
    """The stack as each role sees it."""

    owner: Stack
    bridge: Stack
    client: Tenant
    operator: BridgeClient


@pytest.fixture(scope="module")
def places(servers: Endpoints, guarded: GuardedNats, logins: str) -> dict[str, Endpoints]:
    """Where each role logs in."""
    who = {"admin": "migrate", "bridge": "bridge", "worker": "worker", "client": "migrate", "operator": "migrate"}
    return {
        user: servers.model_copy(update={"nats_url": guarded.url_of(user), "database_url": login_url(logins, role)})
        for user, role in who.items()
    }


@pytest.fixture(scope="module")
async def cast(
    places: dict[str, Endpoints], granted: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Cast]:
    """Migrated and declared by their admins; bridge and worker run under their roles."""
    config = {**CONFIG, "pump": {**CONFIG["pump"], "worker_target": f"pump-{uuid7()}"}}
    async with open_stack(places["admin"], tmp_path_factory.mktemp("roles"), config) as owner:
        pool = Pool(places["bridge"].database_url, size=4, name="test-bridge")
        conns = {user: await connect(places[user].nats_url, name="test") for user in ("bridge", "client", "operator")}
        bridge = replace(owner, endpoints=places["bridge"], pool=pool, conn=conns["bridge"])
        worker = replace(owner, endpoints=places["worker"])
        client = replace(owner, conn=conns["client"])
        async with running_here(bridge, run_bridge), running_here(worker, run_worker):
            yield Cast(
                owner,
                bridge,
                Tenant(client, DEMO, BridgeClient(client.conn, DEMO, CHANNEL)),
                BridgeClient(conns["operator"], DEMO, CHANNEL),
            )
        for conn in conns.values():
            await conn.close()
        await pool.close()


@pytest.fixture(scope="module")
async def word_count(cast: Cast, guarded: GuardedNats) -> AsyncIterator[None]:
    """The example's process, its consumer made by the admin; it waits for commands."""
    run = [sys.executable, str(EXAMPLE.with_suffix(".py")), "--project", DEMO]
    admin = guarded.url_of("admin")
    declared = await asyncio.create_subprocess_exec(*run, "--declare", env={**os.environ, "NATS_URL": admin})
    assert await declared.wait() == 0
    environment = {**os.environ, "NATS_URL": guarded.url_of("tool")}
    process = await asyncio.create_subprocess_exec(*run, env=environment, stderr=asyncio.subprocess.PIPE)

    async def pulls() -> bool:
        consumer = await cast.owner.conn.js.consumer_info("cg_cmd_v1r4", f"turnstile_tool_text_count@{DEMO}")
        return bool(consumer.num_waiting)

    await until(pulls, 60, "the tool's process waits for commands")
    yield
    process.send_signal(signal.SIGTERM)
    _, told = await asyncio.wait_for(process.communicate(), 25)
    assert process.returncode == 0
    assert "violation" not in told.decode().lower()


@pytest.fixture(autouse=True)
async def nothing_was_refused(cast: Cast, caplog: pytest.LogCaptureFixture) -> AsyncIterator[None]:
    """No server refused anybody anything, and protocol §2 holds."""
    yield
    told = caplog.text.lower()
    assert "violation" not in told
    assert "permission denied" not in told
    assert "insufficientprivilege" not in told
    async with cast.owner.pool.connection() as conn:
        await assert_invariants(conn)


async def agent_of(cast: Cast, name: str) -> AgentId:
    """An agent that may use both tools: `search` is nobody's."""
    count = ToolDefinition.model_validate(yaml.safe_load(EXAMPLE.with_suffix(".yaml").read_text(encoding="utf-8")))
    for each in (count, definition("search"), definition("slow", options={"suspend_timeout_seconds": 600})):
        await put_tool(cast.owner.pool, DEMO, each)
    return await cast.client.agent("player", AgentId(name), allowed_tools=["word_count", "search", "slow"])


def script(*steps: JsonObject) -> str:
    """An instruction for `player`."""
    return json.dumps({"steps": steps})


async def asleep(cast: Cast, turn: AgentTurnId) -> None:
    """Returns when the turn sleeps."""

    async def suspended() -> bool:
        return (
            await cast.client.count(
                "state.agent_state_head", f"status = 'suspended' AND active_agent_turn_id = '{turn}'"
            )
            == 1
        )

    await until(suspended, 25, "the turn sleeps")


async def test_a_turn_with_a_tool(cast: Cast, word_count: None) -> None:
    agent = await agent_of(cast, "counter")
    heard: list[str] = []
    async with cast.client.client.watching(agent, include_chunks=True) as events:
        turn = turn_of(await cast.client.enqueue(agent, script(COUNT, {"text": "three words"})))
        async for event in events:
            heard.append(event.suffix)
            if event.suffix == "task":
                break
    assert {"state", "step", "chunk", "task"} <= set(heard)
    ended = await cast.client.ended(turn)
    assert ended.deliverable() == "three words"
    assert [status for status, *_ in ended.results()] == ["success"]
    described = await cast.client.client.request("describe", {"agent_turn_id": turn})
    assert described["status"] == "accepted"


async def test_where_acknowledgements_are_sent_moves_nothing(
    cast: Cast, word_count: None, guarded: GuardedNats
) -> None:
    """A client names where JetStream acknowledges its command: any subject, also one that it may not publish to.

    What arrives there is `{"stream": …, "seq": …}`. It is no request, no event, no command and no vote on a stream.
    """
    agent = await agent_of(cast, "unmoved")
    admin = await connect(guarded.url_of("admin"), name="test")
    client = await nats.connect(guarded.url_of("client"))  # pyright: ignore[reportUnknownMemberType] -- its options are untyped
    jetstream, subject = admin.js, f"cg.v1r4.{DEMO}.{CHANNEL}."
    streams = ("cg_cmd_v1r4", "cg_ask_v1r4", "cg_evt_v1r4")
    before = {name: (await jetstream.stream_info(name)).state for name in streams}
    consumers = {each.name for name in streams for each in await jetstream.consumers_info(name)}
    aimed = [f"$JS.API.STREAM.{verb}.{name}" for verb in ("PURGE", "DELETE", "MSG.DELETE") for name in streams]
    aimed += ["$JS.API.CONSUMER.DELETE.cg_ask_v1r4.turnstile_bridge_verbs", "$SYS.REQ.SERVER.PING"]
    aimed += [f"{subject}evt.agent.{agent}.{event}" for event in ("task", "state", "step")]
    aimed += [f"{subject}cmd.tool.text.count", f"{subject}cmd.sys.bridge.stop", f"{subject}cmd.agent.t.wakeup"]
    aimed += [f"{subject}req.sys.bridge.agent.put", f"{subject}cmd.sys.ui.action", f"cg.v1r4.other.{CHANNEL}.evt.x"]
    async with cast.client.client.watching(agent) as events:
        for reply in aimed:
            await client.publish(f"{subject}cmd.sys.bridge.stop", b"{}", reply=reply)
        await client.flush()
        ended = await cast.client.turn(agent, script(COUNT, {"text": "still here"}))
        assert ended.deliverable() == "still here"
        assert [status for status, *_ in ended.results()] == ["success"]
        async for event in events:
            assert "seq" not in event.payload
            if event.suffix == "task":
                break
    for name in streams:
        state = (await jetstream.stream_info(name)).state
        assert (state.first_seq, state.messages) >= (before[name].first_seq, before[name].messages)
    assert consumers <= {each.name for name in streams for each in await jetstream.consumers_info(name)}
    await client.close()
    await admin.close()


async def test_a_durable_command(cast: Cast) -> None:
    agent = await agent_of(cast, "commanded")
    async with cast.client.client.watching() as events:
        await cast.client.client.command("enqueue", {"agent_id": agent, "instruction": script({"text": "hi"})}, uuid7())
        ack = await anext(event async for event in events if event.suffix == "enqueue_ack")
    assert ack.payload["status"] == "accepted"
    await cast.client.ended(AgentTurnId(str(ack.payload["agent_turn_id"])))


async def test_a_ui_action(cast: Cast, word_count: None) -> None:
    """A button that calls the example's tool, through the bridges' consumer `turnstile_ui_actions`."""
    agent = await agent_of(cast, "pressed")
    [count] = [tool for tool in await list_tools(cast.owner.pool, DEMO) if tool.tool_name == "word_count"]
    fields = count.model_dump(exclude_none=True)
    button = ToolDefinition.model_validate({**fields, "options": {**fields["options"], "ui_allowed": True}})
    await put_tool(cast.owner.pool, DEMO, button)
    async with cast.client.client.ui_action(agent, "word_count", {"text": "one two three"}) as waiter:
        last = await waiter.last(20)
    card = await cast.client.client.request("describe", {"card_id": str(last.tool_result_card_id)})
    assert (last.status.value, card["status"]) == ("done", "accepted"), card


async def test_boxes(cast: Cast) -> None:
    """What a turn wrote becomes the memory that the next one reads, over both ways."""
    agent = await agent_of(cast, "remembers")
    written = (await cast.client.turn(agent, script({"text": "hi"}))).view.output_box_id
    forked = await cast.client.client.request("box_fork", {"box_id": written})
    made = await cast.client.client.request("box_make", {"parts": [{"box_id": forked["box_id"]}, {"text": "more"}]})
    assert (made["status"], made["cards"]) == ("accepted", 5)
    memory: JsonObject = {"agent_id": agent, "memory_context_box_id": forked["box_id"]}
    async with cast.client.client.watching() as events:
        await cast.client.client.command("box_replace", memory, uuid7())
        ack = await anext(event async for event in events if event.suffix == "box_replace_ack")
    assert (ack.payload["status"], ack.payload["last_output_box_id"]) == ("accepted", written)
    turn = turn_of(await cast.client.enqueue(agent, None))
    assert (await cast.client.ended(turn)).view.context_box_id == forked["box_id"]


async def test_a_stop_and_a_timeout(cast: Cast) -> None:
    agent = await agent_of(cast, "stopped")
    turn = turn_of(await cast.client.enqueue(agent, script(calling("slow"))))
    await asleep(cast, turn)
    await cast.client.client.request("stop", {"agent_turn_id": turn})
    assert (await cast.client.ended(turn)).view.status == "canceled"
    late = await cast.client.turn(agent, script(SEARCH, {"text": "nobody answered"}))
    assert [(status, code) for status, code, _ in late.results()] == [("timeout", "tool_timeout")]


async def test_a_conversation(cast: Cast) -> None:
    """The answer comes as a copy to the client's inbox; the operator sees the chain."""
    answer = await cast.client.client.send("shouter", {"text": "hi"})
    assert answer.payload == "<shouted><text>HI</text></shouted>"
    await cast.client.client.command("send", {"to": "shouter", "payload": {"text": "again"}}, uuid7())
    shown = await cast.operator.request("thread.describe", {"thread_id": str(answer.thread_id)})
    listed = await cast.operator.request("listener.list", {})
    read = await cast.operator.call(verbs.LEDGER_READ, ReadRequest(threads=ThreadsRead()))
    assert (shown["status"], listed["status"]) == ("accepted", "accepted")
    assert answer.thread_id in [line.thread_id for line in read.threads]


async def test_a_client_that_asks_an_operators_verb_is_refused_at_once(cast: Cast) -> None:
    async with asyncio.timeout(5):
        for verb, request in ((verbs.LEDGER_READ, ReadRequest(turns=TurnsRead())), (verbs.AGENT_LIST, ListRequest())):
            with pytest.raises(Refused, match="does not let this user publish") as refused:
                await cast.client.client.call(verb, request)
            assert refused.value.code == "forbidden"


async def test_an_operator_changes_the_roster(cast: Cast) -> None:
    agent = await agent_of(cast, "paused")
    profile = f"{agent}-profile"
    tool = definition("spare").model_dump(mode="json")
    listed = [await cast.operator.request(f"{each}.list", {}) for each in ("agent", "profile", "tool")]
    assert [each["status"] for each in listed] == ["accepted"] * 3
    done = [
        await cast.operator.request("agent.put", {"agent_id": agent, "profile_name": profile, "tags": ["a"]}),
        await cast.operator.request("agent.put", {"agent_id": "spare", "profile_name": profile}),
        await cast.operator.request("tool.put", {"tool": tool}),
        await cast.operator.request("tool.remove", {"tool_name": "spare"}),
    ]
    for _ in range(2):
        spare: JsonObject = {"name": "spare", "llm_config": {"model": "scripted/echo"}}
        done.append(await cast.operator.request("profile.put", {"profile": spare}))
    assert [each.get("error") for each in done] == [None] * 6
    for verb, status in (("agent.pause", "paused"), ("agent.retire", "retired"), ("agent.pause", "paused")):
        assert (await cast.operator.request(verb, {"agent_id": agent}))["agent_status"] == status
    turn = turn_of(await cast.client.enqueue(agent, script({"text": "hi"})))
    assert (await cast.operator.request("agent.resume", {"agent_id": agent}))["status"] == "accepted"
    assert (await cast.client.ended(turn)).view.status == "success"


async def test_the_safety_net(cast: Cast) -> None:
    """Every rule under the bridge's role, with something to find for those that mend most."""
    agent = await agent_of(cast, "lost")
    turn = turn_of(await cast.client.enqueue(agent, script(calling("slow"), {"text": "done"})))
    await asleep(cast, turn)
    await terminate(cast.owner, turn)
    swept = await net_of(cast.bridge).watchdog().once(dry_run=False)
    assert [each for each in swept if each.failed] == []
    assert {"engine", "stop", "thread_engine"} <= {each.rule for each in swept}
    await cast.client.client.request("stop", {"agent_turn_id": turn})
    assert (await cast.client.ended(turn)).view.status == "canceled"


async def test_commands_of_one_who_looks(cast: Cast, places: dict[str, Endpoints], databases: Databases) -> None:
    """The program as a client whose role in PostgreSQL only reads: `pg_read_all_data`."""
    agent = await agent_of(cast, "asked")
    await databases.execute("CREATE ROLE looker LOGIN PASSWORD 'looks' IN ROLE pg_read_all_data")
    await databases.execute("GRANT CONNECT ON DATABASE turnstile TO looker")
    address = places["client"].database_url.rpartition("@")[2]
    seen = {
        "TURNSTILE__DATABASE__URL": f"postgresql://looker:looks@{address}",
        "TURNSTILE__NATS__SERVERS": places["client"].nats_url,
    }
    config = ("--config", cast.owner.config)
    try:
        ran = await turnstile(
            "enqueue", agent, script({"text": "hello"}), "--wait", *config, cwd=cast.owner.directory, **seen
        )
        assert (ran.code, "hello" in ran.out) == (0, True), ran.err
        asked = [("audit",), ("top", "--once")]
        done = await asyncio.gather(*(turnstile(*words, *config, cwd=cast.owner.directory, **seen) for words in asked))
        assert [(each.code, each.err) for each in done] == [(0, "")] * len(asked)
        checked = await turnstile("doctor", "--json", *config, cwd=cast.owner.directory, **seen)
        [nats] = [each for each in checked.json() if each["name"] == "NATS"]
        assert (nats["status"], "may not ask about JetStream" in nats["says"]) == ("ok", True)
    finally:
        await databases.execute("REVOKE ALL ON DATABASE turnstile FROM looker")
        await databases.execute("DROP ROLE looker")
