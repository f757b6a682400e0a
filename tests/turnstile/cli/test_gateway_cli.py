"""Commands that ask a gateway: run where no address of NATS or PostgreSQL is known, with the base install alone."""

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.conditions import until
from tests.support.delegation import CHIEF, fork, says, staff, steps, task
from tests.support.gateway import serving, token_of
from tests.support.paths import TESTS
from tests.support.processes.piped import piped
from tests.support.processes.stack import running_here
from tests.support.processes.stacks import Stacks
from tests.support.tenants import ALICE, Tenant, new_tenant
from tests.turnstile.support import ENVIRONMENT, Ran, launch, read_until, turnstile
from turnstile.schema.access import GatewayRole
from turnstile.schema.base import JsonObject
from turnstile.schema.ids import AgentId, uuid7

WORDS = "What was asked for is said here."
SAID = says(WORDS, chunks=4, delay_seconds=0.01)
NEVER = says("It began thus, and", chunks=2, delay_seconds=3600)


@dataclass(frozen=True)
class Machine:
    """A machine that knows a gateway and has a token."""

    tenant: Tenant
    directory: Path
    url: str
    token: str

    @property
    def environment(self) -> dict[str, str]:
        """Its variables."""
        return {"TURNSTILE_URL": self.url, "TURNSTILE_TOKEN": self.token, "TURNSTILE__NATS__PATIENCE_SECONDS": "2"}

    async def run(self, *arguments: str | Path, **changes: str) -> Ran:
        """A command on it."""
        return await turnstile(*arguments, cwd=self.directory, **(self.environment | changes))


@pytest.fixture(scope="module")
async def machine(stacks: Stacks, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Machine]:
    """Beside it a stack with a gateway, and the agents `alice`, `chatty` and a chief."""
    async with stacks.open() as stack, running_here(stack):
        tenant = new_tenant(stack)
        await tenant.agent("player", models=["scripted/*"])
        await tenant.agent("chat", AgentId("chatty"))
        await staff(tenant)
        async with serving(stack) as url:
            token = await token_of(stack, tenant.project, GatewayRole.CLIENT)
            yield Machine(tenant, tmp_path_factory.mktemp("machine"), url, token)


async def test_enqueue_streams_and_delivers(machine: Machine) -> None:
    ran = await machine.run("enqueue", ALICE, SAID, "--wait")
    assert (ran.code, ran.err) == (0, "")
    first, streamed, last = ran.out.splitlines()
    assert first.startswith("turn 01")
    assert streamed == WORDS
    assert last.startswith("deliverable (card ")
    assert last.endswith("): the text above")


async def test_enqueue_prints_what_it_prints_over_nats(machine: Machine) -> None:
    asked = ("enqueue", ALICE, SAID, "--json", "--correlation-id", f"c-{uuid7()}")
    over_http, again = (await machine.run(*asked), await machine.run(*asked))
    over_nats = await turnstile(
        *asked, "--config", machine.tenant.stack.config, "--project", machine.tenant.project, cwd=machine.directory
    )
    first, known = over_http.json(), over_nats.json()
    assert (first["duplicate"], again.json()["duplicate"], known["duplicate"]) == (False, True, True)
    assert list(first) == list(known)
    assert {name: first[name] for name in ("agent_turn_id", "output_box_id", "inbox_id", "agent_id", "trace_id")} == {
        name: known[name] for name in ("agent_turn_id", "output_box_id", "inbox_id", "agent_id", "trace_id")
    }
    waited = (await machine.run("enqueue", ALICE, SAID, "--wait", "--json")).json()
    assert (waited["status"], waited["deliverable"], waited["web_ui_url"]) == ("success", WORDS, None)


async def test_a_turn_is_shown_watched_and_stopped(machine: Machine) -> None:
    turn = (await machine.run("enqueue", ALICE, NEVER, "--json")).json()["agent_turn_id"]
    watching = await launch("watch", turn, cwd=machine.directory, **machine.environment)
    open_, stopped = (
        await machine.run("turn", "show", turn),
        await machine.run("turn", "stop", turn, "--reason", "enough"),
    )
    assert (open_.code, "no deliverable yet" in open_.out) == (0, True), open_.err
    assert stopped.out.startswith(f"turn {turn} is stopped")
    async with asyncio.timeout(30):
        out, err = await watching.communicate()
    assert watching.returncode == 0, err
    assert "· ended: canceled (stopped)" in out.decode()
    shown, again = await machine.run("turn", "show", turn, "--json"), await machine.run("turn", "stop", turn, "--json")
    assert (shown.json()["status"], shown.json()["error_code"]) == ("canceled", "stopped")
    assert again.json()["already_final"] is True


