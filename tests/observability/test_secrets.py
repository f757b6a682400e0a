"""Where keys and content must not be, however a run goes: one run with all that goes wrong, then all is searched.

`MAY` is the whole truth of what may be where: a place not named there holds no marker at all. Content belongs into
cards, and to whom it is for: the requester of a message, the listener of a stream. A key belongs nowhere.
"""

import asyncio
import base64
import io
import json
import logging
import os
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, cast
from urllib.parse import urlsplit

import pytest
from nats.aio.msg import Msg
from nats.js.errors import NotFoundError
from pydantic import SecretStr

from lab.support.collector import Collector
from tests.activities.models.openai_stub import OpenAIStub
from tests.activities.models.provider_stub import API_KEY, Fault, Said
from tests.observability.test_metrics import scrape
from tests.support.conditions import until
from tests.support.databases import Databases
from tests.support.ledger.actions import allowed, raw
from tests.support.paths import ROOT
from tests.support.processes.hatchery import Hatchery, shared_hatchery
from tests.support.processes.process import Processes, processes_of
from tests.support.processes.stack import QUICK, Stack, open_stack
from tests.support.pump.organism import Order
from tests.support.pump.payloads import payloads_in
from tests.support.pump.pump import Caller, calling_in, pump_config
from tests.support.tenants import CHANNEL, Tenant, turn_of
from tests.support.tools import Command, calling, definition, hand_of
from turnstile.embedded import EmbeddedServers, Endpoints, ServerName
from turnstile.embedded.files import write_private
from turnstile.embedded.ports import free_port
from turnstile.schema.access import Caller as Principal
from turnstile.schema.base import JsonObject
from turnstile.schema.ids import AgentId, AgentTurnId
from turnstile.schema.wire import headers, subjects
from turnstile.sdk.tools.service import ToolService
from turnstile.transport.streams import STREAMS
from turnstile.workflows.options import turn_workflow_id

CONTENT = {
    "system prompt": "prompt-marker-5501",
    "instruction": "instruction-marker-5502",
    "tool argument": "argument-marker-5503",
    "tool result": "result-marker-5504",
    "model's answer": "answer-marker-5505",
    "words of an exception": "exception-marker-5506",
    "message of a listener": "message-marker-5507",
    "instruction of a schedule": "schedule-marker-5508",
}
ALL: tuple[ServerName, ...] = ("postgres", "nats", "temporal")
KEYS = {
    "model key in the environment": API_KEY,
    "model key in a file": "sk-marker-file-6601",
    "tool's env value": "env-marker-6602",
    "NATS password": "nats-marker-6603",
    "codec key": base64.b64encode(b"codec-marker-6604-is-32-bytes-ok").decode(),
    "PostgreSQL password": "",  # the server's own, known once it runs
}
MAY = {
    "cards": {
        "system prompt",
        "instruction",
        "tool argument",
        "tool result",
        "model's answer",
        "message of a listener",
        "instruction of a schedule",
        "words of an exception",  # what a provider said of a request that it refused
    },
    "profiles": {"system prompt"},
    "schedules": {"instruction of a schedule"},
    "streamed text": {"system prompt", "instruction", "tool argument", "tool result", "model's answer"},
    "commands of clients": {"instruction", "tool argument"},
    "answers of listeners": {"message of a listener"},
    "logs of the tool": {"tool argument", "tool result"},  # whose own process it is
}
PLACES = (
    *MAY,
    *("every other table", "histories", "other events and commands", "replies", "spans", "figures"),
    *("logs of the worker", "logs of the bridge", "what the program prints"),
)
LOOKS = (
    *("doctor --json", "turn list", "inbox list --json", "agent list", "thread list --verbose"),
    *("usage", "audit --engine --json", "watchdog --verbose", "enqueue nobody hello", "migrate --json"),
)
"""Commands that show where things stand, and no cards."""


