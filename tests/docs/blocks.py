"""The fenced blocks of the documents, and where each stands."""

import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

from tests.support.paths import ROOT

DOCUMENTS = sorted(
    path
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
    if path.name != "CHANGELOG.md"
)
_FENCED = re.compile(r"^(?P<indent> *)```(?P<language>\w*)\n(?P<text>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A block: its language, its lines without the indent of a list, and its place as `page:line`."""

    language: str
    text: str
    place: str


def blocks_of(page: Path) -> list[Block]:
    """The blocks of a page in order."""
    written = page.read_text(encoding="utf-8")
    return [
        Block(
            found["language"],
            textwrap.dedent(found["text"]),
            f"{page.relative_to(ROOT)}:{written.count(chr(10), 0, found.start()) + 1}",
        )
        for found in _FENCED.finditer(written)
    ]


def every_block() -> list[Block]:
    """Of all documents."""
    return [block for page in DOCUMENTS for block in blocks_of(page)]
