"""Jinja2 as the console uses it: everything is escaped, unseen characters are shown, an unknown name is an error.

Templates and static files are read once, when the gateway starts. A static file's address has a digest of its content
in it, so that browsers keep it for ever and still get the new one.
"""

import hashlib
import mimetypes
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, cast

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from turnstile.gateway.console import formats
from turnstile.gateway.console.markdown import markdown
from turnstile.schema import amounts
from turnstile.schema.cards import readable_content

HERE: Final = Path(__file__).parent
CONSOLE: Final = "/console"


@dataclass(frozen=True, slots=True)
class Asset:
    """A static file."""

    address: str
    content: bytes
    media: str


class Templates:
    """The console's templates and static files."""

    def __init__(self) -> None:
        self.assets: Mapping[str, Asset] = {path.name: _asset(path) for path in (HERE / "static").iterdir()}
        self.jinja = Environment(
            loader=FileSystemLoader(HERE / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
            finalize=formats.finalized,
        )
        filters, shared = cast("dict[str, Any]", self.jinja.filters), cast("dict[str, Any]", self.jinja.globals)
        filters |= {
            "ago": formats.ago,
            "coded": formats.coded,
            "content": readable_content,
            "amount": amounts.amount,
            "as_json": formats.as_json,
            "duration": amounts.duration,
            "kept": formats.kept,
            "markdown": markdown,
            "moment": formats.moment,
            "money": amounts.money,
            "part": formats.part,
            "tokens": amounts.tokens,
            "visible": formats.visible,
        }
        shared |= {"asset": self._address_of, "now": lambda: datetime.now(UTC)}

    def compile(self) -> None:
        """Compile all templates, else each is at its first use, which holds the loop some 50 ms."""
        for name in self.jinja.list_templates():
            self.jinja.get_template(name)

    def _address_of(self, name: str) -> str:
        return self.assets[name].address

    def render(self, name: str, /, **context: object) -> str:
        """A template's text."""
        return self.jinja.get_template(name).render(context)


def _asset(path: Path) -> Asset:
    content = path.read_bytes()
    digest = hashlib.sha256(content).hexdigest()[:16]
    media = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    return Asset(f"{CONSOLE}/static/{digest}/{path.name}", content, media)
