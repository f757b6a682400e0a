"""The public names: docs/python.md lists them all, and examples and documents import them from the root."""

import ast
import asyncio
import re
import subprocess
import sys
from collections.abc import Coroutine
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import turnstile
from tests.docs.blocks import Block, blocks_of, every_block
from tests.docs.test_names import quoted
from tests.support.paths import ROOT

PAGE = ROOT / "docs" / "python.md"
TYPED = ROOT / "docs" / "typed.md"
GUIDES = sorted((ROOT / "docs").glob("*.md"))
EXAMPLES = [
    Block("python", path.read_text(encoding="utf-8"), str(path.relative_to(ROOT)))
    for path in sorted((ROOT / "examples").rglob("*.py"))
]
SHOWN = [block for block in every_block() if block.language == "python"]


def test_the_page_lists_every_name_and_no_other() -> None:
    listed = re.findall(r"^\| `(\w+)` \|", PAGE.read_text(encoding="utf-8").partition("## The names")[2], re.MULTILINE)
    assert sorted(listed) == sorted(turnstile.__all__) == sorted(set(listed))


def test_every_name_is_there_and_another_is_not() -> None:
    assert all(getattr(turnstile, name) is not None for name in turnstile.__all__)
    with pytest.raises(AttributeError, match="no attribute 'client'"):
        _ = turnstile.client  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownVariableType]


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.name)
def test_a_class_that_a_guide_names_is_public(page: Path) -> None:
    """Named as `turnstile.X`, or bare as a class of a module that public names come from."""
    said = quoted(page)
    named = {name for each in said for name in re.findall(r"\bturnstile\.([A-Z]\w*)", each)}
    named |= {each for each in said if re.fullmatch(r"[A-Z]\w*", each) and each in classes_beside_public_names()}
    assert named - set(turnstile.__all__) == set()


@cache
def classes_beside_public_names() -> frozenset[str]:
    """The classes that are defined where a public name is."""
    modules = {getattr(turnstile, name).__module__ for name in turnstile.__all__}
    found = ((module, name, each) for module in modules for name, each in vars(import_module(module)).items())
    return frozenset(name for module, name, each in found if isinstance(each, type) and each.__module__ == module)


@pytest.mark.parametrize("block", [*EXAMPLES, *SHOWN], ids=lambda block: block.place)
def test_a_public_name_is_imported_from_the_root(block: Block) -> None:
    for node in ast.walk(ast.parse(block.text)):
        if not isinstance(node, ast.ImportFrom) or (node.module or "").partition(".")[0] != "turnstile":
            continue
        module = import_module(str(node.module))
        for name in (alias.name for alias in node.names):
            assert getattr(module, name) is not None
            assert node.module == "turnstile" or name not in turnstile.__all__, f"{node.module}.{name}"


@pytest.mark.parametrize("block", [*blocks_of(PAGE)[1:], blocks_of(TYPED)[0]], ids=lambda block: block.place)
def test_an_example_of_the_page_runs_up_to_where_it_connects(block: Block, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(main: Coroutine[Any, Any, None]) -> None:
        main.close()

    monkeypatch.setattr(asyncio, "run", run)
    exec(compile(block.text, block.place, "exec"), {"__name__": "document"})  # noqa: S102 -- our own page


def test_importing_the_root_imports_nothing_else() -> None:
    script = "import sys, turnstile; print(*(each for each in sys.modules if each.startswith('turnstile.')))"
    told = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert not told.stdout.split()


def test_importing_the_client_imports_neither_way_to_the_servers() -> None:
    """Each of these takes a third as long to import as the rest of the client."""
    slow = {"aiohttp", "httpx", "jsonschema", "lxml", "nats"}
    script = f"import sys, turnstile.sdk.turns; print(*({slow} & sys.modules.keys()))"
    told = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert not told.stdout.split()
