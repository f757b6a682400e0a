"""Files: their names and kinds, and the requests of their verbs (protocol §22). Bytes never cross NATS."""

import re
from datetime import datetime
from typing import Annotated, Final

from pydantic import AfterValidator, Field

from turnstile.schema.base import IdOf, Reply, Strict, Tolerant
from turnstile.schema.ids import AgentTurnId, ArtifactId, ChannelId
from turnstile.schema.visible import visible

LONGEST_NAME: Final = 255
"""Of a file, in characters."""
UNKNOWN_KIND: Final = "application/octet-stream"
_KIND: Final = re.compile(r"[a-z0-9][a-z0-9!#$&^_.+-]{0,62}/[a-z0-9][a-z0-9!#$&^_.+-]{0,62}\Z")
_LONGEST_READ: Final = 4096


FileId = Annotated[IdOf[ArtifactId], Field(min_length=1, max_length=128)]
"""The id of a file, as a request names it."""


def file_name(text: str) -> str:
    """A stranger's name for a file as it is kept: its last part, one line without hidden characters, bounded."""
    shown = visible(text[-_LONGEST_READ:], lambda _: "", exact=True).replace("\n", " ").replace("\t", " ")
    name = re.split(r"[/\\]", shown)[-1].strip()
    if name.strip(".") == "":
        return "file"
    if len(name) <= LONGEST_NAME:
        return name
    stem, dot, ending = name.rpartition(".")
    kept = f".{ending}" if dot and len(ending) <= 16 else ""
    return (stem or name)[: LONGEST_NAME - len(kept)] + kept


def file_kind(text: str) -> str:
    """A stranger's media type without its parameters; `application/octet-stream` for what is none."""
    kind = text.partition(";")[0].strip().lower()
    return kind if _KIND.match(kind) else UNKNOWN_KIND


class FileBegin(Strict):
    """Arguments of `artifact.create`."""

    filename: Annotated[str, Field(max_length=_LONGEST_READ), AfterValidator(file_name)] = "file"
    """Its name for people: the last part of a path, without hidden characters."""
    mime: Annotated[str, Field(max_length=_LONGEST_READ), AfterValidator(file_kind)] = UNKNOWN_KIND
    """Its media type, as who sends it says."""
    size: int = Field(default=0, ge=0, le=1 << 40)
    """The bytes that will come, as far as that is known."""
    correlation_id: str | None = Field(default=None, min_length=1, max_length=512)
    """The caller's own name for the request: the same again is the same file."""


class FileCommit(Strict):
    """Arguments of `artifact.commit`."""

    artifact_id: IdOf[ArtifactId] = Field(min_length=1, max_length=128)
    """The file, as `artifact.create` named it."""
    size: int = Field(ge=0, le=1 << 40)
    """Its bytes."""
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    """Their hash."""


class FileRemove(Strict):
    """Arguments of `artifact.remove`."""

    artifact_id: IdOf[ArtifactId] = Field(min_length=1, max_length=128)
    """The file."""


class FileReply(Reply):
    """Reply to `artifact.create`, `artifact.commit` and `artifact.remove`."""

    artifact_id: IdOf[ArtifactId] | None = None
    """The file; of a repeat, the one that was made before."""
    storage_uri: str | None = None
    """Where its bytes belong; null where it is there already."""


class FileView(Tolerant):
    """A file."""

    artifact_id: IdOf[ArtifactId]
    """Its id."""
    filename: str
    """Its name."""
    mime: str
    """Its media type, as who sent it said."""
    size: int
    """Its bytes."""
    sha256: str | None = None
    """Their hash; null of one that another program wrote without it."""
    channel_id: IdOf[ChannelId]
    """Who sees the channel sees the file."""
    created_at: datetime
    """When it was announced."""
    created_by: str = ""
    """Who sent it."""
    agent_turn_id: IdOf[AgentTurnId] | None = None
    """The turn whose tool made it."""
