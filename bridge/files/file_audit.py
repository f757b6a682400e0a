"""The audit of the store: each file has its bytes, and each object is of a file (protocol §22).

Files may come and go meanwhile: what looks wrong is looked at again before it counts. It holds one page of files; with
`deep` it reads every byte.
"""

import hashlib
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

from turnstile.ledger.files.artifacts import KeptFile, list_kept_files, list_unknown_objects, read_artifact
from turnstile.ledger.operations.audit import Audit, RuleResult, Scope, Violation
from turnstile.ledger.pool import Pool
from turnstile.runtime.object_store import ObjectGone, ObjectStore
from turnstile.schema.errors import Refused

_SECTION: Final = "§22"
_PAGE: Final = 500
_BYTES = "files_have_their_bytes", "a file that is ready has all of its bytes in the store"
_KNOWN = "objects_are_of_files", "the store has no object that the ledger does not know"


async def audit_files(pool: Pool, store: ObjectStore, scope: Scope, *, deep: bool, row_limit: int) -> Audit:
    """Compare ledger and store; raises `ServerUnavailable` if one of them does not answer."""
    rules: list[RuleResult] = []
    violations: list[Violation] = []
    for (rule, says), found in (
        (_BYTES, _lacking(pool, store, scope, deep=deep)),
        (_KNOWN, _unknown(pool, store, scope)),
    ):
        began, broken = time.monotonic(), list[Violation]()
        async with aclosing(found) as rows:
            async for ids, detail in rows:
                broken.append(Violation(rule=rule, section=_SECTION, ids=ids, detail=detail))
                if len(broken) > row_limit:
                    break
        violations += broken[:row_limit]
        rules.append(
            RuleResult(
                rule=rule,
                section=_SECTION,
                says=says,
                violations=len(broken[:row_limit]),
                cut=len(broken) > row_limit,
                seconds=round(time.monotonic() - began, 3),
            )
        )
    return Audit(rules, violations)


async def _lacking(
    pool: Pool, store: ObjectStore, scope: Scope, *, deep: bool
) -> AsyncGenerator[tuple[dict[str, str], str]]:
    last: KeptFile | None = None
    while files := await pool.run(
        lambda conn: list_kept_files(
            conn,
            last,  # noqa: B023 -- awaited here
            project=scope.project_id,
            since=scope.since,
            row_limit=_PAGE,
        )
    ):
        for file in files:
            fault = await _fault(store, file, deep=deep)
            if fault is not None and await _is_there(pool, file):
                yield {"project_id": file.project_id, "artifact_id": file.artifact_id}, fault
        last = files[-1]


async def _fault(store: ObjectStore, file: KeptFile, *, deep: bool) -> str | None:
    try:
        name = store.name_of(file.storage_uri)
        size = await store.size(name)
        if size is None:
            return "the store does not have it" if file.size else None
        if size != file.size:
            return f"it has {file.size} bytes, and the store has {size}"
        if deep and size:
            digest = hashlib.sha256()
            async with aclosing(store.read(name, 0, size)) as parts:
                async for part in parts:
                    digest.update(part)
            if digest.hexdigest() != file.sha256:
                return "its bytes have another hash"
    except ObjectGone as error:
        return str(error)
    return None


async def _is_there(pool: Pool, file: KeptFile) -> bool:
    """Whether the file is still ready: it may have been removed since it was listed."""
    try:
        await pool.run(lambda conn: read_artifact(conn, file.project_id, None, file.artifact_id))
    except Refused:
        return False
    return True


async def _unknown(pool: Pool, store: ObjectStore, scope: Scope) -> AsyncGenerator[tuple[dict[str, str], str]]:
    prefix = "" if scope.project_id is None else f"{scope.project_id}/"
    async with aclosing(store.names(prefix)) as pages:
        async for page in pages:
            names = [name for name in page if "/" in name]
            for name in await pool.run(lambda conn, names=names: list_unknown_objects(conn, names)):
                if await store.size(name) is not None:
                    yield {"object": name}, "the ledger has no file of it"
