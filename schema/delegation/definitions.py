"""The delegating tools as the kernel offers them where a project has no row of their name (protocol §12)."""

from collections.abc import Mapping
from functools import cache
from typing import get_args

from turnstile.schema.base import JsonObject
from turnstile.schema.delegation.arguments import Join, Losers
from turnstile.schema.tools import ToolRow
from turnstile.schema.wire import subjects

_TEXT: JsonObject = {"type": "string"}
_FLAG: JsonObject = {"type": "boolean"}
_BOX: JsonObject = {"type": "string", "description": "A box of yours whose cards the agent reads first."}
_FIELDS: JsonObject = {
    "type": "array",
    "description": "Fields that the answer must have.",
    "items": {
        "type": "object",
        "properties": {"name": _TEXT, "description": _TEXT},
        "required": ["name"],
        "additionalProperties": False,
    },
}
_COUNT: JsonObject = {"type": "integer", "minimum": 0}
_BUDGET: JsonObject = {
    "type": "object",
    "description": "What the agent and all that it asks may use, out of what you have left. Left out: what you have.",
    "properties": {
        "max_tokens": _COUNT,
        "max_cost_usd": {"type": "number", "minimum": 0},
        "max_turns": _COUNT,
        "max_seconds": _COUNT,
    },
    "additionalProperties": False,
}
_TASK: JsonObject = {
    "target_strategy": {
        "type": "string",
        "enum": ["new", "reuse", "clone"],
        "description": "new: an agent is made of a profile. reuse: an agent that is there. clone: one made like it.",
    },
    "target_ref": {"type": "string", "description": "For new the name of a profile, else the id of an agent."},
    "instruction": {"type": "string", "description": "What the agent shall do, with everything it must know."},
    "context_box_id": _BOX,
    "result_fields": _FIELDS,
    "output_schema": {
        "type": "object",
        "description": "A JSON schema: the agent's answer is a value that matches it. Not with result_fields.",
    },
    "budget": _BUDGET,
}
_PROVISIONED = (
    *("agent_id", "profile_name", "profile_box_id", "derived_from", "display_name"),
    *("owner_agent_id", "worker_target", "active_channel_id"),
)
_NEEDED = ["target_strategy", "target_ref", "instruction"]


def _object(properties: JsonObject, required: list[str]) -> JsonObject:
    return {"type": "object", "properties": properties, "required": [*required], "additionalProperties": False}


def _row(name: str, description: str, parameters: JsonObject, *, ui_allowed: bool = False) -> ToolRow:
    return ToolRow(
        tool_name=name,
        description=description,
        parameters=parameters,
        target_subject=subjects.pmo_target(name),
        options={"ui_allowed": True} if ui_allowed else {},
    )


@cache
def kernel_tools() -> Mapping[str, ToolRow]:
    """The tools by name."""
    rows = (
        _row(
            "delegate_async",
            "Give a task to another agent. Answers at once with the ids of its turn; with wait, with its result.",
            _object({**_TASK, "wait": _FLAG}, _NEEDED),
            ui_allowed=True,
        ),
        _row(
            "ask_expert",
            "Ask an expert, and get the answer. With include_history the expert reads what you have done so far.",
            _object(
                {
                    "expert_profile": _TEXT,
                    "question": _TEXT,
                    "include_history": _FLAG,
                    "wait": _FLAG,
                    "budget": _BUDGET,
                },
                ["expert_profile", "question"],
            ),
        ),
        _row(
            "launch_principal",
            "Start an agent that works on its own. Answers at once with the ids of its turn.",
            _object({"profile_name": _TEXT, "instruction": _TEXT, "budget": _BUDGET}, ["profile_name", "instruction"]),
        ),
        _row(
            "fork_join",
            "Give tasks to several agents at once, and get all their results, in the order of the tasks.",
            _object(
                {
                    "tasks": {
                        "type": "array",
                        "items": _object({**_TASK, "label": _TEXT}, _NEEDED),
                        "description": "The tasks; an agent is asked at most once.",
                    },
                    "fail_fast": {"type": "boolean", "description": "Whether the first failure ends all."},
                    "deadline_seconds": {"type": "number", "description": "When to answer with what there is."},
                    "join": {
                        "type": "string",
                        "enum": [*get_args(Join)],
                        "description": "Enough are: all, any one, first_k (k of them), quorum (more than half, or k).",
                    },
                    "k": {"type": "integer", "description": "With first_k and quorum: how many successes are enough."},
                    "losers": {
                        "type": "string",
                        "enum": [*get_args(Losers)],
                        "description": "What becomes of those that are not over when enough have succeeded.",
                    },
                },
                ["tasks"],
            ),
        ),
        _row(
            "provision_agent",
            "Make sure that an agent exists: create it with a profile, or derive it from another agent.",
            _object(
                {
                    "action": {"type": "string", "enum": ["ensure", "create", "derive"]},
                    **dict.fromkeys(_PROVISIONED, _TEXT),
                    "tags": {"type": "array", "items": _TEXT},
                    "metadata": {"type": "object", "additionalProperties": True},
                },
                ["action", "agent_id"],
            ),
            ui_allowed=True,
        ),
        _row(
            "wake_me",
            "Go on with this conversation later: you get the instruction then. Answers at once with the time.",
            _object(
                {
                    "instruction": {"type": "string", "description": "What you shall do then."},
                    "at": {"type": "string", "description": "When, as 2027-01-31T09:00:00+01:00. Or in_seconds."},
                    "in_seconds": {"type": "number", "description": "After so many seconds. Or at."},
                },
                ["instruction"],
            ),
        ),
    )
    return {row.tool_name: row for row in rows}
