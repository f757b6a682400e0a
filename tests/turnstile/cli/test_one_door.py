"""Commands ask a bridge or a gateway; those that open the database are few, and docs/operations.md says why."""

import re

import pytest

from tests.support.paths import ROOT

CLI = ROOT / "turnstile" / "cli"
OPEN_THE_DATABASE = {
    "access/tokens.py": "token",
    "conversations/deletions.py": "end-user traces",
    "operations/audit.py": "audit",
    "operations/projects.py": "project remove",
    "operations/retention.py": "prune",
    "operations/safety.py": "watchdog",
    "operations/top.py": "top",
    "operations/status_screen.py": "top",
    "roster/agents.py": "agent remove",
    "turns/asking.py": "enqueue --direct",
}


def test_no_other_module_of_a_command_imports_the_ledger() -> None:
    named = {
        str(path.relative_to(CLI))
        for path in CLI.rglob("*.py")
        if re.search(r"^\s*from turnstile\.ledger", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert named == {*OPEN_THE_DATABASE, "session.py"}


@pytest.mark.parametrize("command", sorted({*OPEN_THE_DATABASE.values()}))
def test_the_document_says_which_commands_open_the_database(command: str) -> None:
    text = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    section = text.partition("## What a command asks")[2].partition("\n## ")[0]
    assert f"`{command}" in section
