"""An entry of the catalog: a subject with senders, receivers, transport, payload and reply. Pure."""

import re
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from pydantic import BaseModel

from turnstile.schema.verbs import Party
from turnstile.schema.wire import subjects

PREFIX = f"cg.{subjects.VERSION}.{{project_id}}.{{channel_id}}"

PARAMETERS = {
    "project_id": "The tenant. It always holds: no header or argument names another.",
    "channel_id": "The visibility domain inside the project: `public`, `u_{user}` or `t_{thread}`.",
    "agent_id": "The agent that the message is about.",
    "worker_target": "Which workers are rung: the agent's routing field, such as `worker_generic`.",
    "target": "The tool service, by the tool's `target_subject`.",
    "suffix": "The tool in its service, by the tool's `target_subject`; it may have more than one token.",
    "tool_call_id": "The call.",
    "principal": "Who asks, as NATS permissions fix it; a first token `operator` may act on what others asked for.",
    "tool": "The delegating tool: delegate_async, ask_expert, launch_principal, provision_agent or fork_join.",
}
"""The parameters of subjects: each is one token of A-Z a-z 0-9 _ -, at most 128 characters; `suffix` and `principal`
are one or more."""
_WORD = r"[A-Za-z0-9_-]{1,128}"
_MANY: dict[str, str] = dict.fromkeys(("suffix", "principal"), rf"{_WORD}(?:\.{_WORD})*")


class Transport(StrEnum):
    """The transport of a message."""

    JETSTREAM = "jetstream"
    """JetStream: a stream stores the message."""
    CORE = "core"
    """Core NATS: the message is lost if nobody subscribes."""
    REQUEST = "request"
    """Core NATS request/reply."""
    MICRO = "micro"
    """Request/reply with the NATS micro service `turnstile`: it can be discovered, and its replicas share requests."""


@dataclass(frozen=True)
class Entry:
    """One subject. `subject` is the part after the prefix, with ids in braces."""

    subject: str
    summary: str
    payload: type[BaseModel] | None
    """None: the message is empty."""
    headers: type[BaseModel] | None
    senders: tuple[Party, ...] = (Party.BRIDGE, Party.WORKER)
    receivers: tuple[Party, ...] = (Party.CLIENT,)
    reply: type[BaseModel] | None = None
    transport: Transport = Transport.JETSTREAM
    section: str = "5"
    """Of docs/protocol.md."""
    may_name_caller: bool = False
    """Whether the principal may follow as the subject's last tokens."""

    @property
    def name(self) -> str:
        """The name without ids, such as `evt.agent.task`."""
        return ".".join(part for part in self.subject.split(".") if not part.startswith("{"))

    @property
    def address(self) -> str:
        """The whole subject, with ids in braces."""
        return f"{PREFIX}.{self.subject}"

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names in braces, in order."""
        return tuple(re.findall(r"\{(\w+)\}", self.address))

    @property
    def stream(self) -> str | None:
        """The stream that stores it; None for other transports."""
        if self.transport is not Transport.JETSTREAM:
            return None
        if self.subject.startswith(("cmd.sys.bridge.", "cmd.sys.ui.")):
            return subjects.ASK_STREAM
        return subjects.CMD_STREAM if self.subject.startswith("cmd.") else subjects.EVT_STREAM

    @property
    def is_read(self) -> bool:
        """Whether the kernel reads it; then its schema describes what is accepted, else what is sent."""
        return Party.BRIDGE in self.receivers and bool({*self.senders} - {Party.BRIDGE, Party.WORKER})

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """Matches the subjects of this entry."""
        tail = rf"(?:\.{_WORD})*" if self.may_name_caller else ""
        return re.compile(r"\.".join(map(_matching, self.address.split("."))) + tail)


def _matching(part: str) -> str:
    return _MANY.get(part[1:-1], _WORD) if part.startswith("{") else re.escape(part)
