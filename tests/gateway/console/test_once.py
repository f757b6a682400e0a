"""Links that sign in once: each for one browser, for a while, and for nobody who cannot read the data directory."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from turnstile.gateway.console.once import LINK_SECONDS, OneTimeLinks
from turnstile.schema.access import Secret, new_secret
from turnstile.schema.errors import Refused


@pytest.fixture
def own(tmp_path: Path) -> Secret:
    """The token of the data directory."""
    made = new_secret()
    (tmp_path / "token").write_text(made.text + "\n")
    return made


def test_a_link_is_taken_once_however_many_try(tmp_path: Path, own: Secret) -> None:
    links = OneTimeLinks(tmp_path)
    code = links.make()

    def take(_: int) -> Secret | None:
        try:
            return OneTimeLinks(tmp_path).take(code)
        except Refused:
            return None

    with ThreadPoolExecutor(8) as several:
        taken = list(several.map(take, range(32)))
    assert [each for each in taken if each] == [own]


def test_each_link_is_one_of_its_own(tmp_path: Path, own: Secret) -> None:
    links = OneTimeLinks(tmp_path)
    first, second = links.make(), links.make()
    assert (links.take(second), links.take(first)) == (own, own)


@pytest.mark.parametrize("code", ["", "x", "../token", "\0", "é" * 300, "/" * 5000])
def test_a_code_that_nobody_made_is_refused(tmp_path: Path, own: Secret, code: str) -> None:
    links = OneTimeLinks(tmp_path)
    with pytest.raises(Refused, match="turnstile console"):
        links.take(code)  # before any was made
    links.make()
    with pytest.raises(Refused) as refused:
        links.take(code)
    assert refused.value.code == "link_used"
    assert (tmp_path / "token").read_text().strip() == own.text


@pytest.mark.parametrize("late", [LINK_SECONDS + 1, -LINK_SECONDS - 1], ids=["old", "before-the-clock-was-set-back"])
def test_an_old_link_is_refused_and_forgotten(tmp_path: Path, own: Secret, late: float) -> None:
    links = OneTimeLinks(tmp_path)
    old, older = links.make(), links.make()
    for file in (tmp_path / "console-links").iterdir():
        then = file.stat().st_mtime - late
        os.utime(file, (then, then))
    with pytest.raises(Refused):
        links.take(old)
    assert links.take(links.make()) == own
    with pytest.raises(Refused):
        links.take(older)
    assert list((tmp_path / "console-links").iterdir()) == []


def test_only_the_owner_sees_links_and_no_file_holds_a_code(tmp_path: Path, own: Secret) -> None:
    code = OneTimeLinks(tmp_path).make()
    folder = tmp_path / "console-links"
    [file] = folder.iterdir()
    assert (folder.stat().st_mode & 0o777, file.stat().st_mode & 0o777) == (0o700, 0o600)
    assert (file.read_bytes(), code in file.name, own.secret in file.name) == (b"", False, False)


def test_without_a_token_a_link_leads_nowhere(tmp_path: Path) -> None:
    links = OneTimeLinks(tmp_path)
    with pytest.raises(Refused):
        links.take(links.make())
