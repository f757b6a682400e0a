"""Markdown of models and strangers as HTML: no raw HTML, no images, and links that say where they lead.

What is rendered is bounded. Nothing of the text becomes markup but what CommonMark and its tables make of it.
"""

from collections.abc import MutableMapping, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markdown_it.utils import OptionsDict
from markupsafe import Markup, escape

from turnstile.gateway.console.formats import visible

LONGEST: Final = 200_000
"""Characters that are rendered; what follows is left out, and said to be."""
_SCHEMES: Final = frozenset({"http", "https", "mailto"})
_NESTED: Final = 20


def markdown(text: str) -> Markup:
    """The text as HTML; longer than `LONGEST` it is cut."""
    shown = visible(text[:LONGEST])
    made = Markup(_parser().render(shown))  # noqa: S704 -- html is off: the parser escapes all text
    if len(text) <= LONGEST:
        return made
    left = len(text) - LONGEST
    return made + Markup('<p class="cut">{} more characters are not shown here.</p>').format(f"{left:,}")


def _parser() -> MarkdownIt:
    made = MarkdownIt("commonmark", {"html": False, "maxNesting": _NESTED}, renderer_cls=_Renderer)
    made.enable("table")
    made.validateLink = allowed  # pyright: ignore[reportAttributeAccessIssue] -- the documented way to say so
    return made


def allowed(url: str) -> bool:
    """Whether a link may lead there."""
    try:
        return urlsplit(url.strip()).scheme.lower() in _SCHEMES
    except ValueError:
        return False


class _Renderer(RendererHTML):
    """Links without a word to where they lead, and images as links."""

    def link_open(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: MutableMapping[str, Any]) -> str:
        """The begin of a link."""
        return f'<a href="{escape(tokens[idx].attrGet("href") or "")}" rel="noopener noreferrer nofollow">'

    def link_close(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: MutableMapping[str, Any]) -> str:
        """The end of a link, with the host that it leads to."""
        opened = idx
        while opened > 0:
            opened -= 1
            if tokens[opened].type == "link_open":
                break
        return f"</a>{_host(str(tokens[opened].attrGet('href') or ''))}"

    def image(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: MutableMapping[str, Any]) -> str:
        """A link to the image: none is loaded, which would tell its host who reads this, and when."""
        token = tokens[idx]
        url, words = str(token.attrGet("src") or ""), token.content or "image"
        return f'<a href="{escape(url)}" rel="noopener noreferrer nofollow">{escape(words)}</a>{_host(url)}'


def _host(url: str) -> str:
    parts = urlsplit(url)
    named = parts.netloc or parts.path
    return f' <span class="host">({escape(visible(named))})</span>' if named else ""
