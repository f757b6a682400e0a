"""Every block of code in the documents is one: Python compiles, YAML, TOML, JSON and XML parse."""

import json
import re
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from lxml import etree

from tests.docs.blocks import DOCUMENTS, ROOT, Block, every_block

BLOCKS = every_block()


def compile_python(text: str) -> None:
    """As a module that a reader saves: an `await` outside of a function is a `SyntaxError` there."""
    compile(text, "document", "exec")


def parse_json(text: str) -> None:
    """One document, or one on each line that begins at the margin."""
    for document in re.split(r"\n(?=[\[{])", text.strip()):
        json.loads(document)


READERS: dict[str, Callable[[str], object]] = {
    "python": compile_python,
    "yaml": yaml.safe_load,
    "toml": tomllib.loads,
    "json": parse_json,
    "xml": etree.fromstring,
}


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.language in READERS], ids=lambda block: block.place)
def test_a_block_is_what_it_says(block: Block) -> None:
    READERS[block.language](block.text)


def test_no_fence_is_left_open() -> None:
    for page in DOCUMENTS:
        assert len(re.findall(r"^ *```", page.read_text(encoding="utf-8"), re.MULTILINE)) % 2 == 0, page


def test_a_page_links_to_places_that_are_there() -> None:
    missing = [
        f"{page.relative_to(ROOT)}: {link}"
        for page in DOCUMENTS
        for link in re.findall(r"\]\((?!https?:)([^)#\s]+)", page.read_text(encoding="utf-8"))
        if not (page.parent / Path(link)).exists()
    ]
    assert not missing


def anchors_of(page: Path) -> set[str]:
    """The anchors that GitHub gives the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_a_link_into_a_page_meets_a_heading() -> None:
    missing = [
        f"{page.relative_to(ROOT)}: {link}#{anchor}"
        for page in DOCUMENTS
        for link, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)#([^)\s]+)\)", page.read_text(encoding="utf-8"))
        if anchor not in anchors_of(page.parent / link if link else page)
    ]
    assert not missing
