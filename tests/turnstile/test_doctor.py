"""`turnstile doctor`: whether turns could run, told of a healthy stack and of broken ones."""

import asyncio
import os
import re
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from lab.support.nats_server import NatsServer
from tests.support.conditions import until
from tests.support.gateway import serving
from tests.support.ledger.agents import rows
from tests.support.processes.stack import Run, Stack, running_here
from tests.support.processes.stacks import Stacks
from turnstile.doctor.checks import Check
from turnstile.doctor.examine import examine
from turnstile.embedded import EmbeddedServers, ServerName
from turnstile.embedded.endpoints import write_endpoints
from turnstile.embedded.ports import free_port
from turnstile.embedded.server import log_path
from turnstile.ledger import pool as pool_module
from turnstile.ledger.roster import add_agent, put_profile, put_tool
from turnstile.processes.run import run_both, run_bridge, run_worker
from turnstile.schema.ids import AgentId, ProjectId
from turnstile.schema.profiles import Profile
from turnstile.sdk.tools.service import ToolService
from turnstile.settings import NatsSettings, Settings

DEMO = ProjectId("demo")


@pytest.fixture(scope="module")
async def stack(stacks: Stacks) -> AsyncIterator[Stack]:
    """A stack with one agent; nothing of it runs yet."""
    async with stacks.open() as opened:
        await hire(opened, "guide", opened.settings.worker.worker_targets[0])
        yield opened


@pytest.fixture(autouse=True)
async def nobody(stack: Stack) -> None:
    """Workers of the test before count as gone."""
    await rows(stack.pool, "DELETE FROM state.workers")
    await rows(stack.pool, "DELETE FROM resource.tools")


async def hire(stack: Stack, name: str, target: str, model: str = "scripted/echo") -> None:
    """A profile for this target, and an agent that has it."""
    profile = {"name": name, "worker_target": target, "system_prompt_template": "x", "llm_config": {"model": model}}
    await put_profile(stack.pool, DEMO, Profile.model_validate(profile))
    await add_agent(stack.pool, DEMO, AgentId(name), name)


async def told(stack: Stack, settings: Settings | None = None) -> dict[str, Check]:
    """The lines by name; those of workers are `worker`."""
    checks = await examine(settings or stack.settings, None, ())
    return {"worker" if check.name.startswith("worker turnstile") else check.name: check for check in checks}


def counting() -> ToolService:
    """A tool."""
    service = ToolService(DEMO)

    @service.tool(target="doctored", suffix="count")
    async def count_words(text: str) -> int:
        """Count the words of a text."""
        return len(text.split())

    return service


async def test_a_healthy_stack_can_run_turns(stack: Stack) -> None:
    service, stop, ready = counting(), asyncio.Event(), asyncio.Event()
    await put_tool(stack.pool, DEMO, service.definitions()[0])
    async with running_here(stack):
        serving = asyncio.create_task(service.run(stack.endpoints.nats_url, stop=stop, ready=ready.set))
        await ready.wait()
        found = await told(stack)
        stop.set()
        await serving
    assert {name: each.status for name, each in found.items() if each.status != "ok"} == {}
    target = stack.settings.worker.worker_targets[0]
    assert found["stream cg_evt_v1r4"].says == "stored a message and found it again"
    assert found["bridge"].says == "answers requests"
    assert re.fullmatch(r"postgresql://\S+, version \d+\.\d+.*", found["PostgreSQL"].says)
    assert f"serves {target}, signed on " in found["worker"].says
    assert found[f"target {target}"].says == "1 worker serves it"
    assert found["tool count_words of demo"].says == "a process listens"
    assert found["turns"].says == "can run here"


