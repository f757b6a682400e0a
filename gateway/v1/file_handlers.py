"""`/v1/artifacts`: files of a project, sent and read as bytes (protocol §22).

Rights are checked before a byte is read. A file is announced by the bridge, its bytes go from the request to the store
and are hashed on their way, and the bridge makes it ready; nothing is held whole. What a stranger sent is never shown
as a page: it is an attachment, whose media type is not guessed, under a policy that lets it do nothing.
"""

import asyncio
import base64
import binascii
import hashlib
import re
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import quote

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from turnstile.gateway.asking import Asking
from turnstile.gateway.http.endpoints import Answer, Call, announced_bytes
from turnstile.gateway.v1.cursors import cursor_of, place_of
from turnstile.gateway.v1.turn_handlers import key_in, seen_channel
from turnstile.ledger.access.pages import PageCursor
from turnstile.ledger.files.artifacts import FileRow, list_artifacts, read_artifact
from turnstile.ledger.pool import Pool
from turnstile.runtime.object_store import ObjectStore
from turnstile.schema import verbs
from turnstile.schema.access import Principal
from turnstile.schema.api import FilePage, FileQuery, FilesQuery
from turnstile.schema.base import JsonObject
from turnstile.schema.errors import BadRequest, Refused, TurnstileError
from turnstile.schema.ids import ArtifactId, ChannelId
from turnstile.schema.wire.file_requests import UNKNOWN_KIND, FileReply, FileView, file_kind, file_name

_DIGEST: Final = re.compile(r"(?:\A|,)\s*sha-256=:([A-Za-z0-9+/=]{44}):")
_RANGE: Final = re.compile(r"bytes=(\d{0,18})-(\d{0,18})\Z")
_UPLOAD_SECONDS: Final = 1800.0
"""Of one upload; the safety net takes one that is older than an hour for lost."""


