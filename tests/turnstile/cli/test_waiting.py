"""A command that waits for a turn says what the turn waits for, and that it goes on."""

import asyncio
import signal
from collections.abc import AsyncIterator

import pytest

from tests.support.processes.stack import Stack, running_here
from tests.support.processes.stacks import Stacks
from tests.turnstile.support import launch, read_until, turnstile
from turnstile.ledger.roster import add_agent, put_profile
from turnstile.processes.run import run_bridge
from turnstile.schema.ids import AgentId, ProjectId, uuid7
from turnstile.schema.profiles import Profile

DEMO = ProjectId("demo")
AGENTS = ("a", "b", "c")


@pytest.fixture(scope="module")
async def stack(stacks: Stacks) -> AsyncIterator[Stack]:
    """A stack with agents; nothing of it runs."""
    async with stacks.open() as opened:
        target = opened.settings.worker.worker_targets[0]
        named = {"name": "x", "worker_target": target, "system_prompt_template": "x"}
        profile = Profile.model_validate({**named, "llm_config": {"model": "scripted/echo"}})
        await put_profile(opened.pool, DEMO, profile)
        for agent in AGENTS:
            await add_agent(opened.pool, DEMO, AgentId(agent), "x")
        yield opened


async def test_without_a_bridge_direct_says_so_and_gives_up(stack: Stack) -> None:
    asked = ("enqueue", "a", "hi", "--direct", "--wait", "--config", stack.config)
    ran = await turnstile(*asked, cwd=stack.directory, TURNSTILE__NATS__PATIENCE_SECONDS="1")
    assert ran.code == 3
    told = "waiting: no bridge answers: start `turnstile bridge` or `turnstile up`; this command waits 1 s for one"
    assert told in " ".join(ran.err.split())
    assert "is kept, and runs once one does (no_bridge)" in " ".join(ran.err.split())
    assert "--direct" not in ran.err


async def test_a_missing_worker_is_told_and_ctrl_c_says_that_the_turn_goes_on(stack: Stack) -> None:
    async with running_here(stack, run_bridge):
        asking = await launch("enqueue", "b", "hi", "--wait", "--config", stack.config, cwd=stack.directory)
        message = ("thread", "send", "x", "<y/>", "--timeout", "2.5", "--config", stack.config)
        sending = turnstile(*message, cwd=stack.directory)
        sent, _ = await asyncio.gather(sending, read_until(asking.stderr, "waiting: no worker serves"))
        asking.send_signal(signal.SIGINT)
        async with asyncio.timeout(25):
            out, err = await asking.communicate()
    assert (sent.code, sent.err.count("no worker with listeners serves")) == (3, 2), sent.err
    assert asking.returncode == 130
    turn = out.decode().split()[1]
    told = " ".join(err.decode().split())
    for verb, what in (("turn show", "shows it"), ("watch", "waits for it"), ("turn stop", "ends it")):
        assert f"`turnstile {verb} {turn} --config {stack.config}` {what}" in told
    assert f"turn {turn} goes on" in told


async def test_no_bridge_recommends_what_the_command_has(stack: Stack) -> None:
    short = {"TURNSTILE__NATS__PATIENCE_SECONDS": "0.5"}
    own = ("--json", "--config", stack.config)
    commands = {
        "stop": ("turn", "stop", uuid7()),
        "show": ("turn", "show", "01a"),
        "usage": ("usage",),
        "list": ("agent", "list"),
        "add": ("agent", "add", "d", "--profile", "x"),
        "enqueue": ("enqueue", "c", "hi"),
    }
    asked = (turnstile(*words, *own, cwd=stack.directory, **short) for words in commands.values())
    ran = dict(zip(commands, await asyncio.gather(*asked), strict=True))
    assert {command.code for command in ran.values()} == {3}
    found = {name: command.json()["error"] for name, command in ran.items()}
    assert {each["code"] for each in found.values()} == {"no_bridge"}
    assert {each["hint"] for name, each in found.items() if name != "enqueue"} == {found["stop"]["hint"]}
    assert found["stop"]["hint"] == "start `turnstile bridge` or `turnstile up`"
    assert found["enqueue"]["hint"].endswith("; `enqueue --direct` needs only the database")
