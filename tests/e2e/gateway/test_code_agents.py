"""Agents in code: one call of a tool is their whole turn, through every door and by every rule (protocol §21)."""

import asyncio
import json
import re
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI
from pydantic import BaseModel

import turnstile
from tests.e2e.gateway.mcp.official import Door
from tests.e2e.people.asking import Person, people
from tests.support.a2a.clients import a2a_client, ask
from tests.support.conditions import until
from tests.support.delegation import ALL, chief_says, fork, result, running, staff, task
from tests.support.gateway import token_of
from tests.support.paths import ROOT
from tests.support.tenants import ALICE, Ended, Tenant, turn_of
from turnstile import ToolCall, ToolFailed, ToolService, Used
from turnstile.ledger.roster import add_agent, put_profile, put_tool
from turnstile.schema.base import JsonObject
from turnstile.schema.cards import CardType
from turnstile.schema.ids import AgentId
from turnstile.schema.profiles import Profile
from turnstile.schema.wire import headers

pytestmark = pytest.mark.shared_stack

SCHEMA: JsonObject = {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}


class Size(BaseModel):
    """What the agent `gauge` answers."""

    id: int


def coder(tenant: Tenant) -> ToolService:
    """An agent that does what its instruction says, in the words of this file's tests."""
    service = ToolService(tenant.project)
    [target] = tenant.stack.settings.worker.worker_targets

    @service.agent(suffix="run", timeout_seconds=25, concurrency=32, profile={"worker_target": target})
    async def coder(
        instruction: str,
        call: ToolCall,
        output_schema: dict[str, Any] | None = None,
        result_fields: list[dict[str, Any]] | None = None,
    ) -> Any:
        """Do what is asked for."""
        verb, _, rest = instruction.partition(" ")
        match verb:
            case "json":
                return json.loads(rest)
            case "wanted":
                names = None if result_fields is None else [field["name"] for field in result_fields]
                return {"schema": output_schema, "fields": names}
            case "fail":
                raise ToolFailed("no_flour", rest)
            case "raise":
                raise ValueError(rest)
            case "again":
                child = await call.delegate(instruction, profile=rest)
                return {"status": child.status, "value": child.value}
            case "wait":  # longer than it is waited for
                return await asyncio.sleep(6)
            case _:
                return f"did {instruction}"

    @service.agent(output_schema=Size, profile={"worker_target": target})
    def gauge(instruction: str) -> Size | str:
        """Measure the instruction."""
        return Size(id=len(instruction)) if instruction.isalpha() else "nothing"

    @service.tool(target="coder", suffix="sleep", timeout_seconds=0.2)
    async def sleeper(instruction: str) -> None:
        """Never return."""
        await asyncio.Event().wait()

    return service


async def coded(
    tenant: Tenant, agent: AgentId = ALICE, profile: str = "coder", run_by: str = "coder", **fields: Any
) -> None:
    """An agent of a profile that the tool `coder` runs, or another."""
    [target] = tenant.stack.settings.worker.worker_targets
    await put_profile(tenant.pool, tenant.project, Profile(name=profile, worker_target=target, run_by=run_by, **fields))
    await add_agent(tenant.pool, tenant.project, agent, profile)


@pytest.fixture
async def served(tenant: Tenant) -> AsyncIterator[Tenant]:
    """A project with the tool `coder` and the agent `alice`, which it runs."""
    service = coder(tenant)
    await service.put(tenant.stack.endpoints.nats_url)
    await add_agent(tenant.pool, tenant.project, ALICE, "coder")
    async with running(tenant, service):
        yield tenant


def shown(ended: Ended) -> tuple[str, str | None, Any]:
    """How a turn ended, and with what."""
    return ended.view.status or "", ended.view.error_code, ended.deliverable()


def _season(salt: int) -> None:
    """Season it."""


