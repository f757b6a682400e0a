"""The log for programs: one object a line, with ids and without content, however much is logged."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.activities.models.openai_stub import OpenAIStub
from tests.activities.models.provider_stub import API_KEY, Fault, Said
from tests.support.conditions import until
from tests.support.processes.hatchery import shared_hatchery
from tests.support.processes.process import Processes, processes_of
from tests.support.processes.stack import QUICK, Stack
from tests.support.processes.stacks import Stacks
from tests.support.pump.organism import Order
from tests.support.pump.pump import pump_config
from tests.support.tenants import ALICE, new_tenant, turn_of
from tests.support.tools import calling, definition, hand_of
from turnstile.runtime.log_context import about
from turnstile.schema.ids import AgentId
from turnstile.telemetry.logs import CountedLines, JsonFormatter

MARKER = "content-marker-9917"
CRASH = Order(do="crash", what=MARKER).to_xml().decode()
IDS = ("message", "project_id", "agent_turn_id", "step", "tool_call_id")


@pytest.fixture(scope="module")
async def stub() -> AsyncIterator[OpenAIStub]:
    """A provider whose answers hold the marker."""
    async with OpenAIStub(Said(text=(f"answer {MARKER}",))) as running:
        yield running


@pytest.fixture(scope="module")
async def stack(stacks: Stacks, stub: OpenAIStub, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    """A stack that logs everything as JSON, on databases of its own."""
    key = tmp_path_factory.mktemp("logs") / "key"
    key.write_text(API_KEY)
    own = {"api_key_files.openai": str(key), "api_bases.openai": stub.api_base}
    told = {"log_level": "debug", "log_format": "json"}
    config = pump_config({**QUICK, "model": {**QUICK["model"], **own}, "observability": told})
    async with stacks.open(config) as opened:
        yield opened


@pytest.fixture
async def processes(stack: Stack) -> AsyncIterator[Processes]:
    """Worker and bridge as processes."""
    async with processes_of(stack.config, await shared_hatchery.get()) as both:
        await both.ensure()
        yield both


async def lines_of(log: Path, words: str) -> list[dict[str, Any]] | None:
    """The lines whose message has these words; None while there are none."""
    lines = log.read_text().splitlines()  # noqa: ASYNC240 -- one look at a file
    return [told for line in lines if words in (told := json.loads(line))["message"]] or None


async def test_everything_is_logged_as_json_with_ids_and_without_content(
    stack: Stack, processes: Processes, stub: OpenAIStub
) -> None:
    tenant = new_tenant(stack)
    stub.replies = [Fault(429, MARKER, headers={"retry-after": "0.01"}), Said(text=(MARKER,))]
    agent = await tenant.agent("plain", AgentId("bob"), llm={"model": stub.model})
    first = turn_of(await tenant.enqueue(agent, f"instruction {MARKER}"))
    asked = await tenant.ended(first, timeout=90)  # the worker's first: it may still be loading litellm
    async with hand_of(tenant, definition("look")) as hand:
        turn = await hand.start(calling("look", text=MARKER))
        [command] = await hand.heard()
        await hand.report(command.call, MARKER)
        tooled = await hand.ended(turn)
    sent = await tenant.client.request("send", {"to": "worker", "payload": CRASH})
    stopped = await tenant.enqueue(agent, MARKER, metadata={"x": MARKER})
    await tenant.client.request("stop", {"agent_turn_id": turn_of(stopped), "reason": MARKER})
    await tenant.ended(turn_of(stopped))
    await tenant.client.request("enqueue", {"agent_id": ALICE, "nonsense": MARKER})
    assert {asked.view.status, tooled.view.status} == {"success"}
    failed = await until(lambda: lines_of(processes.worker.log, "failed: RuntimeError"), 25, "a handler fails")
    ids = {"project_id": tenant.project, "thread_id": sent["thread_id"], "message_id": sent["message_id"]}
    assert ids.items() <= failed[0].items()
    await processes.worker.kill()
    await tenant.enqueue(agent, MARKER)
    assert await processes.bridge.stop() == 0
    for process in (processes.worker, processes.bridge):
        lines = process.log.read_text().splitlines()
        assert lines
        assert MARKER not in process.log.read_text()
        assert API_KEY not in process.log.read_text()
        for line in lines:
            assert line.startswith("{"), line
            told = json.loads(line)
            assert {"time", "level", "logger", "message"} <= told.keys(), line
            assert told["level"] in {"debug", "info", "warning", "error"}


class Keeps(logging.Handler):
    """Formats as it hears, as a stream does."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(JsonFormatter())
        self.lines: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the line."""
        self.lines.append(json.loads(self.format(record)))


@pytest.fixture
def kept() -> Any:
    """What a logger of ours writes."""
    handler, logger = Keeps(), logging.getLogger("turnstile.test")
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    yield logger, handler.lines
    logger.removeHandler(handler)


async def test_ids_are_those_of_the_task_at_hand(kept: Any) -> None:
    logger, lines = kept

    async def work(turn: str) -> None:
        with about(project_id="p1", agent_turn_id=turn, tool_call_id=None):
            await asyncio.sleep(0)
            with about(step=2):
                logger.warning("working")
            logger.info("line\nbreak")

    await asyncio.gather(work("t1"), work("t2"))
    logger.info("outside")
    told = [{name: line[name] for name in IDS if name in line} for line in lines]
    assert sorted(told[:-1], key=str) == [
        {"message": "line\nbreak", "project_id": "p1", "agent_turn_id": "t1"},
        {"message": "line\nbreak", "project_id": "p1", "agent_turn_id": "t2"},
        {"message": "working", "project_id": "p1", "agent_turn_id": "t1", "step": 2},
        {"message": "working", "project_id": "p1", "agent_turn_id": "t2", "step": 2},
    ]
    assert told[-1] == {"message": "outside"}


def test_an_exception_is_its_type_and_frames(kept: Any) -> None:
    logger, lines = kept

    def fail() -> None:
        raise ValueError(MARKER)

    try:
        fail()
    except ValueError:
        logger.exception("it failed")
    [line] = lines
    assert line["error"] == "ValueError"
    assert Path(__file__).name in line["frames"][0]
    assert MARKER not in json.dumps(line)


def test_a_line_that_is_repeated_is_counted(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]
    monkeypatch.setattr("turnstile.telemetry.logs.time.monotonic", lambda: clock[0])
    logger = logging.getLogger("a library")
    logger.addFilter(counted := CountedLines(lambda record: record.msg.split()[0]))
    try:
        for number in range(500):
            logger.warning("polling %d", number)
        logger.warning("other 1")
        clock[0] += 61
        logger.warning("polling %d", 500)
        for number in range(3000):
            logger.warning(f"kind-{number} x")  # noqa: G004 -- kinds without end are bounded
    finally:
        logger.removeFilter(counted)
    assert caplog.messages[:3] == ["polling 0", "other 1", "polling 500 (and 499 more like it)"]
    assert len(counted._kinds) <= 1000
