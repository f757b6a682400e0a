"""Real adapters on providers of ours: stubs on loopback, a key in a file, no environment of the developer's."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tests.activities.models.anthropic_stub import AnthropicStub
from tests.activities.models.gemini_stub import GeminiStub
from tests.activities.models.openai_stub import OpenAIStub
from tests.activities.models.provider_stub import API_KEY, ProviderStub
from tests.support.processes.stacks import stacks
from turnstile.activities.models import LitellmModel, ModelAccess

__all__ = ["stacks"]

STUBS: tuple[type[ProviderStub], ...] = (OpenAIStub, AnthropicStub, GeminiStub)


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No key and no proxy of the machine that runs the tests."""
    for provider in ("OPENAI", "ANTHROPIC", "GEMINI", "GOOGLE", "MISTRAL", "HOSTED_VLLM"):
        for name in (f"{provider}_API_KEY", f"{provider}_API_BASE", f"{provider}_BASE_URL"):
            monkeypatch.delenv(name, raising=False)
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.fixture(scope="session")
def key_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with the key that the stubs want."""
    file = tmp_path_factory.mktemp("keys") / "key"
    file.write_text(f"{API_KEY}\n")
    return file


@pytest.fixture(scope="session", autouse=True)
async def loaded() -> None:
    """litellm, so that no test pays for loading it."""
    await LitellmModel().warm_up()


@pytest.fixture(params=STUBS, ids=lambda stub: stub.prefix)
def provider(request: pytest.FixtureRequest) -> type[ProviderStub]:
    """Each provider in turn."""
    return request.param


@pytest.fixture(params=["bytes", "litellm"], scope="module")
def reader(request: pytest.FixtureRequest) -> str:
    """Each reader of streams in turn, as `[model].reader` names it."""
    return request.param


@pytest.fixture
async def model_of(key_file: Path, reader: str) -> AsyncIterator[Callable[[ProviderStub], LitellmModel]]:
    """Makes adapters that reach a stub; they are closed after the test."""
    made: list[LitellmModel] = []

    def make(stub: ProviderStub) -> LitellmModel:
        access = ModelAccess({stub.prefix: key_file}, {stub.prefix: stub.api_base})
        model = LitellmModel(access, reads_bytes=reader == "bytes")
        made.append(model)
        return model

    yield make
    for model in made:
        await model.close()
