"""Programs that are told to end: when they do, what they say of what does not, and with which exit code."""

import signal
import subprocess
import sys
import time
from dataclasses import dataclass

import pytest

_STUBBORN = """
import asyncio, logging, sys, threading, time
from turnstile.runtime.program import Program
import turnstile.runtime.program
turnstile.runtime.program.BLOCKED_SECONDS = 1.2
logging.basicConfig(format="%(message)s")

async def deaf():
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            pass

async def main(stop):
    {begin}
    print("ready", flush=True)
    await stop.wait()

program = Program(end_seconds=2.5)
stop = asyncio.Event()
program.run(main(stop), lambda _: {told})
program.leave(3)
"""


@dataclass(frozen=True)
class Ended:
    """How a program ended."""

    code: int
    says: str
    seconds: float


def end(begin: str, *, told: str = "stop.set()", signals: int = 1) -> Ended:
    """Tell a program to end that has begun this."""
    command = [sys.executable, "-c", _STUBBORN.format(begin=begin, told=told)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        began = time.monotonic()
        for _ in range(signals):
            process.send_signal(signal.SIGTERM)
            time.sleep(0.2)
        _, says = process.communicate(timeout=15)
        return Ended(process.returncode, says, time.monotonic() - began)


def test_what_ends_by_itself_leaves_with_its_code_and_says_nothing() -> None:
    ended = end("pool = asyncio.create_task(asyncio.to_thread(print, end='')); await pool")
    assert (ended.code, ended.says) == (3, "")


@pytest.mark.parametrize(
    ("begin", "told"),
    [
        ("kept = asyncio.create_task(deaf(), name='handler of worker')", "handler of worker at <string>:11 in deaf"),
        ("asyncio.get_running_loop().run_in_executor(None, time.sleep, 30)", "thread asyncio_0 at "),
        ("threading.Thread(target=time.sleep, args=(30,), name='mine').start()", "thread mine at "),
    ],
)
def test_what_does_not_hear_that_it_is_to_end_is_named_and_left_behind(begin: str, told: str) -> None:
    ended = end(begin)
    assert ended.code == 3
    assert "left behind, as it does not end: " + told in ended.says
    assert ended.seconds < 5


def test_who_holds_up_the_event_loop_is_named_and_the_process_ended() -> None:
    ended = end("asyncio.get_running_loop().call_soon(time.sleep, 30)")
    assert ended.code == 1
    assert "ended by force: the event loop has been held up for 1.2 s, by" in ended.says
    assert ended.seconds < 5


def test_a_program_that_does_not_stop_is_ended() -> None:
    ended = end("pass", told="None")
    assert ended.code == 1
    assert "this process has not ended in 2.5 s" in ended.says


@pytest.mark.parametrize("begin", ["pass", "asyncio.get_running_loop().call_soon(time.sleep, 30)"])
def test_a_second_signal_ends_it_at_once(begin: str) -> None:
    ended = end(begin, told="None", signals=2)
    assert ended.code == 130
    assert ended.seconds < 1
