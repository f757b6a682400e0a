"""Which named queries a process runs, read from the source: its modules, and the ledger functions that they call.

A name stands for everything of that name in the ledger, so the result may contain too many queries, never too few.
"""

import ast
from collections.abc import Iterable
from pathlib import Path

from tests.support.paths import ROOT
from turnstile.ledger.operations import audit
from turnstile.ledger.queries import all_queries

WORKER = ("activities", "turnstile/processes/models.py")
BRIDGE = ("bridge", "turnstile/telemetry/setup.py")
GATEWAY = ("gateway",)
PROCESSES = tuple(
    f"turnstile/processes/{name}.py"
    for name in ("run", "worker", "bridge", "migration", "connections", "presence", "exclusive_targets")
)
SHARED = {
    "touch_worker": "worker",
    "declare_listeners": "worker",
    "touch_bridge": "bridge",
    "sign_off": "both",
    "check_schema": "both",
    "Pool": "both",
    "ExclusiveLock": "both",
    "LockTaken": "both",
    "LOCK_TIMES": "both",
    "try_hold": "both",
}
"""Ledger functions used by those modules of `turnstile` that belong to both processes."""
_ROOMS = {"turnstile.ledger", "turnstile.ledger.turns", "turnstile.ledger.pump", "turnstile.ledger.operations"}
_ELSEWHERE = {"bridge/safety/engine_audit.py", "bridge/verbs/project_removal.py"}
"""Parts of `turnstile audit` and `turnstile project remove`, not of a bridge."""


def queries_of(process: str) -> set[str]:
    """The queries that `worker`, `bridge` or `gateway` runs."""
    paths = {"worker": WORKER, "bridge": BRIDGE, "gateway": GATEWAY}[process]
    named = {name for path in _files(paths) for name in _imported(path)}
    both = {"check_schema", "Pool"} if process == "gateway" else {name for name, of in SHARED.items() if of == "both"}
    named |= {name for name, of in SHARED.items() if of == process} | both
    calls = _ledger()
    reached: set[str] = set()
    while named:
        name = named.pop()
        if name not in reached and name in calls:
            reached.add(name)
            named |= calls[name][0]
    found = {query for name in reached for query in calls[name][1]}
    return found - {"begin_audit"} | ({*audit.rules()} if "audit" in reached else set())  # it cannot be explained


def used_by_processes() -> set[str]:
    """Ledger functions that the modules of `PROCESSES` use; `SHARED` and `migrate` must name all of them."""
    return {name for path in PROCESSES for name in _imported(ROOT / path)}


def _files(paths: Iterable[str]) -> list[Path]:
    found = [
        file for path in paths for file in ([ROOT / path] if path.endswith(".py") else (ROOT / path).rglob("*.py"))
    ]
    return [file for file in found if str(file.relative_to(ROOT)) not in _ELSEWHERE]


def _imported(path: Path) -> set[str]:
    """Names that a module imports from the ledger; for an imported ledger module, the attributes that it uses."""
    names: set[str] = set()
    modules: set[str] = set()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module in _ROOMS:
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("turnstile.ledger."):
            names |= {alias.name for alias in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
            names.add(node.attr)
    return names


def _ledger() -> dict[str, tuple[set[str], set[str]]]:
    """Every function and class of the ledger: the names that it mentions, and the queries."""
    known = all_queries().keys()
    found: dict[str, tuple[set[str], set[str]]] = {}

    def named(name: str, path: Path) -> str:
        return f"{path.stem}.{name}" if name.startswith("_") else name  # what is private is its module's own

    for path in _files(["ledger"]):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if (name := _defined(node)) is not None:
                names, queries = found.setdefault(named(name, path), (set(), set()))
                for each in ast.walk(node):
                    if isinstance(each, ast.Name):
                        names.add(named(each.id, path))
                    elif isinstance(each, ast.Constant) and each.value in known:
                        queries.add(str(each.value))
    return found


def _defined(node: ast.stmt) -> str | None:
    """The name of a function or class, or of what a call made."""
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return node.name
        case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call()):
            return name
        case _:
            return None
