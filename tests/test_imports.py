"""No module of the package imports itself by way of others, neither at its top nor in a function."""

import ast
import os
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

from tests.support.paths import ROOT


def modules() -> dict[str, Path]:
    """Every module of the package by its name; the rooms are links, which `rglob` does not follow."""
    found = [Path(folder, name) for folder, _, names in os.walk(ROOT / "turnstile", followlinks=True) for name in names]
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in found
        if path.suffix == ".py"
    }


def imported(path: Path) -> Iterator[str]:
    """What a module imports: modules, and names that may be modules."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_no_module_imports_itself_by_way_of_others() -> None:
    known = modules()
    assert "turnstile.bridge.inbox.claims" in known

    def module_of(name: str) -> str:
        return name if name in known else name.rpartition(".")[0]

    graph = {module: {module_of(name) for name in imported(path)} & known.keys() for module, path in known.items()}
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the circle


def test_a_program_is_run_by_its_last_statement() -> None:
    """What stands below it would not be defined when it runs."""
    early: list[str] = []
    for path in (path for room in ("turnstile", "lab", "examples", "tests") for path in programs_in(room)):
        *before, _ = ast.parse(path.read_text(encoding="utf-8")).body
        early += [f"{path}:{node.lineno}" for node in before if ast.unparse(node).startswith("if __name__ ==")]
    assert early == []


def programs_in(room: str) -> Iterator[Path]:
    """The modules of a room that run as programs."""
    for folder, _, names in os.walk(ROOT / room, followlinks=True):
        for path in (Path(folder, name) for name in names if name.endswith(".py")):
            if '__name__ == "__main__"' in path.read_text(encoding="utf-8"):
                yield path
