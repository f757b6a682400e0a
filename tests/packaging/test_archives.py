"""Wheel and sdist hold every file of every room under the one import root, and nothing else."""

import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.support.paths import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
ROOMS = sorted(PROJECT["tool"]["ruff"]["lint"]["flake8-tidy-imports"]["banned-api"])
CACHED = {"__pycache__", ".turnstile"}


def files_of(directory: Path) -> set[str]:
    """Its files by name, without what programs leave behind."""
    found = {path.relative_to(directory) for path in directory.rglob("*") if path.is_file()}
    return {str(each) for each in found if not CACHED & set(each.parts)}


def expected() -> set[str]:
    """The package's files as the real directories of the checkout hold them, links or no links."""
    own = {f"turnstile/{each}" for each in files_of(ROOT / "turnstile")}
    rooms = {f"turnstile/{room}/{each}" for room in ROOMS for each in files_of(ROOT / room)}
    pages = {f"turnstile/docs/{page.name}" for page in (ROOT / "docs").glob("*.md")}
    return {each for each in own | rooms | pages if not Path(each).name.startswith(".")}


def build(source: Path, target: str, directory: Path) -> Path:
    """The archive that hatchling makes of a checkout."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(directory)]
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    [built] = directory.glob("*.whl" if target == "wheel" else "*.tar.gz")
    return built


def names_in(wheel: Path) -> set[str]:
    """The files of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked sdist."""
    directory = tmp_path_factory.mktemp("sdist")
    with tarfile.open(build(ROOT, "sdist", directory)) as archive:
        archive.extractall(directory, filter="data")
    [unpacked] = (path for path in directory.iterdir() if path.is_dir())
    return unpacked


def test_the_wheel_is_one_package_with_every_file_of_every_room(tmp_path: Path) -> None:
    names = names_in(build(ROOT, "wheel", tmp_path))
    assert {name.partition("/")[0] for name in names} == {"turnstile", "turnstile_kernel-0.1.0.dist-info"}
    assert {name for name in names if name.startswith("turnstile/")} == expected()
    assert {f"turnstile/{room}/__init__.py" for room in ROOMS} < names
    assert any(name.endswith(".sql") for name in names)


def test_the_sdist_makes_the_same_wheel(sdist: Path, tmp_path: Path) -> None:
    names = names_in(build(sdist, "wheel", tmp_path))
    assert {name for name in names if name.startswith("turnstile/")} == expected()


def test_a_checkout_without_its_links_is_found_out(sdist: Path, tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    shutil.copytree(sdist, checkout, ignore=lambda path, _: ROOMS if Path(path).name == "turnstile" else [])
    names = names_in(build(checkout, "wheel", tmp_path))
    assert "turnstile/__init__.py" in names
    assert not names & {each for each in expected() if each.split("/")[1] in ROOMS}


def test_every_room_is_known_wherever_rooms_are_named() -> None:
    links = {path.name for path in (ROOT / "turnstile").iterdir() if path.is_symlink()}
    assert links == {*ROOMS, "docs"}
    assert set(ROOMS) < set(PROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["only-include"])
    assert {f"turnstile/{room}" for room in ROOMS} < set(PROJECT["tool"]["pyright"]["include"])
    image = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    assert set(ROOMS) < set(re.findall(r"^COPY (\w+) \1$", image, re.MULTILINE))
    sent = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert {f"!{room}" for room in ROOMS} < set(sent)


def test_a_room_cannot_be_imported_by_its_bare_name() -> None:
    command = [sys.executable, "-m", "ruff", "check", "--select", "TID251", "--stdin-filename", "lab/new.py", "-"]
    bare = "".join(f"import {room}\n" for room in ROOMS)
    told = subprocess.run(command, cwd=ROOT, input=bare, capture_output=True, text=True)
    assert told.returncode == 1
    assert [room for room in ROOMS if f"import turnstile.{room}" not in told.stdout] == []
