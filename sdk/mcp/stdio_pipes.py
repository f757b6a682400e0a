"""An MCP server as a program that speaks on stdin and stdout, a message a line.

A line that is too long ends the connection, and so do many in a row that are no messages. What it writes to stderr is
read and forgotten but for the last words, which an operator may see and no model. It gets few environment variables,
has a session of its own, and ends with this process however that ends.
"""

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TypeAlias

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage

from turnstile.sdk.mcp.lenient import Lenient
from turnstile.sdk.mcp.mcp_server import McpServer, value_of_env
from turnstile.sdk.mcp.pacing import Message, Pace, Streams

_LAUNCH = Path(__file__).with_name("launch_program.py")
_PASSED_ON = ("HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER")
_MOST_BAD_LINES = 100
_LAST_WORDS = 2000
_END_SECONDS = 2.0
_LOOK_SECONDS = 0.02

_Stream: TypeAlias = (
    MemoryObjectSendStream[Message]
    | MemoryObjectReceiveStream[Message]
    | MemoryObjectSendStream[SessionMessage]
    | MemoryObjectReceiveStream[SessionMessage]
)


class LastWords:
    """The end of what a program wrote to stderr, and why it is not heard any more."""

    def __init__(self) -> None:
        self.reason = ""
        self.refuses_post = False
        """Whether a server over HTTP took no message yet, and refused some."""
        self._bytes = b""

    def add(self, chunk: bytes) -> None:
        """Keep the end."""
        self._bytes = (self._bytes + chunk)[-_LAST_WORDS:]

    @property
    def text(self) -> str:
        """As text."""
        return self._bytes.decode(errors="replace").strip()


@asynccontextmanager
async def stdio_pipes(
    entry: McpServer, environ: Mapping[str, str], pace: Pace, words: LastWords, lenient: Lenient
) -> AsyncGenerator[Streams]:
    """The running program; it is ended at the end. Raises `ConfigError` for a missing variable, `OSError`."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-I",
        "-S",
        str(_LAUNCH),
        str(os.getpid()),
        *entry.command,
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
        limit=entry.max_message_bytes,
        cwd=entry.cwd,
        env={
            **{name: environ[name] for name in _PASSED_ON if name in environ},
            **{name: value_of_env(name, environ) for name in entry.env},
        },
        start_new_session=True,
    )
    heard, hears = anyio.create_memory_object_stream[Message](0)
    says, outgoing = anyio.create_memory_object_stream[SessionMessage](0)
    pipes = [
        asyncio.create_task(_read(process, heard, pace, words, lenient)),
        asyncio.create_task(_write(process, outgoing, heard)),
        asyncio.create_task(_listen(process, words)),
    ]
    try:
        yield hears, says
    finally:
        await asyncio.shield(asyncio.create_task(_end(process, pipes, (heard, hears, says, outgoing))))


async def _read(
    process: Process, heard: MemoryObjectSendStream[Message], pace: Pace, words: LastWords, lenient: Lenient
) -> None:
    assert process.stdout is not None  # noqa: S101 -- it is a pipe
    bad = 0
    async with heard:
        while bad <= _MOST_BAD_LINES:
            try:
                line = await process.stdout.readline()
            except ValueError:
                words.reason = "it wrote a line longer than max_message_bytes"
                return
            if not line:
                words.reason = "its program ended"
                return
            await pace.spend(len(line))
            bad += 1
            for message in lenient.lines(line):
                bad = 0
                try:
                    await heard.send(SessionMessage(message))
                except (anyio.ClosedResourceError, anyio.BrokenResourceError):
                    return
        words.reason = f"it wrote more than {_MOST_BAD_LINES} lines one after the other that are no messages"


async def _write(
    process: Process, outgoing: MemoryObjectReceiveStream[SessionMessage], heard: MemoryObjectSendStream[Message]
) -> None:
    assert process.stdin is not None  # noqa: S101 -- it is a pipe
    try:
        async with outgoing:
            async for message in outgoing:
                line = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                process.stdin.write(line.encode() + b"\n")
                await process.stdin.drain()
    except (ConnectionError, OSError):  # it reads no more: whoever waits for an answer gets an error
        await heard.aclose()


async def _listen(process: Process, words: LastWords) -> None:
    assert process.stderr is not None  # noqa: S101 -- it is a pipe
    while chunk := await process.stderr.read(65_536):
        words.add(chunk)


async def _end(
    process: Process,
    pipes: list[asyncio.Task[None]],
    streams: tuple[_Stream, ...],
) -> None:
    """Close stdin, as the protocol says; then SIGTERM, then SIGKILL, to all of its session."""
    assert process.stdin is not None  # noqa: S101 -- it is a pipe
    process.stdin.close()
    for number in (signal.SIGTERM, signal.SIGKILL):
        if await _ended(process):
            break
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
    await _ended(process)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)  # what it has left behind
    for pipe in pipes:
        pipe.cancel()
    await asyncio.wait(pipes)
    for stream in streams:
        stream.close()
    # nothing public closes the pipes' ends here, which a survivor may keep open
    process._transport.close()  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]  # noqa: SLF001


async def _ended(process: Process) -> bool:
    """Whether it has ended, or ends within `_END_SECONDS`; `Process.wait` would wait for who inherited its pipes."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _END_SECONDS
    while process.returncode is None:
        if loop.time() >= deadline:
            return False
        await asyncio.sleep(_LOOK_SECONDS)
    return True
