"""A process of tools ends when it is told to: while NATS is away, and whatever its functions do."""

import signal
import subprocess
import sys
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lab.support.nats_server import NatsServer
from tests.support.paths import ROOT

WORD_COUNT = ROOT / "examples" / "tools" / "word_count.py"
DEAF = """
import asyncio
from turnstile.sdk.tools.function_run import ToolRun
from turnstile.sdk.tools.service import ToolService

service = ToolService(drain_seconds=0.2)
begun = []

@service.tool(target="ends", suffix="deaf")
async def deaf() -> None:
    '''Never hears that it is to end.'''
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            pass

# A call in hand, without a kernel that makes it.
original = service._serve
async def serve(conn, workers, stop):
    begun.append(ToolRun(deaf, {}))
    await original(conn, workers, stop)
service._serve = serve
service.main()
"""


@contextmanager
def running(*command: str | Path) -> Generator["subprocess.Popen[str]"]:
    """A program, killed at the end."""
    with subprocess.Popen([sys.executable, *command], stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def said(process: "subprocess.Popen[str]", words: str) -> str:
    """Its log, once it has a line with the words."""
    assert process.stderr is not None
    log = ""
    while words not in log:
        line = process.stderr.readline()
        assert line, log
        log += line
    return log


@pytest.fixture
def server() -> Iterator[NatsServer]:
    """One that is not started."""
    made = NatsServer()
    yield made
    made.remove()


def test_it_can_be_stopped_while_it_waits_for_nats(server: NatsServer) -> None:
    with running(WORD_COUNT, "--nats", server.url) as process:
        said(process, "waiting for NATS")
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        _, rest = process.communicate(timeout=25)
        assert process.returncode == 0
        assert "Traceback" not in rest
        assert time.monotonic() - began < 5


@pytest.mark.long
def test_it_can_be_stopped_when_nats_has_gone(server: NatsServer) -> None:
    server.start()
    with running(WORD_COUNT, "--nats", server.url) as process:
        said(process, "serving word_count")
        server.kill()
        said(process, f"NATS at {server.url}: ")  # the end of its connection, or its reset
        process.send_signal(signal.SIGTERM)
        _, rest = process.communicate(timeout=25)
        assert process.returncode == 0
        assert "Traceback" not in rest


def test_a_function_that_does_not_hear_that_it_is_to_end_is_named_and_left_behind(server: NatsServer) -> None:
    server.start()
    with running("-c", DEAF, "--nats", server.url) as process:
        said(process, "serving deaf")
        process.send_signal(signal.SIGTERM)
        _, rest = process.communicate(timeout=25)
        assert process.returncode == 0
        assert "left behind, as it does not end: tool deaf at <string>" in rest
