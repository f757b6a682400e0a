"""Files of a project from Python (docs/files.md): `client.files`. Their bytes go over HTTP, never over NATS.

Nothing is held whole: a file is sent and read in parts. What a path or `bytes` has is hashed first, and the gateway
compares; of a stream the hashes are compared afterwards. A download that breaks off goes on where it was, and its
target is there whole or not at all.
"""

import asyncio
import base64
import hashlib
import mimetypes
import os
import secrets
from collections.abc import AsyncGenerator, AsyncIterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, Protocol, TypeAlias, TypeVar, runtime_checkable
from urllib.parse import urlencode

from pydantic import BaseModel

from turnstile.schema import verbs
from turnstile.schema.api import FilePage
from turnstile.schema.base import JsonObject
from turnstile.schema.errors import BadRequest, Limited, Refused, ServerUnavailable
from turnstile.schema.ids import uuid7
from turnstile.schema.wire.file_requests import UNKNOWN_KIND, FileRemove, FileView
from turnstile.sdk.requests import idempotent, parse_request, part_of
from turnstile.sdk.turn import Backend

Model = TypeVar("Model", bound=BaseModel)
Source: TypeAlias = os.PathLike[str] | bytes | BinaryIO | AsyncIterable[bytes]
"""What is sent: a path, the bytes themselves, an open file, or parts as they come."""
_FILES: Final = "/v1/artifacts"
_PART: Final = 256 << 10
_PAGE: Final = 100
_ATTEMPTS: Final = 8
"""Of a download, one after the other without a byte more, some 30 s."""


@runtime_checkable
class Web(Protocol):
    """What is used here of a backend that is a gateway."""

    @property
    def channel(self) -> str | None:
        """The channel that is asked for; None: the token's own."""
        ...

    @property
    def shown(self) -> str:
        """Its address."""
        ...

    @property
    def closed(self) -> bool:
        """Whether the client is closed."""
        ...

    async def request(
        self,
        method: str,
        path: str,
        answer: type[Model],
        body: JsonObject | None = None,
        headers: Mapping[str, str] | None = None,
        content: bytes | AsyncIterable[bytes] | None = None,
    ) -> Model:
        """The answer of an endpoint."""
        ...

    def download(self, path: str, first: int) -> AsyncGenerator[bytes]:
        """What is at this path from byte `first` on, as far as one connection has it."""
        ...


@dataclass(frozen=True, slots=True)
class Files:
    """The files of one project that a token sees."""

    backend: Backend

    async def put(
        self,
        source: Source,
        *,
        filename: str | None = None,
        mime: str | None = None,
        correlation_id: str | None = None,
    ) -> FileView:
        """Keep a file. By default its name is the path's, and its kind what the name says.

        With a `correlation_id` of yours the same again is the same file, also after `ServerUnavailable`. Raises
        `Refused` (`file_too_large`, `content_mismatch`, `key_conflict`, `forbidden`), `Limited` (`files_full`,
        `uploads_full`), `BadRequest`, `OSError` or `ServerUnavailable`.
        """
        upload = await asyncio.to_thread(_Upload.of, source)
        try:
            name = filename or upload.name
            query = {"filename": name} | ({} if self._http.channel is None else {"channel_id": self._http.channel})
            kind = mime or mimetypes.guess_type(name)[0] or UNKNOWN_KIND
            headers = {"content-type": kind, **idempotent(correlation_id or uuid7()), **upload.headers}
            path = f"{_FILES}?{urlencode(query)}"
            view = await self._http.request("POST", path, FileView, headers=headers, content=upload.parts())
        finally:
            upload.close()
        if view.sha256 != upload.sha256:
            raise Refused("content_mismatch", f"file {view.artifact_id} has not the bytes that were sent")
        return view

    async def get(self, artifact_id: str, target: os.PathLike[str]) -> FileView:
        """Write a file's bytes to a path, whose file is replaced once all of them are there; raises as `read`."""
        view, path = await self.show(artifact_id), Path(target)
        part = path.with_name(f".{path.name[:100]}.{secrets.token_hex(4)}.part")
        with await asyncio.to_thread(part.open, "xb") as file:
            try:
                async with aclosing(self._parts(view)) as parts:
                    async for data in parts:
                        await asyncio.to_thread(file.write, data)
                file.close()
                part.replace(path)
            except BaseException:
                part.unlink(missing_ok=True)
                raise
        return view

    async def read(self, artifact_id: str) -> bytes:
        """A file's bytes, all in memory.

        Raises `Refused` (`unknown_artifact`, `content_mismatch` if its hash is another one) or `ServerUnavailable`.
        """
        view = await self.show(artifact_id)
        async with aclosing(self._parts(view)) as parts:
            return b"".join([part async for part in parts])

    async def show(self, artifact_id: str) -> FileView:
        """A file: its name, kind, size and hash; raises `Refused` (`unknown_artifact`) or `ServerUnavailable`."""
        return await self._http.request("GET", _path(artifact_id), FileView)

    async def list(self, *, limit: int = 100) -> "list[FileView]":
        """Files, the newest first; at most `limit`."""
        files, query = list[FileView](), dict[str, str]()
        if self._http.channel is not None:
            query["channel_id"] = self._http.channel
        while len(files) < limit:
            query["limit"] = str(min(_PAGE, limit - len(files)))
            page = await self._http.request("GET", f"{_FILES}?{urlencode(query)}", FilePage)
            files += page.artifacts
            if page.next is None:
                break
            query["cursor"] = page.next
        return files

    async def remove(self, artifact_id: str) -> None:
        """Let nobody read a file any more; operators alone may. Raises `Refused` (`unknown_artifact`, `forbidden`)."""
        await self.backend.call(verbs.ARTIFACT_REMOVE, parse_request(FileRemove, {"artifact_id": artifact_id}))

    @property
    def _http(self) -> Web:
        if not isinstance(self.backend, Web):
            raise BadRequest("files go over HTTP: connect to a gateway, https://…, with a token")
        return self.backend

    async def _parts(self, view: FileView) -> AsyncGenerator[bytes]:
        """The bytes of a file, each once: what breaks off goes on where it was."""
        http, first, failures, digest = self._http, 0, 0, hashlib.sha256()
        while first < view.size:
            broken: ServerUnavailable | Limited = ServerUnavailable(f"the gateway at {http.shown} broke off")
            try:
                async with aclosing(http.download(f"{_path(view.artifact_id)}/content", first)) as parts:
                    async for part in parts:
                        first, failures = first + len(part), 0
                        digest.update(part)
                        yield part
            except (ServerUnavailable, Limited) as error:
                broken = error
            if first < view.size:
                failures += 1
                if failures > _ATTEMPTS or http.closed:
                    raise broken
                pause = broken.retry_after if isinstance(broken, Limited) else None
                await asyncio.sleep(pause or min(0.1 * 2**failures, 8.0))
        if view.sha256 not in (None, digest.hexdigest()):
            raise Refused("content_mismatch", f"what came of file {view.artifact_id} has another hash than its own")


