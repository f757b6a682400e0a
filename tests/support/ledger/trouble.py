"""Temporary errors of the real server: by a trigger that raises any SQLSTATE, or by a full disk."""

import os
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from turnstile.ledger.pool import Pool

NO_SPACE = "could not extend file: No space left on device"
_DISK_KB = 2048


@asynccontextmanager
async def raising(
    pool: Pool, sqlstate: str, *, on: str = "public.cards", words: str = NO_SPACE
) -> AsyncGenerator[None]:
    """Inside the block every insert into the table fails with this SQLSTATE."""
    async with pool.connection() as conn:
        await conn.execute(
            "CREATE OR REPLACE FUNCTION public.raise_trouble() RETURNS trigger LANGUAGE plpgsql AS "
            f"$$BEGIN RAISE EXCEPTION '{words}' USING ERRCODE = '{sqlstate}'; END$$"
        )
        await conn.execute(
            f"CREATE TRIGGER raise_trouble BEFORE INSERT ON {on} EXECUTE FUNCTION public.raise_trouble()"
        )
    try:
        yield
    finally:
        async with pool.connection() as conn:
            await conn.execute(f"DROP TRIGGER raise_trouble ON {on}")


@contextmanager
def _small_disk() -> Generator[Path]:
    """A small file system; skips the test if none can be mounted."""
    directory = Path(tempfile.mkdtemp(prefix="turnstile-disk-"))
    directory.chmod(0o755)  # for the server, which is another user than root
    mounting = ["mount", "-t", "tmpfs", "-o", f"size={_DISK_KB}k,mode=0777", "tmpfs", str(directory)]
    try:
        if os.geteuid() != 0 or subprocess.run(mounting, check=False, capture_output=True).returncode:
            pytest.skip("a full disk needs the right to mount a small file system")
        try:
            yield directory
        finally:
            subprocess.run(["umount", str(directory)], check=True)
    finally:
        directory.rmdir()


def _give(directory: Path, like: str) -> None:
    owner = Path(like).stat()
    os.chown(directory, owner.st_uid, owner.st_gid)


def _fill(directory: Path) -> None:
    (directory / "ballast").write_bytes(bytes(shutil.disk_usage(directory).free))


@asynccontextmanager
async def full_disk(pool: Pool, table: str) -> AsyncGenerator[None]:
    """Inside the block the table is on a full file system; skips the test if none can be mounted."""
    with _small_disk() as directory:
        name = f"disk_{uuid.uuid4().hex[:8]}"
        async with pool.connection() as conn:
            [where] = await conn.fetch("SHOW data_directory")
            _give(directory, where["data_directory"])
            await conn.execute(f"CREATE TABLESPACE {name} LOCATION '{directory}'")
            await conn.execute(f"ALTER TABLE {table} SET TABLESPACE {name}")
        _fill(directory)
        try:
            yield
        finally:
            async with pool.connection() as conn:
                await conn.execute(f"ALTER TABLE {table} SET TABLESPACE pg_default")
                await conn.execute(f"DROP TABLESPACE {name}")