async def test_each_door_asks_a_tool_and_no_model(url: str, served: Tenant) -> None:
    token = await token_of(served.stack, served.project)
    async with turnstile.Client(url, token=token) as asker:
        assert (await asker.ask(ALICE, "bake").result(20)).value == "did bake"
    async with AsyncOpenAI(base_url=f"{url}/openai/v1", api_key=token, max_retries=0) as openai:
        messages: Any = [{"role": r, "content": c} for r, c in (("user", "hi"), ("assistant", "ho"), ("user", "fry"))]
        said = await openai.chat.completions.create(model=ALICE, messages=messages)
        assert said.choices[0].message.content == "did fry"
    async with a2a_client(url, token, streaming=False) as (a2a, _):
        task = await ask(a2a, "cook")
        assert task.artifacts[0].parts[0].text == "did cook"
    mcp = await Door(url, token).call(ALICE, instruction="stew")
    assert (mcp["status"], mcp["value"]) == ("success", "did stew")
    async with turnstile.Client(served.stack.endpoints.nats_url, project=served.project) as asker:
        assert (await asker.ask(ALICE, "grill").result(20)).value == "did grill"
        refused = await asker.ask(ALICE, "grill", tools=[_season]).result(25)
        assert (refused.status, refused.error_code) == ("failed", "client_tools_not_offered")
    ended = await served.turn(ALICE, "boil", runtime_config={"remember": True})
    assert shown(ended) == ("success", None, "did boil")
    assert ended.types() == ["task.instruction", "tool.call", "tool.result", "task.deliverable"]
    [step] = ended.steps
    config: Any = step.metadata["turn_config"]
    assert (config["run_by"], "llm_config" in config, step.metadata["attempts"]) == ("coder", False, [])


async def test_models_delegate_to_it_and_it_to_itself_as_deep_as_may_be(served: Tenant) -> None:
    await staff(served)
    tasks = [task("coder", "one"), task("coder", "fail two")]
    joined = result(await chief_says(served, fork(tasks)))
    assert [(part["status"], part["error"]) for part in joined["results"]] == [
        ("success", None),
        ("failed", "no_flour"),
    ]
    assert joined["results"][0]["summary"] == "did one"
    await coded(served, AgentId("nest"), "nest", delegation_policy=ALL)
    asked: JsonObject = {"agent_id": "nest", "instruction": "again nest"}
    ended = await served.ended(turn_of(await served.ask(asked, headers={headers.DEPTH: "17"})))
    depth, value = 0, ended.deliverable()
    while isinstance(value, dict) and "value" in value:
        depth, value = depth + 1, value["value"]
    error: Any = value
    assert (depth, error["error"]["code"]) == (2, "recursion_depth_exceeded")


@pytest.mark.parametrize(
    ("instruction", "wanted", "status", "code", "value"),
    [
        ('json {"id": 7}', {"runtime_config": {"output_schema": SCHEMA}}, "success", None, {"value": {"id": 7}}),
        (
            'json {"id": "x"}',
            {"runtime_config": {"output_schema": SCHEMA}},
            "partial",
            "output_invalid",
            {"value": {"id": "x"}},
        ),
        ('json {"a": 1}', {"result_fields": [{"name": "a"}]}, "success", None, {"fields": [{"name": "a", "value": 1}]}),
        ('json {"b": 1}', {"result_fields": [{"name": "a"}]}, "partial", "result_fields_missing", {"b": 1}),
        ("fail none", {}, "failed", "no_flour", {"error": {"code": "no_flour", "message": "none"}}),
        ("raise no", {}, "failed", "tool_error", {"error": {"code": "tool_error", "message": "no"}}),
    ],
)
async def test_its_result_is_the_answer_as_far_as_it_is_what_was_asked(
    served: Tenant, instruction: str, wanted: JsonObject, status: str, code: str | None, value: Any
) -> None:
    assert shown(await served.turn(ALICE, instruction, **wanted)) == (status, code, value)


async def test_a_function_that_is_no_coroutine_answers_what_its_type_says(served: Tenant) -> None:
    await add_agent(served.pool, served.project, AgentId("gauge"), "gauge")
    assert shown(await served.turn(AgentId("gauge"), "four")) == ("success", None, {"value": {"id": 4}})
    assert shown(await served.turn(AgentId("gauge"), "4"))[:2] == ("partial", "output_invalid")


