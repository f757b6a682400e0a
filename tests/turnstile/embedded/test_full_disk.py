"""A full disk under the embedded NATS that was freed: refusals are told in the server's words, and do not last."""

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.support.conditions import until
from turnstile.bridge.publishing.publisher import NatsPublisher
from turnstile.doctor.serving import check_streams
from turnstile.embedded import EmbeddedServers
from turnstile.processes.stream_watch import StreamWatch, WatchTimes
from turnstile.schema.errors import ServerUnavailable
from turnstile.schema.ids import AgentId, ChannelId, ProjectId
from turnstile.schema.wire import subjects
from turnstile.schema.wire.events import Message
from turnstile.transport.connection import NatsConnection, connect
from turnstile.transport.stream_probe import probe_streams
from turnstile.transport.streams import declare_streams

SIZE_MB = 24
SUBJECT = subjects.agent_event(ProjectId("p1"), ChannelId("c1"), AgentId("a1"), "task")
STREAM = subjects.EVT_STREAM
HASTY = WatchTimes(every=0.2, timeout=0.4, failures=2, pause=20)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """The data directory, where `nats` is a small disk of its own."""
    home = tmp_path / "nats"
    home.mkdir(mode=0o700)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={SIZE_MB}m,mode=0700", "tmpfs", str(home)], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {mounted.stderr.strip()}")
    yield tmp_path
    subprocess.run(["umount", "-l", str(home)], check=True)


@pytest.fixture
async def nats(disk: Path) -> AsyncIterator[EmbeddedServers]:
    """NATS alone, on it."""
    async with EmbeddedServers(disk, database_url="postgresql://a", temporal_address="b:7233") as servers:
        yield servers


@pytest.fixture
async def conn(nats: EmbeddedServers) -> AsyncIterator[NatsConnection]:
    """A connection, and streams that have a message each."""
    conn = await connect(nats.endpoints.nats_url, name="test")
    await declare_streams(conn, gone_seconds=0)
    yield conn
    await conn.close()


def fill(file: Path) -> None:
    """No byte is left."""
    descriptor = os.open(file, os.O_CREAT | os.O_WRONLY, 0o600)
    try:
        for _ in range(SIZE_MB * 1024):
            os.write(descriptor, b"x" * 1024)
    except OSError:
        os.close(descriptor)


def message(size: int = 10) -> Message:
    """One that must be stored."""
    return Message(subject=SUBJECT, payload=b"x" * size, headers={}, required=True)


@pytest.mark.long
async def test_streams_that_refuse_after_a_full_disk_are_started_again(
    disk: Path, nats: EmbeddedServers, conn: NatsConnection
) -> None:
    said: list[str] = []
    publisher = NatsPublisher(conn, give_up_seconds=0)
    assert set((await probe_streams(conn, remove=True)).values()) == {None}
    fill(disk / "nats" / "fill")
    with pytest.raises(ServerUnavailable, match=r"acknowledged no message on \S+: no answer in time"):
        await publisher.publish([message(300_000)])
    home, log = nats.home("nats")
    watch = StreamWatch(
        nats.endpoints.nats_url, home, log, restart=lambda: nats.restart("nats"), say=said.append, times=HASTY
    )
    watching = asyncio.create_task(watch.run())

    async def told() -> bool:
        return bool(said)

    await until(told, 10, "the refusal is told")
    assert said[0].startswith("the disk of NATS is full, so events are not stored; no turn is lost. 0 MB are free at ")
    assert "Its log says: " in said[0]
    assert "no space left on device" in said[0]
    refused = {each.name: each for each in await check_streams(conn, log)}[f"stream {STREAM}"]
    assert refused.status == "fail"
    assert refused.hint.startswith("no event comes while it refuses: make room on its disk")
    assert all(isinstance(each, ServerUnavailable) for each in (await probe_streams(conn, remove=True)).values())
    before = nats.pid("nats")
    (disk / "nats" / "fill").unlink()
    found = await probe_streams(conn, timeout=0.5)
    assert isinstance(found[STREAM], ServerUnavailable)  # it refuses for ever, with a disk that is empty

    async def again() -> bool:
        return said[-1] == "the streams of NATS take messages again"

    await until(again, 15, "the streams take messages again")
    watching.cancel()
    assert nats.pid("nats") != before
    [refusal] = said[1:-1]
    assert refusal.startswith("NATS refuses messages: ")
    assert "cg_evt_v1r4: it did not acknowledge a message: no answer in time" in refusal
    assert refusal.endswith("Starting it again on the same data; no turn is lost.")
    await NatsPublisher(conn).publish([message()])


async def test_what_the_server_says_is_told(disk: Path, nats: EmbeddedServers, conn: NatsConnection) -> None:
    """It takes at most three quarters of what was free when it started, and says so when that is used up."""
    publisher = NatsPublisher(conn, give_up_seconds=0)
    sizes = [message(1_000_000)] * SIZE_MB
    with pytest.raises(ServerUnavailable, match=r"insufficient resources \(JetStream error 10023\)"):
        await publisher.publish(sizes)
    refused = {each.name: each for each in await check_streams(conn, nats.home("nats")[1])}[f"stream {STREAM}"]
    assert refused.status == "fail"
    assert "it refuses messages: insufficient resources (JetStream error 10023)" in refused.says
    assert "the log of NATS says: JetStream file resource limits exceeded" in refused.says


async def test_a_probe_leaves_nothing_where_that_is_asked_for(conn: NatsConnection) -> None:
    for _ in range(3):
        assert await probe_streams(conn, remove=True) == dict.fromkeys((subjects.CMD_STREAM, subjects.EVT_STREAM))
    for stream in (subjects.CMD_STREAM, subjects.EVT_STREAM):
        assert (await conn.js.stream_info(stream)).state.messages == 0
