"""The tools of chaos runs: `NATS_URL=… python -m lab.chaos.tools --executions FILE`.

A tool appends a line of JSON to the file before it does anything, so that the execution is recorded even if the process
is killed.
"""

import argparse
import asyncio
import json
import logging
import os
import time
from pathlib import Path

from turnstile.schema.tools import ToolDefinition
from turnstile.sdk.tools.service import Terminate, ToolCall, ToolFailed, ToolService

NATS_URL = "NATS_URL"
"""The variable with the address: it has a token in it, and everybody may read a command line."""

TARGET = "chaos"
ACK_WAIT_SECONDS = 3
TIMEOUT_SECONDS = 40.0
NAMES = ("quick", "slow", "fails", "ends", "silent", "mute")

logger = logging.getLogger(__name__)


class Executions:
    """The file of executions."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def note(self, call: ToolCall) -> None:
        """Append a line by one write, so that lines of several processes do not mix."""
        execution = {"call": call.tool_call_id, "tool": call.tool_name, "pid": os.getpid(), "at": time.time()}
        os.write(self._file, json.dumps(execution).encode() + b"\n")


def make_service(executions: Executions | None) -> ToolService:
    """The service of the tools that answer; `silent` and `mute` exist in the ledger only."""
    service = ToolService(ack_wait_seconds=ACK_WAIT_SECONDS, drain_seconds=3.0, heartbeat_seconds=10.0)

    def note(call: ToolCall) -> None:
        if executions is not None:
            executions.note(call)

    @service.tool(target=TARGET, suffix="quick", timeout_seconds=TIMEOUT_SECONDS)
    async def quick(call: ToolCall, n: int = 0) -> dict[str, int]:
        """Answer at once."""
        note(call)
        return {"n": n}

    @service.tool(target=TARGET, suffix="slow", timeout_seconds=3 * TIMEOUT_SECONDS, concurrency=200)
    async def slow(call: ToolCall, seconds: float = 1.0) -> dict[str, float]:
        """Answer after a while."""
        note(call)
        await asyncio.sleep(seconds)
        return {"slept": seconds}

    @service.tool(target=TARGET, suffix="fails", timeout_seconds=TIMEOUT_SECONDS)
    async def fails(call: ToolCall) -> None:
        """Fail."""
        note(call)
        raise ToolFailed("chaos", "this tool always fails")

    @service.tool(target=TARGET, suffix="ends", timeout_seconds=TIMEOUT_SECONDS)
    async def ends(call: ToolCall) -> Terminate[dict[str, bool]]:
        """End the turn."""
        note(call)
        return Terminate({"ended": True})

    del quick, slow, fails, ends  # the decorator has registered them
    return service


def definitions() -> list[ToolDefinition]:
    """All tools, including those that never answer: `silent` times out soon, `mute` waits for a stop."""
    known = make_service(None).definitions()
    nobody = {"silent": 0.0, "mute": 60.0}
    return known + [
        ToolDefinition.model_validate(
            {
                "tool_name": name,
                "description": "Never answers.",
                "target_subject": f"cg.v1r4.{{project_id}}.{{channel_id}}.cmd.tool.{TARGET}.{name}",
                "options": {"suspend_timeout_seconds": seconds} if seconds else {},
            }
        )
        for name, seconds in nobody.items()
    ]


def main() -> None:
    """Serve the tools until stopped."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--executions", type=Path, required=True)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    service = make_service(Executions(arguments.executions))
    asyncio.run(service.run(os.environ[NATS_URL], ready=lambda: logger.info("tools serve")))


if __name__ == "__main__":
    main()
