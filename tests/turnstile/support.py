"""Runs the program `turnstile` as a process."""

import asyncio
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.support.conditions import until
from tests.support.paths import ROOT
from tests.support.processes.hatchery import shared_hatchery
from tests.support.processes.piped import Piped, piped

PROGRAM = Path(sys.executable).with_name("turnstile")
_TERMINAL = ("COLUMNS", "LINES")
"""Variables that pytest's workers set; they are removed, so that a pipe has its own width."""
ENVIRONMENT = {
    name: value
    for name, value in os.environ.items()
    if not name.upper().startswith("TURNSTILE__") and name not in _TERMINAL
}


@dataclass(frozen=True)
class Ran:
    """The exit code and output of a command."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        """Its standard output, which must be one JSON document."""
        return json.loads(self.out)


async def launch(*arguments: str | Path, cwd: Path, **variables: str) -> Piped:
    """Start the command, with its output in pipes."""
    return await piped(arguments, ENVIRONMENT | variables, cwd=cwd)


async def launch_module(module: str, *arguments: str | Path, cwd: Path, **variables: str) -> asyncio.subprocess.Process:
    """Start a module of the repository (`python -m`), with its output in pipes."""
    pipe = asyncio.subprocess.PIPE
    environment = {**ENVIRONMENT, **variables, "PYTHONPATH": str(ROOT)}
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module, *arguments),
        cwd=cwd,
        env=environment,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=pipe,
        stderr=pipe,
    )


async def turnstile(*arguments: str | Path, cwd: Path, module: str | None = None, **variables: str) -> Ran:
    """Run a command, or a module of the repository, to its end."""
    if module is None:
        return await _forked(*arguments, cwd=cwd, **variables)
    process = await launch_module(module, *arguments, cwd=cwd, **variables)
    async with asyncio.timeout(40):
        out, err = await process.communicate()
    assert process.returncode is not None
    return Ran(process.returncode, out.decode(), err.decode())


async def _forked(*arguments: str | Path, cwd: Path, **variables: str) -> Ran:
    """Run a command in a process that has imported everything: starting it costs a tenth of a fresh one."""
    hatched = await shared_hatchery.get()
    with TemporaryDirectory() as directory:
        out, err = Path(directory, "out"), Path(directory, "err")
        process = await hatched.spawn(arguments, ENVIRONMENT | variables, out, errors=err, cwd=cwd)
        try:
            async with asyncio.timeout(40):
                code = await process.wait()
        finally:
            process.kill()
        return Ran(code, *await asyncio.to_thread(lambda: (out.read_text(), err.read_text())))


async def read_until(stream: asyncio.StreamReader | None, words: str, timeout: float = 60.0) -> str:
    """Read up to a line with the words; returns the text read."""
    assert stream is not None
    text = ""
    async with asyncio.timeout(timeout):
        while words not in text:
            line = await stream.readline()
            assert line, f"ended without {words!r}: {text}"
            text += line.decode()
    return text


async def processes_of(data: Path) -> list[tuple[int, str]]:
    """Id and command line of all processes that name the directory."""
    listing = await asyncio.create_subprocess_exec(
        "ps", "-ww", "-eo", "pid=,stat=,args=", stdout=asyncio.subprocess.PIPE
    )
    out, _ = await listing.communicate()
    rows = (line.split(None, 2) for line in out.decode().splitlines())
    alive = (row for row in rows if len(row) == 3 and not row[1].startswith("Z"))
    return [(int(pid), command) for pid, _, command in alive if str(data) in command]


async def until_gone(data: Path) -> None:
    """Wait until no process names the directory."""

    async def gone() -> bool:
        return not await processes_of(data)

    await until(gone, 25, f"nothing runs on {data}", pause=0.05)
