"""`/openai/v1/files`: the project's files in OpenAI's words (protocol §22). Forms stream; nothing is held whole."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final, Literal

from pydantic import BaseModel, Field
from python_multipart import MultipartParser
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import parse_options_header
from starlette.requests import ClientDisconnect

from turnstile.gateway.http.endpoints import Answer, Call, announced_bytes
from turnstile.gateway.http.problems import BadField
from turnstile.gateway.openai.fields import OpenAiRequest, unsupported
from turnstile.gateway.v1.file_handlers import Files, SentFile
from turnstile.gateway.v1.turn_handlers import seen_channel
from turnstile.ledger.files.artifacts import FileRow, list_artifacts, read_artifact
from turnstile.schema.errors import BadRequest, Refused
from turnstile.schema.ids import ArtifactId
from turnstile.schema.wire.file_requests import UNKNOWN_KIND, file_name

_PURPOSE: Final = "user_data"
_PURPOSES: Final = (_PURPOSE, "assistants", "vision")
_FIELD_BYTES: Final = 1024
_MOST_PARTS: Final = 16
_HEADER_BYTES: Final = 8192
_REST_BYTES: Final = 64 << 10
"""More than a form has beside its file."""


class FileObject(BaseModel):
    """A file, in OpenAI's words."""

    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    filename: str
    purpose: Literal["user_data"] = _PURPOSE
    """What its sender said it is for is not kept."""
    status: Literal["processed"] = "processed"


