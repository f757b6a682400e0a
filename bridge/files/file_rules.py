"""The safety net's rule for files: the bytes of what was removed, or was not sent whole, leave the store (§22)."""

import contextlib
import logging
from collections.abc import Sequence
from typing import Any, Final

from turnstile.bridge.safety.rules import RunTransition, SafetyRule
from turnstile.ledger.files.artifacts import LeavingFile, close_files, forget_artifact, list_leaving
from turnstile.ledger.pool import Pool
from turnstile.runtime.faults import Fault, hit
from turnstile.runtime.object_store import ObjectGone, ObjectStore
from turnstile.schema.errors import Refused, ServerUnavailable
from turnstile.schema.ids import ArtifactId, ProjectId

log = logging.getLogger(__name__)
UPLOAD_SECONDS: Final = 3600.0
"""After which an upload that is not finished is lost."""
_RETRY_SECONDS: Final = 10.0
_AT_ONCE: Final = 100


def file_rules(pool: Pool, store: ObjectStore | None, every: float) -> list[SafetyRule[Any]]:
    """The rule `file`; none without a store."""
    if store is None:
        return []

    async def leaving(run: RunTransition) -> Sequence[LeavingFile]:
        return await run(
            lambda conn: list_leaving(
                conn, upload_seconds=UPLOAD_SECONDS, retry_seconds=_RETRY_SECONDS, row_limit=_AT_ONCE
            )
        )

    async def remove(files: Sequence[LeavingFile]) -> int:
        """The bytes first, then the row: what fails between is found again."""
        for removed, file in enumerate(files):
            try:
                await store.remove(store.name_of(file.storage_uri))
            except ObjectGone as error:  # another store has it, which somebody else keeps
                log.warning("file %s: %s; its row goes alone", file.artifact_id, error)
            except ServerUnavailable as error:
                log.warning("%d files still have bytes to remove: %s", len(files) - removed, error)
                return removed
            await pool.run(lambda conn, file=file: forget_artifact(conn, file))
            hit(Fault.FILE_FORGOTTEN)
        return len(files)

    return [SafetyRule("file", leaving, remove, every)]


async def remove_files(pool: Pool, store: ObjectStore | None, project: ProjectId) -> None:
    """Remove the bytes of all files of a project that is removed; raises `Refused` (files_unavailable) without a store.

    Raises `ServerUnavailable` where the store does not answer: then it is run again.
    """
    last: ArtifactId | None = None
    while files := await pool.run(
        lambda conn: close_files(conn, project, after=last, row_limit=_AT_ONCE)  # noqa: B023 -- awaited here
    ):
        if store is None:
            raise Refused("files_unavailable", f"project {project} has files: set [artifacts].store to their store")
        for file in files:
            with contextlib.suppress(ObjectGone):
                await store.remove(store.name_of(file.storage_uri))
        last = files[-1].artifact_id
