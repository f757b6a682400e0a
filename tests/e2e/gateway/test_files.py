"""Files over HTTP: kept as they were sent or not at all, read by who may, and gone from the store in the end (§22)."""

import asyncio
import base64
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.support.conditions import until
from tests.support.gateway import client, serving, token_of
from tests.support.processes.net import net_of
from tests.support.processes.stack import Stack
from tests.support.tenants import Tenant
from turnstile.bridge.files.file_audit import audit_files
from turnstile.ledger.operations.audit import Scope
from turnstile.processes.connections import open_store
from turnstile.schema.access import GatewayRole

BYTES = bytes(range(256)) * 4096
"""1 MiB."""
HTML = b"<script>alert(1)</script>"
FILES = "/v1/artifacts"


def digest_of(data: bytes) -> str:
    return f"sha-256=:{base64.b64encode(hashlib.sha256(data).digest()).decode()}:"


async def put(web: httpx.AsyncClient, data: bytes = BYTES, **more: Any) -> dict[str, Any]:
    answer = await web.post(FILES, content=data, **more)
    assert answer.status_code in (200, 201), answer.text
    return answer.json()


async def objects(stack: Stack, tenant: Tenant) -> list[str]:
    """What the store has of the project."""
    place = Path(stack.settings.artifacts.store.removeprefix("file://")) / tenant.project
    return sorted(path.name for path in place.iterdir()) if place.exists() else []


async def rows(tenant: Tenant) -> dict[str, str]:
    """What the ledger knows of: the status of each file by its id."""
    async with tenant.stack.pool.connection() as conn:
        found = await conn.fetch(
            "SELECT artifact_id, status FROM resource.artifacts WHERE project_id = $1", tenant.project
        )
    return {row["artifact_id"]: row["status"] for row in found}


async def settled(tenant: Tenant, left: set[str]) -> None:
    """Wait until ledger and store have these files and no other, once the net finds that the others are due."""
    net = net_of(tenant.stack)

    async def are_gone() -> bool:
        await tenant.rows(
            "UPDATE resource.artifacts SET updated_at = updated_at - interval '2 hours' WHERE project_id = $1",
            tenant.project,
        )
        await net.look("file")
        return set(await rows(tenant)) == left == set(await objects(tenant.stack, tenant))

    await until(are_gone, 60, "the store has what the ledger has")


@pytest.mark.parametrize("data", [b"", b"x", BYTES, BYTES * 12], ids=lambda data: str(len(data)))
async def test_a_file_is_read_as_it_was_sent(web: httpx.AsyncClient, tenant: Tenant, data: bytes) -> None:
    made = await put(
        web,
        data,
        params={"filename": "a/../b/Größe.pdf"},
        headers={"content-type": "Application/PDF; x=y", "content-digest": digest_of(data)},
    )
    expected = {"filename": "Größe.pdf", "mime": "application/pdf", "size": len(data), "channel_id": "public"}
    assert made | expected == made
    assert made["sha256"] == hashlib.sha256(data).hexdigest()
    assert (await web.get(f"{FILES}/{made['artifact_id']}")).json() == made
    content = await web.get(f"{FILES}/{made['artifact_id']}/content")
    assert content.content == data
    assert content.headers["content-disposition"] == "attachment; filename*=UTF-8''Gr%C3%B6%C3%9Fe.pdf"
    assert content.headers["x-content-type-options"] == "nosniff"
    assert "sandbox" in content.headers["content-security-policy"]
    listed = (await web.get(FILES)).json()["artifacts"]
    assert [each["artifact_id"] for each in listed] == [made["artifact_id"]]
    assert await rows(tenant) == {made["artifact_id"]: "ready"}


async def test_ranges_and_what_a_client_has(web: httpx.AsyncClient) -> None:
    made = await put(web)
    address, size = f"{FILES}/{made['artifact_id']}/content", len(BYTES)
    for header, expected in {
        "bytes=0-0": BYTES[:1],
        "bytes=10-19": BYTES[10:20],
        "bytes=1048570-": BYTES[1048570:],
        "bytes=-5": BYTES[-5:],
        f"bytes=-{size * 2}": BYTES,
        f"bytes=0-{size * 2}": BYTES,
    }.items():
        answer = await web.get(address, headers={"range": header})
        assert (answer.status_code, answer.content) == (206 if len(expected) < size else 200, expected), header
    for header in ("bytes=0-1,3-4", "lines=1-2", "bytes=-", "bytes=a-b", "bytes=" + "9" * 400 + "-"):
        assert (await web.get(address, headers={"range": header})).status_code == 200, header
    for header in (f"bytes={size}-", "bytes=5-4", "bytes=-0"):
        answer = await web.get(address, headers={"range": header})
        assert (answer.status_code, answer.headers["content-range"]) == (416, f"bytes */{size}"), header
    etag = (await web.get(address, headers={"range": "bytes=0-0"})).headers["etag"]
    assert (await web.get(address, headers={"if-none-match": etag})).status_code == 304
    assert (await web.get(address, headers={"range": "bytes=0-0", "if-range": '"other"'})).status_code == 200


