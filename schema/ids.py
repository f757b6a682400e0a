"""Identifiers: their types, how they are generated and derived, and which texts are valid subject tokens.

Enqueue generates `agent_turn_id` and `inbox_id` (UUIDv7, so that they sort by time). All other ids of a turn are
derived from these, so that a retried transition finds its own rows instead of writing them twice (protocol §6, §10).
"""

import hashlib
import json
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
SteerId = NewType("SteerId", str)
ReceiverId = NewType("ReceiverId", str)
"""Something said to a turn while it runs; the card of the same id has its text."""
BoxId = NewType("BoxId", str)
"""A uuid in its canonical text form."""
ArtifactId = NewType("ArtifactId", str)
"""`file-` and a uuid; CommonGround v1r4 names its own otherwise."""
InterruptId = NewType("InterruptId", str)
"""`int-{tool_call_id}-{n}`: the n-th question about a call; `int-{tool_call_id}~{key}`: one that its tool asks."""
ConversationId = NewType("ConversationId", str)
"""A caller's name for a conversation with an agent of a channel; empty for the one that a profile's memory keeps."""

_LONGEST_NAME = 512
_TOKEN = re.compile(r"[A-Za-z0-9_-]{1,128}\Z")

EXCLUSIVE_PREFIX = "svc1_"
"""A worker target with this prefix is exclusive: one process serves it (protocol §8)."""
_EXCLUSIVE = re.compile(rf"{EXCLUSIVE_PREFIX}[A-Za-z0-9-]+(?:_[A-Za-z0-9-]+)+\Z")


