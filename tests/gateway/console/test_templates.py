"""What the console's sources may not say: each would let a stranger's text become a page's own markup."""

import ast
import re
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from turnstile.gateway.console.templating import Templates

CONSOLE = ROOT / "gateway" / "console"
TEMPLATES = sorted((CONSOLE / "templates").rglob("*.html"))
SCRIPTS = sorted((CONSOLE / "static").glob("*.js"))
MODULES = [path for path in sorted(CONSOLE.rglob("*.py")) if "__pycache__" not in path.parts]
WITHOUT_SESSION = {"enter.html"}
"""Forms that are sent before there is a session."""


def named(paths: list[Path]) -> pytest.MarkDecorator:
    """Parameters of a test, with names."""
    return pytest.mark.parametrize("path", paths, ids=lambda path: str(path.relative_to(CONSOLE)))


@named(TEMPLATES)
def test_a_template_escapes_everything_and_has_no_script_or_style_of_its_own(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for never in (
        r"\|\s*safe\b",
        r"\bMarkup\b",
        r"autoescape",
        r"\sstyle\s*=",
        r"<style",
        r"\son[a-z]+\s*=",
        r"<script(?! src=\"{{ asset\()",
        r"javascript:",
        r"<(?:iframe|object|embed|base)\b",
        r"https?://",
    ):
        assert not re.search(never, text, re.IGNORECASE), never
    plain = re.sub(r"{{.*?}}", "x", re.sub(r"{[%#].*?[%#]}", "", text, flags=re.DOTALL), flags=re.DOTALL)
    for tag in re.findall(r"<[a-z][^>]*>", plain):
        assert not re.search(r'=(?!")', re.sub(r'"[^"]*"', '""', tag)), tag  # an attribute without quotes


@named(TEMPLATES)
def test_a_form_that_changes_something_carries_what_the_session_knows(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    macros = re.findall(r"{% macro (\w+)\([^)]*\) %}(.*?){% endmacro %}", text, re.DOTALL)
    carrying = ["csrf_field", *[name for name, body in macros if "csrf_field()" in body]]
    for form in re.findall(r"<form\b.*?</form>", text, re.DOTALL):
        posts = 'method="post"' in form and path.name not in WITHOUT_SESSION
        assert not posts or any(f"{name}()" in form for name in carrying), form[:200]


@named(TEMPLATES)
def test_a_name_in_the_path_of_an_address_is_a_part_of_it(path: Path) -> None:
    """What is put into an address goes through `part`, or is an address that a module made."""
    text = path.read_text(encoding="utf-8")
    for found in re.findall(r'(?:href|action|data-stream)="(/console/[^"]*)"', text):
        for value in re.findall(r"{{\s*(.*?)\s*}}", found.partition("?")[0]):
            assert "|part" in value.replace(" ", ""), found


@named(TEMPLATES)
def test_a_template_compiles(path: Path) -> None:
    jinja = Templates().jinja
    assert jinja.get_template(str(path.relative_to(CONSOLE / "templates")))


@named(MODULES)
def test_a_module_makes_markup_by_format_alone(path: Path) -> None:
    """`Markup` of anything but a literal is marked with the reason why it is safe."""
    source = path.read_text(encoding="utf-8")
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(func=ast.Name("Markup"), args=[ast.Constant(), *_]):
                pass
            case ast.Call(func=ast.Name("Markup")):
                assert "noqa: S704 -- " in lines[node.lineno - 1], lines[node.lineno - 1]
            case _:
                pass


@named(SCRIPTS)
def test_a_script_is_strict_and_makes_no_markup(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.startswith('"use strict";')
    assert len(text.splitlines()) < 400
    for never in (
        "innerHTML",
        "outerHTML =",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "new Function",
        "http:",
        "https:",
    ):
        assert never not in text, never