async def test_a_request_of_one_name_makes_one_file(web: httpx.AsyncClient, tenant: Tenant) -> None:
    named = {"idempotency-key": "receipt"}
    first, *others = await asyncio.gather(*[put(web, b"receipt", headers=named) for _ in range(4)])
    assert {each["artifact_id"] for each in others} == {first["artifact_id"]}
    answer = await web.post(FILES, content=b"receipt", headers=named)
    assert (answer.status_code, answer.json()) == (200, first)
    answer = await web.post(FILES, content=b"another", headers=named)
    assert (answer.status_code, answer.json()["code"]) == (409, "key_conflict")
    states = await rows(tenant)
    assert states.pop(first["artifact_id"]) == "ready"
    assert set(states.values()) <= {"removed"}
    await settled(tenant, {first["artifact_id"]})


async def test_what_is_not_as_announced_is_not_kept(web: httpx.AsyncClient, tenant: Tenant) -> None:
    answer = await web.post(FILES, content=BYTES, headers={"content-digest": digest_of(b"")})
    assert (answer.status_code, answer.json()["code"]) == (400, "content_mismatch")
    for header in ("md5=:abc=:", "sha-256=:abc:", ""):
        answer = await web.post(FILES, content=b"x", headers={"content-digest": header})
        assert (answer.status_code, answer.json()["code"]) == (400, "bad_request")
    assert (await web.post(FILES, content=b"x", headers={"content-encoding": "gzip"})).status_code == 415

    async def breaks() -> AsyncIterator[bytes]:
        yield BYTES
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        await web.post(FILES, content=breaks())
    await settled(tenant, set())


async def test_a_file_and_a_project_have_limits(here: Stack, tenant: Tenant) -> None:
    small = here.settings.artifacts.model_copy(update={"max_file_mb": 1})
    async with (
        serving(here, here.settings.model_copy(update={"artifacts": small})) as url,
        client(url, await token_of(here, tenant.project)) as web,
    ):
        await put(web, b"x" * 1_000_000)

        async def unannounced() -> AsyncIterator[bytes]:
            for _ in range(5):
                yield b"x" * 250_000

        for body in (b"x" * 1_000_001, unannounced()):
            answer = await web.post(FILES, content=body)
            assert (answer.status_code, answer.json()["code"]) == (413, "file_too_large")
    assert list((await rows(tenant)).values()).count("ready") == 1


async def test_only_who_sees_the_channel_sees_the_file(url: str, web: httpx.AsyncClient, tenant: Tenant) -> None:
    made = await put(web, HTML, params={"channel_id": "here"}, headers={"content-type": "text/html"})
    address = f"{FILES}/{made['artifact_id']}"
    there = await token_of(tenant.stack, tenant.project, GatewayRole.CLIENT, "there")
    seeing = await token_of(tenant.stack, tenant.project, GatewayRole.VIEWER, "here")
    async with client(url, there) as other, client(url, seeing) as viewer, client(url, None) as nobody:
        for path in (address, f"{address}/content"):
            answer = await other.get(path)
            assert (answer.status_code, answer.json()["code"]) == (404, "unknown_artifact")
            assert (await viewer.get(path)).status_code == 200
            assert (await nobody.get(path)).status_code == 401
        assert (await other.get(FILES)).json() == {"artifacts": [], "next": None}
        assert len((await viewer.get(FILES)).json()["artifacts"]) == 1
        assert (await viewer.post(FILES, content=b"x")).status_code == 403
        assert (await other.post(FILES, content=b"x", params={"channel_id": "here"})).status_code == 403
        assert (await other.delete(address)).status_code == 403
    assert (await web.delete(address)).json() == {"artifact_id": made["artifact_id"]}
    assert (await web.get(f"{address}/content")).status_code == 404
    assert (await web.delete(address)).status_code == 404
    await settled(tenant, set())


async def test_pages_of_files(web: httpx.AsyncClient) -> None:
    made = [(await put(web, b"%d" % number))["artifact_id"] for number in range(5)]
    seen: list[str] = []
    page: dict[str, Any] = {"next": None}
    while page["next"] is not None or not seen:
        page = (await web.get(FILES, params={"limit": 2} | ({"cursor": page["next"]} if seen else {}))).json()
        seen += [each["artifact_id"] for each in page["artifacts"]]
    assert seen == made[::-1]


