"""What changed between two versions of a profile."""

from pydantic import JsonValue

from turnstile.gateway.console.fleet.profile_pages import changes
from turnstile.schema.base import JsonObject


def test_fields_that_differ_are_named_by_their_path() -> None:
    before: JsonObject = {"name": "a", "llm_config": {"model": "m1", "temperature": 0.5}, "max_steps": 16, "gone": 1}
    after: JsonObject = {"name": "a", "llm_config": {"model": "m2", "temperature": 0.5}, "max_steps": 16, "new": True}
    assert [(change.field, change.kind, change.before, change.after) for change in changes(before, after)] == [
        ("llm_config.model", "changed", "m1", "m2"),
        ("new", "added", "", "true"),
        ("gone", "removed", "1", ""),
    ]
    assert changes(before, before) == []


def test_a_long_text_is_shown_by_lines_with_what_stands_around() -> None:
    old = [f"line {number}" for number in range(40)]
    new = [*old[:20], "another", *old[21:]]
    [change] = changes({"prompt": "\n".join(old)}, {"prompt": "\n".join(new)})
    assert [(line.kind, line.text) for line in change.lines] == [
        ("left out", "…"),
        ("same", "line 18"),
        ("same", "line 19"),
        ("removed", "line 20"),
        ("added", "another"),
        ("same", "line 21"),
        ("same", "line 22"),
    ]


def test_a_list_of_names_is_compared_by_lines() -> None:
    [change] = changes({"tools": ["a", "b"]}, {"tools": ["b", "c"]})
    assert [(line.kind, line.text) for line in change.lines] == [
        ("removed", "a"),
        ("same", "b"),
        ("added", "c"),
    ]


def test_a_very_long_difference_is_cut_and_says_so() -> None:
    [change] = changes({"p": ""}, {"p": "\n".join(map(str, range(5000)))})
    assert len(change.lines) == 401
    assert change.lines[-1].kind == "left out"


def test_what_strangers_stored_is_compared_whatever_it_is() -> None:
    odd: list[JsonValue] = [None, 3, "text", [], [1, {"a": None}], {}]
    for value in odd:
        assert changes(value, value) == []
        assert isinstance(changes({"a": 1}, value), list)
