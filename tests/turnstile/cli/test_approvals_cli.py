"""`turnstile approvals`, and what watch and chat show of it, as programs: what is shown, sent and refused."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Generator
from contextlib import contextmanager

import pytest
import yaml

from tests.e2e.people.asking import PAY, Person, asked, people
from tests.support.paths import ROOT
from tests.support.processes.stack import SCRIPTS, Stack, running_here
from tests.support.processes.stacks import Stacks
from tests.support.tenants import ALICE, Tenant, new_tenant
from tests.support.tools import Hand, call_of, calling, hand_of, heard_by_model
from tests.turnstile.cli.test_chat import chatting, run
from turnstile.cli.people.quoting import answer_of, escaped, quoted_text, quoted_value
from turnstile.ledger.roster import add_agent, put_profile, put_tool
from turnstile.schema.base import JsonObject
from turnstile.schema.ids import AgentId
from turnstile.schema.tools import ToolDefinition
from turnstile.settings.yaml_files import read_profile

EXAMPLE = ROOT / "examples" / "approvals"
HOSTILE = "fine\n\x1b[2K\x1b[1Aapproved by \u202eecila\u202c\u200b"


@pytest.fixture(scope="module")
async def stack(stacks: Stacks) -> AsyncIterator[Stack]:
    """Worker and bridge in this process, with the scripts of the example."""
    async with stacks.open(scripts=(EXAMPLE / "scripts", *SCRIPTS)) as opened, running_here(opened):
        yield opened


@pytest.fixture
def tenant(stack: Stack) -> Tenant:
    """A project of this test alone."""
    return new_tenant(stack)


@pytest.fixture
async def paying(tenant: Tenant) -> AsyncIterator[Hand]:
    """An agent whose payments wait, and which may ask."""
    async with hand_of(tenant, PAY, interrupt_on={"pay": True}, allowed_tools=["pay", "ask_human"]) as hand:
        yield hand


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain ä 漢 🙂", "plain ä 漢 🙂"),
        ("\x1b[2J\r\n", "\\u001b[2J\\r\\n"),
        ("\u202eevil\u2066", "\\u202eevil\\u2066"),
        ("a\u200bb\ufeff\u00ad", "a\\u200bb\\ufeff\\u00ad"),
        ("a\u00a0b\u3000", "a\\u00a0b\\u3000"),
        ("\u3164\u2800\ufe0f", "\\u3164\\u2800\\ufe0f"),
        ("\U000e0041\U000e0100", "\\udb40\\udc41\\udb40\\udd00"),
        ("\x7f\x85\u2028", "\\u007f\\u0085\\u2028"),
    ],
)
def test_what_does_not_show_as_itself_is_escaped(text: str, shown: str) -> None:
    assert escaped(text) == shown


def test_a_value_is_quoted_so_that_it_can_be_read_back() -> None:
    value: JsonObject = {"to": HOSTILE, "\u202ekey": [1, {"deep": "│ {}"}]}
    lines = quoted_value(value)
    assert all(line.startswith("│ ") for line in lines)
    assert json.loads("\n".join(line[2:] for line in lines)) == value
    assert quoted_text("one\n· two") == ["│ one", "│ · two"]


def test_an_answer_is_a_text_unless_the_question_wants_none() -> None:
    assert answer_of("5", None) == "5"
    assert answer_of("5", {"type": "string"}) == "5"
    assert answer_of("5", {"type": "integer"}) == 5
    assert answer_of('{"a": 1}', {"type": "object"}) == {"a": 1}
    assert answer_of("five", {"type": "integer"}) == "five"


async def test_a_call_is_listed_shown_and_let_go_by_its_digest(tenant: Tenant, paying: Hand) -> None:
    turn = await paying.start(calling(("pay", {"amount": 5, "note": HOSTILE})))
    [held] = await asked(paying, turn)
    [line] = (await run(tenant, "approvals", "list", "--json")).json()
    assert line["arguments"] == held.arguments
    shown = await run(tenant, "approvals", "show", held.id)
    assert '│   "note": "fine\\n\\u001b[2K\\u001b[1Aapproved by \\u202eecila\\u202c\\u200b"' in shown.out
    assert "\x1b" not in shown.out
    assert str(held.view.action_digest) in shown.out
    assert "expires in 6 d" in shown.out
    wrong = await run(tenant, "approvals", "approve", held.id, "--digest", "0" * 64)
    assert (wrong.code, "digest_mismatch" in wrong.err) == (1, True)
    assert paying.commands == []
    done = await run(tenant, "approvals", "approve", held.id, "--comment", "once")
    assert (done.code, "approve: turn" in done.out) == (0, True), done
    await paying.heard()
    await paying.report(call_of(turn), "paid")
    await paying.ended(turn)
    over = await run(tenant, "approvals", "list", "--status", "resolved")
    assert held.id in over.out


async def test_edit_reject_and_respond_from_the_command_line(tenant: Tenant, paying: Hand) -> None:
    question = ("ask_human", {"question": HOSTILE, "response_schema": {"type": "integer"}})
    turn = await paying.start(calling(("pay", {"amount": 5}), ("pay", {"amount": 6}), question))
    first, second, third = await asked(paying, turn, 3)
    bad = await run(tenant, "approvals", "edit", first.id, '["amount"]')
    assert "arguments are a JSON object" in bad.err
    assert (await run(tenant, "approvals", "edit", first.id, '{"amount": 1}')).code == 0
    assert (await run(tenant, "approvals", "reject", second.id, "not today")).code == 0
    shown = await run(tenant, "approvals", "show", third.id)
    assert "│ \\u001b[2K\\u001b[1Aapproved by" in shown.out
    assert (await run(tenant, "approvals", "respond", third.id, "42")).code == 0
    await paying.heard()
    await paying.report(call_of(turn), "paid")
    edited, rejected, answered = heard_by_model(await paying.ended(turn))
    assert edited["arguments_edited_by_a_person"] == {"amount": 1}
    assert rejected["error"]["message"] == "not today"
    assert answered["result"] == {"value": 42}
    told = (await run(tenant, "turn", "show", turn)).out
    assert '→ pay {"amount": 5}\n  → edited by a person: {"amount": 1}' in told.replace("    ", "  "), told


async def test_what_a_tool_asks_is_shown_as_the_tools_and_answered(tenant: Tenant) -> None:
    async with hand_of(tenant) as hand:
        turn = await hand.suspended(calling("search"))
        given: JsonObject = {"tool_call_id": call_of(turn), "key": "1", "tool": "ask_human"}
        given["arguments"] = {"question": HOSTILE}
        await tenant.client.request("delegate", given)
        [question] = await asked(hand, turn)
        shown = await run(tenant, "approvals", "show", question.id)
        assert "The tool search, which alice has called, asks:\n│ " in shown.out
        await question.respond("this one")
        answer = (await tenant.client.request("delegate", given))["answer"]
        assert answer == {"decision": "respond", "response": "this one", "message": ""}
        await hand.report(call_of(turn))
        await hand.ended(turn)


async def test_watch_prints_what_is_asked_and_the_command_that_shows_it(tenant: Tenant, paying: Hand) -> None:
    turn = await paying.start(calling(("pay", {"amount": 5})))
    [held] = await asked(paying, turn)
    async with chatting(tenant, turn, command="watch", begins="") as watching:
        told = await watching.until(f"{held.id}`\n")
        assert "The agent alice wants to call the tool pay." in told
        assert "turnstile approvals show" in told
        await Person(tenant, "ann").decides(held, "reject")
        await watching.until("ended: success")


async def test_a_wrong_answer_in_a_chat_is_told_and_the_question_stays(tenant: Tenant, paying: Hand) -> None:
    steps = {"steps": [calling(("ask_human", {"question": "How many?", "response_schema": {"type": "integer"}}))]}
    async with chatting(tenant, ALICE) as chat:
        chat.type(json.dumps(steps))
        await chat.until("type the answer")
        chat.type("many")
        await chat.until("invalid_response")
        chat.type("7")
        await chat.until("answered\n")
        await chat.until('\\"value\\":7')
        assert await chat.leave() == 0
    assert await people(tenant).interrupts() == []


def printed() -> str:
    """The definition of the tool, as the example prints it."""
    arguments = [sys.executable, EXAMPLE / "pay.py", "--yaml"]
    return subprocess.run(arguments, capture_output=True, check=True, text=True).stdout


@contextmanager
def purse(tenant: Tenant) -> Generator[None]:
    """The tool of the example, as a process."""
    environment = {**os.environ, "NATS_URL": tenant.stack.endpoints.nats_url}
    arguments = [sys.executable, EXAMPLE / "pay.py", "--project", tenant.project]
    process = subprocess.Popen(arguments, env=environment)
    try:
        yield
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=25) == 0
    finally:
        process.kill()
        process.wait()


async def test_the_example_asks_pays_what_is_small_and_waits_with_the_rest(tenant: Tenant) -> None:
    written = (EXAMPLE / "pay.yaml").read_text()
    assert await asyncio.to_thread(printed) == written
    [target] = tenant.stack.settings.worker.worker_targets
    profile = read_profile(EXAMPLE / "clerk.yaml").model_copy(update={"worker_target": target})
    await put_tool(tenant.pool, tenant.project, ToolDefinition.model_validate(yaml.safe_load(written)))
    await put_profile(tenant.pool, tenant.project, profile)
    await add_agent(tenant.pool, tenant.project, AgentId("clerk"), "clerk")
    with purse(tenant):
        async with chatting(tenant, "clerk") as chat:
            chat.type("the baker")
            assert "? clerk asks:\n│ Whose bill is it?" in await chat.until("type the answer")
            chat.type("ours")
            asked_for = await chat.until("/approve")
            assert "? Shall this be paid?" in asked_for
            assert '│   "amount": 500' in asked_for
            chat.type("/approve")
            assert "500 euros were paid to the baker" not in await chat.until("It came to this:")
            await chat.until("3 euros were paid to the post")
            assert await chat.leave() == 0