async def test_a_stop_an_approval_a_budget_and_a_tool_that_is_gone_end_it_as_any_turn(served: Tenant) -> None:
    turn = turn_of(await served.enqueue(ALICE, "wait"))
    await until(lambda: served.count("state.turn_waiting_tools", "wait_status = 'waiting'"), 25, "the call was sent")
    await served.client.request("stop", {"agent_turn_id": turn})
    assert shown(await served.ended(turn))[:2] == ("canceled", "stopped")

    await coded(served, AgentId("careful"), "careful", interrupt_on={"coder": True})
    turn = turn_of(await served.enqueue(AgentId("careful"), "carve"))

    [interrupt] = await until(lambda: people(served).interrupts(agent_turn_id=turn), 25, "a person is asked")
    ada = Person(served, "ada")
    await ada.decides(interrupt, "edit", arguments={"instruction": "slice"})
    assert shown(await served.ended(turn)) == ("success", None, "did slice")

    poor = await served.turn(ALICE, "wait", budget={"max_seconds": 1})
    assert poor.view.error_code in ("budget_exhausted", "tool_timeout"), poor

    await coded(served, AgentId("sleeper"), "sleeper", run_by="sleeper")
    assert shown(await served.turn(AgentId("sleeper"), "hello"))[:2] == ("failed", "tool_timeout")

    first = await served.turn(ALICE, "once", conversation_id="c", runtime_config={"remember": True})
    again = await served.turn(ALICE, "twice", conversation_id="c", runtime_config={"remember": True})
    assert again.view.output_box_id == first.view.output_box_id
    queued = [turn_of(await served.enqueue(ALICE, f"number {n}")) for n in range(3)]
    assert [shown(await served.ended(t))[2] for t in queued] == [f"did number {n}" for n in range(3)]

    reply = await served.client.request("tool.remove", {"tool_name": "coder"})
    assert reply["status"] == "accepted"
    gone = await served.turn(ALICE, "hello")
    assert shown(gone)[:2] == ("failed", "unknown_tool")
    assert [card.type for card in gone.cards] == [CardType.DELIVERABLE]
    [target] = served.stack.settings.worker.worker_targets
    profile: JsonObject = {"name": "coder", "worker_target": target, "run_by": "coder"}
    warned = await served.client.request("profile.put", {"profile": profile})
    assert warned["warnings"] == ["run_by names 'coder', which is not a tool of the project yet"]


async def test_the_programs_of_the_page_store_what_they_serve_and_serve_it(tenant: Tenant, tmp_path: Path) -> None:
    page = (ROOT / "docs/code-agents.md").read_text()
    programs = {"baker": "Here you are: bread", "planner": {"value": {"first": "flour", "then": ["oven", "table"]}}}
    blocks = [text.partition("```")[0] for text in page.split("```python\n")[1:]]
    [target] = tenant.stack.settings.worker.worker_targets
    for (name, wanted), block in zip(programs.items(), blocks, strict=True):
        file = tmp_path / f"{name}.py"
        file.write_text(re.sub(r"@service.agent\(", f"@service.agent(profile={{'worker_target': '{target}'}}, ", block))
        command = (sys.executable, str(file), "--nats", tenant.stack.endpoints.nats_url, "--project", tenant.project)
        put = await asyncio.create_subprocess_exec(*command, "--put", stderr=PIPE)
        _, errors = await put.communicate()
        assert (put.returncode, f"profile {name} is stored in {tenant.project}" in errors.decode()) == (0, True), errors
        await add_agent(tenant.pool, tenant.project, AgentId(name), name)
        serving = await asyncio.create_subprocess_exec(*command, stderr=DEVNULL)
        try:
            assert shown(await tenant.turn(AgentId(name), "bread")) == ("success", None, wanted)
        finally:
            serving.terminate()
            assert await serving.wait() == 0


