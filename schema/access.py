"""Who may ask the gateway for what: roles, and bearer tokens as text (protocol §14.6). Pure.

A token is `tsk_{token_id}_{secret}`. The id is public: the ledger records it as `token.{token_id}` beside what was done
with it. The secret has 256 random bits, so a plain hash of it is enough, and nobody can read it out of the ledger.
"""

import hashlib
import re
import secrets
from dataclasses import dataclass
from enum import StrEnum
from typing import NewType

from turnstile.schema.ids import ChannelId, ProjectId

TokenId = NewType("TokenId", str)
_TOKEN = re.compile(r"tsk_([0-9a-f]{20})_([A-Za-z0-9_-]{43})\Z")


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
        return f"token.{self.token_id}"

    def may(self, right: Right) -> bool:
        """Whether its role has this right."""
        return right in RIGHTS[self.role]

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
    found = _TOKEN.match(text)
    return None if found is None else Secret(TokenId(found[1]), found[2])
