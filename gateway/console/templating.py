"""Jinja2 as the console uses it: everything is escaped, unseen characters are shown, an unknown name is an error.

Templates and static files are read once, when the process's first gateway starts. A static file's address has a digest
of its content in it, so that browsers keep it for ever and still get the new one.

Markdown of models and strangers becomes HTML without raw HTML, images, styles, classes and ids of its own; links show
where they lead. What is rendered is bounded, as the time it takes is: a longer text is shown as it is.
"""

import hashlib
import mimetypes
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import urlsplit

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markdown_it.utils import OptionsDict
from markupsafe import Markup, escape

from turnstile.gateway.console import formats
from turnstile.schema import amounts
from turnstile.schema.cards import readable_content
from turnstile.schema.visible import visible

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


@cache
def templates() -> Templates:
    """Those of this process, which all its gateways share: compiling them takes a third of a second."""
    return Templates()


def _asset(path: Path) -> Asset:
    content = path.read_bytes()
    digest = hashlib.sha256(content).hexdigest()[:16]
    media = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    return Asset(f"{CONSOLE}/static/{digest}/{path.name}", content, media)


RENDERED: Final = 20_000
"""Characters of a text that is rendered; a longer one is shown as it is."""
LONGEST: Final = 200_000
"""Characters that are shown; what follows is left out, and said to be."""
_SCHEMES: Final = frozenset({"http", "https", "mailto"})
_DEEPEST: Final = 30
_COSTLY: Final = "[*_`<!|"
_DENSEST: Final = 2000
"""How often each of these may be in a text that is rendered: the parser's time grows with their square."""
_TITLES: Final = {"h1": "h3", "h2": "h4", "h3": "h5"}
"""Below the titles that the page has itself."""


def markdown(text: str) -> Markup:
    """The text as HTML; as it is where it is too long, too deep or too dense to be rendered, cut after `LONGEST`."""
    if len(text) <= RENDERED and all(text.count(mark) <= _DENSEST for mark in _COSTLY):
        parser = _parser()
        env: dict[str, Any] = {}
        tokens = parser.parse(text, env)
        if all(token.level < _DEEPEST for token in tokens):  # what is deeper the parser leaves out
            for token in tokens:
                _show(token)
            return Markup(parser.renderer.render(tokens, parser.options, env))  # noqa: S704 -- html is off: all is escaped
    left = len(text) - LONGEST
    plain = Markup('<pre tabindex="0">{}</pre>').format(visible(text[:LONGEST]))
    if left <= 0:
        return plain
    return plain + Markup('<p class="cut">{} more characters are not shown here.</p>').format(f"{left:,}")


def allowed(url: str) -> bool:
    """Whether a link may lead there."""
    try:
        return urlsplit(url.strip()).scheme.lower() in _SCHEMES
    except ValueError:
        return False


@cache
def _parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": False, "maxNesting": _DEEPEST + 2}, renderer_cls=_Renderer)
    parser.enable("table")
    parser.validateLink = allowed
    return parser


def _show(token: Token) -> None:
    """Let a token hide nothing, also what entities stand for, and say nothing of how it looks."""
    token.content = visible(token.content)
    token.attrs = {name: value for name, value in token.attrs.items() if name in ("href", "src", "start")}
    token.tag = _TITLES.get(token.tag, "h6" if token.type.startswith("heading") else token.tag)
    for child in token.children or ():
        _show(child)


class _Renderer(RendererHTML):
    """Links with a word to where they lead, and images as links: one that is loaded shows its host who reads this."""

    def link_open(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: MutableMapping[str, Any]) -> str:
        """The begin of a link."""
        return f'<a href="{escape(tokens[idx].attrGet("href") or "")}" rel="noopener noreferrer nofollow">'

    def link_close(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: MutableMapping[str, Any]) -> str:
        """The end of a link, with the host that it leads to; links are never in links."""
        opened = next(n for n in range(idx, -1, -1) if tokens[n].type == "link_open")
        return f"</a>{_host(str(tokens[opened].attrGet('href') or ''))}"

    def image(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: MutableMapping[str, Any]) -> str:
        """A link to the image, or its words within another link."""
        token = tokens[idx]
        url, words = str(token.attrGet("src") or ""), escape(token.content or "image")
        before = [t.type for t in tokens[:idx]]
        if before.count("link_open") > before.count("link_close"):
            return f"[{words}]"
        return f'<a href="{escape(url)}" rel="noopener noreferrer nofollow">{words}</a>{_host(url)}'

    def fence(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: MutableMapping[str, Any]) -> str:
        """A block of code; a reader can scroll it by the keyboard."""
        return f'<pre tabindex="0"><code>{escape(tokens[idx].content)}</code></pre>\n'

    def code_block(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: MutableMapping[str, Any]) -> str:
        """As `fence`."""
        return self.fence(tokens, idx, options, env)


def _host(url: str) -> str:
    """Whom a link leads to, without the user that an address may pretend to be."""
    try:
        parts = urlsplit(url)
        named = parts.hostname or parts.path
    except ValueError:
        named = url
    return f' <span class="host">({escape(visible(named))})</span>' if named else ""
