"""A forked `turnstile` whose input and output are pipes, as `asyncio.create_subprocess_exec` would start it."""

import asyncio
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.support.processes.hatchery import Hatched, shared_hatchery


class Typed:
    """The writing end of a process's standard input."""

    def __init__(self, pipe: Path) -> None:
        # Open for reading too: else it could not be opened before the process has opened it.
        self._pipe: int | None = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)

    def write(self, text: bytes) -> None:
        """Hand it over at once; it must fit into a pipe (64 kB)."""
        assert self._pipe is not None
        assert os.write(self._pipe, text) == len(text)

    def close(self) -> None:
        """The end of the input."""
        if self._pipe is not None:
            os.close(self._pipe)
            self._pipe = None


class Piped:
    """The process, with the interface of `asyncio.subprocess.Process` as far as tests use it."""

    def __init__(
        self, hatched: Hatched, stdin: Typed | None, stdout: asyncio.StreamReader, stderr: asyncio.StreamReader | None
    ) -> None:
        self._hatched = hatched
        self.pid = hatched.pid
        self.stdin = stdin
        self.stdout = stdout
        self.stderr = stderr
        self.send_signal = hatched.send_signal
        self.kill = hatched.kill
        self.terminate = hatched.terminate
        if stdin is not None:
            hatched._ended.add_done_callback(lambda _: stdin.close())

    @property
    def returncode(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        return self._hatched.returncode

    async def wait(self) -> int:
        """Wait for the end; returns the exit code."""
        return await self._hatched.wait()

    async def communicate(self, typed: bytes = b"") -> tuple[bytes, bytes]:
        """Type this, close the input, and read what is printed to its end."""
        if self.stdin is not None:
            self.stdin.write(typed)
            self.stdin.close()
        out = await self.stdout.read()
        err = b"" if self.stderr is None else await self.stderr.read()
        await self.wait()
        return out, err


async def piped(
    words: Sequence[str | Path],
    environment: Mapping[str, str],
    *,
    cwd: Path,
    typed: bool = False,
    given: Path | None = None,
    together: bool = False,
) -> Piped:
    """Fork `turnstile` with pipes; its input is `typed`, a file, or empty; `together` has errors go with the output."""
    hatched = await shared_hatchery.get()
    with TemporaryDirectory() as directory:
        out, err, into = (Path(directory, name) for name in ("out", "err", "in"))
        for pipe in (out, err, into):
            os.mkfifo(pipe)
        stdout = await _reader(out)
        stderr = None if together else await _reader(err)
        stdin = Typed(into) if typed else None
        process = await hatched.spawn(
            words, environment, out, errors=out if together else err, cwd=cwd, given=into if typed else given
        )
        return Piped(process, stdin, stdout, stderr)


async def _reader(pipe: Path) -> asyncio.StreamReader:
    """What comes out of a named pipe, to its end."""
    loop, reader = asyncio.get_running_loop(), asyncio.StreamReader()
    opened = os.fdopen(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK), "rb")
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), opened)
    return reader
