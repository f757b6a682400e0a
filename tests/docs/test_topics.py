"""`turnstile docs` prints every document, and what the program says names documents as it prints them."""

import ast
import asyncio
import re
from pathlib import Path

from tests.docs.blocks import ROOT
from tests.docs.test_names import LINKED, ours
from tests.turnstile.support import Ran, turnstile

PAGES = {
    page.stem.replace("README", "index"): page.read_text(encoding="utf-8") for page in (ROOT / "docs").glob("*.md")
}
_FILE = re.compile(r"\bdocs/[\w-]+\.md")
_TOPIC = re.compile(r"`turnstile docs ([\w-]+)`")
_NOT_PRINTED = {"schema/interface/asyncapi.py", "turnstile/cli/operations/schemas.py"}
"""They write documents that stand in the repository."""


def texts_of(path: Path) -> list[str]:
    """What a module's code may print: its texts but the docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    unprinted = {
        id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    constants = (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in unprinted)
    return [node.value for node in constants if isinstance(node.value, str)]


async def docs(*arguments: str) -> Ran:
    """Run `turnstile docs` in a process of its own: the command sets the levels of the loggers of its process."""
    return await turnstile("docs", *arguments, cwd=ROOT)


async def test_every_document_is_printed_and_listed() -> None:
    listed, *printed = await asyncio.gather(
        *(docs(*words) for words in (["--json"], ["models"], ["docs/models.md"], ["docs/README.md"], ["index"]))
    )
    assert [line["topic"] for line in listed.json()] == sorted(PAGES)
    assert all(PAGES[line["topic"]].startswith(f"# {line['title']}\n") for line in listed.json())
    assert [each.out for each in printed] == [PAGES["models"]] * 2 + [PAGES["index"]] * 2


async def test_a_topic_that_does_not_exist_is_answered_with_the_closest() -> None:
    failed = await docs("modles", "--json")
    assert failed.code == 1
    assert failed.json()["error"]["message"] == "'modles': there is no such topic; did you mean models?"


def test_what_the_program_says_names_topics_and_no_files_that_a_wheel_lacks() -> None:
    found = [path for path in ours("turnstile", *LINKED) if "docs" in path.read_text(encoding="utf-8")]
    said = {str(path.relative_to(ROOT)): "\n".join(texts_of(path)) for path in found}
    assert {name for name, text in said.items() if _FILE.search(text)} <= _NOT_PRINTED
    topics = {topic for text in said.values() for topic in _TOPIC.findall(text)}
    assert {"models", "operations", "tools"} <= topics <= PAGES.keys()


def test_the_index_leads_to_every_document() -> None:
    linked = set(re.findall(r"\]\(([\w-]+)\.md", PAGES["index"]))
    assert linked == PAGES.keys() - {"index"}