@dataclass(frozen=True, slots=True)
class Files:
    """The handlers, over one ledger, one bridge and one store."""

    pool: Pool
    asking: Asking
    store: ObjectStore | None
    file_bytes: int
    """The most bytes of one file."""
    slow_reader_seconds: float
    abort: Callable[[object], None]
    """Closes the connection of a client at once."""

    async def create(self, call: Call[FileQuery, None]) -> Answer:
        """Keep the bytes of the body; raises as `keep`."""
        sent = SentFile(
            call.query.filename, call.headers.get("content-type", UNKNOWN_KIND), announced_bytes(call.request)
        )
        row, created = await self.keep(call, call.query.channel_id, sent, _body_of(call))
        return Answer(view_of(row), HTTPStatus.CREATED if created else HTTPStatus.OK)

    async def keep(
        self, call: Call[Any, Any], channel_id: str | None, sent: "SentFile", parts: AsyncGenerator[bytes]
    ) -> tuple[FileRow, bool]:
        """Keep a file, and whether it is new.

        Raises `Refused` (files_unavailable, file_too_large, content_mismatch, key_conflict), `Limited` (files_full,
        uploads_full), `BadRequest` and `ServerUnavailable`; then nothing is kept.
        """
        if self.store is None:
            raise Refused("files_unavailable", "this gateway keeps no files: set [artifacts].store")
        channel = self.asking.channel(call.principal, channel_id)
        digest, key = _digest_in(call), key_in(call.headers)
        if call.headers.get("content-encoding", "identity").lower() != "identity":
            raise Refused("unsupported_media_type", "Content-Encoding is not supported: send the bytes themselves")
        if sent.size > self.file_bytes:
            raise self._too_large()
        asked: JsonObject = {"filename": file_name(sent.filename), "mime": file_kind(sent.mime), "size": sent.size}
        if key is not None:
            asked["correlation_id"] = f"{call.principal.token_id}/{key}"
        begun = await self._ask(call, channel, verbs.ARTIFACT_CREATE, asked)
        artifact = _named(begun)
        body = _Body(parts, self.file_bytes, self._too_large())
        async with asyncio.timeout(_UPLOAD_SECONDS):
            if begun.storage_uri is None:
                return await self._same(call.principal, channel, artifact, body), False
            try:
                await self.store.write(self.store.name_of(begun.storage_uri), body.parts())
                body.check(digest)
                done: JsonObject = {"artifact_id": artifact, "size": body.size, "sha256": body.sha256}
                ready = await self._ask(call, channel, verbs.ARTIFACT_COMMIT, done)
            except BaseException:
                await self._give_up(call, channel, artifact)
                raise
        row = await self._row(call.principal, channel, _named(ready))
        return row, row.artifact_id == artifact

    async def remove(self, call: Call[Any, Any], row: FileRow) -> None:
        """Let nobody read a file any more; raises `Refused` (unknown_artifact)."""
        await self._ask(call, row.channel_id, verbs.ARTIFACT_REMOVE, {"artifact_id": row.artifact_id})

    async def list(self, call: Call[FilesQuery, object]) -> Answer:
        """A page of files."""
        principal, query = call.principal, call.query
        project, channel = principal.project_id, seen_channel(principal, query.channel_id)
        place = place_of(query.cursor)
        before = None if place is None else (place.at, place.id)
        rows = await self.pool.run(
            lambda conn: list_artifacts(conn, project, channel, before=before, row_limit=query.limit + 1)
        )
        page = rows[: query.limit]
        more = cursor_of(PageCursor(page[-1].created_at, page[-1].artifact_id)) if len(rows) > len(page) else None
        return Answer(FilePage(artifacts=[view_of(row) for row in page], next=more))

    async def get(self, call: Call[object, object]) -> Answer:
        """A file; raises `Refused` (unknown_artifact)."""
        return Answer(view_of(await self.row_of(call)))

    async def content(self, call: Call[object, object]) -> Answer:
        """The bytes of a file, or a range of them; raises `Refused` (unknown_artifact), and `ServerUnavailable`."""
        row = await self.row_of(call)
        if self.store is None:
            raise Refused("files_unavailable", "this gateway reads no files: set [artifacts].store")
        etag = f'"{row.sha256 or row.artifact_id}"'
        headers = {
            "content-type": row.mime or UNKNOWN_KIND,
            "content-disposition": f"attachment; filename*=UTF-8''{quote(row.filename or 'file', safe='')}",
            "content-security-policy": "sandbox; default-src 'none'; frame-ancestors 'none'",
            "x-content-type-options": "nosniff",
            "cache-control": "private, no-cache",
            "accept-ranges": "bytes",
            "etag": etag,
        }
        if etag in (call.headers.get("if-none-match") or ""):
            return Answer(Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers))
        wanted = call.headers.get("range") if call.headers.get("if-range", etag) == etag else None
        try:
            first, end = _range(wanted, row.size)
        except ValueError:
            headers["content-range"] = f"bytes */{row.size}"
            return Answer(Response(status_code=HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, headers=headers))
        status = HTTPStatus.OK
        if (first, end) != (0, row.size):
            status, headers["content-range"] = HTTPStatus.PARTIAL_CONTENT, f"bytes {first}-{end - 1}/{row.size}"
        headers["content-length"] = str(end - first)
        name = self.store.name_of(row.storage_uri)
        parts = self.store.read(name, first, end) if end > first else _nothing()
        begun = await anext(parts, b"")  # what is not there is said before anything is
        return Answer(_Download(begun, parts, status, headers, self.slow_reader_seconds, self.abort))

    async def lookup(self, call: Call[Any, Any]) -> tuple[ChannelId, JsonObject]:
        """The channel of the file that the path names, and the file; raises as `get`."""
        row = await self.row_of(call)
        return row.channel_id, {"artifact_id": row.artifact_id}

    async def row_of(self, call: Call[Any, Any]) -> FileRow:
        """The file that the path names; raises `Refused` (unknown_artifact)."""
        return await self._row(call.principal, None, ArtifactId(call.path["artifact_id"]))

    async def _row(self, principal: Principal, channel: ChannelId | None, artifact: ArtifactId) -> FileRow:
        seen = principal.channel_id or channel
        return await self.pool.run(lambda conn: read_artifact(conn, principal.project_id, seen, artifact))

    async def _same(self, principal: Principal, channel: ChannelId, artifact: ArtifactId, body: "_Body") -> FileRow:
        """The file that a request of this name has made, if these are its bytes; raises `Refused` (key_conflict)."""
        row = await self._row(principal, channel, artifact)
        async for _ in body.parts():
            pass
        if row.sha256 != body.sha256:
            raise Refused("key_conflict", "an earlier request with this Idempotency-Key sent other bytes")
        return row

    async def _ask(
        self, call: Call[Any, Any], channel: ChannelId, verb: verbs.Verb[Any, FileReply], payload: JsonObject
    ) -> FileReply:
        return await self.asking.ask(call.principal, channel, verb, payload, call.headers)

    async def _give_up(self, call: Call[Any, Any], channel: ChannelId, artifact: ArtifactId) -> None:
        """Let the announced file go; where that fails, the safety net removes it an hour later."""
        try:
            await self._ask(call, channel, verbs.ARTIFACT_REMOVE, {"artifact_id": artifact})
        except TurnstileError:  # the client hears why it was given up
            return

    def _too_large(self) -> Refused:
        return Refused("file_too_large", f"a file may have at most {self.file_bytes} bytes")


