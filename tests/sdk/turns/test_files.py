"""Files from Python: sent from paths, bytes and streams, read back whole, also over connections that break off."""

import asyncio
import hashlib
import io
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.sdk.turns.test_turns import STREAMED
from tests.support.conditions import until
from tests.support.gateway import token_of
from tests.support.tenants import ALICE, Tenant
from turnstile import BadRequest, Client, Refused, SyncClient

DATA = bytes(range(256)) * 8192
"""2 MiB."""


@pytest.fixture
async def client(gateway_url: str, tenant: Tenant) -> AsyncIterator[Client]:
    """A client of an operator over HTTP."""
    async with Client(gateway_url, token=await token_of(tenant.stack, tenant.project)) as client:
        yield client


def names(directory: Path) -> list[str]:
    """What is in a directory."""
    return sorted(path.name for path in directory.iterdir())


@asynccontextmanager
async def breaking(url: str, most: int) -> AsyncGenerator[str]:
    """The address of a relay that lets so many bytes of each answer through, and cuts the connection."""

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_connection(urlsplit(url).hostname, urlsplit(url).port)
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            there_writer.write(head.replace(b"keep-alive", b"close"))
            left = most
            while left > 0 and (data := await there_reader.read(min(left, 65536))):
                left -= len(data)
                writer.write(data)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):  # the client has gone
            pass
        finally:
            for end in (writer, there_writer):
                end.transport.abort()

    server = await asyncio.start_server(relay, "127.0.0.1")
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    await asyncio.sleep(0.05)  # transports that were aborted are closed by the loop


async def test_a_file_comes_back_from_a_path_bytes_and_a_stream(client: Client, tmp_path: Path) -> None:
    path = tmp_path / "receipt.pdf"
    path.write_bytes(DATA)

    async def parts() -> AsyncIterator[bytes]:
        for first in range(0, len(DATA), 100_000):
            yield DATA[first : first + 100_000]

    views = [
        await client.files.put(path),
        await client.files.put(DATA, filename="a.txt"),
        await client.files.put(parts(), mime="image/png"),
        await client.files.put(io.BytesIO(DATA)),
    ]
    assert [(view.filename, view.mime) for view in views] == [
        ("receipt.pdf", "application/pdf"),
        ("a.txt", "text/plain"),
        ("file", "image/png"),
        ("file", "application/octet-stream"),
    ]
    assert {(view.size, view.sha256) for view in views} == {(len(DATA), hashlib.sha256(DATA).hexdigest())}
    target = tmp_path / "back"
    target.write_bytes(b"older")
    assert await client.files.get(views[0].artifact_id, target) == views[0]
    assert (target.read_bytes(), await client.files.read(views[2].artifact_id)) == (DATA, DATA)
    assert names(tmp_path) == ["back", "receipt.pdf"]
    assert await client.files.list(limit=3) == views[:0:-1]
    empty = await client.files.put(b"")
    assert await client.files.read(empty.artifact_id) == b""


async def test_a_request_of_one_name_is_one_file_and_others_are_refused(client: Client, tmp_path: Path) -> None:
    first = await client.files.put(b"x", correlation_id="once")
    assert await client.files.put(b"x", correlation_id="once") == first
    for work, code in (
        (client.files.put(b"y", correlation_id="once"), "key_conflict"),
        (client.files.show("nothing"), "unknown_artifact"),
        (client.files.get("a/b", tmp_path / "x"), "unknown_artifact"),
        (client.files.remove("nothing"), "unknown_artifact"),
    ):
        with pytest.raises(Refused) as refused:
            await work
        assert refused.value.code == code
    await client.files.remove(first.artifact_id)
    with pytest.raises(Refused):
        await client.files.read(first.artifact_id)
    with pytest.raises(FileNotFoundError):
        await client.files.put(tmp_path / "missing")
    with pytest.raises(BadRequest, match="a Path, bytes"):
        await client.files.put("a string")  # pyright: ignore[reportArgumentType] -- what the test is about
    assert names(tmp_path) == []


async def test_a_download_goes_on_where_it_broke_off_and_leaves_nothing_half(
    client: Client, gateway_url: str, tenant: Tenant, tmp_path: Path
) -> None:
    view = await client.files.put(DATA)
    token = await token_of(tenant.stack, tenant.project)
    async with breaking(gateway_url, 900_000) as url, Client(url, token=token) as cut:
        await cut.files.get(view.artifact_id, tmp_path / "file")
        assert (tmp_path / "file").read_bytes() == DATA
        getting = asyncio.create_task(cut.files.get(view.artifact_id, tmp_path / "canceled"))

        async def begun() -> bool:
            return any(name.startswith(".canceled.") for name in names(tmp_path))

        await until(begun, 30, "bytes are there")
        getting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await getting
    assert names(tmp_path) == ["file"]


async def test_files_need_a_gateway(tenant: Tenant) -> None:
    async with Client(tenant.stack.endpoints.nats_url, project=tenant.project) as client:
        with pytest.raises(BadRequest, match="over HTTP"):
            await client.files.list()


async def test_files_without_an_event_loop(gateway_url: str, token: str, tmp_path: Path) -> None:
    def work() -> None:
        with SyncClient(gateway_url, token=token) as client:
            path = tmp_path / "file"
            path.write_bytes(DATA)
            with path.open("rb") as file:
                view = client.files.put(file)
            assert (view.filename, client.files.read(view.artifact_id)) == ("file", DATA)
            assert client.files.show(view.artifact_id) == client.files.list(limit=1)[0] == view
            assert client.files.get(view.artifact_id, tmp_path / "back") == view
            with pytest.raises(Refused):
                client.files.remove(view.artifact_id)

    await asyncio.to_thread(work)


async def test_files_go_with_a_request_and_are_the_same_ones_when_it_is_repeated(
    client: Client, tenant: Tenant, tmp_path: Path
) -> None:
    path = tmp_path / "receipt.txt"
    path.write_text("7 EUR")
    known = await client.files.put(b"x", filename="known")
    for _ in range(2):
        turn = client.ask(ALICE, STREAMED, files=[path, known.artifact_id, b"more"], correlation_id="with-files")
        assert (await turn.result(30)).files == ()
    sent = [view.artifact_id for view in await client.files.list(limit=3)]
    named = await tenant.rows("SELECT metadata -> 'artifacts' AS ids FROM public.cards WHERE metadata ? 'artifacts'")
    assert [json.loads(row["ids"]) for row in named] == [[sent[1], known.artifact_id, sent[0]]]
    turn = client.ask(ALICE, STREAMED, files=["file-nothing"])
    with pytest.raises(Refused) as refused:
        await turn.start()
    assert refused.value.code == "unknown_artifact"
    async with Client(tenant.stack.endpoints.nats_url, project=tenant.project) as nats:
        turn = nats.ask(ALICE, STREAMED, files=[known.artifact_id])
        assert (await turn.result(30)).ok
        with pytest.raises(BadRequest, match="by their ids"):
            nats.ask(ALICE, STREAMED, files=[path])
