"""The verbs of files: announced, ready, removed (protocol §22). Their bytes go to the store, never over NATS."""

from dataclasses import dataclass

from turnstile.bridge.serving.micro_service import VerbRequest
from turnstile.ledger.files.artifacts import FileLimits, begin_artifact, commit_artifact, remove_artifact
from turnstile.ledger.pool import Pool
from turnstile.runtime.faults import Fault, hit
from turnstile.runtime.object_store import ObjectStore
from turnstile.schema.errors import Refused
from turnstile.schema.ids import new_artifact_id
from turnstile.schema.states import ReplyStatus
from turnstile.schema.wire.file_requests import FileBegin, FileCommit, FileRemove, FileReply

NO_STORE = "this installation keeps no files: set [artifacts].store"


@dataclass(frozen=True, slots=True)
class FileVerbs:
    """The verbs over one ledger and one store; each sees the channel of its subject alone."""

    pool: Pool
    store: ObjectStore | None
    limits: FileLimits
    file_bytes: int
    """Of one file."""

    async def artifact_create(self, request: VerbRequest) -> FileReply:
        """Announce a file: nobody reads it before its bytes are in the store, which its row names.

        Raises `Refused` (files_unavailable, file_too_large) and `Limited` (files_full, uploads_full).
        """
        store, body = self._store(), request.parse(FileBegin)
        check_size(body.size, self.file_bytes)
        artifact = new_artifact_id()
        uri = store.uri(f"{request.project_id}/{artifact}")
        maker = "" if request.caller is None else request.caller.name
        announced = await self.pool.run(
            lambda conn: begin_artifact(
                conn,
                request.project_id,
                request.channel_id,
                artifact,
                body,
                storage_uri=uri,
                created_by=maker,
                limits=self.limits,
            )
        )
        hit(Fault.FILE_ANNOUNCED)
        return FileReply(
            status=ReplyStatus.ACCEPTED,
            artifact_id=announced.artifact_id,
            storage_uri=uri if announced.is_new else None,
        )

    async def artifact_commit(self, request: VerbRequest) -> FileReply:
        """Make a file ready, once the store has its bytes.

        Raises `Refused` (files_unavailable, file_too_large, unknown_artifact, key_conflict), `Limited` (files_full),
        and `ServerUnavailable` where the store does not have them.
        """
        store, body = self._store(), request.parse(FileCommit)
        check_size(body.size, self.file_bytes)
        found = await store.size(f"{request.project_id}/{body.artifact_id}")
        if found not in (None, body.size):
            raise Refused("content_mismatch", f"the store has {found} bytes of this file")
        if found is None and body.size:
            raise Refused("unknown_artifact", "the store has no bytes of this file")
        announced = await self.pool.run(
            lambda conn: commit_artifact(
                conn,
                request.project_id,
                request.channel_id,
                body.artifact_id,
                size=body.size,
                sha256=body.sha256,
                limits=self.limits,
            )
        )
        hit(Fault.FILE_READY)
        return FileReply(status=ReplyStatus.ACCEPTED, artifact_id=announced.artifact_id)

    async def artifact_remove(self, request: VerbRequest) -> FileReply:
        """Remove a file; who does not operate gives up an upload of their own. Raises `Refused` (unknown_artifact)."""
        caller, body = request.named_caller(), request.parse(FileRemove)
        maker = None if caller.operates else caller.name
        await self.pool.run(lambda conn: remove_artifact(conn, request.project_id, body.artifact_id, uploader=maker))
        hit(Fault.FILE_REMOVED)
        return FileReply(status=ReplyStatus.ACCEPTED, artifact_id=body.artifact_id)

    def _store(self) -> ObjectStore:
        if self.store is None:
            raise Refused("files_unavailable", NO_STORE)
        return self.store


def check_size(size: int, most: int) -> None:
    """Raise `Refused` (file_too_large) for a file of more bytes than one may have."""
    if size > most:
        raise Refused("file_too_large", f"a file may have at most {most} bytes, as [artifacts].max_file_mb says")
