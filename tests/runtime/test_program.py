"""Programs that are told to end: when they do, what they say of what does not, and with which exit code."""

import signal
import subprocess
import sys
import time
from dataclasses import dataclass

import pytest

_STUBBORN = """
import asyncio, logging, sys, threading, time
from turnstile.runtime.event_loop import fast_loop
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

program = Program(end_seconds=2.5, late_seconds={late}, new_loop={loop})
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


@pytest.fixture(params=["asyncio.new_event_loop", "fast_loop"], autouse=True)
def loop(request: pytest.FixtureRequest) -> str:
    """The event loop of the program, by its name there."""
    return str(request.param)


def end(begin: str, loop: str, *, told: str = "stop.set()", signals: int = 1, late: float | None = None) -> Ended:
    """Tell a program to end that has begun this."""
    command = [sys.executable, "-c", _STUBBORN.format(begin=begin, told=told, loop=loop, late=late)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        began = time.monotonic()
        for _ in range(signals):
            process.send_signal(signal.SIGTERM)
            time.sleep(0.2)
        _, says = process.communicate(timeout=25)
        return Ended(process.returncode, says, time.monotonic() - began)


def test_what_ends_by_itself_leaves_with_its_code_and_says_nothing(loop: str) -> None:
    ended = end("pool = asyncio.create_task(asyncio.to_thread(print, end='')); await pool", loop)
    assert (ended.code, ended.says) == (3, "")


@pytest.mark.parametrize(
    ("begin", "told"),
    [
        ("kept = asyncio.create_task(deaf(), name='handler of worker')", "handler of worker at <string>:12 in deaf"),
        ("asyncio.get_running_loop().run_in_executor(None, time.sleep, 30)", "thread {pool}_0 at "),
        ("threading.Thread(target=time.sleep, args=(30,), name='mine').start()", "thread mine at "),
    ],
)
def test_what_does_not_hear_that_it_is_to_end_is_named_and_left_behind(begin: str, told: str, loop: str) -> None:
    ended = end(begin, loop)
    assert ended.code == 3
    pool = "uvloop" if loop == "fast_loop" else "asyncio"
    assert f"left behind, as it does not end: {told.format(pool=pool)}" in ended.says
    assert ended.seconds < 5


def test_who_holds_up_the_event_loop_is_named_and_the_process_ended(loop: str) -> None:
    ended = end("asyncio.get_running_loop().call_soon(time.sleep, 30)", loop)
    assert ended.code == 1
    assert "ended by force: the event loop has been held up for 1.2 s, by" in ended.says
    assert ended.seconds < 5


def test_a_program_that_does_not_stop_is_ended(loop: str) -> None:
    ended = end("pass", loop, told="None")
    assert ended.code == 1
    assert "this process has not ended in 2.5 s" in ended.says


def test_a_program_that_waits_and_does_not_hear_that_it_is_late_is_named_twice_and_left_behind(loop: str) -> None:
    ended = end(
        "kept = asyncio.create_task(deaf(), name='patient'); print('ready', flush=True); await deaf()", loop, late=0.3
    )
    assert ended.code == 0
    assert "not ended 0.3 s after the signal, and canceled: patient at <string>:12 in deaf" in ended.says
    assert "left behind, as it does not end: patient at <string>:12 in deaf" in ended.says


@pytest.mark.parametrize("begin", ["pass", "asyncio.get_running_loop().call_soon(time.sleep, 30)"])
def test_a_second_signal_ends_it_at_once(begin: str, loop: str) -> None:
    ended = end(begin, loop, told="None", signals=2)
    assert ended.code == 130  # and not 1, as after the seconds that it has
