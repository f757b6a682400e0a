"""Who asks: callers of verbs (protocol §13.4), and the gateway's roles and bearer tokens as text (§14.3). Pure.

A token is `tsk_{token_id}_{secret}`. The id is public: the ledger records it as `token.{token_id}` beside what was done
with it. The secret has 256 random bits, so a plain hash of it is enough, and nobody can read it out of the ledger.
"""

import hashlib
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NewType

from turnstile.schema.errors import BadRequest
from turnstile.schema.ids import ChannelId, ProjectId, token

TokenId = NewType("TokenId", str)
_TOKEN = re.compile(r"tsk_([0-9a-f]{20})_([A-Za-z0-9_-]{43})\Z")


_OPERATES = "operator"
_LONGEST_NAME = 128


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks a verb, as the last tokens of its subject name them: NATS permissions fix these, and no header does."""

    name: str
    """What the ledger keeps: `alice`, `token.{token_id}`. It may have several tokens."""
    operates: bool = False
    """Whether the caller may act on what others asked for. In the subject it is a first token `operator`."""

    @property
    def tokens(self) -> str:
        """What follows the verb in the subject."""
        return f"{_OPERATES}.{self.name}" if self.operates else self.name

    @classmethod
    def read(cls, tokens: Sequence[str]) -> "Caller":
        """The caller that these tokens of a subject name; raises `BadRequest` if they name none."""
        operates = bool(tokens) and tokens[0] == _OPERATES
        named = tokens[1:] if operates else tokens
        name = ".".join(token(part, "the caller") for part in named)
        if not 0 < len(name) <= _LONGEST_NAME:
            raise BadRequest(f"the caller must have a name of at most {_LONGEST_NAME} characters")
        return cls(name, operates)


class GatewayRole(StrEnum):
    """What a token is for. Each may do what those before it may, but for `approver`, who asks for no turns."""

    VIEWER = "viewer"
    CLIENT = "client"
    APPROVER = "approver"
    OPERATOR = "operator"


class Right(StrEnum):
    """What a request needs."""

    READ = "read"
    ASK = "ask"
    """Enqueue and stop turns."""
    DECIDE = "decide"
    """Answer what turns ask people."""
    OPERATE = "operate"
    """Change agents, profiles and tools."""


RIGHTS: dict[GatewayRole, frozenset[Right]] = {
    GatewayRole.VIEWER: frozenset({Right.READ}),
    GatewayRole.CLIENT: frozenset({Right.READ, Right.ASK}),
    GatewayRole.APPROVER: frozenset({Right.READ, Right.DECIDE}),
    GatewayRole.OPERATOR: frozenset(Right),
}


class Detail(StrEnum):
    """What of a project not everybody sees who may read: the one list, for every surface (protocol §14.3)."""

    PROMPTS = "prompts"
    """System prompts, what follows them, offered tools and profile cards."""
    WIRING = "wiring"
    """Options of tools that models never see: arguments that are fixed, and the names of `envs`."""
    ADDED = "added"
    """The arguments of a call that its tool's options added: what is fixed, and the names of env variables."""


SEEN_BY: dict[Detail, frozenset[GatewayRole]] = {
    Detail.PROMPTS: frozenset({GatewayRole.OPERATOR}),
    Detail.WIRING: frozenset({GatewayRole.OPERATOR}),
    Detail.ADDED: frozenset({GatewayRole.APPROVER, GatewayRole.OPERATOR}),
}
"""The roles that see a detail, where their token is for the whole project: a channel's sees none."""


@dataclass(frozen=True, slots=True)
class Principal:
    """Who asks: a token, its project, and the one channel that it is for, if any."""

    token_id: TokenId
    project_id: ProjectId
    channel_id: ChannelId | None
    role: GatewayRole

    @property
    def sender(self) -> str:
        """`CG-Sender` of what it asks for: cards, identity edges and reasons of stops name it."""
        return self.caller.name

    @property
    def caller(self) -> Caller:
        """Who it is for the bridge's verbs; an operator may act on what others asked for."""
        return Caller(f"token.{self.token_id}", self.may(Right.OPERATE))

    def may(self, right: Right) -> bool:
        """Whether its role has this right."""
        return right in RIGHTS[self.role]

    def sees_detail(self, detail: Detail) -> bool:
        """Whether it may see such a detail of the project."""
        return self.channel_id is None and self.role in SEEN_BY[detail]

    @property
    def sees_added(self) -> bool:
        """Whether it sees what tools' options added to calls."""
        return self.sees_detail(Detail.ADDED)

    def sees(self, channel: str | None) -> bool:
        """Whether it may see what belongs to this channel; None belongs to the project."""
        return self.channel_id is None or channel == self.channel_id


@dataclass(frozen=True, slots=True)
class Secret:
    """A token as its holder has it."""

    token_id: TokenId
    secret: str

    @property
    def text(self) -> str:
        """What stands behind `Bearer`."""
        return f"tsk_{self.token_id}_{self.secret}"

    @property
    def digest(self) -> bytes:
        """What the ledger keeps of the secret."""
        return hashlib.sha256(self.secret.encode()).digest()


def new_secret() -> Secret:
    """A new token."""
    return Secret(TokenId(secrets.token_hex(10)), secrets.token_urlsafe(32))


def read_secret(text: str) -> Secret | None:
    """The token in this text; None if it has not the form of one."""
    match = _TOKEN.match(text)
    return None if match is None else Secret(TokenId(match[1]), match[2])
