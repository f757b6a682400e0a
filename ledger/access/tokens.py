"""Bearer tokens of the gateway: issued, listed, revoked, and looked up (protocol §14.3).

A token's text is returned once, when it is added; the ledger has a hash of its secret. `authenticate` compares in
constant time and says nothing of why it found nobody.
"""

import hmac
import json
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta

from pydantic import Json

from turnstile.ledger.queries import Connection, query
from turnstile.schema.access import GatewayRole, Principal, Secret, TokenId, new_secret
from turnstile.schema.base import Tolerant
from turnstile.schema.errors import Refused
from turnstile.schema.ids import ChannelId, ProjectId


class TokenLine(Tolerant):
    """A token without its secret."""

    token_id: TokenId
    project_id: ProjectId
    channel_id: ChannelId | None
    role: GatewayRole
    label: str
    profiles: Json[list[str]] | None
    """The profiles that it may name; None: those that say so."""
    models: Json[list[str]] | None
    """The models that it may name beside a profile's own; None: those that the profile lists."""
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None


class TokenLabel(Tolerant):
    """What people call a token, under the name by which the ledger knows who asked."""

    sender: str
    label: str


class _FoundToken(TokenLine):
    secret_hash: bytes


async def add_token(
    conn: Connection,
    project: ProjectId,
    role: GatewayRole,
    *,
    channel: ChannelId | None = None,
    label: str = "",
    valid_for: timedelta | None = None,
    secret: Secret | None = None,
    profiles: Sequence[str] | None = None,
    models: Sequence[str] | None = None,
) -> tuple[Secret, TokenLine]:
    """Issue a token; without `valid_for` it holds until it is revoked. Returns it with its text, which nobody keeps."""
    drawn = new_secret() if secret is None else secret
    line = await query("add_token").one_as(
        conn,
        TokenLine,
        token_id=drawn.token_id,
        project_id=project,
        channel_id=channel,
        role=role,
        label=label,
        secret_hash=drawn.digest,
        profiles=None if profiles is None else json.dumps([profile.lower() for profile in profiles]),
        models=None if models is None else json.dumps(list(models)),
        valid_seconds=None if valid_for is None else valid_for.total_seconds(),
    )
    return drawn, line


async def list_tokens(conn: Connection, project: ProjectId) -> list[TokenLine]:
    """The tokens of a project, the newest first, revoked ones too."""
    return await query("list_tokens").all_as(conn, TokenLine, project_id=project)


async def list_token_labels(conn: Connection, project: ProjectId) -> list[TokenLabel]:
    """The labels of the newest 1,000 tokens that have one; revoked tokens keep theirs."""
    return await query("list_token_labels").all_as(conn, TokenLabel, project_id=project)


async def revoke_token(conn: Connection, project: ProjectId, token: TokenId) -> TokenLine:
    """Revoke a token of the project; raises `Refused` (unknown_token) if it has none of this id."""
    line = await query("revoke_token").opt_as(conn, TokenLine, project_id=project, token_id=token)
    if line is None:
        raise Refused("unknown_token", f"project {project} has no token {token!r}")
    return line


async def authenticate(conn: Connection, secrets: Collection[Secret]) -> dict[Secret, Principal]:
    """Whose these tokens are, in one statement; without those that are unknown, wrong, revoked or expired."""
    rows = await query("find_tokens").all_as(conn, _FoundToken, token_ids=list({s.token_id for s in secrets}))
    tokens = {row.token_id: row for row in rows}
    principals: dict[Secret, Principal] = {}
    for secret in secrets:
        row = tokens.get(secret.token_id)
        known = bytes(32) if row is None else row.secret_hash
        if hmac.compare_digest(known, secret.digest) and row is not None:
            principals[secret] = Principal(row.token_id, row.project_id, row.channel_id, row.role)
    return principals
