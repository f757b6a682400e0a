"""Links that sign a browser in once, for whoever may read the data directory of `turnstile up` (protocol §14.5).

A link is an empty file, named by the digest of its code, that only its owner may see. Whoever removes the file has used
the link; a second one finds nothing, at any gateway and after any crash. The session is the one of the file `token`.
"""

import hashlib
import secrets
import time
from pathlib import Path
from typing import Final

from turnstile.schema.access import Secret, read_secret
from turnstile.schema.errors import Refused

LINK_SECONDS: Final = 600.0


class OneTimeLinks:
    """The links of one data directory."""

    def __init__(self, data: Path) -> None:
        self._token = data / "token"
        self._folder = data / "console-links"

    def make(self) -> str:
        """A new link's code; forgets those that nobody used in time."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        for old in self._folder.iterdir():
            if _is_late(old):
                old.unlink(missing_ok=True)
        code = secrets.token_urlsafe(32)
        self._file(code).touch(mode=0o600, exist_ok=False)
        return code

    def link(self, gateway: str) -> str:
        """A new link to the console of the gateway at this address."""
        return f"{gateway}/console/enter?once={self.make()}"

    def take(self, code: str) -> Secret:
        """Use a link up; raises `Refused` (link_used) if it was used, is too old or was never made."""
        path = self._file(code)
        late = _is_late(path)
        try:
            path.unlink()
        except FileNotFoundError:
            late = True
        secret = None if late or not self._token.exists() else read_secret(self._token.read_text().strip())
        if secret is None:
            raise Refused("link_used", "This link has been used or has expired. `turnstile console` prints a new one.")
        return secret

    def _file(self, code: str) -> Path:
        return self._folder / hashlib.sha256(code.encode()).hexdigest()


def _is_late(path: Path) -> bool:
    try:
        return abs(time.time() - path.stat().st_mtime) > LINK_SECONDS  # made later than now: the clock was set back
    except FileNotFoundError:
        return True