@dataclass
class Gathered:
    """What was found in each place, as text."""

    places: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    password: str = ""

    def add(self, place: str, *texts: object) -> None:
        """Keep what was found there."""
        assert place in PLACES, place
        self.places.setdefault(place, []).extend(map(str, texts))

    def holds(self, place: str) -> set[str]:
        """The names of the markers that are there."""
        return {name for name in (*CONTENT, *KEYS) if self.shown(place, name)}

    def shown(self, place: str, marker: str) -> list[str]:
        """Where a marker is, with some words around it."""
        word = {**CONTENT, **KEYS, "PostgreSQL password": self.password}[marker]
        texts = (text for text in self.places[place] if word in text)
        return [text[max(0, text.index(word) - 300) : text.index(word) + 100] for text in texts]


@pytest.fixture(scope="module", params=["no-outage", pytest.param("outages", marks=pytest.mark.long)])
async def own_servers(
    request: pytest.FixtureRequest,
    servers: Endpoints,
    databases: Databases,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[EmbeddedServers]:
    """Servers that this run may kill; without outages only NATS is its own, and the database."""
    data = tmp_path_factory.mktemp("own") / ".turnstile"
    data.mkdir(mode=0o700)
    write_private(data / "nats.token", KEYS["NATS password"])
    if request.param == "outages":
        async with EmbeddedServers(data) as running:
            yield running
        return
    name = await databases.create()
    async with EmbeddedServers(
        data,
        database_url=databases.url(name),
        temporal_address=servers.temporal_address,
        temporal_namespace=servers.temporal_namespace,
    ) as running:
        yield running
    await databases.drop(name)


@pytest.fixture(scope="module")
async def stub() -> AsyncIterator[OpenAIStub]:
    """A provider that quotes what it was sent, the key too."""
    async with OpenAIStub(Said(text=(CONTENT["model's answer"],))) as running:
        yield running


@pytest.fixture(scope="module")
async def stack(
    own_servers: EmbeddedServers, stub: OpenAIStub, collector: Collector, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Stack]:
    """A stack that has all keys and tells all it can tell."""
    directory = tmp_path_factory.mktemp("secrets")
    key = directory / "key"
    key.write_text(KEYS["model key in a file"])
    assert KEYS["NATS password"] in own_servers.endpoints.nats_url
    config = pump_config(
        {
            **QUICK,
            "bridge": {**QUICK["bridge"], "ui_actions": True},
            "model": {
                **QUICK["model"],
                "api_key_files.'openai/gpt-4o-mini'": str(key),
                "api_bases.openai": stub.api_base,
            },
            "temporal": {"codec": "aes-gcm", "codec_keys": [f"k1:{KEYS['codec key']}"]},
            "tools": {"suspend_timeout_seconds": 1.0},
            "observability": {"log_level": "debug", "otlp_endpoint": collector.url},
        }
    )
    async with open_stack(own_servers.endpoints, directory, config) as opened:
        yield opened


@pytest.fixture(scope="module")
async def hatching() -> Hatchery:
    """Where the lives of processes begin at once."""
    return await shared_hatchery.get()


@pytest.fixture(scope="module")
async def processes(stack: Stack, hatching: Hatchery) -> AsyncIterator[Processes]:
    """Worker and bridge: one logs as text and one as JSON, until they are started anew."""
    async with processes_of(stack.config, hatching) as both:
        for process, form in ((both.worker, "text"), (both.bridge, "json")):
            process.env = {
                "TURNSTILE__OBSERVABILITY__LOG_FORMAT": form,
                "TURNSTILE__OBSERVABILITY__METRICS_PORT": str(free_port()),
                "OPENAI_API_KEY": API_KEY,
                "PYTHONPATH": str(ROOT),
                "PYTHONUNBUFFERED": "1",
            }
        await both.ensure()
        yield both


@dataclass
class Run:
    """A run in which everything goes wrong that can, in one project."""

    tenant: Tenant
    caller: Caller
    stub: OpenAIStub
    found: Gathered
    processes: Processes
    servers: EmbeddedServers
    hatchery: Hatchery

    async def ask(self, verb: str, payload: dict[str, Any], **told: str) -> None:
        """A request, whatever comes of it."""
        self.found.add("replies", await self.tenant.client.request(verb, payload, headers=told or None))

    async def requests(self) -> None:
        """Turns of real models, then what no verb takes."""
        await self.models()
        await self.bad_input()

    async def models(self) -> None:
        """Two that answer in the end, one that has the wrong key, one that has a bug."""
        answer, prompt = CONTENT["model's answer"], CONTENT["system prompt"]
        quoting = f"{API_KEY} {CONTENT['instruction']} {CONTENT['words of an exception']}"
        self.stub.replies = [
            Fault(429, quoting, headers={"retry-after": "0.01"}),
            Said(text=(answer,)),
            Fault(401, quoting),
            Said(text=(answer,)),
        ]
        for name, model in (("bob", "openai/gpt-4o"), ("carol", "openai/gpt-4o"), ("dan", "openai/gpt-4o-mini")):
            agent = await self.tenant.agent("x", AgentId(name), llm={"model": model}, system_prompt_template=prompt)
            turn = turn_of(await self.tenant.enqueue(agent, CONTENT["instruction"]))
            assert (await self.tenant.ended(turn, timeout=90)).view.status == ("success" if name == "bob" else "failed")
        agent = await self.tenant.agent("buggy", AgentId("eve"), system_prompt_template=prompt)
        await self.tenant.turn(agent, CONTENT["instruction"])
        self.stub.replies[:] = [Said(text=(answer,))]

    async def tools(self, service: ToolService) -> None:
        """Calls that are answered, fail, time out and are stopped in their sleep; an env value is an argument."""
        argument, result = CONTENT["tool argument"], CONTENT["tool result"]
        async with hand_of(self.tenant, *service.definitions(), definition("slow"), agent=AgentId("fay")) as hand:
            for city in (argument, f"fail {argument}"):
                ended = await hand.ended(await hand.start(calling(("keyed", {"city": city}))))
                assert ended.view.status == "success"
            late = await hand.suspended(calling(("slow", {"q": argument})))
            await hand.ended(late)
            call = hand.commands[-1].call
            for report in ({"tool_call_id": call, "result": result}, {"tool_call_id": "none", "result": result}):
                self.found.add("replies", await hand.send({"status": "success", **report}))
            asleep = await hand.suspended(calling(("slow", {"q": argument})))
            await self.ask("stop", {"agent_turn_id": asleep})
            assert (await hand.ended(asleep)).view.status == "canceled"

    async def actions(self) -> None:
        """A button that is pressed and answered, and ones that are refused."""
        args: JsonObject = {"q": CONTENT["tool argument"]}
        wrong: JsonObject = {"q": [CONTENT["tool argument"]]}
        async with hand_of(self.tenant, allowed("press"), agent=AgentId("gus")) as hand:
            async with self.tenant.client.ui_action(hand.agent, "press", args) as waiter:
                self.found.add("replies", await waiter.next())

                async def heard() -> Command | None:  # others call tools meanwhile
                    return next((c for c in hand.commands if c.headers[headers.AGENT_ID] == hand.agent), None)

                command = await until(heard, 25, "the action's call is out")
                await hand.report(command.call, CONTENT["tool result"])
                self.found.add("replies", await waiter.last(20))
            for tool, given in (("press", wrong), ("nosuch", args)):
                async with self.tenant.client.ui_action(hand.agent, tool, given) as waiter:
                    self.found.add("replies", await waiter.last(20))
        await raw(self.tenant, json.dumps({"args": args, "agent_id": [CONTENT["tool argument"]]}).encode())

    async def conversations(self) -> None:
        """Listeners that answer, crash, and are sent what they do not take."""
        text = CONTENT["message of a listener"]
        orders = [Order(do="say", what=text), Order(do="crash", what=text), Order(do="ask", what=f"nobody/say/{text}")]
        sent = [await self.caller.send("worker", order) for order in orders]
        sent += [await self.caller.send(to, f"<{text}/>") for to in ("worker", "nobody")]
        for each in sent:
            self.found.add("answers of listeners", (await self.caller.heard(each)).event)

    async def bad_input(self) -> None:
        """What no verb takes: the answers must not quote it."""
        text = CONTENT["instruction"]
        await self.ask("enqueue", {"agent_id": "bob", "instruction": [text]})
        await self.ask("enqueue", {"agent_id": "bob", "instruction": text, "runtime_config": {"model": {"x": text}}})
        await self.ask("enqueue", {"agent_id": "bob", "instruction": text, "context_box_id": "box"})
        await self.ask("report", {"tool_call_id": "none", "status": "success", "result": text})
        await self.ask("send", {"to": "worker", "payload": [text]})
        command = subjects.bridge_command(self.tenant.project, CHANNEL, "enqueue")
        for payload in (
            {"agent_id": "bob", "instruction": text},
            {"agent_id": "bob", "instruction": text, "colour": text},
        ):
            await self.tenant.stack.conn.store(command, json.dumps(payload).encode())
        await self.tenant.stack.conn.store(command, text.encode())
        await until(self._three_acks, 25, "three commands are answered")
        await self.ring_wrongly()

    async def ring_wrongly(self) -> None:
        """A doorbell that cannot be read, which the bridge logs."""
        [target] = self.tenant.stack.settings.worker.worker_targets
        wakeup = subjects.wakeup(self.tenant.project, CHANNEL, target)
        logged = len(self.processes.bridge.log.read_text())
        await self.tenant.stack.conn.store(wakeup, b'{"agent_id": ["a doorbell is no place for a list"]}')

        async def is_logged() -> bool:
            return "a doorbell cannot be read" in self.processes.bridge.log.read_text()[logged:]

        await until(is_logged, 25, "the bridge names the doorbell")

    async def _three_acks(self) -> bool:
        return len(await self.tenant.events("sys.bridge.enqueue_ack")) == 3

    async def schedules(self) -> None:
        """A schedule that is triggered, and ones that are refused."""
        agent, me = await self.tenant.agent("plain", AgentId("kim")), Principal("me")
        asked: JsonObject = {"agent_id": agent, "instruction": CONTENT["instruction of a schedule"]}
        for timing in ({"cron": "0 9 30 2 *"}, {"every_seconds": "often"}):
            refused = await self.tenant.client.request(
                "schedule.put", {"schedule_id": "x", **asked, **timing}, caller=me
            )
            self.found.add("replies", refused)
        for name in ("daily", "weekly", "yearly"):
            put = {"schedule_id": name, "cron": "0 9 * * *", **asked}
            assert (await self.tenant.client.request("schedule.put", put, caller=me))["status"] == "accepted"
        made = await self.tenant.client.request("schedule.trigger", {"schedule_id": "daily"}, caller=me)
        assert (await self.tenant.ended(AgentTurnId(str(made["agent_turn_id"])))).view.status == "success"

    async def crashes(self) -> None:
        """A worker that is killed with a turn in hand; afterwards each process logs in the other form."""
        agent = await self.tenant.agent("slow", AgentId("hal"))
        turn = turn_of(await self.tenant.enqueue(agent, CONTENT["instruction"]))
        await self.processes.worker.kill()
        assert await self.processes.bridge.stop() == 0
        for process, form in ((self.processes.worker, "json"), (self.processes.bridge, "text")):
            process.env["TURNSTILE__OBSERVABILITY__LOG_FORMAT"] = form
        await self.processes.ensure()
        assert (await self.tenant.ended(turn, 40)).view.status == "success"
        await self.ring_wrongly()

    async def outages(self) -> None:
        """All servers away for a moment, while a turn runs and somebody looks."""
        agent = await self.tenant.agent("slow", AgentId("ivy"))
        turn = turn_of(await self.tenant.enqueue(agent, CONTENT["instruction"]))
        for name in ALL:
            await self.servers.kill(name)
        await self.looks("doctor --verbose", "agent list --verbose", "audit --engine --json", "enqueue bob hello")
        for name in ALL:
            await self.servers.restart(name)
        assert (await self.tenant.ended(turn, 60)).view.status == "success"

    async def looks(self, *commands: str) -> None:
        """What these commands print."""
        stack = self.tenant.stack
        log = stack.directory / "printed.log"
        known = {
            **os.environ,
            "OPENAI_API_KEY": API_KEY,
            "TURNSTILE__DATABASE__PATIENCE_SECONDS": "1",
            "TURNSTILE__NATS__PATIENCE_SECONDS": "1",
        }
        lines = [[*command.split(), "--config", stack.config] for command in commands]
        running = [await self.hatchery.spawn(line, known, log) for line in lines]
        codes = await asyncio.wait_for(asyncio.gather(*(each.wait() for each in running)), 60)
        assert {*codes} <= {0, 1, 2, 3}, codes
        self.found.places["what the program prints"] = [log.read_text()]


@pytest.fixture(scope="module")
async def gathered(
    stack: Stack,
    processes: Processes,
    own_servers: EmbeddedServers,
    hatching: Hatchery,
    stub: OpenAIStub,
    collector: Collector,
) -> Gathered:
    """The run, and what it left in each place."""
    found, began = Gathered(password=str(urlsplit(stack.endpoints.database_url).password)), datetime.now(UTC)
    heard = io.StringIO()
    handler = logging.StreamHandler(heard)
    logging.getLogger("turnstile.sdk").addHandler(handler)
    logging.getLogger("turnstile.sdk").setLevel(logging.DEBUG)
    async with calling_in(stack) as caller, a_tool_of(caller.tenant) as service:
        run = Run(caller.tenant, caller, stub, found, processes, own_servers, hatching)

        async def on_chunk(msg: Msg) -> None:
            found.add("streamed text", msg.data.decode())

        async def on_command(msg: Msg) -> None:  # a bridge removes what it has answered
            found.add("commands of clients", f"{msg.subject} {msg.headers} {msg.data.decode()}")

        await stack.conn.subscribe(subjects.channel_filter(run.tenant.project, CHANNEL, "str"), on_chunk)
        await stack.conn.subscribe(f"cg.v1r4.{run.tenant.project}.{CHANNEL}.cmd.sys.>", on_command)
        await asyncio.gather(run.requests(), run.tools(service), run.actions(), run.conversations(), run.schedules())
        await run.crashes()
        if own_servers.embedded == ALL:
            await run.outages()
        await run.looks(*LOOKS)
    logging.getLogger("turnstile.sdk").removeHandler(handler)
    logging.getLogger("turnstile.sdk").setLevel(logging.NOTSET)
    for process in (processes.worker, processes.bridge):
        found.add("figures", (await scrape(int(process.env["TURNSTILE__OBSERVABILITY__METRICS_PORT"])))[0])
        assert await process.stop() == 0
        found.add(f"logs of the {process.role}", process.log.read_text())
    found.add("logs of the tool", heard.getvalue())
    found.add("spans", *(body.decode("latin-1") for body in collector.bodies))
    await tables(stack, found)
    await messages(stack, found)
    await histories(stack, found, began)
    return found


async def tables(stack: Stack, found: Gathered) -> None:
    """Every row of every table, as text."""
    async with stack.pool.connection() as conn:
        named = await conn.fetch(
            "SELECT table_schema AS schema, table_name AS name FROM information_schema.tables"
            " WHERE table_type = 'BASE TABLE' AND table_schema NOT IN ('pg_catalog', 'information_schema')"
        )
        assert len(named) > 15
        for table in named:
            rows = await conn.fetch(f'SELECT t::text AS row FROM "{table["schema"]}"."{table["name"]}" t')  # noqa: S608
            place = table["name"] if table["name"] in MAY else "every other table"
            found.add(place, *(f"{table['name']} {row['row']}" for row in rows))


async def messages(stack: Stack, found: Gathered) -> None:
    """Every message that is left in the streams."""
    for stream in STREAMS:
        sequence = 1
        while True:
            try:
                message = await stack.conn.js.get_msg(stream, sequence, "cg.>", next=True)
            except NotFoundError:
                break
            subject = str(message.subject)
            place = "other events and commands"
            if ".cmd.sys." in subject:
                place = "commands of clients"
            elif subject.endswith(".evt.sys.pump.reply"):
                place = "answers of listeners"
            told = cast("dict[str, str]", message.headers or {})  # pyright: ignore[reportUnknownMemberType] -- nats-py: a bare Dict
            found.add(place, f"{subject} {told} {(message.data or b'').decode('utf-8', 'replace')}")
            sequence = int(message.seq or 0) + 1


async def histories(stack: Stack, found: Gathered, began: datetime) -> None:
    """Every history since then of a turn or thread of this ledger, its payloads as they are and decrypted."""
    async with stack.pool.connection() as conn:
        turns = await conn.fetch("SELECT DISTINCT agent_turn_id FROM state.agent_inbox WHERE agent_turn_id IS NOT NULL")
        threads = await conn.fetch("SELECT thread_id FROM state.threads")
    known = {turn_workflow_id(row["agent_turn_id"]) for row in turns} | {
        f"thread-{row['thread_id']}" for row in threads
    }
    codec = stack.temporal.data_converter.payload_codec
    assert codec is not None
    count = 0
    async for flow in stack.temporal.list_workflows(f"StartTime >= '{began.isoformat()}'"):
        if flow.id not in known:
            continue
        history = await stack.temporal.get_workflow_handle(flow.id, run_id=flow.run_id).fetch_history()
        for event in history.events:
            found.add("histories", event.SerializeToString().decode("latin-1"))
            found.add("histories", *(each.data.decode() for each in await codec.decode(list(payloads_in(event)))))
        count += 1
    assert count > 12


@asynccontextmanager
async def a_tool_of(tenant: Tenant) -> AsyncGenerator[ToolService]:
    """The tool of a project that serves in this process."""
    service = keyed_service(tenant.project)
    stop, ready = asyncio.Event(), asyncio.Event()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KEYED_KEY", KEYS["tool's env value"])
        running = asyncio.create_task(service.run(tenant.stack.endpoints.nats_url, stop=stop, ready=ready.set))
        async with asyncio.timeout(25):
            await ready.wait()
        yield service
        stop.set()
        await running


def keyed_service(project: str) -> ToolService:
    """A tool that answers and fails with its key."""
    service = ToolService(project)

    @service.tool(target="keyed", suffix="run", name="keyed", envs={"api_key": "KEYED_KEY"})
    async def keyed(city: str, api_key: SecretStr) -> dict[str, str]:
        """Look a city up.

        city: The city.
        """
        if city.startswith("fail"):
            raise RuntimeError(f"{CONTENT['tool result']}: 401 for {api_key.get_secret_value()} in {city}")
        return {"found": CONTENT["tool result"], "url": f"https://x/?key={api_key.get_secret_value()}"}

    assert keyed is not None
    return service


def test_what_should_be_told_is_told(gathered: Gathered) -> None:
    """Each place was looked at and each piece of content has gone its way, or the search would prove nothing."""
    assert set(gathered.places) == set(PLACES)
    assert gathered.holds("cards") == MAY["cards"]
    assert gathered.holds("streamed text") >= {"model's answer", "tool argument"}
    for place in ("profiles", "schedules"):
        assert gathered.holds(place) == MAY[place]
    assert gathered.holds("commands of clients") == MAY["commands of clients"]
    assert gathered.holds("answers of listeners") == MAY["answers of listeners"]
    assert {place: texts for place, texts in gathered.places.items() if len("".join(texts)) <= 500} == {}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("marker", [*CONTENT, *KEYS])
def test_it_is_nowhere_else(gathered: Gathered, place: str, marker: str) -> None:
    if marker not in MAY.get(place, ()):
        assert gathered.shown(place, marker) == []
