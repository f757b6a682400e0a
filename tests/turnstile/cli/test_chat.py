"""`turnstile chat` and `conversation` as programs, against a stack: a conversation goes on, a stop ends a turn only."""

import asyncio
import getpass
import signal
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.support.delegation import CHIEF, serving, steps
from tests.support.processes.piped import Piped, piped
from tests.support.processes.stack import SCRIPTS, Stack, running_here
from tests.support.processes.stacks import Stacks
from tests.support.tenants import ALICE, Tenant, new_tenant
from tests.support.tools import calling
from tests.turnstile.support import ENVIRONMENT, Ran, turnstile
from turnstile import ToolCall, ToolService

LENGTHY = """
steps:
  - {text: "You said: {instruction}. I answer slowly, so that you can stop me.", chunks: 12, delay_seconds: 0.2}
"""
"""As the built-in `slow`, in a third of its time."""


@pytest.fixture(scope="module")
async def stack(stacks: Stacks, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    """Worker and bridge in this process."""
    script = tmp_path_factory.mktemp("chat") / "lengthy.yaml"
    script.write_text(LENGTHY)
    async with stacks.open(scripts=(*SCRIPTS, script)) as opened, running_here(opened):
        yield opened


@pytest.fixture
def tenant(stack: Stack) -> Tenant:
    """A project of this test alone."""
    return new_tenant(stack)


class Terminal:
    """A chat in a pipe."""

    def __init__(self, process: Piped) -> None:
        self.process = process
        self.shown = ""

    def type(self, text: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{text}\n".encode())

    async def until(self, words: str) -> str:
        """Read until the words are shown; returns what was shown since the last time."""
        async with asyncio.timeout(30):
            while words not in self.shown:
                piece = await self.process.stdout.read(4096)
                assert piece, f"ended without {words!r}: {self.shown}"
                self.shown += piece.decode()
        before, _, self.shown = self.shown.partition(words)
        return before + words

    async def leave(self) -> int:
        """The end of the input; returns the exit code."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return await asyncio.wait_for(self.process.wait(), 25)


@asynccontextmanager
async def chatting(
    tenant: Tenant, *arguments: str, command: str = "chat", begins: str = "ends it\n"
) -> AsyncGenerator[Terminal]:
    """A chat, or another command, that has begun; remarks are shown with the answers."""
    stack = tenant.stack
    words = (command, *arguments, "--config", stack.config, "--project", tenant.project)
    process = await piped(words, ENVIRONMENT, cwd=stack.directory, typed=True, together=True)
    terminal = Terminal(process)
    try:
        if begins:
            await terminal.until(begins)
        yield terminal
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def run(tenant: Tenant, *arguments: str) -> Ran:
    stack = tenant.stack
    return await turnstile(*arguments, "--config", stack.config, "--project", tenant.project, cwd=stack.directory)


async def test_a_chat_goes_on_where_it_was(tenant: Tenant) -> None:
    await tenant.agent("chat")
    async with chatting(tenant, ALICE) as first:
        first.type("one")
        await first.until("You said: one (before that: nothing)")
        first.type("two")
        assert "You said: two (before that: one)" in await first.until("one)")
        assert await first.leave() == 0
    async with chatting(tenant, ALICE) as second:
        second.type("three")
        await second.until("You said: three (before that: one; two)")
        second.type("/new")
        await second.until("conversation chat-")
        second.type("four")
        await second.until("You said: four (before that: nothing)")
        assert await second.leave() == 0
    async with chatting(tenant, ALICE) as third:
        third.type("five")
        await third.until("You said: five (before that: four)")
    shown = await run(tenant, "conversation", "show", "chat")
    for part in ("alice in channel public", "    two", "    You said: two (before that: one)"):
        assert part in shown.out
    listed = (await run(tenant, "conversation", "list", "--json")).json()
    assert [(each["turn_count"], each["agent_id"]) for each in listed] == [(2, ALICE), (3, ALICE)]


async def test_a_model_is_talked_to_without_an_agent(tenant: Tenant) -> None:
    for before in ("nothing", "one"):
        async with chatting(tenant, "--model", "scripted/chat") as terminal:
            terminal.type("one")
            await terminal.until(f"You said: one (before that: {before})")
            assert await terminal.leave() == 0
    assert (await run(tenant, "chat")).code == 2


async def test_a_chat_with_nobody_ends_at_once(tenant: Tenant) -> None:
    await tenant.agent("chat")
    ran = await run(tenant, "chat", "nobody")
    assert (ran.code, "(unknown_agent)" in ran.err, "ends it" in ran.err) == (1, True, False)


async def test_a_turn_shows_how_its_memory_was_cut(tenant: Tenant) -> None:
    memory = {"keep": "conversation", "max_context_tokens": 20, "when_full": "summarize", "keep_last_turns": 0}
    await tenant.agent("chat", memory={**memory, "summary_model": "scripted/nope"})
    first = await tenant.turn(ALICE, "one two three four five six")
    second = await tenant.turn(ALICE, "seven eight nine ten eleven twelve")
    shown = " ".join((await run(tenant, "turn", "show", second.view.agent_turn_id)).out.split())
    assert (first.view.status, second.view.status) == ("success", "success")
    assert (
        "! memory compacted, it was full: 1 earlier turn left out, without a summary (model_unknown), 0 kept; from"
        in shown
    )


@pytest.mark.parametrize("way", ["typed", "interrupt"])
async def test_a_stop_ends_the_turn_and_not_the_chat(tenant: Tenant, way: str) -> None:
    await tenant.agent("lengthy")
    async with chatting(tenant, ALICE) as terminal:
        terminal.type("count")
        await terminal.until("You said")
        if way == "typed":
            terminal.type("/stop")
        else:
            terminal.process.send_signal(signal.SIGINT)
        await terminal.until("canceled (stopped)")
        terminal.type("again")
        await terminal.until("You said: again")
        assert terminal.process.returncode is None
    assert await tenant.count("state.turn_outcomes", "error_code = 'stopped'") == 1


async def test_ctrl_c_ends_a_chat_that_waits_for_a_line(tenant: Tenant) -> None:
    await tenant.agent("chat")
    async with chatting(tenant, ALICE) as terminal:
        terminal.type("one")
        await terminal.until("nothing)")
        terminal.type("/new")
        await terminal.until("conversation chat-")  # only between two turns
        terminal.process.send_signal(signal.SIGINT)
        assert await asyncio.wait_for(terminal.process.wait(), 25) == 130


async def test_a_ctrl_c_during_the_end_of_a_turn_is_never_ignored(tenant: Tenant) -> None:
    """It stops the turn, or says that there was nothing to stop, or ends the chat: then the next one does."""
    await tenant.agent("chat")
    async with chatting(tenant, ALICE) as terminal:
        terminal.type("one")
        await terminal.until("nothing)")
        terminal.process.send_signal(signal.SIGINT)
        answer = await asyncio.wait_for(terminal.process.stdout.readline(), 25)
        while answer.strip() == b"":  # the end of the answer's line, or of the output
            if not answer:
                break
            answer = await asyncio.wait_for(terminal.process.stdout.readline(), 25)
        assert answer in {b"", b"stopping\n"} or b"the turn had already ended" in answer, answer
        terminal.process.send_signal(signal.SIGINT)
        assert await asyncio.wait_for(terminal.process.wait(), 25) == 130


async def test_a_chat_with_a_profile_has_an_instance(tenant: Tenant) -> None:
    await tenant.profile("Crew", "chat", instances=True)
    async with chatting(tenant, "--profile", "Crew", "--conversation", "mine") as terminal:
        for text in ("one", "two"):
            terminal.type(text)
        await terminal.until("You said: two (before that: one)")
    asked = await run(tenant, "enqueue", "--profile", "crew", "three", "--conversation", "mine", "--wait")
    assert "You said: three (before that: one; two)" in asked.out
    alone = await run(tenant, "enqueue", "--profile", "crew", "four", "--wait")
    assert "You said: four (before that: nothing)" in alone.out
    assert await tenant.count("resource.project_agents") == 2


async def test_what_goes_wrong_is_told_and_the_chat_goes_on(tenant: Tenant) -> None:
    await tenant.agent("chat")
    async with chatting(tenant, "--profile", "crew") as terminal:
        terminal.type("one")
        await terminal.until("unknown_profile")
        await tenant.profile("crew", "chat", instances=True)
        terminal.type("two")
        await terminal.until("You said: two")
    for arguments in ([], [ALICE, "--conversation", "a\nb"]):
        ran = await run(tenant, "chat", *arguments, "--json")
        assert (ran.code, ran.json()["error"]["code"]) == (2, "bad_request")
    missing = await run(tenant, "conversation", "show", "nothing", "--json")
    assert missing.json()["error"]["code"] == "unknown_conversation"


async def test_what_is_typed_during_an_answer_is_heard_by_its_next_step(tenant: Tenant) -> None:
    await tenant.agent("lengthy")
    async with chatting(tenant, ALICE, "--steer") as terminal:
        terminal.type("count")
        await terminal.until("You said")
        terminal.type("louder")
        await terminal.until("sent to the running turn, whose next step reads it")
        await terminal.until("read by step 2: louder")
        await terminal.until("louder. I answer")
        terminal.type("too late")
        await terminal.until("sent to the running turn")
        terminal.type("/stop")
        await terminal.until("canceled (stopped)")
        assert await terminal.leave() == 0
    turn = (await tenant.rows("SELECT agent_turn_id FROM state.steers WHERE project_id = $1", tenant.project))[0]
    shown = (await run(tenant, "turn", "show", turn["agent_turn_id"])).out
    user = getpass.getuser()
    assert f"» {user}: louder" in shown
    assert f"» {user} (skipped): too late" in shown
    late = await run(tenant, "turn", "steer", turn["agent_turn_id"], "later", "--json")
    assert (late.code, late.json()["error"]["code"]) == (1, "already_final")


async def test_a_file_can_be_said_line_by_line(tenant: Tenant) -> None:
    await tenant.agent("chat")
    script = tenant.stack.directory / "lines.txt"
    script.write_text("one\n\ntwo")
    words = ("chat", ALICE, "--config", tenant.stack.config, "--project", tenant.project)
    process = await piped(words, ENVIRONMENT, cwd=tenant.stack.directory, given=script)
    out, _ = await asyncio.wait_for(process.communicate(), 30)
    assert out.decode() == "You said: one (before that: nothing)\nYou said: two (before that: one)\n"


async def test_commands_and_mistyped_ones_never_reach_the_model(tenant: Tenant) -> None:
    await tenant.agent("chat")
    async with chatting(tenant, ALICE) as terminal:
        terminal.type("/help")
        await terminal.until("/exit  end the chat")
        terminal.type("/halp me")
        await terminal.until("/halp is not a command and was not sent")
        terminal.type("//etc/passwd")
        await terminal.until("nothing)")
        terminal.type("/exit")
        assert await asyncio.wait_for(terminal.process.wait(), 25) == 0
    [asked] = await tenant.rows(
        "SELECT content ->> 'text' AS text FROM public.cards WHERE tenant_id = $1"
        " AND metadata ->> 'type' = 'task.instruction'",
        tenant.project,
    )
    assert asked["text"] == "/etc/passwd"


async def test_a_tools_progress_is_told_and_a_long_silence_explained(tenant: Tenant) -> None:
    service, told = ToolService(tenant.project), asyncio.Event()

    @service.tool(target="office", suffix="search", timeout_seconds=60)
    async def search(call: ToolCall) -> str:
        """Search for long."""
        while not told.is_set():
            await call.progress(3, total=7, message="reading")
            await asyncio.sleep(0.5)
        return "found"

    del search  # the service has it
    async with serving(tenant, service), chatting(tenant, CHIEF) as terminal:
        terminal.type(steps(calling(("search", {})), {"text": "so be it"}))
        await terminal.until("search 3 of 7: reading")
        told.set()
        await terminal.until("so be it")
        assert await terminal.leave() == 0


async def test_a_long_silence_is_explained(tenant: Tenant) -> None:
    await tenant.agent("player")
    async with chatting(tenant, ALICE) as terminal:
        terminal.type(steps({"text": "at last", "delay_seconds": 5, "chunks": 2}))
        await terminal.until("no answer yet: the turn is waiting, or its model has not responded")
