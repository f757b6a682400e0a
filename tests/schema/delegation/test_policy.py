"""Whom a policy allows (protocol §12.1): null is all that pass the tags, an empty list is none."""

import pytest
from pydantic import ValidationError

from turnstile.schema.base import JsonObject
from turnstile.schema.delegation.policy import DelegationPolicy
from turnstile.schema.profiles import Profile

LLM = {"model": "scripted/echo"}


@pytest.mark.parametrize(
    ("policy", "allowed"),
    [
        ({}, True),
        ({"target_profiles": None}, True),
        ({"target_profiles": []}, False),
        ({"target_profiles": ["Searcher"]}, True),
        ({"target_profiles": [" searcher "]}, True),
        ({"target_profiles": ["Writer"]}, False),
        ({"target_tags": ["associate"]}, True),
        ({"target_tags": ["principal"]}, False),
        ({"target_profiles": ["Searcher"], "target_tags": ["principal"]}, False),
        ({"target_profiles": ["", " "]}, False),
    ],
)
def test_who_is_allowed(policy: JsonObject, allowed: bool) -> None:
    assert DelegationPolicy.model_validate(policy).allows("Searcher", ["associate"]) is allowed


def test_a_profile_without_a_policy_is_stored_as_before() -> None:
    plain = Profile.model_validate({"name": "Plain", "llm_config": LLM})
    assert plain.delegation_policy is None
    assert "delegation_policy" not in plain.model_dump(mode="json")


def test_a_profile_keeps_its_policy() -> None:
    policy = {"target_profiles": None, "target_tags": ["associate"]}
    given = Profile.model_validate({"name": "Chief", "llm_config": LLM, "delegation_policy": policy})
    assert given.model_dump(mode="json")["delegation_policy"] == policy
    assert Profile.model_validate(given.model_dump(mode="json")) == given


def test_an_unknown_key_is_refused() -> None:
    with pytest.raises(ValidationError):
        DelegationPolicy.model_validate({"profiles": []})
