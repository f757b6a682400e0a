"""`turnstile schema export`: writes what differs, leaves the rest alone, and says whether anything does."""

from pathlib import Path

from tests.turnstile.support import turnstile
from turnstile.cli.interface_files import differences, files, write


async def test_what_is_not_up_to_date_is_told_and_left_alone(tmp_path: Path) -> None:
    checked = await turnstile("schema", "export", "--check", "--out", "there", "--json", cwd=tmp_path)
    assert checked.code == 1
    assert checked.json()["error"]["code"] == "interface_outdated"
    assert "schemas/TaskEvent.json" in checked.json()["error"]["message"]
    assert not (tmp_path / "there").exists()


async def test_the_command_writes_the_documents(tmp_path: Path) -> None:
    wrote = await turnstile("schema", "export", "--out", "there", "--json", cwd=tmp_path)
    assert wrote.code == 0, wrote.err
    assert {"asyncapi.yaml", "schemas/TaskEvent.json"} < set(wrote.json()["changed"])
    assert differences(tmp_path / "there", files()) == []


def test_only_what_differs_is_written_and_what_nobody_made_is_removed(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "README.md").write_text("by hand")
    (tmp_path / "schemas" / "TaskEvent.json").write_text("{}")
    (tmp_path / "schemas" / "Gone.json").write_text("{}")
    assert write(tmp_path) == ["schemas/Gone.json", "schemas/TaskEvent.json"]
    assert not (tmp_path / "schemas" / "Gone.json").exists()
    assert (tmp_path / "README.md").read_text() == "by hand"
    assert write(tmp_path) == []
