"""`turnstile schema export`: writes what differs, leaves the rest alone, and says whether anything does."""

from pathlib import Path

from tests.turnstile.support import turnstile


async def test_an_export_is_written_once_and_checked(tmp_path: Path) -> None:
    wrote = await turnstile("schema", "export", "--out", "there", "--json", cwd=tmp_path)
    assert wrote.code == 0, wrote.err
    changed = wrote.json()["changed"]
    assert {"asyncapi.yaml", "schemas/TaskEvent.json"} < set(changed)
    there = tmp_path / "there"
    (there / "README.md").write_text("by hand")
    (there / "schemas" / "TaskEvent.json").write_text("{}")
    (there / "schemas" / "Gone.json").write_text("{}")
    checked = await turnstile("schema", "export", "--check", "--out", "there", "--json", cwd=tmp_path)
    assert checked.code == 1
    error = checked.json()["error"]
    assert error["code"] == "interface_outdated"
    assert error["message"].endswith("schemas/Gone.json, schemas/TaskEvent.json")
    assert (there / "schemas" / "Gone.json").exists()
    again = await turnstile("schema", "export", "--out", "there", "--json", cwd=tmp_path)
    assert again.json()["changed"] == ["schemas/Gone.json", "schemas/TaskEvent.json"]
    assert not (there / "schemas" / "Gone.json").exists()
    assert (there / "README.md").read_text() == "by hand"
    assert (await turnstile("schema", "export", "--check", "--out", "there", cwd=tmp_path)).code == 0
