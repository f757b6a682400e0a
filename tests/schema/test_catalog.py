"""The catalog is complete: whatever the code can send is in it, and whatever the protocol's table lists."""

import ast
import inspect
import itertools
import re
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest

from tests.support.paths import ROOT
from turnstile.schema.access import Caller
from turnstile.schema.interface import catalog
from turnstile.schema.interface.catalog import ENTRIES, NOT_SPOKEN, Headers, find
from turnstile.schema.interface.entries import PARAMETERS, PREFIX, Entry, Transport
from turnstile.schema.verbs import VERBS
from turnstile.schema.wire import headers, subjects
from turnstile.transport.streams import covers

ROOMS = ("schema", "runtime", "rules", "ledger", "transport", "sdk", "activities", "workflows", "bridge", "turnstile")
PATTERNS = [
    text
    for text in vars(subjects).values()
    if isinstance(text, str) and text.startswith("cg.") and text != subjects.MODEL_QUEUES  # workers alone speak there
]

CALLED_BY = {verb.name for verb in VERBS if verb.caller != "none"}
"""The verbs whose subject may name the caller at its end."""


def subject_of(entry: Entry, like: str = "") -> str:
    """One of the entry's subjects, with the words of a pattern where it has ids."""
    words = [word if word not in {"*", ">"} else "any" for word in like.split(".")]
    parts = itertools.zip_longest(entry.address.split("."), words)
    return ".".join((word or "any") if part.startswith("{") else part for part, word in parts if part)


def builders() -> dict[str, Any]:
    """The functions of `turnstile.schema.wire.subjects` that make subjects, or patterns of them."""
    found = inspect.getmembers(subjects, inspect.isfunction)
    own = {name: each for name, each in found if each.__module__ == subjects.__name__ and not name.startswith("_")}
    return {name: each for name, each in own.items() if get_type_hints(each)["return"] is str}


def made_by(name: str) -> Iterator[str]:
    """What a builder makes, of every word that an argument may be."""
    build = builders()[name]
    hints = {each: hint for each, hint in get_type_hints(build).items() if each != "return"}
    words = {each: get_args(hint) for each, hint in hints.items() if get_origin(hint) is Literal}
    words["verb"] = tuple(verb.name for verb in VERBS if verb.durable or name == "bridge_request")
    for arguments in itertools.product(*(words.get(h, (h,)) for h in hints if h != "caller")):
        named = (Caller("principal"),) if name == "bridge_request" and arguments[-1] in CALLED_BY else ()
        yield build(*arguments, *named).translate(str.maketrans("", "", "{}"))


@pytest.mark.parametrize("name", builders())
def test_what_a_builder_makes_is_in_the_catalog(name: str) -> None:
    for subject in made_by(name):
        if "*" in subject or ">" in subject:
            assert any(covers(subject, subject_of(entry, subject)) for entry in ENTRIES), subject
        else:
            assert find(subject) is not None, f"{name} makes {subject}: add an entry to schema/interface/catalog.py"


@pytest.mark.parametrize("pattern", PATTERNS)
def test_each_pattern_is_of_something(pattern: str) -> None:
    assert any(covers(pattern, subject_of(entry)) for entry in ENTRIES)


def test_no_subject_is_made_outside_the_module_of_subjects() -> None:
    """So that no subject can be missing from the test above."""
    found = {
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for room in ROOMS
        for path in (ROOT / room).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.match(r"cg\.|cg$", node.value)
    }
    allowed = {"schema/wire/subjects.py", "schema/interface/entries.py"}  # the latter describes all of them
    outside = {each for each in found if each.rpartition(":")[0] not in allowed}
    assert not outside, "make subjects in schema/wire/subjects.py"


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_an_entry_is_found_by_its_subjects_alone(entry: Entry) -> None:
    subject = subject_of(entry)
    assert subjects.parse(subject)
    assert [e for e in ENTRIES if e.pattern.fullmatch(subject)] == [entry]
    assert set(entry.parameters) <= set(PARAMETERS)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_streams_keep_what_travels_by_jetstream_and_nothing_else(entry: Entry) -> None:
    kept = {
        subjects.CMD_STREAM: subjects.CMD_SUBJECTS,
        subjects.ASK_STREAM: subjects.ASK_SUBJECTS,
        subjects.EVT_STREAM: (subjects.EVT_SUBJECTS,),
    }
    by = [stream for stream in kept for pattern in kept[stream] if covers(pattern, subject_of(entry))]
    assert by == ([] if entry.stream is None else [entry.stream])


def test_names_differ() -> None:
    assert len({entry.name for entry in ENTRIES}) == len(ENTRIES)


def test_the_table_of_the_protocol_is_the_catalog() -> None:
    """Each subject of §5 has an entry or is known not to be spoken yet, and each entry is of a subject of §5."""
    section = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8").split("\n## 5. ")[1].split("\n## ")[0]
    listed = {
        each
        for row in re.findall(r"^\| .*", section, re.MULTILINE)
        for each in re.findall(r"`((?:cmd|req|evt|str)\.[^`]+)`", row)
    }
    assert listed >= NOT_SPOKEN
    patterns = {each: listed_pattern(each) for each in listed - NOT_SPOKEN}
    spoken = {e.subject for e in ENTRIES} | {f"{e.subject}.{{principal}}" for e in ENTRIES if e.may_name_caller}
    missing = {each for each, pattern in patterns.items() if not any(map(pattern.fullmatch, spoken))}
    assert not missing, "add entries to schema/interface/catalog.py"
    unlisted = {e.subject for e in ENTRIES if not any(pattern.fullmatch(e.subject) for pattern in patterns.values())}
    assert not unlisted, "add rows to docs/protocol.md §5"


def listed_pattern(subject: str) -> re.Pattern[str]:
    """Matches the subjects of entries; `{verb}` is any verb, whose name may have two tokens."""
    return re.compile(re.escape(subject).replace(r"\{verb\}", "[a-z._]+"))


def test_each_header_is_described() -> None:
    models = [model for model in vars(catalog).values() if isinstance(model, type) and issubclass(model, Headers)]
    described = {info.alias for model in models for info in model.model_fields.values()}
    names = {text for name, text in vars(headers).items() if name.isupper() and isinstance(text, str)}
    assert described == names - {headers.PARENT_SPAN}  # which is in rows only


def test_the_first_tokens_are_the_prefix() -> None:
    assert all(entry.address.startswith(f"{PREFIX}.") for entry in ENTRIES)
    assert {entry.transport for entry in ENTRIES} == set(Transport)
