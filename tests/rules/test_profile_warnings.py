"""Warnings of a profile: few, whatever it names, since each compares names on a bridge's loop."""

from tests.support.cpu import cheap
from turnstile.rules.profile_warnings import profile_warnings
from turnstile.schema.profiles import LlmConfig, Profile


def test_a_profile_of_a_thousand_unknown_names_is_looked_at_for_a_moment() -> None:
    profile = Profile(
        name="p",
        worker_target="w",
        llm_config=LlmConfig(model="openai/gpt-4o"),
        allowed_tools=[f"an_unknown_tool_of_a_long_name_{number}_{'x' * 60}" for number in range(1000)],
    )
    tools = [f"a_known_tool_of_a_long_name_{number}" for number in range(1000)]
    warnings = cheap(0.05, lambda: profile_warnings(profile, tools, ["w"], priced=True, answer_tokens=100))
    [only] = warnings
    assert only.endswith(", and 990 more")


def test_an_unknown_tool_is_warned_of_once() -> None:
    profile = Profile(
        name="p",
        worker_target="w",
        llm_config=LlmConfig(model="openai/gpt-4o"),
        allowed_tools=["skills.load", "serch", "serch", "known"],
        must_end_with=["serch", "other"],
    )
    warnings = profile_warnings(profile, ["search", "known"], ["w"], priced=True, answer_tokens=100)
    assert warnings == [
        "allowed_tools names what is not a tool of the project yet: 'skills.load', 'serch'; did you mean 'search'?",
        "must_end_with names 'other', which is not a tool of the project yet",
    ]
