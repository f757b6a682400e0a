"""The interface documents: what is committed is what the models say, valid, and readable for a stranger."""

import re
from collections.abc import Iterator
from typing import Any, cast

import pytest
import yaml
from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError

from tests.support.paths import ROOT
from turnstile.cli.operations.schemas import asyncapi
from turnstile.schema.base import JsonObject
from turnstile.schema.cards import TextContent
from turnstile.schema.interface.asyncapi import document
from turnstile.schema.interface.catalog import ENTRIES
from turnstile.schema.interface.json_schemas import DIALECT, schemas
from turnstile.schema.interface.verb_tables import with_verbs
from turnstile.schema.wire.inbox import EnqueueRequest, ReportRequest

COMMITTED = (ROOT / "docs" / "interface" / "asyncapi.yaml").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def made() -> dict[str, JsonObject]:
    """The schemas that stand alone, by name."""
    return dict(schemas())


@pytest.fixture(scope="module")
def described() -> Any:
    """The committed AsyncAPI document."""
    return yaml.load(COMMITTED, yaml.CSafeLoader)


def parts(value: object, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every object inside, with its place."""
    if isinstance(value, dict):
        found = cast("dict[str, Any]", value)
        yield path, found
        for name, each in found.items():
            yield from parts(each, f"{path}/{name}")
    elif isinstance(value, list):
        for number, each in enumerate(cast("list[object]", value)):
            yield from parts(each, f"{path}/{number}")


def test_the_committed_files_are_what_the_models_say() -> None:
    assert asyncapi() == COMMITTED, "the interface changed: run `turnstile schema export`, and commit what it writes"
    for path, parts_of_it in (("docs/protocol.md", 1), ("deploy/nats/nats.conf", 4)):
        text = (ROOT / path).read_text(encoding="utf-8")
        assert text.count("made by `turnstile schema export`") == text.count(" end of verbs") == parts_of_it
        assert with_verbs(text) == text, path


def test_each_schema_is_valid_and_stands_alone(made: dict[str, JsonObject]) -> None:
    for name, schema in made.items():
        assert schema["$schema"] == DIALECT, name
        Draft202012Validator.check_schema(schema)
        for place, part in parts(schema):
            if isinstance(reference := part.get("$ref"), str):
                assert resolved(schema, reference) is not None, f"{name} {place}"


def test_every_model_and_every_field_is_described(made: dict[str, JsonObject]) -> None:
    """For a reader who has only the document."""
    undescribed: list[str] = []
    for name, schema in made.items():
        for place, part in parts(schema, name):
            if "title" in part and "type" in part and "description" not in part:
                undescribed.append(place)
            if part.get("type") == "object" and isinstance(fields := part.get("properties"), dict):
                properties = cast("dict[str, dict[str, Any]]", fields)
                undescribed += [
                    f"{place}: {field}"
                    for field, value in properties.items()
                    if "description" not in value and "const" not in value
                ]
    assert not undescribed, "give them docstrings"
    assert [name for name, schema in made.items() if re.search(r"\b_[A-Z]", str(schema))] == [], "private names"


def test_what_strangers_write_has_no_unknown_fields(made: dict[str, JsonObject]) -> None:
    for name, schema in made.items():
        if name.endswith(("Request", "Command")) or name in {"Profile", "ToolDefinition", "ListenerFile"}:
            assert schema["additionalProperties"] is False, name


@pytest.mark.parametrize(
    ("name", "value", "fault"),
    [
        ("EnqueueRequest", {"agent_id": "a", "instruction": "b"}, None),
        ("EnqueueRequest", {"agent_id": "a", "instruction": ""}, "not valid under any"),
        ("EnqueueRequest", {"agent_id": "a", "turn_epoch": 1}, "unexpected"),
        ("EnqueueCommand", {"agent_id": "a", "request_id": "r"}, None),
        ("EnqueueRequest", {"agent_id": "a", "request_id": "r"}, "unexpected"),
        ("ReportRequest", {"tool_call_id": "c", "status": "success"}, None),
        ("ReportRequest", {"correlation_id": "c", "status": "success"}, None),
        ("ReportRequest", {"status": "success"}, "not valid under any"),
        ("ReportRequest", {"tool_call_id": "c", "correlation_id": "c", "status": "success"}, "valid under each"),
        ("CardContent", {"__type__": "TextContent", "text": "t"}, None),
        ("CardContent", {"text": "t"}, "not valid under any"),
        ("ToolCommandPayload", {"tool_call_card_id": "c", "tool_name": "t", "after_execution": "suspend"}, None),
        (
            "ToolCommandPayload",
            {"tool_call_card_id": "c", "tool_name": "t", "after_execution": "suspend", "agent_id": "a"},
            "unexpected",
        ),
    ],
)
def test_a_schema_takes_what_the_model_takes(
    made: dict[str, JsonObject], name: str, value: object, fault: str | None
) -> None:
    validator: Any = Draft202012Validator(made[name])  # its `validate` is not typed
    if fault is None:
        validator.validate(value)
    else:
        with pytest.raises(ValidationError, match=fault):
            validator.validate(value)
    models = {"EnqueueRequest": EnqueueRequest, "ReportRequest": ReportRequest}
    if name in models:
        if fault is None:
            models[name].model_validate(value)
        else:
            with pytest.raises(ValueError, match=name):
                models[name].model_validate(value)


def test_docstrings_below_fields_and_members_become_descriptions(made: dict[str, JsonObject]) -> None:
    content: Any = made["CardContent"]
    assert content["$defs"][TextContent.__name__]["properties"]["text"]["description"] == "The text."
    reply: Any = made["ReplyEvent"]
    assert "`ended`: A handler returned nothing." in reply["$defs"]["EndReason"]["description"]
    assert reply["properties"]["from"]["description"] == "The listener that answered; null if none did."


# The structure of the AsyncAPI document: its own schema is in no Python package that is kept well.


def resolved(whole: object, reference: str) -> Any:
    """What a reference names in this document."""
    assert reference.startswith("#/"), reference
    found: Any = whole
    for part in reference.removeprefix("#/").split("/"):
        found = found[part]
    return found


def test_asyncapi_has_what_its_specification_requires(described: Any) -> None:
    assert document() == described
    assert described["asyncapi"] == "3.0.0"
    assert {"title", "version"} <= set(described["info"])
    assert set(described) == {"asyncapi", "info", "defaultContentType", "channels", "operations", "components"}
    for section in (described["channels"], described["operations"], *described["components"].values()):
        assert all(re.fullmatch(r"[A-Za-z0-9._-]+", name) for name in section)


def test_asyncapi_refers_only_to_what_is_there(described: Any) -> None:
    for place, each in parts(described):
        if isinstance(reference := each.get("$ref"), str):
            assert resolved(described, reference) is not None, place
            assert set(each) == {"$ref"} or place.startswith("/components/schemas/"), place


def test_the_schemas_of_asyncapi_are_those_that_stand_alone(described: Any, made: dict[str, JsonObject]) -> None:
    held = described["components"]["schemas"]
    assert made.keys() <= held.keys()
    for name, schema in made.items():
        alone = {key: value for key, value in schema.items() if key not in {"$schema", "$defs"}}
        assert str(held[name]).replace("#/components/schemas/", "#/$defs/") == str(alone), name


def test_a_channel_of_asyncapi_names_its_parameters_and_messages(described: Any) -> None:
    for name, channel in described["channels"].items():
        assert {"address", "messages"} <= set(channel)
        address = channel["address"] or ""
        assert (channel["address"] is None) == name.endswith(".reply") or name == "evt.sys.pump.reply"
        assert re.findall(r"\{(\w+)\}", address) == list(channel.get("parameters", {}))
        for message in channel["messages"].values():
            assert resolved(described, message["$ref"])["name"] == name


def test_an_operation_of_asyncapi_uses_messages_of_its_channel(described: Any) -> None:
    for name, operation in described["operations"].items():
        role, action, _ = name.split(".", 2)
        assert action == operation["action"]
        assert action in {"send", "receive"}
        assert [tag["name"] for tag in operation["tags"]] == [role]
        for each in (operation, *([operation["reply"]] if "reply" in operation else [])):
            channel = each["channel"]["$ref"]
            assert all(message["$ref"].startswith(f"{channel}/messages/") for message in each["messages"])


def test_every_entry_is_sent_and_received_in_asyncapi(described: Any) -> None:
    actions: dict[str, set[str]] = {}
    for operation in described["operations"].values():
        actions.setdefault(operation["channel"]["$ref"], set()).add(operation["action"])
    assert actions == {f"#/channels/{entry.name}": {"send", "receive"} for entry in ENTRIES}
