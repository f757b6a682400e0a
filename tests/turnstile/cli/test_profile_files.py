"""Profiles from YAML: the examples are the demo's, and an error names file, key and what is allowed."""

from pathlib import Path

import pytest

from tests.support.paths import ROOT
from turnstile.cli.demo.first_turn import demo_profiles
from turnstile.schema.errors import ConfigError, ModelError
from turnstile.settings.yaml_files import check_scripted, read_profile

EXAMPLES = ROOT / "examples" / "profiles"


@pytest.mark.parametrize("profile", demo_profiles(), ids=lambda profile: profile.name)
async def test_the_examples_are_the_profiles_of_the_demo(profile: object) -> None:
    read = [read_profile(file) for file in sorted(EXAMPLES.glob("*.yaml"))]
    assert profile in read
    for each in read:
        await check_scripted(each, [])


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("name: a\nllm_config: {model: m}\nmax_stepz: 3", "unknown key 'max_stepz'; allowed: max_steps, "),
        ("name: a\nllm_config: {modle: m, model: m}", "unknown key 'llm_config.modle'; allowed: model, "),
        ("name: a", "llm_config is missing: write its model"),
        ("name: a\nllm_config: {model: m}\nmax_steps: 0", "max_steps = 0: must be at least 1"),
        ("name: a\nllm_config: {model: m}\nbudget: {max_tokens: -1}", "budget.max_tokens = -1: "),
        ("name: a\nllm_config: {model: m}\nbudget: {tokens: 1}", "unknown key 'budget.tokens'; allowed: max_tokens, "),
        ("- a", "a profile is a mapping with the keys name, worker_target, "),
        ("a: [", "not valid YAML: "),
    ],
)
def test_a_bad_profile_names_the_file_and_the_key(text: str, told: str, tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as refused:
        read_profile(file)
    assert f"{file}: {told}" in str(refused.value)


async def test_an_unknown_scripted_model_is_named() -> None:
    profile = demo_profiles("scripted/nope")[0]
    with pytest.raises(ModelError, match="no scripted model 'nope'; there are: ") as refused:
        await check_scripted(profile, [])
    assert refused.value.code == "model_unknown"
