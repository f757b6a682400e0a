"""The program of the tools of measured turns, one of which answers at once: `NATS_URL=… python -m lab.bench.tool`.

The address has the token of NATS in it, and everybody may read a command line.
"""

import asyncio
import os
import sys

from turnstile.sdk.tools.service import ToolService

READY = "the tool serves"
NATS_URL = "NATS_URL"
"""The variable with the address."""
tools = ToolService(concurrency=64)


@tools.tool(target="bench", suffix="now", timeout_seconds=60)
async def bench_now() -> dict[str, bool]:
    """Answer at once."""
    return {"ok": True}


@tools.tool(target="bench", suffix="soon", timeout_seconds=60)
async def bench_soon() -> dict[str, bool]:
    """Answer after 10 ms."""
    await asyncio.sleep(0.01)
    return {"ok": True}


if __name__ == "__main__":
    asyncio.run(tools.run(os.environ[NATS_URL], ready=lambda: print(READY, file=sys.stderr, flush=True)))  # noqa: T201 -- a program
