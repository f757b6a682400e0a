"""The store that has the bytes of files: a directory, S3, GCS or Azure, by its address (protocol §22).

An object is written once, under the name that its file's row has, and read as often as anybody likes; nothing of it is
held whole in memory. What the store answers is `ServerUnavailable` where it may be otherwise later.
"""

import asyncio
import contextlib
import os
import secrets
from collections.abc import AsyncGenerator, AsyncIterable, Generator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import urlsplit

import obstore
from obstore.exceptions import BaseError
from obstore.store import ObjectStore as Backend
from obstore.store import from_url

from turnstile.schema.errors import ConfigError, ServerUnavailable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from obstore import ListStream, ObjectMeta

SCHEMES: Final = ("file", "s3", "gs", "az")
_PART_BYTES: Final = 5 << 20
"""Of one part of an upload: the least that S3 takes."""
_PARTS_AT_A_TIME: Final = 2
_READ_BYTES: Final = 256 << 10
_PREFIXES: Final = {"s3": "AWS", "gs": "GOOGLE", "az": "AZURE"}
"""Of the variables that have a provider's keys."""
_RETRIES: Final[Any] = {"max_retries": 3, "retry_timeout": timedelta(seconds=30)}


class ObjectGone(ServerUnavailable):
    """The store does not have an object that the ledger knows of."""

    code: str = "file_unavailable"


@dataclass(frozen=True, slots=True)
class ObjectStore:
    """One store; objects are named by paths below its address."""

    address: str
    backend: Backend
    directory: Path | None = None
    """Of one that is a directory of this machine."""

    @classmethod
    def at(cls, address: str) -> Self:
        """The store at `file:///DIRECTORY`, `s3://BUCKET/PREFIX`, `gs://…` or `az://…`; raises `ConfigError`.

        Keys for it are in the environment, under the names that the provider's own tools read.
        """
        parts = urlsplit(address)
        if parts.scheme not in SCHEMES or (parts.scheme == "file") != (not parts.netloc) or parts.query:
            raise ConfigError(f"[artifacts].store: {address!r} is not file:///DIRECTORY, s3://, gs:// or az://BUCKET")
        try:
            if parts.scheme == "file":
                return cls(address.rstrip("/"), from_url(address, mkdir=True), Path(parts.path))
            insecure = os.environ.get(f"{_PREFIXES[parts.scheme]}_ALLOW_HTTP", "").lower() in ("true", "1")
            options: Any = {"timeout": "60s", "connect_timeout": "10s", "allow_http": insecure}
            return cls(address.rstrip("/"), from_url(address, client_options=options, retry_config=_RETRIES))
        except (BaseError, OSError, ValueError) as error:
            raise ConfigError(f"[artifacts].store: {address}: {_first_line(error)}") from None

    def uri(self, name: str) -> str:
        """The address of an object of this store."""
        return f"{self.address}/{name}"

    def name_of(self, uri: str) -> str:
        """The name of an object; raises `ObjectGone` for an address in another store."""
        if not uri.startswith(f"{self.address}/"):
            raise ObjectGone("the file's bytes are in another store than [artifacts].store names")
        return uri.removeprefix(f"{self.address}/")

    async def write(self, name: str, parts: AsyncIterable[bytes]) -> None:
        """Write an object whole, or nothing of it; raises what `parts` raises, and `ServerUnavailable`."""
        raised: list[BaseException] = []

        async def passed() -> AsyncGenerator[bytes]:
            try:
                async for part in parts:
                    yield part
            except BaseException as error:
                raised.append(error)
                raise

        with self._failures():
            try:
                await obstore.put_async(
                    self.backend, name, passed(), chunk_size=_PART_BYTES, max_concurrency=_PARTS_AT_A_TIME
                )
            except BaseException:
                if raised:
                    raise raised[0] from None
                raise
        if self.directory is not None:
            await asyncio.to_thread(_keep, self.directory / name)

    async def read(self, name: str, first: int, end: int) -> AsyncGenerator[bytes]:
        """Yields the bytes from `first` up to, without, `end`; raises `ObjectGone` and `ServerUnavailable`."""
        with self._failures():
            found = await obstore.get_async(self.backend, name, options={"range": (first, end)})
            async for part in found.stream(min_chunk_size=_READ_BYTES):
                yield bytes(part)

    async def size(self, name: str) -> int | None:
        """The bytes of an object; None if there is none."""
        with self._failures():
            try:
                return (await obstore.head_async(self.backend, name))["size"]
            except FileNotFoundError:
                return None

    async def names(self, prefix: str = "") -> AsyncGenerator[list[str]]:
        """Yields the names of all objects below a prefix, some at a time; raises `ServerUnavailable`."""
        with self._failures():
            backend: Any = obstore  # its types name Arrow's form, too
            pages: ListStream[Sequence[ObjectMeta]] = backend.list(self.backend, prefix or None, chunk_size=1000)
            async for page in pages:
                yield [found["path"] for found in page]

    async def remove(self, name: str) -> None:
        """Remove an object, and what an interrupted upload left of it; there may be none."""
        with self._failures(), contextlib.suppress(FileNotFoundError):
            await obstore.delete_async(self.backend, name)
        if self.directory is not None:
            await asyncio.to_thread(_remove_parts, self.directory / name)

    async def check(self) -> None:
        """Write, read and remove an object; raises `ServerUnavailable` with the reason where one of these fails."""
        name = f".check-{secrets.token_hex(8)}"

        async def word() -> AsyncGenerator[bytes]:
            yield b"turnstile"

        await self.write(name, word())
        size = await self.size(name)
        await self.remove(name)
        if size != len(b"turnstile"):
            raise ServerUnavailable(f"{self.address}: what was written could not be read")

    @contextlib.contextmanager
    def _failures(self) -> Generator[None]:
        try:
            yield
        except FileNotFoundError:
            raise ObjectGone("the file's bytes are gone from the store") from None
        except (BaseError, OSError) as error:
            raise ServerUnavailable(f"the store of files at {self.address}: {_first_line(error)}") from None


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0][:200]}"


def _keep(path: Path) -> None:
    """Have the system write a file, and that it is there."""
    for place, flags in ((path, os.O_RDONLY), (path.parent, os.O_RDONLY | os.O_DIRECTORY)):
        held = os.open(place, flags)
        try:
            os.fsync(held)
        finally:
            os.close(held)


def _remove_parts(path: Path) -> None:
    for part in path.parent.glob(f"{path.name}#*"):
        part.unlink(missing_ok=True)