class FileList(BaseModel):
    """Files, newest first."""

    object: Literal["list"] = "list"
    data: list[FileObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


class FileDeleted(BaseModel):
    """A file that was deleted."""

    id: str
    object: Literal["file"] = "file"
    deleted: Literal[True] = True


class FileListQuery(OpenAiRequest):
    """Which files."""

    harmless = {"order": ("desc",), "purpose": (_PURPOSE,)}  # noqa: RUF012 -- as in the other requests
    after: str | None = Field(default=None, min_length=1, max_length=128)
    """Those behind this one."""
    limit: int = Field(default=1000, ge=1, le=10_000)
    """At most so many; here never more than 1,000."""


@dataclass(frozen=True, slots=True)
class OpenAIFiles:
    """The handlers, over those of `/v1`."""

    files: Files

    async def create(self, call: Call[object, None]) -> Answer:
        """Keep the file of a form; raises as `Files.keep`, and `BadField` for a form that is none."""
        form = _Form(call)
        async with aclosing(form.parts()) as parts:
            sent = await form.head(parts)
            row, _ = await self.files.keep(call, None, sent, parts)
        return Answer(_object(row))

    async def list(self, call: Call[FileListQuery, object]) -> Answer:
        """Files, newest first."""
        principal, query = call.principal, call.query
        project, channel = principal.project_id, seen_channel(principal, None)
        before, most = None, min(query.limit, 1000)
        if (after := query.after) is not None:
            last = await self.files.pool.run(lambda conn: read_artifact(conn, project, channel, ArtifactId(after)))
            before = (last.created_at, last.artifact_id)
        rows = await self.files.pool.run(
            lambda conn: list_artifacts(conn, project, channel, before=before, row_limit=most + 1)
        )
        data = [_object(row) for row in rows[:most]]
        first, final = (data[0].id, data[-1].id) if data else (None, None)
        return Answer(FileList(data=data, first_id=first, last_id=final, has_more=len(rows) > most))

    async def get(self, call: Call[object, object]) -> Answer:
        """A file; raises `Refused` (unknown_artifact)."""
        return Answer(_object(await self.files.row_of(call)))

    async def delete(self, call: Call[object, object]) -> Answer:
        """Remove a file; raises `Refused` (unknown_artifact)."""
        row = await self.files.row_of(call)
        await self.files.remove(call, row)
        return Answer(FileDeleted(id=row.artifact_id))


def _object(row: FileRow) -> FileObject:
    return FileObject(
        id=row.artifact_id,
        bytes=row.size,
        created_at=int(row.created_at.timestamp()),
        filename=file_name(row.filename or "file"),
    )


class _Form:
    """A form with one file, as it comes: its fields are kept, the file's bytes are passed on."""

    def __init__(self, call: Call[Any, Any]) -> None:
        self._call = call
        kind, options = parse_options_header(call.headers.get("content-type"))
        boundary = options.get(b"boundary")
        if kind != b"multipart/form-data" or not boundary:
            raise Refused("unsupported_media_type", "this request needs Content-Type: multipart/form-data")
        callbacks: Any = {
            "on_part_begin": self._part_begins,
            "on_header_field": self._name_comes,
            "on_header_value": self._value_comes,
            "on_header_end": self._header_ends,
            "on_headers_finished": self._headers_end,
            "on_part_data": self._data_comes,
            "on_part_end": self._part_ends,
            "on_end": self._form_ends,
        }
        try:
            self._parser = MultipartParser(boundary, callbacks, max_header_count=8, max_header_size=_HEADER_BYTES)
        except FormParserError as error:
            raise BadRequest(str(error)) from None
        self._name, self._value = bytearray(), bytearray()
        self._headers: dict[str, str] = {}
        self._field = ""
        self._is_file = False
        self._text = bytearray()
        self._parts = 0
        self._data: list[bytes] = []
        self._ended = False
        self._sent: SentFile | None = None

    async def head(self, parts: AsyncGenerator[bytes]) -> SentFile:
        """What the file is, once the form has come so far; raises `BadField` for a form without one."""
        first = await anext(parts, None)
        if self._sent is None or first is None:
            raise BadField("the form has no file: send one as `file`", "file")
        return self._sent

    async def parts(self) -> AsyncGenerator[bytes]:
        """Yields the file's bytes, after an empty part when its headers are there; raises `BadRequest`."""
        begun = False
        try:
            async for chunk in self._call.request.stream():
                try:
                    self._parser.write(chunk)
                except FormParserError as error:
                    raise BadRequest(f"the form cannot be read: {error}") from None
                if self._sent is not None and not begun:
                    begun = True
                    yield b""
                data, self._data = self._data, []
                for part in data:
                    yield part
        except ClientDisconnect:
            raise BadRequest("the request ended before its body did") from None
        if not self._ended:
            raise BadRequest("the form has no end")

    def _part_begins(self) -> None:
        self._parts += 1
        if self._parts > _MOST_PARTS:
            raise BadRequest("the form has too many fields")
        self._headers, self._text, self._is_file = {}, bytearray(), False

    def _name_comes(self, data: bytes, first: int, end: int) -> None:
        self._name.extend(data[first:end])

    def _value_comes(self, data: bytes, first: int, end: int) -> None:
        self._value.extend(data[first:end])

    def _header_ends(self) -> None:
        name, value = self._name.decode("latin-1").lower(), self._value.decode(errors="replace")
        self._headers[name] = value
        self._name, self._value = bytearray(), bytearray()

    def _headers_end(self) -> None:
        disposition = self._headers.get("content-disposition", "").encode().decode("latin-1")
        _, options = parse_options_header(disposition)
        self._field = options.get(b"name", b"").decode(errors="replace")
        if self._field != "file":
            return
        if self._sent is not None:
            raise BadField("the form has two files: send one", "file")
        self._is_file = True
        name = options.get(b"filename", b"").decode(errors="replace")
        size = max(0, announced_bytes(self._call.request) - _REST_BYTES)
        self._sent = SentFile(name or "file", self._headers.get("content-type", UNKNOWN_KIND), size)

    def _data_comes(self, data: bytes, first: int, end: int) -> None:
        if self._is_file:
            self._data.append(data[first:end])
        elif len(self._text) + end - first <= _FIELD_BYTES:
            self._text.extend(data[first:end])
        else:
            raise BadRequest("a field of the form is too long")

    def _part_ends(self) -> None:
        if self._is_file:
            return
        value = self._text.decode(errors="replace")
        if self._field != "purpose":
            raise unsupported(self._field, value)
        if value not in _PURPOSES:
            raise unsupported("purpose", value, _PURPOSES)

    def _form_ends(self) -> None:
        self._ended = True