async def test_a_turn_is_run_again(machine: Machine) -> None:
    called: JsonObject = {"text": "first", "tool_calls": [{"name": "nothing", "arguments": {}}]}
    failing = steps(called, {"error": {"code": "auth_failed", "message": "no key"}})
    failed = (await machine.run("enqueue", ALICE, failing, "--wait", "--json")).json()
    assert (failed["status"], failed["steps"]) == ("failed", 2)
    turn = failed["agent_turn_id"]
    again = await machine.run("turn", "rerun", turn, "--model", "scripted/echo", "--set", "temperature=0.2")
    assert (again.code, again.err) == (0, ""), again.err
    assert "deliverable" in again.out
    shown = await machine.run("turn", "show", turn)
    assert "run again by  turn 01" in shown.out
    over_nats = await turnstile(
        *("turn", "rerun", turn, "--from-step", "1", "--no-wait", "--json"),
        *("--config", machine.tenant.stack.config, "--project", machine.tenant.project),
        cwd=machine.directory,
    )
    made = (await machine.run("watch", over_nats.json()["agent_turn_id"])).out
    assert "failed (auth_failed)" in made
    wrong = await machine.run("turn", "rerun", turn, "--set", "colour=red")
    assert (wrong.code != 0, "colour" in wrong.err) == (True, True)
    missing = await machine.run("turn", "rerun", turn, "--from-step", "7")
    assert "unknown_step" in missing.err


async def test_a_tree_is_shown_and_stopped(machine: Machine) -> None:
    asked = steps(fork([task(instruction=NEVER)] * 2))
    turn = (await machine.run("enqueue", CHIEF, asked, "--json")).json()["agent_turn_id"]

    async def forked() -> bool:
        return len((await machine.run("turn", "tree", turn, "--json")).json()) == 3

    await until(forked, 30, "two children are there")
    stopped = await machine.run("turn", "stop", turn)
    assert "is stopped, with 2 turns below it" in stopped.out
    followed = await machine.run("turn", "tree", turn, "--follow", "--json")
    last = {line["agent_turn_id"]: line["status"] for line in map(json.loads, followed.out.splitlines())}
    assert (followed.code, set(last.values())) == (0, {"canceled"})
    assert "with all 3 turns" in (await machine.run("turn", "tree", turn)).out


async def test_a_chat_goes_on_and_its_answer_is_stopped(machine: Machine) -> None:
    words = ("chat", "chatty", "--conversation", f"c-{uuid7()}")
    chat = await piped(words, ENVIRONMENT | machine.environment, cwd=machine.directory, typed=True)
    async with asyncio.timeout(40):
        out, err = await chat.communicate(b"one\ntwo\n")
    assert chat.returncode == 0, err
    told = out.decode()
    assert "You said: one (before that: nothing)" in told
    assert "You said: two (before that: one)" in told
    alone = await machine.run("chat", "--model", "scripted/chat", "--json")
    assert (alone.code, alone.json()["error"]["code"]) == (2, "bad_request")


async def test_ctrl_c_leaves_the_turn_running_and_says_how_to_find_it(machine: Machine) -> None:
    file = machine.directory / "token"
    file.write_text(f"{machine.token}\n")
    own = ("--url", machine.url, "--token-file", str(file))
    slow = says(WORDS, chunks=30, delay_seconds=0.5)
    asking = await launch("enqueue", ALICE, slow, "--wait", *own, cwd=machine.directory)
    turn = (await read_until(asking.stdout, "turn")).split()[1]
    asking.send_signal(signal.SIGINT)
    async with asyncio.timeout(25):
        _, err = await asking.communicate()
    assert asking.returncode == 130
    told = " ".join(err.decode().split())
    assert f"turn {turn} goes on" in told
    assert f"`turnstile turn stop {turn} {' '.join(own)}` ends it" in told
    assert machine.token not in told
    assert (await machine.run("turn", "stop", turn)).code == 0


async def test_the_base_install_alone_will_do(machine: Machine) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, TESTS / "packaging" / "base.py", "turnstile", "enqueue", ALICE, SAID, "--wait"),
        cwd=machine.directory,
        env=ENVIRONMENT | machine.environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(40):
        out, err = await process.communicate()
    assert (process.returncode, WORDS in out.decode()) == (0, True), err


async def test_a_turn_that_fails_exits_1(machine: Machine) -> None:
    asked = ("enqueue", ALICE, "hi", "--model", "scripted/nope", "--wait")
    ran, as_json = await machine.run(*asked), await machine.run(*asked, "--json")
    assert (ran.code, as_json.code) == (1, 1)
    assert "(model_unknown)" in ran.err
    assert as_json.json()["error_code"] == "model_unknown"