async def test_bytes_that_the_store_lost_are_said_to_be(web: httpx.AsyncClient, tenant: Tenant) -> None:
    made = await put(web)
    place = Path(tenant.stack.settings.artifacts.store.removeprefix("file://")) / tenant.project
    (place / made["artifact_id"]).unlink()
    answer = await web.get(f"{FILES}/{made['artifact_id']}/content")
    assert (answer.status_code, answer.json()["code"]) == (503, "file_unavailable")


async def test_openai_s_client_sends_lists_reads_and_deletes_files(url: str, tenant: Tenant) -> None:
    token = await token_of(tenant.stack, tenant.project)
    async with openai.AsyncOpenAI(base_url=f"{url}/openai/v1", api_key=token, max_retries=0) as made:
        sent = [
            await made.files.create(file=(name, BYTES[: size or None], "image/png"), purpose="user_data")
            for name, size in (("Größe.png", 0), ('a"b.png', 1), ("c.png", 70_000))
        ]
        assert [(file.filename, file.bytes) for file in sent] == [
            ("Größe.png", len(BYTES)),
            ("a%22b.png", 1),
            ("c.png", 70_000),
        ]
        assert await made.files.retrieve(sent[0].id) == sent[0]
        assert (await made.files.content(sent[0].id)).content == BYTES
        pages = await made.files.list(limit=2)
        assert [file.id async for file in pages] == [file.id for file in sent[::-1]]
        assert (await made.files.delete(sent[1].id)).deleted
        for work, code in (
            (made.files.retrieve(sent[1].id), "unknown_artifact"),
            (made.files.create(file=b"x", purpose="batch"), "unsupported_parameter"),
            (
                made.files.create(file=b"x", purpose="vision", expires_after={"anchor": "created_at", "seconds": 1}),
                "unsupported_parameter",
            ),
        ):
            with pytest.raises(openai.APIStatusError) as refused:
                await work
            assert refused.value.code == code
    assert list((await rows(tenant)).values()).count("ready") == 2


FORM = "multipart/form-data; boundary=x"
FILE = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\nab\r\n'


FORMS = [
    ("application/json", b"{}", 415),
    ("multipart/form-data", FILE, 415),
    ("multipart/form-data; boundary=" + "x" * 300, FILE, 400),
    (FORM, b"", 400),
    (FORM, b"nothing", 400),
    (FORM, b"--x--\r\n", 400),
    (FORM, FILE, 400),
    (FORM, FILE + FILE + b"--x--\r\n", 400),
    (FORM, FILE.replace(b"file", b"other", 1) + b"--x--\r\n", 400),
    (FORM, b"--x\r\n" + b"A: b\r\n" * 100 + b"\r\n", 400),
    (FORM, b'--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\n' + b"a" * 5000, 400),
    (FORM, FILE + b"--x--\r\n", 200),
]


async def test_a_form_that_is_none_keeps_nothing(web: httpx.AsyncClient, tenant: Tenant) -> None:
    """Also where it comes a byte at a time."""
    for kind, body, status in FORMS:

        async def bytewise(body: bytes = body) -> AsyncIterator[bytes]:
            for place in range(len(body)):
                yield body[place : place + 1]

        for content in (body, bytewise()):
            answer = await web.post("/openai/v1/files", content=content, headers={"content-type": kind})
            assert answer.status_code == status, (kind, body, answer.text)
    assert list((await rows(tenant)).values()).count("ready") == 2


async def test_the_audit_of_files_finds_what_store_and_ledger_do_not_share(
    web: httpx.AsyncClient, tenant: Tenant
) -> None:
    store = open_store(tenant.stack.settings.artifacts)
    assert store is not None
    kept = [(await put(web, data))["artifact_id"] for data in (b"", b"whole", b"lost", b"long", b"other")]

    async def found(*, deep: bool) -> dict[str, str]:
        result = await audit_files(tenant.stack.pool, store, Scope(tenant.project), deep=deep, row_limit=100)
        assert [rule.violations for rule in result.rules].count(0) + len({each.rule for each in result.violations}) == 2
        return {each.ids.get("artifact_id", each.ids.get("object", "")): each.detail for each in result.violations}

    assert await found(deep=True) == {}
    place = Path(tenant.stack.settings.artifacts.store.removeprefix("file://")) / tenant.project
    (place / kept[2]).unlink()
    (place / kept[3]).write_bytes(b"short")
    (place / kept[4]).write_bytes(b"OTHER")
    (place / "unknown").write_bytes(b"x")
    broken = {
        kept[2]: "the store does not have it",
        kept[3]: "it has 4 bytes, and the store has 5",
        f"{tenant.project}/unknown": "the ledger has no file of it",
    }
    assert await found(deep=False) == broken
    assert await found(deep=True) == broken | {kept[4]: "its bytes have another hash"}
    few = await audit_files(tenant.stack.pool, store, Scope(tenant.project), deep=True, row_limit=1)
    assert [(rule.violations, rule.cut) for rule in few.rules] == [(1, True), (1, False)]
    (place / "unknown").unlink()
