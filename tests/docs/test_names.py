"""Names in the documents exist, and every folder is in ARCHITECTURE's map.

Read outside of code blocks is what stands in back-ticks: a path whose first folder is one of the repository's, the name
of a `.py`, `.sql` or `.md` file, and a dotted name that begins with `turnstile`, `lab` or `tests`. In a path, words in
capitals (`NAME.py`) and `*` stand for anything. A dotted name may also be a word that the code itself writes, such as
an attribute of spans. Code blocks are read for imports. The records of docs/decisions are not read: they say what was.
"""

import ast
import importlib
import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from tests.docs.blocks import DOCUMENTS, ROOT, blocks_of

LINKED = ("activities", "bridge", "gateway", "ledger", "rules", "runtime", "schema", "sdk", "transport", "workflows")
PAGES = [page for page in DOCUMENTS if page.parent in (ROOT, ROOT / "docs", ROOT / "docs" / "interface")]

_TOP = "|".join((*LINKED, "turnstile", "lab", "tests", "docs", "deploy", "examples"))
_PATH = re.compile(rf"(?:{_TOP})/[\w.*/-]*")
_FILE = re.compile(r"[\w*./-]+\.(?:py|sql|md)")
_DOTTED = re.compile(r"(?<![\w./-])(?:turnstile|lab|tests)(?:\.[A-Za-z_]\w*)+")
_FENCED = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
_PLACEHOLDER = re.compile(r"[A-Z]{4,}\w*")


def ours(*folders: str) -> list[Path]:
    """The Python files of these folders; a link is not followed."""
    return [path for folder in folders for path in (ROOT / folder).rglob("*.py") if "__pycache__" not in path.parts]


@cache
def files() -> frozenset[str]:
    """The paths, from the root, of all files that a document may name without their folder."""
    tops = [ROOT / top for top in _TOP.split("|")]
    found = [path for top in tops for path in top.rglob("*") if path.suffix in {".py", ".sql", ".md"}]
    return frozenset(f"/{path.relative_to(ROOT)}" for path in [*found, *ROOT.glob("*.md")])


@cache
def written() -> str:
    """The sources of the wheel, to find words in."""
    return "".join(path.read_text(encoding="utf-8") for path in ours("turnstile", *LINKED))


def quoted(page: Path) -> list[str]:
    """What stands in back-ticks outside of code blocks."""
    return re.findall(r"`([^`\n]+)`", _FENCED.sub("", page.read_text(encoding="utf-8")))


def path_exists(name: str) -> bool:
    """Whether a file or folder has this path, or one that fits where it has placeholders."""
    return (ROOT / name).exists() or any(ROOT.glob(_PLACEHOLDER.sub("*", name).rstrip("/")))


def file_exists(name: str) -> bool:
    """Whether a file somewhere has this name."""
    fits = re.compile("/" + "[^/]*".join(map(re.escape, _PLACEHOLDER.sub("*", name).split("*"))) + "$")
    return f"/{name}" in files() or any(fits.search(path) for path in files())


@cache
def dotted_exists(name: str) -> bool:
    """Whether this is a module, or something in one."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError as error:
            if error.name not in {".".join(parts[:number]) for number in range(1, len(parts) + 1)}:
                raise  # it is there, and lacks something that it imports
            continue
        for part in parts[length:]:
            if not hasattr(found, part):
                return False
            found = getattr(found, part)
        return True
    return False


def is_attribute(name: str) -> bool:
    """Whether the code writes this word: whole, or as `turnstile.{…}` with its last part."""
    return f'"{name}"' in written() or f'"{name.removeprefix("turnstile.")}"' in written()


def missing_of(page: Path) -> list[str]:
    """The names on a page that stand for nothing."""
    missing: list[str] = []
    for text in quoted(page):
        if _PATH.fullmatch(text):
            missing += [] if path_exists(text) else [text]
        elif _FILE.fullmatch(text):
            missing += [] if file_exists(text) else [text]
        missing += [name for name in _DOTTED.findall(text) if not dotted_exists(name) and not is_attribute(name)]
    return missing


def imported_by(page: Path) -> list[str]:
    """The dotted names of ours that the Python blocks of a page import."""
    names: list[str] = []
    for block in blocks_of(page):
        if block.language != "python":
            continue
        for node in ast.walk(ast.parse(block.text)):
            if isinstance(node, ast.ImportFrom) and node.module:
                names += [f"{node.module}.{n.name}" for n in node.names]
            elif isinstance(node, ast.Import):
                names += [n.name for n in node.names]
    return [name for name in names if re.match(r"(turnstile|lab|tests)\b", name)]


def rooms_of_the_map() -> list[str]:
    """The folders that ARCHITECTURE names: a heading is a room, a row of its table a folder in it."""
    room, found = "", list[str]()
    for line in (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            heading = re.fullmatch(r"### `([\w/]+)/`", line)
            room = heading[1] if heading else ""
            found += [room] if room else []
        elif room and (row := re.match(r"\| `([\w/]+)/` \|", line)):
            found.append(f"{room}/{row[1]}")
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_name_on_a_page_exists(page: Path) -> None:
    assert missing_of(page) == []


@pytest.mark.parametrize("page", DOCUMENTS, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_imports_exists(page: Path) -> None:
    assert [name for name in imported_by(page) if not dotted_exists(name)] == []


def test_a_document_that_the_code_cites_exists() -> None:
    cited = set(re.findall(r"\bdocs/[\w/]+(?:\.md)?", written()))
    assert [name for name in sorted(cited) if not any(ROOT.glob(f"{name}*"))] == []


def test_the_map_of_the_architecture_names_every_folder_once() -> None:
    files = (*ours("turnstile", *LINKED, "lab"), *(ROOT / "ledger").rglob("*.sql"))
    assert sorted(rooms_of_the_map()) == sorted({str(path.parent.relative_to(ROOT)) for path in files})


def test_every_room_is_a_link_in_the_package() -> None:
    """A checkout without symbolic links builds an empty wheel, and says nothing."""
    links = {path.name: path.readlink() for path in (ROOT / "turnstile").iterdir() if path.is_symlink()}
    assert links == {room: Path("..") / room for room in (*LINKED, "docs")}


def test_a_module_is_called_as_at_most_one_other() -> None:
    count = Counter(path.name for path in ours("turnstile", *LINKED) if path.name != "__init__.py")
    assert [name for name, times in count.items() if times > 2] == []
