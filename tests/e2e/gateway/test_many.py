"""A hundred clients of one gateway, each cut at random ten times in a turn of 300 chunks; the twin has eight."""

import asyncio
import json
import random
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.support.gateway import Folded, Sent, client, gateway_process, token_of
from tests.support.processes.stack import Stack
from tests.support.tenants import ALICE, Tenant

CLIENTS, CUTS, CHUNKS = 100, 10, 300
TEXT = "".join(f"word-{number} " for number in range(CHUNKS))
PLAY = json.dumps({"steps": [{"text": TEXT, "chunks": CHUNKS, "delay_seconds": 0.1}]})


async def raw_events(url: str, path: str, token: str, last: str | None) -> AsyncIterator[Sent]:
    """The events of a stream over a bare socket: an HTTP client would cost more than the gateway."""
    place = urlsplit(url)
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    resumed = "" if last is None else f"last-event-id: {last}\r\n"
    writer.write(
        f"GET {path} HTTP/1.1\r\nhost: {place.netloc}\r\nauthorization: Bearer {token}\r\n{resumed}\r\n".encode()
    )
    try:
        event, event_id = "", None
        assert b" 200 " in await reader.readline()
        while line := (await reader.readline()).decode().rstrip("\r\n") or await blank(reader):
            if line.startswith("id: "):
                event_id = line[4:]
            elif line.startswith("event: "):
                event = line[7:]
            elif line.startswith("data: "):
                yield Sent(event, json.loads(line[6:]), event_id)
                event, event_id = "", None
    finally:
        writer.close()


async def blank(reader: asyncio.StreamReader) -> str:
    """A stand-in for an empty line; empty only at the end."""
    return "" if reader.at_eof() else ":"


def memory_and_cpu(pid: int) -> tuple[float, float]:
    """MB of memory, and seconds of processor time."""
    resident = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096 / 1e6
    stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return resident, (int(stat[11]) + int(stat[12])) / 100


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_a_hundred_clients_lose_nothing(here: Stack, tenant: Tenant) -> None:
    await tenant.agent("player")
    token = await token_of(here, tenant.project)
    async with gateway_process(here) as (pid, url):
        before = memory_and_cpu(pid)
        async with client(url, token) as web:
            made = await web.post("/v1/turns", json={"agent_id": ALICE, "instruction": PLAY})
        turn = made.json()["agent_turn_id"]

        async def read(number: int) -> Folded:
            draw, folded = random.Random(number), Folded()  # noqa: S311 -- where to cut, not a secret
            await asyncio.sleep(draw.random() * 10)
            for cut in range(CUTS * 4):
                left = draw.randint(1, 40) if cut < CUTS else CHUNKS * 10
                async for sent in raw_events(url, f"/v1/turns/{turn}/events", token, folded.last):
                    folded.take(sent)
                    left -= sent.event == "chunk"
                    if sent.event == "outcome" or not left:
                        break
                if folded.outcome is not None:
                    return folded
            raise AssertionError("no outcome")

        reading = asyncio.gather(*(read(number) for number in range(CLIENTS)))
        peak = 0.0
        while not reading.done():
            peak = max(peak, memory_and_cpu(pid)[0])
            await asyncio.wait([reading], timeout=1)
        found = await reading
        after = memory_and_cpu(pid)
    print(  # noqa: T201 -- the figures of a long run
        f"{CLIENTS} clients: lost {sum(each.lost for each in found)}, doubled {sum(each.doubled for each in found)}, "
        f"resets {sum(each.resets for each in found)}, chunks {sum(each.chunks for each in found)}; "
        f"memory {before[0]:.0f} -> {peak:.0f} MB, {(peak - before[0]) * 1000 / CLIENTS:.0f} kB a stream; "
        f"processor {after[1] - before[1]:.1f} s, {(after[1] - before[1]) * 1000 / CLIENTS:.0f} ms a stream"
    )
    assert sum(each.lost for each in found) == sum(each.doubled for each in found) == 0
    for each in found:
        assert each.text[f"{turn}-s1"] == TEXT or each.resets
        assert {card["content"]["text"] for card in each.cards.values()} == {TEXT}