def uuid7() -> str:
    """A UUIDv7 in canonical text: milliseconds, 12 bits of their fraction (RFC 9562 §6.2, method 3), random bits.

    Ids that one process makes more than 250 ns apart sort as they were made.
    """
    millis, rest = divmod(time.time_ns(), 1_000_000)
    value = (millis << 80) | (0x7 << 76) | ((rest << 12) // 1_000_000 << 64) | int.from_bytes(os.urandom(8))
    value = (value & ~(0x3 << 62)) | (0x2 << 62)
    return str(uuid.UUID(int=value))


def first_id(moment: datetime) -> str:
    """The smallest id that `uuid7` can return at `moment`."""
    return str(uuid.UUID(int=(max(0, int(moment.timestamp() * 1000)) << 80)))


def new_steer_id() -> SteerId:
    """A new steer's id, which its card has too."""
    return SteerId(f"steer-{uuid7()}")


def asked_steer_id(project: ProjectId, correlation_id: str) -> SteerId:
    """The id of the steer that an enqueue becomes, derived from the enqueue's correlation id."""
    return SteerId(f"steer-{_derived_box_id(f'steer/{project}/{correlation_id}')}")


def new_artifact_id() -> ArtifactId:
    """A new file's id."""
    return ArtifactId(f"file-{uuid7()}")


def new_box_id() -> BoxId:
    """A new box id."""
    return BoxId(uuid7())


def forked_box_id(project: ProjectId, correlation_id: str) -> BoxId:
    """The id of a fork's box, derived from the caller's correlation id."""
    return _derived_box_id(f"fork/{project}/{correlation_id}")


def made_box_id(project: ProjectId, correlation_id: str) -> BoxId:
    """The id of a box made of parts, derived from the caller's correlation id."""
    return _derived_box_id(f"make/{project}/{correlation_id}")


def _derived_box_id(name: str) -> BoxId:
    """A UUIDv8 (RFC 9562) that sorts after all ids of `uuid7`, so a walk along ids by time does not take it for old."""
    digest = int.from_bytes(hashlib.sha256(name.encode()).digest()[:16])
    value = (digest & ~(0xF << 76) & ~(0x3 << 62)) | (0x8 << 76) | (0x2 << 62) | (1 << 127)
    return BoxId(str(uuid.UUID(int=value)))


def instance_id(project: ProjectId, channel: ChannelId, profile_name: str, kind: str, name: str) -> AgentId:
    """The id of a profile's instance for the conversation or the request (which, says `kind`) of that name.

    It begins with the profile's name as far as that can be part of a subject.
    """
    return _named_after(profile_name, [project, channel, profile_name.lower(), kind, name])


def spawned_agent_id(profile_name: str, origin: str, task_index: int) -> AgentId:
    """The id of the agent made for a task of `origin` (a call, or what its tool asks); a repeat means the same."""
    return _named_after(profile_name, ["spawned", origin, str(task_index)])


def _named_after(profile_name: str, parts: list[str]) -> AgentId:
    digest = hashlib.sha256(json.dumps(parts).encode()).hexdigest()
    slug = re.sub(r"[^a-z0-9]+", "-", profile_name.lower())[:40].strip("-")
    return AgentId("-".join(filter(None, (slug, digest[:24]))))


def token(value: str, name: str) -> str:
    """Return `value` if it is a valid subject token (protocol §5); else raises `BadRequest`, which names the field."""
    if not _TOKEN.match(value):
        raise BadRequest(f"{name} must be 1 to 128 characters of A-Z a-z 0-9 _ -, got {value[:60]!r}")
    return value


def conversation_named(text: str, name: str = "conversation_id") -> ConversationId:
    """The conversation that this text names: itself where it is a token, else a token derived from it.

    Raises `BadRequest`, which names the field, for one that is empty, has more than 512 bytes or cannot be printed.
    """
    if _TOKEN.match(text):
        return ConversationId(text)
    data = text.encode("utf-8", "surrogatepass")
    if not 0 < len(data) <= _LONGEST_NAME or not text.isprintable():
        raise BadRequest(f"{name} must be 1 to {_LONGEST_NAME} bytes of printable text, got {text[:60]!r}")
    return ConversationId(f"c-{hashlib.sha256(data).hexdigest()[:32]}")


def end_user(value: str, name: str) -> str:
    """`value` as the name of an end user; raises `BadRequest` for what is empty, long or cannot be printed."""
    if not 0 < len(value.encode("utf-8", "surrogatepass")) <= _LONGEST_NAME or not value.isprintable():
        raise BadRequest(f"{name} must be 1 to {_LONGEST_NAME} bytes of printable text, got {value[:60]!r}")
    return value


def worker_target(value: str, name: str) -> str:
    """Return `value` if it is a worker target; else raises `BadRequest`, which names the field.

    An exclusive one is `svc1_{service}_{scope}`: whose it is, and where, can be read from it.
    """
    if is_exclusive(token(value, name)) and not _EXCLUSIVE.match(value):
        raise BadRequest(f"{name} must be svc1_{{service}}_{{scope}}, such as svc1_tally_main, got {value[:60]!r}")
    return value


def is_exclusive(worker_target: str) -> bool:
    """Whether only one process at a time may serve the target."""
    return worker_target.startswith(EXCLUSIVE_PREFIX)


def split_targets(worker_targets: Iterable[str]) -> tuple[list[str], list[str]]:
    """The shared targets and the exclusive ones."""
    targets = list(worker_targets)
    return [t for t in targets if not is_exclusive(t)], [t for t in targets if is_exclusive(t)]


def box_id(value: str, name: str) -> BoxId:
    """`value` as a box id; raises `BadRequest`, which names the field, if it is no uuid."""
    try:
        return BoxId(str(uuid.UUID(value)))
    except ValueError:
        raise BadRequest(f"{name} must be a uuid, got {value[:60]!r}") from None


def step_id(turn: AgentTurnId, number: int) -> StepId:
    """The id of a turn's step, counted from 1."""
    return StepId(f"{turn}-s{number}")


def era_of(epoch: int) -> int:
    """A number for the era of the ledger in which a lease was made or carried over; 0 in the first (protocol §16).

    Floors of later eras are seconds since 2026, times 2^20: no epoch of the first comes near.
    """
    return epoch >> 20 if epoch >= 1 << 40 else 0


def in_era(name: str, epoch: int) -> str:
    """A derived name that differs between eras: what a lost history named is not taken for what came instead."""
    return f"{name}-{era_of(epoch)}" if era_of(epoch) else name


def tool_call_id(step: StepId, index: int, epoch: int) -> ToolCallId:
    """The kernel's id of a call: unique in the project, 31 characters, safe on every provider (protocol §10).

    A step that a lost history committed is made again in a later era, with other calls.
    """
    digest = hashlib.sha256(in_era(f"{step}/{index}", epoch).encode()).hexdigest()
    return ToolCallId(f"call_{digest[:26]}")


def interrupt_id(call: ToolCallId, number: int = 1) -> InterruptId:
    """The id of a question about a call, counted from 1."""
    return InterruptId(f"int-{call}-{number}")


def asked_interrupt_id(call: ToolCallId, key: str) -> InterruptId:
    """The id of what a call's tool asks a person by this key."""
    return InterruptId(f"int-{call}~{key}")


def step_card_id(step: StepId, name: str) -> CardId:
    """The id of a card that a step makes once, such as its `thought`."""
    return CardId(f"{step}-{name}")


def turn_card_id(turn: AgentTurnId, name: str) -> CardId:
    """The id of a card that a turn makes once, such as its `deliverable`."""
    return CardId(f"{turn}-{name}")


def workflow_id(turn: AgentTurnId) -> str:
    """The Temporal workflow id of a turn."""
    return f"turn-{turn}"
