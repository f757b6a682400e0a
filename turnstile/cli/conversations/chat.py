"""`turnstile chat`: one turn for each line of input, all in one conversation.

What is typed at a terminal while a turn is answered answers what it asks a person, else steers it. What comes too late
for that, and from a pipe all else, waits for the turn's end, but for `/stop`. Leaving the chat stops no turn; the next
chat goes on in the conversation that was used last.

A line that begins with `/` is a command and never reaches a model; one that begins with `//` is said with one of them.
"""

import asyncio
import json
import os
import sys
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TextIO

from turnstile.cli.errors import failure_of
from turnstile.cli.people.turn_questions import TurnQuestions
from turnstile.cli.people.turn_steers import TurnSteers
from turnstile.cli.session import Session
from turnstile.cli.turns.asking import EnqueueArguments, enqueue, request_of
from turnstile.cli.turns.follow import explaining
from turnstile.cli.turns.live import LiveView, progress_line, tool_progress
from turnstile.schema import verbs
from turnstile.schema.base import JsonObject
from turnstile.schema.errors import BadRequest, TurnstileError
from turnstile.schema.ids import ConversationId, conversation_named, uuid7
from turnstile.schema.ledger_reads import ConversationsRead, MemoryRead, ReadRequest
from turnstile.schema.profiles import LlmConfig, Memory, Profile
from turnstile.schema.wire.inbox import EnqueueRequest
from turnstile.schema.wire.roster_requests import ProfilePutRequest
from turnstile.sdk.requests import parse_request
from turnstile.sdk.turn import Turn
from turnstile.sdk.turns import Client

_PIECE = 65_536
CHAT = "chat"
"""The first conversation of a chat with an agent; those of `/new` are called `chat-…`."""
OF_MODEL = "model-chat"
"""The profile whose instances are talked to where only a model was named."""
STOP, NEW, HELP, EXIT = "/stop", "/new", "/help", "/exit"
COMMANDS = {
    STOP: "stop the turn that is being answered (so does Ctrl-C)",
    NEW: "begin a new conversation",
    HELP: "show these commands",
    EXIT: "end the chat (so does Ctrl-D); turns go on",
}
_QUIET_SECONDS = 3.0
"""After this long without a word a line says what the chat waits for."""
_SEARCHED = 1000


@dataclass(frozen=True, slots=True)
class Partner:
    """Who is talked to: an agent, the instances of a profile, or a model alone."""

    agent: str | None
    profile: str | None
    model: str | None = None

    def ask(self, text: str, conversation: ConversationId) -> EnqueueRequest:
        """The request for one line; raises `BadRequest` naming what is wrong."""
        profile = OF_MODEL if self.of_model else self.profile
        question = EnqueueArguments(
            self.agent, text, uuid7(), profile=profile, model=self.model, conversation=conversation
        )
        return request_of(question)

    @property
    def name(self) -> str:
        """The agent, the profile or the model; empty if none was named."""
        return self.agent or self.profile or self.model or ""

    @property
    def of_model(self) -> bool:
        """Whether only a model was named."""
        return not self.agent and not self.profile and bool(self.model)


def profile_of_model(model: str, target: str) -> Profile:
    """A profile for talking to a model: it remembers the conversation, of which the earliest turns leave a full one."""
    config, memory = LlmConfig(model=model), Memory(keep="conversation")
    return Profile(
        name=OF_MODEL,
        worker_target=target,
        system_prompt_template="You are a helpful assistant.",
        llm_config=config,
        memory=memory,
        instances=True,
    )


def is_command(line: str) -> bool:
    """Whether a line is for the chat itself."""
    return line.startswith("/") and not line.startswith("//")


def said(line: str) -> str:
    """What a line says to an agent."""
    return line[1:] if line.startswith("//") else line


class InputLines:
    """Reads lines of a terminal, a pipe or a file, without holding up the event loop and without a thread."""

    def __init__(self, stream: TextIO) -> None:
        self._fd = stream.fileno()
        self._unread = b""
        self._ended = False

    async def next(self) -> str | None:
        """The next line without its end; None at the end of the input."""
        while b"\n" not in self._unread and not self._ended:
            await self._readable()
            piece = os.read(self._fd, _PIECE)
            self._unread += piece
            self._ended = not piece
        if not self._unread:
            return None
        line, _, self._unread = self._unread.partition(b"\n")
        return line.decode(errors="replace").removesuffix("\r")

    async def _readable(self) -> None:
        """Wait until there is something to read; a file always has."""
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[None] = loop.create_future()
        with suppress(PermissionError):  # epoll does not take files
            loop.add_reader(self._fd, lambda: ready.done() or ready.set_result(None))
            try:
                await ready
            finally:
                loop.remove_reader(self._fd)