class _Upload:
    """What is sent: counted and hashed on its way, and before it where it can be read twice."""

    def __init__(self, source: BinaryIO | bytes | AsyncIterable[bytes], name: str) -> None:
        self._source = source
        self._opened: BinaryIO | None = None
        self._hash = hashlib.sha256()
        self.name = name
        self.headers: dict[str, str] = {}

    @classmethod
    def of(cls, source: Source) -> "_Upload":
        """Of a source, which is read once to hash it if it is a path; raises `BadRequest` and `OSError`."""
        match source:
            case bytes():
                upload = cls(source, "file")
                upload._announce(len(source), hashlib.sha256(source))
            case os.PathLike():
                file = Path(source).open("rb")  # noqa: SIM115 -- `close` does
                upload = cls(file, Path(source).name)
                upload._opened = file
                try:
                    digest = hashlib.file_digest(file, "sha256")
                    upload._announce(file.tell(), digest)
                    file.seek(0)
                except BaseException:
                    file.close()
                    raise
            case _ if hasattr(source, "read") or hasattr(source, "__aiter__"):
                named = getattr(source, "name", None)
                upload = cls(source, Path(named).name if isinstance(named, str) and named else "file")
            case _:
                raise BadRequest("a file is a Path, bytes, an open binary file, or an async iterable of bytes")
        return upload

    @property
    def sha256(self) -> str:
        """Of what was sent."""
        return self._hash.hexdigest()

    async def parts(self) -> AsyncGenerator[bytes]:
        """Yields them."""
        async with aclosing(self._read()) as parts:
            async for part in parts:
                self._hash.update(part)
                yield part

    def close(self) -> None:
        """Close a file that `of` opened."""
        if self._opened is not None:
            self._opened.close()

    async def _read(self) -> AsyncGenerator[bytes]:
        if isinstance(self._source, bytes):
            for first in range(0, len(self._source), _PART):
                yield self._source[first : first + _PART]
        elif isinstance(self._source, AsyncIterable):
            async for part in self._source:
                yield part
        else:
            while part := await asyncio.to_thread(self._source.read, _PART):
                yield part

    def _announce(self, size: int, digest: "hashlib._Hash") -> None:
        encoded = base64.b64encode(digest.digest()).decode()
        self.headers = {"content-length": str(size), "content-digest": f"sha-256=:{encoded}:"}


def _path(artifact_id: str) -> str:
    return f"{_FILES}/{part_of('artifact_id', artifact_id)}"
