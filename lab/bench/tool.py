"""The program of the tool that measured turns call, which answers at once: `python -m lab.bench.tool NATS_URL`."""

import asyncio
import sys

from turnstile.sdk.tools.service import ToolService

READY = "the tool serves"
tools = ToolService(concurrency=64)


@tools.tool(target="bench", suffix="now", timeout_seconds=60)
async def bench_now() -> dict[str, bool]:
    """Answer at once."""
    return {"ok": True}


if __name__ == "__main__":
    asyncio.run(tools.run(sys.argv[1], ready=lambda: print(READY, file=sys.stderr, flush=True)))  # noqa: T201 -- a program
