"""A client and a tool with the base install alone: here without the server's packages, with --install in a fresh venv.

`--install` builds the wheel and installs it from the package index beside PyPI's `schema`.
"""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.packaging.test_archives import build
from tests.support.paths import ROOT, TESTS
from tests.support.processes.stack import Stack, running_here
from tests.support.processes.stacks import Stacks
from tests.support.tenants import ALICE, Tenant, new_tenant
from turnstile.ledger.roster import put_tool
from turnstile.settings.yaml_files import read_tool

COUNT = json.dumps(
    {"steps": [{"tool_calls": [{"name": "word_count", "arguments": {"text": "three small words"}}]}, {"text": "done"}]}
)
SLOW = json.dumps({"steps": [{"text": "All of this takes long. " * 100, "chunks": 1000, "delay_seconds": 0.05}]})
CLIENT = """
import asyncio, sys
import turnstile

async def main() -> None:
    async with turnstile.connect(sys.argv[1], project=sys.argv[2]) as client:
        turn = client.ask("alice", sys.argv[3])
        print("".join([piece async for piece in turn]), (await turn.result(20)).status)

asyncio.run(main())
"""
NOT_HERE = "import importlib.util as u; print([n for n in ('asyncpg', 'litellm', 'temporalio') if u.find_spec(n)])"


@dataclass(frozen=True)
class Base:
    """A base install, in a directory of its own whose config.toml names NATS and the project alone."""

    command: Sequence[str]
    """Runs `turnstile`."""
    python: Sequence[str]
    """Runs a file."""
    directory: Path

    async def start(self, *arguments: str) -> asyncio.subprocess.Process:
        """A process of it."""
        pipe = asyncio.subprocess.PIPE
        return await asyncio.create_subprocess_exec(*arguments, cwd=self.directory, stdout=pipe, stderr=pipe)

    async def run(self, *arguments: str) -> tuple[int | None, str, str]:
        """Exit code, output and errors."""
        process = await self.start(*arguments)
        async with asyncio.timeout(60):
            out, err = await process.communicate()
        return process.returncode, out.decode(), err.decode()

    async def turnstile(self, *arguments: str) -> tuple[int | None, str, str]:
        """As `run`, of a command."""
        return await self.run(*self.command, *arguments)


@pytest.fixture(scope="module")
async def tenant(stacks: Stacks) -> AsyncIterator[Tenant]:
    """Worker and bridge in this process, and an agent who may count words."""
    async with stacks.open() as stack, running_here(stack):
        tenant = new_tenant(stack)
        await put_tool(stack.pool, tenant.project, read_tool(ROOT / "examples" / "tools" / "word_count.yaml"))
        await tenant.agent("player", ALICE, allowed_tools=["word_count"])
        yield tenant


@pytest.fixture(scope="module", params=["blocked", "installed"])
def base(request: pytest.FixtureRequest, tenant: Tenant, tmp_path_factory: pytest.TempPathFactory) -> Base:
    """The two kinds of it."""
    directory = tmp_path_factory.mktemp("client")
    stack: Stack = tenant.stack
    (directory / "config.toml").write_text(
        f'[nats]\nservers = ["{stack.endpoints.nats_url}"]\n[protocol]\ndefault_project = "{tenant.project}"\n'
    )
    (directory / "client.py").write_text(CLIENT)
    if request.param == "blocked":
        here = [sys.executable, str(TESTS / "packaging" / "base.py")]
        return Base([*here, "turnstile"], here, directory)
    if not request.config.getoption("--install"):
        pytest.skip("needs the package index: --install")
    subprocess.run([sys.executable, "-m", "venv", directory / "venv"], check=True)
    programs, wheel = directory / "venv" / "bin", build(ROOT, "wheel", directory)
    subprocess.run([programs / "python", "-m", "pip", "install", "--quiet", wheel, "schema"], check=True)
    return Base([str(programs / "turnstile")], [str(programs / "python")], directory)


async def test_pypis_schema_is_beside_it_and_nothing_of_the_server(base: Base) -> None:
    if len(base.python) > 1:
        pytest.skip("of a fresh venv: --install")
    assert (await base.run(*base.python, "-c", NOT_HERE))[1] == "[]\n"
    told = await base.run(*base.python, "-c", "import schema, turnstile.schema; print(schema.Schema(int).validate(3))")
    assert told[:2] == (0, "3\n"), told


async def test_a_tool_and_a_client_run(base: Base, tenant: Tenant) -> None:
    nats = tenant.stack.endpoints.nats_url
    tool = await base.start(*base.python, str(ROOT / "examples" / "tools" / "word_count.py"), "--nats", nats)
    try:
        told = await base.run(*base.python, "client.py", nats, tenant.project, COUNT)
        assert told[:2] == (0, "done success\n"), told
    finally:
        tool.terminate()
        await tool.communicate()


@pytest.mark.long
async def test_the_commands_of_a_client_work(base: Base) -> None:
    code, out, err = await base.turnstile("enqueue", ALICE, json.dumps({"steps": [{"text": "so it is"}]}), "--wait")
    assert (code, out.count("so it is")) == (0, 1), (out, err)
    assert "the text above" in " ".join(out.split())  # wrapped at the width of a terminal
    code, out, err = await base.turnstile("enqueue", ALICE, SLOW, "--json")
    assert code == 0, err
    turn = json.loads(out)["agent_turn_id"]
    watch = await base.start(*base.command, "watch", turn)
    assert watch.stdout is not None
    first = await watch.stdout.readuntil(b"All of")
    assert (await base.turnstile("turn", "stop", turn))[0] == 0
    rest, err = await watch.communicate()
    assert watch.returncode == 0, err
    assert "ended: canceled (stopped)" in (first + rest).decode()
    code, out, err = await base.turnstile("turn", "show", turn[:20])
    assert (code, "stopped" in out) == (0, True), err
    code, _, err = await base.turnstile("thread", "send", "nobody", "<x/>", "--no-wait")
    assert code == 0, err
    assert (await base.turnstile("--help"))[0] == 0


@pytest.mark.parametrize(
    ("arguments", "package"),
    [
        (["token", "list"], "asyncpg"),
        pytest.param(["enqueue", ALICE, "x", "--direct"], "asyncpg", marks=pytest.mark.long),
        pytest.param(["worker"], "asyncpg", marks=pytest.mark.long),
        (["up"], "temporalio"),
    ],
)
async def test_a_command_that_lacks_an_extra_says_which(base: Base, arguments: list[str], package: str) -> None:
    code, out, _ = await base.turnstile(*arguments, "--json")
    error = json.loads(out)["error"]
    assert (code, error["code"]) == (2, "extra_missing")
    assert package in error["message"]
    assert "turnstile-kernel[server]" in error["hint"]
