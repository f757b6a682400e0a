"""`turnstile thread` and `turnstile demo-pump` as programs, and the example that the documents show."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.support.processes.stack import QUICK, Config, Stack
from tests.support.pump.organism import Errand, Order
from tests.support.pump.pump import pump_config
from tests.turnstile.support import Ran, launch, processes_of, turnstile
from turnstile.processes.listener_files import load_registry

EXAMPLES = ROOT / "examples" / "pump"
CONFIG: Config = {**QUICK, "nats": {"patience_seconds": 1.3}, "temporal": {"web_ui_url": "http://temporal.example"}}
pytestmark = pytest.mark.stack(pump_config(CONFIG))


async def thread(stack: Stack, *arguments: str | Path, config: Path | None = None) -> Ran:
    """Run `turnstile thread …`."""
    return await turnstile("thread", *arguments, "--config", config or stack.config, cwd=stack.directory)


async def test_without_a_bridge_it_says_so(stack: Stack) -> None:
    ran = await thread(stack, "send", "worker", "<order><do>say</do></order>")
    assert (ran.code, ran.out) == (3, "")
    assert "no bridge is running" in ran.err
    assert "hint:  start `turnstile bridge`" in ran.err


async def test_listeners_are_listed_with_their_schemas(here: Stack) -> None:
    await thread(
        here, "send", "shouter", "<shout><text>hi</text></shout>"
    )  # answered by a worker that has declared them
    listed, xsd, nobody = await asyncio.gather(
        turnstile("listeners", "--json", "--config", here.config, cwd=here.directory),
        turnstile("listeners", "--xsd", "worker", "--config", here.config, cwd=here.directory),
        turnstile("listeners", "--xsd", "nobody", "--json", "--config", here.config, cwd=here.directory),
    )
    found = {each["listener"]: each for each in listed.json()}
    assert (found["worker"]["root_tag"], found["worker"]["workers"]) == ("order", 1)
    assert xsd.out == Order.xsd().decode()
    assert (nobody.code, nobody.json()["error"]["code"]) == (1, "unknown_listener")


async def test_send_prints_the_answer_and_show_the_chain(here: Stack) -> None:
    order = here.directory / "order.json"
    order.write_text('{"do": "ask", "what": "clerk/say/<good>"}')
    sent, as_json, ids = await asyncio.gather(
        thread(here, "send", "shouter", "<shout><text>hi</text></shout>"),
        thread(here, "send", "worker", f"@{order}", "--json", "--correlation-id", "c-1"),
        thread(here, "send", "worker", Order(do="say", what="x").to_xml().decode(), "--no-wait", "--json"),
    )
    assert (sent.code, sent.out) == (0, "<shouted><text>HI</text></shouted>\n"), sent.err
    answer = as_json.json()
    assert (as_json.code, answer["kind"], answer["from"], answer["correlation_id"]) == (0, "reply", "worker", "c-1")
    assert ids.json()["status"] == "accepted"
    shown, with_payloads, again, listed = await asyncio.gather(
        thread(here, "show", answer["thread_id"]),
        thread(here, "show", answer["thread_id"], "--payloads", "--json"),
        thread(here, "send", "worker", f"@{order}", "--json", "--correlation-id", "c-1"),
        thread(here, "list", "--json"),
    )
    for part in (
        "external:turnstile.cli → worker",
        "  worker → clerk",
        "clerk → worker",
        "handled: forward",
        "#1 was answered from worker: reply, responded, announced",
        f"http://temporal.example/namespaces/default/workflows/thread-{answer['thread_id']}",
    ):
        assert part in shown.out
    assert "good" not in shown.out
    found = with_payloads.json()
    assert [each["chain"].rpartition(".")[2] for each in found["messages"]] == ["worker", "clerk", "worker"]
    assert found["messages"][1]["payload"] == "<errand><do>say</do><what>&lt;good&gt;</what></errand>"
    assert (found["status"], found["replies"][0]["reason"]) == ("ended", "responded")
    repeated = again.json()
    assert (again.code, repeated["payload"], repeated["message_id"]) == (0, answer["payload"], answer["message_id"])
    assert {each["thread_id"] for each in listed.json()} >= {answer["thread_id"], ids.json()["thread_id"]}


async def test_what_is_no_answer_has_an_exit_code_and_a_hint(here: Stack, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    gated = Errand(do="gate", what=str(gate))
    ended, undelivered, nobody, wrong, unknown = await asyncio.gather(
        thread(here, "send", "worker", "<order><do>nothing</do></order>"),
        thread(here, "send", "nosuch", "<order/>"),
        thread(here, "send", "clerk", gated.to_xml().decode(), "--timeout", "2.5"),
        thread(here, "send", "a.b", "<order/>", "--json"),
        thread(here, "show", "nosuch"),
    )
    opened = await thread(here, "list", "--open", "--json")
    gate.touch()
    assert (ended.code, ended.out) == (1, "")
    assert "ended without a reply: the last listener returned no reply (ended)" in ended.err
    assert undelivered.code == 1
    assert undelivered.out.startswith("<huh xmlns=")
    assert "(undelivered)" in undelivered.err
    assert nobody.code == 3
    assert "turnstile thread show" in nobody.err
    assert "(no_answer)" in nobody.err
    assert "no worker with listeners" not in nobody.err
    assert (wrong.code, wrong.json()["error"]["code"]) == (2, "bad_request")
    assert (unknown.code, "(unknown_thread)" in unknown.err, "thread list" in unknown.err) == (1, True, True)
    assert [each["open_count"] for each in opened.json()] == [1]  # the one that waits


def test_the_example_is_what_the_demo_runs() -> None:
    """A checkout without symbolic links has the path of the example in its place."""
    assert (ROOT / "turnstile" / "cli" / "demo" / "bakery.py").samefile(EXAMPLES / "bakery.py")


def test_the_example_in_yaml_declares_the_same_listeners(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(EXAMPLES)
    monkeypatch.setattr(sys, "path", [str(EXAMPLES), *sys.path])
    try:
        in_yaml, in_python = (load_registry([name]).listeners for name in ("bakery.yaml", "bakery"))
    finally:
        sys.modules.pop("bakery", None)
    assert in_yaml.keys() == in_python.keys() == {"counter", "stock", "prices"}
    for name, each in in_python.items():
        other = in_yaml[name]
        assert (other.payload, other.handler, other.answers) == (each.payload, each.handler, each.answers)
        assert (other.description, other.retries) == (each.description, each.retries)
    assert in_yaml["stock"].deadline_seconds == 5


@pytest.mark.long
async def test_the_demo_shows_messages_and_chains_and_leaves_nothing(tmp_path: Path) -> None:
    process = await launch("demo-pump", cwd=tmp_path, TMPDIR=str(tmp_path), TURNSTILE__DATABASE__URL="postgresql://x/y")
    async with asyncio.timeout(60):
        out, err = await process.communicate()
    assert process.returncode == 0, err
    for part in (
        "· counter → stock: <reservation><bread>rye</bread><loaves>3</loaves></reservation>",
        "counter answers (responded): <receipt><text>3 rye: 12.60</text></receipt>",
        "· taster → waiter: <text><text>Rye goes with soup, for its crust stays firm.</text></text>",
        "stays firm. I ordered for you: 2 rye: 8.40</text></text>",
        "oven answers (undelivered): <huh",
        "/workflows/thread-",
    ):
        assert part in out.decode()
    assert os.listdir(tmp_path) == []  # noqa: PTH208 -- pathlib's twin is barred from async functions
    assert await processes_of(tmp_path) == []
