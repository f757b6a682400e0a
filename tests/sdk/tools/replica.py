"""A replica of a tool as a process of its own, to be killed: `replica.py URL TARGET FILE [hang] [unsafe]`.

It writes a line into FILE when it starts a call.
"""

import asyncio
import os
import sys
from pathlib import Path

from turnstile.sdk.tools.service import ToolCall, ToolService

url, target, file, *modes = sys.argv[1:]
service = ToolService(ack_wait_seconds=2)


@service.tool(target=target, suffix="work", name=f"work_{target}", repeat="unsafe" if "unsafe" in modes else "safe")
async def work(call: ToolCall) -> int:
    """Work, or hang."""
    with Path(file).open("a") as out:  # noqa: ASYNC230 -- a line
        out.write(f"{os.getpid()} {call.delivery}\n")
    await asyncio.sleep(60 if "hang" in modes else 0)
    return os.getpid()


if __name__ == "__main__":
    asyncio.run(service.run(url))
