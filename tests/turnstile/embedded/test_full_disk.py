"""Full disks under the embedded servers: what is told, what `up` waits for, and what it then mends by itself.

NATS stands for all three where the server does not matter: it starts in a tenth of a second.
"""

import asyncio
import os
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.support.conditions import until
from tests.support.processes.small_disks import SmallDisk, small_disk
from tests.turnstile.support import turnstile
from turnstile.bridge.publishing.publisher import NatsPublisher
from turnstile.doctor.serving import check_streams
from turnstile.doctor.storage import check_disks
from turnstile.embedded import EmbeddedServers
from turnstile.embedded.server_errors import DataDirectoryUnusable
from turnstile.processes import up
from turnstile.processes.up import StreamWatch, WatchTimes
from turnstile.schema.errors import ServerUnavailable
from turnstile.schema.ids import AgentId, ChannelId, ProjectId
from turnstile.schema.wire import subjects
from turnstile.schema.wire.events import Message
from turnstile.transport.connection import NatsConnection, connect
from turnstile.transport.stream_probe import probe_streams
from turnstile.transport.streams import declare_streams

SIZE_MB = 40
SUBJECT = subjects.agent_event(ProjectId("p1"), ChannelId("c1"), AgentId("a1"), "task")
STREAM = subjects.EVT_STREAM
HASTY = WatchTimes(every=0.2, timeout=0.4, failures=2, pause=20)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    """What `nats` of the data directory is on."""
    home = tmp_path / "nats"
    home.mkdir(mode=0o700)
    with small_disk(home, SIZE_MB) as disk:
        yield disk


@pytest.fixture
async def nats(disk: SmallDisk) -> AsyncIterator[EmbeddedServers]:
    """NATS alone, on it."""
    async with EmbeddedServers(disk.path.parent, database_url="postgresql://a", temporal_address="b:7233") as servers:
        yield servers


@pytest.fixture
async def conn(nats: EmbeddedServers) -> AsyncIterator[NatsConnection]:
    """A connection, and streams that have a message each."""
    conn = await connect(nats.endpoints.nats_url, name="test")
    await declare_streams(conn, gone_seconds=0)
    yield conn
    await conn.close()


def message(size: int = 10) -> Message:
    """One that must be stored."""
    return Message(subject=SUBJECT, payload=b"x" * size, headers={}, required=True)


@pytest.mark.long
async def test_streams_that_refuse_after_a_full_disk_are_started_again(
    disk: SmallDisk, nats: EmbeddedServers, conn: NatsConnection
) -> None:
    said: list[str] = []
    publisher = NatsPublisher(conn, give_up_seconds=0)
    assert set((await probe_streams(conn, remove=True)).values()) == {None}
    disk.fill()
    with pytest.raises(ServerUnavailable, match=r"acknowledged no message on \S+: no answer in time"):
        await publisher.publish([message(300_000)])
    home, log = nats.home("nats")
    watch = StreamWatch(
        nats.endpoints.nats_url, home, log, restart=lambda: nats.restart("nats"), say=said.append, times=HASTY
    )
    watching = asyncio.create_task(watch.run())

    async def told() -> bool:
        return bool(said)

    await until(told, 25, "the refusal is told")
    assert said[0].startswith("NATS cannot store events, and no turn is lost: the disk is full: 0 MB are free at ")
    assert "Its log says: " in said[0]
    assert "no space left on device" in said[0]
    refused = {check_stream.name: check_stream for check_stream in await check_streams(conn, log)}[f"stream {STREAM}"]
    assert refused.status == "fail"
    assert refused.hint.startswith("no event is published while it refuses: make room on its disk")
    assert all(
        isinstance(probe_stream, ServerUnavailable)
        for probe_stream in (await probe_streams(conn, remove=True)).values()
    )
    before = nats.pid("nats")
    disk.free()
    found = await probe_streams(conn, timeout=0.5)
    assert isinstance(found[STREAM], ServerUnavailable)  # it refuses for ever, with a disk that is empty

    async def again() -> bool:
        return said[-1] == "the streams of NATS take messages again"

    await until(again, 25, "the streams take messages again")
    watching.cancel()
    assert nats.pid("nats") != before
    [refusal] = said[1:-1]
    assert refusal.startswith("NATS refuses messages: ")
    assert "cg_evt_v1r4: it did not acknowledge a message: no answer in time" in refusal
    assert refusal.endswith("Starting it again on the same data; no turn is lost.")
    await NatsPublisher(conn).publish([message()])


async def test_what_the_server_says_is_told(disk: SmallDisk, nats: EmbeddedServers, conn: NatsConnection) -> None:
    """It takes at most three quarters of what was free when it started, and says so when that is used up."""
    publisher = NatsPublisher(conn, give_up_seconds=0)

    async def overfill() -> None:
        for _ in range(SIZE_MB):
            await publisher.publish([message(1_000_000)])

    with pytest.raises(ServerUnavailable, match=r"insufficient resources \(JetStream error 10023\)"):
        await overfill()
    refused = {check_stream.name: check_stream for check_stream in await check_streams(conn, nats.home("nats")[1])}[
        f"stream {STREAM}"
    ]
    assert refused.status == "fail"
    assert "it refuses messages: insufficient resources (JetStream error 10023)" in refused.says
    assert "the log of NATS says: JetStream file resource limits exceeded" in refused.says


