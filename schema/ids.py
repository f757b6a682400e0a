"""Identifiers: their types, how they are drawn and derived, and what may become a subject token.

Enqueue draws `agent_turn_id` and `inbox_id` (UUIDv7, so that they sort by time). Every other id of a turn is derived
from these, so that a retried transition finds its own effect instead of making it twice (protocol §6, §10).
"""

import hashlib
import os
import re
import time
import uuid
from collections.abc import Iterable
from datetime import datetime
from typing import NewType

from turnstile.schema.errors import BadRequest

ProjectId = NewType("ProjectId", str)
ChannelId = NewType("ChannelId", str)
AgentId = NewType("AgentId", str)
AgentTurnId = NewType("AgentTurnId", str)
InboxId = NewType("InboxId", str)
StepId = NewType("StepId", str)
ToolCallId = NewType("ToolCallId", str)
CardId = NewType("CardId", str)
BoxId = NewType("BoxId", str)
"""A uuid in its canonical text form."""

_TOKEN = re.compile(r"[A-Za-z0-9_-]{1,128}\Z")

EXCLUSIVE_PREFIX = "svc1_"
"""A worker target that begins so belongs to one process (protocol §8)."""


def uuid7() -> str:
    """A UUIDv7 (RFC 9562) in canonical text: 48 bits of milliseconds, then random bits."""
    millis = time.time_ns() // 1_000_000
    value = (millis << 80) | int.from_bytes(os.urandom(10))
    value = (value & ~(0xF << 76)) | (0x7 << 76)
    value = (value & ~(0x3 << 62)) | (0x2 << 62)
    return str(uuid.UUID(int=value))


def first_id(moment: datetime) -> str:
    """The least id that `uuid7` can draw at the moment."""
    return str(uuid.UUID(int=(max(0, int(moment.timestamp() * 1000)) << 80)))


def new_box_id() -> BoxId:
    """A fresh box id."""
    return BoxId(uuid7())


def forked_box_id(project: ProjectId, correlation_id: str) -> BoxId:
    """The box of a fork that its caller has named (UUIDv8, RFC 9562).

    It sorts after all that `uuid7` draws, with strangers' ids: what walks along ids in time does not take it for old.
    """
    digest = int.from_bytes(hashlib.sha256(f"fork/{project}/{correlation_id}".encode()).digest()[:16])
    value = (digest & ~(0xF << 76) & ~(0x3 << 62)) | (0x8 << 76) | (0x2 << 62) | (1 << 127)
    return BoxId(str(uuid.UUID(int=value)))


def token(value: str, name: str) -> str:
    """`value`, if it may become a subject token (protocol §5); raises `BadRequest` naming the field otherwise."""
    if not _TOKEN.match(value):
        raise BadRequest(f"{name} must be 1 to 128 characters of A-Z a-z 0-9 _ -, got {value[:60]!r}")
    return value


def is_exclusive(worker_target: str) -> bool:
    """Whether one process at a time serves it."""
    return worker_target.startswith(EXCLUSIVE_PREFIX)


def split_targets(worker_targets: Iterable[str]) -> tuple[list[str], list[str]]:
    """Those that any number of processes serve, and those that belong to one."""
    targets = list(worker_targets)
    return [each for each in targets if not is_exclusive(each)], [each for each in targets if is_exclusive(each)]


def box_id(value: str, name: str) -> BoxId:
    """`value` as a box id; raises `BadRequest` naming the field if it is no uuid."""
    try:
        return BoxId(str(uuid.UUID(value)))
    except ValueError:
        raise BadRequest(f"{name} must be a uuid, got {value[:60]!r}") from None


def step_id(turn: AgentTurnId, number: int) -> StepId:
    """The id of a turn's step, counted from 1."""
    return StepId(f"{turn}-s{number}")


def tool_call_id(step: StepId, index: int) -> ToolCallId:
    """The kernel's id of a call: unique in the project, 31 characters, safe on every provider (protocol §10)."""
    digest = hashlib.sha256(f"{step}/{index}".encode()).hexdigest()
    return ToolCallId(f"call_{digest[:26]}")


def step_card_id(step: StepId, name: str) -> CardId:
    """The id of a card that a step makes once, such as its `thought`."""
    return CardId(f"{step}-{name}")


def turn_card_id(turn: AgentTurnId, name: str) -> CardId:
    """The id of a card that a turn makes once, such as its `deliverable`."""
    return CardId(f"{turn}-{name}")


def workflow_id(turn: AgentTurnId) -> str:
    """The Temporal workflow id of a turn."""
    return f"turn-{turn}"