async def test_what_a_power_failure_of_nats_may_lose_is_told(stack: Stack) -> None:
    line = (await told(stack))["NATS storage"]
    assert (line.status, line.says.partition(":")[2]) == ("ok", " a power failure loses none")
    servers, port = stack.settings.nats.servers, free_port()
    default, monitored = NatsServer("-m", str(port)), f"http://127.0.0.1:{port}"
    default.start()
    for url, says in (
        ("", "how often it writes to its disk is not known, so a power failure may lose messages"),
        (monitored, "it writes to its disk every 120 s: a power failure may lose commands"),
        ("http://127.0.0.1:1", "http://127.0.0.1:1/jsz does not answer (URLError)"),
    ):
        nats = NatsSettings(servers=servers, monitoring_url=url, replicas=3)
        found = await told(stack, stack.settings.model_copy(update={"nats": nats}))
        assert found["NATS storage"].status == "warn"
        assert found["NATS storage"].says.startswith(says)
        assert found["storage of cg_cmd_v1r4"].says == "in files, 1 replica, and [nats].replicas is 3"
    nats = NatsSettings(servers=servers, monitoring_url=f"{stack.settings.nats.monitoring_url}, {monitored}")
    found = await told(stack, stack.settings.model_copy(update={"nats": nats}))
    each = {name: line.status for name, line in found.items() if name.startswith("NATS storage")}
    assert each == {f"NATS storage {stack.settings.nats.monitoring_url}": "ok", f"NATS storage {monitored}": "warn"}
    default.remove()


async def test_whether_a_gateway_answers_is_told(stack: Stack) -> None:
    async with serving(stack) as url:
        named = stack.settings.gateway.model_copy(update={"url": url})
        settings = stack.settings.model_copy(update={"gateway": named})
        found = (await told(stack, settings))["gateway"]
        assert (found.status, found.says) == ("ok", f"serves HTTP at {url}")
    found = (await told(stack, settings))["gateway"]
    assert (found.status, found.says) == ("warn", f"{url}/health does not answer (URLError)")
    assert "gateway" not in await told(stack)


@pytest.mark.parametrize(
    ("run", "says", "failed"),
    [
        (run_bridge, "no worker serves it", ["workers"]),
        (run_worker, "no bridge serves it", ["bridge"]),
        (None, "no worker serves it and no bridge serves it", ["bridge", "workers"]),
    ],
)
async def test_a_target_without_a_server_is_told(stack: Stack, run: Run | None, says: str, failed: list[str]) -> None:
    if run is None:
        found = await told(stack)
    else:
        async with running_here(stack, run):
            found = await told(stack)
    target = f"target {stack.settings.worker.worker_targets[0]}"
    assert found[target].says == f"{says}: named by 1 agent and 1 profile, such as agent guide of demo"
    assert [name for name, each in found.items() if each.status == "fail"] == [*failed, target, "turns"]
    assert found["turns"].says == f"cannot all run here; fix first: {', '.join([*failed, target])}"
    missing = "worker" if run is run_bridge else "bridge" if run is run_worker else "up"
    assert found[target].hint.startswith(f"start `turnstile {missing}`")


async def test_an_unknown_target_and_a_tool_without_a_listener_are_told(stack: Stack) -> None:
    target = stack.settings.worker.worker_targets[0]
    await hire(stack, "misled", f"{target}x")
    await put_tool(stack.pool, DEMO, counting().definitions()[0])

    async def served() -> dict[str, Check] | None:  # a bridge answers before it has asked for its first doorbell
        found = await told(stack)
        return found if found[f"target {target}"].status == "ok" else None

    async with running_here(stack, run_both):
        found = await until(served, 25, "the target is served")
    await rows(stack.pool, "DELETE FROM resource.project_agents WHERE agent_id = 'misled'")
    wrong = found[f"target {target}x"]
    assert wrong.status == "fail"
    assert wrong.hint.endswith(f"did you mean {target!r}?")
    tool = found["tool count_words of demo"]
    assert tool.status == "fail"
    assert tool.says.startswith("no process listens on cg.v1r4.demo.*.cmd.tool.doctored.count")


