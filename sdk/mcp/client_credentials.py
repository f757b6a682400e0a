"""The OAuth client credentials of an MCP server's entry: a token for a host on which nobody logs in.

The secret is read from its file whenever a connection begins, and is in no message, log or row. It goes to the
authorization server that the entry names and to no other: the MCP server says where that is, so the first one is
written down. It goes over https, or within this host.
"""

from pathlib import Path

import httpx2
from mcp.client.auth import OAuthFlowError
from mcp.client.auth.extensions.client_credentials import ClientCredentialsOAuthProvider
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken

from turnstile.schema.errors import ConfigError
from turnstile.sdk.mcp.mcp_server import OAuthClient

_LONGEST = 65_536
_WITHIN = frozenset({"localhost", "127.0.0.1", "::1"})


class _Memory:
    """The token of one connection."""

    def __init__(self) -> None:
        self._tokens: OAuthToken | None = None

    async def get_tokens(self) -> OAuthToken | None:
        return self._tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self._tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return None

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        pass


class ClientCredentials(ClientCredentialsOAuthProvider):
    """Asks for a token when the server wants one; raises `OAuthFlowError` into the request if it gets none."""

    def __init__(self, url: str, client: OAuthClient) -> None:
        """Read the secret; raises `ConfigError`, which names its file."""
        super().__init__(
            url,
            _Memory(),
            client.client_id,
            _secret(client.client_secret_file),
            scope=client.scope,
            issuer=client.issuer or url,
        )
        self._issuer = client.issuer
        self._scope = client.scope

    @property
    def issuer(self) -> str | None:
        """The authorization server that gave a token; None if none did, or it says nothing of itself."""
        metadata = self.context.oauth_metadata
        return None if metadata is None or self.context.current_tokens is None else str(metadata.issuer)

    async def _perform_authorization(self) -> httpx2.Request:
        if self._scope is not None:  # the library takes what the server names
            self.context.client_metadata.scope = self._scope
        request = await super()._perform_authorization()
        if request.url.scheme != "https" and request.url.host not in _WITHIN:
            raise OAuthFlowError(f"the client secret is not sent to {request.url.host} without https")
        return request


def _secret(path: Path) -> str:
    try:
        with path.open("rb") as file:
            text = file.read(_LONGEST + 1).decode().strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no UTF-8"
        raise ConfigError(f"the OAuth client secret cannot be read from {path}: {why}") from None
    if not text or len(text) > _LONGEST:
        raise ConfigError(f"the OAuth client secret in {path} is empty, or has more than {_LONGEST} characters")
    return text
