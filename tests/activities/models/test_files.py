"""Files in a request to a model: the bytes in each provider's form, to models that take them (protocol §22.6)."""

import base64
from collections.abc import Callable
from typing import Any, cast

import pytest

from tests.activities.models.asking import request_to
from tests.activities.models.provider_stub import ProviderStub, Said
from tests.rules.test_model_files import part, pdf, png
from turnstile.activities.models import LitellmModel
from turnstile.rules.model_files import describe_file
from turnstile.rules.tool_specs import function_spec
from turnstile.runtime.ports import ModelMessage, ModelRequest, ModelToolCall

PICTURE, PAPER = png(30, 20), pdf(2)
FILES = {
    name: describe_file(part(name, size=len(data)), data, 1000)
    for name, data in {"picture": PICTURE, "paper": PAPER, "words": b"some words"}.items()
}
LOOK = function_spec("look", "Look.", {"type": "object", "properties": {}})
CALL = ModelToolCall(id="call_1", name="look", arguments="{}")
MESSAGES = (
    ModelMessage(role="user", content="see", files=(part("paper"), part("words"))),
    ModelMessage(role="assistant", content="", tool_calls=(CALL,)),
    ModelMessage(role="tool", content="here", tool_call_id="call_1", name="look", files=(part("picture"),)),
)


def request(model: str, **config: object) -> ModelRequest:
    asked = request_to(model, **config)
    return ModelRequest(
        asked.config, MESSAGES, (LOOK,), 1, 1, 5.0, files={part(n).artifact_id: f for n, f in FILES.items()}
    )


def sent(body: Any) -> tuple[list[str], list[str]]:
    """The base64 texts of a body, and what of it is words."""
    found: list[str] = []
    plain: list[str] = []

    def look(value: Any) -> None:
        if isinstance(value, dict):
            for each in cast("dict[str, Any]", value).values():
                look(each)
        elif isinstance(value, list):
            for each in cast("list[Any]", value):
                look(each)
        elif isinstance(value, str):
            text = value.rpartition("base64,")[2]
            known = {base64.b64encode(data).decode() for data in (PICTURE, PAPER)}
            (found if text in known else plain).append(text)

    look(body)
    return found, plain


@pytest.mark.parametrize("accepts", [["image", "pdf"], ["image"], []])
async def test_each_provider_gets_the_bytes_that_its_model_takes(
    provider: type[ProviderStub], model_of: Callable[[ProviderStub], LitellmModel], accepts: list[str]
) -> None:
    async with provider(Said(["ok"])) as stub:
        model = model_of(stub)
        text = [event async for event in model.stream(request(stub.model, accepts=accepts))]
        assert text
        assert stub.refusals == []
        body = stub.requests[-1].json()
    bytes_sent, words = sent(body)
    kinds = {"image": PICTURE, "pdf": PAPER}
    assert sorted(bytes_sent) == sorted(base64.b64encode(kinds[kind]).decode() for kind in accepts)
    assert any("some words" in each for each in words)