@pytest.mark.parametrize(
    ("command", "changes", "exit_code", "code", "words"),
    [
        (["enqueue", "nobody", "x"], {}, 1, "unknown_agent", ""),
        (["enqueue", "a.b", "x"], {}, 2, "bad_request", ""),
        (["enqueue", ALICE, "x", "--project", "p"], {}, 2, "bad_request", "to one project"),
        (["enqueue", ALICE, "x", "--channel", "a.b"], {}, 2, "bad_request", "--channel"),
        (["enqueue", ALICE, "x"], {"TURNSTILE_TOKEN": ""}, 2, "config_error", "--token-file"),
        (["enqueue", ALICE, "x"], {"TURNSTILE_TOKEN": "secret"}, 2, "config_error", "begins with tsk_"),
        (["enqueue", ALICE, "x"], {"TURNSTILE_URL": "http://127.0.0.1:1"}, 3, "server_unavailable", "127.0.0.1:1"),
        (["enqueue", ALICE, "x", "--token-file", "none"], {}, 2, "config_error", "none cannot be read"),
        (["enqueue", ALICE, "x", "--url", "x", "--data", "y"], {}, 2, "bad_request", "either --url or --data"),
        (["turn", "show", "01a2"], {}, 1, "unknown_turn", "its whole id"),
        (["turn", "stop", str(uuid7())], {}, 1, "unknown_turn", ""),
        (["watch", ALICE], {}, 1, "unknown_turn", "its whole id"),
        (["turn", "list"], {}, 2, "config_error", "nothing is running here"),
        (["agent", "pause", ALICE], {}, 2, "config_error", "nothing is running here"),
        (["enqueue", ALICE, "x", "--direct"], {}, 2, "config_error", "nothing is running here"),
        (["enqueue", ALICE, "x", "--data", "none"], {}, 2, "config_error", "nothing is running in none"),
    ],
)
async def test_bad_input_has_a_code(
    machine: Machine, command: list[str], changes: dict[str, str], exit_code: int, code: str, words: str
) -> None:
    ran = await machine.run(*command, "--json", **changes)
    error = ran.json()["error"]
    assert (ran.code, error["code"]) == (exit_code, code), error
    assert words in error["message"]
    needs = words == "nothing is running here"
    assert ("connects to PostgreSQL or NATS" in (error["hint"] or "")) is needs
    assert machine.token not in ran.out + ran.err


def names(directory: Path) -> list[str]:
    """What is in a directory."""
    return [path.name for path in directory.iterdir()]


async def test_files_are_sent_listed_read_and_removed(machine: Machine, tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(name)
    sent = await machine.run("file", "put", tmp_path / "a.txt", tmp_path / "b.txt")
    assert (sent.code, sent.err) == (0, "")
    first, second = (line.split()[0] for line in sent.out.splitlines())
    again = (await machine.run("file", "put", tmp_path / "a.txt", "--key", "k", "--name", "c.md", "--json")).json()
    assert [(view["filename"], view["mime"], view["size"]) for view in again] == [("c.md", "text/markdown", 5)]
    listed = (await machine.run("file", "list", "--json")).json()
    assert [view["artifact_id"] for view in listed] == [again[0]["artifact_id"], second, first]
    shown, table = await machine.run("file", "show", first), await machine.run("file", "list", COLUMNS="60")
    assert "text/plain" in shown.out
    assert first in table.out
    asked = await machine.run("enqueue", ALICE, SAID, "--attach", tmp_path / "b.txt", "--attach", first, "--json")
    assert asked.code == 0, asked.err
    named = await machine.tenant.rows("SELECT metadata -> 'artifacts' AS ids FROM cards WHERE metadata ? 'artifacts'")
    assert [first in row["ids"] for row in named] == [True]
    got = await machine.run("file", "get", first, "-o", tmp_path / "back")
    assert (got.code, (tmp_path / "back").read_text()) == (0, "a.txt"), got.err
    assert "--force" in (await machine.run("file", "get", first, "-o", tmp_path)).err
    assert "forbidden" in (await machine.run("file", "remove", first)).err
    operator = await token_of(machine.tenant.stack, machine.tenant.project)
    assert "is removed" in (await machine.run("file", "remove", first, TURNSTILE_TOKEN=operator)).out
    assert "file_unusable" in (await machine.run("file", "put", tmp_path / "missing", "--json")).out


async def test_ctrl_c_in_a_download_leaves_nothing(machine: Machine, tmp_path: Path) -> None:
    view = {"artifact_id": "file-1", "filename": "a", "mime": "text/plain", "size": 9, "channel_id": "public"}
    body = json.dumps({**view, "created_at": "2026-11-27T06:00:00Z"}).encode()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        whole = b"/content" not in head
        size = len(body) if whole else 9
        sent = body if whole else b"half"
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s" % (size, sent))
        await writer.drain()
        if not whole:
            await reader.read()  # until the client has gone
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1")
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        getting = await launch("file", "get", "file-1", cwd=tmp_path, **machine.environment | {"TURNSTILE_URL": url})

        async def begun() -> bool:
            return any(name.startswith(".a.") for name in names(tmp_path))

        await until(begun, 30, "half of it is there")
        getting.send_signal(signal.SIGINT)
        assert await getting.wait() == 130
    assert names(tmp_path) == []
