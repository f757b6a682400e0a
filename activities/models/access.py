"""The base URL and the API key of a model, from the operator's settings only.

A profile names a model; it cannot name an address, a key or a file, so who may write profiles cannot send a key
elsewhere. Entries are keyed by a provider or by the beginning of a model id (`openai`, `openai/qwen`); the longest
matching entry applies. A key file is read at every call, so that a rotated key needs no restart. Keys are never logged.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from turnstile.schema.errors import ModelError

NO_KEY = "no-key"
"""Sent to the operator's own server if no key is set, because clients require one."""
_VARIABLES = {
    "gemini": ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
    "azure": ("AZURE_API_KEY", "AZURE_API_BASE"),
    "bedrock": ("AWS_ACCESS_KEY_ID", "AWS_REGION_NAME"),
}
"""Environment variables that name an account, where it is not `PROVIDER_API_KEY`."""


@dataclass(frozen=True, slots=True)
class ModelAccess:
    """`[model.api_key_files]` and `[model.api_bases]`."""

    key_files: Mapping[str, Path] = field(default_factory=dict[str, Path])
    api_bases: Mapping[str, str] = field(default_factory=dict[str, str])
    provider_messages: bool = True
    """Whether a turn that a provider refuses has its words (`[model].provider_messages`)."""

    def api_base(self, model: str) -> str | None:
        """The base URL set for the model, if any."""
        entry = _longest(self.api_bases, model)
        return None if entry is None else self.api_bases[entry]

    def origin(self, model: str, provider: str) -> str:
        """The name under which reasoning of the model is kept: its provider, and the entry of its own server."""
        entry = _longest(self.api_bases, model)
        return provider if entry in (None, provider) else f"{provider} at {entry}"

    def api_key(self, model: str) -> str | None:
        """The key in the file of the longest matching entry; None if no entry matches: the environment applies then.

        Raises `ModelError` (`model_key_missing`) for a key file that holds none.
        """
        file = _longest(self.key_files, model)
        return None if file is None else _read(file, self.key_files[file])

    def account(self, model: str) -> str:
        """Stands for the server and the key by which the model is asked, without saying the key.

        So what a provider says of its limits holds for all requests with the same account. A key file that cannot be
        read counts as no key.
        """
        provider = model.partition("/")[0]
        try:
            keys = [self.api_key(model)]
        except ModelError:
            keys = []
        if keys == [None]:
            keys = [os.environ.get(name) for name in _VARIABLES.get(provider, (f"{provider.upper()}_API_KEY",))]
        named = "\0".join([self.api_base(model) or "", *filter(None, keys)])
        return f"{provider}:{sha256(f'turnstile account {named}'.encode()).hexdigest()[:8]}"

    def needs_no_key(self, model: str) -> bool:
        """Whether an own server is set for the model, by an entry that names more than its provider."""
        base = _longest(self.api_bases, model)
        return base is not None and "/" in base


def _longest(entries: Mapping[str, object], model: str) -> str | None:
    fitting = [
        entry for entry in entries if model == entry or model.startswith((f"{entry}/", f"{entry}-", f"{entry}:"))
    ]
    return max(fitting, key=len, default=None)


def _read(entry: str, file: Path) -> str:
    try:
        key = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise _missing(entry, f"{file} cannot be read ({type(error).__name__})") from None
    if not key or "\n" in key:
        raise _missing(entry, f"{file} must hold the key alone, on one line")
    return key


def _missing(entry: str, what: str) -> ModelError:
    return ModelError("model_key_missing", f"[model.api_key_files].{entry}: {what}", retryable=False)
