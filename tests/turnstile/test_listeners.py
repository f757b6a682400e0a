"""Listeners from modules and YAML files: what is wrong is said with listener, file and cure, and at the start."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.turnstile.support import turnstile
from turnstile.processes.listener_files import load_registry
from turnstile.schema.errors import ConfigError
from turnstile.schema.pump.listeners import BadListener
from turnstile.settings.yaml_files import read_listeners

EXAMPLES = ROOT / "examples" / "pump"
GOOD = """
from turnstile.schema.pump.listeners import listener
from turnstile.schema.pump.payloads import Payload

class Ask{n}(Payload, tag="{n}"):
    text: str

@listener("{n}", payload=Ask{n}, description="Answers.")
async def answer(payload, metadata):
    return None

alias = answer
"""
ENTRY = "{{name: {n}, description: Answers., payload: '{n}:Ask{n}', {more}}}"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory of its own, as a program is started in one; what is imported from it is forgotten."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def module(name: str, text: str | None = None) -> str:
    """A module here; a good one if no text is given."""
    Path(f"{name}.py").write_text(GOOD.format(n=name) if text is None else text)
    return name


def file(*entries: str, name: str = "l.yaml") -> str:
    """A file of listeners here."""
    Path(name).write_text("\n".join(["listeners:", *(f"  - {entry}" for entry in entries)]))
    return name


def entry(n: str, more: str = "") -> str:
    """A listener in YAML, on a module of its name."""
    return ENTRY.format(n=n, more=more)


def refused(*names: str) -> str:
    """What is said of these modules and files."""
    with pytest.raises(ConfigError) as error:
        load_registry(names)
    return str(error.value)


def test_the_examples_load_from_python_and_from_yaml(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(EXAMPLES)
    in_python, in_yaml = (load_registry([name]).listeners for name in ("bakery", "bakery.yaml"))
    assert set(in_python) == set(in_yaml) == {"counter", "stock", "prices"}
    for name, each in in_python.items():
        assert (each.payload, each.answers) == (in_yaml[name].payload, in_yaml[name].answers)
        assert each.handler is in_yaml[name].handler


def test_listeners_of_modules_and_files_meet_in_one_registry() -> None:
    module("plain", "from a import Aska\nasync def handle(payload, metadata): ...\nclass Other: ...")
    yaml = file(
        "{name: one, description: d, payload: 'c:Askc', handler: 'plain:handle', answers: ['plain:Aska'], retries: 2}",
        "{name: two, description: d, payload: 'd:Askd', agent_id: roster, peers: [a, one], deadline_seconds: 5}",
    )
    for name in ("c", "d"):
        module(name)
    found = load_registry([module("a"), module("b"), yaml]).listeners
    assert set(found) == {"a", "b", "one", "two"}
    assert (found["one"].retries, found["one"].agent) == (2, False)
    assert (found["two"].agent, found["two"].agent_id, found["two"].peers) == (True, "roster", ("a", "one"))
    assert found["two"].deadline_seconds == 5


def test_a_listener_that_another_module_imports_is_there_once() -> None:
    module("a")
    module("b", "from a import answer\n" + GOOD.format(n="b").replace("async def answer", "async def reply"))
    assert set(load_registry(["a", "b"]).listeners) == {"a", "b"}
    assert set(load_registry(["b"]).listeners) == {"a", "b"}


def test_a_module_is_found_in_the_working_directory_and_in_packages() -> None:
    Path("pack").mkdir()
    Path("pack/inner.py").write_text(GOOD.format(n="inner"))
    assert set(load_registry(["pack.inner"]).listeners) == {"inner"}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("x = 1", "module bad declares no listeners: decorate its handlers with @listener(...)"),
        ("import nosuch", "bad: cannot import bad: ModuleNotFoundError: No module named 'nosuch' ("),
        ("def f(:", "bad: cannot import bad: SyntaxError: "),
        ("raise ValueError('its words')", "bad: cannot import bad: ValueError: its words ("),
        (
            "from turnstile.schema.pump.payloads import Payload\nclass P(Payload):\n    x: dict[str, str]",
            "bad: cannot import bad: BadPayloadClass: P.x",
        ),
        (
            GOOD.format(n="bad").replace("async def", "def"),
            "bad: listener 'bad': its handler is synchronous: declare it with `async def`",
        ),
        (GOOD.format(n="bad").replace("Answers.", ""), "bad: listener 'bad': it has no description: "),
        (GOOD.format(n="bad").replace("text: str", "text: 'Nowhere'"), "Nowhere"),
    ],
)
def test_a_bad_module_is_named(text: str, told: str) -> None:
    found = refused(module("bad", text))
    assert found.startswith(told) or told == "Nowhere"
    assert "bad" in found


def test_the_place_of_an_error_at_import_is_told(here: Path) -> None:
    module("bad", "\n\nraise ValueError('x')")
    assert refused("bad").endswith(f"ValueError: x ({here / 'bad.py'}:3)")


@pytest.mark.parametrize("name", ["nosuch", "no.such", ".relative", "a b", ""])
def test_a_module_that_is_not_there_is_named(name: str) -> None:
    assert refused(name).startswith(f"{name}: cannot import {name}: ")


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ("", "it needs a handler or an agent of the roster, and not both"),
        ("handler: 'a:answer', agent_id: x", "it needs a handler or an agent of the roster, and not both"),
        ("handler: answer", "'answer' must be of the form package.module:name"),
        ("handler: 'a:'", "'a:' must be of the form package.module:name"),
        ("handler: ':answer'", "':answer' must be of the form package.module:name"),
        ("handler: 'a:nosuch'", "module a has no nosuch"),
        ("handler: 'nosuch:x'", "cannot import nosuch: ModuleNotFoundError: No module named 'nosuch'"),
        ("handler: 'a:__name__'", "a:__name__ is no handler"),
        ("handler: 'os:getcwd'", "its handler is synchronous: declare it with `async def`"),
        (
            "handler: 'a:answer', answers: ['a:answer']",
            "a:answer is no payload: derive it from turnstile.schema.pump.payloads.Payload",
        ),
        ("handler: 'a:answer', answers: ['os:PathLike']", "os:PathLike is no payload: derive it"),
        ("handler: 'a:answer', peers: [a]", "only agents have peers: add agent=True, or leave them out"),
        ("agent_id: x, peers: [b, c]", "no listener is named b, c; there are a"),
        ("handler: 'a:answer', deadline_seconds: .nan", "deadline_seconds must be more than 0"),
        ("agent_id: x, deadline_seconds: .inf", "deadline_seconds must be more than 0"),
    ],
)
def test_a_bad_listener_in_a_file_is_named_with_the_file(more: str, told: str) -> None:
    module("a")
    assert refused(file(entry("a", more))).startswith(f"l.yaml: listener 'a': {told}")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "a file of listeners is a mapping with the keys listeners"),
        ("- a", "a file of listeners is a mapping with the keys listeners"),
        ("listener: []", "unknown key 'listener'; allowed: listeners"),
        ("listeners: [{name: a}]", "the key 'listeners.0 (a).description' is missing"),
        ("listeners: [{name: a, descripton: x}]", "unknown key 'listeners.0 (a).descripton'; allowed: description, "),
        ("listeners: [{name: a}, {names: b}]", "unknown key 'listeners.1.names'; allowed: name, "),
        ("listeners: [{name: a, retries: x, description: d, payload: p}]", "listeners.0 (a).retries = 'x': "),
        ("listeners: {a: [", "not valid YAML: "),
    ],
)
def test_a_bad_file_is_named_with_its_key(text: str, told: str) -> None:
    Path("bad.yml").write_text(text)
    assert f"bad.yml: {told}" in refused("bad.yml")


def test_a_file_that_is_not_there_is_named() -> None:
    assert refused("nosuch.yaml") == "nosuch.yaml: cannot be read: No such file or directory"
    with pytest.raises(ConfigError):
        read_listeners(Path("nosuch.yaml"))


def test_the_second_of_two_of_one_name_is_named_with_its_file(here: Path) -> None:
    module("a")
    told = "l.yaml: listener 'a': the name is taken: give each listener its own"
    assert refused("a", file(entry("a", "handler: 'a:answer'"))) == told
    other = module("other", GOOD.format(n="other").replace('tag="other"', 'tag="a"'))
    tags = "other: listener 'other': its payload's root tag 'a' is that of listener 'a': tags select listeners"
    tags += f" ({here / 'other.py'}:8)"
    assert refused("a", other) == tags


def test_nothing_to_load_is_nothing() -> None:
    assert len(load_registry([])) == 0
    Path("empty.yaml").write_text("listeners: []")
    assert len(load_registry(["empty.yaml"])) == 0


async def test_a_worker_with_bad_listeners_ends_at_once_and_says_why(here: Path) -> None:
    """Before it waits for any server."""
    module("bad", GOOD.format(n="bad").replace("async def", "def"))
    away = {
        "TURNSTILE__DATABASE__URL": "postgresql://nobody@127.0.0.1:1/nothing",
        "TURNSTILE__NATS__SERVERS": "nats://127.0.0.1:1",
        "TURNSTILE__TEMPORAL__ADDRESS": "127.0.0.1:1",
    }
    ran = await turnstile("worker", cwd=here, **away, TURNSTILE__PUMP__LISTENERS="bad")
    told = f"bad: listener 'bad': its handler is synchronous: declare it with `async def` ({here / 'bad.py'}:8)"
    told = f"error: {told} (bad_listener)\n"
    assert (ran.code, ran.err, ran.out) == (2, told, "")


def test_an_error_of_a_listener_keeps_it() -> None:
    module("a", GOOD.format(n="a").replace("Answers.", ""))
    with pytest.raises(BadListener) as error:
        load_registry(["a"])
    assert error.value.listener is not None
    assert error.value.listener.name == "a"
