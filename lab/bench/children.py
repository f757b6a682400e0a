"""Child processes of the system under test, which never outlive this process.

A child gets SIGTERM when its block ends or when this process dies, and SIGKILL if it does not end. It does not inherit
the user's Turnstile settings: all of its settings are in its file.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import turnstile.embedded
from turnstile.embedded.files import tail
from turnstile.schema.errors import TurnstileError
from turnstile.settings.model import ENV_PREFIX

_LAUNCH = Path(turnstile.embedded.__file__).with_name("launch.py")
_START_SECONDS = 60.0
_GRACE_SECONDS = 20.0
_POLL_SECONDS = 0.01
_LINE_BYTES = 16_777_216

TURNSTILE = ("-c", "from turnstile.cli import main; main()")
"""The program `turnstile`, for this interpreter."""


class BenchError(TurnstileError):
    """The measurement cannot begin, or it failed."""

    code: str = "bench_failed"


@dataclass(frozen=True)
class Child:
    """A running child process; its output goes to its log."""

    name: str
    process: asyncio.subprocess.Process
    log: Path

    @property
    def pid(self) -> int:
        """The process id."""
        return self.process.pid

    def check(self) -> None:
        """Raises `BenchError`, with the end of its log, if it has ended."""
        if self.process.returncode is not None:
            raise BenchError(f"{self.name} ended with code {self.process.returncode}:\n{tail(self.log)}")

    async def wait_for_log(self, words: str) -> None:
        """Wait until the log contains the words; raises `BenchError` if the process ends, or after a minute."""
        try:
            async with asyncio.timeout(_START_SECONDS):
                while words not in self.log.read_text(errors="replace"):
                    self.check()
                    await asyncio.sleep(_POLL_SECONDS)
        except TimeoutError:
            raise BenchError(f"{self.name} does not come up:\n{tail(self.log)}") from None


@asynccontextmanager
async def child(
    name: str, words: Sequence[str], log: Path, *, piped: bool = False, environment: Mapping[str, str] | None = None
) -> AsyncGenerator[Child]:
    """Run this interpreter with these arguments; with `piped` over pipes, else with its output in the log.

    `environment` is added to the variables of this process.
    """
    plan = {"user": None, "group": None, "keep_search": False, "death_signal": signal.SIGTERM, "warden": os.getpid()}
    variables = {key: value for key, value in os.environ.items() if not key.upper().startswith(ENV_PREFIX)}
    pipe, nothing = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    with log.open("wb") as file:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-I",
            "-S",
            str(_LAUNCH),
            json.dumps(plan),
            sys.executable,
            *words,
            env={**variables, **(environment or {})},
            stdin=pipe if piped else nothing,
            stdout=pipe if piped else file,
            stderr=file,
            limit=_LINE_BYTES,
            start_new_session=True,  # only this process gets Ctrl-C of the terminal, and ends the children
        )
    try:
        yield Child(name, process, log)
    finally:
        await _end(process)


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    process.terminate()
    try:
        await asyncio.wait_for(process.wait(), _GRACE_SECONDS)
    except TimeoutError:
        process.kill()
        await process.wait()
