"""Keys, addresses and parameters: the operator's settings decide, a profile cannot move them."""

from pathlib import Path

import pytest

from tests.activities.models.anthropic_stub import AnthropicStub
from tests.activities.models.asking import question, request_to
from tests.activities.models.openai_stub import OpenAIStub
from tests.activities.models.provider_stub import API_KEY, Said
from turnstile.activities.models import LitellmModel, ModelAccess
from turnstile.activities.models.access import NO_KEY
from turnstile.activities.models.forms import request_form
from turnstile.schema.errors import ModelError
from turnstile.schema.profiles import PROVIDER_PARAMS


async def _refused(model: LitellmModel, model_id: str) -> ModelError:
    with pytest.raises(ModelError) as raised:
        await model.check(model_id)
    assert not raised.value.retryable
    return raised.value


@pytest.mark.parametrize(
    ("model_id", "names"),
    [
        ("openai/gpt-4o", "OPENAI_API_KEY"),
        ("gpt-4o", "OPENAI_API_KEY"),
        ("anthropic/claude-sonnet-4-5", "ANTHROPIC_API_KEY"),
        ("gemini/gemini-2.5-flash", "GEMINI_API_KEY or GOOGLE_API_KEY"),
    ],
)
async def test_a_missing_key_is_named(model_id: str, names: str) -> None:
    error = await _refused(LitellmModel(), model_id)
    assert error.code == "model_key_missing"
    assert names in str(error) or " or ".join(reversed(names.split(" or "))) in str(error)
    assert "[model.api_key_files]" in str(error)


async def test_a_key_in_the_environment_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", API_KEY)
    async with OpenAIStub(Said(text=("x",))) as stub:
        model = LitellmModel(ModelAccess(api_bases={"openai": stub.api_base}))
        await model.check(stub.model)
        assert (await question(model, stub.model)).said().text == "x"
        await model.close()


async def test_local_servers_need_none() -> None:
    model = LitellmModel()
    for model_id in ("ollama_chat/llama3", "hosted_vllm/qwen", "lm_studio/x"):
        await model.check(model_id)


async def test_a_model_without_a_provider() -> None:
    error = await _refused(LitellmModel(), "weird")
    assert (error.code, "provider/model" in str(error)) == ("model_unknown", True)


@pytest.mark.parametrize("content", [None, "", "a\nb", b"\xff"])
async def test_a_key_file_that_holds_none(tmp_path: Path, content: str | bytes | None) -> None:
    file = tmp_path / "key"
    if content is not None:
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
    error = await _refused(LitellmModel(ModelAccess({"openai": file})), "openai/gpt-4o")
    assert error.code == "model_key_missing"
    assert str(file) in str(error)


def test_the_longest_entry_holds(tmp_path: Path) -> None:
    house, theirs = tmp_path / "house", tmp_path / "theirs"
    house.write_text("house-key")
    theirs.write_text("their-key")
    access = ModelAccess(
        {"openai": theirs, "openai/qwen": house},
        {"openai/qwen": "http://house/v1", "openai/phi": "http://other/v1", "anthropic": "http://gateway"},
    )
    assert (access.api_base("openai/qwen2"), access.api_key("openai/qwen2")) == (None, "their-key")
    assert (access.api_base("openai/qwen-7b"), access.api_key("openai/qwen-7b")) == ("http://house/v1", "house-key")
    assert (access.api_base("openai/phi"), access.api_key("openai/phi")) == ("http://other/v1", "their-key")
    assert (access.api_base("openai/gpt-4o"), access.api_key("openai/gpt-4o")) == (None, "their-key")
    assert (access.api_base("anthropic/x"), access.api_key("anthropic/x")) == ("http://gateway", None)


async def test_a_server_of_ones_own_is_sent_the_providers_key(
    monkeypatch: pytest.MonkeyPatch, key_file: Path, tmp_path: Path
) -> None:
    """That of a file, else of the environment; an entry of its own holds against both, and without any it is none."""
    other = tmp_path / "other"
    other.write_text("other-key")
    async with OpenAIStub(Said(text=("x",))) as stub:

        async def sent(**key_files: Path) -> str:
            files = {name.replace("_", "/"): file for name, file in key_files.items()}
            model = LitellmModel(ModelAccess(files, {"openai/qwen": stub.api_base}))
            await model.check("openai/qwen")
            await question(model, "openai/qwen")
            await model.close()
            return stub.requests[-1].headers["authorization"].removeprefix("Bearer ")

        assert await sent() == NO_KEY
        assert await sent(openai=key_file) == API_KEY
        monkeypatch.setenv("OPENAI_API_KEY", "environment-key")
        assert await sent() == "environment-key"
        assert await sent(openai=key_file) == API_KEY
        assert await sent(openai=key_file, openai_qwen=other) == "other-key"


@pytest.mark.parametrize("name", ["api_base", "api_key", "base_url", "extra_headers", "mock_response", "fallbacks"])
def test_a_profile_cannot_move_a_request(name: str) -> None:
    with pytest.raises(ModelError) as raised:
        request_form(request_to("openai/gpt-4o", params={name: "x"}), "openai")
    assert (raised.value.code, raised.value.retryable) == ("model_request_invalid", False)
    assert name in str(raised.value)
    assert name not in PROVIDER_PARAMS


async def test_parameters_are_passed_on() -> None:
    async with OpenAIStub(Said(text=("x",))) as stub:
        model = LitellmModel(ModelAccess({}, {"openai/gpt-4o": stub.api_base}))
        request = request_to(stub.model, temperature=0.3, seed=7, max_tokens=5, params={"presence_penalty": 0.5})
        with pytest.raises(ModelError):
            _ = [event async for event in model.stream(request)]  # no key: what was sent is seen all the same
        await model.close()
        assert stub.refusals == ["Incorrect API key provided"]
        body = stub.bodies[0]
    assert (body["temperature"], body["seed"], body["max_tokens"], body["presence_penalty"]) == (0.3, 7, 5, 0.5)


async def test_a_parameter_the_model_does_not_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", API_KEY)
    model = LitellmModel()
    asked = await question(model, "anthropic/claude-sonnet-4-5", config={"seed": 1})
    assert (asked.failed().code, asked.codes()) == ("model_params_unsupported", ["model_params_unsupported"])
    await model.close()
    async with AnthropicStub(Said(text=("x",))) as stub:
        model = LitellmModel(ModelAccess(api_bases={"anthropic": stub.api_base}))
        asked = await question(model, stub.model, config={"seed": 1, "params": {"drop_params": True, "top_k": 4}})
        assert asked.said().text == "x"
        assert ("seed" in stub.bodies[0], stub.bodies[0]["top_k"]) == (False, 4)
        await model.close()


def test_an_account_stands_for_server_and_key_and_does_not_say_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-first-key")
    (file := tmp_path / "key").write_text("sk-first-key\n")
    of_environment = ModelAccess().account("openai/gpt-4o")
    assert ModelAccess({"openai": file}).account("openai/gpt-4o-mini") == of_environment
    elsewhere = ModelAccess(api_bases={"openai": "http://127.0.0.1:1/v1"}).account("openai/gpt-4o")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-second-key")
    accounts = [of_environment, elsewhere, *(ModelAccess().account(f"{name}/x") for name in ("openai", "gemini"))]
    assert len({*accounts}) == 4
    assert all(account.partition(":")[0] in ("openai", "gemini") and len(account) <= 15 for account in accounts)
    file.unlink()
    assert ModelAccess({"openai": file}).account("openai/x") not in accounts[:2]  # and no error: the request says it
