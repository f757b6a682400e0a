"""Files of projects: announced, ready, read, removed (protocol §22).

A file's row comes before its bytes and goes after them, so the store never has what the ledger does not know.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from turnstile.ledger.queries import Connection, query
from turnstile.schema.base import Tolerant
from turnstile.schema.cards import FilePart
from turnstile.schema.errors import Limited, Refused
from turnstile.schema.ids import AgentTurnId, ArtifactId, ChannelId, ProjectId
from turnstile.schema.wire.file_requests import UNKNOWN_KIND, FileBegin, file_kind, file_name

_REFUSALS: Final = {
    "key_conflict": "a request of this name has made a file with other bytes",
    "unknown_artifact": "the channel has no file of this id, or its upload took too long",
}
_LIMITS: Final = {
    "files_full": "the project's files have as many bytes as [artifacts].project_mb allows: remove some",
    "uploads_full": "the project uploads as many files at a time as [artifacts].max_uploads allows: try again",
}


class FileRow(Tolerant):
    """A file that is ready."""

    artifact_id: ArtifactId
    channel_id: ChannelId
    filename: str | None
    mime: str | None
    size: int
    sha256: str | None
    storage_uri: str
    created_by: str
    created_at: datetime
    agent_turn_id: AgentTurnId | None


class LeavingFile(Tolerant):
    """A file whose bytes are to be removed."""

    project_id: ProjectId
    artifact_id: ArtifactId
    storage_uri: str


class KeptFile(Tolerant):
    """A file that is ready, and what its bytes are."""

    project_id: ProjectId
    artifact_id: ArtifactId
    size: int
    sha256: str | None
    storage_uri: str


@dataclass(frozen=True, slots=True)
class FileLimits:
    """The limits of one project; 0 is no limit."""

    bytes: int = 0
    uploads: int = 0


@dataclass(frozen=True, slots=True)
class Announced:
    """The file that a request makes; one that was made before is not new."""

    artifact_id: ArtifactId
    is_new: bool


async def begin_artifact(
    conn: Connection,
    project: ProjectId,
    channel: ChannelId,
    artifact: ArtifactId,
    request: FileBegin,
    *,
    storage_uri: str,
    created_by: str,
    limits: FileLimits,
) -> Announced:
    """Announce a file; raises `Limited` (files_full, uploads_full)."""
    asked = {
        **request.model_dump(mode="json"),
        "artifact_id": artifact,
        "storage_uri": storage_uri,
        "created_by": created_by,
    }
    row = await query("begin_artifact").one(
        conn,
        project_id=project,
        channel_id=channel,
        asked=json.dumps(asked),
        most_bytes=limits.bytes,
        most_uploads=limits.uploads,
    )
    return _announced(row["verdict"], row["artifact"])


async def commit_artifact(
    conn: Connection,
    project: ProjectId,
    channel: ChannelId,
    artifact: ArtifactId,
    *,
    size: int,
    sha256: str,
    limits: FileLimits,
) -> Announced:
    """Make a file ready; raises `Limited` (files_full) and `Refused` (key_conflict, unknown_artifact).

    Where another upload of the same request was first, the file is that one.
    """
    row = await query("commit_artifact").one(
        conn,
        project_id=project,
        channel_id=channel,
        artifact_id=artifact,
        size=size,
        hash=sha256,
        most_bytes=limits.bytes,
    )
    return _announced(row["verdict"], row["artifact"])


def _announced(verdict: str, artifact: str) -> Announced:
    if verdict in _LIMITS:
        raise Limited(verdict, _LIMITS[verdict])
    if verdict in _REFUSALS:
        raise Refused(verdict, _REFUSALS[verdict])
    return Announced(ArtifactId(artifact), verdict == "accepted")


async def read_artifact(
    conn: Connection, project: ProjectId, channel: ChannelId | None, artifact: ArtifactId
) -> FileRow:
    """A file that is ready, of any channel if none is named; raises `Refused` (unknown_artifact)."""
    row = await query("read_artifact").opt_as(
        conn, FileRow, project_id=project, channel_id=channel, artifact_id=artifact
    )
    if row is None:
        raise Refused("unknown_artifact", "there is no such file")
    return row


async def file_parts(conn: Connection, project: ProjectId, files: Sequence[ArtifactId]) -> tuple[FilePart, ...]:
    """The files as a card names them, each once, in this order.

    One that is not there is a part of its id alone: the ledger refuses the card, as it does a file of another channel.
    """
    rows = await query("file_parts").all_as(conn, FilePart, project_id=project, artifact_ids=list(files))
    known = {row.artifact_id: row for row in rows}
    return tuple(
        FilePart(
            artifact_id=artifact,
            filename=file_name(known[artifact].filename or "file"),
            mime=file_kind(known[artifact].mime or UNKNOWN_KIND),
            size=known[artifact].size,
        )
        if artifact in known
        else FilePart(artifact_id=artifact)
        for artifact in dict.fromkeys(files)
    )


async def ready_files(
    conn: Connection, project: ProjectId, channel: ChannelId, files: Sequence[ArtifactId]
) -> Sequence[FileRow]:
    """Those of the files that the channel has and that are ready."""
    return await query("ready_files").all_as(
        conn, FileRow, project_id=project, channel_id=channel, artifact_ids=list(files)
    )


async def list_artifacts(
    conn: Connection,
    project: ProjectId,
    channel: ChannelId | None,
    *,
    before: tuple[datetime, str] | None = None,
    row_limit: int,
) -> Sequence[FileRow]:
    """Files that are ready, newest first."""
    moment, artifact = before or (None, None)
    return await query("list_artifacts").all_as(
        conn, FileRow, project_id=project, channel_id=channel, before=moment, before_id=artifact, row_limit=row_limit
    )


async def remove_artifact(
    conn: Connection, project: ProjectId, artifact: ArtifactId, *, uploader: str | None = None
) -> None:
    """Let nobody read a file any more; an `uploader` ends an upload alone. Raises `Refused` (unknown_artifact)."""
    arguments = {"project_id": project, "artifact_id": artifact, "uploader": uploader}
    if not (await query("remove_artifact").one(conn, **arguments))["found"]:
        raise Refused("unknown_artifact", "there is no such file")


async def list_leaving(
    conn: Connection, *, upload_seconds: float, retry_seconds: float, row_limit: int
) -> Sequence[LeavingFile]:
    """Take files whose bytes are to be removed; they are taken again after `retry_seconds`."""
    return await query("list_leaving").all_as(
        conn, LeavingFile, upload_seconds=upload_seconds, retry_seconds=retry_seconds, row_limit=row_limit
    )


async def close_files(
    conn: Connection, project: ProjectId, *, after: ArtifactId | None, row_limit: int
) -> Sequence[LeavingFile]:
    """Let nobody read the next files of a project any more."""
    return await query("close_files").all_as(conn, LeavingFile, project_id=project, after=after, row_limit=row_limit)


async def forget_artifact(conn: Connection, file: LeavingFile) -> None:
    """The bytes are gone: so is the row."""
    await query("forget_artifact").many(conn, project_id=file.project_id, artifact_id=file.artifact_id)


async def list_kept_files(
    conn: Connection, after: KeptFile | None, *, project: ProjectId | None, since: datetime | None, row_limit: int
) -> Sequence[KeptFile]:
    """The next files that are ready, by project and id."""
    return await query("list_kept_files").all_as(
        conn,
        KeptFile,
        after_project="" if after is None else after.project_id,
        after_id="" if after is None else after.artifact_id,
        project_id=project,
        since=since,
        row_limit=row_limit,
    )


async def list_unknown_objects(conn: Connection, names: Sequence[str]) -> list[str]:
    """Those of these objects of the store that no file has."""
    return [row["name"] for row in await query("list_unknown_objects").many(conn, names=list(names))]
