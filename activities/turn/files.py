"""The files of a step's request: read from the store for its model, and in parts for `read_file` (protocol §22.6).

A step whose messages name no file pays nothing. Else one statement says which of them are there, in the turn's channel,
and what is not known yet is read from the store, bounded, off the loop. A store that is away is asked again as often
as a model is; then the step fails with `files_unavailable`. What was read is kept in a cache bounded in bytes.
"""

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from turnstile.activities.prompt.model_attempts import StepLimits
from turnstile.ledger.files.artifacts import FileRow, ready_files
from turnstile.ledger.pool import Pool
from turnstile.rules.model_files import (
    IMAGE_BYTES,
    PDF_BYTES,
    ReadFile,
    describe_file,
    is_too_large,
    long_text,
    may_be_text,
    newest,
    note,
    text_part,
    within_total,
)
from turnstile.runtime.object_store import ObjectGone, ObjectStore
from turnstile.runtime.ports import ModelFile, ModelMessage
from turnstile.schema.base import JsonObject
from turnstile.schema.cards import FilePart
from turnstile.schema.errors import ModelError, ServerUnavailable
from turnstile.schema.ids import ArtifactId, ProjectId
from turnstile.schema.turns import TurnRef

_HEAD_BYTES: Final = 4096
_READ_SECONDS: Final = 60.0
"""Of one file, however slow the store is."""
_CACHE_BYTES: Final = 64 << 20
UNAVAILABLE: Final = "files_unavailable"
_NOT_HERE = "There is no file {0!r} here: it was removed, or no card of this conversation names it any more."


@dataclass(slots=True)
class FileReader:
    """Reads files of turns from one store; safe to share between turns."""

    pool: Pool
    store: ObjectStore
    limits: StepLimits
    inline_chars: int
    _known: OrderedDict[tuple[ProjectId, ArtifactId], ModelFile] = field(
        default_factory=OrderedDict[tuple[ProjectId, ArtifactId], ModelFile]
    )
    _bytes: int = 0

    async def shown(self, turn: TurnRef, messages: Sequence[ModelMessage], most: int) -> Mapping[ArtifactId, ModelFile]:
        """The newest files of the messages, at most so many; raises `ModelError` (files_unavailable)."""
        parts = newest(messages, most)
        if not parts:
            return {}
        rows = await self._rows(turn, [part.artifact_id for part in parts])
        files = [await self._file(turn.project_id, part, rows.get(part.artifact_id)) for part in parts]
        return within_total(files, {part.artifact_id: part for part in parts})

    async def read(self, turn: TurnRef, request: ReadFile, named: Sequence[FilePart], most: int) -> JsonObject | str:
        """At most so many bytes of a text file that a card of the turn names, or why there is none."""
        row = None
        if any(part.artifact_id == request.artifact_id for part in named):
            row = (await self._rows(turn, [request.artifact_id])).get(request.artifact_id)
        if row is None:
            return _NOT_HERE.format(request.artifact_id[:64])
        end = min(row.size, request.offset + min(request.limit or most, most))
        try:
            data = await self._insist(row, request.offset, end)
        except ObjectGone as error:
            return f"The file cannot be read: {error}."
        return text_part(request, data, row.size)

    async def _rows(self, turn: TurnRef, files: Sequence[ArtifactId]) -> dict[ArtifactId, FileRow]:
        rows = await self.pool.run(lambda conn: ready_files(conn, turn.project_id, turn.channel_id, files))
        return {row.artifact_id: row for row in rows}

    async def _file(self, project: ProjectId, part: FilePart, row: FileRow | None) -> ModelFile:
        if row is None:
            return note(part, "it was removed")
        key = (project, part.artifact_id)
        if (known := self._known.get(key)) is not None:
            self._known.move_to_end(key)
            return known
        part = part.model_copy(update={"size": row.size})
        try:
            file = await self._described(part, row)
        except ObjectGone as error:
            return note(part, str(error))
        self._keep(key, file)
        return file

    async def _described(self, part: FilePart, row: FileRow) -> ModelFile:
        most = max(IMAGE_BYTES, PDF_BYTES)
        head = await self._insist(row, 0, min(row.size, _HEAD_BYTES))
        if (why := is_too_large(part, head)) is not None:
            return note(part, why)
        if may_be_text(head) and row.size > self.inline_chars * 4:
            return long_text(part)
        data = head if len(head) == row.size else await self._insist(row, 0, min(row.size, most))
        return await asyncio.to_thread(describe_file, part, data, self.inline_chars)

    async def _insist(self, row: FileRow, first: int, end: int) -> bytes:
        """These bytes; raises `ObjectGone`, and `ModelError` once the store was away as often as a model may be."""
        if first >= end:
            return b""
        for failures in range(1, self.limits.model_attempts + 1):
            try:
                async with asyncio.timeout(_READ_SECONDS):
                    return await self._read(row, first, end)
            except ObjectGone:
                raise
            except (ServerUnavailable, TimeoutError):
                if failures == self.limits.model_attempts:
                    break
                await asyncio.sleep(self.limits.pause(failures, None))
        message = f"the store of files did not answer {self.limits.model_attempts} times: see [artifacts].store"
        raise ModelError(UNAVAILABLE, message, retryable=False)

    async def _read(self, row: FileRow, first: int, end: int) -> bytes:
        async with contextlib.aclosing(self.store.read(self.store.name_of(row.storage_uri), first, end)) as parts:
            return b"".join([part async for part in parts])

    def _keep(self, key: tuple[ProjectId, ArtifactId], file: ModelFile) -> None:
        self._known[key] = file
        self._bytes += _size(file)
        while self._bytes > _CACHE_BYTES:
            _, dropped = self._known.popitem(last=False)
            self._bytes -= _size(dropped)


def _size(file: ModelFile) -> int:
    return len(file.url) + len(file.text) + 500
