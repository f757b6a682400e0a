"""Tool files as `tool put` reads them, and calls of what they define (protocol §7.3, §10.12)."""

import json
from typing import Any

import pytest
from pydantic import ValidationError

from turnstile.rules.arguments import Patience, ReadyCall, ready
from turnstile.schema.errors import BadRequest
from turnstile.schema.ids import ChannelId, ProjectId
from turnstile.schema.tools import ToolDefinition, ToolRow, expand_subject

TOOL = "cg.v1r4.{project_id}.{channel_id}.cmd.tool.marks.call"
PMO = "cg.v1r4.{project_id}.{channel_id}.cmd.sys.pmo.internal.provision_agent"
CLOSED: dict[str, Any] = {
    "type": "object",
    "properties": {"title": {"type": "string"}},
    "required": ["title"],
    "additionalProperties": False,
}


def put(**changes: Any) -> ToolDefinition:
    """A tool as a file defines it."""
    given = {"tool_name": "mark", "description": "Mark it.", "target_subject": TOOL, "parameters": CLOSED}
    return ToolDefinition.model_validate(given | changes)


def row(tool: ToolDefinition) -> ToolRow:
    """Its row."""
    return ToolRow.model_validate(tool.model_dump(mode="json") | {"options": tool.options.model_dump(mode="json")})


def test_a_file_of_v1r4_may_say_name_have_a_dot_and_no_description() -> None:
    tool = ToolDefinition.model_validate({"name": "skills.load", "target_subject": TOOL})
    assert (tool.tool_name, tool.description) == ("skills.load", None)


def test_objects_in_options_are_the_services_own_and_are_kept() -> None:
    own = {"mode": "reader", "base_url": "https://reader.example", "auth_env": "READER_KEY"}
    tool = put(options={"reader": own, "ui_allowed": True})
    assert json.loads(tool.options.model_dump_json(exclude_defaults=True)) == {"reader": own, "ui_allowed": True}


@pytest.mark.parametrize("options", [{"ui_alowed": True}, {"suspend_timeout": 5}])
def test_what_else_is_unknown_in_options_is_a_slip(options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        put(options=options)


def test_a_forced_argument_need_not_be_named_by_closed_parameters() -> None:
    tool = put(options={"args": {"fixed": {"kind": "advice"}}, "envs": {"key": "MARK_KEY"}})
    sent = ready(row(tool), '{"title": "T", "kind": "mine"}', {}, Patience())
    assert isinstance(sent, ReadyCall)
    assert sent.arguments == {"title": "T", "kind": "advice", "key": {"$env": "MARK_KEY"}}
    refused = ready(row(tool), '{"title": "T", "other": 1}', {}, Patience())
    assert isinstance(refused, str)
    assert "'other' was unexpected" in refused


@pytest.mark.parametrize("whole", [{}, {"not": {"required": ["title"]}}, {"anyOf": [{"maxProperties": 0}]}])
def test_a_forced_argument_that_parameters_name_is_checked_and_never_quoted(whole: dict[str, Any]) -> None:
    wanted: dict[str, Any] = {"type": "object", "properties": {"title": {"type": "string"}}, **whole}
    tool = put(parameters=wanted, options={"args": {"fixed": {"title": "s3cret" if whole else 7357}}})
    refused = ready(row(tool), '{"note": 1}', {}, Patience())
    assert isinstance(refused, str)
    assert "s3cret" not in refused
    assert "7357" not in refused
    assert ("cannot be called" in refused) is not whole


def test_a_default_for_no_parameter_is_a_slip() -> None:
    with pytest.raises(ValidationError, match="defaults name arguments that parameters do not have: titel"):
        put(options={"args": {"defaults": {"titel": "x"}}})


def test_an_orchestrator_s_tool_is_put_and_called_where_v1r4_serves_it() -> None:
    tool = put(tool_name="provision_agent", target_subject=PMO)
    subject = expand_subject(tool.target_subject, ProjectId("p1"), ChannelId("public"))
    assert subject == "cg.v1r4.p1.public.cmd.sys.pmo.internal.provision_agent"


@pytest.mark.parametrize(
    ("name", "subject"),
    [
        ("provision_agent", TOOL),
        ("mark", PMO),
        ("fork_join", PMO),
        ("mark", PMO.replace("provision_agent", "mark")),
        ("submit_result", TOOL),
        ("mark", TOOL.replace("cmd.tool", "cmd.sys.bridge")),
    ],
)
def test_a_built_in_name_or_subject_is_not_for_others(name: str, subject: str) -> None:
    with pytest.raises(ValidationError):
        put(tool_name=name, target_subject=subject)


@pytest.mark.parametrize("rest", ["sys.pmo.internal.stop", "sys.bridge.stop", "sys.pmo.internal.fork_join.x", "tool.x"])
def test_a_command_goes_nowhere_else(rest: str) -> None:
    with pytest.raises(BadRequest):
        expand_subject(f"cg.v1r4.{{project_id}}.{{channel_id}}.cmd.{rest}", ProjectId("p1"), ChannelId("public"))
