"""`make demo-temporal`: both samples against a `turnstile up` of its own, in a temporary directory and on free ports.

It prints what happens, and leaves nothing running, also on Ctrl-C.
"""

import asyncio
import json
import os
import signal
import sys
import tempfile
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

HERE = Path(__file__).parent
TURNSTILE = Path(sys.executable).with_name("turnstile")
_END_SECONDS = 30.0
_OWN = ("NATS_URL", "TURNSTILE_URL", "TURNSTILE_TOKEN", "TEMPORAL_ADDRESS", "TEMPORAL_NAMESPACE")
"""Variables that would lead to servers of somebody else; so would all that begin with TURNSTILE__."""


def say(text: str) -> None:
    """Print a line."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


@asynccontextmanager
async def process(log: Path, env: dict[str, str], *words: str | Path) -> AsyncGenerator[asyncio.subprocess.Process]:
    """A program in a group of its own, so that Ctrl-C is ours to pass on; ended with the block."""
    with log.open("wb") as out:
        started = await asyncio.create_subprocess_exec(
            *words, stdout=out, stderr=out, env=env, cwd=HERE, start_new_session=True
        )
    try:
        yield started
    finally:
        if started.returncode is None:
            started.send_signal(signal.SIGTERM)
            try:
                await asyncio.wait_for(started.wait(), _END_SECONDS)
            except TimeoutError:
                started.kill()
                await started.wait()


async def until_it_says(words: str, log: Path, of: asyncio.subprocess.Process) -> None:
    """Wait until the program's output has these words; raises `RuntimeError` with its end if it ends before."""
    while words not in (output := log.read_text(errors="replace")):  # noqa: ASYNC240 -- a demo
        if of.returncode is not None:
            raise RuntimeError(f"it ended with {of.returncode}:\n{output[-2000:]}")
        await asyncio.sleep(0.1)


async def run(env: dict[str, str], *words: str | Path) -> str:
    """The output of a command; raises `RuntimeError` with its errors if it fails."""
    piped = asyncio.subprocess.PIPE
    started = await asyncio.create_subprocess_exec(
        *words, stdout=piped, stderr=piped, env=env, cwd=HERE, start_new_session=True
    )
    try:
        out, errors = await started.communicate()
    except asyncio.CancelledError:
        with suppress(ProcessLookupError):
            started.terminate()
        await started.wait()
        raise
    if started.returncode != 0:
        raise RuntimeError(f"{words[1]} failed:\n{errors.decode()[-2000:]}")
    return out.decode().strip()


async def play(directory: Path) -> None:
    """All of it."""
    data, logs = directory / "data", directory
    env = {name: value for name, value in os.environ.items() if name not in _OWN and not name.startswith("TURNSTILE__")}
    here = ("--data", data)
    async with AsyncExitStack() as stack:
        say("starting PostgreSQL, NATS, Temporal, worker and bridge …")
        serving = await stack.enter_async_context(process(logs / "up.log", env, TURNSTILE, "up", *here))
        await until_it_says("Ctrl-C", logs / "up.log", serving)
        endpoints = json.loads((data / "endpoints.json").read_text())
        env |= {
            "NATS_URL": endpoints["nats_url"],
            "TEMPORAL_ADDRESS": endpoints["temporal_address"],
            "TEMPORAL_NAMESPACE": endpoints["temporal_namespace"],
        }
        await run(env, TURNSTILE, "tool", "put", HERE / "order.yaml", *here)
        for name in ("critic", "editor", "buyer"):
            await run(env, TURNSTILE, "profile", "put", HERE / f"{name}.yaml", *here)

        say("\na workflow asks three agents at once, and a fourth reads their answers (review.py):")
        say(await run(env, sys.executable, HERE / "review.py", "We ship on Friday"))

        say("\nan agent calls a workflow as its tool (order.py):")
        log = logs / "order.log"
        shop = await stack.enter_async_context(process(log, env, sys.executable, HERE / "order.py"))
        await until_it_says("serving", log, shop)
        say(await run(env, TURNSTILE, "enqueue", "--profile", "buyer", "tea", "--wait", *here))

        say("\nthe turns, one for each call:")
        say(await run(env, TURNSTILE, "turn", "list", *here))
    say("\nnothing runs any more")


async def main() -> int:
    """The exit code."""
    playing = asyncio.current_task()
    assert playing is not None  # noqa: S101 -- inside `asyncio.run`
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, playing.cancel)
    with tempfile.TemporaryDirectory(prefix="turnstile-demo-") as directory:
        try:
            await play(Path(directory))
        except asyncio.CancelledError:
            say("\nstopped; nothing runs any more")
            return 130
        except RuntimeError as error:
            sys.stderr.write(f"{error}\n")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
