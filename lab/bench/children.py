"""Programs of the system under test, as processes of their own that never outlive this one.

Each gets SIGTERM when its block ends, or when this process dies however it dies, and SIGKILL if it does not obey. Their
environment has no settings of the user's: what holds for them is in their file.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import turnstile.embedded
from turnstile.embedded.files import tail
from turnstile.schema.errors import TurnstileError
from turnstile.settings.model import ENV_PREFIX

_LAUNCH = Path(turnstile.embedded.__file__).with_name("launch.py")
_PATIENCE_SECONDS = 60.0
_GRACE_SECONDS = 20.0
_LOOK_SECONDS = 0.05
_LINE_BYTES = 16_777_216

TURNSTILE = ("-c", "from turnstile.cli import main; main()")
"""The program `turnstile`, for this interpreter."""


class BenchError(TurnstileError):
    """Nothing can be measured, or what was measured went wrong."""

    code: str = "bench_failed"


@dataclass(frozen=True)
class Child:
    """A running program; what it says goes into its log."""

    name: str
    process: asyncio.subprocess.Process
    log: Path

    @property
    def pid(self) -> int:
        """The running process's."""
        return self.process.pid

    def check(self) -> None:
        """Raises `BenchError`, with the end of its log, if it has ended."""
        if self.process.returncode is not None:
            raise BenchError(f"{self.name} ended with code {self.process.returncode}:\n{tail(self.log)}")

    async def until_it_says(self, words: str) -> None:
        """Returns once its log holds the words; raises `BenchError` if it ends, or does not say them in a minute."""
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                while words not in self.log.read_text(errors="replace"):
                    self.check()
                    await asyncio.sleep(_LOOK_SECONDS)
        except TimeoutError:
            raise BenchError(f"{self.name} does not come up:\n{tail(self.log)}") from None


@asynccontextmanager
async def child(name: str, words: Sequence[str], log: Path, *, piped: bool = False) -> AsyncGenerator[Child]:
    """This interpreter on the words; with `piped` its standard input and output are ours, else output is logged."""
    plan = {"user": None, "group": None, "keep_search": False, "death_signal": signal.SIGTERM, "warden": os.getpid()}
    environment = {key: value for key, value in os.environ.items() if not key.upper().startswith(ENV_PREFIX)}
    pipe, nothing = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    with log.open("wb") as file:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", str(_LAUNCH), json.dumps(plan), sys.executable, *words),
            env=environment,
            stdin=pipe if piped else nothing,
            stdout=pipe if piped else file,
            stderr=file,
            limit=_LINE_BYTES,
            start_new_session=True,  # Ctrl-C of the terminal comes to us, and we end them
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
