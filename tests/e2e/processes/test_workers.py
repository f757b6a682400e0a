"""Workers: who has signed on in `state.workers`, and text that goes out piece by piece if settings say so."""

import asyncio
import json

import pytest

from tests.support.processes.stack import QUICK
from tests.support.tenants import Tenant, turn_of
from turnstile.schema.base import JsonObject

# Gathers nothing: by default these pieces would be some ten chunks.
pytestmark = pytest.mark.stack({**QUICK, "worker": {**QUICK["worker"], "stream_gather_ms": 0}})

PIECES = 40
PLAY = json.dumps({"steps": [{"text": "word " * PIECES, "chunks": PIECES, "delay_seconds": 0.01}]})


async def test_nothing_is_gathered(tenant: Tenant) -> None:
    agent = await tenant.agent("player")
    chunks: list[JsonObject] = []
    async with tenant.client.watching(agent, include_chunks=True) as events, asyncio.timeout(25):
        turn = turn_of(await tenant.ask({"agent_id": agent, "instruction": PLAY}))
        async for event in events:
            if event.suffix == "chunk":
                chunks.append(event.payload)
                if event.payload["chunk_type"] == "end":
                    break
    assert [chunk["content"] for chunk in chunks if chunk["chunk_type"] == "content"] == ["word "] * PIECES
    await tenant.ended(turn)


PRESENT = "SELECT worker_target FROM state.workers WHERE left_at IS NULL ORDER BY worker_target"
