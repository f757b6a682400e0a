"""Profiles as CommonGround v1r4 writes them, and the braces of system prompts (protocol §7.3)."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue, ValidationError

from turnstile.schema.base import STORED, JsonObject
from turnstile.schema.profiles import Profile, render_prompt

MODEL = "gemini/gemini-3-flash-preview"
THEIRS: JsonObject = {
    "name": "Associate_Search",
    "worker_target": "worker_generic",
    "tags": "associate, search",
    "description": "Searches.",
    "system_prompt": "You are {display_name}.",
    "allowed_tools": None,
    "allowed_internal_tools": [],
    "require_submit_result": True,
    "must_end_with": None,
    "delegation_policy": {"target_tags": None, "target_profiles": None},
    "llm_config": {
        "model": MODEL,
        "temperature": 1.0,
        "provider": "gemini",
        "stream": False,
        "stream_options": {"include_usage": True},
        "save_reasoning_content": True,
        "tool_choice": "required",
        "provider_options": {"custom_llm_provider": "gemini", "base_url": "http://x", "top_k": 3},
    },
}


def test_a_profile_of_v1r4_is_kept_obeyed_and_its_other_keys_are_listed() -> None:
    profile = Profile.model_validate(THEIRS)
    assert (profile.tags, profile.system_prompt_template) == (["associate", "search"], "You are {display_name}.")
    assert (profile.end_tools, profile.hides_submit_result) == (["submit_result"], False)
    assert profile.allows("anything")
    assert profile.delegation_policy is not None
    assert profile.delegation_policy.target_tags == []
    config = profile.llm_config
    assert config is not None
    assert config.provider_params == {"tool_choice": "required", "top_k": 3}
    assert config.not_obeyed() == [
        "llm_config.provider_options.base_url",
        "llm_config.stream",
        "llm_config.stream_options",
    ]
    kept = profile.model_dump(mode="json")
    assert kept["llm_config"].items() >= {"provider": "gemini", "stream": False, "tool_choice": "required"}.items()
    assert kept["description"] == "Searches."
    assert Profile.model_validate(kept) == profile


@pytest.mark.parametrize(
    ("internal", "end", "required", "hidden"),
    [
        (None, [], False, False),
        ([], [], False, True),
        (["other"], "", False, True),
        (["submit_result"], [], False, False),
        ([], "submit_result", False, False),
        ([], [], True, False),
    ],
)
def test_a_list_without_submit_result_hides_it_unless_the_profile_demands_it(
    internal: JsonValue, end: JsonValue, required: JsonValue, hidden: bool
) -> None:
    keys: JsonObject = {"allowed_internal_tools": internal, "must_end_with": end, "require_submit_result": required}
    assert Profile.model_validate({**THEIRS, **keys}).hides_submit_result == hidden


def test_only_a_profile_of_a_ui_target_needs_no_model() -> None:
    without: JsonObject = {"name": "ui", "worker_target": "ui_worker", "llm_config": {}}
    assert Profile.model_validate(without).llm_config is None
    in_code: JsonObject = {"name": "coder", "run_by": "coder"}
    assert Profile.model_validate(in_code).model_dump(exclude_unset=True) == in_code
    with pytest.raises(ValidationError, match="either llm_config or run_by"):
        Profile.model_validate({**in_code, "llm_config": {"model": "m"}})
    with pytest.raises(ValidationError, match="is built in"):
        Profile.model_validate({**in_code, "run_by": "submit_result"})
    with pytest.raises(ValidationError, match="llm_config is missing"):
        Profile.model_validate({**without, "worker_target": "worker_generic"})


def test_a_card_may_have_keys_that_a_file_may_not_but_no_other_server() -> None:
    config = THEIRS["llm_config"]
    assert isinstance(config, dict)
    policy: JsonObject = {"target_profiles": [], "x": 1}
    stranger: JsonObject = {**THEIRS, "x": 1, "llm_config": {**config, "x": 1}, "delegation_policy": policy}
    with pytest.raises(ValidationError, match="Extra inputs"):
        Profile.model_validate(stranger)
    Profile.model_validate(stranger, context=STORED)
    for key in ("api_base", "api_key"):
        with pytest.raises(ValidationError, match=key):
            Profile.model_validate({**stranger, "llm_config": {**config, key: "x"}}, context=STORED)


@pytest.mark.parametrize(
    ("template", "prompt"),
    [
        ("{a} {{a}} {b} {{{a}}}", "A {a} {b} {A}"),
        ('{{"x": {{"y": {a}}}}}', '{"x": {"y": A}}'),
        ('{"x": {"y": 1}} {}', '{"x": {"y": 1}} {}'),
        ('{{"x": {"y": 1}}}', '{"x": {"y": 1}}'),
        ("{{ } }} }", "{ } } }"),
        ("{ {{ {", "{ { {"),
    ],
)
def test_doubled_braces_are_one_and_single_ones_stay(template: str, prompt: str) -> None:
    assert render_prompt(template, {"a": "A"}) == prompt


OBJECTS = st.recursive(
    st.text("a,:", max_size=3), lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.just("a"), inner)
)


@given(OBJECTS)
def test_json_may_be_written_as_it_is_or_with_doubled_braces(value: JsonValue) -> None:
    text = json.dumps(value)
    assert render_prompt(text, {}) == render_prompt(text.replace("{", "{{").replace("}", "}}"), {}) == text


def test_a_value_is_not_a_template() -> None:
    assert render_prompt("{a}", {"a": "{{b}} {a}"}) == "{{b}} {a}"