async def test_a_probe_leaves_nothing_where_that_is_asked_for(conn: NatsConnection) -> None:
    for _ in range(3):
        assert await probe_streams(conn, remove=True) == dict.fromkeys((subjects.CMD_STREAM, subjects.EVT_STREAM))
    for stream in (subjects.CMD_STREAM, subjects.EVT_STREAM):
        assert (await conn.js.stream_info(stream)).state.messages == 0


async def test_a_server_that_dies_on_a_full_disk_is_started_when_there_is_room_however_often(
    disk: SmallDisk, nats: EmbeddedServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(up, "ROOM_SECONDS", 0.02)
    said: list[str] = []
    reviving = asyncio.create_task(up._revive(nats, said.append, nats.restart))

    async def says(words: str, times: int = 1) -> None:
        async def often() -> bool:
            return sum(words in each for each in said) == times

        await until(often, 25, f"up says {words!r} {times} times")

    for times in (1, 2):
        disk.fill()
        os.kill(nats.pid("nats"), signal.SIGKILL)
        await says("nats died: it was ended by SIGKILL. It cannot run: the disk is full: 0 MB are free at ", times)
        [line] = check_disks([disk.path])
        assert (line.status, line.name) == ("fail", f"disk of {disk.path}")
        assert line.says.startswith("the disk is full: 0 MB are free at ")
        disk.free()
        await says("nats answers again", times)
    os.kill(nats.pid("nats"), signal.SIGKILL)
    await says("nats answers again", 3)
    os.kill(nats.pid("nats"), signal.SIGKILL)
    with pytest.raises(up.ServerDied, match="It had been started again once before"):
        await asyncio.wait_for(reviving, 25)


async def test_little_room_is_told_before_it_ends(disk: SmallDisk, nats: EmbeddedServers) -> None:
    said: list[str] = []
    watching = asyncio.create_task(up._watch_disks(nats, said.append))

    async def told() -> bool:
        return bool(said)

    await until(told, 25, "the warning")
    watching.cancel()
    assert f" MB are free at {disk.path}: make room; below 32 MB servers refuse to write, or end" in said[0]
    [line] = check_disks([disk.path])
    assert (line.status, line.says.partition(" ")[2]) == ("warn", "MB are free")


@pytest.mark.parametrize("how", ["full", "read-only"])
async def test_up_does_not_start_on_a_disk_that_it_cannot_write(disk: SmallDisk, how: str) -> None:
    if how == "full":
        disk.fill()
        says = f"the disk is full: 0 MB are free at {disk.path}, and 32 are needed. Fix that, or choose another"
    else:
        disk.protect()
        says = f"the file system of {disk.path} is read-only. Fix that, or choose another"
    ran = await turnstile("up", "--data", disk.path / "new", cwd=disk.path.parent)
    assert ran.code == 1
    assert "(data_directory_unusable)" in ran.err
    assert says in " ".join(ran.err.split())


PLACES = {
    "a file": ("settings.toml", "settings.toml is a file, and servers need a directory. Fix that, or choose another"),
    "below a file": ("settings.toml/data", "settings.toml is a file, and servers need a directory."),
    "/proc": ("/proc/data", "/proc belongs to the system and stores no files."),
}


@pytest.mark.parametrize("place", PLACES)
async def test_up_says_why_it_cannot_use_a_data_directory(tmp_path: Path, place: str) -> None:
    (tmp_path / "settings.toml").touch()
    path, says = PLACES[place]
    ran = await turnstile("up", "--data", path, cwd=tmp_path)
    assert (ran.code, "(data_directory_unusable)" in ran.err) == (1, True)
    assert says in " ".join(ran.err.split())
    assert "report" not in ran.err


def test_a_directory_of_somebody_else_is_named() -> None:
    """Root may write everywhere, so a child without its rights looks."""
    with tempfile.TemporaryDirectory() as above:
        Path(above).chmod(0o755)  # the child must get there
        _look_as_nobody(Path(above) / "home")


def _look_as_nobody(home: Path) -> None:
    home.mkdir(mode=0o500)
    child = os.fork()
    if child == 0:
        try:
            if os.geteuid() == 0:
                os.chown(home, 65534, 65534)
                os.setuid(65534)
            up.check_data(home / "data")
        except DataDirectoryUnusable as error:
            os._exit(0 if "may not be written by this user" in str(error) else 2)
        except BaseException:  # noqa: BLE001 -- the parent's tests must not run on in the child
            os._exit(3)
        os._exit(4)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