async def test_it_waits_for_an_upgrade_while_older_processes_run(served: Tenant) -> None:
    await staff(served)
    older = "INSERT INTO state.workers (worker_target, instance, protocol_level) VALUES ('elsewhere', $1, 2)"
    await served.rows(older, served.project)
    try:
        reply = await served.ask({"agent_id": ALICE, "instruction": "x"})
        assert (reply.status.value, reply.error_code) == ("busy", "upgrade_under_way")
        joined = result(
            await chief_says(served, fork([task("coder", "one"), task(str(ALICE), "two", target_strategy="reuse")]))
        )
        assert [part["error"] for part in joined["results"]] == ["upgrade_under_way"] * 2
    finally:
        await served.rows("UPDATE state.workers SET left_at = now() WHERE instance = $1", served.project)
    assert (await served.turn(ALICE, "x")).view.status == "success"


def steady(tenant: Tenant, ran: list[str], dies: asyncio.Event) -> ToolService:
    """An agent of three steps, which never ends in its first run; `ran` gets the steps that ran."""
    service = ToolService(tenant.project, drain_seconds=0.1, ack_wait_seconds=2)

    @service.tool(target="steady", suffix="run", timeout_seconds=60)
    async def steady(instruction: str, call: ToolCall) -> Any:
        """Do what is asked for in steps."""

        async def think() -> Used[list[str]]:
            ran.append("think")
            return Used([instruction], model="m", tokens=60, cost=0.001)

        async def last() -> None:
            ran.append("last")
            try:
                await asyncio.Event().wait()
            finally:
                ran.append("canceled")

        def write() -> str:
            ran.append("write")
            return f"run {len(ran)}"

        said = [(card.type, card.value) for card in await call.history()]
        thought = await call.step("think", think)
        written = await call.step("write", write)
        if instruction.startswith("die") and not dies.is_set():
            dies.set()
            await asyncio.Event().wait()
        if instruction.startswith("twice"):
            await call.step("write", write)
        if instruction.startswith("wait"):
            await call.step("last", last)
        if instruction.startswith("more"):
            await call.step("more", think)
            await call.step("most", think)
        return {"said": said, "thought": thought, "written": written}

    return service


async def test_a_step_is_done_once_whatever_becomes_of_the_process(tenant: Tenant) -> None:
    """And what it used is booked, the history is read, and a stop cancels what runs."""
    ran: list[str] = []
    dies = asyncio.Event()

    def has(word: str) -> Callable[[], Awaitable[bool]]:
        async def look() -> bool:
            return word in ran

        return look

    await put_tool(tenant.pool, tenant.project, steady(tenant, ran, dies).definitions()[0])
    await coded(tenant, run_by="steady")
    asked: JsonObject = {"conversation_id": "c", "runtime_config": {"remember": True}}
    async with running(tenant, steady(tenant, ran, dies)):
        dying = turn_of(await tenant.enqueue(ALICE, "die once", **asked))
        await asyncio.wait_for(dies.wait(), 25)
    async with running(tenant, steady(tenant, ran, dies)):
        status, _, value = shown(await tenant.ended(dying))
        first: list[Any] = [["task.instruction", "die once"]]
        assert (status, value) == ("success", {"said": first, "thought": ["die once"], "written": "run 2"})
        assert ran == ["think", "write"]
        _, _, value = shown(await tenant.turn(ALICE, "go on", **asked))
        said = [kind for kind, _ in value["said"]]
        assert said == ["task.instruction", "tool.result", "task.deliverable", "task.instruction"]
        assert value["said"][-1] == ["task.instruction", "go on"]
        assert shown(await tenant.turn(ALICE, "twice"))[:2] == ("failed", "key_conflict")
        broke = await tenant.turn(ALICE, "more", budget={"max_tokens": 100})
        assert shown(broke)[:2] == ("failed", "budget_exhausted")
        turn = turn_of(await tenant.enqueue(ALICE, "wait"))
        await until(has("last"), 25, "the last step runs")
        await tenant.client.request("stop", {"agent_turn_id": turn})
        assert shown(await tenant.ended(turn))[:2] == ("canceled", "stopped")
        await until(has("canceled"), 25, "it was canceled")
