"""What a provider said of a request that it refused: quoted for the turn, without keys, and never in the message."""

import pytest

from tests.activities.models.provider_stub import API_KEY
from turnstile.activities.models.provider_errors import quote_provider


class Refusal(Exception):
    """As litellm raises one."""

    status_code = 400


KEYS = (
    "sk-proj-abcdef123456",
    "sk-ant-api03-AbCd_12-34",
    "AIzaSyD4x9k2mQ7vB",
    "AKIAIOSFODNN7EXAMPLE",
    "ghp_16C7e42F292c6912E7710c838347Ae178B4a",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIx",
    "0123456789abcdef0123456789abcdef",
    API_KEY,
)


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("form", ["wrong key {}", "Authorization: Bearer {}", '{{"api_key": "{}"}}', "?token={}&x=1"])
def test_no_key_is_quoted(key: str, form: str) -> None:
    said = quote_provider(Refusal(f"litellm.BadRequestError: OpenAIException - {form.format(key)}"), [API_KEY])
    assert said is not None
    assert key not in said
    assert "[removed]" in said


def test_the_words_are_the_providers_alone_bounded_and_on_one_line() -> None:
    body = '{"error": {"message": "no \\"top_k\\" here"}}'
    said = quote_provider(Refusal(f"litellm.BadRequestError: OpenAIException - {body}"))
    assert said == "no 'top_k' here"
    assert quote_provider(Refusal("litellm.BadRequestError: VllmException - max_tokens is\ntoo large")) == (
        "max_tokens is too large"
    )
    assert len(quote_provider(Refusal("word " * 1000)) or "") == 500
    assert quote_provider(Refusal("a\x1b[31mb\u202ec")) == "a[U+001B][31mb[U+202E]c"
    assert quote_provider(ValueError("of ours, without an answer")) is None
    assert quote_provider(Refusal("")) is None
