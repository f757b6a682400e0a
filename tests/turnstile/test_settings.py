"""Settings: what overrides what, what an error says, and that the example is the truth."""

import os
import tomllib
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from turnstile.schema.errors import ConfigError
from turnstile.settings import Settings, load_settings

EXAMPLE = ROOT / "config.example.toml"


@pytest.fixture(autouse=True)
def clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No settings but the test's own."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.upper().startswith("TURNSTILE__")]:
        monkeypatch.delenv(name)


def problems_of(text: str) -> list[str]:
    """What is wrong with a config.toml of this text."""
    Path("config.toml").write_text(text)
    with pytest.raises(ConfigError) as refused:
        load_settings()
    return str(refused.value).split("\n")


def test_the_example_holds_every_key_with_its_default() -> None:
    assert tomllib.loads(EXAMPLE.read_text()) == Settings().model_dump(mode="json")


def test_every_key_of_the_example_says_what_it_is_for() -> None:
    lines = [line for line in EXAMPLE.read_text().splitlines() if " = " in line and not line.startswith("#")]
    assert [line for line in lines if "  # " not in line] == []


def test_defaults_file_and_environment_in_this_order(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_settings().worker.max_steps == 16
    Path("config.toml").write_text("[worker]\nmax_steps = 3\nmax_concurrency = 5\n")
    monkeypatch.setenv("TURNSTILE__WORKER__MAX_STEPS", "7")
    settings = load_settings()
    assert (settings.worker.max_steps, settings.worker.max_concurrency) == (7, 5)


def test_lists_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNSTILE__WORKER__WORKER_TARGETS", "a, b")
    monkeypatch.setenv("TURNSTILE__NATS__SERVERS", '["nats://one", "nats://two"]')
    settings = load_settings()
    assert settings.worker.worker_targets == ["a", "b"]
    assert settings.nats.url == "nats://one,nats://two"


def test_a_named_file_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"elsewhere\.toml: no such file"):
        load_settings(tmp_path / "elsewhere.toml")


def test_settings_are_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        load_settings().worker.max_steps = 3  # pyright: ignore[reportAttributeAccessIssue] -- that is the point


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[worker]\nmax_stepz = 3", "config.toml: unknown key 'worker.max_stepz'; allowed: max_steps, "),
        ("[wroker]\nx = 3", "config.toml: there is no section 'wroker'; allowed: worker, "),
        (
            "[worker]\nmax_steps = 0",
            "config.toml: worker.max_steps = 0: must be at least 1 (allowed: 1 ",
        ),
        ("[worker]\nmax_steps = 'x'", "config.toml: worker.max_steps = 'x': must be a whole number"),
        ("[worker]\nworker_targets = []", "config.toml: worker.worker_targets = []: must have at least 1 item"),
        ("[worker]\nworker_targets = ['a b']", "config.toml: worker.worker_targets = 'a b': does not have the form ^"),
        ("[worker]\nworker_targets = ['a', 'a']", "names the same thing twice"),
        ("[observability]\nlog_level = 'loud'", "log_level = 'loud': must be 'debug', 'info', 'warning' or 'error'"),
        (
            "[observability]\nmetrics_host = 'here'",
            "metrics_host = 'here': is an IP address to listen on",
        ),
        ("[observability]\nmetrics_port = 9\ntemporal_metrics_port = 9", "metrics_port and temporal_metrics_port must"),
        ("[bridge]\nstop_grace_seconds = nan", "bridge.stop_grace_seconds = nan: must be"),
        ("[worker", "config.toml: not valid TOML: "),
    ],
)
def test_a_bad_key_is_named_with_its_value_and_what_is_allowed(text: str, told: str) -> None:
    [problem] = problems_of(text)
    assert told in problem


def test_all_problems_at_once_and_no_password() -> None:
    problems = problems_of("[database]\nurl = 'mysql://u:secret@h/d'\n[worker]\nmax_steps = 0\nfoo = 1\n")
    assert len(problems) == 3
    assert "secret" not in "".join(problems)
    assert "secret" not in repr(Settings.model_validate({"database": {"url": "postgresql://u:secret@h/d"}}))


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        (
            "TURNSTILE__WORKER__MAX_STEPS",
            "x",
            "TURNSTILE__WORKER__MAX_STEPS: worker.max_steps = 'x': must be a whole number",
        ),
        ("TURNSTILE__WORKER__FOO", "1", "TURNSTILE__WORKER__FOO: unknown key 'worker.foo'; allowed: "),
        ("TURNSTILE__WROKER__FOO", "1", "TURNSTILE__WROKER__FOO: there is no section 'wroker'; allowed: worker"),
        ("TURNSTILE__WORKER", "{}", "TURNSTILE__WORKER: name a key too, such as TURNSTILE__WORKER__WORKER_TARGETS"),
        ("TURNSTILE__NATS__SERVERS", '["x', "TURNSTILE__NATS__SERVERS: nats.servers: starts like a JSON list"),
    ],
)
def test_a_bad_variable_is_named(name: str, value: str, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError) as refused:
        load_settings()
    assert told in str(refused.value)


def test_worker_versions_are_set_whole() -> None:
    [problem] = [each for each in problems_of('[worker]\nbuild_id = "3f2a"\n') if "build_id" in each]
    assert "deployment_name and build_id are set together, or neither" in problem