async def test_a_schema_that_cannot_be_enforced_and_an_agents_tool_that_is_gone_are_told(stack: Stack) -> None:
    await put_tool(stack.pool, DEMO, counting().definitions()[0])
    for name, tool in (("counter", "count_words"), ("baker", "bake")):
        await put_profile(stack.pool, DEMO, Profile(name=name, run_by=tool))
    await rows(stack.pool, """UPDATE resource.tools SET parameters = '{"properties": {"q": {"pattern": "(?=a)"}}}'""")
    async with running_here(stack, run_both):
        found = await told(stack)
    await rows(stack.pool, "DELETE FROM resource.profiles WHERE name IN ('counter', 'baker')")
    gone, tool = found["tool bake of demo"], found["tool count_words of demo"]
    assert gone.status == "fail"
    assert gone.says == "it is not there, and does the turns of the profile baker: they fail as unknown_tool"
    assert tool.status == "warn"
    assert "has pattern at /properties/q/pattern, which cannot be enforced" in tool.says


@pytest.fixture
async def own(tmp_path: Path) -> AsyncIterator[EmbeddedServers]:
    """Servers of a data directory that a test may stop; nothing has migrated them."""
    async with EmbeddedServers(tmp_path / ".turnstile") as servers:
        yield servers


@pytest.mark.long
async def test_a_silent_server_is_told_with_its_address_and_its_log(own: EmbeddedServers, tmp_path: Path) -> None:
    """And what cannot be looked at without it is no trouble of its own."""
    data, endpoints = tmp_path / ".turnstile", own.endpoints
    found = {each.name: each for each in await examine(Settings(), data, ())}
    assert found["PostgreSQL"].hint == "run `turnstile migrate`"
    assert found["stream cg_evt_v1r4"].hint.startswith("`turnstile migrate` makes it")
    shown: dict[str, tuple[int, str, ServerName]] = {
        "PostgreSQL": (own.pid("postgres"), "postgresql://127.0.0.1:", "postgres"),
        "NATS": (own.pid("nats"), endpoints.nats_url, "nats"),
        "Temporal": (own.pid("temporal"), endpoints.temporal_address, "temporal"),
    }
    for pid, _, _ in shown.values():
        os.kill(pid, signal.SIGSTOP)
    try:
        found = {each.name: each for each in await examine(Settings(), data, ())}
    finally:
        for pid, _, _ in shown.values():
            os.kill(pid, signal.SIGCONT)
    for name, (_, address, server) in shown.items():
        assert found[name].status == "fail"
        assert found[name].says.startswith(f"no answer from {address}"), found[name].says
        assert found[name].hint.endswith(f"its log is {log_path(data, server)}"), found[name].hint
    assert [name for name, each in found.items() if each.status == "fail"] == [*shown, "turns"]
    for name in ("models", "agents and tools"):
        assert (found[name].status, found[name].hint) == ("warn", "see the line of PostgreSQL")


async def test_a_server_that_is_too_old_is_told_with_its_cure_and_no_log(
    stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it is the one of `turnstile up`: its log says nothing of that."""
    monkeypatch.setattr(pool_module, "MINIMUM_SERVER", 990_000)
    data = tmp_path / ".turnstile"
    data.mkdir(mode=0o700)
    write_endpoints(data, stack.endpoints)
    for found in (await told(stack), {each.name: each for each in await examine(stack.settings, data, ())}):
        shown = found["PostgreSQL"]
        assert shown.status == "fail"
        assert re.fullmatch(r"PostgreSQL 16 or newer is needed, and postgresql://\S+ runs \d.*", shown.says)
        assert "@" not in shown.says
        assert shown.hint == "upgrade it, or leave [database].url empty to use the embedded one"


async def test_a_worker_that_signs_on_no_more_serves_nothing(stack: Stack) -> None:
    target = stack.settings.worker.worker_targets[0]
    async with running_here(stack, run_bridge):
        touch = (
            "INSERT INTO state.workers (worker_target, instance, last_seen_at)"
            " VALUES ($1, 'w', now() - interval '20 s')"
        )
        await rows(stack.pool, touch, target)
        found = await told(stack)
    assert found[f"target {target}"].status == "fail"
    assert found[f"target {target}"].says.startswith("no worker has signed on for 2")
    assert found[f"target {target}"].hint.startswith(
        "start `turnstile worker`, or `turnstile up`; a running one signs on "
    )
    assert found["turns"].says == f"cannot all run here; fix first: target {target}"
