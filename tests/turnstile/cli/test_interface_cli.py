"""`turnstile schema`: export writes what differs and says whether anything does, show prints a schema."""

import json
from pathlib import Path

from jsonschema import Draft202012Validator

from tests.turnstile.support import turnstile


async def test_export_writes_what_differs_and_checks_without_writing(tmp_path: Path) -> None:
    command = ("schema", "export", "--out", "there/asyncapi.yaml", "--json")
    checked = await turnstile(*command, "--check", cwd=tmp_path)
    assert checked.code == 1
    assert checked.json()["error"]["code"] == "interface_outdated"
    assert not (tmp_path / "there").exists()
    wrote = await turnstile(*command, cwd=tmp_path)
    assert wrote.json() == {"files": ["there/asyncapi.yaml"], "written": ["there/asyncapi.yaml"]}
    assert (await turnstile(*command, "--check", cwd=tmp_path)).json()["written"] == []


async def test_show_prints_a_schema_that_stands_alone_and_names_what_is_meant(tmp_path: Path) -> None:
    shown = json.loads((await turnstile("schema", "show", "TaskEvent", cwd=tmp_path)).out)
    Draft202012Validator.check_schema(shown)
    assert "deliverable_card_id" in shown["properties"]
    assert "TaskEvent" in (await turnstile("schema", "show", "--json", cwd=tmp_path)).json()["schemas"]
    missing = await turnstile("schema", "show", "TaskEvnt", "--json", cwd=tmp_path)
    assert (missing.code, missing.json()["error"]["message"]) == (1, "'TaskEvnt' is no schema; did you mean TaskEvent?")