@dataclass(frozen=True, slots=True)
class SentFile:
    """What a request says about the file that it sends."""

    filename: str
    mime: str
    size: int = 0
    """Its bytes; 0 where that is not known."""


class _Body:
    """The bytes of a file as they come: counted, hashed, bounded."""

    def __init__(self, parts: AsyncGenerator[bytes], most: int, too_large: Refused) -> None:
        self._parts = parts
        self._most = most
        self._too_large = too_large
        self._hash = hashlib.sha256()
        self.size = 0

    @property
    def sha256(self) -> str:
        """Of what has come."""
        return self._hash.hexdigest()

    def check(self, digest: str | None) -> None:
        """Raise `Refused` (content_mismatch) if this is not the hash of what has come."""
        if digest not in (None, self.sha256):
            raise Refused("content_mismatch", "Content-Digest is not that of the bytes that came")

    async def parts(self) -> AsyncGenerator[bytes]:
        """Yields them; raises `Refused` (file_too_large), and what their source raises."""
        async for part in self._parts:
            self.size += len(part)
            if self.size > self._most:
                raise self._too_large
            self._hash.update(part)
            if part:
                yield part


async def _body_of(call: Call[Any, Any]) -> AsyncGenerator[bytes]:
    try:
        async for part in call.request.stream():
            yield part
    except ClientDisconnect:
        raise BadRequest("the request ended before its body did") from None


class _Download(Response):
    """Sends the parts of a file; a client that takes nothing for a while, and a file that breaks off, end it."""

    def __init__(
        self,
        begun: bytes,
        parts: AsyncGenerator[bytes],
        status: int,
        headers: dict[str, str],
        slow_seconds: float,
        abort: Callable[[object], None],
    ) -> None:
        super().__init__(status_code=status)
        del self.headers["content-length"]
        self.headers.update(headers)
        self._begun, self._parts = begun, parts
        self._slow_seconds, self._abort = slow_seconds, abort

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            await self._send(send, self._begun)
            async for part in self._parts:
                await self._send(send, part)
            await send({"type": "http.response.body", "body": b""})
        except BaseException:
            self._abort(scope.get("client"))
            raise
        finally:
            await self._parts.aclose()

    async def _send(self, send: Send, part: bytes) -> None:
        async with asyncio.timeout(self._slow_seconds):
            await send({"type": "http.response.body", "body": part, "more_body": True})


async def _nothing() -> AsyncGenerator[bytes]:
    for part in ():
        yield part


def view_of(row: FileRow) -> FileView:
    """A file for people and programs; what another program wrote is bounded as what is sent is."""
    return FileView(
        artifact_id=row.artifact_id,
        filename=file_name(row.filename or "file"),
        mime=file_kind(row.mime or UNKNOWN_KIND),
        size=row.size,
        sha256=row.sha256,
        channel_id=row.channel_id,
        created_at=row.created_at,
        created_by=row.created_by,
        agent_turn_id=row.agent_turn_id,
    )


def _named(reply: FileReply) -> ArtifactId:
    if reply.artifact_id is None:
        raise Refused("internal_error", "the bridge accepted a file and named none")
    return reply.artifact_id


def _digest_in(call: Call[Any, Any]) -> str | None:
    """The hash that a request names, in hex; raises `BadRequest` for a header that names none we check."""
    header = call.headers.get("content-digest")
    if header is None:
        return None
    match = _DIGEST.search(header)
    try:
        raw = base64.b64decode(match[1], validate=True) if match else b""
    except binascii.Error:
        raw = b""
    if len(raw) != hashlib.sha256().digest_size:
        raise BadRequest("Content-Digest: send sha-256=:BASE64: of the body")
    return raw.hex()


def _range(header: str | None, size: int) -> tuple[int, int]:
    """The first byte and the one after the last; all for a header that is no single range. Raises `ValueError`."""
    match = None if header is None else _RANGE.match(header.strip())
    if match is None or match[0] == "bytes=-":
        return 0, size
    if match[1] == "":
        first, end = max(0, size - int(match[2])), size
    else:
        first, end = int(match[1]), min(size, int(match[2]) + 1) if match[2] else size
    if first >= end or first >= size:
        raise ValueError("no byte of the file is in the range")
    return first, end
