"""`agent_steps.metadata`: rows keep their keys, whoever wrote them, and what does not parse ends nothing."""

import json

import pytest
from pydantic import TypeAdapter

from turnstile.schema.base import JsonObject
from turnstile.schema.step_metadata import ContinueMetadata, EndMetadata, StepMetadata, SuspendMetadata

METADATA: TypeAdapter[StepMetadata] = TypeAdapter(StepMetadata)
ASKED: JsonObject = {
    "new_card_ids": ["t-s1-thought"],
    "timing": {"queue_delay_ms": 1, "step_ms": 2, "first_token_ms": None, "e2e_ms": 3, "suspended_ms": 4},
    "llm_usage": {"prompt_tokens": 7},
    "llm_response_cost": None,
    "attempts": [{"attempt": 1, "model": "m", "usage": {"prompt_tokens": 7}}],
}
COMMAND: JsonObject = {
    "tool_call_id": "t-s1-c0",
    "tool_name": "search",
    "tool_call_card_id": "t-s1-c0-call",
    "after_execution": "suspend",
    "subject": "cg.v1r4.p.public.cmd.tool.search.run",
}


@pytest.mark.parametrize(
    ("row", "kind"),
    [
        (ASKED | {"next": "continue", "finish_reason": "stop", "turn_config": {"max_steps": 2}}, ContinueMetadata),
        (ASKED | {"next": "suspend", "finish_reason": "tool_calls", "commands": [COMMAND]}, SuspendMetadata),
        (ASKED | {"next": "end", "finish_reason": "length", "truncated": "length"}, EndMetadata),
        (ASKED | {"next": "end", "error_code": "model_timeout", "llm_response_cost": 0.25}, EndMetadata),
        ({"next": "end", "new_card_ids": ["a service's"], "error_code": "late"}, EndMetadata),
    ],
)
def test_a_row_of_the_version_before_is_read_and_written_alike(row: JsonObject, kind: type[StepMetadata]) -> None:
    read = METADATA.validate_json(json.dumps(row))
    assert type(read) is kind
    assert json.loads(read.model_dump_json()) == row


@pytest.mark.parametrize("row", ["{}", '{"next": "elsewhere"}', '{"next": "suspend", "commands": [{}]}', "[]"])
def test_a_stranger_s_row_reads_as_a_step_that_another_follows(row: str) -> None:
    assert METADATA.validate_json(row) == ContinueMetadata()