class Chat:
    """A chat at the terminal, or over a pipe."""

    def __init__(self, session: Session, partner: Partner, *, steers: bool) -> None:
        """`steers`: what is typed while a turn is answered is said to it."""
        self._session = session
        self._partner = partner
        self._steers = steers
        self._lines: asyncio.Queue[str | None] = asyncio.Queue()
        self._said: TurnSteers | None = None
        """Takes what is typed while a turn is answered."""
        self._late: deque[str] = deque()
        """What came too late for a turn: the next ones ask it."""
        self._stop = asyncio.Event()
        """Set by `/stop` and Ctrl-C while a turn is answered."""
        self._stopped = False
        """Whether the stop was sent: a turn that ends in the same moment needs none."""
        self._answering = False
        self._asked: TurnQuestions | None = None
        """What the turn in hand asks the person at the terminal."""

    async def run(self, conversation: str | None) -> None:
        """Talk until the input ends; raises `BadRequest`, `Refused` or `ServerUnavailable` before the first line."""
        if self._partner.name == "":
            raise BadRequest("name an agent, or a profile with --profile, or a model with --model")
        named = None if conversation is None else conversation_named(conversation, "--conversation")
        session = self._session
        if self._partner.of_model and session.gateway is not None:
            raise BadRequest(
                "--model alone creates a profile, which needs NATS: with a gateway, name an agent or a profile"
            )
        async with session.client() as client:
            current = await self._last(client, named)
            if self._partner.of_model and self._partner.model:
                profile = profile_of_model(self._partner.model, session.settings.worker.worker_targets[0])
                await client.bridge.call(verbs.PROFILE_PUT, ProfilePutRequest(profile=profile))
            session.out.remark(
                f"conversation {current} with {self._partner.name}: {HELP} lists the commands, Ctrl-D ends it"
            )
            async with self._reading():
                while (line := await self._next()) is not None:
                    match line.strip():
                        case "":
                            continue
                        case "/exit":
                            return
                        case "/new":
                            current = ConversationId(f"{CHAT}-{uuid7()[-12:]}")
                            session.out.remark(f"conversation {current}")
                        case text if is_command(text):
                            self._command(text)
                        case text:
                            await self._talk(client, said(text), current)

    def _command(self, text: str) -> None:
        """A command that asks no model: its help, or why it is none."""
        out = self._session.out
        if text == HELP:
            for name, does in COMMANDS.items():
                out.remark(f"{name:<6} {does}")
            out.remark("//…    send a text that begins with /")
        elif text == STOP:
            out.remark("nothing is being answered")
        else:
            name = text.split(maxsplit=1)[0]
            out.remark(
                f"{name} is not a command and was not sent; {HELP} lists them. To say a text beginning with /, type //"
            )

    async def _next(self) -> str | None:
        if sys.stdin.isatty():
            self._session.out.stream("> ", style="bold")
        return self._late.popleft() if self._late else await self._lines.get()

    async def _talk(self, client: Client, text: str, current: ConversationId) -> None:
        """One turn; what goes wrong with it is printed, and the chat goes on."""
        session, steers = self._session, TurnSteers(self._session)
        self._answering = True
        self._said = steers if self._steers else None
        session.on_interrupt = self._stop.set
        self._stop.clear()
        self._stopped = False
        try:
            await self._turn(client, self._partner.ask(text, current), steers)
        except TurnstileError as error:
            session.out.failure(failure_of(error))
        finally:
            session.on_interrupt = None
            self._answering, self._said = False, None
            self._late.extend(steers.unsaid())
            if self._stop.is_set() and not self._stopped:
                session.out.remark("the turn had already ended, so nothing was stopped; Ctrl-C now ends the chat")

    async def _turn(self, client: Client, request: EnqueueRequest, steers: TurnSteers) -> None:
        session = self._session
        turn = client.ask_for(request)
        async with turn.chunks() as chunks:
            await enqueue(session, client, turn)
            named = await turn.start()
            view = LiveView(session.out, named, events=False)
            self._asked = TurnQuestions(session, client, named, answers=True)
            stopping = asyncio.create_task(self._stop_when_asked(turn))
            steering = asyncio.create_task(steers.run(turn))
            asking = asyncio.create_task(self._asked.watch())
            watching = asyncio.create_task(self._tell_progress(client, turn, view))
            try:
                async with explaining(session, turn):
                    async for chunk in chunks:
                        view.take_chunk(chunk)
            finally:
                view.close()
                self._asked = self._said = None
                stopping.cancel()
                asking.cancel()
                watching.cancel()
                await steers.close()
                await asyncio.wait({stopping, asking, steering, watching})
        await self._print_end(turn, streamed=view.streamed)

    async def _tell_progress(self, client: Client, turn: Turn, view: LiveView) -> None:
        """Say what the chat waits for while no word comes; over NATS also how far tools are, as they say."""

        async def say_that_it_is_quiet() -> None:
            try:
                async with asyncio.timeout(_QUIET_SECONDS):
                    await view.heard.wait()
            except TimeoutError:
                local = " (a local model is loaded first)" if (self._partner.model or "").startswith("local/") else ""
                self._session.out.remark(f"no answer yet: the turn is waiting, or its model has not responded{local}")

        last = ""

        def say(line: str) -> None:
            nonlocal last
            if line and line != last:
                view.close()
                self._session.out.remark(line)
                last = line

        async def say_how_far_tools_are() -> None:
            if self._session.gateway is not None or turn.reply is None:
                return  # the turn itself says it
            async with client.bridge.watching(turn.reply.agent_id) as events:
                async for event in events:
                    say(tool_progress(event, turn.reply.agent_turn_id))

        turn.on_progress = lambda progress: say(progress_line(progress))
        await asyncio.gather(say_that_it_is_quiet(), say_how_far_tools_are())

    async def _stop_when_asked(self, turn: Turn) -> None:
        """Stop the turn once that is asked for; from then on Ctrl-C ends the chat."""
        await self._stop.wait()
        session = self._session
        self._stopped = True
        session.on_interrupt = None
        session.out.remark("stopping")
        try:
            await turn.stop("chat")
        except TurnstileError as error:
            session.out.failure(failure_of(error))

    async def _print_end(self, turn: Turn, *, streamed: bool) -> None:
        """Print how the turn ended, and its deliverable unless its text was streamed."""
        result = await turn.result()
        out = self._session.out
        if not result.ok:
            out.remark(
                f"{result.status}{f' ({result.error_code})' if result.error_code else ''}: turn {result.agent_turn_id}"
            )
        elif not streamed:
            value = result.value
            out.line(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))

    async def _last(self, client: Client, named: ConversationId | None) -> ConversationId:
        """The named conversation, else the chat that was used last with the agent in this channel, else the first one.

        Only operators over NATS see the earlier ones. Raises `Refused` (unknown_agent) to them.
        """
        session, agent = self._session, self._partner.agent
        if agent is not None:
            memory = ReadRequest(memory=parse_request(MemoryRead, {"agent_id": agent}))
            if await session.read_if_operator(client, memory) is not None and named is None:
                fields: JsonObject = {"agent_id": agent, "channel_id": session.channel, "limit": _SEARCHED}
                page = ReadRequest(conversations=parse_request(ConversationsRead, fields))
                rows = (await session.read_on(client.bridge, page)).conversations
                chats = [row for row in rows if row.conversation_id.partition("-")[0] == CHAT]
                return chats[0].conversation_id if chats else ConversationId(CHAT)
        return named or ConversationId(CHAT)

    @asynccontextmanager
    async def _reading(self) -> AsyncGenerator[None]:
        """Read lines into the queue; `/stop` acts at once if a turn is being answered."""

        async def read() -> None:
            lines = InputLines(sys.stdin)
            while (line := await lines.next()) is not None:
                if line.strip() == STOP and self._answering:
                    self._stop.set()
                elif self._asked is not None and self._asked.wants(line):
                    await self._asked.take(line)
                elif self._answering and is_command(line.strip()) and line.strip() not in {NEW, EXIT}:
                    self._command(line.strip())
                elif self._said is not None and self._lines.empty() and line.strip() and not is_command(line.strip()):
                    await self._said.take(said(line.strip()))
                else:
                    await self._lines.put(line)
            await self._lines.put(None)

        reading = asyncio.create_task(read())
        try:
            yield
        finally:
            reading.cancel()
            with suppress(asyncio.CancelledError):
                await reading
