"""The settings of an enqueue in two parts: what the inbox row has, and the text on a card (protocol §4.4)."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some
from pydantic import JsonValue, ValidationError

from turnstile.schema.base import STORED
from turnstile.schema.ids import CardId
from turnstile.schema.profiles import Choice, RuntimeConfig, StoredConfig

WORDS = some.text(some.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
SCHEMAS = some.fixed_dictionaries(
    {"type": some.just("object")},
    optional={"description": WORDS, "properties": some.dictionaries(WORDS, some.just({"type": "string"}))},
)
CHOICES = some.lists(
    some.builds(Choice, name=some.from_regex(r"[a-z]{1,9}", fullmatch=True), description=WORDS, parameters=SCHEMAS),
    max_size=4,
    unique_by=lambda choice: choice.name,
)
SETTINGS = some.builds(
    RuntimeConfig,
    model=some.none() | WORDS,
    temperature=some.none() | some.floats(0, 2),
    max_tokens=some.none() | some.integers(1, 1000),
    timeout_seconds=some.none() | some.floats(1, 3600),
    max_steps=some.none() | some.integers(1, 1000),
    instructions=some.none() | WORDS,
    choices=CHOICES,
    remember=some.booleans(),
).flatmap(
    lambda settings: some.sampled_from(
        [settings, settings.model_copy(update={"choices": [], "output_schema": {"type": "integer"}})]
    )
)


@given(SETTINGS)
def test_parts_make_the_settings_again(settings: RuntimeConfig) -> None:
    row, text = settings.split()
    texts = {
        "instructions": settings.instructions,
        "choices": settings.choices,
        "output_schema": settings.output_schema,
    }
    assert text.keys() == {name for name, value in texts.items() if value}
    later = {"card_id": "c", "of_a_later_version": True}
    stored = StoredConfig.model_validate_json(json.dumps({**row, **later}), context=STORED)
    merged = stored.merged({**json.loads(json.dumps(text)), "of_a_later_version": [1]})
    assert (type(merged), merged) == (RuntimeConfig, settings)
    assert RuntimeConfig.model_validate(row).texts() == RuntimeConfig().texts()


def test_a_row_of_before_has_its_text_itself() -> None:
    row: dict[str, Any] = {"instructions": "Be brief.", "max_steps": 3}
    stored = StoredConfig.model_validate(row, context=STORED)
    assert (stored.card_id, stored.instructions, stored.max_steps) == (None, "Be brief.", 3)


@pytest.mark.parametrize("text", [None, "Be brief.", [], {"model": "a/b"}, {"instructions": 1}, {"card_id": "c"}])
def test_a_card_says_nothing_else(text: JsonValue) -> None:
    with pytest.raises(ValidationError):
        StoredConfig(card_id=CardId("c"), max_steps=3).merged(text)


def test_no_request_names_the_card() -> None:
    with pytest.raises(ValidationError):
        RuntimeConfig.model_validate({"card_id": "c"})
